"""A file of which something is not clear is read as is most likely, where somebody sees it first."""

from pathlib import Path

import pytest

from mailprobe.api.listfile.opening import List, open_list
from mailprobe.api.listfile.survey import BadList
from mailprobe.bench.lab.workbooks import row, sheet, text, workbook

ANN, BOB = "ann@shop.test", "bob@shop.test"


def addresses(source: List) -> list[str]:
    return [each.address for each in source.rows()]


def refused(path: Path) -> str:
    with pytest.raises(BadList) as error, open_list(path):
        pass
    return error.value.what


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (f"To,Cc\n{ANN},{BOB}\n,{ANN}\n", [BOB, ANN]),  # most addresses
        (f"{ANN},{BOB}\n{BOB},{ANN}\n", [ANN, BOB]),  # without a header, the first
        (f"email,note\nAnn,x\nBob,y\n{ANN},z\n", ["Ann", "Bob", ANN]),  # the only one with any
    ],
)
def test_the_column_with_most_addresses_is_taken(
    tmp_path: Path, content: str, read: list[str]
) -> None:
    path = tmp_path / "list.csv"
    path.write_text(content)
    assert "column" in refused(path)
    with open_list(path, guesses=True) as source:
        assert addresses(source) == read


@pytest.mark.parametrize(
    "above",
    [
        "Generated: 5/6/2025, 3:04:05 PM\n\nName,Email,Role\n",  # of an exporter
        "1. Summary\nMeeting title,Sales\nStart time,9:00\n\n2. Participants\nName,Email,Role\n",
        "#,Email,Parent Email\n",  # a column of numbers
        "#First Name, Email Address, Role\n",
        "Title\n#,Email,Role\n",
        "Last Name,Primary Email,Secondary Email\n",
        "# all users, 2026\nName,Email,Role\n",
    ],
)
def test_a_row_with_a_usual_name_for_addresses_is_the_header(tmp_path: Path, above: str) -> None:
    path = tmp_path / "list.csv"
    path.write_text(f"{above}1,{ANN},{BOB}\n2,{BOB},{ANN}\n")
    with open_list(path) as source:
        assert addresses(source) == [ANN, BOB]


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        (
            "page.html",
            "<table><tr><th>Team</th><th>Email</th></tr>"
            '<tr><td>a</td><td><a href="mailto:(nothing)">(nothing)</a></td></tr>'
            f'<tr><td>b</td><td><a href="mailto:{ANN}">write</a></td></tr></table>',
            ["(nothing)", f"{ANN}"],
        ),
        ("cards.vcf", f"BEGIN:VCARD\nVERSION:3.0\nFN:Ann\nEMAIL:{ANN}\n", [ANN]),
        ("no end.vcf", f"BEGIN:VCARD\nEMAIL:{ANN}\nBEGIN:VCARD\nEMAIL:{BOB}\n", [ANN, BOB]),
        ("an equals sign.vcf", f"BEGIN:VCARD\nFN:a=\nEMAIL:{ANN}\n", [ANN]),
        ("titled.vcf", f"My contacts\n\nBEGIN:VCARD\nEMAIL:{ANN}\nEND:VCARD\n", [ANN]),
        (
            "photo.vcf",
            f"BEGIN:VCARD\nPHOTO;ENCODING=b:AAA=\nEMAIL:{ANN}\nEND:VCARD\n",
            [ANN],
        ),
        (
            "vCard 2.1.vcf",
            "BEGIN:VCARD\nN;ENCODING=QUOTED-PRINTABLE:M=C3=BCller;J=\n=C3=BCrgen\n"
            f"EMAIL;ENCODING=QUOTED-PRINTABLE:{ANN.replace('@', '=40')}\nEND:VCARD\n",
            [ANN],
        ),
        ("thanks.txt", f"ribalba      {ANN}\n{BOB}\n", [ANN, BOB]),
        (
            "to.txt",
            f"Ann <{ANN}>, Bob <{BOB}>\nAnn <{ANN}>\n" * 60 + "Branko Lankester\n",
            [*[ANN, BOB, ANN] * 60, "Branko Lankester"],
        ),
    ],
)
def test_nothing_of_a_file_is_lost(
    tmp_path: Path, name: str, content: str, read: list[str]
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with open_list(path) as source:
        assert addresses(source) == read


def test_the_refusal_of_a_wrapped_list_says_how_its_items_become_lines(tmp_path: Path) -> None:
    path = tmp_path / "users.ndjson"
    path.write_text(f'{{"users":[{{"name":"Ann","email":"{ANN}"}},{{"email":"{BOB}"}}]}}\n')
    with pytest.raises(BadList) as refused, open_list(path):
        pass
    assert "jq -c '.users[]'" in refused.value.message


def test_a_row_as_wide_as_the_header_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text(f"person,kind,value\nBob,email,\nAnn,email,{ANN}\nBob,email,{BOB}\n")
    with open_list(path) as source:
        assert addresses(source) == ["", ANN, BOB]


def test_a_file_without_any_address_is_refused_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("a,b\nx,1\ny,2\n")
    with pytest.raises(BadList), open_list(path, guesses=True):
        pass


def test_prose_has_the_addresses_that_stand_in_it(tmp_path: Path) -> None:
    """Its other lines are rows without an address."""
    path = tmp_path / "letter.txt"
    path.write_text(f"Dear Clara,\nwrite to {ANN} or\n<{BOB}>, please.\nThank you,\nYours, Vera\n")
    refused(path)
    with open_list(path, guesses=True) as source:
        assert addresses(source) == ["", ANN, BOB, "", ""]


def test_the_first_visible_sheet_with_addresses_is_taken(tmp_path: Path) -> None:
    notes = sheet(row(1, text("A1", "Report")), row(2, text("A2", "of May")))
    people = sheet(row(1, text("A1", "email")), row(2, text("A2", ANN)))
    path = tmp_path / "book.xlsx"
    path.write_bytes(
        workbook(
            {"Notes": notes, "Old": people, "People": people, "More": people},
            states={"Old": "hidden"},
        )
    )
    refused(path)
    with open_list(path, guesses=True) as source:
        assert source.sheet is not None
        assert (source.sheet.entry.title, addresses(source)) == ("People", [ANN])
    with open_list(path, guesses=True, sheet="More") as source:
        assert source.sheet is not None
        assert source.sheet.entry.title == "More"


def test_a_line_that_is_not_utf_8_has_signs_of_replacement(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    good = f"email,n\n{ANN},Zo\u00eb\n{BOB},Zo\u00eb\n".encode()
    path.write_bytes(good + b"x@shop.test,Ren\xe9\n")
    refused(path)
    with open_list(path, guesses=True) as source:
        rows = list(source.rows())
        assert source.survey.encoding == "utf-8"
        assert rows[-1].cells() == ["x@shop.test", "Ren\N{REPLACEMENT CHARACTER}"]


def test_lines_in_two_encodings_are_read_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    western = "x@shop.test," + "La\u00ebtitia Ren\u00e9e \u00c0 C\u00f4t\u00e9" * 9
    path.write_bytes(f"email,n\n{ANN},Zo\u00eb\n".encode() + western.encode("cp1252"))
    refused(path)
    with open_list(path, guesses=True) as source:
        assert addresses(source) == [ANN, "x@shop.test"]
