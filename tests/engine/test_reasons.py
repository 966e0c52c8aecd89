"""Why a verdict came about, and who is to blame."""

from typing import get_args

import pytest

from mailprobe.engine import deciding_rules
from mailprobe.engine.reasons import (
    BY_OUTCOME,
    VerdictCause,
    cause_by_result,
    verdict_cause,
)
from mailprobe.engine.verdict import PASSING, Blame, Outcome, Reason, judge

CASES = [
    (Outcome.SYNTAX, "syntax", "syntax", "address"),
    (Outcome.NO_MX, "no_mx", "no_mx", "address"),
    (Outcome.RESOLVER_FAILED, "mx.no-host", "no_mx", "host"),
    (Outcome.RESOLVER_FAILED, "resolver", "resolver", "network"),
    (Outcome.RESOLVER_FAILED, "exchange.lookup-failed", "resolver", "network"),
    (Outcome.DELIVERABLE, "accepted", "accepted", None),
    (Outcome.CATCH_ALL, "catch-all.random-accepted", "catch_all", "host"),
    (Outcome.UNDELIVERABLE, "no-mailbox.unknown", "no_mailbox", "address"),
    (Outcome.UNDELIVERABLE, "disabled.said", "disabled", "address"),
    (Outcome.UNDELIVERABLE, "enhanced.disabled", "disabled", "address"),
    (Outcome.MAILBOX_FULL, "full.quota", "full", "address"),
    (Outcome.TEMPORARY, "greylist.named", "greylisted", "host"),
    (Outcome.TEMPORARY, "rate.limit", "rate_limited", "host"),
    (Outcome.TEMPORARY, "us.rate", "rate_limited", "us"),
    (Outcome.TEMPORARY, "us.blocklist", "blocked_us", "us"),
    (Outcome.TEMPORARY, "not-understood", "temporary", "host"),
    (Outcome.TEMPORARY, "no-mailbox.unknown", "temporary", "host"),
    (Outcome.REFUSED_BY_POLICY, "us.blocklist", "blocked_us", "us"),
    (Outcome.REFUSED_BY_POLICY, "us.helo", "blocked_us", "us"),
    (Outcome.REFUSED_BY_POLICY, "relay.named", "policy", "host"),
    (Outcome.REFUSED_BY_POLICY, "auth.named", "policy", "host"),
    (Outcome.REFUSED_BY_POLICY, "not-understood", "unclear", "host"),
    (Outcome.CONVERSATION_FAILED, "connect.failed", "host_down", "host"),
    (Outcome.CONVERSATION_FAILED, "connect.unreachable", "host_down", "network"),
    (Outcome.CONVERSATION_FAILED, "closed.rcpt", "host_error", "host"),
    (Outcome.CONVERSATION_FAILED, "garbage.banner", "host_error", "host"),
    (Outcome.CONVERSATION_FAILED, "us.reputation", "blocked_us", "us"),
    (Outcome.CONVERSATION_FAILED, "greylist.postscreen", "greylisted", "host"),
    (Outcome.CONVERSATION_FAILED, "ban.recognised", "blocked_us", "us"),
    (Outcome.HOST_BUDGET, "budget.refusals", "host_budget", "host"),
    (Outcome.UNCONFIRMED, "host.accepts-nobody", "unconfirmed", "host"),
    (Outcome.TIMED_OUT, "clock.connect", "timeout", "host"),
    (Outcome.TIMED_OUT, "clock.rcpt", "timeout", "host"),
]


@pytest.mark.parametrize(("outcome", "rule", "reason", "blame"), CASES)
def test_the_outcome_and_the_rule_give_the_cause(
    outcome: Outcome, rule: str, reason: Reason, blame: Blame | None
) -> None:
    assert rule in deciding_rules()
    assert verdict_cause(outcome, rule) == VerdictCause(reason, blame)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_cause_by_every_rule(outcome: Outcome) -> None:
    found = {verdict_cause(outcome, rule) for rule in deciding_rules()}
    assert {cause.reason for cause in found} <= set(get_args(Reason))
    assert {cause.blame for cause in found} <= {*get_args(Blame), None}
    no_blame = {cause for cause in found if cause.blame is None}
    assert all(cause.reason in ("accepted", "not_asked") for cause in no_blame)


def test_only_an_address_that_was_rejected_is_to_blame() -> None:
    """A failure of ours, of the network or of the host is never the address's."""
    blaming = {
        outcome
        for outcome in Outcome
        for rule in deciding_rules()
        if verdict_cause(outcome, rule).blame == "address"
    }
    assert blaming == {
        Outcome.SYNTAX,
        Outcome.DISPOSABLE,
        Outcome.NO_MX,
        Outcome.UNDELIVERABLE,
        Outcome.MAILBOX_FULL,
        Outcome.BOUNCED,
    }


@pytest.mark.parametrize("outcome", Outcome)
def test_a_result_alone_tells_the_same_as_far_as_it_can(outcome: Outcome) -> None:
    found = outcome not in (
        *(Outcome.SYNTAX, Outcome.DISPOSABLE, Outcome.NO_MX, Outcome.RESOLVER_FAILED),
    )
    cause = cause_by_result(judge("ann@shop.test", outcome, mx_found=found))
    untold = (
        Outcome.MAILBOX_FULL,
        Outcome.NEEDS_SMTPUTF8,
        Outcome.HOST_CHANGED,
        Outcome.HOST_BUDGET,
        Outcome.UNCONFIRMED,
        Outcome.BOUNCED,
        Outcome.NOT_ASKED,
        Outcome.PAUSED,
        Outcome.NO_EGRESS,
    )
    if outcome in BY_OUTCOME and outcome not in untold:
        assert cause == BY_OUTCOME[outcome]
    elif outcome is Outcome.TIMED_OUT:
        assert cause.reason == "timeout"


def test_a_passing_reason_never_blames_the_address() -> None:
    assert PASSING.isdisjoint(
        {"accepted", "no_mailbox", "disabled", "full", "blocked_us", "policy"}
    )
