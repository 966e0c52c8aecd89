"""`mailprobe clean`: every address of a list verified, every row kept."""

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


@click.command()
@click.argument("input_", metavar="INPUT")
@click.option("-o", "--output", metavar="FILE", help="Where to; the ending says the format.")
@click.option("--server", metavar="URL", help="Ask this service, instead of an engine here.")
@click.option("--key", metavar="KEY", help="The API key for --server.")
@click.option(
    "--column",
    metavar="NAME",
    help="The column with the addresses, its number, or the path to a field.",
)
@click.option("--encoding", metavar="NAME", help="The list's encoding, such as cp1252.")
@click.option(
    "--errors",
    type=click.Choice(["strict", "replace"]),
    default="strict",
    help="What to do with octets that are no text: refuse the list, or replace them.",
)
@click.option(
    "--skip-lines",
    type=click.IntRange(0, 10_000),
    metavar="N",
    default=0,
    help="So many lines above the header are a title or notes.",
)
@click.option(
    "--quotes/--no-quotes",
    default=None,
    help="Quotes stand around cells, or are text like other characters.",
)
@click.option(
    "--backslash",
    type=click.Choice(["text", "escape"]),
    help="A backslash is text, or takes the next character as it is.",
)
@click.option("--resume", is_flag=True, help="Go on where an interrupted run ended.")
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
    output is INPUT's name with .verified before its ending.
    """
    with ending_at_once():
        import trio  # noqa: F401 - what the cleaning needs, before there is anything to lose

        from mailprobe.api.cli.cleaning.run import Order, clean_list, output_path
        from mailprobe.api.cli.listfile import ReadOptions, known_encoding
        from mailprobe.api.cli.output.lights import dead_end
        from mailprobe.api.cli.output.progress import show_progress
        from mailprobe.api.cli.output.report import print_summary

        open_source = _source(server, key)
    named = encoding and known_encoding(encoding)
    reading = ReadOptions(column, named, errors, skip_lines, quotes, backslash)
    raise_open_files()
    source = None if input_ == "-" else Path(input_)
    if source is not None and not source.name:
        raise Misuse(f"{input_} is a directory; it takes a file")
    target = source and output_path(source)
    if output is not None:
        target = None if output == "-" else Path(os.path.realpath(output))
    with sigterm_as_sigint():
        summary = clean_list(
            Order(source, target, reading, resume),
            open_source,
            standard_output=sys.stdout.buffer,
            show_progress=show_progress,
            how_to_go_on=_command(input_, output, server, reading),
        )
        with suppress(OSError):  # the list is cleaned, whether standard error takes a word or not
            print_summary(summary, sys.stderr)
        if server is None and (hint := dead_end(summary.tally.reasons)) is not None:
            print_error(hint)


def _source(server: str | None, key: str | None) -> "OpenSource":
    if server is None and key is None:
        from mailprobe.api.cli.source import open_own_engine
        from mailprobe.api.settings import Settings

        settings = Settings.read(os.environ)
        return lambda: open_own_engine(settings.engine)
    if server is None or key is None:
        raise Misuse("--server and --key go together: a service, and a key that it knows")
    from mailprobe.api.cli.http_source import check_server, open_http_source

    check_server(server, key)
    return lambda: open_http_source(server, key)


def _command(input_: str, output: str | None, server: str | None, reading: "ReadOptions") -> str:
    words = ["mailprobe", "clean", input_]
    if output is not None:
        words += ["-o", output]
    if server is not None:
        words += ["--server", server, "--key", "KEY"]  # a secret is not repeated to the screen
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
