"""Any table that Python's csv, polars or LibreOffice writes comes back cell for cell.

This module implements the writers' rules: csv since Python 3.13, polars' `write_csv`,
and LibreOffice's export of text.
"""

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.api.listfile.results import RESULT_FIELDS
from mailprobe.api.listfile.survey import BadList
from tests.api.cli.cleaning.corpus import A, B, Case
from tests.api.cli.cleaning.test_corpus import cleaned

WriteCell = Callable[[str, str], str]  # a cell and the delimiter


def doubled(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"'


def escaped(cell: str) -> str:
    return '"' + cell.replace("\\", "\\\\").replace('"', '\\"') + '"'


def python_minimal(cell: str, delimiter: str) -> str:
    return doubled(cell) if set(cell) & {delimiter, '"', "\r", "\n"} else cell


def python_all(cell: str, delimiter: str) -> str:
    return doubled(cell)


def python_nonnumeric(cell: str, delimiter: str) -> str:
    return cell if cell.isascii() and cell.isdigit() else doubled(cell)


def python_none(cell: str, delimiter: str) -> str:
    return "".join("\\" + c if c in (delimiter, "\\", '"', "\r", "\n") else c for c in cell)


def python_escaped(cell: str, delimiter: str) -> str:
    return escaped(cell) if set(cell) & {delimiter, '"', "\r", "\n", "\\"} else cell


def polars_necessary(cell: str, delimiter: str) -> str:
    return doubled(cell) if not cell or set(cell) & {delimiter, '"', "\r", "\n"} else cell


def polars_never(cell: str, delimiter: str) -> str:
    return "".join(c for c in cell if c not in (delimiter, '"', "\r", "\n"))


def libreoffice(cell: str, delimiter: str) -> str:
    quoted = set(cell) & {delimiter, '"', "\n", "\r"} or cell != cell.strip(" ")
    return doubled(cell) if quoted else cell


def libreoffice_all_text(cell: str, delimiter: str) -> str:
    return doubled(cell) if cell else ""


# a writer -> how Python's csv reads what it wrote
WRITERS: dict[WriteCell, dict[str, Any]] = {
    python_minimal: {},
    python_all: {},
    python_nonnumeric: {},
    python_none: {"quoting": csv.QUOTE_NONE, "escapechar": "\\"},
    python_escaped: {"doublequote": False, "escapechar": "\\"},
    polars_necessary: {},
    polars_never: {"quoting": csv.QUOTE_NONE},
    libreoffice: {},
    libreoffice_all_text: {},
}

letters = st.sampled_from(
    ["a", "é", "7", " ", ",", ";", "\t", "|", '"', "\\", "\n", "\r\n", "#", "'"]
)
cells = st.lists(letters, max_size=8).map("".join)
wild = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="@"), max_size=10
)


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    """Make a header and rows; most rows have an address, always in the same column."""
    width = draw(st.integers(1, 4))
    place = draw(st.integers(0, width))
    rows = draw(st.lists(st.lists(cells | wild, min_size=width, max_size=width), max_size=6))
    rows = [["x"] * width, *rows]
    for number, row in enumerate(rows):
        address = f"a{number}@shop.test"
        others = ["", *(f"a{number}@sho{end}p.test" for end in ("\n", "\r\n", "\r"))]
        row.insert(place, draw(st.sampled_from([*[address] * 20, *others])) if number else address)
    header = [f"c{number}" for number in range(width)]
    header.insert(place, "email")
    return [header, *rows]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
@given(
    rows=tables(),
    delimiter=st.sampled_from(",;\t|"),
    line_end=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    ended=st.booleans(),
)
def test_any_table_comes_back_cell_for_cell(
    tmp_path_factory: pytest.TempPathFactory,
    write: WriteCell,
    rows: list[list[str]],
    delimiter: str,
    line_end: str,
    encoding: str,
    ended: bool,
) -> None:
    if write is python_none:  # an escaped line end before a line end may be a blank line as well
        rows = [[cell.rstrip("\r\n") for cell in row] for row in rows]
    lines = [delimiter.join(write(cell, delimiter) for cell in row) for row in rows]
    text = line_end.join(lines) + (line_end if ended else "")
    options = {**WRITERS[write], "delimiter": delimiter}
    written = list(csv.reader(io.StringIO(text, newline=""), **options))
    if write is not polars_never:
        assert written == rows  # the rules above are the writers'
    ending = ".tsv" if delimiter == "\t" else ".csv"
    path = tmp_path_factory.getbasetemp() / f"table{ending}"
    path.write_bytes(text.encode(encoding))

    back = cleaned_unless_unsure(path, text, delimiter)
    if back is None:
        return
    addresses, output = back
    got = list(csv.reader(io.StringIO(output.decode("utf-8-sig"), newline=""), **options))
    width = len(rows[0])
    assert [row[:width] for row in got] == written
    assert {len(row) for row in got} == {width + len(RESULT_FIELDS)}
    assert addresses == [row[rows[0].index("email")] for row in written[1:]]
    assert [row[width] for row in got[1:]] == addresses


def cleaned_unless_unsure(
    path: Path, text: str, delimiter: str, **said: Any
) -> tuple[list[str], bytes] | None:
    """Return None if the list is refused, which is right only for text with several readings."""
    refusal = ""
    try:
        return cleaned(path, Case(path.name, b"", said=said))
    except BadList as bad:
        if len(even_readings(text, delimiter)) < 2:
            raise
        refusal = bad.message
    assert "; say which with --" in refusal
    return None


Rows = list[list[str]]


def even_readings(text: str, delimiter: str) -> set[tuple[tuple[str, ...], ...]]:
    """The tables that a text is, of those ways to quote that fit all of it.

    All rows of one are equally wide. Quotes, backslashes and outer spaces do not count:
    readings that differ in them alone have the same cells in the same places.
    """
    found = set()
    for rows in [
        doubled_rows(text, delimiter),
        doubled_rows(text, delimiter, skipinitialspace=True),
        doubled_rows(text, delimiter, quoting=csv.QUOTE_NONE) if delimiter == "\t" else None,
        escaped_rows(text, delimiter, '(?:"{}"|{})'),
        escaped_rows(text, delimiter, ' *(?:"{}"|{})'),
        escaped_rows(text, delimiter, "{1}", also='"'),
    ]:
        bare = [tuple(map(_bare, row)) for row in rows or ()]
        if len({len(row) for row in bare if row and row != ("",)}) == 1:
            found.add(tuple(bare))
    return found


def _bare(cell: str) -> str:
    """Without quotes, backslashes and outer spaces; a line end belongs to one row or to the next."""
    return re.sub(r"^[^\S\r\n]+|[^\S\r\n]+$", "", re.sub(r'[\\"]', "", cell))


def doubled_rows(text: str, delimiter: str, **options: Any) -> Rows | None:
    lines = io.StringIO(text, newline="")
    try:
        return list(csv.reader(lines, strict=True, delimiter=delimiter, **options))
    except csv.Error:
        return None


def escaped_rows(text: str, delimiter: str, form: str, also: str = "") -> Rows | None:
    """By escapes alone; no bare cell has a quote, unless `also` allows it."""
    mark = re.escape(delimiter)
    quoted = r'(?:\\.|[^"\\])*'
    bare = rf'(?:\\.|[^"\\{mark}\r\n]|{also or "(?!)"})*'
    cell = re.compile(form.format(quoted, bare), re.DOTALL)
    rows: Rows = [[]]
    place = 0
    while found := cell.match(text, place):
        rows[-1].append(found[0])
        end = re.compile(rf"{mark}|\r\n|\r|\n|$(?!\n)").match(text, found.end())
        if end is None:
            return None
        if end.end() == len(text) and end[0] != delimiter:
            return rows
        if end[0] != delimiter:
            rows.append([])
        place = end.end()
    return None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (f'n,email\n"\\",{A}\n', 1),
        (f'n,m,email\n"\\","",{A}\n', 1),
        (f'n,email\n"\\"",{A}\n', 1),
        (f"n,email\nx\\,y,{A}\n", 1),
        (f"x\\,y,{A}\nz\\,w,{B}\n", 2),
        (f'n,email\n"x\\",{A}\n"\\"\ny",{B}\n', 1),
        (f'n,email\nx,{A}\n,"\\""\n"\na","\na"', 2),  # the second line end ends a row, or is text
    ],
)
def test_the_oracle_itself(text: str, number: int) -> None:
    assert len(even_readings(text, ",")) == number


@given(
    rows=tables(), encoding=st.sampled_from(["cp1252", "cp1251", "shift_jis", "gb18030", "big5"])
)
def test_any_table_comes_back_from_an_encoding_that_is_named(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], encoding: str
) -> None:
    rows = [[cell.encode(encoding, "ignore").decode(encoding) for cell in row] for row in rows]
    text = "".join(",".join(map(doubled, row)) + "\n" for row in rows)
    path = tmp_path_factory.getbasetemp() / "table.csv"
    path.write_bytes(text.encode(encoding))
    back = cleaned_unless_unsure(path, text, ",", encoding=encoding)
    if back is None:
        return
    _, output = back
    got = list(csv.reader(io.StringIO(output.decode(), newline="")))
    assert [row[: len(rows[0])] for row in got] == rows
