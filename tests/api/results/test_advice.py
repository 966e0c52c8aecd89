"""The advice to a person goes by the reason, and a suggestion comes before it."""

from typing import get_args

import pytest

from mailprobe.api.results.advice import (
    ADVICE,
    ANSWERS,
    advice_of,
    answer_of,
    layers_of,
    reason_words,
    why_of,
)
from mailprobe.engine.verdict import LIGHTS_BEST_FIRST, Outcome, Reason, Signals, Verdict, judge

PLAIN = Signals(disposable=False, role=False, free_provider=False, suggestion=None)


def judged(outcome: Outcome, email: str = "ann@shop.test", host: str = "mx.shop.test") -> Verdict:
    return judge(email, outcome, PLAIN, host, mx_found=True)


def states(verdict: Verdict, reason: Reason) -> list[str]:
    return [each.state for each in layers_of(verdict, reason)]


def test_every_reason_and_every_light_has_words() -> None:
    assert set(ADVICE) == set(get_args(Reason))
    assert set(ANSWERS) == set(LIGHTS_BEST_FIRST)


def test_each_reason_for_doubt_has_its_own_advice() -> None:
    advised = {
        reason: advice_of(judged(Outcome.REFUSED_BY_POLICY), reason)
        for reason in ("smtp_blocked", "catch_all", "greylisted", "resolver", "full", "blocked_us")
    }
    assert len(set(advised.values())) == len(advised)
    assert "cannot be checked" in advised["smtp_blocked"]
    assert "our own resolver" in advised["resolver"]


@pytest.mark.parametrize(
    ("outcome", "reason", "expected"),
    [
        (Outcome.DELIVERABLE, "accepted", ["passed"] * 4),
        (Outcome.CATCH_ALL, "catch_all", [*["passed"] * 3, "no clear answer"]),
        (Outcome.UNDELIVERABLE, "no_mailbox", [*["passed"] * 3, "failed"]),
        (Outcome.TIMED_OUT, "timeout", [*["passed"] * 3, "no answer"]),
        (Outcome.SMTP_BLOCKED, "smtp_blocked", [*["passed"] * 3, "not asked"]),
        (Outcome.RESOLVER_FAILED, "resolver", [*["passed"] * 2, "no answer", "not asked"]),
        (Outcome.NO_MX, "no_mx", [*["passed"] * 2, "failed", "not asked"]),
        (Outcome.DISPOSABLE, "disposable", ["passed", "failed", *["not asked"] * 2]),
    ],
)
def test_a_layer_has_passed_only_where_it_was_proved(
    outcome: Outcome, reason: Reason, expected: list[str]
) -> None:
    assert states(judged(outcome), reason) == [*expected, "nothing found"]


def test_a_syntax_failure_leaves_the_other_layers_open() -> None:
    verdict = judge("ann@@shop.test", Outcome.SYNTAX)
    assert states(verdict, "syntax") == ["failed", *["not asked"] * 4]
    assert advice_of(verdict, "syntax") == "This is not an address: there is more than one @."


def test_a_typo_is_a_question_and_nothing_else() -> None:
    """The domain of a typo is on lists of throwaways; the person has typed gmail.com."""
    signals = Signals(disposable=True, role=False, free_provider=False, suggestion="gmail.com")
    verdict = judge("ann@gmial.com", Outcome.DISPOSABLE, signals)
    advice = advice_of(verdict, "disposable")
    assert advice.startswith("Did you mean gmail.com?")
    assert "minutes or days" not in advice
    assert why_of(verdict, "disposable") == "Perhaps a typo: gmail.com?"
    assert answer_of(verdict).word == "Confirm"


def test_a_provider_that_answers_nobody_has_its_name() -> None:
    gmail = judged(Outcome.SMTP_BLOCKED, host="gmail-smtp-in.l.google.com")
    assert why_of(gmail, "smtp_blocked") == "Gmail does not answer checks"
    other = judged(Outcome.SMTP_BLOCKED)
    assert why_of(other, "smtp_blocked") == "The provider does not answer checks"


def test_the_reasons_of_many_addresses_name_a_typo_and_no_throwaway() -> None:
    assert reason_words("disposable", "YELLOW_LIGHT") == "Perhaps a typo"
    assert reason_words("disposable", "RED_LIGHT") == "Throwaway domain"
    assert reason_words("no_mx", "YELLOW_LIGHT") == "Perhaps a typo: domain takes no mail"
    assert reason_words("full", "YELLOW_LIGHT") == "Mailbox is full"
