"""A cleaned list that is cleaned again: the results are refreshed where they stand."""

import csv
import io
import json
from pathlib import Path

import msgspec
import pytest

from mailprobe.api.listfile.earlier_results import earlier_results
from mailprobe.api.listfile.opening import OutputFormat, ReadOptions, open_list
from mailprobe.api.listfile.results import RESULT_FIELDS, ResultColumns
from mailprobe.api.listfile.writer import open_writer
from mailprobe.engine.verdict import FIELDS
from tests.api.fake_source import result_of

ANN, BOB = "ann@shop.test", "bob@shop.test"


def cleaned(
    octets: bytes,
    path: Path,
    status: str,
    *,
    column: str | None = None,
    manner: OutputFormat | None = None,
    suggest: bool = False,
) -> tuple[bytes, list[str]]:
    """The list with results of this status, and its addresses."""
    path.write_bytes(octets)
    file, addresses = io.BytesIO(), []
    with open_list(path, ReadOptions(column)) as source:
        for _ in source.rows():
            pass
        with open_writer(file, manner or source.manner, source, ResultColumns(suggest)) as write:
            for row in source.rows():
                addresses.append(row.address)
                result = msgspec.structs.replace(result_of(row.address), status=status)
                write(row, result if row.address else None)
    return file.getvalue(), addresses


TEXTS = {
    "a table": b"name,email\nAnn,ann@shop.test\n,\nBob,bob@shop.test,more\n",
    "quotes": b'name;email;"n"\r\n"a;""b""";"ann@shop.test";\r\n"";bob@shop.test;"1"\r\n',
    "another name": b"contact,n\nAnn <ann@shop.test>,1\nbob@shop.test,2\n",
    "lines": b"ann@shop.test\n\nbob@shop.test\n",
    "no header": b"1,ann@shop.test\n2,bob@shop.test\n",
    "tabs": b'email\tn\nann@shop.test\t"x\nbob@shop.test\ty\n',
    "escapes": b'n,email,m\n"a\\"b, c",ann@shop.test,"x\\"y"\n"d",bob@shop.test,"z"\n',
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_table_is_refreshed(tmp_path: Path, case: str) -> None:
    path = tmp_path / ("a.tsv" if case == "tabs" else "a.txt" if case == "lines" else "a.csv")
    once, addresses = cleaned(TEXTS[case], path, "unknown")
    path = path.with_suffix(".csv") if case == "lines" else path
    again, same = cleaned(once, path, "deliverable")
    assert [a for a in same if a] == [a for a in addresses if a] == [ANN, BOB]
    assert again == once.replace(b"unknown", b"deliverable").replace(b"YELLOW", b"GREEN")


def test_a_column_added_at_the_right_stays_there(tmp_path: Path) -> None:
    once, _ = cleaned(TEXTS["quotes"], tmp_path / "a.csv", "unknown")
    lines = once.split(b"\r\n")
    lines[0] += b";note"
    lines[1] += b";call her"
    again, addresses = cleaned(b"\r\n".join(lines), tmp_path / "a.csv", "deliverable")
    assert addresses == [ANN, BOB]
    rows = again.split(b"\r\n")
    assert rows[0] == lines[0]
    assert rows[1] == lines[1].replace(b"unknown", b"deliverable").replace(b"YELLOW", b"GREEN")
    assert rows[2].endswith(b"GREEN_LIGHT;")
    table = list(csv.reader(io.StringIO(again.decode()), delimiter=";"))
    assert {len(row) for row in table if row} == {3 + len(RESULT_FIELDS) + 1}


def test_results_of_an_older_version_are_refreshed(tmp_path: Path) -> None:
    older = [*FIELDS, "light"]
    header = ",".join(["name", "email", "mailprobe_email", *older[1:]])
    row = ",".join(["Ann", ANN, ANN, *["x"] * (len(older) - 1)])
    again, addresses = cleaned(f"{header}\n{row}\n".encode(), tmp_path / "a.csv", "deliverable")
    assert addresses == [ANN]
    fresh, _ = cleaned(f"name,email\nAnn,{ANN}\n".encode(), tmp_path / "a.csv", "deliverable")
    assert again == fresh


def test_a_suggestion_column_comes_and_goes(tmp_path: Path) -> None:
    octets = TEXTS["a table"].replace(b",more", b"")
    plain, _ = cleaned(octets, tmp_path / "a.csv", "unknown")
    suggested, _ = cleaned(octets, tmp_path / "a.csv", "unknown", suggest=True)
    assert cleaned(plain, tmp_path / "a.csv", "unknown", suggest=True)[0] == suggested
    assert cleaned(suggested, tmp_path / "a.csv", "unknown")[0] == plain


def test_another_format_has_the_results_once(tmp_path: Path) -> None:
    once, _ = cleaned(TEXTS["a table"], tmp_path / "a.csv", "unknown")
    again, _ = cleaned(once, tmp_path / "a.csv", "deliverable", manner=OutputFormat("ndjson"))
    first = json.loads(again.splitlines()[0])
    assert list(first)[:3] == ["name", "email", "column_3"]
    assert [name for name in first if name.endswith("status")] == ["status"]
    assert first["status"] == "deliverable"


def test_the_named_column_may_be_one_of_the_results(tmp_path: Path) -> None:
    once, _ = cleaned(b"contact\nAnn <ann@shop.test>\n", tmp_path / "a.csv", "unknown")
    _, addresses = cleaned(once, tmp_path / "a.csv", "deliverable", column="email")
    assert addresses == [ANN]


OBJECTS = {
    "objects": b'{"id":123456789012345678901234567890,"email":"ann@shop.test"}\n{"email":"bob@shop.test","x":1.0}\n',
    "another name": b'{"contact":"Ann <ann@shop.test>"}\n{"contact":"bob@shop.test"}\n',
    "strings": b'"ann@shop.test"\n"bob@shop.test"\n',
}


@pytest.mark.parametrize("case", OBJECTS)
def test_objects_are_refreshed(tmp_path: Path, case: str) -> None:
    once, _ = cleaned(OBJECTS[case], tmp_path / "a.ndjson", "unknown")
    again, addresses = cleaned(once, tmp_path / "a.ndjson", "deliverable")
    assert addresses == [ANN, BOB]
    assert again == once.replace(b"unknown", b"deliverable").replace(b"YELLOW", b"GREEN")


def test_columns_that_only_look_alike_are_the_lists_own() -> None:
    assert not earlier_results(["email", "valid", "status", "light"]).place
    assert not earlier_results([*RESULT_FIELDS[:-2], "light"]).place
    assert not earlier_results(["mailprobe_email", *RESULT_FIELDS[1:]]).place
    assert earlier_results(["n", *RESULT_FIELDS, "m"]).place == range(1, 1 + len(RESULT_FIELDS))
    taken = ["email", "light"]
    names = ResultColumns().names(taken)
    assert earlier_results([*taken, *names]).place == range(2, 2 + len(names))
