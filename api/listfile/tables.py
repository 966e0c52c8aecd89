"""Rows of cells: delimited text, plain lines, and the parts that sheets share with them."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Any, BinaryIO

import msgspec
import orjson

from ..cells.unwrapping import NO_ADDRESS, CellReading, read_cell
from ..terminal import plain
from .addresses import CellNotes, RowsToNote, first_address
from .bounds import SAMPLE_MAX, SHORT_CHARACTERS, excess_of, weight_of
from .columns import (
    PROSE,
    SAMPLE_ROWS,
    Wanted,
    few_addresses,
    find_columns,
    further_columns,
    has_address,
    header_place,
    is_surely_header,
    names_addresses,
)
from .dialect import Dialect, DialectMismatch, RawRecord, RecordReader
from .earlier_results import (
    EMAIL,
    EarlierResults,
    are_others,
    earlier_results,
    named_results,
    without,
)
from .formulas import unguarded
from .survey import BadList, Survey
from .text import changed, text_lines


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


class TableRow(msgspec.Struct, frozen=True):
    """One row; `values` unchanged, `readings` of its cells with addresses."""

    readings: Sequence[CellReading]
    values: list[str]
    table: "TableList"
    raw: Any  # its unchanged text
    whole: list[str]  # its values with the results of an earlier cleaning

    @property
    def address(self) -> str:
        return first_address(self.readings)

    def results(self) -> dict[str, str]:
        earlier = self.table.earlier
        values = [unguarded(cell) for cell in self.whole[earlier.start : earlier.stop]]
        return named_results(values, self.table.earlier_fields)

    def cells(self) -> list[str]:
        return self.values

    def members(self) -> bytes:
        return orjson.dumps(dict(zip(self.table.unique_columns, self.values, strict=False)))


class TableList:
    """A list that is a table.

    `columns` grows with the longest row and is complete once `rows` has ended.
    A list of plain lines has no columns: each line is an address. `addresses` are the positions
    of the columns with addresses, or the position of the only one.
    """

    def __init__(
        self,
        records: Records,
        columns: Sequence[str],
        addresses: int | Sequence[int],
        *,
        above: Sequence[Any] = (),
        header: Any = None,
        bare: bool = False,
        earlier: EarlierResults | None = None,
        sources: Sequence[str] = (),
        proposed: Sequence[int] = (),
        is_prose: bool = False,
    ) -> None:
        found = earlier or EarlierResults()
        self.columns = without(list(columns), found.place)
        self.earlier = found.place  # the positions of results, of which a row's values have none
        self.earlier_fields = found.fields
        self.above = [*records.skipped, *above]  # the text of the rows above the header
        self.header = header  # its text; None without a header
        self.bare = bare
        self._is_prose = is_prose  # a line without an address is none that is misspelt
        self.wide = RowsToNote()  # their addresses may be in the wrong column
        self.notes = CellNotes()
        self.sources = sources  # the names of the columns, if the results are to bear them
        self.proposed = proposed  # further columns of addresses
        self.names = columns
        self.positions = [addresses] if isinstance(addresses, int) else [*addresses]
        self._width = len(columns)
        self._records = records
        self._passed_over = len(above) + (header is not None)

    @property
    def verified_columns(self) -> list[str]:
        """The columns that were verified, for people: with a number where a name is not enough."""
        if self.bare:
            return []
        names = [name.strip() for name in self.names]
        shown = []
        for position in self.positions:
            name = names[position] if position < len(names) else ""
            number = f"number {position + 1}"
            is_clear = bool(name) and names.count(name) == 1
            shown.append(
                plain(name) if is_clear else f"{plain(name)} ({number})" if name else number
            )
        return shown

    def rows(self) -> Iterator[TableRow]:
        """Yield every row but the header; can be called repeatedly."""
        positions = self.positions
        only = positions[0] if len(positions) == 1 else None
        # Of a list of lines, cleaned again.
        is_result = only is not None and only in self.earlier
        self.wide, self.notes = RowsToNote(), CellNotes()
        records = self._records.all()
        readings: Sequence[CellReading]
        for number, (cells, raw) in enumerate(islice(records, self._passed_over, None), 1):
            if len(cells) > (self._width or 1) and not self.bare:  # 0: of lines, which have one
                self._widen(len(cells), number)
            if only is not None:
                cell = cells[only] if only < len(cells) else ""
                if is_result:
                    cell = unguarded(cell)
                if type(cell) is Unvalued:
                    raise self._unvalued(number)
                reading = read_cell(cell)
                if self._is_prose and not reading.has_address:
                    reading = NO_ADDRESS
                readings = (reading,)
                is_noted = reading.is_unwrapped or reading.suggestion is not None
                if self.bare and reading.addresses[:1] != (cell,) and cell.strip():
                    self._keep_text(cell, reading, number)
            else:
                readings = [self._read(cells, position, number) for position in positions]
                is_noted = any(each.is_noted for each in readings)
            if is_noted:
                self.notes.add(number, readings)
            values = [] if self.bare else without(cells, self.earlier)
            yield TableRow(readings, values, self, raw, cells)

    def _read(self, cells: Sequence[str], position: int, number: int) -> CellReading:
        cell = cells[position] if position < len(cells) else ""
        if type(cell) is Unvalued:
            raise self._unvalued(number)
        return read_cell(cell)

    def _unvalued(self, number: int) -> BadList:
        return BadList(
            f"{self._records.name}, row {number} under the header: the address is a formula "
            "without a value; open the workbook and save it, so that its values are kept"
        )

    def _keep_text(self, cell: str, reading: CellReading, number: int) -> None:
        """A line that is more than its address needs a column."""
        if reading.addresses == (cell.strip(),):
            return
        self.bare = False
        self._widen(1, number)
        self.wide = RowsToNote()

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


def read_table(
    records: Records,
    wanted: Wanted,
    chosen: Sequence[str] | None = None,
    *,
    guesses: bool = False,
) -> TableList:
    """Find header and columns from the first rows. Raises BadList if there is nothing to verify.

    `chosen` are the fields that the results are to have, as in ResultColumns; `guesses`: see
    find_columns.
    """
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
        earlier = earlier_results(header, chosen=chosen)
        columns = _address_columns(header, body, wanted, earlier.place, name, guesses=guesses)
        if is_surely_header(header, columns[0]) or not has_address_in(body, columns[0]):
            above = [raw for _, raw in sample[:position]]
            sources: list[str] = []
            if len(columns) > 1 or _are_of_another(earlier, columns[0], body):
                sources = _source_names(header, columns)
                earlier = earlier_results(header, sources, chosen)
            proposed = [
                each
                for each in further_columns(header, body, columns[0])
                if each not in earlier.place and not wanted
            ]
            return TableList(
                records, header, columns, above=above, header=text, earlier=earlier,
                sources=sources, proposed=proposed,
            )  # fmt: skip
    return _headless(records, sample, position, wanted, guesses=guesses)


def _address_columns(
    header: list[str],
    body: Sequence[list[str]],
    wanted: Wanted,
    earlier: range,
    name: str,
    *,
    guesses: bool,
) -> list[int]:
    """The columns of addresses: none of earlier results, unless it is named or there is no other."""
    if not earlier or wanted:
        return find_columns(header, body, wanted, name, guesses=guesses)
    if len(earlier) == len(header):
        return [0]
    own = [without(cells, earlier) for cells in body]
    (column,) = find_columns(without(header, earlier), own, (), name, guesses=guesses)
    return [column if column < earlier.start else column + len(earlier)]


def _are_of_another(earlier: EarlierResults, column: int, body: Sequence[list[str]]) -> bool:
    """Whether most of the earlier results are about other addresses than the column's.

    Those of a list of lines, and results without the address, are taken to be the column's.
    """
    if column in earlier.place or EMAIL not in earlier.fields:
        return False
    email = earlier.place.start + earlier.fields.index(EMAIL)
    wide = (cells for cells in body if len(cells) > max(email, column))
    return are_others((unguarded(cells[email]), cells[column]) for cells in wide)


def _source_names(header: Sequence[str], columns: Sequence[int]) -> list[str]:
    """What the results of each column bear: its name, with its number if that is needed."""
    names = [header[each].strip() if each < len(header) else "" for each in columns]
    return [
        name if name and list(map(str.strip, header)).count(name) == 1
        else f"{name}_{column + 1}" if name else f"column_{column + 1}"
        for name, column in zip(names, columns, strict=True)
    ]  # fmt: skip


def has_address_in(rows: Sequence[Sequence[str]], column: int) -> bool:
    return any(column < len(row) and has_address(row[column]) for row in rows)


def _headless(
    records: Records,
    sample: Sequence[RawRecord],
    position: int,
    wanted: Wanted,
    *,
    guesses: bool,
) -> TableList:
    """Read a table without a header: leading blank rows count as rows, notes above it do not."""
    above = [raw for _, raw in sample[:position]]
    if all(_blank(cells) for cells, _ in sample[:position]):
        above = []
    body = [cells for cells, _ in sample[len(above) :] if not _blank(cells)]
    names = [f"column_{number + 1}" for number in range(max(map(len, body)))]
    columns = find_columns(names, body, wanted, records.name, headless=True, guesses=guesses)
    sources = _source_names(names, columns) if len(columns) > 1 else []
    return TableList(records, names, columns, above=above, sources=sources)


def read_lines(
    records: Records,
    wanted: Wanted,
    chosen: Sequence[str] | None = None,
    *,
    guesses: bool = False,
) -> TableList:
    """Read a list with one address per line; a first line such as `email` is a header."""
    sample = records.sample()
    filled = [cells[0] for cells, _ in sample if not _blank(cells)]
    if not filled:
        raise BadList(f"{records.name} holds nothing but blank rows")
    said = [cell for cell in filled if not cell.lstrip().startswith("#")]
    first = said[0] if said else ""
    is_more = any(read_cell(cell).addresses not in ((), (cell.strip(),)) for cell in filled)
    is_header = names_addresses(first)
    if not wanted and few_addresses(said[is_header:]):
        if guesses and any(map(has_address, said)):
            return TableList(records, [PROSE], 0, is_prose=True)
        raise BadList(
            f"{records.name}: most of its lines are not addresses; save the list as CSV",
            ", or take each line for an address with --column 1",
            "column",
        )
    if is_header or first in wanted or is_more:
        return read_table(records, wanted, chosen, guesses=guesses)
    if wanted:
        find_columns(["column_1"], [], wanted, records.name)
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
