"""Results as characters: each kind has its own, which never changes."""

from typing import get_args

from mailprobe.api.results.marks import KINDS, ResultKind, counts_of, mark_of, marks_of, passing_of
from mailprobe.engine.verdict import Outcome, Reason, Status, judge


def test_every_reason_and_status_has_its_marks() -> None:
    assert {kind.reason for kind in KINDS.values()} == set(get_args(Reason))
    assert {kind.status for kind in KINDS.values()} == set(get_args(Status))
    assert len(KINDS) == len(set(KINDS.values())) == 29 * 5 * 3


def test_marks_are_counted_by_kind() -> None:
    good = mark_of(judge("a@b.test", Outcome.DELIVERABLE), "accepted")
    late = mark_of(judge("a@b.test", Outcome.TIMED_OUT), "timeout")
    assert good == "Ā"  # stored: it stays
    accepted = ResultKind("GREEN_LIGHT", "deliverable", "accepted")
    counts = counts_of(f"{good}.{late}{good}")
    assert counts[accepted] == 2
    assert sum(counts.values()) == 3
    assert dict(passing_of(counts)) == {"timeout": 1}
    assert marks_of([accepted]) == {good}
