"""Workbooks: the output keeps the input and adds result columns, or the input is refused."""

import csv
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import xlsxwriter
from hypothesis import given
from hypothesis import strategies as st
from python_calamine import CalamineWorkbook

from mailprobe.api.cli.cleaning.outputs import Order
from mailprobe.api.listfile.opening import OutputFormat, open_list
from mailprobe.api.listfile.results import ResultColumns
from mailprobe.api.listfile.survey import BadList
from mailprobe.api.listfile.workbook.numbers import number_text
from mailprobe.api.listfile.workbook.sheets import column_letters, column_of
from mailprobe.api.listfile.workbook.strings import unescaped
from mailprobe.api.listfile.writer import open_writer
from mailprobe.bench.lab.workbooks import number, packed, parts_of, row, sheet, text, workbook
from tests.api.cli.test_clean import clean, refused
from tests.api.fake_source import result_of

ANN, BOB = "ann@shop.test", "bob@shop.test"
HEAD = row(1, text("A1", "id"), text("B1", "email"))
SUMMARY = "mailprobe_summary"  # in the names of the parts that a cleaned workbook gets
SIMPLE = sheet(HEAD, row(2, number("A2", "7"), text("B2", ANN)))


def written(
    tmp_path: Path, octets: bytes, manner: OutputFormat | None = None, **said: Any
) -> bytes:
    path = tmp_path / "list.xlsx"
    path.write_bytes(octets)
    file = io.BytesIO()
    with open_list(path, **said) as source:
        for _ in source.rows():
            pass
        with open_writer(file, manner or source.manner, source, ResultColumns()) as write:
            for each in source.rows():
                write(each, result_of(each.address) if each.address else None)
    assert path.read_bytes() == octets
    return file.getvalue()


def complaint(tmp_path: Path, octets: bytes) -> str:
    with pytest.raises(BadList) as bad:
        written(tmp_path, octets)
    assert "\n" not in bad.value.message
    assert "list.xlsx" in bad.value.message
    return bad.value.message


def as_csv(tmp_path: Path, octets: bytes, **said: Any) -> list[list[str]]:
    output = written(tmp_path, octets, OutputFormat("csv"), **said).decode()
    return list(csv.reader(io.StringIO(output, newline="")))


def cells_of(octets: bytes, place: int = 0) -> list[list[Any]]:
    book = CalamineWorkbook.from_filelike(io.BytesIO(octets))
    return book.get_sheet_by_index(place).to_python(skip_empty_area=False)


def changed_parts(before: dict[str, bytes], after: dict[str, bytes]) -> set[str]:
    """The parts that differ, but those that every new sheet is entered in."""
    entered = {"[Content_Types].xml", "xl/workbook.xml", "xl/_rels/workbook.xml.rels"}
    return {name for name in before if before[name] != after[name]} - entered


def test_every_cell_and_part_comes_back_as_it_was(tmp_path: Path) -> None:
    """Types, formulas, errors, formats, phonetic text, and parts unknown to us."""
    rows = [
        row(1, text("A1", "id"), text("B1", "email"), text("D1", "x"), more=' spans="1:4" ht="20"'),
        row(
            2, number("A2", "1000000000000000"), text("B2", ANN), '<c r="D2" t="e"><v>#N/A</v></c>'
        ),
        '\n <row r="4"/>',
        row(5, number("A5", "1.5", 2), text("B5", BOB), "<c r='D5'><f>A5*2</f><v>3</v></c>"),
        '<row r="9"><c r="B9" t="s"><v>0</v></c><c r="C9" t="b"><v>1</v></c></row>\n',
    ]
    xml = sheet(
        *rows, before='<dimension ref="A1:D9"/><cols><col min="1" max="1" width="9"/></cols>',
        after='<mergeCells count="1"><mergeCell ref="A11:F11"/></mergeCells><new:thing xmlns:new="u"/>',
    )  # fmt: skip
    octets = workbook(
        {"list": xml, "other": SIMPLE},
        strings=f"<si><r><t>cy@</t></r><r><t>shop.test</t></r><rPh><t>x</t></rPh></si><si><t>{ANN}</t></si>",
        parts={"xl/media/image1.png": b"\x89PNG\0\1", "docProps/app.xml": "<x/>"},
    )
    before, after = parts_of(octets), parts_of(written(tmp_path, octets))
    assert list(before) == [name for name in after if SUMMARY not in name]
    assert changed_parts(before, after) == {"xl/worksheets/s1.xml"}
    result = after["xl/worksheets/s1.xml"].decode()
    added = re.compile(
        r'<c r="([G-X])([0-9]+)"(?: t="inlineStr"><is><t>[^<]*</t></is>|'
        r'(?: t="b")?><v>[^<]*</v>)</c>'
    )
    assert {int(found[2]) for found in added.finditer(result)} == {1, 2, 5, 9}
    own = xml.replace("A1:D9", "A1:X9").replace(' spans="1:4"', "")
    own = own.replace("</sheetData>", '</sheetData><autoFilter ref="A1:X9"/>')
    assert added.sub("", result) == own
    rows_after = cells_of(written(tmp_path, octets))
    assert rows_after[0][6] == "mailprobe_email"
    assert rows_after[1][6] == ANN
    assert rows_after[8][6] == "cy@shop.test"


def test_a_csv_gets_the_values_that_excel_shows(tmp_path: Path) -> None:
    xml = sheet(
        row(1, *(text(f"{letter}1", name) for letter, name in zip("ABCDEFG", ["email", *"bcdefg"], strict=True))),
        row(2, text("A2", ANN), number("B2", "1e15"), number("C2", "12345678901234567890"),
            '<c r="D2" t="e"><v>#DIV/0!</v></c>', number("E2", "45000", 1), number("F2", "1.5", 2),
            number("G2", "45000.25", 4)),
        row(3, text("A3", BOB), number("B3", "0.1"), number("C3", "1E+20"), number("D3", "-7"),
            number("E3", "0.5", 3), number("F3", "0.00001157407", 2), number("G3", "1E-7")),
    )  # fmt: skip
    rows = as_csv(tmp_path, workbook({"s": xml}))
    assert rows[1][1:7] == [
        "1000000000000000", "12345678901234567890", "#DIV/0!", "2023-03-15", "36:00:00", "2023-03-15 06:00:00",
    ]  # fmt: skip
    assert rows[2][1:7] == ["0.1", "100000000000000000000", "-7", "12:00:00", "0:00:01", "1e-07"]


def test_dates_count_from_1904_where_the_workbook_says_so(tmp_path: Path) -> None:
    xml = sheet(HEAD, row(2, number("A2", "43538", 1), text("B2", ANN)))
    octets = workbook({"s": xml}, book='<workbookPr date1904="1"/>')
    assert as_csv(tmp_path, octets)[1][0] == "2023-03-15"


@pytest.mark.parametrize("state", ["hidden", "veryHidden"])
def test_the_first_visible_sheet_is_cleaned(tmp_path: Path, state: str) -> None:
    hidden = sheet(HEAD, row(2, text("B2", "hidden@shop.test")))
    octets = workbook({"a": hidden, "b": SIMPLE, "c": SIMPLE}, states={"a": state})
    before, after = parts_of(octets), parts_of(written(tmp_path, octets))
    assert changed_parts(before, after) == {"xl/worksheets/s2.xml"}
    with open_list(tmp_path / "list.xlsx") as source:
        assert [each.address for each in source.rows()] == [ANN]
        assert "3 sheets; b is cleaned; --sheet names another" in "".join(source.remarks())
    assert "no sheet that is visible" in complaint(
        tmp_path, workbook({"a": SIMPLE}, states={"a": state})
    )


@pytest.mark.parametrize("wanted", ["Kunden", "kunden", "2"])
def test_a_sheet_is_named_by_its_title_or_its_number(tmp_path: Path, wanted: str) -> None:
    other = sheet(HEAD, row(2, text("B2", BOB)))
    octets = workbook({"a": SIMPLE, "Kunden": other, "c": SIMPLE}, states={"Kunden": "hidden"})
    before, after = parts_of(octets), parts_of(written(tmp_path, octets, sheet=wanted))
    assert changed_parts(before, after) == {"xl/worksheets/s2.xml"}
    with open_list(tmp_path / "list.xlsx", sheet=wanted) as source:
        assert [each.address for each in source.rows()] == [BOB]


@pytest.mark.parametrize("wanted", ["d", "0", "4", ""])
def test_the_error_of_an_unknown_sheet_lists_the_sheets(tmp_path: Path, wanted: str) -> None:
    path = tmp_path / "list.xlsx"
    path.write_bytes(workbook({"a": SIMPLE, "b": SIMPLE, "c": SIMPLE}))
    sheets = r"has no sheet .* \(sheets: a, b, c\)"
    with pytest.raises(BadList, match=sheets), open_list(path, sheet=wanted):
        pass
    path = tmp_path / "list.csv"
    path.write_text("email\nann@shop.test\n")
    with pytest.raises(BadList, match="--sheet is for workbooks"), open_list(path, sheet=wanted):
        pass


def test_a_headless_sheet_moves_down_where_nothing_speaks_of_its_rows(tmp_path: Path) -> None:
    xml = sheet(
        row(1, number("A1", "7"), text("B1", ANN)), "<row r='3'><c r='B3' t='s'><v>0</v></c></row>",
        before='<dimension ref="A1:B3"/>',
    )  # fmt: skip
    octets = workbook({"s": xml}, strings=f"<si><t>{BOB}</t></si>")
    rows = cells_of(written(tmp_path, octets))
    assert rows[0][:3] == ["column_1", "column_2", "email"]
    assert rows[1][:3] == [7, ANN, ANN]
    assert rows[2][:3] == ["", "", ""]
    assert rows[3][:3] == ["", BOB, BOB]
    path = tmp_path / "list.xlsx"
    for other in (
        workbook({"s": xml, "t": SIMPLE}, strings=f"<si><t>{BOB}</t></si>"),
        workbook(
            {"s": xml.replace("<c r='B3' t='s'>", "<c r='B3' t='s'><f>A1</f>")},
            strings=f"<si><t>{BOB}</t></si>",
        ),
    ):
        path.write_bytes(other)
        assert "no header in the sheet s" in refused(Order(path, tmp_path / "o.xlsx"))
        clean(Order(path, tmp_path / "o.csv", force=True))


def test_titles_above_the_header_stay(tmp_path: Path) -> None:
    xml = sheet(row(1, text("A1", "Our customers")), row(3, text("A3", "id"), text("B3", "email")),
                row(4, number("A4", "7"), text("B4", ANN)))  # fmt: skip
    rows = cells_of(written(tmp_path, workbook({"s": xml})))
    assert rows[0][0] == "Our customers"
    assert rows[2][:3] == ["id", "email", "mailprobe_email"]
    assert rows[3][:3] == [7, ANN, ANN]
    assert cells_of(written(tmp_path, workbook({"s": xml}), skip_lines=2)) == rows


def test_a_formula_without_a_value_is_no_blank(tmp_path: Path) -> None:
    xml = sheet(HEAD, row(2, text("B2", ANN)), row(3, '<c r="B3"><f>A1&amp;"@x.test"</f></c>'))
    assert "row 2 under the header" in complaint(tmp_path, workbook({"s": xml}))


def test_names_with_prefixes_and_cells_without_places(tmp_path: Path) -> None:
    """The Open XML SDK and small generators write such files."""
    xml = (
        SIMPLE.replace("xmlns=", "xmlns:x=")
        .replace("<", "<x:")
        .replace("<x:/", "</x:")
        .replace("<x:?", "<?")
    )
    assert cells_of(written(tmp_path, workbook({"s": xml})))[1][:3] == [7, ANN, ANN]
    bare = re.sub(' r="[A-Z0-9]+"', "", SIMPLE)
    assert as_csv(tmp_path, workbook({"s": bare}))[1][:3] == ["7", ANN, ANN]


def test_a_workbook_with_macros_becomes_one_without(tmp_path: Path) -> None:
    macros = "application/vnd.ms-excel.sheet.macroEnabled.main+xml"
    octets = workbook({"s": SIMPLE}, book_type=macros, parts={"xl/vbaProject.bin": b"\0"})
    after = parts_of(written(tmp_path, octets))
    assert "xl/vbaProject.bin" not in after
    assert macros.encode() not in after["[Content_Types].xml"]


def test_text_that_xml_cannot_hold_is_escaped(tmp_path: Path) -> None:
    odd = 'a"&amp;&lt;_x0041_\u00e9@shop.test'.replace("&amp;", "&").replace("&lt;", "<")
    xml = sheet(HEAD, row(2, text("B2", odd.replace("&", "&amp;").replace("<", "&lt;"))))
    after = parts_of(written(tmp_path, workbook({"s": xml})))["xl/worksheets/s1.xml"].decode()
    assert 'a"&amp;&lt;A\u00e9@shop.test</t></is></c>' in after


def test_half_of_a_character_stays_the_escape_that_it_is() -> None:
    assert unescaped("a_xD83D__xDE00_b_xD800_c") == "a\U0001f600b_xD800_c"


@pytest.mark.parametrize(
    ("octets", "words"),
    [
        (workbook({"s": SIMPLE})[:-30], "can be read"),
        (packed({"a.txt": "x"}), "unpack it first"),
        (packed({"mimetype": "x", "content.xml": "x"}), "OpenDocument"),
        (packed({"xl/workbook.bin": "x", "[Content_Types].xml": "<x/>"}), "binary format"),
        (workbook({"s": SIMPLE[:-30]}), "can be read"),
        (workbook({"s": SIMPLE.replace("r=\"2\"", "r=\"0\"")}), "can be read"),
        (workbook({"s": SIMPLE.replace("r=\"A2\"", "r=\"?2\"")}), "can be read"),
        (workbook({"s": sheet(HEAD, row(2, '<c r="B2" t="s"><v>5</v></c>'))}), "can be read"),
        (workbook({"s": "<!DOCTYPE x [<!ENTITY a 'b'>]>" + SIMPLE.partition("\n")[2]}), "can be read"),
        (workbook({"s": SIMPLE}, book="<a>"), "can be read"),
        (workbook({"s": SIMPLE}, parts={"xl/_rels/workbook.xml.rels": "<a"}), "can be read"),
        (workbook({"s": SIMPLE}, parts={"_rels/.rels": "\0"}), "can be read"),
        (workbook({"s": SIMPLE}, parts={"xl/styles.xml": "<a></b>"}), "can be read"),
        (workbook({"s": SIMPLE.replace('"UTF-8"', '"ISO-8859-1"')}), "can be read"),
        (workbook({"s": sheet(HEAD)}), "no rows under it"),
        (workbook({"s": sheet()}), "nothing but blank rows"),
    ],
)  # fmt: skip
def test_an_unreadable_workbook_is_reported(tmp_path: Path, octets: bytes, words: str) -> None:
    assert words in complaint(tmp_path, octets)


def test_damage_within_a_part_is_reported(tmp_path: Path) -> None:
    octets = bytearray(workbook({"s": SIMPLE}))
    with zipfile.ZipFile(io.BytesIO(octets)) as package:
        info = package.getinfo("xl/worksheets/s1.xml")
    begin = info.header_offset + 30 + len(info.filename)
    octets[begin + 20] ^= 0xFF
    assert "can be read" in complaint(tmp_path, bytes(octets))


@given(place=st.integers(0, 16_383))
def test_columns_have_letters(place: int) -> None:
    assert column_of(column_letters(place) + "7") == place


@given(value=st.integers(-(10**30), 10**30))
def test_all_digits_of_a_number_come_back(value: int) -> None:
    assert number_text(str(value), "") == str(value)


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=10)
values = st.none() | texts | st.integers(-(10**12), 10**12) | st.booleans() | st.floats(-1e9, 1e9)


@given(rows=st.lists(st.lists(values, min_size=3, max_size=3), max_size=6))
def test_any_sheet_comes_back_cell_for_cell(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[Any]]
) -> None:
    file = io.BytesIO()
    with xlsxwriter.Workbook(
        file, {"strings_to_urls": False, "strings_to_formulas": False}
    ) as book:
        page = book.add_worksheet()
        for place, each in enumerate(
            [["email", "a", "b", "c"], *([ANN, *each] for each in rows), [BOB]]
        ):
            page.write_row(place, 0, each)
    before = cells_of(file.getvalue())
    after = cells_of(written(tmp_path_factory.getbasetemp(), file.getvalue()))
    width = len(before[0])
    assert [each[:width] for each in after] == before
    assert [each[width] for each in after[1:]] == [*[ANN] * len(rows), BOB]
