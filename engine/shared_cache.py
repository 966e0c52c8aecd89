"""The shared cache: facts that the engines of one fleet exchange, each with a key and an end.

A fact is what one engine has learned, so that the others need not cause another refusal, random
recipient or query to learn it. An engine shares only what it has found itself, so no fact outlives
its first end. The listener decides what a fact means here: facts that it does not understand are
ignored, and its own findings go first.

No fact has a mailbox. Without a shared cache nothing is shared, and nothing is computed for it.
"""

from collections.abc import Callable
from math import isfinite
from typing import Literal, Protocol

import msgspec

from .background import log_fault

FactKind = Literal["backoff", "strike", "acceptance", "route"]

# The longest that a fact of each kind may last, whatever it says itself.
KEPT_S_MAX: dict[str, float] = {
    "backoff": 3600.0,  # throttle.REFUSAL_BACKOFF_S_MAX
    "strike": 3600.0,
    "acceptance": 6 * 3600.0,  # EngineSettings.cache_s
    "route": 6 * 3600.0,
}
KEY_OCTETS_MAX = 640  # an egress, an exchange and a domain, 253 octets at most each of the latter
VALUE_OCTETS_MAX = 4096  # the longest is a route; one of more exchanges is not shared


class Fact(msgspec.Struct, frozen=True):
    """One thing learned. The parts of the key are separated by spaces."""

    kind: str  # a FactKind, or that of another version
    key: str
    value: str
    left_s: float  # from now

    @property
    def is_sound(self) -> bool:
        """Is its kind known, its size bounded, and its end in the future?"""
        return (
            self.kind in KEPT_S_MAX
            and isfinite(self.left_s)
            and self.left_s > 0
            and 0 < len(self.key.encode(errors="replace")) <= KEY_OCTETS_MAX
            and len(self.value.encode(errors="replace")) <= VALUE_OCTETS_MAX
        )

    @property
    def kept_s(self) -> float:
        """How long it may be believed."""
        return min(self.left_s, KEPT_S_MAX[self.kind])


Listener = Callable[[Fact], bool]  # whether it was of use; it ignores what it does not understand


class SharedCache(Protocol):
    """Carries facts between engines. Synchronous; never calls a listener from within a call."""

    def share(self, fact: Fact) -> None:
        """Pass this fact to the other engines, soon. It may be lost."""

    def listen(self, kinds: tuple[FactKind, ...], listener: Listener) -> None:
        """Call this listener with each sound fact of these kinds that another engine shares."""


def heed(fact: Fact, listener: Listener) -> bool:
    """Call the listener. Facts that it cannot read, of another version, are ignored."""
    try:
        return fact.is_sound and listener(fact)
    except (ValueError, KeyError, msgspec.MsgspecError):
        return False
    except Exception:  # a bug; the facts after this one are still to be handled
        log_fault(listener)
        return False
