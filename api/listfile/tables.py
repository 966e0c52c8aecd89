"""Rows of cells: delimited text, plain lines, and the parts that sheets share with them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, BinaryIO

import orjson

from mailprobe.api.listfile.bounds import SAMPLE_MAX, SHORT_CHARACTERS, excess_of, weight_of
from mailprobe.api.listfile.columns import (
    SAMPLE_ROWS,
    address_in,
    find_column,
    has_address,
    header_place,
    is_address,
    is_surely_header,
    names_addresses,
    several_in,
)
from mailprobe.api.listfile.dialect import Dialect, DialectMismatch, RawRecord, RecordReader
from mailprobe.api.listfile.earlier_results import (
    NONE,
    find_earlier_results,
    named_results,
    without,
)
from mailprobe.api.listfile.results import undefused
from mailprobe.api.listfile.survey import BadList, Survey
from mailprobe.api.listfile.text import changed, text_lines


class Records:
    """The records of a file, which can be read repeatedly.

    `skipped` is the text of the lines above them that --skip-lines skips.
    """

    def __init__(
        self, name: str, read: Callable[[], Iterator[RawRecord]], skipped: Sequence[object] = ()
    ) -> None:
        self.name = name
        self.skipped = skipped
        self._read = read
        self._sampled: tuple[list[RawRecord], Iterator[RawRecord]] | None = None

    def sample(self) -> list[RawRecord]:
        """The first records: a limited number of filled ones, and as many blank ones."""
        if self._sampled is None:
            records = self._read()
            self._sampled = _sample(records), records
        return self._sampled[0]

    def all(self) -> Iterator[RawRecord]:
        """Every record. The first reading goes on behind the sample."""
        if self._sampled is None:
            return self._read()
        sample, rest = self._sampled
        self._sampled = None
        return chain(sample, rest)


class Unvalued(str):
    """An empty cell with a formula but no stored value: it may be an address."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row; `values` unchanged, `address` without surrounding white space."""

    address: str
    values: list[str]
    table: "TableList"
    raw: Any  # its unchanged text
    whole: list[str]  # its values with the results of an earlier cleaning

    def results(self) -> dict[str, str]:
        earlier = self.table.earlier
        return named_results([undefused(cell) for cell in self.whole[earlier.start : earlier.stop]])

    def cells(self) -> list[str]:
        return self.values

    def members(self) -> bytes:
        return orjson.dumps(dict(zip(self.table.unique_columns, self.values, strict=False)))


@dataclass(slots=True)
class RowsToNote:
    """Rows that a remark is made about, such as rows wider than the header."""

    rows: int = 0
    first: int = 0  # the number of the first of them; the row below the header is 1

    def add(self, number: int) -> None:
        self.rows += 1
        self.first = self.first or number


class TableList:
    """A list that is a table.

    `columns` grows with the longest row and is complete once `rows` has ended.
    A list of plain lines has no columns: each line is an address.
    """

    def __init__(
        self,
        records: Records,
        columns: Sequence[str],
        address: int,
        *,
        above: Sequence[Any] = (),
        header: Any = None,
        bare: bool = False,
        earlier: range = NONE,
    ) -> None:
        self.columns = without(list(columns), earlier)
        self.earlier = earlier  # the positions of results, of which a row's values have none
        self.above = [*records.skipped, *above]  # the text of the rows above the header
        self.header = header  # its text; None without a header
        self.bare = bare
        self.wide = RowsToNote()  # their addresses may be in the wrong column
        self.several = RowsToNote()  # several addresses in one cell
        self._width = len(columns)
        self._records = records
        self._address = address
        self._passed_over = len(above) + (header is not None)

    def rows(self) -> Iterator[TableRow]:
        """Yield every row but the header; can be called repeatedly."""
        position = self._address
        is_result = position in self.earlier  # of a list of lines, cleaned again
        self.wide, self.several = RowsToNote(), RowsToNote()
        records = self._records.all()
        for number, (cells, raw) in enumerate(islice(records, self._passed_over, None), 1):
            if len(cells) > self._width and not self.bare:
                self._widen(len(cells), number)
            cell = cells[position] if position < len(cells) else ""
            if is_result:
                cell = undefused(cell)
            if self.bare and address_in(cell) != cell.strip():
                self.bare = False  # a mailbox is more than its address, so its text needs a column
                self._widen(1, number)
                self.wide = RowsToNote()
            if len(several_in(cell)) > 1:
                self.several.add(number)
            if type(cell) is Unvalued:
                raise BadList(
                    f"{self._records.name}, row {number} under the header: the address is a formula "
                    "without a value; open the workbook and save it, so that its values are kept"
                )
            values = [] if self.bare else without(cells, self.earlier)
            yield TableRow(address_in(cell), values, self, raw, cells)

    def _widen(self, width: int, number: int) -> None:
        self.wide.add(number)
        self.columns += [f"column_{position + 1}" for position in range(self.width, width)]

    @property
    def width(self) -> int:
        """The number of columns, those of earlier results too."""
        return len(self.columns) + len(self.earlier)

    @property
    def widened(self) -> int:
        """The number of columns beyond the header."""
        return self.width - self._width

    @cached_property
    def unique_columns(self) -> list[str]:
        """Return a unique name for each column; call it once all rows were read."""
        names: dict[str, None] = {}
        counts: dict[str, int] = {}  # the last number added to each name
        for position, column in enumerate(self.columns):
            wanted = name = column or f"column_{position + 1}"
            while name in names:
                counts[wanted] = counts.get(wanted, 1) + 1
                name = f"{wanted}_{counts[wanted]}"
            names[name] = None
        return list(names)


def _blank(record: Sequence[str]) -> bool:
    return not any(cell.strip() for cell in record)


def _sample(records: Iterator[RawRecord]) -> list[RawRecord]:
    sample: list[RawRecord] = []
    filled = weight = 0
    for record in records:
        sample.append(record)
        filled += not _blank(record[0])
        weight += weight_of(record[0])
        if filled > SAMPLE_ROWS or len(sample) > 100 * SAMPLE_ROWS or weight > SAMPLE_MAX:
            break
    return sample


def read_table(records: Records, wanted: str | None) -> TableList:
    """Find header and column from the first rows. Raises BadList if there is nothing to verify."""
    name, sample = records.name, records.sample()
    rows = [cells for cells, _ in sample]
    if all(map(_blank, rows)):
        raise BadList(f"{name} holds nothing but blank rows")
    position, has_header = header_place(rows, wanted)
    if has_header:
        body = [row for row in rows[position + 1 :] if not _blank(row)]
        if not body:
            raise BadList(f"{name} has a header and no rows under it")
        header, text = sample[position]
        earlier = find_earlier_results(header)
        column = _address_column(header, body, wanted, earlier, name)
        if is_surely_header(header, column) or not has_address_in(body, column):
            above = [raw for _, raw in sample[:position]]
            return TableList(records, header, column, above=above, header=text, earlier=earlier)
    return _headless(records, sample, position, wanted)


def _address_column(
    header: list[str], body: Sequence[list[str]], wanted: str | None, earlier: range, name: str
) -> int:
    """The column of the addresses: not one of earlier results, unless it is named or there is no other."""
    if not earlier or wanted is not None:
        return find_column(header, body, wanted, name)
    if len(earlier) == len(header):
        return 0
    own = [without(cells, earlier) for cells in body]
    column = find_column(without(header, earlier), own, None, name)
    return column if column < earlier.start else column + len(earlier)


def has_address_in(rows: Sequence[Sequence[str]], column: int) -> bool:
    return any(column < len(row) and has_address(row[column]) for row in rows)


def _headless(
    records: Records, sample: Sequence[RawRecord], position: int, wanted: str | None
) -> TableList:
    """Read a table without a header: leading blank rows count as rows, notes above it do not."""
    above = [raw for _, raw in sample[:position]]
    if all(_blank(cells) for cells, _ in sample[:position]):
        above = []
    body = [cells for cells, _ in sample[len(above) :] if not _blank(cells)]
    columns = [f"column_{number + 1}" for number in range(max(map(len, body)))]
    column = find_column(columns, body, wanted, records.name, headless=True)
    return TableList(records, columns, column, above=above)


def read_lines(records: Records, wanted: str | None) -> TableList:
    """Read a list with one address per line; a first line such as `email` is a header."""
    sample = records.sample()
    filled = [cells[0] for cells, _ in sample if not _blank(cells)]
    if not filled:
        raise BadList(f"{records.name} holds nothing but blank rows")
    said = [cell for cell in filled if not cell.lstrip().startswith("#")]
    first = said[0] if said else ""
    mailboxes = any(address_in(cell) != cell.strip() for cell in filled)
    if names_addresses(first) or first == wanted or mailboxes:
        return read_table(records, wanted)
    if wanted is not None:
        find_column(["column_1"], [], wanted, records.name)
    elif 2 * sum(map(is_address, said)) < len(said):
        raise BadList(
            f"{records.name}: most of its lines are no addresses; save the list as CSV",
            ", or take each line for an address with --column 1",
        )
    return TableList(records, [], 0, bare=True)


# Text


def csv_records(file: BinaryIO, survey: Survey, dialect: Dialect, name: str, skip: int) -> Records:
    """Return the records of a delimited file, by a dialect that fits it."""

    def read() -> Iterator[RawRecord]:
        lines = islice(text_lines(file, survey, name), skip, None)
        reading = RecordReader(lines, dialect, skip + 1)
        try:
            for record in reading:
                if len(record[1]) > SHORT_CHARACTERS:
                    _check_bounds(record[0], name, reading.started)
                yield record
        except DialectMismatch:  # it fitted before, so the file was changed
            raise changed(name) from None

    return Records(name, read, list(islice(text_lines(file, survey, name), skip)))


def line_records(file: BinaryIO, survey: Survey, name: str, skip: int) -> Records:
    """Return each line as a record of one cell, without quotes around the whole line."""

    def read() -> Iterator[RawRecord]:
        for number, line in enumerate(text_lines(file, survey, name), 1):
            if number <= skip:
                continue
            cell = line.rstrip("\r\n")
            cells = [_unquoted(cell)] if cell else []
            if len(line) > SHORT_CHARACTERS:
                _check_bounds(cells, name, number)
            yield cells, line

    return Records(name, read, list(islice(text_lines(file, survey, name), skip)))


def _check_bounds(cells: Sequence[str], name: str, line: int) -> None:
    if (excess := excess_of(cells)) is not None:
        raise BadList(f"{name}, line {line}: {excess}; put that right first")


def _unquoted(cell: str) -> str:
    bare = cell.strip()
    if len(bare) > 1 and bare[0] == bare[-1] == '"' and '"' not in bare[1:-1].replace('""', ""):
        return bare[1:-1].replace('""', '"')
    return cell
