"""A result as one character: what a store keeps of each address, so that a page of a list counts
and filters a million of them without their rows.

Characters are stored: reasons and statuses are only appended. Pure.
"""

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from mailprobe.engine.verdict import PASSING, Light, Reason, Status, Verdict, light_of

REASONS: tuple[Reason, ...] = (
    *("accepted", "untested", "catch_all", "syntax", "disposable", "no_mx", "no_mailbox"),
    *("disabled", "full", "greylisted", "rate_limited", "temporary", "policy", "blocked_us"),
    *("smtp_blocked", "needs_smtputf8", "host_down", "host_error", "host_changed"),
    *("host_budget", "timeout", "no_connection_free", "resolver", "not_asked", "unclear"),
    *("bounced", "no_egress", "paused", "unconfirmed"),
)
STATUSES: tuple[Status, ...] = ("deliverable", "undeliverable", "unknown", "catch_all", "invalid")
LIGHTS: tuple[Light, ...] = ("GREEN_LIGHT", "YELLOW_LIGHT", "RED_LIGHT")
FIRST = 0x100  # the first character; two octets in UTF-8, and none of JSON or SQL
OF_REASON = 24  # characters: 3 lights of at most 8 statuses


class ResultKind(Struct, frozen=True):
    """What a mark stands for."""

    light: Light
    status: Status
    reason: Reason


def mark_of(verdict: Verdict, reason: Reason) -> str:
    return _BY_KIND[ResultKind(light_of(verdict), verdict.status, reason)]


def counts_of(marks: str) -> Counter[ResultKind]:
    """How many addresses there are of each kind."""
    return Counter({KINDS[mark]: marks.count(mark) for mark in set(marks) if mark in KINDS})


def passing_of(counts: Counter[ResultKind]) -> Counter[Reason]:
    """How many answers time may cure, by reason."""
    found: Counter[Reason] = Counter()
    for kind, number in counts.items():
        if kind.reason in PASSING:
            found[kind.reason] += number
    return found


def marks_of(kinds: Iterable[ResultKind]) -> frozenset[str]:
    return frozenset(_BY_KIND[kind] for kind in kinds)


KINDS: dict[str, ResultKind] = {
    chr(FIRST + OF_REASON * REASONS.index(reason) + 3 * place + LIGHTS.index(light)): ResultKind(
        light, status, reason
    )
    for reason in REASONS
    for place, status in enumerate(STATUSES)
    for light in LIGHTS
}
_BY_KIND = {kind: mark for mark, kind in KINDS.items()}
