"""Whose turn it is to hold a connection to an exchange: the decision that every store makes alike.

A lease says how many connections one process may hold to one IP address, and until
when; one without a seat is a place in the queue. Seats are given one at a time: who
has none comes before who wants another, and of those the first that began to wait.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

WAITING_S = 1.0  # who has not asked again for so long waits no more


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a process wants of an address: to hold on to so many, and to have so many in all.

    Both are absolute: to ask once more for the same changes nothing but the lease's end.
    """

    held: int
    requested: int


@dataclass(frozen=True, slots=True)
class Lease:
    holder: str
    connections: int
    since: datetime  # when it began to wait, or got the first of its seats
    until: datetime


def allocate(
    leases: Iterable[Lease],
    holder: str,
    asked: LeaseRequest,
    now: datetime,
    *,
    limit: int,
    lease_s: float,
) -> Lease | None:
    """The holder's lease from now on, among all of the address; None where it wants none.

    It keeps what it holds on to, if its lease has not ended, and gets one more at most.
    """
    standing = [lease for lease in leases if lease.until > now]
    mine = next((lease for lease in standing if lease.holder == holder), None)
    others = [lease for lease in standing if lease is not mine]
    before = mine.connections if mine else 0
    kept = min(before, asked.held)
    since = mine.since if mine and bool(before) == bool(kept) else now
    waiting = [lease for lease in others if not lease.connections]
    if not kept:
        waiting = [lease for lease in waiting if (lease.since, lease.holder) < (since, holder)]
    free = limit - kept - sum(lease.connections for lease in others)
    seats = kept + (asked.requested > kept and free > len(waiting))
    if not seats:
        waits = asked.requested > 0
        return Lease(holder, 0, since, now + timedelta(seconds=WAITING_S)) if waits else None
    return Lease(holder, seats, since if kept else now, now + timedelta(seconds=lease_s))


def revocable(leases: Iterable[Lease], now: datetime, *, limit: int) -> Counter[str]:
    """How many seats each holder is to give up, so that all who have none get one.

    They are asked of those with most; of equals, of who has had his longest.
    """
    standing = [lease for lease in leases if lease.until > now]
    waiting = sum(not lease.connections for lease in standing)
    wanted = waiting - (limit - sum(lease.connections for lease in standing))
    back: Counter[str] = Counter()
    for _ in range(wanted):
        left = [
            (back[lease.holder] - lease.connections, lease.since, lease.holder)
            for lease in standing
        ]
        if not left or (most := min(left))[0] >= 0:
            break
        back[most[2]] += 1
    return back
