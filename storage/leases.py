"""Leases of connections to mail hosts, which the processes of a fleet share.

A lease says how many connections one process may hold to one IP address, and until
when. A lease of no connections is a place in the queue. Connections are granted one
at a time: holders without one come first, in the order in which they began to wait.
The decision is one for every database. PostgreSQL writes it in two round trips.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from .base.columns import instant
from .commands import LeaseConnections
from .database import Database, Row, StorePart, read, write
from .records import LeaseRequest

WAITING_S = 1.0  # a waiting holder that has not asked again for so long leaves the queue
# A holder may be alive whose session with the database has ended. So it stops using what it
# leased in that session, unless it leases it again, well before others take it for gone.
LOST_S = 0.75
GONE_S = 1.5


class Lease(Struct, frozen=True):
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


def revocable_connections(db: Database, holder: str, *, limit: int) -> Mapping[str, int]:
    """Return how many connections per address the holder must give up for waiting holders."""
    rows = db.all(
        "SELECT address, holder, connections, since, until FROM connection_leases WHERE address IN"
        " (SELECT address FROM connection_leases WHERE connections = 0)",
        {},
    )
    return _of_holder(rows, db.now(), holder, limit) if rows else {}


def return_connections(db: Database, holder: str) -> None:
    """Release all leases of the holder, and its places in the queues."""
    db.change("DELETE FROM connection_leases WHERE holder = :holder", {"holder": holder})


def lease_of(row: Row) -> Lease:
    """Make a Lease from a row: holder, connections, since, until."""
    holder, connections, since, until = row
    return Lease(holder, connections, instant(since), instant(until))


def _of_holder(rows: Iterable[Row], now: datetime, holder: str, limit: int) -> dict[str, int]:
    """Return how many connections per address this holder must give up.

    `rows` are all leases of the addresses; each row begins with its address.
    """
    leases: dict[str, list[Lease]] = {}
    for address, *row in rows:
        leases.setdefault(address, []).append(lease_of(tuple(row)))
    back = {
        address: revocable(found, now, limit=limit)[holder] for address, found in leases.items()
    }
    return {address: leases for address, leases in back.items() if leases}


class AddressLeases:
    """The leases of some addresses, each with the session that it was made in."""

    def __init__(self, addresses: Sequence[str], holder: str) -> None:
        self._holder = holder
        self._by_address: dict[str, list[tuple[Lease, int | None]]] = {at: [] for at in addresses}
        self.dropped: list[tuple[str, str]] = []  # address and holder

    def add(self, address: str, lease: Lease, session: int | None) -> None:
        self._by_address[address].append((lease, session))

    def drop(self, is_over: Callable[[Lease, int | None], bool]) -> None:
        """Drop leases of other holders."""
        for address, leases in self._by_address.items():
            over = [
                (lease, session)
                for lease, session in leases
                if lease.holder != self._holder and is_over(lease, session)
            ]
            for each in over:
                leases.remove(each)
                self.dropped.append((address, each[0].holder))

    def allocated(self, wanted: LeaseConnections, now: datetime) -> dict[str, Lease | None]:
        """Return the holder's new leases."""
        return {
            address: allocate(
                (lease for lease, _ in self._by_address[address]),
                wanted.holder, request, now, limit=wanted.limit, lease_s=wanted.lease_s,
            )
            for address, request in wanted.requested.items()
        }  # fmt: skip

    def sessions_before(
        self, wanted: LeaseConnections, new: Mapping[str, Lease | None], now: datetime
    ) -> list[int]:
        """Return the sessions of other holders at the addresses where the holder lacks connections."""
        return sorted(
            {
                session
                for address, request in wanted.requested.items()
                if request.requested > (lease.connections if (lease := new[address]) else 0)
                for other, session in self._by_address[address]
                if session is not None and other.holder != self._holder and other.until > now
            }
        )


class LeaseStore(StorePart):
    """The part of the store that leases connections to IP addresses."""

    revocable_connections = read(revocable_connections)
    return_connections = write(return_connections)

    async def lease_connections(
        self, holder: str, asked: Mapping[str, LeaseRequest], *, limit: int, lease_s: float
    ) -> Mapping[str, int]:
        """Lease connections to these IP addresses for `lease_s`; returns the number per address.

        Over all holders at most `limit` connections to an address are leased at a time. The
        holder keeps what it holds, if its lease has not ended, and gets at most one more per
        call: holders without a connection come first. A holder that asked and got none stays
        in the queue as long as it asks again within WAITING_S.
        """
        return await self._execute(LeaseConnections(holder, asked, limit, lease_s))

    def lease_session(self) -> int:
        """Return a number that changes when the database session changes that leases are made in.

        Leases that were made before a change must be requested again within LOST_S, or no
        longer be used: GONE_S after it other holders may get them.
        """
        return self.executor.lease_session()
