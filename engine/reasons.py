"""Why a verdict came about, in one word, and who is to blame.

The outcome decides, and after a refusal the rule that read its reply. The words
are documented in docs/verdicts.md. Pure: no clock, no network.
"""

from typing import NamedTuple

from .dns.messages import DNS_LAG_RULE
from .smtp.catchall import RANDOM_UNANSWERED, RANDOM_UNASKED
from .smtp.replies.rules import Meaning, standard_rules
from .smtp.tolerance.limits import BAN_RULE
from .verdict import Blame, Outcome, Reason, Verdict


class VerdictCause(NamedTuple):
    """The reason for a verdict; `blame` is None where nothing went wrong."""

    reason: Reason
    blame: Blame | None


BY_OUTCOME: dict[Outcome, VerdictCause] = {
    Outcome.SYNTAX: VerdictCause("syntax", "address"),
    Outcome.DISPOSABLE: VerdictCause("disposable", "address"),
    Outcome.NO_MX: VerdictCause("no_mx", "address"),
    Outcome.RESOLVER_FAILED: VerdictCause("resolver", "network"),
    Outcome.SMTP_BLOCKED: VerdictCause("smtp_blocked", "host"),
    Outcome.DELIVERABLE: VerdictCause("accepted", None),
    Outcome.DELIVERABLE_UNTESTED: VerdictCause("accepted", None),
    Outcome.CATCH_ALL: VerdictCause("catch_all", "host"),
    Outcome.MAILBOX_FULL: VerdictCause("full", "address"),
    Outcome.NEEDS_SMTPUTF8: VerdictCause("needs_smtputf8", "host"),
    Outcome.HOST_BUDGET: VerdictCause("host_budget", "host"),
    Outcome.UNCONFIRMED: VerdictCause("unconfirmed", "host"),
    Outcome.HOST_CHANGED: VerdictCause("host_changed", "host"),
    Outcome.NO_EGRESS: VerdictCause("no_egress", "us"),
    Outcome.BOUNCED: VerdictCause("bounced", "address"),
    Outcome.NOT_ASKED: VerdictCause("not_asked", None),
    Outcome.PAUSED: VerdictCause("paused", "us"),
}

# Of the engine's own rules, where no reply was read.
BY_RULE: dict[str, VerdictCause] = {
    # The resolver has answered: the domain is to blame, and asking again does not help.
    "mx.no-host": VerdictCause("no_mx", "host"),
    "exchange.no-address": VerdictCause("host_down", "host"),
    "exchange.not-public": VerdictCause("host_down", "host"),
    DNS_LAG_RULE: VerdictCause("resolver", "us"),
    "connect.failed": VerdictCause("host_down", "host"),
    "connect.unreachable": VerdictCause("host_down", "network"),
    RANDOM_UNANSWERED: VerdictCause("untested", "host"),
    RANDOM_UNASKED: VerdictCause("untested", "host"),
    # Not the network's: one result cannot tell a dead host from a closed port 25.
    "clock.connect": VerdictCause("timeout", "host"),
    BAN_RULE: VerdictCause("blocked_us", "us"),
    "clock.permit": VerdictCause("no_connection_free", "us"),
}

BY_MEANING: dict[Meaning, VerdictCause] = {
    Meaning.GREYLISTED: VerdictCause("greylisted", "host"),
    Meaning.RATE_LIMITED: VerdictCause("rate_limited", "host"),
    Meaning.TEMPORARY: VerdictCause("temporary", "host"),
    Meaning.BLOCKED_POLICY: VerdictCause("policy", "host"),
    Meaning.RELAY_DENIED: VerdictCause("policy", "host"),
    Meaning.NEEDS_AUTH: VerdictCause("policy", "host"),
    Meaning.TLS_DEMANDED: VerdictCause("policy", "host"),
    Meaning.BAD_HELO_OR_RDNS: VerdictCause("blocked_us", "us"),
    Meaning.SENDER_REFUSED: VerdictCause("blocked_us", "us"),
}

UNCLEAR = VerdictCause("unclear", "host")

_causes: dict[tuple[Outcome, str], VerdictCause] = {}  # bounded: outcomes times rules


def verdict_cause(outcome: Outcome, rule: str) -> VerdictCause:
    """Return the cause of an outcome that was decided by this rule, one of `deciding_rules()`."""
    key = (outcome, rule)
    cause = _causes.get(key)
    if cause is None:
        cause = _causes[key] = _find(outcome, rule)
    return cause


def _find(outcome: Outcome, rule: str) -> VerdictCause:
    if rule in BY_RULE:
        return BY_RULE[rule]
    if outcome in BY_OUTCOME:
        return BY_OUTCOME[outcome]
    if outcome is Outcome.TIMED_OUT:
        return VerdictCause("timeout", "host")
    reading = standard_rules().readings.get(rule)
    if outcome is Outcome.UNDELIVERABLE:
        is_disabled = reading is not None and reading.meaning is Meaning.DISABLED
        return VerdictCause("disabled" if is_disabled else "no_mailbox", "address")
    if rule.startswith(("closed.", "garbage.")):
        return VerdictCause("host_error", "host")
    if reading is None:
        return BY_MEANING[Meaning.TEMPORARY] if outcome is Outcome.TEMPORARY else UNCLEAR
    if reading.about_us:
        is_rate = reading.meaning is Meaning.RATE_LIMITED
        return VerdictCause("rate_limited" if is_rate else "blocked_us", "us")
    if outcome is Outcome.TEMPORARY:
        return BY_MEANING.get(reading.meaning, BY_MEANING[Meaning.TEMPORARY])
    return BY_MEANING.get(reading.meaning, UNCLEAR)


def cause_by_result(verdict: Verdict) -> VerdictCause:
    """Return the cause as far as the result's own fields show it."""
    match verdict.failed_check:
        case "syntax" | "disposable" | "no_mx" as reason:
            return VerdictCause(reason, "address")
        case "smtp_timeout":
            return VerdictCause("timeout", "host")
        case "smtp" if verdict.status == "undeliverable":
            return VerdictCause("no_mailbox", "address")
        case "smtp":
            return VerdictCause("host_error", "host")
    if verdict.status == "deliverable":
        return VerdictCause("accepted", None)
    if verdict.status == "catch_all":
        return VerdictCause("catch_all", "host")
    if verdict.smtp_blocked:
        return VerdictCause("smtp_blocked", "host")
    return UNCLEAR if verdict.mx_found else VerdictCause("resolver", "network")
