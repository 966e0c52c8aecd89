"""Refusals that one process may cause at mail hosts, leased from what all processes share.

By default all of a host's tolerance belongs to this process, and nothing is kept. With a
ledger, a process leases refusals of a host before it sends anything there, reports those that it
caused, gives back what it does not use, and learns what the others have found.

While a lease is asked for, what waits is not sent, and not turned away either. The request goes out
when the host is wanted, so it overlaps the connect. One that finds nothing left, because other
processes have it, is repeated for WAIT_S: an idle process gives back within KEEP_S.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Protocol

import trio

from .ledger import (
    HostRecord,
    LeaseGrant,
    NotedRefusals,
    RefusalLedger,
    RefusalReport,
)

LEASE_S = 30.0  # a dead process blocks the others no longer
EXTEND_S = 10.0  # after the lease's start
WIND_UP_S = 2.0  # before its end: nothing is sent any more
KEEP_S = 1.5  # what is not used is kept: the next address of a list may need it
WAIT_S = 2.0  # for what other processes hold and do not use
AGAIN_S = 0.25  # between two requests meanwhile
LATER_S = 1.0  # until the next one after that, if the host is still wanted
REPORT_S = (
    2.0  # in which refusals, and what was learned, are reported: a short visit's with its end
)
TICK_S = 0.25  # between two looks at the clock
HOUR_S = 3600.0
OWN_MAX = 4_096  # refusals of an hour, and unreported ones


class LeasedTolerance(Protocol):
    """The tolerance of a host; implemented by `tolerance.Tolerance`."""

    tolerance: int
    hour: int | None
    changed: bool  # since the record was taken last
    lease: "RefusalLease | None"

    @property
    def is_busy(self) -> bool: ...
    def to_record(self, now: float, hour_took: int = 0) -> HostRecord: ...
    def learn(self, record: HostRecord, now: float) -> None: ...
    def refused_elsewhere(
        self,
        own: Iterable[tuple[float, str]],
        elsewhere: Iterable[tuple[float, str, int]],
        now: float,
    ) -> None: ...


class LeaseUser(Protocol):
    """Waits for a lease; implemented by `pool.pool.Pool`."""

    @property
    def hour_took(self) -> int:
        """Most refusals within an hour after which the host was seen to judge."""
        ...

    def any_waiting(self) -> bool:
        """Does anything wait to be sent?"""
        ...

    def refusals_leased(self, hour_took: int) -> None:
        """The host's lease has changed; another process has seen it judge after so many."""
        ...


class RefusalLease:
    """This process's share of one host's refusals. Times are on trio's clock, in seconds."""

    __slots__ = (
        *(
            "_now",
            "_wake",
            "asked_at",
            "contested_since",
            "host",
            "is_asked",
            "is_away",
            "is_contested",
        ),
        *("is_denied", "is_requesting", "left", "low", "noted", "own", "reported_at", "retry_at"),
        *("sent", "tolerance", "unreported", "until", "used_at", "users", "wants_more"),
    )

    def __init__(
        self,
        host: str,
        tolerance: LeasedTolerance,
        noted: int,
        wake: "Callable[[RefusalLease], None]",
    ) -> None:
        self._now = trio.lowlevel.current_clock().current_time
        self._wake = wake
        self.host = host
        self.tolerance = tolerance
        self.left = 0  # refusals that it may still cause
        self.low = 0  # with so few left, more are asked for
        self.is_denied = False  # the store has none for this process
        self.is_contested = False  # because other processes have them
        self.is_away = False  # the store did not answer
        self.contested_since = inf
        self.is_asked = False  # by the next call
        self.is_requesting = False  # in the call under way
        self.wants_more = False  # that call; else it gives back, or only reports
        self.until = -inf  # the lease's end, counted from before it was requested
        self.asked_at = -inf
        self.retry_at = inf
        self.used_at = -inf
        self.reported_at = -inf
        self.own: deque[tuple[float, str]] = deque(maxlen=OWN_MAX)  # refusals of the hour
        self.unreported: deque[tuple[float, str]] = deque()
        self.noted = noted  # refusals that were reported before the first of these
        self.sent = 0  # of these, in the call under way
        self.users: set[LeaseUser] = set()  # since it was idle

    @property
    def is_pending(self) -> bool:
        """Is it asked for? Then what waits is neither sent nor turned away."""
        return self.left < 1 and not self.is_denied

    def want(self, user: LeaseUser) -> None:
        """This user has something to send."""
        self.users.add(user)
        self.used_at = now = self._now()
        if self.left < 1 and (not self.is_denied or now >= self.retry_at):
            self.request_more()

    def request_more(self) -> None:
        """More is needed, or may be had: the tolerance has grown."""
        self.is_denied = False
        self.is_asked = True
        if not self.is_requesting:
            self._wake(self)

    def await_grant(self) -> None:
        """Something waits for it."""
        if not (self.is_asked or self.is_requesting) and self.retry_at == inf:
            self.request_more()

    def use(self, now: float) -> None:
        """A recipient is sent."""
        self.used_at = now

    def note(self, now: float, account: str) -> None:
        """A recipient was refused."""
        self.left -= 1
        self.own.append((now, account))
        self.unreported.append((now, account))
        if len(self.unreported) > OWN_MAX:  # the store is away
            self.unreported.popleft()
            self.noted += 1
            self.sent = max(0, self.sent - 1)
        if self.left <= self.low and not self.is_denied:
            self.request_more()

    def withdraw(self, account: str) -> None:
        """The latest refusal of the account was none. One that was reported counts all the same."""
        for refusals, first in ((self.own, 0), (self.unreported, self.sent)):
            for place in range(len(refusals) - 1, first - 1, -1):
                if refusals[place][1] == account:
                    del refusals[place]
                    self.left += refusals is self.unreported
                    break

    def is_used(self, now: float) -> bool:
        if now - self.used_at < KEEP_S or self.tolerance.is_busy:
            return True
        return any(user.any_waiting() for user in self.users)

    def is_due(self, now: float) -> bool:
        """Does the next call concern the host?"""
        if self.is_requesting:
            return False
        if self.is_asked:
            return True
        if self.left > 0 and (now >= self.until - LEASE_S + EXTEND_S or not self.is_used(now)):
            return True
        if self.has_news and now >= self.reported_at + REPORT_S:
            return True
        return self.left < 1 and now >= self.retry_at and self.is_used(now)

    @property
    def has_news(self) -> bool:
        return bool(self.unreported) or self.tolerance.changed

    def own_within_hour(self, now: float) -> Iterable[tuple[float, str]]:
        while self.own and self.own[0][0] <= now - HOUR_S:
            self.own.popleft()
        return self.own


class RefusalLeases:
    """The leases of one egress; the keeper of its ledger."""

    def __init__(self, ledger: RefusalLedger, egress: str) -> None:
        self._ledger = ledger
        self._now = trio.lowlevel.current_clock().current_time
        self._active: dict[str, RefusalLease] = {}
        self._noted = (
            0  # refusals of any lease: a new one begins behind, so no number is used twice
        )
        ledger.open_for(egress, self)

    def attach(self, name: str, tolerance: LeasedTolerance) -> None:
        """This host is new here: its tolerance is leased from now on."""
        if (before := self._active.pop(name, None)) is not None:
            before.host = f"{name} {self._noted}"  # the exchange has other addresses now
            self._active[before.host] = before
            self._count(before)
        tolerance.lease = RefusalLease(name, tolerance, self._noted, self._wake)

    def _wake(self, lease: RefusalLease) -> None:
        self._active[lease.host] = lease
        self._ledger.wake()

    def _count(self, lease: RefusalLease) -> None:
        self._noted = max(self._noted, lease.noted + len(lease.unreported))

    def active(self) -> list[str]:
        """See LeaseKeeper."""
        return list(self._active)

    def due(self) -> Iterator[str]:
        """See LeaseKeeper. Ends leases by this process's own clock."""
        now = self._now()
        for host, lease in list(self._active.items()):
            if lease.left > 0 and now >= lease.until - WIND_UP_S:
                lease.left = 0
                if lease.is_used(now):
                    lease.request_more()
            if lease.is_due(now):
                yield host
            elif not (
                lease.left > 0 or lease.is_requesting or lease.has_news or lease.is_used(now)
            ):
                del self._active[host]
                lease.users.clear()

    def request(self, host: str, *, at_end: bool = False) -> RefusalReport:
        """See LeaseKeeper."""
        lease, now = self._active[host], self._now()
        tolerance = lease.tolerance
        is_wanted = not at_end and lease.is_used(now)
        if not is_wanted:
            lease.left = 0  # not used from here on
        lease.is_asked, lease.is_requesting, lease.wants_more = False, True, is_wanted
        lease.asked_at, lease.sent = now, len(lease.unreported)
        took = max((user.hour_took for user in lease.users), default=0)
        return RefusalReport(
            max(0, lease.left),
            is_wanted,
            tolerance.tolerance,
            tolerance.hour,
            lease.noted,
            [NotedRefusals(now - at, account) for at, account in lease.unreported],
            tolerance.to_record(now, took),
        )

    def granted(self, host: str, grant: LeaseGrant, began: float) -> None:
        """See LeaseKeeper."""
        if (lease := self._active.get(host)) is None:
            return
        now = self._now()
        lease.is_requesting = lease.is_away = False
        for _ in range(lease.sent):
            lease.unreported.popleft()
        lease.noted += lease.sent
        lease.sent, lease.reported_at = 0, now
        self._count(lease)
        held = lease.left
        lease.left = grant.leased - len(lease.unreported)
        # Where no more could be had, each refusal would ask again.
        lease.low = grant.leased // 2 if grant.leased > held else 0
        lease.until = began + LEASE_S
        lease.tolerance.learn(grant.learned, now)
        elsewhere = [(now - each.age_s, each.account, each.count) for each in grant.elsewhere]
        lease.tolerance.refused_elsewhere(lease.own_within_hour(now), elsewhere, now)
        self._judge(lease, grant, now)
        if lease.is_asked:
            self._ledger.wake()
        for user in list(lease.users):
            user.refusals_leased(grant.learned.hour_took)

    def _judge(self, lease: RefusalLease, grant: LeaseGrant, now: float) -> None:
        """Is it refused what it asked for, or does it wait?"""
        lease.is_contested, lease.retry_at = grant.is_contested, inf
        if lease.left >= 1:
            lease.is_denied, lease.contested_since = False, inf
            return
        if lease.is_asked:
            return
        if not lease.wants_more:  # nothing was asked for: what comes next asks first
            lease.is_denied, lease.contested_since = False, inf
            return
        if grant.leased:  # used up meanwhile
            lease.request_more()
            return
        if grant.is_contested:
            lease.contested_since = min(lease.contested_since, now)
            if now < lease.contested_since + WAIT_S:
                lease.retry_at = now + AGAIN_S
                return
        lease.is_denied, lease.retry_at = True, now + LATER_S

    def failed(self, host: str) -> None:
        """See LeaseKeeper."""
        if (lease := self._active.get(host)) is None:
            return
        now = self._now()
        lease.is_requesting, lease.sent, lease.reported_at = False, 0, now
        lease.is_away = True
        if lease.left < 1:
            lease.is_denied, lease.retry_at = True, now + LATER_S
        lease.tolerance.changed = True  # what was learned is reported again
        for user in list(lease.users):
            user.refusals_leased(0)
