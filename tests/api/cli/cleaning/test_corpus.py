"""`clean` returns every row of every file once with its cells, or refuses the file in one line."""

import csv
import io
import json
from pathlib import Path

import pytest

from mailprobe.api.listfile.opening import open_list
from mailprobe.api.listfile.results import RESULT_FIELDS, ResultColumns
from mailprobe.api.listfile.survey import BadList
from mailprobe.api.listfile.writer import open_writer
from tests.api.cli.cleaning.corpus import CORPUS, Case
from tests.api.fake_source import result_of


def cleaned(path: Path, case: Case) -> tuple[list[str], bytes]:
    """Return the verified addresses and the output of `clean`."""
    file = io.BytesIO()
    with open_list(path, **case.said) as source:
        addresses = [row.address for row in source.rows()]
        with open_writer(file, source.manner, source, ResultColumns()) as write:
            for row in source.rows():
                write(row, result_of(row.address) if row.address else None)
        assert all("\n" not in remark for remark in source.remarks())
    return addresses, file.getvalue()


@pytest.mark.parametrize("name", CORPUS)
def test_a_list_comes_back_or_is_refused(tmp_path: Path, name: str) -> None:
    case = CORPUS[name]
    path = tmp_path / case.file
    path.write_bytes(case.octets)
    if case.refusal:
        with pytest.raises(BadList) as bad:
            cleaned(path, case)
        assert case.refusal in bad.value.message
        assert case.file in bad.value.message
        assert "\n" not in bad.value.message
    else:
        addresses, output = cleaned(path, case)
        assert addresses == case.addresses
        check_output(case, output)
    assert path.read_bytes() == case.octets


def check_output(case: Case, output: bytes) -> None:
    if case.file.endswith((".ndjson", ".json")):
        is_array = case.octets.startswith(b"[")
        given = json.loads(case.octets) if is_array else map(json.loads, case.octets.splitlines())
        for own, after in zip(given, output.splitlines(), strict=True):
            assert {key: json.loads(after)[key] for key in own} == own
        return
    text = output.decode("utf-8-sig")
    if case.reader is None:
        assert len(list(csv.reader(io.StringIO(text, newline="")))) == len(case.addresses) + 1
        return
    lines = io.StringIO(text, newline="")
    for _ in range(case.skipped):
        next(lines)
    got = list(csv.reader(lines, strict=True, **case.reader))
    if not case.header:
        del got[0]
    width = len(case.rows[0])
    assert [row[:width] for row in got] == case.rows
    assert {len(row) for row in got} == {width + len(RESULT_FIELDS)}


def test_the_corpus_is_large() -> None:
    assert len(CORPUS) >= 60
