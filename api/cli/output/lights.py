"""Traffic lights, and the reason for a verdict in words.

Two tables, read from the top: the first row that fits decides. The lights are
the recommended interpretation order of the specification. Pure.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from mailprobe.engine.verdict import Verdict

Light = Literal["GREEN_LIGHT", "YELLOW_LIGHT", "RED_LIGHT"]
Test = Callable[[Verdict], bool]

CONFIDENCE_SURE = 0.9
CONFIDENCE_BLOCKED = 0.75
CONFIDENCE_FAIR = 0.5

LIGHTS: tuple[tuple[Test, Light], ...] = (
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

# key in summaries -> (test, text for a person)
REASONS: dict[str, tuple[Test, str]] = {
    "syntax": (lambda v: v.failed_check == "syntax", "not an address"),
    "disposable": (lambda v: v.failed_check == "disposable", "throwaway domain"),
    "no_mx": (lambda v: v.failed_check == "no_mx", "domain takes no mail"),
    "no_mailbox": (lambda v: v.status == "undeliverable", "no such mailbox"),
    "smtp_timeout": (lambda v: v.failed_check == "smtp_timeout", "no answer in time"),
    "smtp": (lambda v: v.failed_check == "smtp", "mail host gave no answer"),
    "smtp_blocked": (lambda v: v.smtp_blocked, "provider blocks checking"),
    "catch_all": (lambda v: v.status == "catch_all", "host accepts any name"),
    "accepted": (lambda v: v.status == "deliverable", "mailbox accepted"),
    "resolver": (lambda v: not v.mx_found, "DNS look-up failed"),
    "inconclusive": (lambda v: True, "no clear answer"),
}


# reasons that need a mail host's reply
ANSWERED = ("accepted", "no_mailbox", "catch_all", "inconclusive")


def dead_end(reasons: Mapping[str, int]) -> str | None:
    """A hint if nothing outside could be reached, by the counts of reasons; else None."""
    if any(reasons.get(key) for key in ANSWERED):
        return None
    if reasons.get("smtp") or reasons.get("smtp_timeout"):
        return "no mail host answered; run mailprobe doctor to check whether this machine can reach any"
    if reasons.get("resolver") and not (reasons.get("no_mx") or reasons.get("smtp_blocked")):
        return "no name could be looked up; run mailprobe doctor to see why"
    return None


def judged(verdict: Verdict) -> tuple[Light, str]:
    """The light and the reason's key of a verdict, cached for verdicts alike."""
    kind = (
        *(verdict.status, verdict.failed_check, verdict.valid, verdict.confidence),
        *(verdict.disposable, verdict.catch_all, verdict.smtp_blocked, verdict.mx_found),
        verdict.suggestion is not None,
    )
    found = _judged.get(kind)
    if found is None:
        if len(_judged) >= KINDS_MAX:
            _judged.clear()
        light = next(light for fits, light in LIGHTS if fits(verdict))
        reason = next(key for key, (fits, _) in REASONS.items() if fits(verdict))
        found = _judged[kind] = light, reason
    return found


# The fields that the tables test -> their result. Bounded: confidence may be any number.
_judged: dict[tuple[object, ...], tuple[Light, str]] = {}
KINDS_MAX = 1000


def light_of(verdict: Verdict) -> Light:
    """What to do with the address: accept, take care, or reject."""
    return judged(verdict)[0]


def reason_of(verdict: Verdict) -> str:
    """The key of the first reason that fits."""
    return judged(verdict)[1]


def words_of(verdict: Verdict) -> str:
    """The reason as text for a person."""
    return REASONS[reason_of(verdict)][1]
