"""How a delimited file separates and quotes its cells, told from the whole of it.

A file is read strictly: what does not fit its dialect is refused with the line, since a
stray quote may swallow the rows after it. Several dialects may fit one file. The order
of preference is that of `_DialectChoice`; the number of cells in each row decides first.
Each reading is one pass with bounded memory.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from mailprobe.api.cli.listfile.survey import BadList, Survey
from mailprobe.api.cli.listfile.text import text_lines

if TYPE_CHECKING:
    from _csv import Reader

DELIMITERS = ",;\t|"
SEP_LINE = re.compile(r'"?sep=([,;\t|])"?[\r\n]', re.IGNORECASE)
DELIMITER_ROWS = 100  # of the sample, that must agree
CELL_CHARACTERS_MAX = 1 << 20  # a longer one is a quote that nobody closed
QUOTE_WITHIN = "a quote within a cell"
ENDS_IN_ESCAPE_TEXT = "ends in an escape"
TOO_LONG = "larger than field limit"  # csv's words
WIDTHS_MAX = 64  # different ones that are counted; more is no table

ADDRESS = re.compile(r'[^\s@,;|<>"\\]+@[^\s@,;|<>"\\]+')
ESCAPE = re.compile(r"\\.", re.DOTALL)
ENDS_IN_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\[\r\n]*\Z")
LINE_ENDS = re.compile(r"\r\n|\r|\n")
MAILBOX_LINE = re.compile(r"[^<>]*<[^<>\s@]+@[^<>\s@]+>\s*(?:[,;]\s*)?")

Cells = list[str]
RawRecord = tuple[Cells, Any]  # its cells, and its text as it stands, line end included


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way to write cells; `quoted` where quotes around a cell are no part of it."""

    delimiter: str
    quoted: bool = True
    escaped: bool = False  # a backslash takes the next character as it is
    doubled: bool = False  # with escapes: two quotes in a quoted cell are one as well
    spaced: bool = False  # white space after a delimiter is no part of a cell

    def reader(self, lines: Iterable[str], *, strict: bool = True) -> "Reader":
        return csv.reader(
            lines,
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE,
            escapechar="\\" if self.escaped else None,
            skipinitialspace=self.spaced,
            strict=strict,
        )

    def mismatch(self, raw: str) -> str:
        """What csv allows in a record with escapes, and no writer of escapes writes."""
        if ENDS_IN_ESCAPE.search(raw):
            return ENDS_IN_ESCAPE_TEXT
        strictly = self.quoted and not self.doubled and '"' in raw
        return QUOTE_WITHIN if strictly and not self.quotes_whole(raw) else ""

    def quotes_whole(self, raw: str) -> bool:
        """Does a record, escapes aside, have quotes around cells and nowhere else?"""
        mark, space = re.escape(self.delimiter), " *" if self.spaced else ""
        cell = f'(?:{space}"[^"]*"|[^"{mark}]*)'
        text = ESCAPE.sub("_", raw).rstrip("\r\n")
        return re.fullmatch(f"{cell}(?:{mark}{cell})*", text) is not None


@dataclass(frozen=True, slots=True)
class DeclaredDialect:
    """What a person said of quotes and backslashes; None: the file decides."""

    quotes: bool | None = None  # do they stand around cells, or are they text?
    backslash: Literal["text", "escape"] | None = None


class DialectMismatch(Exception):
    """A line that the dialect does not allow."""

    def __init__(self, started: int, line: int, what: str) -> None:
        super().__init__(started, line, what)
        self.started = started
        self.line = line
        self.what = what


class RecordReader:
    """The records of lines, by a dialect; raises Misfit. `started` is the current one's line."""

    def __init__(self, lines: Iterable[str], dialect: Dialect, first_line: int = 1) -> None:
        self.started = first_line
        self._lines = lines
        self._dialect = dialect
        self._before = first_line - 1

    def __iter__(self) -> Iterator[RawRecord]:
        taken: list[str] = []

        def feed() -> Iterator[str]:
            for line in self._lines:
                taken.append(line)
                # csv wants the end of the last line too, after an escaped line end before it
                yield line if line[-1] in "\r\n" else line + "\n"

        csv.field_size_limit(CELL_CHARACTERS_MAX)
        reader = self._dialect.reader(feed())
        before = self._before
        dialect = self._dialect
        escaped = dialect.escaped
        while True:
            self.started = before + reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                torn = escaped and taken and ENDS_IN_ESCAPE.search(taken[-1])
                what = ENDS_IN_ESCAPE_TEXT if torn else str(error)
                raise DialectMismatch(self.started, before + reader.line_num, what) from None
            if cells is None:
                return
            raw = taken[0] if len(taken) == 1 else "".join(taken)
            taken.clear()
            if escaped and (what := dialect.mismatch(raw)):
                raise DialectMismatch(self.started, before + reader.line_num, what)
            yield cells, raw


# The delimiter


def declared_delimiter(survey: Survey) -> str | None:
    """The delimiter that a first line `sep=;` names, which is Excel's way."""
    said = SEP_LINE.match(survey.sample)
    return said[1] if said else None


def find_delimiter(
    survey: Survey, *, surely_a_table: bool, likely: str | None = None, skip: int = 0
) -> str | None:
    """The delimiter on which the first rows agree best, or None where there is none.

    Rows in which one cell is an address count before rows that are equally wide: in
    `ann@shop.test;Doe, John` the comma is text.
    """
    lines = survey.sample.splitlines(keepends=True)
    if not survey.sample_is_all and len(lines) > 1:
        del lines[-1]
    lines = lines[skip:]
    if not surely_a_table and _are_mailboxes(lines):
        return None
    if likely is not None and any(likely in line for line in lines):
        return likely
    scores: dict[str, tuple[int, float, int]] = {}
    for delimiter in DELIMITERS:
        for dialect in _sampled(delimiter):
            rows = _sample_rows(lines, dialect)
            width, agreeing = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
            if width < 2 or not (surely_a_table or 2 * agreeing >= len(rows)):
                continue
            holding = sum(any(ADDRESS.fullmatch(cell.strip()) for cell in row) for row in rows)
            score = (holding, agreeing / len(rows), width)
            scores[delimiter] = max(score, scores.get(delimiter, score))
    return max(scores, key=scores.__getitem__, default=None)


def _sampled(delimiter: str) -> Iterator[Dialect]:
    yield Dialect(delimiter)
    yield Dialect(delimiter, escaped=True)
    yield Dialect(delimiter, quoted=False)
    yield Dialect(delimiter, quoted=False, escaped=True)


def _are_mailboxes(lines: Iterable[str]) -> bool:
    """`Doe, Ann <ann@shop.test>` on each line: the comma belongs to the name."""
    filled = [line for line in lines if line.strip()]
    return bool(filled) and 2 * sum(
        MAILBOX_LINE.fullmatch(line) is not None for line in filled
    ) > len(filled)


def _sample_rows(lines: list[str], dialect: Dialect) -> list[Cells]:
    """The first rows that are not blank."""
    rows: list[Cells] = []
    csv.field_size_limit(CELL_CHARACTERS_MAX)
    try:
        for row in dialect.reader(lines, strict=False):
            if any(cell.strip() for cell in row):
                rows.append(row)
            if len(rows) > DELIMITER_ROWS:
                break
    except csv.Error:  # a cell without end: reading the rows will say where
        pass
    return rows


# Quotes


@dataclass(slots=True)
class Shape:
    """How wide the rows of one reading are."""

    mismatch: DialectMismatch | None = None
    rows: int = 0  # blank ones too, which no width is counted of
    widths: Counter[int] = field(default_factory=Counter)
    overgrown: int = 0  # the first line of a quoted cell over what looks like further rows

    @property
    def width(self) -> int:
        return self.widths.most_common(1)[0][0] if self.widths else 0

    @property
    def ragged(self) -> int:
        """How many rows are not as wide as most."""
        return sum(self.widths.values()) - self.widths[self.width]

    def add(self, width: int) -> None:
        if len(self.widths) < WIDTHS_MAX or width in self.widths:
            self.widths[width] += 1


@dataclass(slots=True)
class DialectHints:
    """What a pass over the physical lines saw, whatever the quotes mean."""

    quotes: bool = False
    whole_quoted: bool = False  # a cell between quotes, on one line
    space_led: bool = False  # a quote after a delimiter and white space
    escaped_quotes: bool = False
    escaped_others: bool = False  # a delimiter or a line end after a backslash
    plain: Shape = field(default_factory=Shape)  # the lines taken without quoting
    ends: Counter[str] = field(default_factory=Counter)
    lone_return: int = 0  # the first line that ends so

    @property
    def escapes(self) -> bool:
        return self.escaped_quotes or self.escaped_others

    @property
    def line_end(self) -> str:
        return self.ends.most_common(1)[0][0] if self.ends else "\n"


def detect_dialect(lines: Iterable[str], delimiter: str, first_line: int) -> DialectHints:
    """Gather the clues, in one pass; raises Misfit."""
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
            hints.plain.add(line.count(delimiter) + 1)
        if '"' in line:
            hints.quotes = True
            hints.whole_quoted = hints.whole_quoted or bool(whole.search(line))
            hints.space_led = hints.space_led or bool(space_led.search(line))
        if "\\" in line and not (hints.escaped_quotes and hints.escaped_others):
            hints.escaped_quotes = hints.escaped_quotes or '\\"' in line
            hints.escaped_others = hints.escaped_others or bool(escaped.search(line))
    return hints


def _has_long_cell(line: str, delimiter: str) -> bool:
    return any(len(cell) > CELL_CHARACTERS_MAX for cell in line.split(delimiter))


def shape_of(lines: Iterable[str], dialect: Dialect, plain_width: int, first_line: int) -> Shape:
    """Read all by a dialect, up to the first misfit."""
    shape = Shape()
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
    """Is each line of the record as wide as a row, and do several hold an address?"""
    lines = [line.split(delimiter) for line in LINE_ENDS.split(raw.rstrip("\r\n"))]
    if width < 2 or any(len(line) != width for line in lines):
        return False
    holding = sum(any(ADDRESS.fullmatch(cell.strip(' "')) for cell in line) for line in lines)
    return holding > 1


def find_dialect(
    file: BinaryIO, survey: Survey, delimiter: str, name: str, said: DeclaredDialect, skip: int = 0
) -> tuple[Dialect, str]:
    """The dialect of a file, and its usual line end; BadList where none fits for certain."""

    def lines() -> Iterator[str]:
        every = text_lines(file, survey, name)
        for _ in range(skip):
            next(every, None)
        return every

    try:
        hints = detect_dialect(lines(), delimiter, skip + 1)
    except DialectMismatch as mismatch:
        raise BadList(_mismatch(name, mismatch)) from None
    escaped = said.backslash == "escape"
    found = Dialect(delimiter, quoted=said.quotes is not False, escaped=escaped)
    shape = hints.plain
    if said.quotes is False and escaped:
        shape = shape_of(lines(), found, hints.plain.width, skip + 1)
    elif found.quoted and (escaped or hints.quotes or hints.escaped_others):
        found, shape = _DialectChoice(lines, hints, delimiter, name, skip + 1, said).made()
    if hints.lone_return and len(hints.ends) > 1:
        _check_returns(lines(), found, shape.width, name, skip + 1)
    return found, hints.line_end


@dataclass(frozen=True, slots=True)
class _DialectChoice:
    """Which dialect quotes and backslashes are to be read by.

    A reading is even when it fits every line and all rows are equally wide. The standard
    reading (RFC 4180: a backslash is a character like others) wins unless another even
    one gives other rows or cells: then only a person can tell, and the list is refused.
    """

    lines: Callable[[], Iterator[str]]
    hints: DialectHints
    delimiter: str
    name: str
    first_line: int
    declared: DeclaredDialect

    def made(self) -> tuple[Dialect, Shape]:
        readings = [(dialect, self._shape(dialect)) for dialect in self._candidates()]
        if self._may_be_bare():
            readings.append((Dialect(self.delimiter, quoted=False), self.hints.plain))
        fitting = [reading for reading in readings if reading[1].mismatch is None]
        even = [reading for reading in fitting if not reading[1].ragged]
        # A cell over what looks like rows speaks for another reading, where there is one.
        likely = [one for one in even or fitting if not one[1].overgrown] or even or fitting
        if likely:
            self._check_only_one(likely)
            dialect, shape = likely[0]
        else:
            dialect, shape = self._mixed() or max(readings, key=_fitting_lines)
        if shape.overgrown and self.declared.quotes is None:
            raise BadList(_overgrown(self.name, shape.overgrown))
        if shape.mismatch is not None:
            raise BadList(_mismatch(self.name, shape.mismatch))
        return dialect, shape

    def _shape(self, dialect: Dialect) -> Shape:
        return shape_of(self.lines(), dialect, self.hints.plain.width, self.first_line)

    def _candidates(self) -> list[Dialect]:
        """What the clues allow, the likeliest first."""
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
        """Databases write tabs without any quoting: there a quote is a character like others."""
        hints = self.hints
        unsaid = self.declared.quotes is None and self.declared.backslash != "escape"
        return (
            unsaid and self.delimiter == "\t" and not hints.whole_quoted and not hints.plain.ragged
        )

    def _mixed(self) -> tuple[Dialect, Shape] | None:
        """Quotes doubled in some cells and escaped in others: only where nothing else fits."""
        if self.declared.backslash == "text" or not self.hints.escaped_quotes:
            return None
        dialect = Dialect(self.delimiter, escaped=True, doubled=True)
        shape = self._shape(dialect)
        return None if shape.mismatch or shape.ragged or shape.overgrown else (dialect, shape)

    def _check_only_one(self, readings: Sequence[tuple[Dialect, Shape]]) -> None:
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
                    "its cells depend on that; say which with --backslash text or "
                    "--backslash escape"
                )
            if line:
                raise BadList(
                    f"{self.name}, line {line}: a quote there may open a cell or be text, and its "
                    "cells depend on that; say which with --quotes or --no-quotes"
                )


def _fitting_lines(reading: tuple[Dialect, Shape]) -> int:
    """How far a reading came that does not fit."""
    return reading[1].mismatch.started if reading[1].mismatch else 0


def first_difference(
    lines: Callable[[], Iterator[str]], one: Dialect, other: Dialect, first_line: int
) -> int:
    """The line from which on two dialects give other rows or cells; 0 where there is none."""
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
    """Have the cells the same places in their text? Marks that a dialect undoes do not count."""
    return one == other or (
        len(one) == len(other)
        and all(
            cell == its or cell.translate(MARKS).strip() == its.translate(MARKS).strip()
            for cell, its in zip(one, other, strict=True)
        )
    )


MARKS = str.maketrans("", "", '\\"')


def _mismatch(name: str, mismatch: DialectMismatch) -> str:
    if TOO_LONG in mismatch.what:
        what = "a cell is" if mismatch.line == mismatch.started else "a quote opens a cell that is"
        return (
            f"{name}, line {mismatch.started}: {what} longer than {CELL_CHARACTERS_MAX:,} characters; "
            "put that right first, or take all quotes as text with --no-quotes"
        )
    if mismatch.what == ENDS_IN_ESCAPE_TEXT:
        return (
            f"{name}, line {mismatch.started}: a backslash stands at the end of a row; put that right "
            "first, or take all backslashes as text with --backslash text"
        )
    where = f"{name}, line {mismatch.started}: a quote opens a cell and "
    if "expected after" in mismatch.what or mismatch.what == QUOTE_WITHIN:
        return (
            f"{where}closes in the middle of one"
            f"{f' at line {mismatch.line}' if mismatch.line > mismatch.started else ''}; double the "
            "quotes within a cell, or take all quotes as text with --no-quotes"
        )
    return (
        f"{where}none closes it; put that right first, or take all quotes as text with --no-quotes"
    )


def _overgrown(name: str, line: int) -> str:
    return (
        f"{name}, line {line}: a quote opens a cell that goes on over lines which look like rows; "
        "put that right first, or take all quotes as text with --no-quotes, or the lines as one "
        "cell with --quotes"
    )


def _check_returns(
    lines: Iterable[str], dialect: Dialect, width: int, name: str, first_line: int
) -> None:
    """Where most lines end otherwise, a carriage return ends a row or stands in a cell."""
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
