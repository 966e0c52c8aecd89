"""The tables of docs/verdicts.md and dev/judging.md are the code's."""

import re
from itertools import pairwise
from typing import get_args

from mailprobe.engine import deciding_rules
from mailprobe.engine.reasons import verdict_cause
from mailprobe.engine.smtp.replies.rules import Meaning, load_rules
from mailprobe.engine.verdict import LADDER, Outcome, Reason, Status
from tests.docs.pages import bare, table_of


def test_the_ladder_is_the_codes() -> None:
    header = ("outcome", "what happened", "status", "valid", "confidence", "failed_check")
    reported = {Outcome(bare(row[0])): row[2:] for row in table_of("docs/verdicts.md", *header)}
    words = {True: "true", False: "false", None: "null"}
    assert reported == {
        outcome: [rung.status, words[rung.valid], str(rung.confidence), str(rung.failed_check or "null")]
        for outcome, rung in LADDER.items()
    }  # fmt: skip


def test_the_page_begins_with_every_status() -> None:
    reported = [bare(row[0]) for row in table_of("docs/verdicts.md", "status", "means")]
    assert sorted(reported) == sorted(get_args(Status))


def test_replies_are_read_in_the_order_that_is_described() -> None:
    header = ("order", "what the words are about", "a rule of that kind")
    reported = [bare(row[2]) for row in table_of("dev/judging.md", *header)]
    ids = [rule.reading.rule for rule in load_rules().rules]
    assert all(ids.index(one) < ids.index(other) for one, other in pairwise(reported))


def test_every_meaning_is_described() -> None:
    rows = table_of("dev/judging.md", "meaning", "of a 5xx to RCPT")
    reported = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(reported) == sorted(meaning.value for meaning in Meaning)


def test_the_reasons_and_who_is_to_blame() -> None:
    rows = table_of("docs/verdicts.md", "reason", "what happened", "blame")
    causes = [verdict_cause(outcome, rule) for outcome in Outcome for rule in deciding_rules()]
    blames: dict[str, set[str]] = {}
    for cause in causes:
        blames.setdefault(cause.reason, set()).add(cause.blame or "nobody")
    assert {bare(row[0]): set(row[2].split(", ")) for row in rows} == blames
    assert set(blames) == set(get_args(Reason))
