"""How a delimited file separates and quotes its cells, told from the whole of it.

A file is read strictly: what does not fit its dialect is refused with the line, since a
stray quote may swallow the rows after it. Several dialects may fit one file. The order
of preference is that of `_candidates`; the number of cells in each row decides first.
Each reading is one pass with bounded memory.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from api.cli.listfile.survey import BadList, Survey
from api.cli.listfile.text import text_lines

if TYPE_CHECKING:
    from _csv import Reader

DELIMITERS = ",;\t|"
SEP_LINE = re.compile(r'"?sep=([,;\t|])"?[\r\n]', re.IGNORECASE)
DELIMITER_ROWS = 100  # of the sample, that must agree
CELL_CHARACTERS_MAX = 1 << 20  # a longer one is a quote that nobody closed
WIDTHS_MAX = 64  # different ones that are counted; more is no table

ADDRESS = re.compile(r'[^\s@,;|<>"\\]+@[^\s@,;|<>"\\]+')
LINE_ENDS = re.compile(r"\r\n|\r|\n")
MAILBOX_LINE = re.compile(r"\s*[^<>]*<[^<>\s@]+@[^<>\s@]+>\s*[,;]?\s*")

Cells = list[str]
RawRecord = tuple[Cells, Any]  # its cells, and its text as it stands, line end included


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way to write cells; `quoted` where quotes around a cell are no part of it."""

    delimiter: str
    quoted: bool = True
    escaped: bool = False  # a backslash takes the next character as it is
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


class Misfit(Exception):
    """A line that the dialect does not allow."""

    def __init__(self, started: int, line: int, what: str) -> None:
        super().__init__(started, line, what)
        self.started = started
        self.line = line
        self.what = what


class Reading:
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
        while True:
            self.started = before + reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise Misfit(self.started, before + reader.line_num, str(error)) from None
            if cells is None:
                return
            raw = taken[0] if len(taken) == 1 else "".join(taken)
            taken.clear()
            yield cells, raw


# The delimiter


def said_delimiter(survey: Survey) -> str | None:
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

    misfit: Misfit | None = None
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
class Clues:
    """What a pass over the physical lines saw, whatever the quotes mean."""

    quotes: bool = False
    whole_quoted: bool = False  # a cell between quotes, on one line
    space_led: bool = False  # a quote after a delimiter and white space
    escaped_quotes: bool = False
    escaped_others: bool = False  # a delimiter or a line end after a backslash
    first_escape: int = 0  # the line of either
    plain: Shape = field(default_factory=Shape)  # the lines taken without quoting
    ends: Counter[str] = field(default_factory=Counter)
    lone_return: int = 0  # the first line that ends so

    @property
    def line_end(self) -> str:
        return self.ends.most_common(1)[0][0] if self.ends else "\n"


def look(lines: Iterable[str], delimiter: str) -> Clues:
    """Gather the clues, in one pass."""
    clues = Clues()
    mark = re.escape(delimiter)
    space_led = re.compile(rf'(?:^|{mark})[ ]+"[^"]')
    whole = re.compile(rf'(?:^|{mark})[ ]*"[^"]*(?:""[^"]*)*"[ ]*(?={mark}|[\r\n]|$)')
    escaped = re.compile(rf"\\(?:{mark}|[\r\n])")
    for number, line in enumerate(lines, 1):
        if line.endswith("\r\n"):
            clues.ends["\r\n"] += 1
        elif line.endswith("\n"):
            clues.ends["\n"] += 1
        elif line.endswith("\r"):
            clues.ends["\r"] += 1
            clues.lone_return = clues.lone_return or number
        if not line.isspace():
            clues.plain.add(line.count(delimiter) + 1)
        if '"' in line:
            clues.quotes = True
            clues.whole_quoted = clues.whole_quoted or bool(whole.search(line))
            clues.space_led = clues.space_led or bool(space_led.search(line))
        if "\\" in line and not (clues.escaped_quotes and clues.escaped_others):
            clues.escaped_quotes = clues.escaped_quotes or '\\"' in line
            clues.escaped_others = clues.escaped_others or bool(escaped.search(line))
            if clues.escaped_quotes or clues.escaped_others:
                clues.first_escape = clues.first_escape or number
    return clues


def shape_of(lines: Iterable[str], dialect: Dialect, plain_width: int, first_line: int) -> Shape:
    """Read all by a dialect, up to the first misfit."""
    shape = Shape()
    reading = Reading(lines, dialect, first_line)
    try:
        for cells, raw in reading:
            shape.rows += 1
            if cells and not (len(cells) == 1 and not cells[0].strip()):
                shape.add(len(cells))
            over_lines = dialect.quoted and not shape.overgrown and "\n" in raw[:-2]
            if over_lines and _looks_like_rows(raw, dialect.delimiter, plain_width):
                shape.overgrown = reading.started
    except Misfit as misfit:
        shape.misfit = misfit
    return shape


def _looks_like_rows(raw: str, delimiter: str, width: int) -> bool:
    """Is each line of the record as wide as a row, with an address in it?"""
    return width > 1 and all(
        line.count(delimiter) + 1 == width
        and any(ADDRESS.fullmatch(cell.strip(' "\r\n')) for cell in line.split(delimiter))
        for line in LINE_ENDS.split(raw.rstrip("\r\n"))
    )


def find_dialect(
    file: BinaryIO, survey: Survey, delimiter: str, name: str, *, quotes: bool, skip: int = 0
) -> tuple[Dialect, str]:
    """The dialect of a file, and its usual line end; BadList where none fits for certain."""

    def lines() -> Iterator[str]:
        every = text_lines(file, survey, name)
        for _ in range(skip):
            next(every, None)
        return every

    clues = look(lines(), delimiter)
    found = Dialect(delimiter, quoted=quotes)
    shape = clues.plain
    if quotes and (clues.quotes or clues.escaped_others):
        found, shape = _choose(lines, clues, delimiter, name, skip + 1)
    if clues.lone_return and len(clues.ends) > 1:
        _check_returns(lines(), found, shape.width, name, skip + 1)
    return found, clues.line_end


def _choose(
    lines: Any, clues: Clues, delimiter: str, name: str, first_line: int
) -> tuple[Dialect, Shape]:
    unquoted = Dialect(delimiter, quoted=False)
    # Databases write tabs without any quoting: there a quote is a character like others.
    bare = delimiter == "\t" and not clues.whole_quoted and not clues.plain.ragged
    found: list[tuple[Dialect, Shape]] = []
    refusal: Misfit | None = None
    for dialect in _candidates(clues, delimiter):
        shape = shape_of(lines(), dialect, clues.plain.width, first_line)
        if shape.overgrown and dialect.escaped and found:
            continue  # backslashes that join rows are text: another reading fits
        if shape.overgrown and not bare:
            raise BadList(_overgrown(name, shape.overgrown))
        if shape.overgrown:
            return unquoted, clues.plain
        if shape.misfit is None:
            found.append((dialect, shape))
        refusal = refusal or shape.misfit
    even = [one for one in found if not one[1].ragged]
    if even:
        if any(shape.rows != even[0][1].rows for _, shape in even):
            raise BadList(
                f"{name}, line {first_line - 1 + clues.first_escape}: a backslash there may be an "
                "escape or text, and the rows after it depend on that; double the quotes within "
                "cells instead, or save the list as XLSX"
            )
        return even[0]
    if bare:
        return unquoted, clues.plain
    if found:
        return min(found, key=lambda one: one[1].ragged)
    assert refusal is not None  # a candidate that fits is in `found`
    raise BadList(_misfit(name, refusal))


def _candidates(clues: Clues, delimiter: str) -> list[Dialect]:
    """What the clues allow, the likeliest first."""
    plain = Dialect(delimiter)
    likely = [plain]
    if clues.space_led:
        likely.insert(0, Dialect(delimiter, spaced=True))
    if clues.escaped_quotes or clues.escaped_others:
        likely += [Dialect(delimiter, escaped=True, spaced=dialect.spaced) for dialect in likely]
    if clues.escaped_others and not clues.whole_quoted:
        likely.append(Dialect(delimiter, quoted=False, escaped=True))
    return likely


def _misfit(name: str, misfit: Misfit) -> str:
    where = f"{name}, line {misfit.started}: a quote opens a cell and "
    if "expected after" in misfit.what:
        return (
            f"{where}closes in the middle of one"
            f"{f' at line {misfit.line}' if misfit.line > misfit.started else ''}; double the "
            "quotes within a cell, or take all quotes as text with --no-quotes"
        )
    return (
        f"{where}none closes it; put that right first, or take all quotes as text with --no-quotes"
    )


def _overgrown(name: str, line: int) -> str:
    return (
        f"{name}, line {line}: a quote opens a cell that goes on over lines which look like rows; "
        "put that right first, or take all quotes as text with --no-quotes"
    )


def _check_returns(
    lines: Iterable[str], dialect: Dialect, width: int, name: str, first_line: int
) -> None:
    """Where most lines end otherwise, a carriage return ends a row or stands in a cell."""
    reading = Reading(lines, dialect, first_line)
    after = False
    for cells, raw in reading:
        here = raw.endswith("\r")
        if (here or after) and cells and len(cells) != width:
            raise BadList(
                f"{name}, line {reading.started}: a carriage return stands alone where other lines "
                "end otherwise, and breaks a row; save the list with one kind of line end"
            )
        after = here
