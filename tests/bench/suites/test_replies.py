"""The suite that scores the reply rules on the collections of the tests."""

from pathlib import Path

import pytest

import mailprobe.bench.suites.replies as suite
from mailprobe.bench.harness.figures import MissingRequirement
from tests.engine.smtp.replies.reply_rows import parse_rules

RULES = parse_rules(
    "[[rule]]\nid='gone'\ntext='gone'\nmeaning='disabled'\nsource='-'\nexamples=[]\n"
    "[[rule]]\nid='spam'\ntext='spam'\nmeaning='blocked_policy'\nsource='-'\nexamples=[]\n"
)


def row(text: str, wanted: str, code: str = "550", ambiguous: str = "") -> dict[str, str]:
    return {
        "code": code,
        "enhanced_code": "",
        "text": text,
        "class": wanted,
        "ambiguous": ambiguous,
    }


def test_the_score_is_by_class_and_names_what_falsely_condemns() -> None:
    by_class = suite.scores(
        RULES,
        [
            row("gone", "disabled"),
            row("vanished", "disabled"),
            row("spam", "blocked_policy"),
            row("gone for spammers", "blocked_policy"),
            row("gone or spam", "unknown", ambiguous="y"),
            row("gone away", "disabled", code="450"),
        ],
    )
    every = suite.total(by_class)
    assert (by_class["disabled"].count, by_class["disabled"].right) == (3, 2)
    assert (by_class["blocked_policy"].count, by_class["blocked_policy"].right) == (2, 1)
    assert (every.count, every.right, every.right_percent) == (5, 3, 60)
    assert every.falsely_undeliverable == ["550 gone for spammers", "550 gone or spam"]
    assert "disabled                 3      2      1     66.7      0" in suite.table(by_class)


def test_rows_without_a_class_are_scored_by_whether_they_condemn() -> None:
    given = {"code": "550", "enhanced_code": ""}
    by_class = suite.scores(
        RULES,
        [{**given, "text": "gone", "condemns": "yes"}, {**given, "text": "spam", "condemns": "no"}],
    )
    assert {name: score.right for name, score in by_class.items()} == {
        "condemns": 1,
        "does not condemn": 1,
    }


@pytest.mark.parametrize(
    ("code", "text", "condemns"),
    [
        ("550", "gone", True),
        ("450", "gone", False),
        ("503", "gone", False),
        ("540", "gone", True),
        ("511", "gone (#5.1.1)", True),
        ("511", "gone (#5.7.1)", False),
    ],
)
def test_the_code_decides_whether_a_class_can_condemn(code: str, text: str, condemns: bool) -> None:
    assert suite.should_condemn(row(text, "disabled", code)) is condemns


def test_without_the_tests_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(suite, "COLLECTIONS", tmp_path)
    with pytest.raises(MissingRequirement, match="checkout"):
        suite.run()


def test_the_collections_have_what_the_promise_is_about() -> None:
    found = suite.collections()
    assert {"replies.tsv", "replies_gateways.tsv", "replies_held_out.tsv"} <= found.keys()
    assert sum(map(len, found.values())) > 2000
