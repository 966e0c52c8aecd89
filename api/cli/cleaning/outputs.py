"""Where a cleaned list is written, and which of its rows. The output appears only once it is complete."""

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from msgspec import Struct, field

from mailprobe.engine.verdict import Light

from ...errors import Misuse, cannot_use, print_error
from ...listfile.formulas import Formulas
from ...listfile.journal import Journal
from ...listfile.opening import ReadOptions, temporary_file, unpacked_name
from ...listfile.replacing import writing_to
from ...listfile.selection import ALL_ROWS, Selection
from ...reader.frames import Looks, WriteRows
from ...reader.own_list import OwnList
from ...results.counts import ResultCounts
from ...terminal import plain
from ..output.html_report import ReportCounts
from .addresses import DistinctAddresses
from .own_files import replacing_own
from .passes import NO_RECHECK, Recheck

ROWS_LONG = 50_000  # writing more takes seconds, in a workbook minutes
# What is read and has no output of its own kind.
WRITTEN_AS = {".xlsm": ".xlsx", ".json": ".ndjson", ".vcf": ".csv", ".htm": ".csv", ".html": ".csv"}
# The files of --split: the part of the name, and the lights of the rows. Rows without an
# address go to the last.
SPLIT: dict[str, frozenset[Light]] = {
    "keep": frozenset({"GREEN_LIGHT"}),
    "confirm": frozenset({"YELLOW_LIGHT"}),
    "drop": frozenset({"RED_LIGHT"}),
}


class Order(Struct, frozen=True):
    """Input and output of a run. None: standard input, standard output."""

    input: Path | None
    output: Path | None
    reading: ReadOptions = field(default_factory=ReadOptions)
    resume: bool = False
    recheck: Recheck = NO_RECHECK
    selection: Selection = ALL_ROWS
    split: bool = False  # three files in the place of one
    suggest: bool = False  # a column with the corrected address
    force: bool = False  # replace an existing output
    report: Path | None = None  # of the HTML report
    fields: tuple[str, ...] | None = None  # of the result; None: all
    come_first: bool = False  # before the list's own columns
    each: bool = False  # a row for each address of a cell
    formulas: Formulas = "guard"
    asks_hosts: bool = True

    @property
    def looks(self) -> Looks:
        fields = None if self.fields is None else [*self.fields]
        return Looks(self.suggest, fields, self.come_first, self.each, self.formulas)

    @property
    def journal(self) -> Path | None:
        """The path beside the output; None without an output file."""
        return self.output and self.output.with_name(f"{self.output.name}.journal")

    @property
    def may_replace(self) -> bool:
        """Whether an existing output is replaced.

        Not to be stopped is a run that was killed after it wrote its output, and before it
        deleted its journal.
        """
        return self.force or (self.resume and self.journal is not None and self.journal.exists())

    def outputs(self) -> dict[Path | None, Selection]:
        """The files to write, each with its rows."""
        if not self.split or self.output is None:
            return {self.output: self.selection}
        dedupe = self.selection.dedupe
        return {
            split_path(self.output, name): Selection(lights, name == "drop", dedupe)
            for name, lights in SPLIT.items()
        }


def output_path(source: Path) -> Path:
    """The input's name with `.verified` before the ending, and without `.gz`."""
    source = unpacked_name(source)
    ending = WRITTEN_AS.get(source.suffix.lower(), source.suffix)
    return source.with_name(f"{source.stem}.verified{ending}")


def split_path(output: Path, name: str) -> Path:
    """`list.csv` and `keep` make `list.keep.csv`."""
    return output.with_name(f"{output.stem}.{name}{output.suffix}")


def check_output(order: Order, standard_output: BinaryIO | None) -> None:
    """Misuse where the output cannot be, or would be the list itself under any name."""
    output = order.output
    source = _identity(order.input) if order.input else _identity_of(sys.stdin)
    if order.report is not None and order.report in order.outputs():
        raise Misuse("--report and the output are the same file; name another one")
    if output is None:
        if order.report is not None:
            _check_file(order, order.report, source)
        if order.resume:
            raise Misuse("--resume needs an output file to go on with; name it with -o")
        if source is not None and source == _identity_of(standard_output):
            raise Misuse("standard output is the list itself; name another output with -o")
        return
    for path in filter(None, (*order.outputs(), order.report)):
        _check_file(order, path, source)
    if source is None:
        return
    if order.journal and source == _identity(order.journal):
        raise Misuse(
            f"{plain(str(order.journal))} is the list itself, and the answers would be kept under "
            "that name; name another output with -o"
        )


def _check_file(order: Order, output: Path, source: "Identity | None") -> None:
    name = plain(str(output))
    is_report = output == order.report
    other = f"name another {'report with --report' if is_report else 'output with -o'}"
    try:
        there = os.stat(output)
    except FileNotFoundError:
        _check_folder(output.parent, other)
        return
    except OSError as error:
        raise Misuse(f"{cannot_use(error)}; {other}") from None
    if stat.S_ISDIR(there.st_mode):
        raise Misuse(f"{name} is a directory; name a file with {'--report' if is_report else '-o'}")
    if not stat.S_ISREG(there.st_mode):
        to_stdout = "" if is_report else "; for standard output name - with -o"
        raise Misuse(f"{name} is not a regular file{to_stdout}")
    if source is not None and source == _regular(there):
        raise Misuse(f"{name} is the list itself; {other}")
    if not order.may_replace:
        ended = ", and there is no interrupted run to continue" if order.resume else ""
        raise Misuse(f"{name} exists{ended}; replace it with --force, or {other}")
    _check_folder(output.parent, other)


def _check_folder(folder: Path, other: str) -> None:
    """Misuse where a new file cannot appear in it: at the end it would be too late to say so."""
    if not folder.is_dir():
        raise Misuse(f"there is no folder {plain(str(folder))}; create it, or {other}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Misuse(f"no file can be created in {plain(str(folder))}: permission denied; {other}")


Identity = tuple[int, int]  # device and inode: the same for every name and link of a file


def _identity(path: Path) -> Identity | None:
    try:
        return _regular(os.stat(path))
    except OSError:
        return None


def _identity_of(stream: IO[str] | IO[bytes] | None) -> Identity | None:
    try:
        return _regular(os.fstat(stream.fileno())) if stream is not None else None
    except (OSError, ValueError):  # no descriptor behind it, or a closed one
        return None


def _regular(status: os.stat_result) -> Identity | None:
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


class Written(Struct):
    """What was written: `counts` has the list's rows, `rows` those of the outputs."""

    paths: list[Path] = field(default_factory=list)  # none for standard output
    rows: int = 0
    counts: ResultCounts = field(default_factory=ResultCounts)
    report: ReportCounts | None = None


def write_list(
    order: Order,
    source: OwnList,
    journal: Journal,
    addresses: DistinctAddresses,
    standard_output: BinaryIO,
    *,
    may_replace: bool,
) -> Written:
    """Write every output. Raises CommandError if the list was changed meanwhile.

    `may_replace`: also a file that no run of this journal has written.
    """
    if addresses.rows >= ROWS_LONG:
        print_error(f"writing {addresses.rows:,} rows")
    made: Written | None = None
    paths: list[Path] = []
    rows = 0
    with writing_to("a temporary file"), temporary_file() as offsets:
        for octets in addresses.row_offsets():
            offsets.write(octets)
        offsets.flush()
        for path, selection in order.outputs().items():
            with _opened_output(path, journal, standard_output, may_replace=may_replace) as (
                file,
                named,
            ):
                if named is not None:
                    paths.append(named)
                command = WriteRows(
                    journal.name,
                    addresses.rows,
                    None if selection.lights is None else sorted(selection.lights),
                    selection.has_blank,
                    selection.dedupe,
                    order.looks,
                )
                source.begin_writing(command, file, journal.descriptor, offsets)
                made = made or _counted(order, journal, addresses)  # meanwhile
                rows += source.finish_writing()
    assert made is not None
    made.rows, made.paths = rows, paths
    return made


@contextmanager
def _opened_output(
    path: Path | None, journal: Journal, standard_output: BinaryIO, *, may_replace: bool
) -> Iterator[tuple[BinaryIO, Path | None]]:
    """The file of an output, and its path. Standard output is written once the list is complete."""
    if path is not None:
        with replacing_own(path, journal, may_replace=may_replace) as opened:
            yield opened
        return
    with writing_to("standard output"), temporary_file() as file:
        yield file, None
        file.seek(0)
        shutil.copyfileobj(file, standard_output)
        standard_output.flush()


def _counted(order: Order, journal: Journal, addresses: DistinctAddresses) -> Written:
    """The counts of the list's rows."""
    made = Written(report=None if order.report is None else ReportCounts())
    for offset, rows in addresses.answers():
        result = journal.answer(offset)
        made.counts.count(result, rows)
        if made.report is not None:
            made.report.count(result, rows)
    return made
