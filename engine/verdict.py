"""The outcome of an address, the verdict with its public fields, and its light: what to do with it.

The table LADDER alone maps an outcome to status, valid, confidence and failed_check, and the
table LIGHTS a verdict to its light.
Pure: no clock, no network.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, NamedTuple

import msgspec

Status = Literal["deliverable", "undeliverable", "unknown", "catch_all", "invalid"]
FailedCheck = Literal["syntax", "disposable", "no_mx", "smtp", "smtp_timeout"]
Reason = Literal[
    "accepted",
    "untested",
    "catch_all",
    "syntax",
    "disposable",
    "no_mx",
    "no_mailbox",
    "disabled",
    "bounced",
    "full",
    "greylisted",
    "rate_limited",
    "temporary",
    "policy",
    "blocked_us",
    "smtp_blocked",
    "needs_smtputf8",
    "host_down",
    "host_error",
    "host_changed",
    "host_budget",
    "unconfirmed",
    "timeout",
    "no_connection_free",
    "no_egress",
    "resolver",
    "not_asked",
    "paused",
    "unclear",
]

# Reasons that may pass within minutes. Not `full`, which its owner must cure, nor `blocked_us`,
# which we must cure: asking again would only confirm our bad reputation.
PASSING: frozenset[Reason] = frozenset(
    (
        *("greylisted", "rate_limited", "temporary", "host_down", "host_error", "timeout"),
        *("no_connection_free", "no_egress", "resolver", "untested", "host_changed"),
        "paused",
    )
)
# `us` is this machine: its address, its names, its reputation. `network` lies between.
Blame = Literal["address", "host", "us", "network"]


class Outcome(Enum):
    """Everything that the five layers can find out about an address."""

    SYNTAX = "syntax"
    DISPOSABLE = "disposable"
    NO_MX = "no_mx"
    RESOLVER_FAILED = "resolver_failed"
    SMTP_BLOCKED = "smtp_blocked"
    DELIVERABLE = "deliverable"
    DELIVERABLE_UNTESTED = "deliverable_untested"  # accepted; the random address was inconclusive
    CATCH_ALL = "catch_all"
    UNDELIVERABLE = "undeliverable"
    REFUSED_BY_POLICY = "refused_by_policy"  # because of us, by a policy, or unclear
    MAILBOX_FULL = "mailbox_full"
    TEMPORARY = "temporary"  # a 4xx to RCPT, whatever its words
    NEEDS_SMTPUTF8 = "needs_smtputf8"  # the host does not offer it, so no RCPT was sent
    CONVERSATION_FAILED = "conversation_failed"
    TIMED_OUT = "timed_out"
    HOST_CHANGED = "host_changed"  # the host contradicted an answer that it gave before
    HOST_BUDGET = "host_budget"  # not asked: it tolerates no more refusals from us at the moment
    UNCONFIRMED = "unconfirmed"  # refused by a host that has accepted no recipient yet
    NO_CONNECTION_FREE = "no_connection_free"  # all connections that we may open there were in use
    NO_EGRESS = "no_egress"  # no egress may ask this host now, or none could connect
    BOUNCED = "bounced"  # not asked: its owner says that mail to it came back
    NOT_ASKED = "not_asked"  # layer 4 was left out, by a setting or by the request
    PAUSED = "paused"  # not asked: the operator has paused its domain, or its hosts

    __hash__ = object.__hash__  # Enum's own hash is slow Python code


# Outcome.SYNTAX takes 0.12 µs in Python 3.11, and judge() is called for every address.
_SYNTAX, _CATCH_ALL, _SMTP_BLOCKED = Outcome.SYNTAX, Outcome.CATCH_ALL, Outcome.SMTP_BLOCKED


class Rung(NamedTuple):
    """One row of the ladder."""

    status: Status
    valid: bool
    confidence: float
    failed_check: FailedCheck | None


LADDER: dict[Outcome, Rung] = {
    Outcome.SYNTAX: Rung("invalid", False, 0.0, "syntax"),
    Outcome.DISPOSABLE: Rung("invalid", False, 0.0, "disposable"),
    Outcome.NO_MX: Rung("invalid", False, 0.0, "no_mx"),
    Outcome.RESOLVER_FAILED: Rung("unknown", False, 0.50, None),
    Outcome.SMTP_BLOCKED: Rung("unknown", False, 0.75, None),
    Outcome.DELIVERABLE: Rung("deliverable", True, 0.97, None),
    Outcome.DELIVERABLE_UNTESTED: Rung("deliverable", True, 0.90, None),
    Outcome.CATCH_ALL: Rung("catch_all", True, 0.65, None),
    Outcome.UNDELIVERABLE: Rung("undeliverable", False, 0.02, "smtp"),
    Outcome.REFUSED_BY_POLICY: Rung("unknown", False, 0.50, None),
    Outcome.MAILBOX_FULL: Rung("unknown", False, 0.50, None),
    Outcome.TEMPORARY: Rung("unknown", False, 0.50, None),
    Outcome.NEEDS_SMTPUTF8: Rung("unknown", False, 0.50, None),
    Outcome.CONVERSATION_FAILED: Rung("unknown", False, 0.50, "smtp"),
    Outcome.TIMED_OUT: Rung("unknown", False, 0.50, "smtp_timeout"),
    Outcome.HOST_CHANGED: Rung("unknown", False, 0.50, None),
    Outcome.HOST_BUDGET: Rung("unknown", False, 0.50, None),
    Outcome.UNCONFIRMED: Rung("unknown", False, 0.50, None),
    Outcome.NO_CONNECTION_FREE: Rung("unknown", False, 0.50, None),
    Outcome.NO_EGRESS: Rung("unknown", False, 0.50, None),
    Outcome.BOUNCED: Rung("undeliverable", False, 0.02, "smtp"),
    Outcome.NOT_ASKED: Rung("unknown", False, 0.50, None),
    Outcome.PAUSED: Rung("unknown", False, 0.50, None),
}


class Signals(msgspec.Struct, frozen=True):
    """What the lists know of an address; only `disposable` changes the status."""

    disposable: bool = False
    role: bool = False
    free_provider: bool = False
    smtp_blocked: bool = False
    suggestion: str | None = None  # the corrected domain only


NO_SIGNALS = Signals()


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """One address's result: the fourteen public fields, in their public order.

    `latency_ms` is in whole milliseconds from the submission of the address.
    """

    email: str
    valid: bool
    status: Status
    confidence: float
    failed_check: FailedCheck | None
    disposable: bool
    role: bool
    free_provider: bool
    catch_all: bool
    smtp_blocked: bool
    mx_found: bool
    mx_host: str | None
    suggestion: str | None
    latency_ms: int


def judge(
    email: str,
    outcome: Outcome,
    signals: Signals = NO_SIGNALS,
    mx_host: str | None = None,
    mx_found: bool = False,
    latency_ms: int = 0,
) -> Verdict:
    """Build the verdict of an outcome.

    The verdict of a syntax failure has no signals and no latency.
    """
    status, valid, confidence, failed_check = LADDER[outcome]
    if outcome is _SYNTAX:
        signals, latency_ms = NO_SIGNALS, 0
    return Verdict(
        email,
        valid,
        status,
        confidence,
        failed_check,
        signals.disposable,
        signals.role,
        signals.free_provider,
        outcome is _CATCH_ALL,
        outcome is _SMTP_BLOCKED,
        mx_found,
        mx_host,
        signals.suggestion,
        latency_ms,
    )


FIELDS: tuple[str, ...] = Verdict.__struct_fields__


def as_row(verdict: Verdict) -> dict[str, Any]:
    """The verdict as a plain mapping, fields in their public order."""
    return {name: getattr(verdict, name) for name in FIELDS}


# -- lights ----

Light = Literal["GREEN_LIGHT", "YELLOW_LIGHT", "RED_LIGHT"]
LIGHTS_BEST_FIRST: tuple[Light, ...] = ("GREEN_LIGHT", "YELLOW_LIGHT", "RED_LIGHT")

CONFIDENCE_SURE = 0.9
CONFIDENCE_BLOCKED = 0.75
CONFIDENCE_FAIR = 0.5

# The recommended interpretation order of the specification: the first row that fits decides.
LIGHTS: tuple[tuple[Callable[[Verdict], bool], Light], ...] = (
    (lambda v: v.suggestion is not None, "YELLOW_LIGHT"),
    (lambda v: v.disposable, "RED_LIGHT"),
    (lambda v: v.status in ("invalid", "undeliverable"), "RED_LIGHT"),
    (lambda v: v.status == "catch_all" or v.catch_all, "YELLOW_LIGHT"),
    (
        lambda v: v.status == "unknown" and v.smtp_blocked and v.confidence >= CONFIDENCE_BLOCKED,
        "YELLOW_LIGHT",
    ),
    (lambda v: v.status == "unknown" and v.mx_found and not v.smtp_blocked, "YELLOW_LIGHT"),
    (lambda v: v.valid, "GREEN_LIGHT"),
    (lambda v: v.confidence >= CONFIDENCE_SURE, "GREEN_LIGHT"),
    (lambda v: v.confidence >= CONFIDENCE_FAIR, "YELLOW_LIGHT"),
    (lambda v: True, "RED_LIGHT"),
)


def light_of(verdict: Verdict) -> Light:
    """What to do with the address: accept, take care, or reject. Cached for verdicts alike."""
    kind = (
        *(verdict.status, verdict.failed_check, verdict.valid, verdict.confidence),
        *(verdict.disposable, verdict.catch_all, verdict.smtp_blocked, verdict.mx_found),
        verdict.suggestion is not None,
    )
    light = _lights.get(kind)
    if light is None:
        if len(_lights) >= KINDS_MAX:
            _lights.clear()
        light = _lights[kind] = next(light for fits, light in LIGHTS if fits(verdict))
    return light


# The fields that the table tests -> its light. Bounded: confidence may be any number.
_lights: dict[tuple[object, ...], Light] = {}
KINDS_MAX = 1000
