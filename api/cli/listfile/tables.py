"""Rows of cells: CSV with any delimiter, plain lines, the first sheet of a workbook."""

import csv
import datetime
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

import msgspec

from api.cli.listfile.columns import SAMPLE_ROWS, find_column, looks_like_header, names_addresses
from api.cli.listfile.survey import BadList, Survey
from api.cli.listfile.text import text_lines, undecodable

DELIMITERS = ",;\t|"
SEP_LINE = re.compile(r'"?sep=([,;\t|])"?[\r\n]', re.IGNORECASE)
DELIMITER_ROWS = 100  # of the sample, that must agree
CELL_CHARACTERS_MAX = 1 << 20  # a longer one is a quote that nobody closed

Records = Callable[[], Iterator[list[str]]]


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row; `values` as they stand, `address` without white space around it."""

    address: str
    values: list[str]
    table: "Table"

    def cells(self) -> list[str]:
        return self.values

    def members(self) -> bytes:
        return msgspec.json.encode(dict(zip(self.table.unique_columns, self.values, strict=False)))


class Table:
    """A list that is a table.

    `columns` grows with the longest row and is whole once `rows` ran to its end.
    A list of plain lines has no columns: its line is its address.
    """

    def __init__(
        self, records: Records, columns: Sequence[str], address: int, *, headless: bool, bare: bool
    ) -> None:
        self.columns = list(columns)
        self._records = records
        self._address = address
        self._headless = headless
        self._bare = bare

    def rows(self) -> Iterator[TableRow]:
        """Every row but the header; can be read again and again."""
        place = self._address
        records = self._records()
        if not self._headless:
            next(record for record in records if not _blank(record))
        for record in records:
            if len(record) > len(self.columns) and not self._bare:
                self._widen(len(record))
            address = record[place].strip() if place < len(record) else ""
            yield TableRow(address, [] if self._bare else record, self)

    def _widen(self, width: int) -> None:
        self.columns += [f"column_{place + 1}" for place in range(len(self.columns), width)]

    @cached_property
    def unique_columns(self) -> list[str]:
        """A name for each column that no other has; to be asked for once all rows were read."""
        names: dict[str, None] = {}
        for place, column in enumerate(self.columns):
            wanted = name = column or f"column_{place + 1}"
            count = 1
            while name in names:
                count += 1
                name = f"{wanted}_{count}"
            names[name] = None
        return list(names)


def _blank(record: Sequence[str]) -> bool:
    return not any(cell.strip() for cell in record)


def read_table(records: Records, wanted: str | None, name: str) -> Table:
    """Tell header and column from the first rows; BadList where there is nothing to verify."""
    sample = _sample(records)
    if not sample:
        raise BadList(f"{name} holds nothing but blank rows")
    first = sample[0]
    headless = not looks_like_header(first) and not (wanted is not None and wanted in first)
    width = max(len(record) for record in sample)
    columns = [f"column_{place + 1}" for place in range(width)] if headless else first
    body = sample if headless else sample[1:]
    if not body:
        raise BadList(f"{name} has a header and no rows under it")
    column = find_column(columns, body, wanted, name, headless=headless)
    return Table(records, columns, column, headless=headless, bare=False)


def read_lines(records: Records, wanted: str | None, name: str) -> Table:
    """A list with one address a line; a first line that says `email` is a header."""
    first = next((record for record in records() if not _blank(record)), None)
    if first is None:
        raise BadList(f"{name} holds nothing but blank rows")
    if names_addresses(first[0]) or first[0] == wanted:
        return read_table(records, wanted, name)
    if wanted is not None:
        find_column(["column_1"], [], wanted, name)
    return Table(records, [], 0, headless=True, bare=True)


def _sample(records: Records) -> list[list[str]]:
    sample: list[list[str]] = []
    for record in records():
        if not _blank(record):
            sample.append(record)
        if len(sample) > SAMPLE_ROWS:
            break
    return sample


# CSV


def said_delimiter(survey: Survey) -> str | None:
    """The delimiter that a first line `sep=;` names, which is Excel's way."""
    said = SEP_LINE.match(survey.sample)
    return said[1] if said else None


def find_delimiter(survey: Survey, *, surely_a_table: bool) -> str | None:
    """The delimiter on which the first rows agree best, or None where there is none."""
    if said := said_delimiter(survey):
        return said
    best = (0.5, 1, "")  # half of the rows must agree, unless the name says it is a table
    if surely_a_table:
        best = (0.0, 1, "")
    for delimiter in DELIMITERS:
        widths = _widths(survey, delimiter)
        if widths and widths[0] > 1:
            agree = sum(width == widths[0] for width in widths) / len(widths)
            best = max(best, (agree, widths[0], delimiter), key=lambda score: score[:2])
    return best[2] or None


def _widths(survey: Survey, delimiter: str) -> list[int]:
    """How many cells the first rows that are not blank have."""
    records = csv.reader(io.StringIO(survey.sample, newline=""), delimiter=delimiter)
    widths: list[int] = []
    try:
        for record in records:
            if not _blank(record):
                widths.append(len(record))
            if len(widths) > DELIMITER_ROWS:
                return widths
    except csv.Error:  # a cell without end: reading the rows will say where
        return widths
    return widths if survey.sample_is_all else widths[:-1]


def csv_records(file: BinaryIO, survey: Survey, delimiter: str, name: str) -> Records:
    """The records of a file of delimited cells, quotes undone; BadList for a quote left open."""

    def records() -> Iterator[list[str]]:
        lines = _Lines(file, survey.encoding)
        csv.field_size_limit(CELL_CHARACTERS_MAX)
        reader = csv.reader(lines, delimiter=delimiter)
        if said_delimiter(survey):
            next(reader)
        started = reader.line_num + 1
        try:
            for record in reader:
                if lines.ended and reader.line_num > started and _left_open(record, lines.last):
                    raise BadList(_open_quote(name, started))
                started = reader.line_num + 1
                yield record
        except csv.Error:
            raise BadList(_open_quote(name, started)) from None
        except UnicodeError:
            raise undecodable(name, reader.line_num + 1) from None

    return records


class _Lines:
    """A file's lines, line ends kept, knowing the last one and whether there are more."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self.last = ""
        self.ended = False
        self._text = text_lines(file, encoding)

    def __iter__(self) -> Iterator[str]:
        for line in self._text:
            self.last = line
            yield line
        self.ended = True


def _left_open(record: Sequence[str], last_line: str) -> bool:
    """Did the file end within quotes? Then the last cell ends as the file does."""
    return bool(record) and bool(last_line) and record[-1].endswith(last_line.replace('""', '"'))


def _open_quote(name: str, line: int) -> str:
    return f"{name}, line {line}: a quote opens a cell and none closes it; put that right first"


def line_records(file: BinaryIO, survey: Survey, name: str) -> Records:
    """Each line as a record of one cell; quotes around the whole of it are undone."""

    def records() -> Iterator[list[str]]:
        number = 0
        try:
            for line in text_lines(file, survey.encoding):
                number += 1
                cell = line.rstrip("\r\n")
                yield [_unquoted(cell)] if cell else []
        except UnicodeError:
            raise undecodable(name, number + 1) from None

    return records


def _unquoted(cell: str) -> str:
    bare = cell.strip()
    if len(bare) > 1 and bare[0] == bare[-1] == '"':
        return bare[1:-1].replace('""', '"')
    return cell


# XLSX


def sheet_records(file: BinaryIO, name: str) -> Records:
    """The records of a workbook's first sheet, every cell as text; held in memory."""
    from python_calamine import CalamineError, CalamineWorkbook, PasswordError

    file.seek(0)
    try:
        workbook = CalamineWorkbook.from_object(file)
        sheet = workbook.get_sheet_by_index(0)
    except PasswordError:
        raise BadList(f"{name} is protected by a password; save it without one") from None
    except (CalamineError, OSError, IndexError):
        raise BadList(f"{name} is no XLSX workbook that can be read; save it anew") from None

    def records() -> Iterator[list[str]]:
        for record in sheet.iter_rows():
            yield [_cell_text(cell) for cell in record]

    return records


def _cell_text(cell: Any) -> str:
    """A cell as a person would type it."""
    match cell:
        case str():
            return cell
        case bool():
            return str(cell).lower()
        case float() if cell.is_integer() and abs(cell) < 1e15:
            return str(int(cell))
        case datetime.datetime():
            return cell.isoformat(" ")
        case datetime.date() | datetime.time():
            return cell.isoformat()
        case None:
            return ""
    return str(cell)
