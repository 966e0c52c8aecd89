"""Transactions of connection leases; to lease is each database's own."""

from collections.abc import Iterable
from datetime import datetime

from mailprobe.storage.base.columns import instant
from mailprobe.storage.base.lease_allocation import Lease, revocable
from mailprobe.storage.commands import ReturnConnections, RevocableConnections
from mailprobe.storage.database import Database, Row


def revocable_connections(db: Database, command: RevocableConnections) -> dict[str, int]:
    """Return how many connections per address the holder must give up."""
    rows = db.all(
        "SELECT address, holder, connections, since, until FROM connection_leases WHERE address IN"
        " (SELECT address FROM connection_leases WHERE connections = 0)",
        {},
    )
    return _of_holder(rows, db.now(), command.holder, command.limit) if rows else {}


def return_all(db: Database, command: ReturnConnections) -> None:
    """Delete all leases of the holder."""
    db.change("DELETE FROM connection_leases WHERE holder = :holder", {"holder": command.holder})


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
