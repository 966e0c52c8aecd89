"""The recommended interpretation order, rule by rule, and the text for each reason."""

from typing import Any, get_args

import msgspec
import pytest

from mailprobe.api.results.lights import WORDS
from mailprobe.engine.verdict import (
    LIGHTS,
    Light,
    Outcome,
    Reason,
    Signals,
    Verdict,
    judge,
    light_of,
)

TYPO = Signals(suggestion="gmail.com")
BASE = judge("ann@shop.test", Outcome.DELIVERABLE, mx_found=True, mx_host="mx.shop.test")


def changed(**fields: Any) -> Verdict:
    return msgspec.structs.replace(BASE, **fields)


@pytest.mark.parametrize(
    ("rule", "verdict", "light"),
    [
        (1, judge("a@gmial.com", Outcome.DISPOSABLE, signals=TYPO), "YELLOW_LIGHT"),
        (1, judge("a@gmial.com", Outcome.DELIVERABLE, signals=TYPO), "YELLOW_LIGHT"),
        (2, judge("a@b.test", Outcome.DISPOSABLE, signals=Signals(disposable=True)), "RED_LIGHT"),
        (2, changed(disposable=True), "RED_LIGHT"),
        (3, judge("a", Outcome.SYNTAX), "RED_LIGHT"),
        (3, judge("a@b.test", Outcome.NO_MX), "RED_LIGHT"),
        (3, judge("a@b.test", Outcome.UNDELIVERABLE, mx_found=True), "RED_LIGHT"),
        (4, judge("a@b.test", Outcome.CATCH_ALL, mx_found=True), "YELLOW_LIGHT"),
        (4, changed(catch_all=True), "YELLOW_LIGHT"),
        (5, judge("a@gmail.com", Outcome.SMTP_BLOCKED, mx_found=True), "YELLOW_LIGHT"),
        (6, judge("a@b.test", Outcome.TIMED_OUT, mx_found=True), "YELLOW_LIGHT"),
        (6, judge("a@b.test", Outcome.TEMPORARY, mx_found=True), "YELLOW_LIGHT"),
        (7, judge("a@b.test", Outcome.DELIVERABLE, mx_found=True), "GREEN_LIGHT"),
        (7, judge("a@b.test", Outcome.DELIVERABLE_UNTESTED, mx_found=True), "GREEN_LIGHT"),
        (8, changed(valid=False, confidence=0.9), "GREEN_LIGHT"),
        (8, changed(valid=False, confidence=0.7), "YELLOW_LIGHT"),
        (8, judge("a@b.test", Outcome.RESOLVER_FAILED), "YELLOW_LIGHT"),
        (8, changed(valid=False, confidence=0.49), "RED_LIGHT"),
        (8, changed(valid=False, status="unknown", smtp_blocked=True, confidence=0.4), "RED_LIGHT"),
    ],
)  # fmt: skip
def test_the_first_rule_that_fits_gives_the_light(
    rule: int, verdict: Verdict, light: Light
) -> None:
    fitting = next(place for place, (fits, _) in enumerate(LIGHTS, 1) if fits(verdict))
    assert min(fitting, 8) == rule
    assert light_of(verdict) == light


def test_each_reason_has_words_for_a_person() -> None:
    assert set(WORDS) == set(get_args(Reason))
    assert len(set(WORDS.values())) == len(WORDS)
