"""Exports of mail services, and tables that are none: which rows say that mail came back.

The local part of each address in exports.txt says what its row is to be taken as.
"""

import re
from pathlib import Path

import pytest

from mailprobe.api.bounces.exports import ExportReader, ExportSurvey, layout_of
from mailprobe.api.cli.scoring.bounces import Taken, read_bounces

KINDS: dict[str, Taken] = {
    "gone": "no_mailbox",
    "refused": "refused",
    "later": "temporary",
    "unknown": "unknown",
    "none": "ignored",
}
ADDRESS = re.compile(r"(?:gone|refused|later|unknown|none)\.\d@[\w.]+")


def exports() -> dict[str, str]:
    text = Path(__file__).with_name("exports.txt").read_text(encoding="utf-8")
    parts = re.split(r"^=== (.*)\n", text, flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


ALL = exports()


def expected_of(text: str) -> dict[str, Taken]:
    return {address: KINDS[address.partition(".")[0]] for address in ADDRESS.findall(text)}


@pytest.mark.parametrize("name", ALL)
def test_each_row_of_an_export_is_taken_as_what_it_says(tmp_path: Path, name: str) -> None:
    (path := tmp_path / name).write_text(ALL[name], encoding="utf-8")
    found = read_bounces(path)
    expected = expected_of(ALL[name])
    taken = {address: found.kinds.get(address, "ignored") for address in expected}
    assert taken == expected
    assert found.kinds.keys() <= expected.keys()
    assert sum(found.rows.values()) == len(expected)
    assert all(len(examples) <= 3 for examples in found.examples.values())


def test_no_row_is_recorded_that_says_of_no_bounce(tmp_path: Path) -> None:
    """The figure that the documentation states; `pytest -rP` prints it."""
    rows = recorded = wrong = 0
    for name, text in ALL.items():
        (path := tmp_path / name).write_text(text, encoding="utf-8")
        gone = read_bounces(path).gone
        expected = expected_of(text)
        rows += len(expected)
        recorded += len(gone)
        wrong += sum(expected[address] != "no_mailbox" for address in gone)
    print(f"{len(ALL)} files, {rows} rows, {recorded} recorded, {wrong} that were not bounces")
    assert (wrong, len(ALL) >= 25) == (0, True)


@pytest.mark.parametrize("name", [name for name in ALL if name.endswith(".csv")])
def test_an_activity_log_without_its_column_of_kinds_records_nothing(
    tmp_path: Path, name: str
) -> None:
    """Neither subjects nor names are read, whatever the columns are called."""
    lines = ALL[name].splitlines()
    columns = [f"column {number}" for number in range(lines[0].count(",") + 1)]
    reader = ExportReader(columns, ExportSurvey())
    for line in lines[1:]:
        assert reader.read(line.split(","), "x@y.test").kind is None


@pytest.mark.parametrize(
    ("columns", "service"),
    [
        (["Email Hard Bounce Reason", "Email"], "HubSpot"),
        (["bounce.bounceSubType", "bounce.bounceType"], "SES"),
        (["email", "st_text"], "Brevo"),
        (["email", "status"], None),
        ([], None),
    ],
)
def test_a_layout_is_known_by_its_columns(columns: list[str], service: str | None) -> None:
    layout = layout_of(columns)
    assert (layout and layout.service) == service
