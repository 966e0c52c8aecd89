"""Reads the rows of a workbook's first visible sheet (ECMA-376, XLSX) as a stream.

Each row comes with its own octets, so that a workbook can be written back with cells added
and nothing else changed: types, formulas, formats and other sheets stay as they are. A
cell's text is its value: all digits of a number, a date in ISO 8601, the name of an error.
"""

import datetime
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from typing import IO, Any, BinaryIO
from xml.parsers import expat

from mailprobe.api.cli.listfile.dialect import RawRecord
from mailprobe.api.cli.listfile.survey import BadList, Survey
from mailprobe.api.cli.listfile.tables import Records, Unvalued
from mailprobe.api.cli.listfile.text import Watched
from mailprobe.api.cli.listfile.workbook.package import (
    STRINGS_CHARACTERS_MAX,
    NotAWorkbook,
    Package,
    unescaped,
)

READ_OCTETS = 1 << 16
ROW_OCTETS_MAX = 1 << 26  # of one row, or of the XML after the last row: 64 MiB
ROWS_MAX = 1_048_576

# Elements that do not refer to a row: a sheet with only these can be moved down by a row.
MOVABLE_NAMES = """
    worksheet sheetPr dimension sheetViews sheetView selection pane sheetFormatPr cols col sheetData
    row c v is t r rPr pageMargins pageSetup printOptions headerFooter ignoredErrors ignoredError
    oddHeader oddFooter tabColor pageSetUpPr outlinePr rFont sz color family scheme charset b i u
    phoneticPr
"""
MOVABLE = frozenset(MOVABLE_NAMES.split())


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row's octets, from the end of the previous row; empty if the file omits the row."""

    number: int
    octets: bytes = b""
    begin: int = 0  # offset of its element
    insert: int = 0  # offset of the end of its cells


@dataclass(slots=True)
class Around:
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
        strings_max: int = STRINGS_CHARACTERS_MAX,
    ) -> None:
        self.name = name
        self.around = Around()
        self._file = file
        self._survey = survey
        try:
            self.package = Package(file)
            self.entry = self.package.sheet(wanted)
            self._strings = self.package.strings(strings_max)
            self._styles = self.package.styles()
        except NotAWorkbook as bad:
            raise BadList(f"{name} {bad}") from None
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
        number = 0
        try:
            with self.package.open(self.entry) as stream:
                for cells, raw in parser.rows(stream):
                    if not number < raw.number <= ROWS_MAX:
                        raise self._broken()
                    for missing in range(number + 1, raw.number):
                        yield [], RawRow(missing)
                    number = raw.number
                    yield cells, raw
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
        return BadList(f"{self.name} is no XLSX workbook that can be read; save it anew")

    def _value(self, kind: str, style: int, text: str, has_formula: bool) -> str:
        """Return a cell's text."""
        match kind:
            case "s":
                return self._strings[int(text)] if text else ""
            case "inlineStr" | "str":
                return unescaped(text)
            case "b":
                return "true" if text.strip() == "1" else "false" if text else ""
            case "e" | "d":
                return text
        if text:
            return number_text(text, self._styles[style] if style < len(self._styles) else "")
        return Unvalued() if has_formula else ""


# The errors of zipfile, zlib, expat and this module for a damaged package.
BROKEN = (
    *(zipfile.BadZipFile, zlib.error, expat.ExpatError, EOFError, KeyError, IndexError),
    *(UnicodeError, NotImplementedError, RuntimeError, ValueError, OSError),
)

Value = Callable[[str, int, str, bool], str]


class _SheetParser:
    """One pass over a sheet's XML. Only octets since the end of the last row are held."""

    def __init__(self, around: Around, value: Value) -> None:
        self._around = around
        self._value = value
        self._done: list[tuple[list[str], int, int, int]] = []  # cells; number, begin, insert
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = None
        self._parser.EntityDeclHandler = _refuse_entities
        self._row: list[str] = []
        self._number = 0
        self._begin = 0
        self._place = -1
        self._kind, self._style, self._formula = "", 0, False
        self._text: list[str] = []
        self._hidden = 0  # depth within phonetic text, which is not part of a value

    def rows(self, stream: IO[bytes]) -> Iterator[tuple[list[str], RawRow]]:
        held, base = bytearray(), 0  # the octets from the offset `base` of the sheet
        first = True
        while True:
            piece = stream.read(READ_OCTETS)
            held += piece
            self._parser.Parse(piece, not piece)
            for cells, number, begin, insert in self._done:
                end = held.index(b">", insert - base) + 1
                raw = bytes(held[:end])
                if first:
                    self._around.head = raw[: begin - base]
                    raw = raw[begin - base :]
                    base, first = begin, False
                    del held[: len(self._around.head)]
                yield cells, RawRow(number, raw, begin - base, insert - base)
                del held[: len(raw)]
                base += len(raw)
            self._done.clear()
            if len(held) > ROW_OCTETS_MAX:
                raise ValueError("a row without end")
            if not piece:
                break
        self._around.tail = bytes(held)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        prefix, _, local = name.rpartition(":")
        match local:
            case "c":
                self._start_cell(attributes)
            case "v" | "t":
                if not self._hidden:
                    self._parser.CharacterDataHandler = self._text.append
            case "f":
                self._formula = True
                self._around.elements.add(local)
            case "rPh":
                self._hidden += 1
            case "row":
                self._around.prefix = f"{prefix}:" if prefix else ""
                self._row = []
                self._place = -1
                self._number = int(attributes.get("r", self._number + 1))
                self._begin = self._parser.CurrentByteIndex
            case _:
                self._around.elements.add(local)
                if local == "mergeCell":
                    last = attributes["ref"].rpartition(":")[2]
                    self._around.columns = max(self._around.columns, column_of(last) + 1)

    def _start_cell(self, attributes: dict[str, str]) -> None:
        position = attributes.get("r")
        self._place = self._place + 1 if position is None else column_of(position)
        self._kind = attributes.get("t", "n")
        self._style = int(attributes.get("s", 0))
        self._formula = False
        self._text.clear()

    def _end(self, name: str) -> None:
        local = name.rpartition(":")[2]
        if local in ("v", "t"):
            self._parser.CharacterDataHandler = None
        elif local == "c":
            row = self._row
            text = self._value(self._kind, self._style, "".join(self._text), self._formula)
            if self._place >= len(row):
                row += [""] * (self._place + 1 - len(row))
            elif row[self._place]:
                raise ValueError("two cells in one place")
            row[self._place] = text
        elif local == "row":
            self._around.rows += 1
            self._around.last_row = self._number
            self._around.columns = max(self._around.columns, len(self._row))
            self._done.append((self._row, self._number, self._begin, self._parser.CurrentByteIndex))
        elif local == "rPh":
            self._hidden -= 1


def without_columns(raw: RawRow, columns: range, place: int) -> RawRow:
    """The row without the cells of these columns; `insert` is before the column `place`."""
    if raw.insert == raw.begin:  # an empty element
        return raw
    parser = expat.ParserCreate()
    cells: list[tuple[int, int]] = []  # column, offset

    def start(name: str, attributes: dict[str, str]) -> None:
        if name.rpartition(":")[2] == "c":
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
    return RawRow(raw.number, octets, raw.begin, len(before))


def _refuse_entities(*_: Any) -> None:
    raise ValueError("a workbook declares no entities")


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


# Numbers

DAY_S = 86_400
EPOCH = datetime.datetime(1899, 12, 30)
EPOCH_1904 = datetime.datetime(1904, 1, 1)


def number_text(text: str, kind: str) -> str:
    """Return a number as text by its format's kind (see Package.styles()). Raises ValueError."""
    if not kind:
        if text.lstrip("-").isdigit():
            return text
        number = float(text)
        return (
            format(Decimal(repr(number)).to_integral_value(), "f")
            if number.is_integer()
            else repr(number)
        )
    seconds = round(float(text) * DAY_S, 3)
    if kind == "duration" or seconds < 0:
        return _duration(seconds)
    try:
        moment = (EPOCH_1904 if kind.endswith("1904") else EPOCH) + datetime.timedelta(
            seconds=seconds
        )
    except OverflowError:
        return text
    if seconds < DAY_S:
        return moment.time().isoformat()
    # Excel counts a 29 February 1900, which did not exist: earlier days are off by one.
    if not kind.endswith("1904") and seconds < 60 * DAY_S:
        moment += datetime.timedelta(days=1)
    return moment.date().isoformat() if seconds % DAY_S == 0 else moment.isoformat(" ")


def _duration(seconds: float) -> str:
    sign, whole = "-" if seconds < 0 else "", abs(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(int(minutes), 60)
    part = f"{rest:06.3f}".rstrip("0").rstrip(".") if rest % 1 else f"{int(rest):02}"
    return f"{sign}{hours}:{minutes:02}:{part}"
