"""List files with any delimiter, encoding and line ending are read and written back."""

import csv
import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import xlsxwriter
from hypothesis import given
from hypothesis import strategies as st
from python_calamine import CalamineWorkbook

from mailprobe.api.cli.cleaning.outputs import output_path
from mailprobe.api.listfile.bounds import CELL_CHARACTERS_MAX
from mailprobe.api.listfile.opening import OutputFormat, ReadOptions, open_list
from mailprobe.api.listfile.replacing import replacing
from mailprobe.api.listfile.results import RESULT_FIELDS, ResultColumns
from mailprobe.api.listfile.survey import BadList
from mailprobe.api.listfile.writer import open_writer, output_manner
from tests.api.fake_source import result_of

ANN, BOB = "ann@shop.test", "bob@shop.test"


def addresses(path: Path, column: str | None = None) -> list[str]:
    with open_list(path, column=column) as source:
        return [row.address for row in source.rows()]


def complaint(path: Path, column: str | None = None) -> str:
    with pytest.raises(BadList) as bad, open_list(path, column=column) as source:
        for _ in source.rows():
            pass
    assert bad.value.exit_code == 2
    assert "\n" not in bad.value.message
    return bad.value.message


def rewritten(
    path: Path, manner: OutputFormat | None = None, *, quotes: bool | None = None
) -> bytes:
    """Return the list with results, as `clean` writes it."""
    file = io.BytesIO()
    with open_list(path, ReadOptions(quotes=quotes)) as source:
        for _ in source.rows():
            pass
        with open_writer(file, manner or source.manner, source, ResultColumns()) as write:
            for row in source.rows():
                write(row, result_of(row.address) if row.address else None)
    return file.getvalue()


# file name, octets -> addresses
FILES: dict[str, tuple[str, bytes, list[str]]] = {
    "comma": ("a.csv", b"name,email\nAnn,ann@shop.test\nBob,bob@shop.test\n", [ANN, BOB]),
    "semicolon": ("a.csv", b"name;email;price\nAnn;ann@shop.test;1,50\n", [ANN]),
    "tab in a .csv": ("a.csv", b"name\temail\nAnn\tann@shop.test\n", [ANN]),
    "tab": ("a.tsv", b"name\temail\nA, B\tann@shop.test\n", [ANN]),
    "pipe": ("a.txt", b"name|email\nAnn|ann@shop.test\n", [ANN]),
    "crlf": ("a.csv", b"name,email\r\nAnn,ann@shop.test\r\n", [ANN]),
    "old mac": ("a.csv", b"name,email\rAnn,ann@shop.test\r", [ANN]),
    "no end": ("a.csv", b"name,email\nAnn,ann@shop.test", [ANN]),
    "quotes": ("a.csv", b'"na""me","e-mail"\n"Ann, B\nC","ann@shop.test"\n', [ANN]),
    "sep line": ("a.csv", b"sep=;\r\nname;email\r\nAnn;ann@shop.test\r\n", [ANN]),
    "utf-8 bom": ("a.csv", "email,name\nann@shop.test,Jürgen\n".encode("utf-8-sig"), [ANN]),
    "utf-16": ("a.csv", "email\tname\nann@shop.test\tJürgen\n".encode("utf-16"), [ANN]),
    "utf-16 bare": ("a.csv", "email,name\nann@shop.test,J\n".encode("utf-16-le"), [ANN]),
    "utf-16 be": ("a.csv", "email,name\nann@shop.test,J\n".encode("utf-16-be"), [ANN]),
    "utf-32": ("a.csv", "email,name\nann@shop.test,J\n".encode("utf-32"), [ANN]),
    "latin-1": ("a.csv", "name,email\nJürgen,ann@shop.test\n".encode("latin-1"), [ANN]),
    "windows": ("a.csv", "name,email\n“Ann”,ann@shop.test\n".encode("cp1252"), [ANN]),
    "white space": ("a.csv", b"email,n\n  ann@shop.test\xc2\xa0 ,1\n", [ANN]),
    "blank rows": ("a.csv", b"email,n\n\nann@shop.test,1\n,\n,2\n", ["", ANN, "", ""]),
    "blank lines first": ("a.csv", b"\n\nemail,n\nann@shop.test,1\n", [ANN]),
    "ragged": ("a.csv", b"n,email\n1\n1,ann@shop.test,x,y\n", ["", ANN]),
    "headless": ("a.csv", b"Ann,ann@shop.test\nBob,bob@shop.test\n", [ANN, BOB]),
    "headless, first misspelt": ("a.csv", b"1,ann@@shop\n2,bob@shop.test\n3,c@d.test\n",
                                 ["ann@@shop", BOB, "c@d.test"]),
    "one column": ("a.csv", b"contact\nann@shop.test\n", [ANN]),
    "one column, headless": ("a.csv", b"ann@shop.test\nbob@shop.test\n", [ANN, BOB]),
    "lines": ("a.txt", b"ann@shop.test\n\n bob@shop.test \n", [ANN, "", BOB]),
    "lines, no ending": ("a", b"ann@shop.test\n", [ANN]),
    "lines with a header": ("a.txt", b"E-Mail\nann@shop.test\n", [ANN]),
    "lines, first is none": ("a.txt", b"hello\nann@shop.test\n", ["hello", ANN]),
    "lines with quotes": ("a.txt", b'"ann@shop.test"\n"a b"@shop.test\n',
                          [ANN, '"a b"@shop.test']),
    "by content": ("a.csv", b"id,contact,n\n1,ann@shop.test,x\n2,bob@shop.test,y\n", [ANN, BOB]),
    "by content and name": ("a.csv", b"id,my mail,cc\n1,ann@shop.test,z@z.test\n", [ANN]),
    "two names, one full": ("a.csv", b"mail,email\n,ann@shop.test\n", [ANN]),
    "German": ("a.csv", b"Name;E-Mail-Adresse\nA;ann@shop.test\n", [ANN]),
    "Spanish": ("a.csv", "x,Correo electrónico\nA,ann@shop.test\n".encode(), [ANN]),
    "French": ("a.csv", b"Nom,Courriel\nA,ann@shop.test\n", [ANN]),
    "objects": ("a.ndjson", b'{"email":"ann@shop.test"}\n\n{"x":1}\n', [ANN, "", ""]),
    "objects, other ending": ("a.txt", b'{"mail":"ann@shop.test"}\n', [ANN]),
    "objects by content": ("a.jsonl", b'{"a":1,"to":" ann@shop.test "}\n', [ANN]),
    "strings": ("a.ndjson", b'"ann@shop.test"\n"bob@shop.test"\n', [ANN, BOB]),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_a_list_is_read_as_it_was_meant(tmp_path: Path, case: str) -> None:
    name, octets, expected = FILES[case]
    path = tmp_path / name
    path.write_bytes(octets)
    assert addresses(path) == expected


def test_names_keep_their_letters_in_every_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "cp1252", "latin-1"):
        path.write_bytes("name,email\nJürgen,ann@shop.test\n".encode(encoding))
        with open_list(path, column=None) as source:
            assert [row.cells()[0] for row in source.rows()] == ["Jürgen"]


BAD: dict[str, tuple[str, bytes, str]] = {
    "empty": ("a.csv", b"", "a.csv is empty"),
    "white space": ("a.csv", b" \n\n", "is empty"),
    "blank cells": ("a.csv", b",,\n,,\n", "nothing but blank rows"),
    "header only": ("a.csv", b"name,email\n", "a header and no rows"),
    "header only, lines": ("a.txt", b"email\n\n", "a header and no rows"),
    "no addresses": ("a.csv", b"name,age\nAnn,3\n", "no column of addresses"),
    "ambiguous": ("a.csv", b"a,b\na@b.test,c@d.test\n", "several columns of addresses (a, b)"),
    "ambiguous names": ("a.csv", b"email,mail\na@b.test,c@d.test\n", "(email, mail)"),
    "ambiguous, headless": ("a.csv", b"a@b.test,c@d.test\n", "--column NUMBER"),
    "image": ("a.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not text but binary"),
    "random": ("a.csv", bytes(range(256)) * 4, "not text but binary"),
    "gzip": ("a.csv", b"\x1f\x8b\x08\0\0", "damaged gzip"),
    "pdf": ("a.txt", b"%PDF-1.7", "PDF"),
    "old excel": ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0", "old Office format"),
    "encrypted": ("a.xlsx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
                  + "EncryptedPackage".encode("utf-16-le"), "password"),
    "zip, no workbook": ("a.xlsx", b"PK\x03\x04" + b"\0" * 60, "not an XLSX workbook"),
    "text called xlsx": ("a.xlsx", b"email\nann@shop.test\n", "whatever its name says"),
    "utf-16 cut": ("a.csv", "email,n\nann@shop.test,J\n".encode("utf-16")[:-1], "decoded"),
    "broken json": ("a.ndjson", b'{"email":"ann@shop.test"}\n{"email":\n', "line 2: is not a whole JSON"),
    "number": ("a.ndjson", b"17\n", "line 1: is neither"),
    "open quote": ("a.csv", b'n,email\n1,ann@shop.test\n2,"bob@shop.test\n3,c@d.test\n',
                   "line 3: a quote opens"),
}  # fmt: skip


SEVERAL = {
    "ann@shop.test; bob@shop.test": ANN,
    "Ann <ann@shop.test>, Bob <bob@shop.test>": ANN,
    '"Lee, Ann" <ann@shop.test>, bob@shop.test': ANN,
    "ann@shop.test (bob@shop.test)": ANN,
    "ann@shop.test | bob@shop.test": ANN,
    "new:\nann@shop.test\nbob@shop.test": ANN,
}
ONE = {
    '"a@b c@d"@shop.test': '"a@b c@d"@shop.test',
    "ann@bob@shop.test": "ann@bob@shop.test",
    "ann@shop.test ann@shop.test": ANN,
    "ann@shop.test, tel. 12": ANN,
    "@,@,@,@": "@,@,@,@",
}


@pytest.mark.parametrize(("cell", "expected"), [*SEVERAL.items(), *ONE.items()])
def test_several_addresses_in_a_cell_are_noted(tmp_path: Path, cell: str, expected: str) -> None:
    quoted = cell.replace('"', '""')
    (tmp_path / "a.csv").write_text(f'n,email\n1,bob@shop.test\n2,"{quoted}"\n')
    (tmp_path / "a.ndjson").write_text(
        json.dumps({"email": BOB}) + "\n" + json.dumps({"email": cell})
    )
    for name in ("a.csv", "a.ndjson"):
        with open_list(tmp_path / name) as source:
            assert [row.address for row in source.rows()] == [BOB, expected]
            notes = "".join(source.remarks())
        note = "1 row has several addresses in one cell, the first is row 2; the first address"
        assert (note in notes) == (cell in SEVERAL), notes


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_no_list_is_refused_with_one_line(tmp_path: Path, case: str) -> None:
    name, octets, words = BAD[case]
    (tmp_path / name).write_bytes(octets)
    message = complaint(tmp_path / name)
    assert words in message
    assert name in message


def test_a_missing_file_or_a_directory_is_refused(tmp_path: Path) -> None:
    assert "No such file" in complaint(tmp_path / "none.csv")
    assert "is a directory" in complaint(tmp_path)


def test_the_error_of_an_open_quote_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('n,email\n1,"ann@shop.test\n' + "2,bob@shop.test\n" * 100_000)
    assert "line 2: a quote opens" in complaint(path)


def test_an_object_with_several_addresses_stays_one_row(tmp_path: Path) -> None:
    """Without its ending, such a line was taken for the recipients of a mail."""
    path = tmp_path / "a.json"
    path.write_text(f'{{"id":1,"to":"{ANN}","cc":"{BOB}"}}\n{{"id":2,"to":"{BOB}","cc":"{ANN}"}}\n')
    assert addresses(path, "to") == [ANN, BOB]
    assert "several columns of addresses (to, cc)" in complaint(path)
    path.write_text(f'[{{"id":1,"to":"{ANN}"}},{{"id":2,"to":"{BOB}"}}]')
    assert addresses(path) == [ANN, BOB]


LONGEST = "x" * CELL_CHARACTERS_MAX


@pytest.mark.parametrize(
    "cell",
    [LONGEST, f'"{LONGEST}"', f'"{LONGEST[2:]},\n"', f'"{LONGEST[4:]}""""\n\n"', f'{LONGEST[1:]}"'],
    ids=["bare", "quoted", "over two lines", "with doubled quotes", "with a quote in it"],
)
def test_a_cell_has_as_many_characters_as_a_spreadsheets(tmp_path: Path, cell: str) -> None:
    """Quotes around a cell are none of them, and a doubled quote in it is one."""
    path = tmp_path / "a.csv"
    path.write_text(f"email,note\n{ANN},{cell}\n")
    assert addresses(path) == [ANN]
    path.write_text(f"email,note\n{ANN},{cell.replace('x', 'xx', 1)}\n")
    assert "longer than 32,767 characters" in complaint(path)


@pytest.mark.parametrize(
    ("column", "expected"),
    [("to", ANN), ("TO ", ANN), ("3", ANN), ("cc", BOB), ("2", BOB), ("1", "7")],
)
def test_a_column_is_taken_by_name_or_number(tmp_path: Path, column: str, expected: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"2nd,cc,to\n7,bob@shop.test,ann@shop.test\n")
    assert addresses(path, column) == [expected]


def test_an_unknown_or_ambiguous_column_is_refused_with_the_choices(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,a,b\nx,ann@shop.test,y\n")
    assert "columns: a, a, b" in complaint(path, "c")
    assert "its number" not in complaint(path, "4")
    assert "give one's number instead: 1, 2" in complaint(path, "a")


def test_a_name_given_makes_a_header_of_what_looks_like_none(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"me@work,n\nann@shop.test,1\n")
    assert addresses(path, "me@work") == [ANN]


def test_results_stand_behind_the_rows_own_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"name;email\r\nAnn;ann@shop.test\r\n;\r\n")
    lines = rewritten(path).decode().split("\r\n")
    assert lines[0].startswith("name;email;mailprobe_email;valid;status;")
    assert lines[0].endswith(";latency_ms;reason;blame;attempts;light")
    assert lines[1] == (
        "Ann;ann@shop.test;ann@shop.test;true;deliverable;0.97;;false;false;false;false;false;"
        "true;mx.shop.test;;12;accepted;;1;GREEN_LIGHT"
    )
    assert lines[2] == ";" * (len(RESULT_FIELDS) + 1)


def test_a_result_never_takes_a_column_of_the_list() -> None:
    names = ResultColumns().names(["email", "status", "light", "mailprobe_light"])
    assert names[0] == "mailprobe_email"
    assert names[2] == "mailprobe_status"
    assert names[-1] == "mailprobe_mailprobe_light"
    assert "valid" in names


def test_a_mark_at_the_beginning_is_kept_where_there_was_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("email,n\nann@shop.test,ü\n".encode("utf-8-sig"))
    assert rewritten(path).startswith(b"\xef\xbb\xbfemail,n,")
    path.write_bytes("email,n\nann@shop.test,ü\n".encode())
    assert rewritten(path).startswith(b"email,n,")


def test_lines_are_not_wider_than_a_header_that_they_do_not_have(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(f"{ANN}\nn/a\n{BOB}\n")
    with open_list(path) as source:
        assert [row.address for row in source.rows()] == [ANN, "", BOB]
        assert list(source.remarks()) == []


def test_plain_lines_become_a_table_of_results(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"ann@shop.test\n\nhello\n")
    rows = list(csv.reader(io.StringIO(rewritten(path).decode())))
    assert rows[0] == list(RESULT_FIELDS)
    assert [row[0] for row in rows[1:]] == [ANN, "", "hello"]
    assert {len(row) for row in rows} == {len(RESULT_FIELDS)}


def test_objects_keep_their_text_to_the_letter(tmp_path: Path) -> None:
    """`clean` keeps numbers beyond 64 bits, duplicate names and the order."""
    path = tmp_path / "a.ndjson"
    line = '{ "id": 123456789012345678901234567890, "x": 1.0, "x": 2, "email": "ann@shop.test"'
    path.write_text(line + " }\n\n{}\n")
    first, blank, empty = rewritten(path).decode().splitlines()
    assert first.startswith(line + ',"mailprobe_email":"ann@shop.test","valid":true,')
    assert json.loads(blank)["light"] is None
    assert json.loads(empty)["status"] is None


def test_formats_turn_into_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"email,,x,x\nann@shop.test,1,2,3,4\n")
    line = json.loads(rewritten(path, OutputFormat("ndjson")))
    assert [line[k] for k in ("email", "column_2", "x", "x_2", "column_5")] == [ANN, *"1234"]
    assert line["valid"] is True
    path = tmp_path / "a.ndjson"
    path.write_bytes(b'{"email":"ann@shop.test","n":[1]}\n{"email":null,"more":true}\n')
    rows = list(csv.reader(io.StringIO(rewritten(path, OutputFormat("csv")).decode())))
    assert rows[0][:4] == ["email", "n", "more", "mailprobe_email"]
    assert rows[1][:3] == [ANN, "[1]", ""]
    assert rows[2][:4] == ["", "", "true", ""]


def sheet(path: Path, rows: list[list[Any]]) -> None:
    with xlsxwriter.Workbook(str(path)) as book:
        page = book.add_worksheet()
        for number, row in enumerate(rows):
            page.write_row(number, 0, row)


def sheet_of(octets: bytes) -> list[list[Any]]:
    return CalamineWorkbook.from_filelike(io.BytesIO(octets)).get_sheet_by_index(0).to_python()


def test_a_workbook_is_read_and_written_with_its_types(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    sheet(path, [["id", "email", "n"], [7, ANN, 1.5], ["", "", ""], [491511234567, BOB, True]])
    assert addresses(path) == [ANN, "", BOB]
    rows = sheet_of(rewritten(path))
    assert rows[0][:4] == ["id", "email", "n", "mailprobe_email"]
    assert rows[1][:5] == [7, ANN, 1.5, ANN, True]
    assert set(rows[2]) == {""}
    assert rows[3][:3] == [491511234567, BOB, True]


def test_no_cell_becomes_a_formula(tmp_path: Path) -> None:
    """A spreadsheet runs what begins with = + - @; only the list's own cells stay as they are."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"email,n\n=1+1@shop.test,=SUM(A1)\n")
    assert list(csv.reader(io.StringIO(rewritten(path).decode())))[1][:3] == [
        "=1+1@shop.test", "=SUM(A1)", "'=1+1@shop.test",
    ]  # fmt: skip
    rows = sheet_of(rewritten(path, OutputFormat("xlsx")))
    assert rows[1][:2] == ["=1+1@shop.test", "=SUM(A1)"]


@pytest.mark.parametrize("address", ["=1+1@shop.test", "+a@shop.test"])
def test_an_address_escaped_for_spreadsheets_is_read_unescaped(
    tmp_path: Path, address: str
) -> None:
    """A list of lines has no other column of addresses when it is cleaned again."""
    lines, again = tmp_path / "a.txt", tmp_path / "b.csv"
    lines.write_text(f"{address}\nann@shop.test\n")
    again.write_bytes(rewritten(lines))
    assert addresses(again) == [address, ANN]


def test_a_host_named_like_a_formula_is_defused(tmp_path: Path) -> None:
    import msgspec

    path = tmp_path / "a.csv"
    path.write_bytes(b"email,n\nann@shop.test,1\n")
    evil = msgspec.structs.replace(result_of(ANN), mx_host="=cmd|x.test")
    file = io.BytesIO()
    with open_list(path, column=None) as source:
        (row,) = source.rows()
        with open_writer(file, source.manner, source, ResultColumns()) as write:
            write(row, evil)
    assert "'=cmd|x.test" in file.getvalue().decode()


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("a.csv", OutputFormat("csv", ";", "\r\n"), OutputFormat("csv", ";", "\r\n")),
        ("a.csv", OutputFormat("csv", "\t"), OutputFormat("csv", ",")),
        ("a.tsv", OutputFormat("csv", ","), OutputFormat("csv", "\t")),
        ("a.xlsx", OutputFormat("csv"), OutputFormat("xlsx")),
        ("a.JSONL", OutputFormat("csv"), OutputFormat("ndjson")),
        ("a.txt", OutputFormat("ndjson"), OutputFormat("csv")),
        ("a.dat", OutputFormat("ndjson"), OutputFormat("ndjson")),
        (None, OutputFormat("ndjson"), OutputFormat("ndjson")),
    ],
)
def test_the_ending_says_the_format(
    name: str | None, given: OutputFormat, expected: OutputFormat
) -> None:
    assert output_manner(Path(name) if name else None, given) == expected


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("before")

    def write(fail: bool) -> None:
        with replacing(path) as file:
            file.write(b"after")
            if fail:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(fail=True)
    assert [p.name for p in tmp_path.iterdir()] == ["out.csv"]
    assert path.read_text() == "before"
    write(fail=False)
    assert path.read_text() == "after"
    assert [p.name for p in tmp_path.iterdir()] == ["out.csv"]


# Other control characters make a file binary.
cells = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], include_characters="\t\r\n"),
    max_size=12,
)
tables = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), max_size=8)
)


@given(rows=tables, delimiter=st.sampled_from(",;\t|"), line_end=st.sampled_from(["\n", "\r\n"]))
def test_every_row_comes_out_once_and_unchanged(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], delimiter: str, line_end: str
) -> None:
    width = len(rows[0]) if rows else 1
    header = ["email", *(f"c{place}" for place in range(width))]
    table = [header, *([ANN, *row] for row in rows), [BOB, *[""] * width]]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator=line_end, quoting=csv.QUOTE_ALL).writerows(
        table
    )
    path = tmp_path_factory.getbasetemp() / "round.csv"
    path.write_bytes(text.getvalue().encode())
    # without it, lines in a cell that look like rows are refused
    output = rewritten(path, quotes=True).decode()
    got = list(csv.reader(io.StringIO(output, newline=""), delimiter=delimiter))
    assert [row[: width + 1] for row in got] == table
    assert {len(row) for row in got} == {width + 1 + len(RESULT_FIELDS)}


@given(
    rows=st.lists(
        st.dictionaries(cells, st.none() | st.integers() | cells | st.lists(st.booleans())),
        max_size=8,
    )
)
def test_every_object_comes_out_once_and_unchanged(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    objects = [{**row, "email": ANN} for row in rows] or [{"email": ANN}]
    path = tmp_path_factory.getbasetemp() / "round.ndjson"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in objects))
    got = [json.loads(line) for line in rewritten(path).decode().split("\n")[:-1]]
    for before, after in zip(objects, got, strict=True):
        assert {key: after[key] for key in before} == before


# With a letter at the end: a column of numbers, truths or dates comes out typed. Calamine does not
# decode all characters that XML cannot hold: the next test reads these.
sheet_cells = st.text(
    st.characters(
        codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"
    ),
    max_size=12,
).map(lambda text: f"{text}x" if text else text)


@given(rows=st.lists(st.lists(sheet_cells, min_size=3, max_size=3), max_size=5))
def test_every_sheet_row_comes_out_once_and_unchanged(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.csv"
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["email", "a", "b", "c"], *([ANN, *row] for row in rows), [BOB]])
    path.write_bytes(text.getvalue().encode())
    got = sheet_of(rewritten(path, OutputFormat("xlsx")))
    assert [row[1:4] for row in got[1:-1]] == rows


def test_characters_that_xml_cannot_hold_are_escaped_in_a_sheet(tmp_path: Path) -> None:
    """As ECMA-376 has it (ST_Xstring), and so is a text that looks like an escape."""
    cells = ["\ufffex", "a\uffffx", "a\x01x", "_x0041_x"]
    source, cleaned = tmp_path / "a.csv", tmp_path / "a.xlsx"
    source.write_text("email,note\n" + "".join(f"{ANN},{cell}\n" for cell in cells), "utf-8")
    cleaned.write_bytes(rewritten(source, OutputFormat("xlsx")))
    with zipfile.ZipFile(cleaned) as parts:
        written = b"".join(map(parts.read, parts.namelist())).decode("utf-8", "replace")
    for escaped in ("_xFFFE_x", "a_xFFFF_x", "a_x0001_x", "_x005F_x0041_x"):
        assert escaped in written
    assert addresses(cleaned, "note") == cells


# Compressed lists


@pytest.mark.parametrize("name", ["list.csv.gz", "list.gz", "list.csv"])
def test_a_compressed_list_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"n,email\n1,ann@shop.test\n"))
    assert addresses(path) == [ANN]
    assert output_path(tmp_path / "list.csv.gz") == tmp_path / "list.verified.csv"


@pytest.mark.parametrize("length", [3, 12, 30, -4])
def test_a_damaged_compressed_list_is_reported(tmp_path: Path, length: int) -> None:
    path = tmp_path / "list.csv.gz"
    path.write_bytes(gzip.compress(b"email\nann@shop.test\n" * 9)[:length])
    assert "damaged gzip" in complaint(path)


def test_a_list_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.csv.gz"
    path.write_bytes(gzip.compress(b"email\n" + b"\0" * (1 << 22)))
    reading = ReadOptions(unpacked_octets_max=1 << 21)
    with pytest.raises(BadList, match="unpacks to more than 2 MiB"), open_list(path, reading):
        pass
