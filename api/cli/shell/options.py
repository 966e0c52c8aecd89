"""Options that several commands have, each with one spelling and one help text."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

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
    help="Ask about no address that bounced, as FILE says: it is undeliverable.",
)
no_smtp_option = click.option(
    "--no-smtp", is_flag=True, help="Ask no mail host; works without port 25."
)
