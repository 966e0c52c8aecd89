"""A list before it is started: its columns, and cells that look wrong. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from mailprobe.storage.list_records import ListChunk, StoredList

from ....cells.unwrapping import read_cell
from ....listfile.columns import (
    CHECKED_CELLS,
    EXAMPLE_CHARACTERS_MAX,
    EXAMPLES,
    few_addresses,
)
from ....results.chunk_lines import rows_of
from ....results.list_reading import ListReading, decode_reading
from ....results.stored_row import StoredRow

ROWS_SHOWN = 10
COLUMNS_SHOWN = 20  # a list may have a thousand
CELL_CHARACTERS_SHOWN = 200
ROWS_COMPARED = 500  # of the first ones, to tell columns apart


@dataclass(frozen=True, slots=True)
class Preview:
    """The first rows, the column of the addresses, and warnings in whole sentences."""

    columns: Sequence[str]  # the first COLUMNS_SHOWN
    columns_left: int
    column: int | None  # of the addresses, from 0; None: none was found in the first rows
    choices: Sequence[tuple[str, str]]  # each column's name, and what it is seen to have
    rows: Sequence[Sequence[str]]
    duplicates: int  # rows whose address another row has; 0 where they were not counted
    blank_rows: int | None  # without an address; None: they were not counted
    warnings: Sequence[str]
    notes: Sequence[str] = ()  # how cells were read, in whole sentences
    chosen: Sequence[int] = ()  # the columns that are ticked: those in use, and those proposed


def preview_of(stored: StoredList, columns: Sequence[str], chunks: Sequence[ListChunk]) -> Preview:
    rows = list(islice((row for chunk in chunks for row in rows_of(chunk)), ROWS_COMPARED))
    reading = decode_reading(stored.reading) or ListReading()
    column = reading.positions[0] if reading.positions else _column_of(rows)
    proposed = [place for place, name in enumerate(columns) if name.strip() in reading.proposed]
    blank = stored.blank_rows
    return Preview(
        columns=columns[:COLUMNS_SHOWN],
        columns_left=max(0, len(columns) - COLUMNS_SHOWN),
        column=column,
        choices=[(name, _seen(rows, place)) for place, name in enumerate(columns[:COLUMNS_SHOWN])],
        rows=[
            [cell[:CELL_CHARACTERS_SHOWN] for cell in row.cells[:COLUMNS_SHOWN]]
            for row in rows[:ROWS_SHOWN]
        ],
        duplicates=0 if blank is None else stored.rows - blank - stored.addresses,
        blank_rows=blank,
        warnings=list(_warnings(stored, rows, columns, column)),
        notes=list(_notes(reading)),
        chosen=[*(reading.positions or [column]), *proposed] if column is not None else proposed,
    )


def _notes(reading: ListReading) -> Iterator[str]:
    if reading.columns:
        word = "column" if len(reading.columns) == 1 else "columns"
        yield f"The addresses are read from the {word} {' and '.join(reading.columns)}."
    if reading.proposed:
        names = " and ".join(reading.proposed)
        yield f"There are addresses in {names} too: tick several columns to verify them all."
    if reading.unwrapped:
        yield (
            f"{_rows(reading.unwrapped, 'has', 'have')} something around the address, which is "
            "taken out."
        )
    if reading.doubtful:
        yield (
            f"{_rows(reading.doubtful, 'is', 'are')} doubtful: an address is suggested, and not "
            "verified."
        )
    if reading.several:
        yield (
            f"{_rows(reading.several, 'has', 'have')} several addresses in one cell: all are "
            "verified, and the row shows the best."
        )


def _rows(number: int, one: str, more: str) -> str:
    return f"{number:,} row {one}" if number == 1 else f"{number:,} rows {more}"


def _column_of(rows: Sequence[StoredRow]) -> int | None:
    """The column in which the addresses are, as far as the rows show it."""
    found: Counter[int] = Counter()
    for row in rows:
        if row.address is not None:
            found.update(
                place
                for place, cell in enumerate(row.cells)
                if row.address in read_cell(cell).addresses
            )
    return min(found, key=lambda place: (-found[place], place)) if found else None


def _cells(rows: Sequence[StoredRow], place: int) -> list[str]:
    """The cells of a column that are not empty."""
    cells = [row.cells[place].strip() for row in rows if place < len(row.cells)]
    return [cell for cell in cells if cell]


def _seen(rows: Sequence[StoredRow], place: int) -> str:
    """What a column is seen to have in the first rows, in words."""
    cells = _cells(rows, place)
    if not cells:
        return "empty"
    if not any("@" in cell for cell in cells):
        return "no addresses"
    return "the same in every row" if len(set(cells)) == 1 and len(rows) > 1 else ""


def _warnings(
    stored: StoredList, rows: Sequence[StoredRow], columns: Sequence[str], column: int | None
) -> list[str]:
    name = columns[column] if column is not None and column < len(columns) else None
    of = f"The column {name}" if name else "The column that was found"
    counted = stored.rows - (stored.blank_rows or 0)
    if not stored.addresses:
        return ["No row has an address. Choose another column, or delete the list."]
    warnings = []
    if stored.addresses == 1 and counted > 1:
        warnings.append(f"{of} has the same address in every row. Is it the right one?")
    texts = [row.address for row in rows if row.address is not None]
    if texts and not any("@" in text for text in texts):
        warnings.append(f"{of} has no e-mail addresses in the first rows. Choose another one.")
    elif others := few_addresses(texts[:CHECKED_CELLS]):
        shown = ", ".join(f"“{text[:EXAMPLE_CHARACTERS_MAX]}”" for text in others[:EXAMPLES])
        warnings.append(f"{of} has more other cells than addresses, such as {shown}.")
    if stored.blank_rows and stored.blank_rows > stored.rows / 2:
        warnings.append(
            f"{stored.blank_rows:,} of {stored.rows:,} rows have no address in this column."
        )
    return warnings
