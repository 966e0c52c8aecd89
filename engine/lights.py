"""Traffic lights: what to do with an address.

The table is the recommended interpretation order of the specification: read from the top,
the first row that fits decides. Pure.
"""

from collections.abc import Callable
from typing import Literal

from .verdict import Verdict

Light = Literal["GREEN_LIGHT", "YELLOW_LIGHT", "RED_LIGHT"]
LIGHTS_BEST_FIRST: tuple[Light, ...] = ("GREEN_LIGHT", "YELLOW_LIGHT", "RED_LIGHT")
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
