"""`clean` keeps a row's cells in every format, and refuses at once what is not a file."""

import json
import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mailprobe.api.cli.cleaning.outputs import Order
from mailprobe.api.listfile.dialect import Dialect
from mailprobe.api.listfile.tables import Records, TableList
from mailprobe.bench.lab.workbooks import row, sheet, text, workbook
from tests.api.cli.cleaning.corpus import A, B
from tests.api.cli.test_clean import ROOT, clean, mailprobe, names_in, refused, rows_of, written


def test_numbers_of_objects_are_the_same_digits_as_cells(tmp_path: Path) -> None:
    line = f'{{"email":"{A}","id":{10**30},"f":1.10,"e":1E2,"o":{{"b": 1.0}},"n":null,"t":true}}\n'
    path = written(tmp_path / "list.ndjson", line)
    clean(Order(path, tmp_path / "o.csv"))
    (found,) = rows_of(tmp_path / "o.csv")
    own = [found[name] for name in ("id", "f", "e", "o", "n", "t")]
    assert own == [f"1{'0' * 30}", "1.10", "1E2", '{"b": 1.0}', "", "true"]


def test_a_string_that_is_more_than_its_address_comes_back(tmp_path: Path) -> None:
    path = written(tmp_path / "list.ndjson", f'"Ann <{A}>"\n"{B}"\n" {B} "\n')
    clean(Order(path, tmp_path / "o.ndjson"))
    clean(Order(path, tmp_path / "o.csv"))
    found = [json.loads(line) for line in (tmp_path / "o.ndjson").read_text().splitlines()]
    assert [one.get("text") for one in found] == [f"Ann <{A}>", None, f" {B} "]
    assert [one["email"] for one in found] == [A, B, B]
    assert [one["text"] for one in rows_of(tmp_path / "o.csv")] == [f"Ann <{A}>", "", f" {B} "]


def test_a_mailbox_far_down_in_a_list_of_lines_comes_back_whole(tmp_path: Path) -> None:
    path = written(tmp_path / "list.txt", f"{A}\n" * 1500 + f"Bob <{B}>\n")
    clean(Order(path, tmp_path / "o.csv"))
    rows = rows_of(tmp_path / "o.csv")
    assert len(rows) == 1501
    assert (rows[-1]["column_1"], rows[-1]["email"]) == (f"Bob <{B}>", B)


def test_a_cell_counts_as_spreadsheets_count(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv", f"n,email\n{chr(0x1F600) * 16_300}{'x' * 200},{A}\n")
    assert "more than a workbook holds" in refused(Order(path, tmp_path / "o.xlsx"))


def test_duplicate_column_names_get_numbers_in_linear_time() -> None:
    table = TableList(Records("x", lambda: iter(())), ["x", "x_2", *["x"] * 50_000], 0)
    names = table.unique_columns
    assert len(set(names)) == len(names) == 50_002
    assert names[:4] == ["x", "x_2", "x_3", "x_4"]


def test_two_cells_in_one_place_are_refused(tmp_path: Path) -> None:
    cells = (text("A2", "x"), text("B2", A), text("A2", "y"))
    octets = workbook({"s": sheet(row(1, text("A1", "n"), text("B1", "email")), row(2, *cells))})
    path = tmp_path / "list.xlsx"
    path.write_bytes(octets)
    assert "not an XLSX workbook that can be read" in refused(Order(path, tmp_path / "o.csv"))


def test_a_zip_archive_is_no_workbook(tmp_path: Path) -> None:
    path = tmp_path / "list.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("list.csv", f"email\n{A}\n")
    assert "unpack it first" in refused(Order(path, tmp_path / "o.csv"))


def test_an_input_that_is_no_regular_file_is_refused_without_reading(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero"), Path("/dev/null")):
        assert "is not a regular file" in refused(Order(path, tmp_path / "o.csv"))
    assert "is a directory" in refused(Order(tmp_path, tmp_path / "o.csv"))
    with mailprobe("clean", ".", directory=tmp_path) as child:
        code, _, err = child.end()
    assert (code, err.count("\n")) == (2, 1)
    assert names_in(tmp_path) == ["fifo"]


def test_a_lack_of_file_descriptors_is_reported_on_one_line(tmp_path: Path) -> None:
    written(tmp_path / "list.csv")
    done = subprocess.run(
        [sys.executable, "-m", "tests.api.fake_source", "--", "clean", "list.csv"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6)), timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "too many files are open" in done.stderr
    assert done.stderr.count("\n") == 1
    assert names_in(tmp_path) == ["list.csv"]


@pytest.mark.parametrize("text", ['"a",""', r'"\\"', " x,y", '_,"_"', '"a\n",b'])
def test_quotes_around_cells_alone(text: str) -> None:
    assert Dialect(",", escaped=True).quotes_whole(text)


@pytest.mark.parametrize("text", ['"a""b"', '5" pipe', '"a"b,c', '"a'])
def test_quotes_elsewhere(text: str) -> None:
    assert not Dialect(",", escaped=True).quotes_whole(text)
