"""Leases of connections to mail hosts, which the processes of a fleet share.

To lease is each database's own.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from .base.columns import instant
from .base.lease_allocation import Lease, LeaseRequest, revocable
from .commands import LeaseConnections
from .database import Database, Row
from .store_part import StorePart
from .transaction import read, write


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
