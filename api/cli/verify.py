"""`mailprobe verify`: verifies a few addresses, for a person or a script."""

import os
import shlex
import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import Misuse, print_error
from ..gc_tuning import collector_paused
from ..starting.open_files import raise_open_files
from .runner import ending_at_once, run
from .shell.options import bounces_option, no_smtp_option, service_options

if TYPE_CHECKING:
    from mailprobe.engine.stream.answers import Answer

    from ..results.row_result import RowResult
    from .source import OpenSource

REQUEST_MAX = 50  # typed addresses with the deadlines of a request; more are a list
SOON_S = 0.1  # no progress is shown before; the first DNS query is sent by then


@click.command()
@click.argument("addresses", metavar="ADDRESS...", nargs=-1, required=True)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line, in completion order."
)
@click.option(
    "--explain", is_flag=True, help="Add the SMTP conversation and what came from caches."
)
@no_smtp_option
@bounces_option
@service_options("Ask this service, not the mail hosts.")
@collector_paused()
def verify(
    addresses: tuple[str, ...],
    as_json: bool,
    explain: bool,
    no_smtp: bool,
    bounces: Path | None,
    server: str | None,
    key: str | None,
) -> None:
    """Verify each ADDRESS and print its status and the reason.

    An ADDRESS of - reads addresses from standard input, one per line. What
    stands around an address is taken off, as in 'Ann <ann@example.org>'.
    """
    with ending_at_once():
        import trio  # noqa: F401 - a Ctrl-C could be lost in an import

        from ..settings import Settings
        from .remote.named_service import named_service
        from .source import open_own_engine

    settings = Settings.read(os.environ)
    raise_open_files()
    texts = list(_texts(addresses))
    if (service := named_service(server, key, settings, bounces)) is not None:
        from .remote.source import open_remote_source

        source: OpenSource = partial(open_remote_source, *service, "stream", asks_hosts=not no_smtp)
    else:
        engine = replace(settings.engine, asks_hosts=False) if no_smtp else settings.engine
        bounced: Mapping[str, str] = {}
        if bounces is not None:  # what reads such files takes a tenth of a second to load
            from .scoring.bounces import bounced_in

            bounced = bounced_in(bounces, print_error)
        is_request = "-" not in addresses and len(texts) <= REQUEST_MAX
        source = partial(open_own_engine, engine, bounced, is_request=is_request)
    if as_json:
        print_json(texts, source, explain=explain)
    else:
        print_table(texts, source, explain=explain, is_local=service is None)


def _texts(addresses: Iterable[str]) -> Iterable[str]:
    for address in addresses:
        if address == "-":
            for line in _read_input().split("\n"):
                if line.strip():
                    yield from _unwrapped(line.rstrip("\r"))
        else:
            if "@" not in address and os.path.isfile(address):
                cleans = shlex.join(["mailprobe", "clean", address])
                print_error(
                    f"{_unicode(address)} is a file; to verify the addresses in it: {cleans}"
                )
            yield from _unwrapped(_unicode(address))


def _unwrapped(text: str) -> Sequence[str]:
    """The addresses in a text, as `clean` reads them in a cell; else the text as it is."""
    from ..cells.unwrapping import read_cell

    return read_cell(text).addresses or (text,)


def _read_input() -> str:
    """Read standard input as text. A byte order mark sets the encoding and is removed."""
    try:
        octets = sys.stdin.buffer.read()
    except OSError as error:
        raise Misuse(f"standard input cannot be read: {os.strerror(error.errno or 0)}") from None
    if not octets.strip():
        raise Misuse("standard input is empty; it has one address a line")
    encoding = "utf-16" if octets.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig"
    return octets.decode(encoding, "backslashreplace")


def _unicode(text: str) -> str:
    """Show bytes of the command line that are not UTF-8 as escapes: they cannot be printed."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def print_json(texts: Sequence[str], open_source: "OpenSource", *, explain: bool) -> None:
    """Print one result per line on standard output, in completion order, unbuffered."""
    import msgspec
    import trio

    from mailprobe.engine.evidence import Evidence
    from mailprobe.engine.verdict import as_row

    from .source import in_request_order

    def line_of(answer: "Answer") -> bytes:
        if not explain:
            return msgspec.json.encode(answer.verdict) + b"\n"
        evidence = answer.evidence or Evidence()
        return msgspec.json.encode({**as_row(answer.verdict), "evidence": evidence}) + b"\n"

    async def write(lines: list[bytes], arrived: trio.MemoryReceiveChannel[None]) -> None:
        async for _ in arrived:
            octets = b"".join(lines)
            lines.clear()
            # In a thread: a slow reader must not delay the probes' deadlines.
            await trio.to_thread.run_sync(_write_all, octets, abandon_on_cancel=True)

    async def main() -> None:
        lines: list[bytes] = []  # bounded by the texts
        arrived, take = trio.open_memory_channel[None](1)
        async with (
            open_source() as source,
            source.open_answers(in_request_order(texts), explain=explain) as answers,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(write, lines, take)
            with arrived:
                async for answer in answers:
                    lines.append(line_of(answer))
                    with suppress(trio.WouldBlock):  # the writer is told already
                        arrived.send_nowait(None)

    run(main)


def _write_all(octets: bytes) -> None:
    """Write to standard output without Python's buffer: its lock would outlive a Ctrl-C."""
    while octets:
        octets = octets[os.write(sys.stdout.fileno(), octets) :]


def _print_dead_end(
    results: "Iterable[RowResult]", answers: "Iterable[Answer]", *, is_local: bool
) -> None:
    """Print a hint if no mail host has said anything; the answers have evidence."""
    from mailprobe.engine.evidence import is_reached

    from ..results.counts import ResultCounts
    from .output.advice import dead_end, failure_of

    counts = ResultCounts()
    for result in results:
        counts.count(result)
    if not is_local:
        if (hint := failure_of(counts, is_local=False)) is not None:
            print_error(hint)
        return
    reached = any(answer.evidence and is_reached(answer.evidence) for answer in answers)
    if (hint := dead_end(counts, reached=reached)) is not None:
        print_error(hint)


def print_table(
    texts: Sequence[str], open_source: "OpenSource", *, explain: bool, is_local: bool = True
) -> None:
    """Print a table in request order once all are answered; show progress until then."""
    import trio

    from mailprobe.engine.evidence import Evidence

    from .source import request_order

    found: dict[int, Answer] = {}
    order = request_order(texts)

    async def main() -> None:
        async with (
            open_source() as source,
            # Also without --explain: the evidence tells whether any mail host was reached.
            source.open_answers([texts[at] for at in order], explain=True) as answers,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_show_waiting, found, len(texts))
            async for answer in answers:
                found[order[answer.position]] = answer
            nursery.cancel_scope.cancel()

    run(main)
    from ..results.row_result import row_result
    from .output.report import console_on, explanation, print_verdicts

    in_order = [found[position] for position in range(len(texts))]
    results = [row_result(answer) for answer in in_order]
    _print_dead_end(results, in_order, is_local=is_local)
    console = console_on(sys.stdout)
    if explain:
        for answer, result in zip(in_order, results, strict=True):
            for line in explanation(result, answer.evidence or Evidence()):
                console.print(line, overflow="fold")
    else:
        print_verdicts(console, results)


async def _show_waiting(found: "Mapping[int, Answer]", total: int) -> None:
    """Show how many are answered, and import the table renderer meanwhile.

    The import takes some 50 ms and runs in a thread: the probes' deadlines run already.
    """
    import trio

    await trio.sleep(SOON_S)
    await trio.to_thread.run_sync(import_module, "mailprobe.api.cli.output.report")
    from .output.report import waiting

    with waiting(total) as show:
        while True:
            show(len(found))
            await trio.sleep(SOON_S)
