"""Addresses in the cells of a list's columns: those of a row, and notes about them."""

from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from ..cells.unwrapping import CellReading


class RowsToNote(Struct):
    """Rows that a remark is made about, such as rows wider than the header."""

    rows: int = 0
    first: int = 0  # the number of the first of them; the row below the header is 1

    def add(self, number: int) -> None:
        self.rows += 1
        self.first = self.first or number


class CellNotes(Struct):
    """The rows whose cells were read otherwise than they stand."""

    unwrapped: RowsToNote = field(default_factory=RowsToNote)
    doubtful: RowsToNote = field(default_factory=RowsToNote)
    several: RowsToNote = field(default_factory=RowsToNote)  # addresses in one cell

    def add(self, number: int, readings: Sequence[CellReading]) -> None:
        """Note a row of which some reading `is_noted`."""
        if any(each.suggestion is not None for each in readings):
            self.doubtful.add(number)
        if any(len(each.addresses) > 1 for each in readings):
            self.several.add(number)
        if any(each.is_unwrapped and len(each.addresses) == 1 for each in readings):
            self.unwrapped.add(number)

    def remarks(self, name: str) -> Iterator[str]:
        """Notes on them for people, a line each."""
        if self.unwrapped.rows:
            yield (
                f"{name}: in {_rows(self.unwrapped)} something stood around the address, which was "
                f"taken out, the first is row {self.unwrapped.first:,}"
            )
        if self.doubtful.rows:
            yield (
                f"{name}: {_rows(self.doubtful, 'is', 'are')} doubtful and not verified, the first "
                f"is row {self.doubtful.first:,}; see the column suggestion"
            )
        if self.several.rows:
            yield (
                f"{name}: {_rows(self.several, 'has', 'have')} several addresses in one cell, the "
                f"first is row {self.several.first:,}; the first address with the best light counts, "
                "and all are verified"
            )


def _rows(noted: RowsToNote, one: str = "", more: str = "") -> str:
    words = f"{noted.rows:,} {'row' if noted.rows == 1 else 'rows'}"
    verb = one if noted.rows == 1 else more
    return f"{words} {verb}" if verb else words


def first_address(readings: Sequence[CellReading]) -> str:
    """The first address of a row; "" if it has none."""
    return next((each.addresses[0] for each in readings if each.addresses), "")
