"""The connections of one mail host: how many it accepts, and what its sessions do.

The feedback rule is Postfix's (SCHEDULER_README): `limit` successes add a connection,
`limit` failures remove one. If the host refuses a connection while others are open, their
number is the new limit at once. `Throttle` is a frozen value: an event returns a new one.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from ..backoff import NEVER

SESSION_EWMA = 0.5  # weight of the latest session in the mean of their recipients
UNTESTED_RECIPIENTS = 24.0  # in a session, where most domains have two and are to be tested
LIMIT_AT_FIRST = 2  # connections to a host before its limit is learned
HOST_LIMIT_S = 30.0  # after one connection too many, before the limit grows again


class Throttle(Struct, frozen=True):
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
    """What a new host is assumed to accept."""
    return Throttle(limit_max, min(LIMIT_AT_FIRST, limit_max))


class HostConnections(Struct, eq=False):
    """The connections of one host: those that are open or opening, and those that we left."""

    throttle: Throttle
    allowed: int  # fewer than the host takes if other processes want permits
    lowered: Callable[[], None]  # called when the limit is lowered
    now: int = 0  # sessions, and connections being opened
    left: int = 0  # connections that we left while the host still had to answer
    proven: int = 0  # most sessions at a time since the host last refused one
    closed_at: float = NEVER  # of the latest session, or of one that we left
    session_recipients: float = UNTESTED_RECIPIENTS  # a guess, then a moving average

    @property
    def counted(self) -> int:
        """Those that the host counts: also the ones that we left."""
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
        """A connection that we left has ended, at either side."""
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
        """Allow so many; returns whether that is more than before."""
        grown, self.allowed = connections > self.allowed, connections
        return grown

    def cap(self, connections: int) -> None:
        """Allow at most so many, as the host's operator asks."""
        self.throttle = first_throttle(min(connections, self.throttle.limit_max))

    def follow(self, other: "HostConnections") -> None:
        """Take over what was learned of the host at other addresses."""
        self.throttle = other.throttle

    def succeeded(self, now: float) -> None:
        """A batch was answered."""
        throttle = self.throttle
        if throttle.limit < throttle.limit_max or throttle.bad:
            self.throttle = throttle.after_success(now)

    def greeted_far(self, now: float) -> None:
        """A host that is far away has greeted a connection."""
        self.throttle = self.throttle.after_greeting(now)

    def failed(self) -> None:
        """A session failed."""
        self._lower(self.throttle.after_failure())

    def crowded(self, sessions: int, now: float) -> None:
        """A connection was refused beside so many sessions: one was too many."""
        self.proven = 0
        self._lower(self.throttle.after_crowding(sessions + self.left, now))

    def host_failed(self) -> None:
        """The host has failed, or refuses us."""
        self.proven = 0

    def _lower(self, throttle: Throttle) -> None:
        if throttle.limit < self.throttle.limit:
            self.proven = 0
            self.lowered()
        self.throttle = throttle


class OpenSession(Protocol):
    """A session as its host sees it; implemented by serving.ServedSession."""

    address: str

    @property
    def is_leaving(self) -> bool: ...
    def interrupt(self) -> None: ...
    def withdraw(self) -> None: ...
    def revoke_permit(self) -> None: ...
    def is_testing(self) -> bool: ...


class HostSessions(Struct, eq=False):
    """All of one host."""

    open: set[OpenSession] = field(default_factory=set)
    idle: dict[OpenSession, None] = field(default_factory=dict)
    # Idle until the addresses of a domain are answered, the longest first.
    testers: dict[OpenSession, None] = field(default_factory=dict)
    # About to take probes: woken, or while the effects of a step are applied after which it picks.
    woken: set[OpenSession] = field(default_factory=set)

    def is_at(self, address: str) -> bool:
        """Is one connected to this address?"""
        return any(session.address == address for session in self.open)

    # -- what they do ----------------------------------------------------------------------------

    def idles(self, session: OpenSession, *, tests: bool) -> None:
        """It has nothing to send; with `tests`, until the addresses of their domains are answered."""
        self.idle[session] = None
        if tests:
            self.testers[session] = None

    def works(self, session: OpenSession) -> None:
        """It does not idle any more."""
        self.testers.pop(session, None)
        self.idle.pop(session, None)
        self.woken.discard(session)

    # -- what they are to do ---------------------------------------------------------------------

    def wake_one(self) -> None:
        """Wake the session that idles longest: a probe waits for it."""
        session = next(iter(self.idle))
        del self.idle[session]
        self.woken.add(session)
        session.interrupt()

    def wake_testers(self) -> None:
        """Addresses were answered that a test may have waited for."""
        for session in list(self.testers):
            session.interrupt()

    def withdraw_all(self) -> None:
        for session in self.open:
            session.withdraw()

    def close_idle(self) -> None:
        for session in list(self.idle):
            session.withdraw()

    def close_one(self, address: str) -> bool:
        """Close an idle connection to this address; False if there is none."""
        for session in self.idle:
            if session.address == address and not session.is_leaving:
                session.withdraw()
                return True
        return False

    def revoke_permits(self, address: str) -> None:
        """The connections to this address are about to be cancelled; the host is not at fault."""
        for session in self.open:
            if session.address == address:
                session.revoke_permit()
