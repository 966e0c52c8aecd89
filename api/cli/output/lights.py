"""Traffic lights, and the words for why a verdict is what it is.

Two tables, read from the top: the first line that fits decides. The lights are
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

# key in summaries -> words for a person
REASONS: dict[str, tuple[Test, str]] = {
    "syntax": (lambda v: v.failed_check == "syntax", "not an address"),
    "disposable": (lambda v: v.failed_check == "disposable", "throwaway domain"),
    "no_mx": (lambda v: v.failed_check == "no_mx", "domain takes no mail"),
    "no_mailbox": (lambda v: v.status == "undeliverable", "no such mailbox"),
    "smtp_timeout": (lambda v: v.failed_check == "smtp_timeout", "no answer in time"),
    "smtp": (lambda v: v.failed_check == "smtp", "mail host gave no answer"),
    "smtp_blocked": (lambda v: v.smtp_blocked, "provider lets nobody ask"),
    "catch_all": (lambda v: v.status == "catch_all", "host accepts any name"),
    "accepted": (lambda v: v.status == "deliverable", "mailbox accepted"),
    "resolver": (lambda v: not v.mx_found, "name service failed"),
    "inconclusive": (lambda v: True, "host would not say"),
}


# reasons that only a mail host's own words give
ANSWERED = ("accepted", "no_mailbox", "catch_all", "inconclusive")


def dead_end(reasons: Mapping[str, int]) -> str | None:
    """What to look at where nothing outside could be reached, by counts of reasons."""
    if any(reasons.get(key) for key in ANSWERED):
        return None
    if reasons.get("smtp") or reasons.get("smtp_timeout"):
        return "no mail host answered; mailprobe doctor tells whether this machine can reach any"
    if reasons.get("resolver") and not (reasons.get("no_mx") or reasons.get("smtp_blocked")):
        return "no name could be looked up; mailprobe doctor tells why"
    return None


def judged(verdict: Verdict) -> tuple[Light, str]:
    """The light and the key of the reason; looked up where a verdict like it was judged before."""
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


# All that the two tables look at -> what they say. A service's confidence may be any number.
_judged: dict[tuple[object, ...], tuple[Light, str]] = {}
KINDS_MAX = 1000


def light_of(verdict: Verdict) -> Light:
    """What to do with the address: proceed, take care, or reject."""
    return judged(verdict)[0]


def reason_of(verdict: Verdict) -> str:
    """The key of the first reason that fits."""
    return judged(verdict)[1]


def words_of(verdict: Verdict) -> str:
    """The reason in a few words for a person."""
    return REASONS[reason_of(verdict)][1]
