"""Opens a file or standard input as a list: detects its kind and reads its rows."""

import gzip
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ..terminal import plain
from .survey import PIECE_OCTETS, BadList, NoRoom, Survey, survey

if TYPE_CHECKING:  # a list is read by the modules of its kind, and those alone are imported
    from ..cells.unwrapping import CellReading
    from .addresses import CellNotes
    from .dialect import Dialect
    from .tables import Records, TableList
    from .workbook.sheets import Sheet

Kind = Literal["csv", "xlsx", "ndjson"]

STANDARD_INPUT = "standard input"
GZIP = b"\x1f\x8b"
CONVERTED_OCTETS_MAX = 1 << 25  # held in memory: a web page with 300,000 rows
UNPACKED_OCTETS_MAX = 1 << 30  # a larger file may be made to fill the disk
SHEETS_TRIED = 50  # of a workbook, for one that has addresses
UTF8 = ("utf-8", "utf-8-sig", "ascii")
TABLE_ENDINGS = {".csv": None, ".tsv": "\t", ".tab": "\t"}
OBJECT_ENDINGS = frozenset({".ndjson", ".jsonl"})


class ReadOptions(Struct, frozen=True):
    """Options for reading a list; None: detect from the file."""

    # The columns of the addresses: a name, number or path, or several.
    column: str | tuple[str, ...] | None = None
    encoding: str | None = None
    errors: Literal["strict", "replace"] = "strict"
    skip_lines: int = 0
    quotes: bool | None = None  # True: around cells; False: ordinary characters
    backslash: Literal["text", "escape"] | None = None
    sheet: str | None = None  # of a workbook: its title or number
    unpacked_octets_max: int = UNPACKED_OCTETS_MAX  # of a compressed file
    lines_max: int | None = None  # of text: no more are looked at
    # Take the most likely column, sheet and encoding where none is clear; a person checks the choice.
    guesses: bool = False
    # The fields of the results, which are refreshed where the list has them; None: all.
    fields: tuple[str, ...] | None = None

    @property
    def wanted(self) -> tuple[str, ...]:
        """The columns that were named."""
        if self.column is None:
            return ()
        return (self.column,) if isinstance(self.column, str) else self.column


class ListRow(Protocol):
    """One row of a list, whatever kind of file it came from."""

    @property
    def address(self) -> str:
        """The first address, without what stands around it; "" if there is none."""

    @property
    def readings(self) -> "Sequence[CellReading]":
        """What each of its cells with addresses has."""

    def results(self) -> dict[str, str]:
        """The cells of an earlier cleaning by field; empty if there was none."""

    def cells(self) -> list[str]:
        """The row as cells, in the order of the list's columns; may be fewer."""

    def members(self) -> bytes:
        """The row as one JSON object."""


class Rows(Protocol):
    """The rows of a file; `columns` is complete once all were read."""

    columns: list[str]
    notes: "CellNotes"

    @property
    def sources(self) -> Sequence[str]:
        """The names of the columns that were verified, where the results have them."""

    @property
    def verified_columns(self) -> list[str]:
        """See List."""

    @property
    def positions(self) -> Sequence[int]:
        """Of these columns, from 0."""

    def rows(self) -> "Iterator[ListRow]": ...


class OutputFormat(Struct, frozen=True):
    """How a list is written, so that its output can be written alike."""

    kind: Kind
    delimiter: str = ","
    line_end: str = "\n"
    bom: bool = False
    is_recoded: bool = False  # it was in another encoding than UTF-8


class List(Struct, frozen=True):
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
        from .tables import TableList

        content = self.content
        return content.unique_columns if isinstance(content, TableList) else content.columns

    def rows(self) -> "Iterator[ListRow]":
        """Yield every row in order; can be called repeatedly."""
        return self.content.rows()

    def remarks(self) -> "Iterator[str]":
        """Notes for the user on how the list was read; complete once all rows were read."""
        from .columns import proposal
        from .tables import TableList

        if not self.survey.zipped and self.survey.encoding not in UTF8:
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
        yield from self.content.notes.remarks(self.name)
        if isinstance(self.content, TableList) and (proposed := self.content.proposed):
            positions = [*self.content.positions, *proposed]
            names = [self.content.names[each] for each in positions]
            others = " and ".join(self.proposed)
            yield (
                f"{self.name} has addresses in {others} too; for all: {proposal(names, positions)}"
            )

    @property
    def proposed(self) -> list[str]:
        """Further columns of addresses."""
        from .tables import TableList

        content = self.content
        if not isinstance(content, TableList):
            return []
        return [plain(content.names[each].strip()) for each in content.proposed]

    @property
    def verified_columns(self) -> list[str]:
        """The columns of the addresses, for people; none: each line is an address."""
        return self.content.verified_columns

    def _remarks_on(self, sheet: "Sheet") -> "Iterator[str]":
        from .workbook.summary import is_summary

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


class ListFile(Struct, frozen=True):
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
            guesses=reading.guesses,
        )
        with _converted_file(file, found, opened.ending, name) as (text, found, ending):
            yield _read(text, found, ending, reading, name)


@contextmanager
def _converted_file(
    file: BinaryIO, found: Survey, ending: str, name: str
) -> Iterator[tuple[BinaryIO, Survey, str]]:
    """The file, or what it is converted to: see `conversion`."""
    if found.zipped or (ending in OBJECT_ENDINGS and found.sample.lstrip()[:1] != "["):
        yield file, found, ending
        return
    from .conversion import conversion_of

    kind = conversion_of(found.sample, name, is_table=ending in TABLE_ENDINGS)
    if kind is None:
        yield file, found, ending
        return
    if found.octets > CONVERTED_OCTETS_MAX:
        raise BadList(f"{name} is too large to be converted; save the list as CSV")
    from .text import text_lines

    text = "".join(text_lines(file, found, name, CONVERTED_OCTETS_MAX))
    with _spooled(iter((kind().encoded(text, name),)), name) as spool:
        made = survey(spool, name, lines_max=found.lines_max)
        made = replace(made, bom=found.bom, is_converted=True)
        yield spool, made, kind.ending


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
        raise BadList(f"{name} is a directory; name a file") from None
    except OSError as error:
        raise BadList(f"{name} cannot be read: {os.strerror(error.errno or 0)}") from None
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BadList(f"{name} is not a regular file; pipe it in and name it - instead")
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
        raise BadList(f"{name} cannot be read: {os.strerror(error.errno or 0)}") from None


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
        raise BadList(f"{name} is not an XLSX workbook, whatever its name says")
    if reading.sheet is not None:
        raise BadList(f"{name} is not a workbook", ": --sheet is for workbooks", "sheet")
    if ending in OBJECT_ENDINGS or (
        ending not in TABLE_ENDINGS and found.sample.lstrip()[:1] in ("{", "[")
    ):
        if reading.skip_lines:
            raise BadList(f"{name} holds JSON objects", ": --skip-lines is for tables")
        from .objects import Objects

        return List(name, found, OutputFormat("ndjson"), Objects(file, found, reading.wanted, name))
    return _read_text(file, found, ending, reading, name)


def _read_sheet(file: BinaryIO, found: Survey, reading: ReadOptions, name: str) -> List:
    from .workbook.sheets import Sheet

    sheet = Sheet(file, found, name, reading.sheet)
    try:
        table = _read_table(sheet.records(reading.skip_lines), reading)
    except BadList:
        if not reading.guesses:
            raise
        sheet, table = _likely_sheet(file, found, reading, name)
    return List(name, found, OutputFormat("xlsx"), table, sheet=sheet)


def _likely_sheet(
    file: BinaryIO, found: Survey, reading: ReadOptions, name: str
) -> "tuple[Sheet, TableList]":
    """The first of the visible sheets that has addresses, or the one that was named."""
    from .workbook.sheets import Sheet

    first = Sheet(file, found, name, reading.sheet)
    titles = [each.title for each in first.package.sheets if each.visible][:SHEETS_TRIED]
    refused: BadList | None = None
    for title in titles if reading.sheet is None else [reading.sheet]:
        sheet = Sheet(file, found, name, title)
        try:
            table = _read_table(sheet.records(reading.skip_lines), reading, guesses=True)
        except BadList as error:
            refused = refused or error
        else:
            return sheet, table
    assert refused is not None
    raise refused


def _read_text(file: BinaryIO, found: Survey, ending: str, reading: ReadOptions, name: str) -> List:
    from .delimiter import (
        declared_delimiter,
        find_delimiter,
        has_quoted_lines,
    )
    from .dialect import DeclaredDialect
    from .quoting import find_dialect
    from .tables import csv_records, line_records, read_lines

    if has_quoted_lines(found):
        found = replace(found, quoted_lines=True)
    said = declared_delimiter(found)
    skip = max(reading.skip_lines, 1 if said else 0)
    is_table, is_recoded = ending in TABLE_ENDINGS, found.encoding not in UTF8
    delimiter = said or find_delimiter(
        found, surely_a_table=is_table, likely=TABLE_ENDINGS.get(ending), skip=skip
    )
    if not delimiter and not is_table:
        records = line_records(file, found, name, skip)
        line_end = "\r\n" if "\r\n" in found.sample else "\n"
        manner = OutputFormat("csv", ",", line_end, found.bom, is_recoded)
        lines = read_lines(records, reading.wanted, reading.fields, guesses=reading.guesses)
        return List(name, found, manner, lines)
    delimiter = delimiter or TABLE_ENDINGS.get(ending) or ","
    marks = DeclaredDialect(reading.quotes, reading.backslash)
    dialect, line_end = find_dialect(file, found, delimiter, name, marks, skip)
    manner = OutputFormat("csv", delimiter, line_end, found.bom, is_recoded)
    records = csv_records(file, found, dialect, name, skip)
    try:
        table = _read_table(records, reading)
    except BadList:
        if not reading.guesses:
            raise
        widths = {len(cells) for cells, _ in records.sample() if any(cells)}
        if len(widths) > 1 and not (said or is_table or reading.wanted):  # the commas of prose
            records = line_records(file, found, name, skip)
            return List(name, found, manner, read_lines(records, (), guesses=True))
        table = _read_table(records, reading, guesses=True)
    return List(name, found, manner, table, dialect)


def _read_table(records: "Records", reading: ReadOptions, *, guesses: bool = False) -> "TableList":
    """Read a table; where a person looks at it, with the further columns that are proposed."""
    from .tables import read_table

    table = read_table(records, reading.wanted, reading.fields, guesses=guesses)
    if not (reading.guesses and table.proposed):
        return table
    every = [str(place + 1) for place in (*table.positions, *table.proposed)]
    return read_table(records, every, reading.fields)
