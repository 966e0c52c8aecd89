"""Quotes and escapes of a delimited file, decided from the whole file.

A file is read strictly: a line that does not fit the dialect is refused with its number,
since a stray quote may swallow the rows after it. Several dialects may fit one file. The
order of preference is that of `_DialectChoice`; the number of cells in each row decides
first. Each reading is one pass with bounded memory.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import BinaryIO

from msgspec import Struct, field
from msgspec.structs import replace

from .bounds import CELL_CHARACTERS_MAX, COLUMNS_MAX
from .dialect import (
    ADDRESS,
    ENDS_IN_ESCAPE_TEXT,
    QUOTE_WITHIN,
    TOO_MUCH,
    TOO_WIDE,
    Cells,
    DeclaredDialect,
    Dialect,
    DialectMismatch,
    RecordReader,
)
from .survey import BadList, Survey
from .text import text_lines

TOO_LONG = "larger than field limit"  # csv's words
RAW_CELL_CHARACTERS_MAX = 2 * CELL_CHARACTERS_MAX + 2  # of doubled quotes, between two
WIDTHS_MAX = 64  # different widths that are counted: a file with more is not a table
LINE_ENDS = re.compile(r"\r\n|\r|\n")


class RowWidths(Struct):
    """The widths of the rows of one reading."""

    mismatch: DialectMismatch | None = None
    rows: int = 0  # including blank rows, whose width is not counted
    widths: Counter[int] = field(default_factory=Counter)
    overgrown: int = 0  # the first line of a quoted cell that spans what looks like rows

    @property
    def width(self) -> int:
        return self.widths.most_common(1)[0][0] if self.widths else 0

    @property
    def ragged(self) -> int:
        """The number of rows that differ from the usual width."""
        return sum(self.widths.values()) - self.widths[self.width]

    def add(self, width: int) -> None:
        if len(self.widths) < WIDTHS_MAX or width in self.widths:
            self.widths[width] += 1


class DialectHints(Struct):
    """What a pass over the physical lines found, without interpreting quotes."""

    quotes: bool = False
    whole_quoted: bool = False  # a cell between quotes, on one line
    space_led: bool = False  # a quote after a delimiter and white space
    escaped_quotes: bool = False
    escaped_others: bool = False  # a delimiter or a line end after a backslash
    plain: RowWidths = field(default_factory=RowWidths)  # the lines read without quoting
    ends: Counter[str] = field(default_factory=Counter)
    lone_return: int = 0  # the first line that ends so

    @property
    def escapes(self) -> bool:
        return self.escaped_quotes or self.escaped_others

    @property
    def line_end(self) -> str:
        return self.ends.most_common(1)[0][0] if self.ends else "\n"


def detect_dialect(lines: Iterable[str], delimiter: str, first_line: int) -> DialectHints:
    """Collect the hints in one pass. Raises DialectMismatch."""
    hints = DialectHints()
    mark = re.escape(delimiter)
    space_led = re.compile(rf'(?:^|{mark})[ ]+"[^"]')
    whole = re.compile(rf'(?:^|{mark})[ ]*"[^"]*(?:""[^"]*)*"[ ]*(?={mark}|[\r\n]|$)')
    escaped = re.compile(rf"\\(?:{mark}|[\r\n])")
    for number, line in enumerate(lines, first_line):
        if len(line) > CELL_CHARACTERS_MAX and _has_long_cell(line, delimiter):
            raise DialectMismatch(number, number, TOO_LONG)
        if line.endswith("\r\n"):
            hints.ends["\r\n"] += 1
        elif line.endswith("\n"):
            hints.ends["\n"] += 1
        elif line.endswith("\r"):
            hints.ends["\r"] += 1
            hints.lone_return = hints.lone_return or number
        if not line.isspace():
            width = line.count(delimiter) + 1
            hints.plain.add(width)
            if width > COLUMNS_MAX and hints.plain.mismatch is None:
                hints.plain.mismatch = DialectMismatch(number, number, TOO_WIDE)
        if '"' in line:
            hints.quotes = True
            hints.whole_quoted = hints.whole_quoted or bool(whole.search(line))
            hints.space_led = hints.space_led or bool(space_led.search(line))
        if "\\" in line and not (hints.escaped_quotes and hints.escaped_others):
            hints.escaped_quotes = hints.escaped_quotes or '\\"' in line
            hints.escaped_others = hints.escaped_others or bool(escaped.search(line))
    return hints


def _has_long_cell(line: str, delimiter: str) -> bool:
    """Whether a cell is too long however it is read; the reading decides of one with quotes."""
    return any(
        len(cell) > (RAW_CELL_CHARACTERS_MAX if '"' in cell else CELL_CHARACTERS_MAX)
        for cell in line.rstrip("\r\n").split(delimiter)
    )


def shape_of(
    lines: Iterable[str], dialect: Dialect, plain_width: int, first_line: int
) -> RowWidths:
    """Read all lines by a dialect, up to the first mismatch."""
    shape = RowWidths()
    reading = RecordReader(lines, dialect, first_line)
    try:
        for cells, raw in reading:
            shape.rows += 1
            if cells and not (len(cells) == 1 and not cells[0].strip()):
                shape.add(len(cells))
            over_lines = dialect.quoted and not shape.overgrown and "\n" in raw[:-2]
            if over_lines and _looks_like_rows(raw, dialect.delimiter, plain_width):
                shape.overgrown = reading.started
    except DialectMismatch as mismatch:
        shape.mismatch = mismatch
    return shape


def _looks_like_rows(raw: str, delimiter: str, width: int) -> bool:
    """Whether each line of a record is as wide as a row, and several have an address."""
    lines = [line.split(delimiter) for line in LINE_ENDS.split(raw.rstrip("\r\n"))]
    if width < 2 or any(len(line) != width for line in lines):
        return False
    holding = sum(any(ADDRESS.fullmatch(cell.strip(' "')) for cell in line) for line in lines)
    return holding > 1


def find_dialect(
    file: BinaryIO, survey: Survey, delimiter: str, name: str, said: DeclaredDialect, skip: int
) -> tuple[Dialect, str]:
    """The dialect of a file and its usual line end. Raises BadList if none fits for certain."""

    def lines() -> Iterator[str]:
        every = text_lines(file, survey, name)
        for _ in range(skip):
            next(every, None)
        return every

    try:
        hints = detect_dialect(lines(), delimiter, skip + 1)
    except DialectMismatch as mismatch:
        raise _mismatch(name, mismatch) from None
    escaped = said.backslash == "escape"
    found = Dialect(delimiter, quoted=said.quotes is not False, escaped=escaped)
    shape = hints.plain
    if said.quotes is False and escaped:
        shape = shape_of(lines(), found, hints.plain.width, skip + 1)
    elif found.quoted and (escaped or hints.quotes or hints.escaped_others):
        found, shape = _DialectChoice(lines, hints, delimiter, name, skip + 1, said).made()
    if shape.mismatch is not None:
        raise _mismatch(name, shape.mismatch)
    if hints.lone_return and len(hints.ends) > 1:
        _check_returns(lines(), found, shape.width, name, skip + 1)
    return found, hints.line_end


class _DialectChoice(Struct, frozen=True):
    """Chooses the dialect by its quotes and backslashes.

    A reading is even if it fits every line and all rows are equally wide. The standard
    reading (RFC 4180: a backslash is an ordinary character) wins unless another even one
    gives other rows or cells: then the list is refused, and the options decide.
    """

    lines: Callable[[], Iterator[str]]
    hints: DialectHints
    delimiter: str
    name: str
    first_line: int
    declared: DeclaredDialect

    def made(self) -> tuple[Dialect, RowWidths]:
        readings = [(dialect, self._shape(dialect)) for dialect in self._candidates()]
        if self._may_be_bare():
            readings.append((Dialect(self.delimiter, quoted=False), self.hints.plain))
        fitting = [reading for reading in readings if reading[1].mismatch is None]
        even = [reading for reading in fitting if not reading[1].ragged]
        # A cell that spans what looks like rows favours another reading, if there is one.
        likely = [one for one in even or fitting if not one[1].overgrown] or even or fitting
        if likely:
            self._check_only_one(likely)
            dialect, shape = likely[0]
        else:
            dialect, shape = self._mixed() or max(readings, key=_fitting_lines)
        if shape.overgrown and self.declared.quotes is None:
            raise _overgrown(self.name, shape.overgrown)
        return dialect, shape

    def _shape(self, dialect: Dialect) -> RowWidths:
        return shape_of(self.lines(), dialect, self.hints.plain.width, self.first_line)

    def _candidates(self) -> list[Dialect]:
        """The dialects that the hints allow, the likeliest first."""
        hints, delimiter = self.hints, self.delimiter
        unescaped = [Dialect(delimiter)]
        if hints.space_led:
            unescaped.insert(0, Dialect(delimiter, spaced=True))
        escaped = [replace(dialect, escaped=True) for dialect in unescaped]
        if not hints.whole_quoted and self.declared.quotes is None:
            escaped.append(Dialect(delimiter, quoted=False, escaped=True))
        match self.declared.backslash:
            case "escape":
                return escaped
            case "text":
                return unescaped
        return [*unescaped, *(escaped if hints.escapes else [])]

    def _may_be_bare(self) -> bool:
        """Databases write tab-separated files without quoting: a quote is an ordinary character."""
        hints = self.hints
        unsaid = self.declared.quotes is None and self.declared.backslash != "escape"
        return (
            unsaid and self.delimiter == "\t" and not hints.whole_quoted and not hints.plain.ragged
        )

    def _mixed(self) -> tuple[Dialect, RowWidths] | None:
        """Quotes doubled in some cells and escaped in others: only where nothing else fits."""
        if self.declared.backslash == "text" or not self.hints.escaped_quotes:
            return None
        dialect = Dialect(self.delimiter, escaped=True, doubled=True)
        shape = self._shape(dialect)
        return None if shape.mismatch or shape.ragged or shape.overgrown else (dialect, shape)

    def _check_only_one(self, readings: Sequence[tuple[Dialect, RowWidths]]) -> None:
        """BadList where a reading that fits no worse than the first gives other rows or cells.

        Among readings that are not even one must fit better to count.
        """
        first, shape = readings[0]
        for other, its_shape in readings[1:]:
            if shape.ragged and its_shape.ragged >= shape.ragged:
                continue
            if self.declared.quotes and other.escaped == first.escaped:
                continue  # they differ in which quotes open a cell
            line = first_difference(self.lines, first, other, self.first_line)
            if line and other.escaped != first.escaped:
                raise BadList(
                    f"{self.name}, line {line}: a backslash there may be text or an escape, and "
                    "its cells depend on that",
                    "; say which with --backslash text or --backslash escape",
                )
            if line:
                raise BadList(
                    f"{self.name}, line {line}: a quote there may open a cell or be text, and its "
                    "cells depend on that",
                    "; say which with --quotes or --no-quotes",
                )


def _fitting_lines(reading: tuple[Dialect, RowWidths]) -> int:
    """The line up to which a reading fits."""
    return reading[1].mismatch.started if reading[1].mismatch else 0


def first_difference(
    lines: Callable[[], Iterator[str]], one: Dialect, other: Dialect, first_line: int
) -> int:
    """The first line at which two dialects give different rows or cells; 0 if none."""
    reading, another = (RecordReader(lines(), dialect, first_line) for dialect in (one, other))
    for left, right in zip_longest(reading, another):
        if (
            left is None
            or right is None
            or left[1] != right[1]
            or not _same_cells(left[0], right[0])
        ):
            return min(reading.started, another.started)
    return 0


def _same_cells(one: Cells, other: Cells) -> bool:
    """Whether cells have the same positions in their text, apart from quotes and escapes."""
    return one == other or (
        len(one) == len(other)
        and all(
            cell == its or cell.translate(MARKS).strip() == its.translate(MARKS).strip()
            for cell, its in zip(one, other, strict=True)
        )
    )


MARKS = str.maketrans("", "", '\\"')
NO_QUOTES = ", or take all quotes as text with --no-quotes"


def _mismatch(name: str, mismatch: DialectMismatch) -> BadList:
    if mismatch.what in (TOO_WIDE, TOO_MUCH):
        return BadList(f"{name}, line {mismatch.started}: {mismatch.what}; put that right first")
    if TOO_LONG in mismatch.what:
        what = "a cell is" if mismatch.line == mismatch.started else "a quote opens a cell that is"
        return BadList(
            f"{name}, line {mismatch.started}: {what} longer than {CELL_CHARACTERS_MAX:,} characters; "
            "put that right first",
            NO_QUOTES,
        )
    if mismatch.what == ENDS_IN_ESCAPE_TEXT:
        return BadList(
            f"{name}, line {mismatch.started}: a backslash stands at the end of a row; put that right "
            "first",
            ", or take all backslashes as text with --backslash text",
        )
    where = f"{name}, line {mismatch.started}: a quote opens a cell and "
    if "expected after" in mismatch.what or mismatch.what == QUOTE_WITHIN:
        return BadList(
            f"{where}closes in the middle of one"
            f"{f' at line {mismatch.line}' if mismatch.line > mismatch.started else ''}; double the "
            "quotes within a cell",
            NO_QUOTES,
        )
    return BadList(f"{where}none closes it; put that right first", NO_QUOTES)


def _overgrown(name: str, line: int) -> BadList:
    return BadList(
        f"{name}, line {line}: a quote opens a cell that goes on over lines which look like rows; "
        "put that right first",
        f"{NO_QUOTES}, or the lines as one cell with --quotes",
    )


def _check_returns(
    lines: Iterable[str], dialect: Dialect, width: int, name: str, first_line: int
) -> None:
    """Raise BadList if a lone carriage return breaks a row while other lines end differently."""
    reading = RecordReader(lines, dialect, first_line)
    after = False
    for cells, raw in reading:
        here = raw.endswith("\r")
        if (here or after) and cells and len(cells) != width:
            raise BadList(
                f"{name}, line {reading.started}: a carriage return stands alone where other lines "
                "end otherwise, and breaks a row; save the list with one kind of line end"
            )
        after = here
