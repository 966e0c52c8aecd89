"""Options that several commands have, each with one spelling and one help text."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from ...operations.parameter_texts import NO_SMTP, WITHOUT_PORT

if TYPE_CHECKING:
    from ...setting_values import Bind, ValueType

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., None])


def service_options(instead: str) -> Callable[[F], F]:
    """`--server`, whose help begins with what it does here, and `--key`."""

    def add(command: F) -> F:
        command = click.option(
            "--key", metavar="KEY", help="The API key for the service. Default: MAILPROBE_KEY."
        )(command)
        return click.option(
            "--server", metavar="URL", help=f"{instead} Default: MAILPROBE_SERVER."
        )(command)

    return add


bounces_option = click.option(
    "--bounces",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Do not ask about addresses that bounced, as FILE says: they are undeliverable.",
)
no_smtp_option = click.option("--no-smtp", is_flag=True, help=f"{NO_SMTP} {WITHOUT_PORT}")


def read_bind_option(ctx: click.Context, param: click.Parameter, text: str | None) -> "Bind | None":
    from ...setting_values import BIND

    return None if text is None else _read_option(text, BIND)


def read_port_option(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    from ...setting_values import PORT_OR_ANY

    return None if text is None else _read_option(text, PORT_OR_ANY)


def _read_option(text: str, kind: "ValueType[T]") -> "T":
    try:
        return kind.read(text)
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected {kind.takes}") from None
