"""`clean` verifies the addresses in cells as people have them, in one column or several."""

import csv
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from mailprobe.api.cli.cleaning.outputs import Order
from mailprobe.api.cli.cleaning.run import clean_list
from mailprobe.api.cli.output.report import summary_line
from mailprobe.api.cli.output.summary import Summary
from mailprobe.api.errors import Misuse
from mailprobe.api.listfile.opening import ReadOptions
from mailprobe.api.listfile.selection import Selection
from mailprobe.api.listfile.survey import BadList
from mailprobe.api.listfile.writer import check_ending
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.verdict import Outcome
from tests.api.cli.cleaning.test_passes import ScriptedSource

ANN, BOB, CY = "ann@shop.test", "nobody@shop.test", "catch@shop.test"
CAUSES = {
    BOB: [(Outcome.UNDELIVERABLE, VerdictCause("no_mailbox", "address"))],
    CY: [(Outcome.CATCH_ALL, VerdictCause("catch_all", "host"))],
    "ann (at) shop.test": [(Outcome.SYNTAX, VerdictCause("syntax", "address"))],
}
GREEN, YELLOW, RED = "GREEN_LIGHT", "YELLOW_LIGHT", "RED_LIGHT"


def cleaned(path: Path, order: Order) -> tuple[Summary, list[dict[str, str]]]:
    """The summary, and the rows of the output."""

    @asynccontextmanager
    async def open_source() -> AsyncIterator[ScriptedSource]:
        yield ScriptedSource(CAUSES)

    summary = clean_list(order, open_source, standard_output=io.BytesIO())
    assert order.output is not None
    return summary, list(csv.DictReader(io.StringIO(order.output.read_text("utf-8-sig"))))


def list_of(folder: Path, *lines: str) -> Order:
    path = folder / "list.csv"
    path.write_text("\n".join([*lines, ""]))
    return Order(path, folder / "out.csv")


def column(rows: Sequence[dict[str, str]], name: str) -> list[str]:
    return [row[name] for row in rows]


def test_a_row_shows_the_address_that_stood_within_a_cell(tmp_path: Path) -> None:
    order = list_of(
        tmp_path, "contact,n", f"mailto:{ANN},1", "ann (at) shop.test,2", "n/a,3", f"{BOB},4"
    )
    summary, rows = cleaned(tmp_path, order)
    assert column(rows, "email") == [ANN, "ann (at) shop.test", "", BOB]
    assert column(rows, "light") == [GREEN, YELLOW, "", RED]
    assert column(rows, "suggestion") == ["", ANN, "", ""]
    assert column(rows, "contact")[0] == f"mailto:{ANN}"
    line = summary_line(summary)
    assert "4 rows (1 without an address, 1 unwrapped, 1 doubtful)" in line
    assert "3 different addresses in contact" in line


def test_a_row_with_several_addresses_shows_the_best(tmp_path: Path) -> None:
    order = list_of(tmp_path, "email,n", f'"{BOB}; {CY}, {ANN}",1', f"{ANN},2", f"{BOB} {BOB},3")
    summary, rows = cleaned(tmp_path, order)
    assert column(rows, "mailprobe_email") == [ANN, ANN, BOB]
    assert column(rows, "others") == [f"{BOB} {RED}; {CY} {YELLOW}; {ANN} {GREEN}", "", ""]
    assert summary.addresses == 3


def test_each_address_has_a_row_of_its_own(tmp_path: Path) -> None:
    order = replace(list_of(tmp_path, "email,n", f'"{BOB}; {ANN}",1', f"{ANN},2", ",3"), each=True)
    summary, rows = cleaned(tmp_path, order)
    assert column(rows, "mailprobe_email") == [BOB, ANN, ANN, ""]
    assert column(rows, "n") == ["1", "1", "2", "3"]
    assert "others" not in rows[0]
    assert (summary.rows, summary.blank, summary.written) == (3, 1, 4)


TWO = ("name,mail1,mail2", f"Ann,{ANN},{BOB}", f"Bob,,{CY}", f"Cy,{CY},", "Dee,,")


def test_each_column_has_its_own_answers(tmp_path: Path) -> None:
    order = list_of(tmp_path, *TWO)
    order = replace(order, reading=ReadOptions(column=("mail1", "mail2")))
    summary, rows = cleaned(tmp_path, order)
    assert column(rows, "mail1_light") == [GREEN, "", YELLOW, ""]
    assert column(rows, "mail2_light") == [RED, YELLOW, "", ""]
    assert summary.columns == ("mail1", "mail2")
    assert summary.blank == 1


def test_another_column_never_overwrites_the_first_ones_answers(tmp_path: Path) -> None:
    order = list_of(tmp_path, *TWO)
    _, first = cleaned(tmp_path, replace(order, reading=ReadOptions("mail1")))
    assert order.output is not None
    again = Order(order.output, tmp_path / "again.csv", ReadOptions("mail2"))
    _, second = cleaned(tmp_path, again)
    assert [{name: row[name] for name in first[0]} for row in second] == first
    assert column(second, "mail2_light") == [RED, YELLOW, "", ""]
    third = Order(tmp_path / "again.csv", tmp_path / "third.csv", ReadOptions("mail2"))
    _, refreshed = cleaned(tmp_path, third)
    assert refreshed == second


@pytest.mark.parametrize("name", ["list.txt", "list.ndjson"])
def test_a_short_output_of_bare_addresses_has_them(tmp_path: Path, name: str) -> None:
    path, quote = tmp_path / name, '"' if name.endswith("json") else ""
    path.write_text(f"{quote}{ANN}{quote}\n{quote}{BOB}{quote}\n")
    order = Order(path, tmp_path / "out.csv", fields=("light",), come_first=True)
    _, rows = cleaned(tmp_path, order)
    assert rows == [{"light": GREEN, "email": ANN}, {"light": RED, "email": BOB}]


DAN = "dan@shop.test"
ONCE = Selection(dedupe=True)


def test_a_row_is_a_duplicate_only_if_other_rows_have_all_its_mailboxes(tmp_path: Path) -> None:
    cells = (ANN, f"{ANN}; {DAN}", f"{DAN} {ANN}", DAN, f"{ANN}; ann@SHOP.test", "n/a", "n/a")
    order = list_of(tmp_path, "email,n", *(f"{cell},{n}" for n, cell in enumerate(cells)))
    _, rows = cleaned(tmp_path, replace(order, selection=ONCE))
    assert column(rows, "n") == ["0", "1", "5", "6"]
    _, rows = cleaned(tmp_path, replace(order, selection=ONCE, each=True, force=True))
    assert column(rows, "mailprobe_email") == [ANN, DAN, "", ""]


def test_a_row_is_kept_for_the_mailbox_in_its_second_column(tmp_path: Path) -> None:
    rows = (f"{ANN},{DAN}", f"{ANN},{CY}", f"{DAN},", f",{ANN}", f"{CY},{DAN}")
    order = list_of(tmp_path, "mail1,mail2,n", *(f"{row},{n}" for n, row in enumerate(rows)))
    order = replace(order, reading=ReadOptions(column=("mail1", "mail2")), selection=ONCE)
    assert column(cleaned(tmp_path, order)[1], "n") == ["0", "1"]


def test_a_row_that_is_not_written_takes_no_mailbox_from_later_ones(tmp_path: Path) -> None:
    order = list_of(tmp_path, "email,n", f"{ANN}; {BOB},1", f"{BOB},2", f"{BOB},3")
    order = replace(order, selection=Selection(frozenset({"RED_LIGHT"}), dedupe=True))
    assert column(cleaned(tmp_path, order)[1], "n") == ["2"]


def test_columns_of_one_name_have_numbers(tmp_path: Path) -> None:
    order = list_of(tmp_path, "email,email", f"{ANN},{BOB}")
    summary, _ = cleaned(tmp_path, replace(order, reading=ReadOptions("2")))
    assert summary.columns == ("email (number 2)",)


def test_a_short_output_has_three_columns_first(tmp_path: Path) -> None:
    order = list_of(tmp_path, "email,n", f"{ANN},1", f"{BOB},2")
    order = replace(order, fields=("light", "reason", "suggestion"), come_first=True)
    _, rows = cleaned(tmp_path, order)
    assert list(rows[0]) == ["light", "reason", "suggestion", "email", "n"]
    assert column(rows, "light") == [GREEN, RED]
    assert order.output is not None
    again = replace(order, input=order.output, output=tmp_path / "again.csv")
    _, refreshed = cleaned(tmp_path, again)
    assert refreshed == rows


FORMULAS = f'email,n\n{ANN},=1+1\n{ANN},@SUM(A1)\n{ANN},-2+3\n{ANN},-1.50\n{ANN},+49 30 1234567\n{ANN},"=""x"""\n'


@pytest.mark.parametrize(
    ("formulas", "guarded"),
    [
        ("guard", ["'=1+1", "'@SUM(A1)", "'-2+3", "-1.50", "+49 30 1234567", '\'="x"']),
        ("keep", ["=1+1", "@SUM(A1)", "-2+3", "-1.50", "+49 30 1234567", '="x"']),
    ],
)
@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_no_cell_of_a_table_is_a_formula(
    tmp_path: Path, formulas: str, guarded: list[str], ending: str
) -> None:
    """A table is copied as text, and another one is written anew: both have the one rule."""
    path, output = tmp_path / "list.csv", tmp_path / f"out{ending}"
    path.write_text(FORMULAS)
    order = Order(path, output, formulas=formulas)  # type: ignore[arg-type]  # one of the two

    @asynccontextmanager
    async def open_source() -> AsyncIterator[ScriptedSource]:
        yield ScriptedSource(CAUSES)

    clean_list(order, open_source, standard_output=io.BytesIO())
    lines = io.StringIO(output.read_text())
    rows = list(csv.DictReader(lines, delimiter="\t" if ending == ".tsv" else ","))
    assert column(rows, "n") == guarded


def test_a_list_in_another_encoding_gets_a_byte_order_mark(tmp_path: Path) -> None:
    order = list_of(tmp_path)
    assert order.input is not None
    assert order.output is not None
    order.input.write_bytes(f"name,email\nJürgen,{ANN}\n".encode("cp1252"))
    cleaned(tmp_path, order)
    assert order.output.read_bytes().startswith(b"\xef\xbb\xbfname")


@pytest.mark.parametrize("name", ["out.json", "out.csv.gz", "out.ods", "out.csvv"])
def test_an_output_of_an_unknown_ending_is_refused(name: str) -> None:
    with pytest.raises(Misuse, match="-o takes the endings"):
        check_ending(Path(name))


def test_a_column_without_addresses_is_not_cleaned_in_silence(tmp_path: Path) -> None:
    order = list_of(tmp_path, "email,n", "Ann Lee,1", "Bob Roe,2", "Cy Poe,3", f"{ANN},4")
    with pytest.raises(BadList) as refused:
        cleaned(tmp_path, order)
    assert refused.value.exit_code == 2
    assert "“Ann Lee”, “Bob Roe”, “Cy Poe”" in refused.value.message
    _, rows = cleaned(tmp_path, replace(order, reading=ReadOptions("email")))
    assert column(rows, "mailprobe_email") == ["Ann Lee", "Bob Roe", "Cy Poe", ANN]


def test_further_columns_of_addresses_are_proposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = list_of(
        tmp_path, "Name,E-mail 1 - Value,E-mail 2 - Value", f"Ann,{ANN},{BOB}", f"Cy,{CY},"
    )
    summary, _ = cleaned(tmp_path, order)
    assert summary.columns == ("E-mail 1 - Value",)
    words = "--column 'E-mail 1 - Value' --column 'E-mail 2 - Value'"
    assert words in capsys.readouterr().err
