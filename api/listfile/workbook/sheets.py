"""Reads the rows of a workbook's first visible sheet (ECMA-376, XLSX) as a stream.

Each row comes with its own octets, so that a workbook can be written back with cells added
and nothing else changed: types, formulas, formats and other sheets stay as they are. A
cell's text is its value: all digits of a number, a date in ISO 8601, the name of an error.
"""

import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import IO, BinaryIO
from xml.parsers import expat

from msgspec import Struct, field
from msgspec.structs import replace

from ..bounds import (
    COLUMNS_MAX,
    ROW_CHARACTERS_MAX,
    SHORT_CHARACTERS,
    excess_of,
)
from ..dialect import RawRecord
from ..survey import BadList, Survey
from ..tables import Records, Unvalued
from ..text import Watched
from .markup import (
    DEPTH_MAX,
    fed_pieces,
    local_name,
    open_parser,
    tag_end,
)
from .numbers import number_text
from .package import UNREADABLE, NoSuchSheet, NotAWorkbook, Package
from .strings import unescaped

AROUND_OCTETS_MAX = 1 << 24  # 16 MiB around the rows: twice what the most links in a sheet take
ROWS_MAX = 1_048_576
SHEET_COLUMNS_MAX = 16_384
OMITTED_ROWS_MAX = 10_000  # a cell far below a list stands for blank rows that the file omits

# Elements that do not refer to a row: a sheet with only these can be moved down by a row.
MOVABLE_NAMES = """
    worksheet sheetPr dimension sheetViews sheetView selection pane sheetFormatPr cols col sheetData
    row c v is t r rPr pageMargins pageSetup printOptions headerFooter ignoredErrors ignoredError
    oddHeader oddFooter tabColor pageSetUpPr outlinePr rFont sz color family scheme charset b i u
    phoneticPr
"""
MOVABLE = frozenset(MOVABLE_NAMES.split())


class RawRow(Struct, frozen=True):
    """A row's octets, from the end of the previous row; empty if the file omits the row."""

    number: int
    octets: bytes = b""
    begin: int = 0  # offset of its element
    content: int = 0  # offset of the end of its tag
    insert: int = 0  # offset of the end of its cells

    @property
    def is_closed(self) -> bool:
        """Whether its element is `<row/>`."""
        return self.octets[self.content - 2 : self.content] == b"/>"


class Around(Struct):
    """What a complete reading found besides the rows."""

    head: bytes = b""  # the XML before the first row; `tail` follows the last
    tail: bytes = b""
    prefix: str = ""  # the elements' namespace prefix, with its colon
    rows: int = 0
    last_row: int = 0  # its number
    columns: int = 0
    elements: set[str] = field(default_factory=set)


class Sheet:
    """The sheet to clean; `around` is complete once all rows were read. Raises BadList, Changed."""

    def __init__(
        self,
        file: BinaryIO,
        survey: Survey,
        name: str,
        wanted: str | None = None,
    ) -> None:
        self.name = name
        self.around = Around()
        self._file = file
        self._survey = survey
        try:
            self.package = Package(file)
            self.entry = self.package.sheet(wanted)
            self._strings = self.package.strings()
            self._styles = self.package.styles()
        except NotAWorkbook as bad:
            parameter = "sheet" if isinstance(bad, NoSuchSheet) else ""
            raise BadList(f"{name} {bad}", parameter=parameter) from None
        except BROKEN:
            raise self._broken() from None

    def records(self, skip: int) -> Records:
        def read() -> Iterator[RawRecord]:
            return islice(self._rows(), skip, None)

        return Records(self.name, read, [raw for _, raw in islice(self._rows(), skip)])

    def can_move_down(self) -> bool:
        """Whether a header can be added above the first row: only if nothing refers to a row."""
        return self.package.is_alone and self.around.elements <= MOVABLE

    def _rows(self) -> Iterator[RawRecord]:
        """Yield every row from the first, including those that the file omits."""
        self.around = Around()
        parser = _SheetParser(self.around, self._value)
        number = omitted = 0
        try:
            with self.package.open(self.entry) as stream:
                for cells, raw in parser.rows(stream):
                    if not number < raw.number <= ROWS_MAX:
                        raise self._broken()
                    omitted += raw.number - number - 1
                    if omitted > OMITTED_ROWS_MAX:
                        raise BadList(
                            f"{self.name}, row {raw.number:,}: stands under more than "
                            f"{OMITTED_ROWS_MAX:,} blank rows; delete it, or the rows above it"
                        )
                    for missing in range(number + 1, raw.number):
                        yield [], RawRow(missing)
                    number = raw.number
                    yield cells, raw
        except TooLarge as large:
            raise BadList(f"{self.name}, {large}; put that right first") from None
        except BROKEN:
            self.check()
            raise self._broken() from None
        self.check()

    def check(self) -> None:
        """Raise Changed if the file is not as it was when surveyed."""
        watched = Watched(self._file)
        while watched.read(1 << 20):
            pass
        watched.check(self._survey, self.name)

    def _broken(self) -> BadList:
        return BadList(f"{self.name} {UNREADABLE}")

    def _value(self, cell: dict[str, str], text: str, has_formula: bool) -> str:
        """The text of a cell with these attributes."""
        match cell.get("t"):
            case "s":
                return self._strings[int(text)] if text else ""
            case "inlineStr" | "str":
                return unescaped(text)
            case "b":
                return "true" if text.strip() == "1" else "false" if text else ""
            case "e" | "d":
                return text
        if text:
            style = int(cell.get("s", 0))
            return number_text(text, self._styles[style] if style < len(self._styles) else "")
        return Unvalued() if has_formula else ""


# The errors of zipfile, zlib, expat and this module for a damaged package.
BROKEN = (
    *(zipfile.BadZipFile, zlib.error, expat.ExpatError, EOFError, KeyError, IndexError),
    *(UnicodeError, NotImplementedError, RuntimeError, ValueError, OSError),
)

Value = Callable[[dict[str, str], str, bool], str]


class TooLarge(Exception):
    """A row that is refused while it is read, before it fills the memory; the message says why."""


class _SheetParser:
    """One pass over a sheet's XML. Only octets since the end of the last row are held."""

    def __init__(self, around: Around, value: Value) -> None:
        self._around = around
        self._value = value
        self._done: list[tuple[list[str], int, int, int, int]] = []  # see RawRow; the end tag
        self._parser = open_parser()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = None
        self._row: list[str] = []
        self._number = 0
        self._begin = 0
        self._insert: int | None = None  # where its cells end, if something follows them
        self._place = -1
        self._depth = 0
        self._characters = 0  # of the row
        self._cell: dict[str, str] = {}  # its attributes
        self._formula = False
        self._text: list[str] = []
        self._hidden = 0  # depth within phonetic text, which is not part of a value

    def rows(self, stream: IO[bytes]) -> Iterator[tuple[list[str], RawRow]]:
        held, base = bytearray(), 0  # the octets from the offset `base` of the sheet
        first = True
        for piece in fed_pieces(self._parser, stream):
            held += piece
            if self._done:
                octets, after = bytes(held), 0  # the end of the last row
                for cells, number, begin, insert, close in self._done:
                    begin, insert, close = begin - base, insert - base, close - base
                    content = tag_end(octets, begin)
                    # At the end of `<row/>` the parser stands behind it.
                    is_closed = octets.startswith(b"/>", content - 2)
                    end = content if is_closed else octets.index(b">", close) + 1
                    if first:
                        self._around.head = octets[:begin]
                        after, first = begin, False
                    raw = octets[after:end]
                    yield cells, RawRow(number, raw, begin - after, content - after, insert - after)
                    after = end
                del held[:after]
                base += after
                self._done.clear()
            if len(held) > AROUND_OCTETS_MAX:
                raise ValueError("a row without end, or too much around the rows")
        self._around.tail = bytes(held)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ValueError("elements nest too deep")
        local = local_name(name)
        match local:
            case "c":
                reference = attributes.get("r")
                self._place = self._place + 1 if reference is None else column_of(reference)
                self._cell = attributes
                self._formula = False
                self._text.clear()
            case "v" | "t":
                if not self._hidden:
                    self._parser.CharacterDataHandler = self._text.append
            case "f":
                self._formula = True
                self._around.elements.add(local)
            case "rPh":
                self._hidden += 1
            case "row":
                self._around.prefix = name[: -len(local)]
                self._row = []
                self._insert = None
                self._characters = 0
                self._place = -1
                self._number = int(attributes.get("r", self._number + 1))
                self._begin = self._parser.CurrentByteIndex
            case _:
                if local == "extLst" and self._insert is None:
                    self._insert = self._parser.CurrentByteIndex
                self._around.elements.add(local)
                if local == "mergeCell":
                    last = attributes["ref"].rpartition(":")[2]
                    self._around.columns = max(self._around.columns, column_of(last) + 1)

    def _end(self, name: str) -> None:
        self._depth -= 1
        local = local_name(name)
        if local == "v" or local == "t":
            self._parser.CharacterDataHandler = None
        elif local == "c":
            self._end_cell()
        elif local == "row":
            excess = excess_of(self._row) if self._characters >= SHORT_CHARACTERS else None
            if excess is not None:
                raise TooLarge(f"row {self._number:,}: {excess}")
            self._around.rows += 1
            self._around.last_row = self._number
            close = self._parser.CurrentByteIndex
            insert = close if self._insert is None else self._insert
            self._done.append((self._row, self._number, self._begin, insert, close))
        elif local == "rPh":
            self._hidden -= 1

    def _end_cell(self) -> None:
        place, row = self._place, self._row
        if place >= self._around.columns:
            if place >= SHEET_COLUMNS_MAX:
                raise ValueError("a cell beyond the last column")
            self._around.columns = place + 1
        text = self._value(self._cell, "".join(self._text), self._formula)
        if not text and type(text) is not Unvalued:
            return  # cells that only have a format are not stored
        if place >= COLUMNS_MAX:
            raise TooLarge(f"row {self._number:,}: has more than {COLUMNS_MAX:,} columns")
        self._characters += len(text)
        if self._characters > ROW_CHARACTERS_MAX:
            raise TooLarge(f"row {self._number:,}: has more than {ROW_CHARACTERS_MAX:,} characters")
        if place == len(row):
            row.append(text)
            return
        if place > len(row):
            row += [""] * (place + 1 - len(row))
        elif row[place]:
            raise ValueError("two cells in one place")
        row[place] = text


def without_columns(raw: RawRow, columns: range, place: int) -> RawRow:
    """The row without the cells of these columns; `insert` is before the column `place`."""
    if raw.is_closed:
        return raw
    parser = open_parser()
    cells: list[tuple[int, int]] = []  # column, offset

    def start(name: str, attributes: dict[str, str]) -> None:
        if local_name(name) == "c":
            reference = attributes.get("r")
            column = cells[-1][0] + 1 if cells else 0
            cells.append(
                (column if reference is None else column_of(reference), parser.CurrentByteIndex)
            )

    parser.StartElementHandler = start
    parser.Parse(raw.octets[raw.begin :], True)
    if not cells:
        return raw
    offsets = [raw.begin + offset for _, offset in cells] + [raw.insert]
    before = raw.octets[: offsets[0]]
    after = b""
    for (column, _), begin, end in zip(cells, offsets, offsets[1:], strict=False):
        if column in columns:
            continue
        if column < place:
            before += raw.octets[begin:end]
        else:
            after += raw.octets[begin:end]
    octets = before + after + raw.octets[raw.insert :]
    return replace(raw, octets=octets, insert=len(before))


_COLUMNS: dict[str, int] = {}
COLUMN_LETTERS = re.compile("[A-Z]{1,3}")


def column_of(reference: str) -> int:
    """Return the position of a cell's column, from 0: 2 for C7. Raises ValueError."""
    letters = reference.rstrip("0123456789")
    found = _COLUMNS.get(letters)
    if found is None:
        if not COLUMN_LETTERS.fullmatch(letters):
            raise ValueError(f"no reference: {reference}")
        found = 0
        for letter in letters:
            found = found * 26 + ord(letter) - 64
        _COLUMNS[letters] = found = found - 1
    return found


def column_letters(position: int) -> str:
    letters = ""
    position += 1
    while position:
        position, letter = divmod(position - 1, 26)
        letters = chr(65 + letter) + letters
    return letters
