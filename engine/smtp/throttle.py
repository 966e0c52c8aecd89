"""Learns how many connections a host accepts, and how long to back off after failures.

The feedback rule is Postfix's (SCHEDULER_README): `limit` successes add a connection,
`limit` failures remove one. If the host refuses a connection while others
are open, their number is the new limit at once. Each further failure in a row doubles
the back-off. `Throttle` and `HostBackoff` are frozen values: an event returns a new one.
"""

from dataclasses import dataclass, replace

SESSION_EWMA = 0.5  # weight of the latest session in the mean of their recipients
UNTESTED_RECIPIENTS = 24.0  # in a session, where most domains have two and are to be tested
LIMIT_AT_FIRST = 2  # connections to a host before its limit is learned
HOST_LIMIT_S = 30.0  # after one connection too many, before the limit grows again

BACKOFF_AFTER = 2  # failures in a row: one may be chance
FAILURES_APART_S = 1.0  # failures of one outage come together and count once
UNREACHABLE_BACKOFF_S = 5.0
UNREACHABLE_BACKOFF_S_MAX = 300.0
REFUSAL_BACKOFF_S = 60.0
REFUSAL_BACKOFF_S_MAX = 3600.0

SILENT_SESSIONS_MAX = 5  # sessions in a row without a reply to a recipient. A tarpit delays some
SILENT_S = 2.0  # replies only, so silence shorter than three read deadlines causes no back-off

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Throttle:
    """The connections that may be open at once: 1 <= limit <= limit_max.

    Times are seconds of the caller's clock.
    """

    limit_max: int
    limit: int
    good: int = 0  # successes counted towards the next step up
    bad: int = 0
    grow_from: float = NEVER

    def with_late(self, late: int, now: float) -> int:
        """How many connections may be open while `late` of them wait for a late reply.

        Late connections cost the host almost nothing, so they do not count, unless the
        host has just refused one connection too many.
        """
        return self.limit if now < self.grow_from else min(self.limit + late, self.limit_max)

    def after_success(self, now: float) -> "Throttle":
        if self.limit == self.limit_max and not self.bad:
            return self  # runs for every reply, so the usual case returns first
        if self.good + 1 < self.limit:
            return replace(self, good=self.good + 1)
        grown = self.limit + (now >= self.grow_from)
        return replace(self, limit=min(grown, self.limit_max), good=0, bad=0)

    def after_greeting(self, now: float) -> "Throttle":
        """The host greeted a connection: double the limit, unless there were failures recently."""
        if self.bad or now < self.grow_from or self.limit == self.limit_max:
            return self
        return replace(self, limit=min(2 * self.limit, self.limit_max), good=0)

    def after_failure(self) -> "Throttle":
        if self.bad + 1 < self.limit:
            return replace(self, bad=self.bad + 1)
        return replace(self, limit=max(self.limit - 1, 1), good=0, bad=0)

    def after_crowding(self, others: int, now: float) -> "Throttle":
        """A connection was refused while `others` were open: their number is the new limit."""
        limit = max(1, min(self.limit, others))
        return replace(self, limit=limit, good=0, bad=0, grow_from=now + HOST_LIMIT_S)


def first_throttle(limit_max: int) -> Throttle:
    """What a new host is taken to accept."""
    return Throttle(limit_max, min(LIMIT_AT_FIRST, limit_max))


class HostConnections:
    """The connections of one host: those that are open or opening, and those that we left."""

    __slots__ = ("allowed", "closed_at", "left", "now", "proven", "session_recipients", "throttle")

    def __init__(self, most: int, allowed: int) -> None:
        self.now = 0  # sessions, and connections being opened
        self.left = 0  # connections that we left while the host still had to answer
        self.allowed = allowed  # fewer than the host takes if other processes want permits
        self.throttle = first_throttle(most)
        self.proven = 0  # most sessions at a time since the host last refused one
        self.closed_at = NEVER  # of the latest session, or of one that we left
        self.session_recipients = UNTESTED_RECIPIENTS  # a guess, then a moving average

    @property
    def counted(self) -> int:
        """As the host counts them."""
        return self.now + self.left

    def limit(self, late: int, now: float) -> int:
        """How many may be open while so many sessions are late, with those that we left."""
        late += self.left
        return self.throttle.with_late(late, now) if late else self.throttle.limit

    # -- what has happened ---------------------------------------------------------------------

    def opened(self) -> None:
        """One is being opened."""
        self.now += 1

    def closed(self) -> None:
        """One has ended, or could not be opened."""
        self.now -= 1

    def leave_one(self) -> None:
        """The host still has to answer on a connection that we left."""
        self.left += 1

    def left_ended(self, now: float) -> None:
        """It has closed that, or we have."""
        self.left -= 1
        self.closed_at = now

    def greeted(self, sessions: int) -> None:
        """So many sessions are open."""
        self.proven = max(self.proven, sessions)

    def session_closed(self, now: float) -> None:
        """A session has ended."""
        self.closed_at = now

    def session_spent(self, recipients: int) -> None:
        """A session was good for so many recipients."""
        self.session_recipients += SESSION_EWMA * (recipients - self.session_recipients)

    # -- limits ----------------------------------------------------------------------------------

    def allow(self, connections: int) -> bool:
        """It may have so many; returns whether that is more than before."""
        grown, self.allowed = connections > self.allowed, connections
        return grown

    def cap(self, connections: int) -> None:
        """Its operator wants no more than so many."""
        self.throttle = first_throttle(min(connections, self.throttle.limit_max))

    def follow(self, other: "HostConnections") -> None:
        """What was learned of the host at other addresses holds."""
        self.throttle = other.throttle

    def succeeded(self, now: float) -> None:
        """A batch was answered."""
        throttle = self.throttle
        if throttle.limit < throttle.limit_max or throttle.bad:
            self.throttle = throttle.after_success(now)

    def greeted_far(self, now: float) -> None:
        """A host that is far away has greeted a connection."""
        self.throttle = self.throttle.after_greeting(now)

    def failed(self) -> bool:
        """A session failed. Returns whether the limit is lower by that."""
        return self._lower(self.throttle.after_failure())

    def crowded(self, sessions: int, now: float) -> bool:
        """A connection was refused beside so many sessions: one was too many. Returns likewise."""
        self.proven = 0
        return self._lower(self.throttle.after_crowding(sessions + self.left, now))

    def host_failed(self) -> None:
        """The host has failed, or refuses us."""
        self.proven = 0

    def _lower(self, throttle: Throttle) -> bool:
        lowered = throttle.limit < self.throttle.limit
        if lowered:
            self.proven = 0
        self.throttle = throttle
        return lowered


@dataclass(frozen=True, slots=True)
class HostBackoff:
    """A host's failures in a row, and until when to back off. Times are of the caller's clock."""

    failures: int = 0
    until: float = NEVER
    struck_at: float = NEVER

    def after_failure(self, now: float, *, refused: bool) -> "HostBackoff":
        """`refused`: the host refused because of us; otherwise it could not be reached."""
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

    def without_pause(self, now: float) -> "HostBackoff":
        """The next failure counts, however soon it comes; a back-off that has begun stays."""
        return self if self.active(now) else replace(self, struck_at=NEVER)

    def active(self, now: float) -> bool:
        return now < self.until

    def doubtful(self, now: float) -> bool:
        """True during a back-off, and just after a failure: a caller that can wait should."""
        return now < self.until or now - self.struck_at < FAILURES_APART_S


@dataclass(frozen=True, slots=True)
class RestingHost:
    """A mail host that is left alone now, for the operator."""

    name: str
    words: str  # why
    about_us: bool  # it refused because of this machine
    left_s: float


@dataclass(frozen=True, slots=True)
class Silence:
    """Sessions in a row in which no recipient was answered before the read deadline."""

    sessions: int = 0
    since: float = NEVER

    def after_session(self, now: float) -> "Silence":
        return Silence(self.sessions + 1, self.since if self.sessions else now)

    def lasting(self, now: float) -> bool:
        return self.sessions >= SILENT_SESSIONS_MAX and now - self.since >= SILENT_S


NO_SILENCE = Silence()
