"""`mailprobe clean`: verifies every address of a list and keeps every row."""

import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from mailprobe.api.cli.errors import Misuse, print_error
from mailprobe.api.cli.runner import ending_at_once, raise_open_files, sigterm_as_sigint
from mailprobe.api.gc_tuning import collector_paused

if TYPE_CHECKING:
    from mailprobe.api.cli.listfile import ReadOptions
    from mailprobe.api.cli.source import OpenSource

FILE_NAME = click.Path(readable=False)  # for completion only: the command checks the file


@click.command()
@click.argument("input_", metavar="INPUT", type=FILE_NAME)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=FILE_NAME,
    help="Output file; its extension sets the format.",
)
@click.option(
    "--server",
    metavar="URL",
    help="Verify with this service, not on this machine. Default: MAILPROBE_SERVER.",
)
@click.option(
    "--key",
    metavar="KEY",
    help="The API key for the service. Default: MAILPROBE_KEY.",
)
@click.option(
    "--column",
    metavar="NAME",
    help="Column of the addresses: its name, number, or path to a field.",
)
@click.option("--encoding", metavar="NAME", help="Encoding of the list, such as cp1252.")
@click.option(
    "--errors",
    type=click.Choice(["strict", "replace"]),
    default="strict",
    help="Bytes that are not valid text: refuse the list, or replace them.",
)
@click.option(
    "--skip-lines",
    type=click.IntRange(0, 10_000),
    metavar="N",
    default=0,
    help="Skip N lines of title or notes above the header.",
)
@click.option(
    "--quotes/--no-quotes",
    default=None,
    help="Quotes enclose cells, or are ordinary characters.",
)
@click.option(
    "--backslash",
    type=click.Choice(["text", "escape"]),
    help="A backslash is an ordinary character, or escapes the next one.",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
@collector_paused()
def clean(
    input_: str,
    output: str | None,
    server: str | None,
    key: str | None,
    column: str | None,
    encoding: str | None,
    errors: Literal["strict", "replace"],
    skip_lines: int,
    quotes: bool | None,
    backslash: Literal["text", "escape"] | None,
    resume: bool,
) -> None:
    """Verify every address of a list: CSV, TSV, XLSX, NDJSON or plain lines.

    Each row of INPUT (- for standard input) appears once in the output with the
    result and a light: GREEN_LIGHT, YELLOW_LIGHT or RED_LIGHT. Without -o the
    output is named like INPUT, with .verified before the extension.
    """
    with ending_at_once():
        import trio  # noqa: F401 - a Ctrl-C could be lost in an import

        from mailprobe.api.cli.cleaning.run import Order, clean_list, output_path
        from mailprobe.api.cli.listfile import ReadOptions, known_encoding
        from mailprobe.api.cli.output.lights import dead_end
        from mailprobe.api.cli.output.progress import show_progress
        from mailprobe.api.cli.output.report import print_summary

        open_source, is_local = _source(server, key)
    codec = encoding and known_encoding(encoding)
    reading = ReadOptions(column, codec, errors, skip_lines, quotes, backslash)
    raise_open_files()
    source = None if input_ == "-" else Path(input_)
    if source is not None and not source.name:
        raise Misuse(f"{input_} is a directory; INPUT takes a file")
    target = source and output_path(source)
    if output is not None:
        target = None if output == "-" else Path(os.path.realpath(output))
    with sigterm_as_sigint():
        summary = clean_list(
            Order(source, target, reading, resume),
            open_source,
            standard_output=sys.stdout.buffer,
            show_progress=show_progress,
            resume_command=_command(input_, output, server, key, reading),
        )
        with suppress(OSError):  # the list is cleaned even if standard error is closed
            print_summary(summary, sys.stderr)
        if is_local and (hint := dead_end(summary.counts.reasons)) is not None:
            print_error(hint)


def _source(server: str | None, key: str | None) -> "tuple[OpenSource, bool]":
    """The source that the options or the settings name, and whether it is an engine here.

    Raises Misuse and WrongSetting. A key in the settings is no reason to use a service.
    """
    if server is None or key is None:
        from mailprobe.api.settings import Settings

        settings = Settings.read(os.environ)
        server = settings.server if server is None else server
        if server is None and key is None:
            from mailprobe.api.cli.source import open_own_engine

            return (lambda: open_own_engine(settings.engine)), True
        key = settings.key if key is None else key
    if server is None:
        raise Misuse(
            "--key needs the service's address too: give --server, or set MAILPROBE_SERVER"
        )
    if key is None:
        raise Misuse("the service needs an API key: set MAILPROBE_KEY, or give --key")
    from mailprobe.api.cli.http_source import check_server, open_http_source

    check_server(server, key)
    return (lambda: open_http_source(server, key)), False


def _command(
    input_: str, output: str | None, server: str | None, key: str | None, reading: "ReadOptions"
) -> str:
    words = ["mailprobe", "clean", input_]
    if output is not None:
        words += ["-o", output]
    if server is not None:
        words += ["--server", server]
    if key is not None:
        words += ["--key", "KEY"]  # never print a secret
    if reading.column is not None:
        words += ["--column", reading.column]
    if reading.encoding is not None:
        words += ["--encoding", reading.encoding]
    if reading.errors != "strict":
        words += ["--errors", reading.errors]
    if reading.skip_lines:
        words += ["--skip-lines", str(reading.skip_lines)]
    if reading.quotes is not None:
        words += ["--quotes" if reading.quotes else "--no-quotes"]
    if reading.backslash is not None:
        words += ["--backslash", reading.backslash]
    return shlex.join([*words, "--resume"])
