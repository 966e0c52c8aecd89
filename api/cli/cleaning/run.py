"""Cleans a list: reads it twice, verifies each address once, writes it as a whole.

A process of its own does the reading and the writing. The first reading finds the distinct addresses, answers go to the journal as they
arrive, and the second reading writes each row with its answer. Memory holds the
addresses and the offsets of their answers, nothing else that grows.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mailprobe.api.cli.cleaning.addresses import DistinctAddresses
from mailprobe.api.cli.cleaning.journal import VERSION, Header, Journal, open_journal
from mailprobe.api.cli.cleaning.outputs import Order, check_output, write_list
from mailprobe.api.cli.cleaning.passes import Passes, ShowProgress, no_progress
from mailprobe.api.cli.errors import CommandError, Interrupted, print_error
from mailprobe.api.cli.listfile import BadList, replacing
from mailprobe.api.cli.output.counts import ResultCounts
from mailprobe.api.cli.output.html_report import report_page
from mailprobe.api.cli.runner import run
from mailprobe.api.cli.source import OpenSource, ResumableSource
from mailprobe.api.reader.frames import ReadAddresses
from mailprobe.api.reader.own_list import OwnList, open_own_list


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a run; `counts` has rows, `verified` the addresses verified in this run."""

    outputs: tuple[Path, ...]  # none for standard output
    rows: int
    blank: int
    addresses: int
    verified: int
    took_s: float
    counts: ResultCounts
    written: int  # rows, of all outputs
    report: Path | None = None


def clean_list(
    order: Order,
    open_source: OpenSource,
    *,
    standard_output: BinaryIO,
    show_progress: ShowProgress = no_progress,
    resume_command: str = "the same command with --resume",
) -> Summary:
    """Clean a list. Raises CommandError if it cannot be done or finished.

    Answers before an early end are in the journal. Without any answer nothing is left
    behind. The output file appears only once it is complete.
    """
    started = time.monotonic()
    check_output(order, standard_output)
    with open_own_list(order.input, order.reading, order.output) as (source, reading):
        addresses = _read_addresses(source, reading)
        for remark in source.found.remarks:
            print_error(remark)
        header = Header(VERSION, source.found.octets, source.found.sha256)
        with (
            open_journal(order.journal, header, resume=order.resume) as journal,
            _kept_for_later(order, journal, addresses, resume_command),
        ):
            passes = Passes(addresses, journal, order.recheck, show_progress)
            passes.replay()
            _verify(passes, open_source)
            written = write_list(order, source, journal, addresses, standard_output)
            if order.journal:
                order.journal.unlink(missing_ok=True)
    summary = Summary(
        outputs=tuple(path for path in order.outputs() if path is not None),
        rows=addresses.rows,
        blank=addresses.rows - written.counts.done,
        addresses=len(addresses.numbers),
        verified=passes.asked,
        took_s=time.monotonic() - started,
        counts=written.counts,
        written=written.rows,
        report=order.report,
    )
    if order.report is not None and written.report is not None:
        name = "standard input" if order.input is None else order.input.name
        page = report_page(summary, written.report, name)
        with replacing(order.report, may_replace=order.force) as file:
            file.write(page.encode())
    return summary


def _read_addresses(source: OwnList, reading: ReadAddresses) -> DistinctAddresses:
    """The first reading. Raises BadList for a bad list, before any verification."""
    addresses = DistinctAddresses()
    for texts in source.read(reading):
        for text in texts:
            addresses.add(text)
    if not addresses.numbers:
        raise BadList(f"{source.name} has no address in the chosen column")
    return addresses


def _verify(passes: Passes, open_source: OpenSource) -> None:
    """Ask what is to be asked. A Ctrl-C while something is asked again ends that, and no more."""

    async def verify() -> None:
        async with open_source() as source:
            if isinstance(source, ResumableSource) and passes.journal.is_kept:
                source.keep_record(passes.journal)
            await passes.run(source)

    addresses = passes.addresses
    if addresses.answered == len(addresses.numbers) and not addresses.passing():
        return
    try:
        run(verify)
    except KeyboardInterrupt:
        if not passes.is_rechecking:
            raise
        print_error("interrupted; what is known is written")


@contextmanager
def _kept_for_later(
    order: Order, journal: Journal, addresses: DistinctAddresses, resume_command: str
) -> Iterator[None]:
    """If the block ends early, keep a journal with answers and say how to continue."""
    try:
        yield
    except BrokenPipeError:  # the reader closed our standard output
        raise
    except BaseException as error:
        left = _unanswered(order, journal, addresses, resume_command)
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(f"interrupted; {left}") from None
        if isinstance(error, CommandError):
            raise CommandError(f"{error.message}; {left}") from error
        print_error(left)
        raise


def _unanswered(
    order: Order, journal: Journal, addresses: DistinctAddresses, resume_command: str
) -> str:
    if order.journal is None:
        return "without an output file (-o) nothing is kept"
    if not (addresses.answered or journal.early_ends or journal.has_sent):
        order.journal.unlink(missing_ok=True)
        return "nothing was answered yet, and nothing is left behind"
    journal.sync()
    if not addresses.answered:
        return f"nothing was answered yet; continue all the same with: {resume_command}"
    return (
        f"{addresses.answered:,} of {len(addresses.numbers):,} addresses are answered and kept; "
        f"continue with: {resume_command}"
    )
