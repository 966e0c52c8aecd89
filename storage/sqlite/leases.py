"""Transactions of connection leases, in SQL."""

import sqlite3
from datetime import datetime
from functools import cache

from ..base.columns import micros
from ..base.lease_holders import is_gone
from ..commands import LeaseConnections
from ..leases import allocate, lease_of

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
