"""How many connections a host will bear, and how long it wants to be left alone.

The feedback rule is Postfix's (SCHEDULER_README): one whole round of good news
adds a connection, one whole round of bad news takes one away. A host that
refuses us again and again is rested, twice as long each time. Frozen values:
an event gives a new one.
"""

from dataclasses import dataclass, replace

LIMIT_AT_FIRST = 2  # as many as a polite stranger opens before it knows better

REST_AFTER = 2  # one failure may be chance, the second one in a row is an answer
UNREACHABLE_REST_S = 5.0
UNREACHABLE_REST_S_MAX = 300.0
REFUSAL_REST_S = 60.0
REFUSAL_REST_S_MAX = 3600.0


@dataclass(frozen=True, slots=True)
class Throttle:
    """The connections that may be open at once: 1 <= limit <= limit_max."""

    limit_max: int
    limit: int = LIMIT_AT_FIRST
    good: float = 0.0
    bad: float = 0.0

    def __post_init__(self) -> None:
        if self.limit > self.limit_max:
            object.__setattr__(self, "limit", self.limit_max)

    def after_success(self) -> "Throttle":
        good = self.good + 1 / self.limit
        if good < 1:
            return replace(self, good=good, bad=0.0)
        return replace(self, limit=min(self.limit + 1, self.limit_max), good=0.0, bad=0.0)

    def after_failure(self) -> "Throttle":
        bad = self.bad + 1 / self.limit
        if bad < 1:
            return replace(self, bad=bad, good=0.0)
        return replace(self, limit=max(self.limit - 1, 1), bad=0.0, good=0.0)


@dataclass(frozen=True, slots=True)
class Rest:
    """Whether a host is left alone, until when (trio's clock), and after how many refusals."""

    strikes: int = 0
    until: float = float("-inf")

    def after_strike(self, now: float, *, refused: bool) -> "Rest":
        """`refused`: the host spoke against us; otherwise it could not be reached."""
        strikes = self.strikes + 1
        if strikes < REST_AFTER:
            return Rest(strikes)
        first, most = (
            (REFUSAL_REST_S, REFUSAL_REST_S_MAX)
            if refused
            else (UNREACHABLE_REST_S, UNREACHABLE_REST_S_MAX)
        )
        doublings = min(strikes - REST_AFTER, 16)
        return Rest(strikes, now + min(first * 2**doublings, most))

    def resting(self, now: float) -> bool:
        return now < self.until
