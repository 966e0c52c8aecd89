"""The confusion matrix: what counts as wrong, what as not found out."""

import json

import pytest

from mailprobe.bench.harness.confusion import HONEST, REPORTED, KnownTruth, Matrix, main
from mailprobe.bench.lab.scenario import Truth

TRUTH = {
    "exists": ["ann@a.test", "ben@a.test", "full@a.test"],
    "does not exist": ["gone@a.test"],
    "catch-all domain": ["any@all.test"],
    "domain without mail": ["ann@none.test"],
}
ADDRESSES = {
    "deliverable": ["ann@a.test", "ben@a.test"],
    "mailbox_full": ["full@a.test"],
    "undeliverable": ["gone@a.test"],
    "catch_all": ["any@all.test"],
    "no_mx": ["ann@none.test"],
}
RIGHT = {
    "ann@a.test": "deliverable",
    "ben@a.test": "deliverable",
    "full@a.test": "unknown",
    "gone@a.test": "undeliverable",
    "any@all.test": "catch_all",
    "ann@none.test": "invalid",
}


def matrix_of(**changes: str) -> Matrix:
    """Everything told right, but for addresses that begin so."""
    matrix = Matrix(KnownTruth.of(TRUTH, ADDRESSES))
    for address, reported in RIGHT.items():
        start = address.replace("@", "_at_").replace(".", "_")
        matrix.add(address, changes.get(start, reported))
    return matrix


def test_right_verdicts_are_neither_wrong_nor_unknown():
    matrix = matrix_of()
    assert (matrix.lies(*REPORTED), matrix.unknown_share) == (0, 0.0)
    assert (matrix.verified(), matrix.verified(knowable=True)) == (6, 5)


def test_unknown_is_no_lie_but_counts_where_it_could_be_known():
    matrix = matrix_of(ann_at_a_test="unknown")
    assert matrix.lies(*REPORTED) == 0
    assert matrix.unknown_share == pytest.approx(20)


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"ann_at_a_test": "undeliverable"}, "undeliverable"),
        # Nobody could know, and it is wrong.
        ({"full_at_a_test": "undeliverable"}, "undeliverable"),
        ({"ann_at_a_test": "invalid"}, "invalid"),
        ({"any_at_all_test": "undeliverable"}, "undeliverable"),
        ({"gone_at_a_test": "deliverable"}, "deliverable"),
        ({"any_at_all_test": "deliverable"}, "deliverable"),
        ({"ann_at_none_test": "deliverable"}, "deliverable"),
        ({"ann_at_a_test": "catch_all"}, "catch_all"),
    ],
)
def test_a_wrong_verdict_is_counted_under_the_reported_status(change, reported):
    matrix = matrix_of(**change)
    assert [matrix.lies(status) for status in REPORTED] == [
        int(status == reported) for status in REPORTED
    ]


def test_every_truth_says_what_is_honest():
    assert set(HONEST) == set(Truth)
    assert all("unknown" in reported and reported <= set(REPORTED) for reported in HONEST.values())


def test_an_address_known_after_a_recheck_counts_as_knowable():
    matrix = Matrix(KnownTruth.of(TRUTH, ADDRESSES, ["full@a.test"]))
    for address, reported in RIGHT.items():
        matrix.add(address, reported)
    assert (matrix.unknown_count(knowable=True), matrix.unknown_count(knowable=False)) == (1, 0)


def test_another_verifiers_results_are_judged(tmp_path, capsys):
    lab, results = tmp_path / "lab.json", tmp_path / "results.ndjson"
    lab.write_text(json.dumps({"truth": TRUTH, "addresses": ADDRESSES}) + "\n", "utf-8")
    rows = [{"email": email, "status": status} for email, status in RIGHT.items()]
    results.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert main(lab, results) == 0
    assert "wrong: 0" in capsys.readouterr().out
    rows[0]["status"] = "undeliverable"
    results.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert main(lab, results) == 1
