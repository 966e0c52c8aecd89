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
from msgspec import Struct, field
from msgspec.structs import replace

from .ledger import (
    HostRecord,
    LeaseGrant,
    NotedRefusals,
    RefusalLedger,
    RefusalReport,
)
from .name_claims import NameClaims

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


class LeasedLimits(Protocol):
    """What is known of a host; implemented by `tolerance.KnownLimits`."""

    tolerance: int
    hour: int | None
    changed: bool  # since the record was taken last

    def report(self, *, again: bool = False) -> None: ...


class LeasedTolerance(Protocol):
    """The tolerance of a host; implemented by `tolerance.Tolerance`."""

    @property
    def known(self) -> LeasedLimits: ...
    @property
    def is_busy(self) -> bool: ...
    def lease_by(self, lease: "RefusalLease") -> None: ...
    def to_record(self, now: float, hour_took: int = 0) -> HostRecord: ...
    def learn(self, record: HostRecord, now: float) -> None: ...
    def refused_elsewhere(
        self,
        own: Iterable[tuple[float, str]],
        elsewhere: Iterable[tuple[float, str, int]],
        now: float,
    ) -> None: ...


class LeaseUser(Protocol):
    """Waits for a lease; implemented by `host.host.Host`."""

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


class LeaseStanding(Struct, frozen=True):
    """What the store said last of one lease."""

    is_denied: bool = False  # there are no refusals for this process
    is_contested: bool = False  # because other processes have them
    contested_since: float = inf
    is_away: bool = False  # it did not answer
    retry_at: float = inf


class CausedRefusals(Struct, eq=False):
    """The refusals that this process has caused at one host, and what the store knows of them."""

    noted: int  # reported before the first unreported one
    reported_at: float = -inf
    # Of the hour, and those of them that are not reported yet.
    _own: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=OWN_MAX))
    unreported: deque[tuple[float, str]] = field(default_factory=deque)
    _sent: int = 0  # of the unreported ones, in the call under way

    def add(self, now: float, account: str) -> None:
        """A recipient was refused."""
        self._own.append((now, account))
        self.unreported.append((now, account))
        if len(self.unreported) > OWN_MAX:  # the store does not answer
            self.unreported.popleft()
            self.noted += 1
            self._sent = max(0, self._sent - 1)

    def withdraw(self, account: str) -> int:
        """The account's latest was not a refusal. Returns how many fewer the store counts, 1 or 0."""
        fewer = 0
        for refusals, first in ((self._own, 0), (self.unreported, self._sent)):
            for place in range(len(refusals) - 1, first - 1, -1):
                if refusals[place][1] == account:
                    del refusals[place]
                    fewer += refusals is self.unreported
                    break
        return fewer

    def within_hour(self, now: float) -> Iterable[tuple[float, str]]:
        while self._own and self._own[0][0] <= now - HOUR_S:
            self._own.popleft()
        return self._own

    # -- calls -----------------------------------------------------------------------------------

    def report(self, now: float) -> list[NotedRefusals]:
        """Return what is not reported yet, for a call."""
        self._sent = len(self.unreported)
        return [NotedRefusals(now - at, account) for at, account in self.unreported]

    def reported(self, now: float) -> None:
        """That call was answered."""
        for _ in range(self._sent):
            self.unreported.popleft()
        self.noted += self._sent
        self._sent, self.reported_at = 0, now

    def lost(self, now: float) -> None:
        """That call had no answer."""
        self._sent, self.reported_at = 0, now


class RefusalLease(Struct, eq=False):
    """This process's share of one host's refusals. Times are on trio's clock, in seconds."""

    host: str
    tolerance: LeasedTolerance
    caused: CausedRefusals
    _wake: "Callable[[RefusalLease], None]"
    _now: Callable[[], float] = field(
        default_factory=lambda: trio.lowlevel.current_clock().current_time
    )
    left: int = 0  # refusals that it may still cause
    low: int = 0  # with so few left, more are asked for
    standing: LeaseStanding = LeaseStanding()
    is_asked: bool = False  # by the next call
    is_requesting: bool = False  # in the call under way
    wants_more: bool = False  # that call; else it gives back, or only reports
    until: float = -inf  # the lease's end, counted from before it was requested
    used_at: float = -inf
    users: set[LeaseUser] = field(default_factory=set)  # since it was idle
    names: NameClaims = field(default_factory=NameClaims)

    @property
    def is_pending(self) -> bool:
        """Is it asked for? Then what waits is neither sent nor turned away."""
        return self.left < 1 and not self.standing.is_denied

    def want(self, user: LeaseUser, untested: str = "") -> None:
        """This user has something to send, perhaps with the random name of the `untested` domain."""
        self.users.add(user)
        self.used_at = now = self._now()
        if untested:
            self.names.want(untested, now)
        if self.is_pending or (self.left < 1 and now >= self.standing.retry_at):
            self.request_more()

    def request_more(self) -> None:
        """Ask for more: it is needed, or the tolerance has grown."""
        self.standing = replace(self.standing, is_denied=False)
        self.is_asked = True
        if not self.is_requesting:
            self._wake(self)

    def may_name(self, name: str, now: float) -> bool:
        """May this process send the random name of this domain? Not before it has claimed it.

        While the store does not answer, each process sends its own.
        """
        if self.standing.is_away or self.names.is_mine(name, now):
            return True
        if not (self.is_asked or self.is_requesting):
            self.request_more()
        return False

    def await_grant(self) -> None:
        """Something waits for the lease."""
        if not (self.is_asked or self.is_requesting) and self.standing.retry_at == inf:
            self.request_more()

    def use(self, now: float) -> None:
        """A recipient is sent."""
        self.used_at = now

    def note(self, now: float, account: str) -> None:
        """A recipient was refused."""
        self.left -= 1
        self.caused.add(now, account)
        if self.left <= self.low and not self.standing.is_denied:
            self.request_more()

    def withdraw(self, account: str) -> None:
        """The account's latest was not a refusal. If it was reported, it counts all the same."""
        self.left += self.caused.withdraw(account)

    def is_used(self, now: float) -> bool:
        is_recent = now - self.used_at < KEEP_S
        return is_recent or self.tolerance.is_busy or any(user.any_waiting() for user in self.users)

    def is_due(self, now: float) -> bool:
        """Does the next call concern the host?"""
        if self.is_requesting:
            return False
        if self.is_asked or (self.has_news and now >= self.caused.reported_at + REPORT_S):
            return True
        if self.left < 1:
            return now >= self.standing.retry_at and self.is_used(now)
        return now >= self.until - LEASE_S + EXTEND_S or not self.is_used(now)

    @property
    def has_news(self) -> bool:
        return bool(self.caused.unreported) or self.tolerance.known.changed


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
        tolerance.lease_by(RefusalLease(name, tolerance, CausedRefusals(self._noted), self._wake))

    def _wake(self, lease: RefusalLease) -> None:
        self._active[lease.host] = lease
        self._ledger.wake()

    def _count(self, lease: RefusalLease) -> None:
        self._noted = max(self._noted, lease.caused.noted + len(lease.caused.unreported))

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
        took = max((user.hour_took for user in lease.users), default=0)
        return RefusalReport(
            max(0, lease.left),
            is_wanted,
            tolerance.known.tolerance,
            tolerance.known.hour,
            lease.caused.noted,
            lease.caused.report(now),
            tolerance.to_record(now, took),
            lease.names.report(now, is_wanted=is_wanted),
        )

    def granted(self, host: str, grant: LeaseGrant, began: float) -> None:
        """See LeaseKeeper."""
        if (lease := self._active.get(host)) is None:
            return
        now, lease.is_requesting = self._now(), False
        lease.caused.reported(now)
        self._count(lease)
        # Without this, each refusal would ask again although no more are available.
        lease.low = grant.leased // 2 if grant.leased > lease.left else 0
        lease.left = grant.leased - len(lease.caused.unreported)
        lease.until = began + LEASE_S
        lease.names.granted(grant.names_elsewhere, began)
        lease.tolerance.learn(grant.learned, now)
        elsewhere = [(now - each.age_s, each.account, each.count) for each in grant.elsewhere]
        lease.tolerance.refused_elsewhere(lease.caused.within_hour(now), elsewhere, now)
        self._judge(lease, grant, now)
        if lease.is_asked:
            self._ledger.wake()
        for user in list(lease.users):
            user.refusals_leased(grant.learned.hour_took)

    def _judge(self, lease: RefusalLease, grant: LeaseGrant, now: float) -> None:
        """Judge a grant: was the request refused, or does it wait for others?"""
        # If nothing was asked for, the next probe asks first.
        if lease.left >= 1 or not (lease.is_asked or lease.wants_more):
            lease.standing = LeaseStanding(is_contested=grant.is_contested)
            return
        before = lease.standing
        lease.standing = replace(
            before, is_contested=grant.is_contested, is_away=False, retry_at=inf
        )
        if lease.is_asked:
            return
        if grant.leased:  # used up meanwhile
            lease.request_more()
            return
        since = min(before.contested_since, now) if grant.is_contested else before.contested_since
        waits = grant.is_contested and now < since + WAIT_S
        lease.standing = replace(
            lease.standing,
            is_denied=before.is_denied or not waits,
            contested_since=since,
            retry_at=now + (AGAIN_S if waits else LATER_S),
        )

    def failed(self, host: str) -> None:
        """See LeaseKeeper."""
        if (lease := self._active.get(host)) is None:
            return
        now = self._now()
        lease.is_requesting = False
        lease.caused.lost(now)
        lease.standing = replace(lease.standing, is_away=True)
        if lease.left < 1:
            lease.standing = replace(lease.standing, is_denied=True, retry_at=now + LATER_S)
        lease.tolerance.known.report(again=True)  # what was learned is reported again
        for user in list(lease.users):
            user.refusals_leased(0)
