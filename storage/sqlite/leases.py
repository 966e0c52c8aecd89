"""Transactions of connection leases, in SQL."""

import sqlite3
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from typing import Any

from mailprobe.storage.columns import instant, micros
from mailprobe.storage.commands import LeaseConnections, ReturnConnections, RevocableConnections
from mailprobe.storage.lease_allocation import Lease, allocate, revocable
from mailprobe.storage.lease_holders import is_gone

DB = sqlite3.Connection


def lease(db: DB, now: datetime, command: LeaseConnections) -> dict[str, int]:
    """Lease connections for the holder; returns the number per address.

    Leases of processes that have ended are deleted on the way.
    """
    granted = {}
    gone = cache(is_gone)  # each holder is judged once
    for address, request in command.requested.items():
        rows = db.execute(
            "SELECT holder, connections, since, until FROM connection_leases WHERE address = ?",
            (address,),
        )
        leases = []
        for found in [lease_of(row) for row in rows]:
            if found.holder != command.holder and gone(found.holder):
                _delete(db, address, found.holder)
            else:
                leases.append(found)
        new = allocate(
            leases, command.holder, request, now, limit=command.limit, lease_s=command.lease_s
        )
        granted[address] = new.connections if new else 0
        if new:
            db.execute(
                "INSERT OR REPLACE INTO connection_leases (address, holder, connections, since, until)"
                " VALUES (?, ?, ?, ?, ?)",
                (address, command.holder, new.connections, micros(new.since), micros(new.until)),
            )
        else:
            _delete(db, address, command.holder)
    return granted


def _delete(db: DB, address: str, holder: str) -> None:
    db.execute("DELETE FROM connection_leases WHERE address = ? AND holder = ?", (address, holder))


def revocable_connections(db: DB, now: datetime, command: RevocableConnections) -> dict[str, int]:
    """Return how many connections per address the holder must give up."""
    rows = db.execute(
        "SELECT address, holder, connections, since, until FROM connection_leases WHERE address IN"
        " (SELECT address FROM connection_leases WHERE connections = 0) ORDER BY address"
    )
    return of_holder(rows.fetchall(), now, command.holder, command.limit)


def return_all(db: DB, _: datetime, command: ReturnConnections) -> None:
    """Delete all leases of the holder."""
    db.execute("DELETE FROM connection_leases WHERE holder = ?", (command.holder,))


def lease_of(row: tuple[Any, ...]) -> Lease:
    """Make a Lease from a row: holder, connections, since, until."""
    holder, connections, since, until = row
    return Lease(holder, connections, instant(since), instant(until))


def of_holder(
    rows: Iterable[tuple[Any, ...]], now: datetime, holder: str, limit: int
) -> dict[str, int]:
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
