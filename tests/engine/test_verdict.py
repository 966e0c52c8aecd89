"""The ladder: what each outcome is called, and the fourteen fields in which it is told."""

import msgspec
import pytest

from mailprobe.engine.verdict import (
    FIELDS,
    LADDER,
    NO_SIGNALS,
    Outcome,
    Signals,
    Verdict,
    as_row,
    judge,
)

ALL_SIGNALS = Signals(
    disposable=True,
    role=True,
    free_provider=True,
    smtp_blocked=True,
    suggestion="gmail.com",
)


@pytest.mark.parametrize(
    ("outcome", "status", "valid", "confidence", "failed_check"),
    [
        (Outcome.SYNTAX, "invalid", False, 0.0, "syntax"),
        (Outcome.DISPOSABLE, "invalid", False, 0.0, "disposable"),
        (Outcome.NO_MX, "invalid", False, 0.0, "no_mx"),
        (Outcome.RESOLVER_FAILED, "unknown", False, 0.50, None),
        (Outcome.SMTP_BLOCKED, "unknown", False, 0.75, None),
        (Outcome.DELIVERABLE, "deliverable", True, 0.97, None),
        (Outcome.DELIVERABLE_UNTESTED, "deliverable", True, 0.90, None),
        (Outcome.CATCH_ALL, "catch_all", True, 0.65, None),
        (Outcome.UNDELIVERABLE, "undeliverable", False, 0.02, "smtp"),
        (Outcome.REFUSED_BY_POLICY, "unknown", False, 0.50, None),
        (Outcome.MAILBOX_FULL, "unknown", False, 0.50, None),
        (Outcome.TEMPORARY, "unknown", False, 0.50, None),
        (Outcome.NEEDS_SMTPUTF8, "unknown", False, 0.50, None),
        (Outcome.CONVERSATION_FAILED, "unknown", False, 0.50, "smtp"),
        (Outcome.TIMED_OUT, "unknown", False, 0.50, "smtp_timeout"),
        (Outcome.NOT_ASKED, "unknown", False, 0.50, None),
        (Outcome.PAUSED, "unknown", False, 0.50, None),
    ],
)
def test_the_ladder(outcome, status, valid, confidence, failed_check):
    verdict = judge("ann@shop.test", outcome)
    assert verdict.status == status
    assert verdict.valid is valid
    assert verdict.confidence == confidence
    assert verdict.failed_check == failed_check


def test_every_outcome_has_its_rung():
    assert set(LADDER) == set(Outcome)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_the_flags_follow_the_outcome(outcome):
    verdict = judge("ann@shop.test", outcome)
    assert verdict.catch_all is (outcome is Outcome.CATCH_ALL)
    assert verdict.smtp_blocked is (outcome is Outcome.SMTP_BLOCKED)
    assert verdict.catch_all is (verdict.status == "catch_all")


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome != Outcome.SYNTAX])
def test_every_outcome_but_syntax_has_signals(outcome):
    verdict = judge(
        "ann@gmial.com",
        outcome,
        signals=ALL_SIGNALS,
        mx_host="mx.gmial.com",
        mx_found=True,
        latency_ms=12,
    )
    assert (verdict.disposable, verdict.role, verdict.free_provider) == (True, True, True)
    assert verdict.suggestion == "gmail.com"
    assert (verdict.mx_found, verdict.mx_host, verdict.latency_ms) == (True, "mx.gmial.com", 12)


def test_a_syntax_failure_says_nothing_else():
    verdict = judge("nobody at all", Outcome.SYNTAX, signals=ALL_SIGNALS, latency_ms=12)
    assert verdict == judge("nobody at all", Outcome.SYNTAX)
    flags = ("disposable", "role", "free_provider", "smtp_blocked", "mx_found")
    assert not any(getattr(verdict, name) for name in flags)
    assert (verdict.suggestion, verdict.mx_host, verdict.latency_ms) == (None, None, 0)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_signals_change_no_status(outcome):
    plain, signalled = (
        judge("ann@shop.test", outcome, signals=signals) for signals in (NO_SIGNALS, ALL_SIGNALS)
    )
    for name in ("status", "valid", "confidence", "failed_check", "catch_all", "smtp_blocked"):
        assert getattr(plain, name) == getattr(signalled, name)


def test_the_fourteen_fields_stand_in_their_public_order():
    expected = [
        "email",
        "valid",
        "status",
        "confidence",
        "failed_check",
        "disposable",
        "role",
        "free_provider",
        "catch_all",
        "smtp_blocked",
        "mx_found",
        "mx_host",
        "suggestion",
        "latency_ms",
    ]
    verdict = judge("ann@shop.test", Outcome.DELIVERABLE)
    assert list(FIELDS) == expected
    assert list(as_row(verdict)) == expected
    assert list(msgspec.json.decode(msgspec.json.encode(verdict))) == expected


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_verdict_survives_json(outcome):
    verdict = judge("ann@shop.test", outcome, signals=ALL_SIGNALS, mx_host="mx", mx_found=True)
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict


def test_a_verdict_is_frozen():
    verdict = judge("ann@shop.test", Outcome.DELIVERABLE)
    with pytest.raises(AttributeError):
        verdict.status = "unknown"  # type: ignore[misc]  # the assignment must fail


def test_the_verdict_repeats_the_email_as_it_was_sent():
    for text in (" Ann@Shop.Test", "", "\0", "ann@shop.test\n"):
        assert judge(text, Outcome.SYNTAX).email == text
