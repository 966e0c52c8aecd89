"""Writes a new workbook: typed columns, a frozen header, a filter, coloured lights and statuses, a summary.

A column of the list is of a type if each of its cells can be written as that type without
a change; else it stays text. No cell becomes a formula or a link.
"""

import datetime
import itertools
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, Literal

from ...results.counts import ResultCounts
from .styles import COLOURS, FILLS
from .summary import add_summary
from .whole import check_whole

CellType = Literal["blank", "number", "truth", "date", "text"]
Value = str | float | bool | None

# As many digits as a spreadsheet shows; no leading zero, so that no postcode loses its own.
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,10})(?:\.[0-9]{0,9}[1-9])?")
DIGITS_MAX = 15  # of a double
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
FIRST_DAY = datetime.date(1900, 3, 1)  # spreadsheets count a 29 February 1900
TRUTHS = {"true": True, "false": False, "TRUE": True, "FALSE": False}


def column_types(rows: Iterable[Sequence[str]]) -> list[CellType]:
    types: list[CellType] = []
    for cells in rows:
        add_types(types, cells)
    return types


def add_types(types: list[CellType], cells: Sequence[str]) -> None:
    """Narrow the types of the columns to those that a further row fits."""
    if len(cells) > len(types):
        types += ["blank"] * (len(cells) - len(types))
    for position, cell in enumerate(cells):
        known = types[position]
        if cell and known != "text":
            found = _type_of(cell) if known == "blank" else known
            types[position] = found if _fits(cell, found) else "text"


def _type_of(cell: str) -> CellType:
    if cell in TRUTHS:
        return "truth"
    return "date" if DATE.fullmatch(cell) else "number"


def _fits(cell: str, kind: CellType) -> bool:
    match kind:
        case "truth":
            return cell in TRUTHS
        case "date":
            return _date(cell) is not None
        case _:
            return bool(NUMBER.fullmatch(cell)) and len(cell) <= DIGITS_MAX and cell != "-0"


def _date(cell: str) -> datetime.date | None:
    try:
        day = datetime.date.fromisoformat(cell) if DATE.fullmatch(cell) else None
    except ValueError:
        return None
    return day if day is not None and day >= FIRST_DAY else None


AddRow = Callable[[Sequence[str], Sequence[Value]], None]


@contextmanager
def open_new_workbook(
    file: BinaryIO, names: Sequence[str], types: Sequence[CellType], counts: ResultCounts
) -> Iterator[AddRow]:
    """Yield a function that writes a row: the list's own cells, and the values of the result.

    Memory is bounded: rows go to a temporary file. `counts` are those of the summary,
    complete at the end of the block. The workbook is read once more then: the file can be
    read and sought. Raises NotAWorkbook if it is not whole.
    """
    import xlsxwriter
    from xlsxwriter.exceptions import FileCreateError

    with tempfile.TemporaryDirectory(prefix="mailprobe-") as rows_so_far:
        book = xlsxwriter.Workbook(file, {"constant_memory": True, "tmpdir": rows_so_far})
        sheet = book.add_worksheet()
        sheet.freeze_panes(1, 0)
        date_format = book.add_format({"num_format": "yyyy-mm-dd"})
        formats = {
            colour: book.add_format({"bg_color": f"#{fill}"}) for colour, fill in FILLS.items()
        }
        colours = {value: formats[colour] for value, colour in COLOURS.items()}
        for position, name in enumerate(names):
            sheet.write_string(0, position, name)
        numbers = itertools.count(1)
        last = 0

        def write_text(row: int, column: int, cell: str) -> None:
            sheet.write_string(row, column, cell)

        def write_date(row: int, column: int, cell: str) -> None:
            sheet.write_datetime(row, column, datetime.date.fromisoformat(cell), date_format)

        writers: dict[CellType, Callable[[int, int, str], object]] = {
            "number": lambda row, column, cell: sheet.write_number(
                row, column, float(cell) if "." in cell else int(cell)
            ),
            "truth": lambda row, column, cell: sheet.write_boolean(row, column, TRUTHS[cell]),
            "date": write_date,
        }
        own = [writers.get(kind, write_text) for kind in types]

        def add(cells: Sequence[str], results: Sequence[Value]) -> None:
            nonlocal last
            last = number = next(numbers)
            for position, cell in enumerate(cells):
                if cell:
                    own[position](number, position, cell)
            for position, value in enumerate(results, len(names) - len(results)):
                if isinstance(value, bool):
                    sheet.write_boolean(number, position, value)
                elif isinstance(value, int | float):
                    sheet.write_number(number, position, value)
                elif value:
                    sheet.write_string(number, position, value, colours.get(value))

        yield add
        sheet.autofilter(0, 0, last, len(names) - 1)
        add_summary(book, counts)
        try:
            book.close()
        except FileCreateError as error:
            raise error.args[0] from error  # xlsxwriter wraps the OSError
        check_whole(file)
