"""Allocation of connections to an IP address among processes: one decision for every store.

A lease says how many connections one process may hold to one IP address, and until
when. A lease of no connections is a place in the queue. Connections are granted one
at a time: holders without one come first, in the order in which they began to wait.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

WAITING_S = 1.0  # a waiting holder that has not asked again for so long leaves the queue
# A holder may be alive whose session with the database has ended. So it stops using what it
# leased in that session, unless it leases it again, well before others take it for gone.
LOST_S = 0.75
GONE_S = 1.5


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What a process wants of an address: connections to keep (`held`) and in all (`requested`).

    Both are absolute: repeating a request changes nothing but the lease's end.
    """

    held: int
    requested: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The connections that one holder may have to one address."""

    holder: str
    connections: int
    since: datetime  # when it began to wait, or got its first connection
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
    """Return the holder's new lease, given all leases of the address; None if it wants none.

    It keeps what it holds, if its lease has not ended, and gets at most one more.
    """
    active = [lease for lease in leases if lease.until > now]
    mine = next((lease for lease in active if lease.holder == holder), None)
    others = [lease for lease in active if lease is not mine]
    before = mine.connections if mine else 0
    kept = min(before, asked.held)
    since = mine.since if mine and bool(before) == bool(kept) else now
    waiting = [lease for lease in others if not lease.connections]
    if not kept:
        waiting = [lease for lease in waiting if (lease.since, lease.holder) < (since, holder)]
    free = limit - kept - sum(lease.connections for lease in others)
    connections = kept + (asked.requested > kept and free > len(waiting))
    if not connections:
        waits = asked.requested > 0
        return Lease(holder, 0, since, now + timedelta(seconds=WAITING_S)) if waits else None
    return Lease(holder, connections, since if kept else now, now + timedelta(seconds=lease_s))


def revocable(leases: Iterable[Lease], now: datetime, *, limit: int) -> Counter[str]:
    """Return how many connections each holder must give up so that every waiting holder gets one.

    They are taken from the holders with the most; of equals, from the one that has held longest.
    """
    active = [lease for lease in leases if lease.until > now]
    waiting = sum(not lease.connections for lease in active)
    wanted = waiting - (limit - sum(lease.connections for lease in active))
    back: Counter[str] = Counter()
    for _ in range(wanted):
        left = [
            (back[lease.holder] - lease.connections, lease.since, lease.holder) for lease in active
        ]
        if not left or (most := min(left))[0] >= 0:
            break
        back[most[2]] += 1
    return back
