"""Workbooks of every program come back whole, also when they are cleaned again."""

import posixpath
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mailprobe.api.cli.cleaning.outputs import Order
from mailprobe.api.errors import CommandError
from mailprobe.api.listfile.opening import ReadOptions
from mailprobe.api.listfile.selection import Selection
from mailprobe.api.listfile.workbook import sheet_writer
from mailprobe.bench.lab.workbooks import parts_of, row, sheet, text, workbook
from tests.api.cli.cleaning.foreign_workbooks import PROGRAMS, Cell, Contents, Program, workbook_of
from tests.api.cli.cleaning.test_workbooks import cells_of
from tests.api.cli.test_clean import clean, refused

GREEN = Selection(frozenset({"GREEN_LIGHT"}))
KEPT = ReadOptions(column="email")
WIDTH = 4

addresses = st.sampled_from(["ann@shop.test", "nobody@shop.test", "full@shop.test", "none", ""])
notes = (
    st.none() | st.booleans() | st.integers(0, 99) | st.sampled_from(["a&b", "<x>", "Ü 1", "=1"])
)
FIRST: list[tuple[str, Cell, int] | None] = [
    *[("ann@shop.test", None, 1), None, None, None],
    *[("nobody@shop.test", None, 2), ("ann@shop.test", None, 3)],
]
some_rows = st.lists(st.none() | st.tuples(addresses, notes, st.integers(0, 99)), max_size=6).map(
    FIRST.__add__
)
some_contents = st.builds(
    Contents,
    some_rows,
    merged=st.booleans(),
    table=st.booleans(),
    filtered=st.booleans(),
    commented=st.booleans(),
)


def check_whole(octets: bytes) -> None:
    """What spreadsheets need, checked by another parser than ours."""
    parts = parts_of(octets)
    for name, part in parts.items():
        if name.endswith(".xml"):
            root = ElementTree.fromstring(part)
            numbers = [int(each.get("r", 0)) for each in root.iterfind(".//{*}sheetData/{*}row")]
            assert numbers == sorted(set(numbers)) or not any(numbers), name
        if name.endswith(".rels"):
            folder = posixpath.dirname(posixpath.dirname(name))
            for each in ElementTree.fromstring(part):
                target = posixpath.join("/", folder, each.attrib["Target"])
                assert posixpath.normpath(target)[1:] in parts, name
    for each in ElementTree.fromstring(parts["[Content_Types].xml"]).iterfind("{*}Override"):
        assert each.attrib["PartName"][1:] in parts
    ids = re.findall(rb'\sr:id="([^"]*)"', parts["xl/workbook.xml"])
    assert all(b'Id="%s"' % each in parts["xl/_rels/workbook.xml.rels"] for each in ids)


def rows_of(path: Path) -> list[list[Any]]:
    """The cells as calamine reads them; openpyxl has to find as many addresses."""
    import openpyxl  # 0.3 s, which every process would take to collect this file

    octets = path.read_bytes()
    check_whole(octets)
    cells = cells_of(octets)
    sheet = openpyxl.load_workbook(path).worksheets[0]
    addresses = [each[0] for each in sheet.iter_rows(values_only=True) if each[0]]
    assert len(addresses) == sum(bool(each[0]) for each in cells)
    return cells


def own(rows: list[list[Any]]) -> list[list[Any]]:
    """The list's own cells, without blank rows at its end."""
    cells = [(each + [""] * WIDTH)[:WIDTH] for each in rows]
    while cells and not any(cell != "" for cell in cells[-1]):
        cells.pop()
    return cells


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_workbook_of_any_program_is_cleaned_and_cleaned_again(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)  # the slowest part, and nothing is killed here
    source, first, again = tmp_path / "list.xlsx", tmp_path / "1.xlsx", tmp_path / "2.xlsx"

    @settings(max_examples=4)
    @given(contents=some_contents)
    def check(contents: Contents) -> None:
        source.write_bytes(workbook_of(program, contents))
        before = own(cells_of(source.read_bytes()))
        clean(Order(source, first, KEPT, force=True))
        cleaned = rows_of(first)
        assert own(cleaned) == before
        clean(Order(first, again, KEPT, force=True))
        assert rows_of(again) == cleaned
        clean(Order(first, again, KEPT, force=True, selection=GREEN))
        green = [each for each in cleaned[1:] if each[0] == "ann@shop.test"]
        kept = [each for each in rows_of(again)[1:] if each[0]]
        assert kept == green
        clean(Order(first, again, KEPT, force=True, split=True))
        split = [rows_of(tmp_path / f"2.{part}.xlsx") for part in ("keep", "confirm", "drop")]
        addresses = sorted(each[0] for rows in split for each in rows[1:] if each[0])
        assert addresses == sorted(each[0] for each in cleaned[1:] if each[0])

    check()


SHEET = sheet(row(1, text("A1", "email")), row(2, text("A2", "ann@shop.test")))
LOST = '<Relationships><Relationship Id="a" Type="t" Target="gone.xml"/></Relationships>'


@pytest.mark.parametrize(
    ("part", "xml", "words"),
    [
        ("xl/worksheets/_rels/s1.xml.rels", LOST, "names a part that is not there"),
        ("docProps/app.xml", "<a><b></a>", "part docProps/app.xml is damaged"),
        ("xl/worksheets/s9.xml", sheet(row(2), row(2)), "has rows out of order"),
        ("xl/drawings/d.xml", "<a>" * 101 + "</a>" * 101, "nests too deep"),
    ],
)
def test_a_workbook_that_cannot_be_rewritten_whole_is_refused_before_verification(
    tmp_path: Path, part: str, xml: str, words: str
) -> None:
    path, output = tmp_path / "list.xlsx", tmp_path / "clean.xlsx"
    path.write_bytes(octets := workbook({"list": SHEET}, parts={part: xml}))
    assert words in refused(Order(path, output))
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (octets, [path])
    clean(Order(path, tmp_path / "clean.csv"))


def test_a_workbook_that_was_written_wrongly_does_not_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, output = tmp_path / "list.xlsx", tmp_path / "clean.xlsx"
    path.write_bytes(octets := workbook({"list": SHEET}))
    monkeypatch.setattr(sheet_writer, "with_filter", lambda tail, *_: tail + b"<")
    with pytest.raises(CommandError, match=r"part xl/worksheets/s1\.xml is damaged"):
        clean(Order(path, output))
    assert path.read_bytes() == octets
    assert not output.exists()


def test_links_and_places_in_the_workbook_are_no_lost_parts(tmp_path: Path) -> None:
    links = """<Relationships><Relationship Id="a" Type="t" Target="#list!A1"/>
    <Relationship Id="b" Type="t" Target="https://shop.test/" TargetMode="External"/>
    <Relationship Id="c" Type="t" Target="../Media/an%20image.png#x"/></Relationships>"""
    parts = {"xl/worksheets/_rels/s1.xml.rels": links, "xl/media/an image.png": "x"}
    path = tmp_path / "list.xlsx"
    path.write_bytes(workbook({"list": SHEET}, parts=parts))
    clean(Order(path, tmp_path / "clean.xlsx"))


def test_cells_follow_the_row_s_cells_and_not_its_extensions(tmp_path: Path) -> None:
    path, output = tmp_path / "list.xlsx", tmp_path / "clean.xlsx"
    extended = SHEET.replace("</row>", "<extLst><ext/></extLst></row>")
    path.write_bytes(workbook({"list": extended}))
    clean(Order(path, output))
    xml = parts_of(output.read_bytes())["xl/worksheets/s1.xml"]
    assert xml.count(b"</c><extLst><ext/></extLst></row>") == 2
    assert xml.count(b"<extLst>") == 2
