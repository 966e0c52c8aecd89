"""Writes a list: its own rows, each with the result for its address.

The list's content is preserved. If the output is delimited like the input, a row's text is
copied, not re-encoded: its quotes, spaces and escapes stay. A result cannot become a
formula: in a workbook text stays text, and in CSV an address or the name of a mail host
that begins like a formula gets an apostrophe before it.
"""

import csv
import io
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import orjson

from ..errors import Misuse
from ..results.counts import ResultCounts
from ..terminal import plain
from .dialect import Dialect
from .earlier_results import around, guarded_text
from .formulas import MARKS, Formulas, guarded_cells
from .opening import (
    TABLE_ENDINGS,
    Kind,
    List,
    ListRow,
    OutputFormat,
    temporary_file,
)
from .results import RESULT_FIELDS, ResultColumns, RowAnswer, results_in
from .survey import BadList
from .tables import TableList, TableRow

if TYPE_CHECKING:  # a workbook's modules are imported for a workbook
    from .workbook.sheets import Sheet

SHEET_CELL_CHARACTERS_MAX = 32_767  # the format's own limit, in UTF-16

KINDS: dict[str, Kind] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".xlsx": "xlsx",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
}
TEXT_ENDING = ".txt"  # a table too
# Of known formats that cannot be written.
NOT_WRITTEN = frozenset({".json", ".xls", ".xlsm", ".xlsb", ".ods", ".pdf", ".parquet"})


def check_ending(output: Path) -> None:
    """Raise Misuse if an output's name has an ending of what is not written."""
    if (ending := output.suffix.lower()) and ending not in KINDS and ending != TEXT_ENDING:
        raise _not_written(output)


def _not_written(output: Path) -> Misuse:
    return Misuse(f"{plain(str(output))}: -o takes the endings {' '.join(KINDS)}")


def output_manner(path: Path | None, manner: OutputFormat, own_ending: str = "") -> OutputFormat:
    """The output's format: by its extension, else like the input, whose name has `own_ending`."""
    ending = path.suffix.lower() if path else ""
    if path is not None and ending in NOT_WRITTEN:
        raise _not_written(path)
    kind = KINDS.get(ending, manner.kind if ending != TEXT_ENDING else "csv")
    if kind != "csv":
        return OutputFormat(kind)
    delimiter = TABLE_ENDINGS.get(ending) or manner.delimiter
    if ending == ".csv" != own_ending and delimiter == "\t":
        delimiter = ","
    # A spreadsheet takes UTF-8 without a mark for the machine's own encoding.
    return OutputFormat(kind, delimiter, manner.line_end, manner.bom or manner.is_recoded)


Write = Callable[[ListRow, RowAnswer], None]
AddRow = Callable[[list[str]], object]


@contextmanager
def open_writer(
    file: BinaryIO,
    manner: OutputFormat,
    source: List,
    columns: ResultColumns,
    *,
    formulas: Formulas = "keep",
) -> Iterator[Write]:
    """Yield a function that writes a row with its result; at the end of the block the file is complete.

    `formulas` says what becomes of the list's own cells in CSV. All rows of `source` must have been read once before: only then are its columns known.
    """
    if manner.kind == "ndjson":
        yield _write_objects(file, source.named_members, columns)
    elif manner.kind == "xlsx":
        with _checked_workbook(file, source) as made, _workbook(made, source, columns) as write:
            yield write
    else:
        with _text(file, manner) as text:
            if copies_text(source, manner):
                yield _copy_rows(text, manner, source, columns, formulas)
            else:
                yield _write_cells(_csv(text, manner), source.columns, columns, formulas)


def _write_cells(
    add_row: AddRow, own_names: Sequence[str], columns: ResultColumns, formulas: Formulas
) -> Write:
    """Write the header, and return the function that writes a row."""
    width = len(own_names)

    def add(own: Sequence[str], results: list[str]) -> None:
        if formulas == "guard":
            own = guarded_cells(own)
        own = [*own, *[""] * (width - len(own))]
        add_row([*results, *own] if columns.come_first else [*own, *results])

    def write(row: ListRow, answer: RowAnswer) -> None:
        add(row.cells(), columns.defused(columns.cells(answer)))

    add(own_names, columns.names(own_names))
    return write


def copies_text(source: List, manner: OutputFormat) -> bool:
    """Whether the output is delimited like the input, so that a row's text can be copied."""
    return (
        source.dialect is not None
        and manner.kind == source.manner.kind == "csv"
        and manner.delimiter == source.manner.delimiter
    )


def _copy_rows(
    text: io.TextIOWrapper,
    manner: OutputFormat,
    source: List,
    columns: ResultColumns,
    formulas: Formulas,
) -> Write:
    """Write each row's own text, padded to the table's width, and its result after it."""
    table, dialect = source.content, source.dialect
    assert isinstance(table, TableList)
    assert dialect is not None
    delimiter, earlier = manner.delimiter, table.earlier
    encode = _cells_encoder(dialect)
    # The results stand after the row's own cells, or where an earlier cleaning has put them.
    left_width = earlier.start if earlier else 0 if columns.come_first else table.width
    right_width = table.width - left_width - len(earlier)

    def padded(cells: str, count: int, width: int) -> str:
        return cells + delimiter * (width - max(count, 1))

    def add(raw: str, own: int, results: list[str]) -> None:
        if earlier:
            left, right = around(raw, dialect, earlier)
        else:
            left, right = (raw, "") if left_width else ("", raw)
        parts = [encode(results)]
        if left_width:
            parts.insert(0, padded(left, own, left_width))
        if right_width:
            parts.append(padded(right, own - left_width, right_width))
        text.write(delimiter.join(parts) + manner.line_end)

    def safe(raw: str) -> str:
        return guarded_text(raw, dialect) if formulas == "guard" else raw

    for above in table.above:
        text.write(safe(above))
    names = columns.names(table.columns)
    if table.header is None:
        text.write(encode([*table.columns, *names]) + manner.line_end)
    else:
        widened = table.columns[len(table.columns) - table.widened :]
        header = [safe(_without_end(table.header)), *(encode([name]) for name in widened)]
        add(delimiter.join(header), len(table.columns), names)

    def write(row: ListRow, answer: RowAnswer) -> None:
        assert isinstance(row, TableRow)
        raw = _without_end(row.raw)
        if formulas == "guard" and any(cell.startswith(MARKS) for cell in row.values):
            raw = guarded_text(raw, dialect)
        add(raw, len(row.values), columns.defused(columns.cells(answer)))

    return write


def _without_end(raw: str) -> str:
    """Return a record's text without its line end; line ends inside cells stay."""
    return raw[:-2] if raw.endswith("\r\n") else raw.removesuffix("\n").removesuffix("\r")


def _cells_encoder(dialect: Dialect) -> Callable[[Sequence[str]], str]:
    """Return a function that encodes cells so that the dialect reads them back."""
    delimiter = dialect.delimiter
    special = re.compile(f'["\\\\\\r\\n{re.escape(delimiter)}]')

    def encode(cells: Sequence[str]) -> str:
        joined = delimiter.join(cells)
        is_plain = not ('"' in joined or "\\" in joined or "\n" in joined or "\r" in joined)
        if is_plain and joined.count(delimiter) == len(cells) - 1:
            return joined
        return delimiter.join(map(one, cells))

    def one(cell: str) -> str:
        if dialect.escaped:
            return special.sub(r"\\\g<0>", cell)
        if not dialect.quoted:
            return cell.replace(delimiter, " ")
        return '"' + cell.replace('"', '""') + '"' if special.search(cell) else cell

    return encode


@contextmanager
def _text(file: BinaryIO, manner: OutputFormat) -> Iterator[io.TextIOWrapper]:
    text = io.TextIOWrapper(file, "utf-8-sig" if manner.bom else "utf-8", newline="")
    try:
        yield text
        text.flush()
    finally:
        with suppress(OSError):  # unwritten data; its error was raised before
            text.detach()


def _csv(text: io.TextIOWrapper, manner: OutputFormat) -> AddRow:
    # csv quotes a carriage return only if line ends contain one.
    sparing, careful = (
        csv.writer(text, delimiter=manner.delimiter, lineterminator=manner.line_end, quoting=how)
        for how in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    )

    def add_row(cells: list[str]) -> None:
        (careful if any("\r" in cell for cell in cells) else sparing).writerow(cells)

    return add_row


@contextmanager
def _checked_workbook(file: BinaryIO, source: List) -> Iterator[BinaryIO]:
    """A temporary file, copied to the output once the workbook in it is whole. Raises BadList if not."""
    from .workbook.package import NotAWorkbook

    with temporary_file() as made:
        try:
            yield made
        except NotAWorkbook as bad:
            raise BadList(f"{source.name} {bad}") from None
        made.seek(0)
        shutil.copyfileobj(made, file)


def _workbook(
    file: BinaryIO, source: List, columns: ResultColumns
) -> AbstractContextManager[Write]:
    if source.sheet is not None:
        return _same_workbook(file, source, source.sheet, columns)
    return _new_workbook(file, source, columns)


@contextmanager
def _new_workbook(file: BinaryIO, source: List, columns: ResultColumns) -> Iterator[Write]:
    from .workbook.new_workbook import column_types, open_new_workbook

    counts = ResultCounts()
    own_names = source.columns
    types = column_types(row.cells() for row in source.rows())
    names = [*own_names, *columns.names(own_names)]
    with open_new_workbook(file, names, types, counts) as add:

        def write(row: ListRow, answer: RowAnswer) -> None:
            for result in results_in(answer):
                counts.count(result)
            add(row.cells(), columns.values(answer))

        yield write


@contextmanager
def _same_workbook(
    file: BinaryIO, source: List, sheet: "Sheet", columns: ResultColumns
) -> Iterator[Write]:
    """Write the same workbook with the results after the columns of the cleaned sheet."""
    from .workbook.sheet_writer import Place, open_sheet_writer

    table = source.content
    assert isinstance(table, TableList)
    width = max(sheet.around.columns, table.width)
    names = columns.names(table.columns)
    # More columns than before would cover those at their right.
    is_refreshed = table.earlier.stop == width or len(table.earlier) == len(names)
    place = Place(table.earlier.start if is_refreshed and table.earlier else width, table.earlier)
    if table.header is None:
        own = [*table.columns, *[""] * (width - len(table.columns))]
        names = [*own, *names]
    counts = ResultCounts()
    with open_sheet_writer(file, sheet, table.above, table.header, names, place, counts) as add:

        def write(row: ListRow, answer: RowAnswer) -> None:
            assert isinstance(row, TableRow)
            for result in results_in(answer):
                counts.count(result)
            add(row.raw, columns.values(answer))

        yield write


def _write_objects(file: BinaryIO, taken: Sequence[str], columns: ResultColumns) -> Write:
    names = columns.names(taken)

    def write(row: ListRow, answer: RowAnswer) -> None:
        own = row.members().removesuffix(b"}").rstrip()
        octets = orjson.dumps(dict(zip(names, columns.values(answer), strict=True)))
        comma = b"" if own == b"{" else b","
        file.write(own + comma + octets[1:] + b"\n")

    return write


def check_header(source: List) -> None:
    """Raise BadList, before verification, if the workbook could not come back with results."""
    table, sheet = source.content, source.sheet
    if sheet is None or not isinstance(table, TableList):
        return
    from .workbook.package import NotAWorkbook
    from .workbook.sheets import SHEET_COLUMNS_MAX
    from .workbook.whole import check_parts

    if table.header is None and not sheet.can_move_down():
        raise BadList(
            f"{source.name} has no header in the sheet {plain(sheet.entry.title)}; put a row of "
            "names above its rows, or name an output that ends in .csv"
        )
    if max(sheet.around.columns, table.width) + len(RESULT_FIELDS) > SHEET_COLUMNS_MAX:
        raise BadList(
            f"{source.name} has cells up to the last column, so that results have no place; name an "
            "output that ends in .csv"
        )
    try:
        check_parts(sheet.package.zip, without=sheet.entry.part)
    except NotAWorkbook as bad:
        raise BadList(f"{source.name} {bad}") from None


def _sheet_characters(cell: str) -> int:
    """A cell's length as spreadsheets count it, in UTF-16."""
    if 2 * len(cell) <= SHEET_CELL_CHARACTERS_MAX:
        return len(cell)
    return len(cell.encode("utf-16-le", "surrogatepass")) // 2


def check_fits_sheet(row: ListRow, number: int, name: str) -> None:
    """Raise BadList, before verification, if a workbook could not hold the output."""
    from .workbook.sheets import ROWS_MAX, SHEET_COLUMNS_MAX

    cells = row.cells()
    if (
        number >= ROWS_MAX
        or len(cells) + len(RESULT_FIELDS) > SHEET_COLUMNS_MAX
        or any(_sheet_characters(cell) > SHEET_CELL_CHARACTERS_MAX for cell in cells)
    ):
        raise BadList(
            f"{name}, row {number}: more than a workbook holds; name an output that ends in .csv"
        )
