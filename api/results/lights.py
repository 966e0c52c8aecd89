"""Traffic lights, and the reason for a verdict in words.

The table of the lights is the recommended interpretation order of the specification: read
from the top, the first row that fits decides. Pure.
"""

from collections.abc import Callable
from typing import Literal

from mailprobe.api.errors import Misuse
from mailprobe.engine.verdict import Blame, Reason, Verdict

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

# Each reason in words for a person.
WORDS: dict[str, str] = {
    "accepted": "mailbox accepted",
    "untested": "mailbox accepted, random one not answered",
    "catch_all": "host accepts any name",
    "syntax": "not an address",
    "disposable": "throwaway domain",
    "no_mx": "domain takes no mail",
    "no_mailbox": "no such mailbox",
    "disabled": "mailbox is closed",
    "full": "mailbox is full",
    "greylisted": "host asks to come back later",
    "rate_limited": "too many requests for the host",
    "temporary": "host has trouble at the moment",
    "policy": "host refuses by its policy",
    "blocked_us": "host refuses this machine",
    "smtp_blocked": "provider blocks checking",
    "needs_smtputf8": "host takes no such characters",
    "host_down": "mail host cannot be reached",
    "host_error": "mail host broke off",
    "host_changed": "host contradicts itself",
    "host_budget": "host bears no more refusals for now",
    "timeout": "no answer in time",
    "no_connection_free": "no connection of ours was free",
    "resolver": "DNS look-up failed",
    "not_asked": "mail host not asked",
    "unclear": "no clear answer",
}


# Reasons that need a mail host's reply to a recipient.
ANSWERED: tuple[Reason, ...] = (
    *("accepted", "catch_all", "no_mailbox", "disabled", "full", "greylisted", "temporary"),
    *("rate_limited", "policy", "unclear", "untested", "host_changed", "host_budget"),
)
UNREACHED: tuple[Reason, ...] = ("host_down", "timeout", "host_error")
OURS: tuple[Blame, ...] = ("us", "network")  # not the address's fault, nor the host's


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


def lights_of(names: str, option: str) -> frozenset[Light]:
    """`green,yellow` as lights. Raises Misuse."""
    known: dict[str, Light] = {
        "green": "GREEN_LIGHT",
        "yellow": "YELLOW_LIGHT",
        "red": "RED_LIGHT",
    }
    words = [word.strip().lower().removesuffix("_light") for word in names.split(",")]
    if not all(word in known for word in words):
        raise Misuse(f"{option} takes green, yellow and red, with a comma between them")
    return frozenset(known[word] for word in words)
