"""A list before it is started: its columns, and cells that look wrong. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from msgspec import Struct

from mailprobe.storage.list_records import ListChunk, StoredList

from ....cells.unwrapping import CellReading, read_cell
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
OTHERS_SHOWN = 200  # columns without an address, in a fold
CELL_CHARACTERS_SHOWN = 200
CELLS_SHOWN = 20  # that are read otherwise than they stand
REPLACED = "\N{REPLACEMENT CHARACTER}"
ROWS_COMPARED = 500  # of the first ones, to tell columns apart
CELLS_COMPARED = 20_000  # some 100 ms, whatever they have: of a thousand columns twenty rows

ENCODINGS: Mapping[str, str] = {
    "utf-8": "UTF-8", "utf-16": "UTF-16", "cp1252": "Western (Windows-1252)",
    "cp1250": "Central European (Windows-1250)", "cp1251": "Cyrillic (Windows-1251)",
    "cp1253": "Greek (Windows-1253)", "cp1254": "Turkish (Windows-1254)",
    "cp1255": "Hebrew (Windows-1255)", "cp1256": "Arabic (Windows-1256)",
    "cp1257": "Baltic (Windows-1257)", "cp874": "Thai (Windows-874)",
    "cp932": "Japanese (Shift-JIS)", "euc_jp": "Japanese (EUC-JP)",
    "gb18030": "Chinese (GBK, GB18030)", "big5": "Chinese (Big5)", "cp949": "Korean (CP949)",
    "koi8_r": "Cyrillic (KOI8-R)", "cp866": "Cyrillic (DOS 866)", "cp850": "Western (DOS 850)",
    "mac_roman": "Western (Mac)",
}  # fmt: skip
SAME_AS: Mapping[str, str] = {
    "ascii": "utf-8", "utf-8-sig": "utf-8", "utf-16-le": "utf-16", "utf-16-be": "utf-16",
}  # fmt: skip
DELIMITERS: Mapping[str, str] = {",": "Comma", ";": "Semicolon", "\t": "Tab", "|": "Pipe"}


class ColumnChoice(Struct, frozen=True):
    """A column to tick: its number from 1, and what its first rows have."""

    number: int
    name: str
    example: str  # its first cell with an address, or the first that is not empty
    addresses: int  # cells with one, in the rows that were compared
    is_ticked: bool
    remark: str = ""


class OddCell(Struct, frozen=True):
    """A cell that is not just an address, and what is asked of it."""

    row: int
    cell: str
    asked: str
    why: str


class Preview(Struct, frozen=True):
    """The first rows, the columns to choose from, and warnings in whole sentences."""

    choices: Sequence[ColumnChoice]  # with addresses
    others: Sequence[ColumnChoice]  # the first OTHERS_SHOWN of the others
    columns_count: int
    columns: Sequence[tuple[str, bool]]  # of the rows: the first ones, and those of addresses
    rows: Sequence[Sequence[str]]
    rows_compared: int
    odd_cells: Sequence[OddCell]
    duplicates: int  # rows whose address another row has; 0 where they are not known
    blank_rows: int | None  # without an address; None: they were not counted
    warnings: Sequence[str]
    notes: Sequence[str]  # how cells were read, in whole sentences
    reading: ListReading
    encoding: str  # as it is offered; empty: it is not text

    @property
    def encodings(self) -> Mapping[str, str]:
        """Those to choose from, and the one that was found, whatever it is."""
        return {self.encoding: self.encoding, **ENCODINGS}


def preview_of(stored: StoredList, columns: Sequence[str], chunks: Sequence[ListChunk]) -> Preview:
    compared = min(ROWS_COMPARED, CELLS_COMPARED // max(1, len(columns)))
    rows = list(islice((row for chunk in chunks for row in rows_of(chunk)), compared))
    reading = decode_reading(stored.reading) or ListReading()
    read = reading.positions or [place for place in [_column_of(rows)] if place is not None]
    proposed = [place for place, name in enumerate(columns) if name.strip() in reading.proposed]
    ticked = {*read, *proposed}
    choices = [_choice(rows, place, name, ticked) for place, name in enumerate(columns)]
    places = [*dict.fromkeys([*sorted(ticked), *range(len(columns))])][:COLUMNS_SHOWN]
    places.sort()
    blank = stored.blank_rows
    return Preview(
        choices=[each for each in choices if each.addresses or each.is_ticked],
        others=[each for each in choices if not (each.addresses or each.is_ticked)][:OTHERS_SHOWN],
        columns_count=len(columns),
        columns=[(columns[place], place in read) for place in places],
        rows=[
            [
                row.cells[place][:CELL_CHARACTERS_SHOWN] if place < len(row.cells) else ""
                for place in places
            ]
            for row in rows[:ROWS_SHOWN]
        ],
        rows_compared=len(rows),
        odd_cells=list(islice(_odd_cells(rows, read), CELLS_SHOWN)),
        duplicates=_duplicates(stored, reading),
        blank_rows=blank,
        warnings=list(_warnings(stored, rows, columns, read[0] if read else None)),
        notes=list(_notes(reading)),
        reading=reading,
        encoding=SAME_AS.get(reading.encoding, reading.encoding),
    )


def _duplicates(stored: StoredList, reading: ListReading) -> int:
    """Known where each row has one address: the store counts rows and addresses."""
    if stored.blank_rows is None or reading.several or len(reading.positions) > 1:
        return 0
    return stored.rows - stored.blank_rows - stored.addresses


def _choice(
    rows: Sequence[StoredRow], place: int, name: str, ticked: Collection[int]
) -> ColumnChoice:
    cells = _cells(rows, place)
    having = [
        cell for cell in cells if (place in ticked or "@" in cell) and read_cell(cell).has_address
    ]
    example = next(iter(having or cells), "")[:EXAMPLE_CHARACTERS_MAX]
    is_same = len(set(having)) == 1 and len(having) == len(rows) > 1
    return ColumnChoice(
        place + 1, name or f"number {place + 1}", example, len(having), place in ticked,
        "the same in every row" if is_same else "",
    )  # fmt: skip


def _odd_cells(rows: Sequence[StoredRow], places: Sequence[int]) -> Iterator[OddCell]:
    for number, row in enumerate(rows, 1):
        for place in places:
            cell = row.cells[place] if place < len(row.cells) else ""
            reading = read_cell(cell)
            if why := _why_odd(cell, reading):
                asked = "" if reading.suggestion else ", ".join(reading.addresses)
                yield OddCell(
                    number, cell[:CELL_CHARACTERS_SHOWN], asked[:CELL_CHARACTERS_SHOWN], why
                )


def _why_odd(cell: str, reading: CellReading) -> str:
    if reading.suggestion is not None:
        return f"doubtful: {reading.suggestion} is suggested"
    if len(reading.addresses) > 1:
        return f"{len(reading.addresses)} addresses"
    if reading.is_unwrapped:
        return "what stands around it is left out"
    if not reading.addresses and cell.strip():
        return "says that there is none"
    return ""


def _notes(reading: ListReading) -> Iterator[str]:
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
    if any(REPLACED in cell for row in rows for cell in row.cells):
        warnings.append(
            "Some letters could not be read: they are shown as \N{REPLACEMENT CHARACTER}. If an "
            "address has one, choose another encoding."
        )
    if stored.blank_rows and stored.blank_rows > stored.rows / 2:
        warnings.append(
            f"{stored.blank_rows:,} of {stored.rows:,} rows have no address in this column."
        )
    return warnings
