"""Cleans a list: reads it twice, verifies each address once, writes it as a whole.

The first reading finds the distinct addresses, answers go to the journal as they
arrive, and the second reading writes each row with its answer. Memory holds the
addresses and the offsets of their answers, nothing else that grows.
"""

import os
import stat
import sys
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO

from mailprobe.api.cli.cleaning.counts import ResultCounts
from mailprobe.api.cli.cleaning.journal import Header, Journal, open_journal
from mailprobe.api.cli.errors import CommandError, Interrupted, Misuse, print_error
from mailprobe.api.cli.listfile import (
    BadList,
    List,
    ListRow,
    OutputFormat,
    ReadOptions,
    check_fits_sheet,
    check_header,
    open_list,
    open_writer,
    output_manner,
    replacing,
    writing_to,
)
from mailprobe.api.cli.output.terminal import plain
from mailprobe.api.cli.runner import run
from mailprobe.api.cli.source import AnswerSource, OpenSource

NOT_VERIFIED = -1
ROWS_LONG = 50_000  # writing more takes seconds, in a workbook minutes
DOMAIN_RUN = 20  # addresses of one domain in a row

# Shows progress while addresses are verified; takes the counts and the number of addresses.
ShowProgress = Callable[[ResultCounts, int], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def no_progress(counts: ResultCounts, total: int) -> AsyncIterator[None]:
    yield


@dataclass(frozen=True, slots=True)
class Order:
    """Input and output of a run. None: standard input, standard output."""

    input: Path | None
    output: Path | None
    reading: ReadOptions = field(default_factory=ReadOptions)
    resume: bool = False

    @property
    def journal(self) -> Path | None:
        """The path beside the output; None without an output file."""
        return self.output and self.output.with_name(f"{self.output.name}.journal")


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a run; `tally` counts rows, `verified` the addresses verified in this run."""

    output: Path | None
    rows: int
    blank: int
    addresses: int
    verified: int
    took_s: float
    counts: ResultCounts


@dataclass(slots=True)
class DistinctAddresses:
    """The distinct addresses of a list, each with the offset of its answer."""

    rows: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    answered: int = 0

    def add(self, address: str) -> None:
        self.rows += 1
        if address and address not in self.numbers:
            self.numbers[address] = len(self.offsets)
            self.offsets.append(NOT_VERIFIED)

    def answer(self, address: str, offset: int) -> bool:
        """Record an answer; the last one counts. True if it is the address's first."""
        number = self.numbers[address]
        is_first = self.offsets[number] == NOT_VERIFIED
        self.answered += is_first
        self.offsets[number] = offset
        return is_first

    def unanswered(self) -> list[str]:
        return [
            address
            for address, number in self.numbers.items()
            if self.offsets[number] == NOT_VERIFIED
        ]


def in_request_order(addresses: Sequence[str]) -> list[str]:
    """Order the addresses so that those of a domain share connections.

    Domains alternate, with DOMAIN_RUN addresses each, so that a domain with half of the
    list does not delay the others.
    """
    domains: dict[str, int] = {}
    counts = array("I")  # addresses of each domain
    numbers, turns = array("I"), array("I")  # of each address: its domain, and its turn
    for address in addresses:
        number = domains.setdefault(address.rpartition("@")[2].lower(), len(domains))
        if number == len(counts):
            counts.append(0)
        numbers.append(number)
        turns.append(counts[number] // DOMAIN_RUN)
        counts[number] += 1
    by_domain = _counting_sort(range(len(addresses)), numbers)
    return [addresses[position] for position in _counting_sort(by_domain, turns)]


def _counting_sort(positions: Iterable[int], keys: "array[int]") -> "array[int]":
    """Sort the positions by key, stably. Uses four bytes per position."""
    starts = array("I", bytes(4 * (max(keys, default=0) + 2)))
    for key in keys:
        starts[key + 1] += 1
    for key in range(1, len(starts)):
        starts[key] += starts[key - 1]
    ordered = array("I", bytes(4 * len(keys)))
    for position in positions:
        key = keys[position]
        ordered[starts[key]] = position
        starts[key] += 1
    return ordered


def output_path(source: Path) -> Path:
    """The input's name with `.verified` before the ending."""
    ending = ".xlsx" if source.suffix.lower() == ".xlsm" else source.suffix
    return source.with_name(f"{source.stem}.verified{ending}")


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
    _check_output(order, standard_output)
    with open_list(order.input, order.reading) as source:
        manner = output_manner(order.output, source.manner)
        addresses = _read_addresses(source, manner)
        for remark in source.remarks():
            print_error(remark)
        header = Header(1, source.survey.octets, source.survey.sha256)
        with (
            open_journal(order.journal, header, resume=order.resume) as journal,
            _kept_for_later(order, journal, addresses, resume_command),
        ):
            known = _replay(journal, addresses)
            before = addresses.answered
            _verify(addresses, journal, open_source, known, show_progress)
            counts = _write(order, source, manner, journal, addresses, standard_output)
            if order.journal:
                order.journal.unlink(missing_ok=True)
    return Summary(
        output=order.output,
        rows=addresses.rows,
        blank=addresses.rows - counts.done,
        addresses=len(addresses.numbers),
        verified=addresses.answered - before,
        took_s=time.monotonic() - started,
        counts=counts,
    )


def _check_output(order: Order, standard_output: BinaryIO | None) -> None:
    """Misuse where the output cannot be, or would be the list itself under any name."""
    output = order.output
    source = _identity(order.input) if order.input else _identity_of(sys.stdin)
    if output is None:
        if order.resume:
            raise Misuse("--resume needs an output file to go on with; name it with -o")
        if source is not None and source == _identity_of(standard_output):
            raise Misuse("standard output is the list itself; name another output with -o")
        return
    name = plain(str(output))
    if output.is_dir():
        raise Misuse(f"{name} is a directory; name a file with -o")
    if output.exists() and not output.is_file():
        raise Misuse(f"{name} is no regular file; for standard output name - with -o")
    if source is None:
        return
    if source == _identity(output):
        raise Misuse(f"{name} is the list itself; name another output with -o")
    if order.journal and source == _identity(order.journal):
        raise Misuse(
            f"{plain(str(order.journal))} is the list itself, and the answers would be kept under "
            "that name; name another output with -o"
        )


Identity = tuple[int, int]  # device and inode: the same for every name and link of a file


def _identity(path: Path) -> Identity | None:
    try:
        return _regular(os.stat(path))
    except OSError:
        return None


def _identity_of(stream: IO[Any] | None) -> Identity | None:
    try:
        return _regular(os.fstat(stream.fileno())) if stream is not None else None
    except (OSError, ValueError):  # no descriptor behind it, or a closed one
        return None


def _regular(status: os.stat_result) -> Identity | None:
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _read_addresses(source: List, manner: OutputFormat) -> DistinctAddresses:
    """The first reading. Raises BadList for a bad list, before any verification."""
    addresses = DistinctAddresses()
    for row in source.rows():
        addresses.add(row.address)
        if manner.kind == "xlsx":
            check_fits_sheet(row, addresses.rows, source.name)
    if manner.kind == "xlsx":
        check_header(source)
    if not addresses.numbers:
        raise BadList(f"{source.name} has no address in the chosen column")
    return addresses


def _replay(journal: Journal, addresses: DistinctAddresses) -> ResultCounts:
    """Load the answers of an earlier run."""
    counts = ResultCounts()
    for offset, verdict in journal.answers():
        if verdict.email in addresses.numbers and addresses.answer(verdict.email, offset):
            counts.count(verdict)
    if journal.damaged:
        lines = "lines are" if journal.damaged > 1 else "line is"
        print_error(
            f"{journal.damaged:,} {lines} damaged in {journal.name} and ignored; their "
            "addresses are verified again"
        )
    return counts


def _verify(
    addresses: DistinctAddresses,
    journal: Journal,
    open_source: OpenSource,
    counts: ResultCounts,
    show: ShowProgress,
) -> None:
    """Verify the unanswered addresses, and add to `counts`."""
    texts = in_request_order(addresses.unanswered())
    if not texts:
        return

    async def verify() -> None:
        async with open_source() as source, show(counts, len(addresses.numbers)):
            await _collect(source, texts, addresses, journal, counts)

    run(verify)
    if addresses.answered < len(addresses.numbers):
        raise CommandError("the answers ended early")


async def _collect(
    source: AnswerSource,
    texts: list[str],
    addresses: DistinctAddresses,
    journal: Journal,
    counts: ResultCounts,
) -> None:
    async with source.open_answers(texts) as answers:
        async for answer in answers:
            email = answer.verdict.email
            if email not in addresses.numbers:  # the source's mistake: a repeat would not help
                raise CommandError(
                    f"received an answer about {plain(email[:100])}, which was not requested"
                )
            if addresses.answer(email, journal.append(answer.verdict)):
                counts.count(answer.verdict)


def _write(
    order: Order,
    source: List,
    manner: OutputFormat,
    journal: Journal,
    addresses: DistinctAddresses,
    standard_output: BinaryIO,
) -> ResultCounts:
    if addresses.rows >= ROWS_LONG:
        print_error(f"writing {addresses.rows:,} rows")
    if order.output is None:
        with writing_to("standard output"):
            return _write_rows(standard_output, source, manner, journal, addresses)
    with replacing(order.output) as file:
        return _write_rows(file, source, manner, journal, addresses)


def _write_rows(
    file: BinaryIO,
    source: List,
    manner: OutputFormat,
    journal: Journal,
    addresses: DistinctAddresses,
) -> ResultCounts:
    """The second reading: write every row with its answer. Raises if the list was changed."""
    counts = ResultCounts()
    rows = 0
    with journal.reading() as answers, open_writer(file, manner, source) as write:
        for row in _rows_again(source):
            rows += 1
            if not row.address:
                write(row, None)
                continue
            number = addresses.numbers.get(row.address)
            if number is None:
                raise _changed(source)
            verdict = answers.answer(addresses.offsets[number])
            if verdict.email != row.address:
                raise CommandError(f"{journal.name} was changed while it was used")
            counts.count(verdict)
            write(row, verdict)
        if rows != addresses.rows:
            raise _changed(source)
    file.flush()
    return counts


def _rows_again(source: List) -> Iterator[ListRow]:
    """The rows of a list that was read before: any error means that it was changed.

    A complete reading that differs in size or fingerprint raises Changed.
    """
    try:
        yield from source.rows()
    except (Misuse, UnicodeError, ValueError, EOFError, StopIteration, OSError) as error:
        raise _changed(source) from error


def _changed(source: List) -> CommandError:
    return CommandError(f"{source.name} was changed while it was cleaned; clean it again")


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
    if not addresses.answered:
        order.journal.unlink(missing_ok=True)
        return "nothing was answered yet, and nothing is left behind"
    journal.sync()
    return (
        f"{addresses.answered:,} of {len(addresses.numbers):,} addresses are answered and kept; "
        f"continue with: {resume_command}"
    )
