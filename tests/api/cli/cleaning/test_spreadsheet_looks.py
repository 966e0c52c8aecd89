"""A cleaned spreadsheet: typed cells, coloured lights, a frozen header, a filter, a summary."""

import datetime
import io
import posixpath
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
import xlsxwriter
from hypothesis import given
from hypothesis import strategies as st
from python_calamine import CalamineWorkbook

from mailprobe.api.listfile.opening import OutputFormat, open_list
from mailprobe.api.listfile.results import LIGHT, ResultColumns
from mailprobe.api.listfile.workbook.new_workbook import column_types
from mailprobe.api.listfile.workbook.styles import COLOURS, FILLS
from mailprobe.api.listfile.workbook.summary import TITLE
from mailprobe.api.listfile.writer import open_writer
from mailprobe.bench.lab.workbooks import parts_of
from tests.api.fake_source import result_of

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
ANN, BOB = "ann@shop.test", "bob@shop.test"


def workbook(rows: list[list[Any]]) -> bytes:
    file = io.BytesIO()
    with xlsxwriter.Workbook(file, {"strings_to_formulas": False}) as book:
        page = book.add_worksheet("Kunden")
        bold = book.add_format({"bold": True, "bg_color": "#123456"})
        page.write_row(0, 0, rows[0], bold)
        for number, row in enumerate(rows[1:], 1):
            page.write_row(number, 0, row)
    return file.getvalue()


def cleaned(octets: bytes, path: Path, statuses: dict[str, str] | None = None) -> bytes:
    """The list as a workbook; an address is deliverable unless `statuses` names it."""
    path.write_bytes(octets)
    file = io.BytesIO()
    with open_list(path) as source:
        for _ in source.rows():
            pass
        with open_writer(file, OutputFormat("xlsx"), source, ResultColumns()) as write:
            for row in source.rows():
                status = (statuses or {}).get(row.address, "deliverable")
                result = msgspec.structs.replace(
                    result_of(row.address), status=status, valid=status == "deliverable"
                )
                write(row, result if row.address else None)
    check_package(file.getvalue())
    return file.getvalue()


def check_package(octets: bytes) -> None:
    """Every part is XML, every relationship leads to a part, and every part has a type once."""
    parts = parts_of(octets)
    for name, content in parts.items():
        root = ElementTree.fromstring(content)
        if name.endswith(".rels"):
            owner = posixpath.dirname(posixpath.dirname(name))
            targets = [each.get("Target", "") for each in root]
            assert len({each.get("Id") for each in root}) == len(targets)
            for target in targets:
                assert posixpath.normpath(posixpath.join("/", owner, target)).lstrip("/") in parts
    types = ElementTree.fromstring(parts["[Content_Types].xml"])
    named = [each.get("PartName", "").lstrip("/") for each in types if each.get("PartName")]
    assert len(named) == len(set(named))
    assert set(named) <= set(parts)
    sheets = ElementTree.fromstring(parts["xl/workbook.xml"]).iter(f"{MAIN}sheet")
    numbers = [(sheet.get("sheetId"), sheet.get("name")) for sheet in sheets]
    assert (
        len({number for number, _ in numbers}) == len({name for _, name in numbers}) == len(numbers)
    )


def sheets_of(octets: bytes) -> dict[str, list[list[Any]]]:
    book = CalamineWorkbook.from_filelike(io.BytesIO(octets))
    return {name: book.get_sheet_by_name(name).to_python() for name in book.sheet_names}


def colours_of(octets: bytes, part: str = "xl/worksheets/sheet1.xml") -> dict[str, str]:
    """The fill of each cell that holds a light or a status."""
    parts = parts_of(octets)
    styles = ElementTree.fromstring(parts["xl/styles.xml"])
    colours = (fill.find(f".//{MAIN}fgColor") for fill in styles.iter(f"{MAIN}fill"))
    fills = ["" if colour is None else colour.get("rgb", "") for colour in colours]
    formats = next(iter(styles.iter(f"{MAIN}cellXfs")))
    assert int(formats.get("count", "0")) == len(formats)
    assert int(next(iter(styles.iter(f"{MAIN}fills"))).get("count", "0")) == len(fills)
    found = {}
    for cell in ElementTree.fromstring(parts[part]).iter(f"{MAIN}c"):
        text = "".join(cell.itertext())
        fill = fills[int(formats[int(cell.get("s", "0"))].get("fillId", "0"))]
        if text in COLOURS and fill:  # a column is named catch_all
            found[text] = fill
    return found


ROWS: list[list[Any]] = [
    ["name", "email", "n"],
    ["Ann", ANN, 1.5],
    ["Bob", BOB, True],
    ["=A1", "", 7],
]
STATUSES = {BOB: "undeliverable"}


@pytest.mark.parametrize("kind", ["workbook", "csv"])
def test_a_cleaned_spreadsheet_can_be_worked_with(tmp_path: Path, kind: str) -> None:
    text = f"name,email,n\nAnn,{ANN},1.5\nBob,{BOB},2\n=A1,,7\n".encode()
    if kind == "csv":
        octets = cleaned(text, tmp_path / "list.csv", STATUSES)
    else:
        octets = cleaned(workbook(ROWS), tmp_path / "list.xlsx", STATUSES)
    sheets = sheets_of(octets)
    assert list(sheets)[1] == TITLE
    assert ["deliverable", 1.0] in [row[:2] for row in sheets[TITLE]]
    assert ["Keep", 1.0, "GREEN_LIGHT"] in [row[:3] for row in sheets[TITLE]]
    assert ["Drop", 1.0, "RED_LIGHT"] in [row[:3] for row in sheets[TITLE]]
    header, ann, bob, blank = next(iter(sheets.values()))
    place = {name: position for position, name in enumerate(header)}
    assert ann[place["valid"]] is True
    assert bob[place["valid"]] is False
    assert ann[place["confidence"]] == 0.97
    assert ann[place["latency_ms"]] == 12
    assert ann[2] == 1.5
    assert blank[0] == "=A1"
    assert colours_of(octets) == {
        value: f"FF{FILLS[COLOURS[value]]}"
        for value in ("GREEN_LIGHT", "RED_LIGHT", "deliverable", "undeliverable")
    }
    xml = parts_of(octets)["xl/worksheets/sheet1.xml"].decode()
    assert 'ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"' in xml
    assert 'autoFilter ref="A1:U4"' in xml
    assert "<f>" not in xml
    assert any("charts/" in name for name in parts_of(octets))


def test_a_cleaned_workbook_is_refreshed_with_its_summary(tmp_path: Path) -> None:
    once = cleaned(workbook(ROWS), tmp_path / "list.xlsx", STATUSES)
    again = cleaned(once, tmp_path / "list.xlsx")
    sheets, before = sheets_of(again), sheets_of(once)
    assert list(sheets) == list(before) == ["Kunden", TITLE]
    assert sheets["Kunden"][0] == before["Kunden"][0]
    assert len(sheets["Kunden"][2]) == len(before["Kunden"][2])
    place = before["Kunden"][0].index("status")
    assert [row[place] for row in sheets["Kunden"][1:3]] == ["deliverable"] * 2
    assert ["Keep", 2.0, "GREEN_LIGHT"] in [row[:3] for row in sheets[TITLE]]
    assert set(colours_of(again)) == {"GREEN_LIGHT", "deliverable"}
    with open_list(tmp_path / "list.xlsx") as source:
        assert [row.address for row in source.rows()] == [ANN, BOB, ""]
        assert list(source.remarks()) == []


def test_a_column_right_of_the_results_keeps_its_place(tmp_path: Path) -> None:
    rows = sheets_of(cleaned(workbook(ROWS), tmp_path / "list.xlsx"))["Kunden"]
    noted = [[*rows[0], "note"], [*rows[1], "call her"], rows[2], rows[3]]
    after = sheets_of(cleaned(workbook(noted), tmp_path / "list.xlsx", STATUSES))["Kunden"]
    assert after[0] == noted[0]
    assert after[1] == noted[1]
    assert after[2][rows[0].index("status")] == "undeliverable"
    assert after[2][rows[0].index(LIGHT)] == "RED_LIGHT"


def test_an_existing_filter_and_a_frozen_pane_stay(tmp_path: Path) -> None:
    file = io.BytesIO()
    with xlsxwriter.Workbook(file) as book:
        page = book.add_worksheet()
        page.write_row(0, 0, ["email", "n"])
        page.write_row(1, 0, [ANN, 1])
        page.freeze_panes(1, 1)
        page.autofilter(0, 0, 1, 1)
    after = parts_of(cleaned(file.getvalue(), tmp_path / "list.xlsx"))
    xml = after["xl/worksheets/sheet1.xml"].decode()
    assert 'xSplit="1" ySplit="1"' in xml
    assert xml.count("<pane") == xml.count("<autoFilter") == 1
    assert 'autoFilter ref="A1:T2"' in xml


def test_a_sheet_of_the_summarys_name_is_the_users(tmp_path: Path) -> None:
    file = io.BytesIO()
    with xlsxwriter.Workbook(file) as book:
        page = book.add_worksheet("list")
        page.write_row(0, 0, ["email"])
        page.write_row(1, 0, [ANN])
        book.add_worksheet(TITLE.upper()).write_row(0, 0, ["mine"])
    sheets = sheets_of(cleaned(file.getvalue(), tmp_path / "list.xlsx"))
    assert list(sheets) == ["list", TITLE.upper(), f"{TITLE} 2"]
    assert sheets[TITLE.upper()] == [["mine"]]


TYPES: dict[str, tuple[list[str], str]] = {
    "whole numbers": (["1", "", "-7", "0", "99999999999"], "number"),
    "fractions": (["1.5", "0.25", "-0.1"], "number"),
    "postcodes": (["10115", "01067"], "text"),
    "telephone numbers": (["491511234567"], "text"),
    "prices": (["1.50"], "text"),
    "versions": (["1.1", "1.1.1"], "text"),
    "a sign": (["+1"], "text"),
    "minus nothing": (["-0"], "text"),
    "too many digits": (["99999999999.123456"], "text"),
    "an exponent": (["1e5"], "text"),
    "dates": (["2026-01-31", "1999-12-31"], "date"),
    "a day that was not": (["2026-02-30"], "text"),
    "before spreadsheets": (["1900-02-28"], "text"),
    "truths": (["true", "", "false"], "truth"),
    "a mixture": (["true", "1"], "text"),
    "nothing": (["", ""], "blank"),
    "spaces": (["1", " 2"], "text"),
    "other digits": (["\u0661"], "text"),
}


@pytest.mark.parametrize("case", TYPES)
def test_a_column_has_a_type_where_nothing_is_lost(case: str) -> None:
    cells, expected = TYPES[case]
    assert column_types([["x", cell] for cell in cells])[1] == expected


def test_dates_and_truths_of_a_text_are_such_in_the_workbook(tmp_path: Path) -> None:
    text = f"email,day,ok,zip\n{ANN},2026-01-31,true,01067\n{BOB},1999-12-31,false,10115\n"
    rows = next(iter(sheets_of(cleaned(text.encode(), tmp_path / "list.csv")).values()))
    assert [row[1] for row in rows[1:]] == [datetime.date(2026, 1, 31), datetime.date(1999, 12, 31)]
    assert [row[2:4] for row in rows[1:]] == [[True, "01067"], [False, "10115"]]


CELLS = st.one_of(
    st.from_regex(r"-?[0-9]{1,12}(\.[0-9]{1,6})?", fullmatch=True),
    st.dates().map(str),
    st.sampled_from(["true", "false", "", "x"]),
)


@given(cells=st.lists(CELLS, min_size=1, max_size=4))
def test_a_typed_cell_reads_as_the_text_it_was(
    cells: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("typed") / "list.csv"
    rows = [["email", "value"], *([ANN, cell] for cell in cells)]
    octets = cleaned("".join(",".join(row) + "\n" for row in rows).encode(), path)
    workbook_path = path.with_suffix(".xlsx")
    workbook_path.write_bytes(octets)
    with open_list(workbook_path) as source:
        assert [row.cells()[1] for row in source.rows()] == cells


def test_parts_are_packed_once(tmp_path: Path) -> None:
    once = cleaned(workbook(ROWS), tmp_path / "list.xlsx")
    for octets in (once, cleaned(once, tmp_path / "list.xlsx")):
        with zipfile.ZipFile(io.BytesIO(octets)) as package:
            assert len(set(package.namelist())) == len(package.namelist())
            assert package.testzip() is None
