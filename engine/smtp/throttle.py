"""How many connections a host will bear, and how long it wants to be left alone.

The feedback rule is Postfix's (SCHEDULER_README): one whole round of good news
adds a connection, one whole round of bad news takes one away. A connection
refused while others live says at once how many are borne. A host that refuses
us again and again is rested, twice as long each time. Frozen values: an event
gives a new one.
"""

from dataclasses import dataclass, replace

LIMIT_AT_FIRST = 2  # as many as a polite stranger opens before it knows better
HOST_LIMIT_S = 30.0  # after one connection too many, before another one more is tried

BACKOFF_AFTER = 2  # one failure may be chance, the second one in a row is an answer
FAILURES_APART_S = 1.0  # an outage's failures in the same instant are one failure
UNREACHABLE_BACKOFF_S = 5.0
UNREACHABLE_BACKOFF_S_MAX = 300.0
REFUSAL_BACKOFF_S = 60.0
REFUSAL_BACKOFF_S_MAX = 3600.0

SILENT_SESSIONS_MAX = 5  # in which no recipient is answered. A tarpit is silent to some, so
SILENT_S = 5.0  # a host is not rested for silence that has lasted less

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Throttle:
    """The connections that may be open at once: 1 <= limit <= limit_max.

    Times are seconds of the clock that the caller keeps.
    """

    limit_max: int
    limit: int = LIMIT_AT_FIRST
    good: int = 0  # successes of the round under way
    bad: int = 0
    grow_from: float = NEVER

    def __post_init__(self) -> None:
        if self.limit > self.limit_max:
            object.__setattr__(self, "limit", self.limit_max)

    def with_late(self, late: int, now: float) -> int:
        """How many connections may be open while `late` of them wait for a late reply.

        Those cost the host next to nothing, so they do not count, unless it has just
        refused one connection too many.
        """
        return self.limit if now < self.grow_from else min(self.limit + late, self.limit_max)

    def after_success(self, now: float) -> "Throttle":
        if self.limit == self.limit_max and not self.bad:
            return self  # nothing to be won: of every reply, so the way there is short
        if self.good + 1 < self.limit:
            return replace(self, good=self.good + 1)
        grown = self.limit + (now >= self.grow_from)
        return replace(self, limit=min(grown, self.limit_max), good=0, bad=0)

    def after_greeting(self, now: float) -> "Throttle":
        """One more connection was taken: the host bears one more, unless it has had troubles."""
        if self.bad or now < self.grow_from or self.limit == self.limit_max:
            return self
        return replace(self, limit=min(2 * self.limit, self.limit_max), good=0)

    def after_failure(self) -> "Throttle":
        if self.bad + 1 < self.limit:
            return replace(self, bad=self.bad + 1)
        return replace(self, limit=max(self.limit - 1, 1), good=0, bad=0)

    def after_crowding(self, others: int, now: float) -> "Throttle":
        """A connection was refused while `others` were open: so many are borne."""
        limit = max(1, min(self.limit, others))
        return replace(self, limit=limit, good=0, bad=0, grow_from=now + HOST_LIMIT_S)


@dataclass(frozen=True, slots=True)
class HostBackoff:
    """Whether a host is left alone, until when, and after how many refusals."""

    failures: int = 0
    until: float = NEVER
    struck_at: float = NEVER

    def after_failure(self, now: float, *, refused: bool) -> "HostBackoff":
        """`refused`: the host spoke against us; otherwise it could not be reached."""
        if not refused and now - self.struck_at < FAILURES_APART_S:
            return self
        failures = self.failures + 1
        if failures < BACKOFF_AFTER:
            return HostBackoff(failures, struck_at=now)
        first, most = (
            (REFUSAL_BACKOFF_S, REFUSAL_BACKOFF_S_MAX)
            if refused
            else (UNREACHABLE_BACKOFF_S, UNREACHABLE_BACKOFF_S_MAX)
        )
        doublings = min(failures - BACKOFF_AFTER, 16)
        return HostBackoff(failures, now + min(first * 2**doublings, most), now)

    def active(self, now: float) -> bool:
        return now < self.until

    def doubtful(self, now: float) -> bool:
        """Resting, or struck a moment ago: who can wait had better do so."""
        return now < self.until or now - self.struck_at < FAILURES_APART_S


@dataclass(frozen=True, slots=True)
class Silence:
    """Sessions in a row in which no recipient was answered before the read clock ran out."""

    sessions: int = 0
    since: float = NEVER

    def after_session(self, now: float) -> "Silence":
        return Silence(self.sessions + 1, self.since if self.sessions else now)

    def lasting(self, now: float) -> bool:
        return self.sessions >= SILENT_SESSIONS_MAX and now - self.since >= SILENT_S


NO_SILENCE = Silence()
