"""What an address turned out to be, and how that is told.

The ladder is a table and stands nowhere else: an outcome fixes status, valid,
confidence and failed_check of the answer. Pure: no clock, no network.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, NamedTuple

import msgspec

Status = Literal["deliverable", "undeliverable", "unknown", "catch_all", "invalid"]
FailedCheck = Literal["syntax", "disposable", "no_mx", "smtp", "smtp_timeout"]


class Outcome(Enum):
    """Everything that the five layers can find out about an address."""

    SYNTAX = "syntax"
    DISPOSABLE = "disposable"
    NO_MX = "no_mx"
    RESOLVER_FAILED = "resolver_failed"
    SMTP_BLOCKED = "smtp_blocked"
    DELIVERABLE = "deliverable"
    DELIVERABLE_UNTESTED = "deliverable_untested"  # accepted; the random address told nothing
    CATCH_ALL = "catch_all"
    UNDELIVERABLE = "undeliverable"
    REFUSED_BY_POLICY = "refused_by_policy"  # of us, of a rule, or a word we cannot read
    MAILBOX_FULL = "mailbox_full"
    TEMPORARY = "temporary"  # a 4xx to RCPT, whatever its words
    NEEDS_SMTPUTF8 = "needs_smtputf8"  # the host does not offer it: nothing was asked
    CONVERSATION_FAILED = "conversation_failed"
    TIMED_OUT = "timed_out"

    __hash__ = object.__hash__  # a member is itself alone; Enum's own is Python code


# To look a member up takes 0.12 µs in Python 3.11, and judge() is called for every address.
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
}


@dataclass(frozen=True, slots=True)
class Signals:
    """What the lists say of an address; none of it changes a status but `disposable`."""

    disposable: bool = False
    role: bool = False
    free_provider: bool = False
    smtp_blocked: bool = False
    suggestion: str | None = None  # the corrected domain alone


NO_SIGNALS = Signals()


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """One address's result: the fourteen public fields, in their public order.

    `latency_ms` is in whole milliseconds from the moment the address was taken up.
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
    """Tell an outcome as the fourteen fields.

    A syntax failure says nothing else at all: no signal, no time.
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
