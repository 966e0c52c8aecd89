"""Cleans a list: reads it twice, verifies each address once, writes it as a whole.

A process of its own does the reading and the writing. The first reading finds the distinct
addresses, answers go to the journal as they arrive, and the second reading writes each row with
its answer, once more after each pass. Memory holds the addresses and the offsets of their
answers, nothing else that grows.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from msgspec.structs import replace

from ...errors import CommandError, Interrupted, print_error
from ...listfile.journal import VERSION, Header, Journal, open_journal
from ...listfile.survey import BadList
from ...reader.frames import ReadAddresses
from ...reader.own_list import OwnList, open_own_list
from ...terminal import plain
from ..output.html_report import ReportCounts, report_page
from ..output.summary import Summary
from ..runner import run
from ..source import OpenSource, ResumableSource
from .addresses import DistinctAddresses
from .earlier_refusals import CountingOpener
from .outputs import Order, check_output, write_list
from .own_files import replacing_own
from .passes import Passes, ShowProgress, no_progress
from .waiting import patient, words_of_results

ShowSummary = Callable[[Summary], None]
Say = Callable[[str], None]
Run = Callable[[Callable[[], Awaitable[None]]], None]


def clean_list(
    order: Order,
    open_source: OpenSource,
    *,
    standard_output: BinaryIO,
    show_progress: ShowProgress = no_progress,
    show_summary: ShowSummary = lambda _: None,
    resume_command: str = "the same command with --resume",
    say: Say = print_error,
    run: Run = run,
) -> Summary:
    """Clean a list. Raises CommandError if it cannot be done or finished.

    `run` runs the verification on trio. `say` gets remarks on the list. `show_summary` is called once the first pass is done and
    written, in a thread, and at the end if later passes have changed anything.

    Answers before an early end are in the journal. Without any answer nothing is left
    behind. The output file appears only once it is complete.
    """
    started = time.monotonic()
    check_output(order, standard_output)
    as_asked = replace(order.reading, fields=order.fields)
    with open_own_list(order.input, as_asked, order.output, each=order.each) as (source, reading):
        addresses = _read_addresses(source, reading)
        for remark in source.found.remarks:
            say(remark)
        header = Header(VERSION, source.found.octets, source.found.sha256)
        with (
            open_journal(order.journal, header, resume=order.resume) as journal,
            _kept_for_later(order, journal, addresses, resume_command),
        ):
            passes = Passes(
                addresses, journal, order.recheck, show_progress, asks_hosts=order.asks_hosts
            )
            passes.replay()
            writer = OutputWriter(order, source, passes, standard_output, started, show_summary)
            if order.output is not None:
                passes.write = writer.write_what_is_known
            is_interrupted = _verify(passes, open_source, run)
            summary = writer.finish()
            if is_interrupted:
                journal.sync()
                left = f"; ask again after temporary failures with: {resume_command}"
                print_error(f"interrupted; what is known is written{left if order.journal else ''}")
            elif waiting := passes.left_waiting():
                share = passes.counts.refused_share
                words = words_of_results(waiting, len(addresses.numbers), share)
                go_on = f"; go on with: {patient(resume_command)}" if order.journal else ""
                say(f"{words}{go_on}")
                journal.sync()
            elif order.journal:
                order.journal.unlink(missing_ok=True)
    return summary


class OutputWriter:
    """Writes outputs and report of a run: what is known before each wait, and the last time."""

    def __init__(
        self,
        order: Order,
        source: OwnList,
        passes: Passes,
        standard_output: BinaryIO,
        started: float,
        show_summary: ShowSummary,
    ) -> None:
        self._order = order
        self._source = source
        self._passes = passes
        self._standard_output = standard_output
        self._started = started
        self._show_summary = show_summary
        # Unless the run that is continued has written: files that it did not write are kept.
        self._may_replace = order.force or (order.may_replace and not passes.journal.written)
        self._written: Summary | None = None

    def write_what_is_known(self) -> None:
        if self._is_current:
            return
        is_first = self._written is None
        summary = self._write()
        if is_first:
            self._show_summary(summary)
            return
        for path in summary.outputs:
            print_error(f"{plain(str(path))} has what is known so far")

    def finish(self) -> Summary:
        """Write and show what has changed since the last time."""
        if self._written is not None and self._is_current:
            return self._written
        summary = self._write()
        self._show_summary(summary)
        return summary

    @property
    def _is_current(self) -> bool:
        return self._written is not None and self._written.verified == self._passes.asked

    def _write(self) -> Summary:
        order, addresses = self._order, self._passes.addresses
        written = write_list(
            order,
            self._source,
            self._passes.journal,
            addresses,
            self._standard_output,
            may_replace=self._may_replace,
        )
        summary = Summary(
            outputs=tuple(written.paths),
            rows=addresses.rows,
            blank=addresses.blank,
            addresses=len(addresses.numbers),
            verified=self._passes.asked,
            took_s=time.monotonic() - self._started,
            counts=written.counts,
            written=written.rows,
            report=order.report,
            columns=tuple(self._source.found.columns),
            unwrapped=self._source.found.unwrapped,
            doubtful=self._source.found.doubtful,
        )
        if written.report is not None:
            summary = self._with_report(summary, written.report)
        self._written, self._may_replace = summary, False
        return summary

    def _with_report(self, summary: Summary, counts: ReportCounts) -> Summary:
        order = self._order
        assert order.report is not None
        name = "standard input" if order.input is None else order.input.name
        page = report_page(summary, counts, name)
        journal, may_replace = self._passes.journal, self._may_replace
        with replacing_own(order.report, journal, may_replace=may_replace) as (file, path):
            file.write(page.encode())
        return replace(summary, report=path)


def _read_addresses(source: OwnList, reading: ReadAddresses) -> DistinctAddresses:
    """The first reading. Raises BadList for a bad list, before any verification."""
    addresses = DistinctAddresses()
    columns = max(1, len(reading.reading.wanted))
    for rows in source.read(reading):
        addresses.add_cells(rows.texts, rows.more, columns)
    if not addresses.numbers:
        raise BadList(f"{source.name} has no address in the chosen column")
    return addresses


def _verify(passes: Passes, open_source: OpenSource, run: Run) -> bool:
    """Ask what is to be asked. Returns True if a Ctrl-C has ended the asking again, and no more."""

    async def verify() -> None:
        async with open_source() as source:
            if isinstance(source, ResumableSource) and passes.journal.is_kept:
                source.keep_record(passes.journal)
            await passes.run(source)

    addresses = passes.addresses
    if addresses.answered == len(addresses.numbers) and not addresses.passing():
        return False
    if isinstance(open_source, CountingOpener) and passes.earlier is not None:
        open_source.count_on(passes.earlier)
    try:
        run(verify)
    except KeyboardInterrupt:
        if not passes.is_rechecking:
            raise
        return bool(addresses.passing())
    return False


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
        return f"nothing was answered yet; continue with: {resume_command}"
    return (
        f"{addresses.answered:,} of {len(addresses.numbers):,} addresses are answered and kept; "
        f"continue with: {resume_command}"
    )
