"""Opens a file or standard input as a list: detects its kind and reads its rows."""

import gzip
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

from mailprobe.api.listfile.survey import PIECE_OCTETS, BadList, NoRoom, Survey, survey
from mailprobe.api.terminal import plain

if TYPE_CHECKING:  # a list is read by the modules of its kind, and those alone are imported
    from mailprobe.api.listfile.dialect import Dialect
    from mailprobe.api.listfile.tables import RowsToNote
    from mailprobe.api.listfile.workbook.sheets import Sheet

Kind = Literal["csv", "xlsx", "ndjson"]

STANDARD_INPUT = "standard input"
GZIP = b"\x1f\x8b"
UNPACKED_OCTETS_MAX = 1 << 30  # a larger file may be made to fill the disk
TABLE_ENDINGS = {".csv": None, ".tsv": "\t", ".tab": "\t"}
OBJECT_ENDINGS = frozenset({".ndjson", ".jsonl"})


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading a list; None: detect from the file."""

    column: str | None = None  # the addresses' name, number or path
    encoding: str | None = None
    errors: Literal["strict", "replace"] = "strict"
    skip_lines: int = 0
    quotes: bool | None = None  # True: around cells; False: ordinary characters
    backslash: Literal["text", "escape"] | None = None
    sheet: str | None = None  # of a workbook: its title or number
    unpacked_octets_max: int = UNPACKED_OCTETS_MAX  # of a compressed file
    lines_max: int | None = None  # of text: no more are looked at


class ListRow(Protocol):
    """One row of a list, whatever kind of file it came from."""

    @property
    def address(self) -> str:
        """The address without surrounding white space; "" if there is none."""

    def results(self) -> dict[str, str]:
        """The cells of an earlier cleaning by field; empty if there was none."""

    def cells(self) -> list[str]:
        """The row as cells, in the order of the list's columns; may be fewer."""

    def members(self) -> bytes:
        """The row as one JSON object."""


class Rows(Protocol):
    """The rows of a file; `columns` is complete once all were read."""

    columns: list[str]
    several: "RowsToNote"  # with several addresses in one cell

    def rows(self) -> "Iterator[ListRow]": ...


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How a list is written, so that its output can be written alike."""

    kind: Kind
    delimiter: str = ","
    line_end: str = "\n"
    bom: bool = False


@dataclass(frozen=True, slots=True)
class List:
    """An opened list."""

    name: str
    survey: Survey
    manner: OutputFormat
    content: Rows
    dialect: "Dialect | None" = None  # of a file of delimited cells
    sheet: "Sheet | None" = None  # of a workbook

    @property
    def columns(self) -> list[str]:
        """The names of its columns, complete once all rows were read."""
        return self.content.columns

    @property
    def named_members(self) -> list[str]:
        """The member names of a row's JSON object."""
        from mailprobe.api.listfile.tables import TableList

        content = self.content
        return content.unique_columns if isinstance(content, TableList) else content.columns

    def rows(self) -> "Iterator[ListRow]":
        """Yield every row in order; can be called repeatedly."""
        return self.content.rows()

    def remarks(self) -> "Iterator[str]":
        """Notes for the user on how the list was read; complete once all rows were read."""
        from mailprobe.api.listfile.tables import TableList

        if not self.survey.zipped and self.survey.encoding not in ("utf-8", "utf-8-sig", "ascii"):
            yield f"{self.name} is read as {self.survey.encoding}; --encoding names another encoding"
        if self.sheet is not None:
            yield from self._remarks_on(self.sheet)
        wide = self.content.wide if isinstance(self.content, TableList) else None
        if wide is not None and wide.rows:
            rows = "rows are" if wide.rows > 1 else "row is"
            yield (
                f"{self.name}: {wide.rows:,} {rows} wider than the header, the first is row "
                f"{wide.first:,} under it; see that the addresses there stand in the right column"
            )
        several = self.content.several
        if several.rows:
            rows = "rows have" if several.rows > 1 else "row has"
            yield (
                f"{self.name}: {several.rows:,} {rows} several addresses in one cell, the first is "
                f"row {several.first:,}; the first address of each is verified"
            )

    def _remarks_on(self, sheet: "Sheet") -> "Iterator[str]":
        from mailprobe.api.listfile.workbook.summary import is_summary

        sheets = [entry for entry in sheet.package.sheets if not is_summary(entry)]
        if len(sheets) > 1:
            yield (
                f"{self.name} has {len(sheets)} sheets; "
                f"{plain(sheet.entry.title)} is cleaned; --sheet names another"
            )
        if sheet.package.has_macros:
            yield f"{self.name} holds macros, which are not kept"


@contextmanager
def open_list(path: Path | None, reading: ReadOptions | None = None, **said: Any) -> Iterator[List]:
    """Open a list, or standard input (None). Raises BadList.

    `said` are the fields of ReadOptions.
    """
    with open_file(path) as opened, read_list(opened, reading or ReadOptions(**said)) as source:
        yield source


@dataclass(frozen=True, slots=True)
class ListFile:
    """An open file with a list; `name` is for messages, `ending` tells its kind."""

    file: BinaryIO
    name: str
    ending: str = ""


@contextmanager
def open_file(path: Path | None) -> Iterator[ListFile]:
    """Open the file of a list without reading it. Raises BadList.

    Standard input (None) is put on disk first, since lists are read twice.
    """
    name = STANDARD_INPUT if path is None else plain(str(path))
    ending = unpacked_name(path).suffix.lower() if path else ""
    with spooled_input() if path is None else _regular_file(path, name) as file:
        yield ListFile(file, name, ending)


@contextmanager
def read_list(opened: ListFile, reading: ReadOptions) -> Iterator[List]:
    """Open the list in a file. Raises BadList."""
    name = opened.name
    with _unpacked_file(opened.file, name, reading.unpacked_octets_max) as file:
        found = survey(
            file,
            name,
            encoding=reading.encoding,
            errors=reading.errors,
            lines_max=reading.lines_max,
        )
        yield _read(file, found, opened.ending, reading, name)


@contextmanager
def _unpacked_file(file: BinaryIO, name: str, unpacked_octets_max: int) -> Iterator[BinaryIO]:
    file.seek(0)
    begin = file.read(len(GZIP))
    file.seek(0)
    if begin != GZIP:
        yield file
        return
    with _spooled(_unpacked(file, name, unpacked_octets_max), name) as spool:
        yield spool


@contextmanager
def _regular_file(path: Path, name: str) -> Iterator[BinaryIO]:
    try:
        # Opening a pipe without a writer would block.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except IsADirectoryError:
        raise BadList(f"{name} is a directory; it takes a file") from None
    except OSError as error:
        raise BadList(f"{name} cannot be read: {os.strerror(error.errno or 0)}") from None
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BadList(f"{name} is no regular file; pipe it in and name it - instead")
        yield file


def unpacked_name(path: Path) -> Path:
    """`list.csv.gz` without its last ending; any other path as it is."""
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def _unpacked(file: BinaryIO, name: str, octets_max: int) -> Iterator[bytes]:
    octets = 0
    try:
        with gzip.open(file) as stream:
            while piece := stream.read(PIECE_OCTETS):
                octets += len(piece)
                if octets > octets_max:
                    most = f"{octets_max >> 20:,} MiB"
                    raise BadList(f"{name} unpacks to more than {most}; unpack it first")
                yield piece
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise BadList(f"{name} is a damaged gzip file; make it anew") from None
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise BadList(f"{name} cannot be read: {reason}") from None


@contextmanager
def spooled_input() -> Iterator[BinaryIO]:
    """Copy standard input to a temporary file without a name."""
    with _spooled(iter(_read_input, b""), STANDARD_INPUT) as spool:
        yield spool


@contextmanager
def _spooled(pieces: Iterator[bytes], name: str) -> Iterator[BinaryIO]:
    with temporary_file() as spool:
        for octets in pieces:
            try:
                spool.write(octets)
                spool.flush()
            except OSError as error:
                reason = os.strerror(error.errno or 0)
                raise NoRoom(
                    f"{name} cannot be kept in {plain(tempfile.gettempdir())}: {reason}; "
                    "name a folder with room in TMPDIR, or name a file instead",
                    error.errno or 0,
                ) from None
        spool.seek(0)
        yield spool


def _read_input() -> bytes:
    try:
        return sys.stdin.buffer.read(PIECE_OCTETS)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise BadList(
            f"{STANDARD_INPUT} cannot be read: {reason}; name a file, or pipe the list in"
        ) from None


@contextmanager
def temporary_file() -> Iterator[BinaryIO]:
    """A temporary file without a name. Raises BadList if it cannot be created."""
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    except OSError as error:
        raise NoRoom(
            f"no temporary file can be made: {os.strerror(error.errno or 0)}; name a folder that "
            "can be written in TMPDIR",
            error.errno or 0,
        ) from None
    with file:
        yield file


def _read(file: BinaryIO, found: Survey, ending: str, reading: ReadOptions, name: str) -> List:
    if found.zipped:
        return _read_sheet(file, found, reading, name)
    if ending in (".xlsx", ".xlsm"):
        raise BadList(f"{name} is no XLSX workbook, whatever its name says")
    if reading.sheet is not None:
        raise BadList(f"{name} is no workbook", ": --sheet is for workbooks")
    if ending in OBJECT_ENDINGS or (
        ending not in TABLE_ENDINGS and found.sample.lstrip()[:1] in ("{", "[")
    ):
        if reading.skip_lines:
            raise BadList(f"{name} holds JSON objects", ": --skip-lines is for tables")
        from mailprobe.api.listfile.objects import Objects

        return List(name, found, OutputFormat("ndjson"), Objects(file, found, reading.column, name))
    return _read_text(file, found, ending, reading, name)


def _read_sheet(file: BinaryIO, found: Survey, reading: ReadOptions, name: str) -> List:
    from mailprobe.api.listfile.tables import read_table
    from mailprobe.api.listfile.workbook.sheets import Sheet

    sheet = Sheet(file, found, name, reading.sheet)
    table = read_table(sheet.records(reading.skip_lines), reading.column)
    return List(name, found, OutputFormat("xlsx"), table, sheet=sheet)


def _read_text(file: BinaryIO, found: Survey, ending: str, reading: ReadOptions, name: str) -> List:
    from mailprobe.api.listfile.delimiter import declared_delimiter, find_delimiter
    from mailprobe.api.listfile.dialect import DeclaredDialect
    from mailprobe.api.listfile.quoting import find_dialect
    from mailprobe.api.listfile.tables import csv_records, line_records, read_lines, read_table

    said = declared_delimiter(found)
    skip = max(reading.skip_lines, 1 if said else 0)
    is_table = ending in TABLE_ENDINGS
    delimiter = said or find_delimiter(
        found, surely_a_table=is_table, likely=TABLE_ENDINGS.get(ending), skip=skip
    )
    if not delimiter and not is_table:
        records = line_records(file, found, name, skip)
        line_end = "\r\n" if "\r\n" in found.sample else "\n"
        manner = OutputFormat("csv", ",", line_end, found.bom)
        return List(name, found, manner, read_lines(records, reading.column))
    delimiter = delimiter or TABLE_ENDINGS.get(ending) or ","
    marks = DeclaredDialect(reading.quotes, reading.backslash)
    dialect, line_end = find_dialect(file, found, delimiter, name, marks, skip)
    manner = OutputFormat("csv", delimiter, line_end, found.bom)
    table = read_table(csv_records(file, found, dialect, name, skip), reading.column)
    return List(name, found, manner, table, dialect)
