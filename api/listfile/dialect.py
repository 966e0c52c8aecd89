"""Separators, quotes and escapes of a delimited file, and its records read by them.

`delimiter` and `quoting` find the dialect of a file.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from .bounds import CELL_CHARACTERS_MAX, COLUMNS_MAX, ROW_CHARACTERS_MAX

if TYPE_CHECKING:
    from _csv import Reader

QUOTE_WITHIN = "a quote within a cell"
ENDS_IN_ESCAPE_TEXT = "ends in an escape"
TOO_WIDE = f"has more than {COLUMNS_MAX:,} columns"
TOO_MUCH = f"has more than {ROW_CHARACTERS_MAX:,} characters"

ADDRESS = re.compile(r'[^\s@,;|<>"\\]+@[^\s@,;|<>"\\]+')
ESCAPE = re.compile(r"\\.", re.DOTALL)
ENDS_IN_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\[\r\n]*\Z")

Cells = list[str]
RawRecord = tuple[Cells, Any]  # its cells, and its verbatim text with the line end


class Dialect(Struct, frozen=True):
    """A way to write cells; `quoted` if quotes around a cell are not part of it."""

    delimiter: str
    quoted: bool = True
    escaped: bool = False  # a backslash escapes the next character
    doubled: bool = False  # with escapes: two quotes in a quoted cell are one as well
    spaced: bool = False  # white space after a delimiter is not part of a cell

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
        """What csv accepts in a record with escapes but no writer produces; "" if nothing."""
        if ENDS_IN_ESCAPE.search(raw):
            return ENDS_IN_ESCAPE_TEXT
        strictly = self.quoted and not self.doubled and '"' in raw
        return QUOTE_WITHIN if strictly and not self.quotes_whole(raw) else ""

    def quotes_whole(self, raw: str) -> bool:
        """Whether a record, apart from escapes, has quotes only around cells."""
        mark, space = re.escape(self.delimiter), " *" if self.spaced else ""
        cell = f'(?:{space}"[^"]*"|[^"{mark}]*)'
        text = ESCAPE.sub("_", raw).rstrip("\r\n")
        return re.fullmatch(f"{cell}(?:{mark}{cell})*", text) is not None


class DeclaredDialect(Struct, frozen=True):
    """The options for quotes and backslashes; None: detect from the file."""

    quotes: bool | None = None  # True: around cells; False: ordinary characters
    backslash: Literal["text", "escape"] | None = None


class DialectMismatch(Exception):
    """A line that the dialect does not allow."""

    def __init__(self, started: int, line: int, what: str) -> None:
        super().__init__(started, line, what)
        self.started = started
        self.line = line
        self.what = what


class RecordReader:
    """The records of lines, by a dialect. `started` is the first line of the current record.

    Iterating raises DialectMismatch.
    """

    def __init__(self, lines: Iterable[str], dialect: Dialect, first_line: int = 1) -> None:
        self.started = first_line
        self._lines = lines
        self._dialect = dialect
        self._before = first_line - 1

    def __iter__(self) -> Iterator[RawRecord]:
        taken: list[str] = []
        characters = 0

        def feed() -> Iterator[str]:
            nonlocal characters
            for line in self._lines:
                taken.append(line)
                characters += len(line)
                if characters > ROW_CHARACTERS_MAX:
                    raise DialectMismatch(self.started, self.started, TOO_MUCH)
                # csv needs the last line end too, after an escaped line end before it
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
            characters = 0
            if len(cells) > COLUMNS_MAX:
                raise DialectMismatch(self.started, before + reader.line_num, TOO_WIDE)
            if escaped and (what := dialect.mismatch(raw)):
                raise DialectMismatch(self.started, before + reader.line_num, what)
            yield cells, raw
