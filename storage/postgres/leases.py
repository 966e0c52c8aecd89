"""Transactions of connection leases, in SQL.

A lease call holds an advisory lock for each of its addresses' buckets, from before the
clock is read until the commit. Repeating it gives the same result, as requests are absolute.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zlib import crc32

from mailprobe.storage.columns import micros
from mailprobe.storage.commands import LeaseConnections, ReturnConnections, RevocableConnections
from mailprobe.storage.lease_allocation import Lease, allocate
from mailprobe.storage.postgres.driver.server import NOW, TransactionSession
from mailprobe.storage.sqlite.leases import lease_of, of_holder

LEASING_LOCK = 0x6D70_7374  # "mpst": the first of two numbers of the lock
BUCKETS = 1024  # bounds one call's locks in the server's shared lock table
TIDIED_MAX = 1000

LEASES = "SELECT address, holder, connections, since, until FROM connection_leases"
KEEP = (
    "INSERT INTO connection_leases (address, holder, connections, since, until)"
    " SELECT * FROM unnest(%s::text[], %s::text[], %s::int[], %s::bigint[], %s::bigint[])"
    " ON CONFLICT (address, holder) DO UPDATE SET"
    " connections = excluded.connections, since = excluded.since, until = excluded.until"
)


@dataclass(frozen=True, slots=True)
class Leasing:
    """Work for the batch executor: each process has one call in progress at a time."""

    group_max: int = 1
    repeatable: bool = True

    def __call__(
        self, db: TransactionSession, asked: Sequence[LeaseConnections], marker: Any
    ) -> list[Any]:
        return [_lease(db, wanted) for wanted in asked]


def _lease(db: TransactionSession, wanted: LeaseConnections) -> dict[str, int]:
    """Two round trips: read the leases, write the new ones."""
    addresses = list(wanted.requested)
    with db.db.pipeline():
        db.begin()
        db.execute(
            "SELECT pg_advisory_xact_lock(%s, bucket) FROM unnest(%s::int[]) AS bucket",
            [LEASING_LOCK, buckets(addresses)],
        )
        clock = db.execute(f"SELECT {NOW}")
        found = db.execute(f"{LEASES} WHERE address = ANY(%s)", [addresses])
    now = db.instant(clock.fetchone()[0])  # type: ignore[index]  # it has one row
    leases: dict[str, list[Lease]] = {address: [] for address in addresses}
    for address, *row in found.fetchall():
        leases[address].append(lease_of(tuple(row)))
    new = {
        address: allocate(
            leases[address], wanted.holder, command, now, limit=wanted.limit, lease_s=wanted.lease_s
        )
        for address, command in wanted.requested.items()
    }
    kept = [
        (address, lease.holder, lease.connections, micros(lease.since), micros(lease.until))
        for address, lease in new.items()
        if lease
    ]
    gone = [address for address, lease in new.items() if not lease]
    with db.db.pipeline():
        if kept:
            db.execute(KEEP, [list(column) for column in zip(*kept, strict=True)])
        if gone:
            db.execute(
                "DELETE FROM connection_leases WHERE holder = %s AND address = ANY(%s)",
                [wanted.holder, gone],
            )
        db.commit()
    return {address: lease.connections if lease else 0 for address, lease in new.items()}


def buckets(addresses: Sequence[str]) -> list[int]:
    """Return the addresses' lock numbers, in the order in which every process acquires them."""
    return sorted({crc32(address.encode()) % BUCKETS for address in addresses})


def revocable_connections(db: TransactionSession, command: RevocableConnections) -> dict[str, int]:
    rows = db.all(
        f"SELECT {NOW}, address, holder, connections, since, until FROM connection_leases WHERE address IN"
        " (SELECT address FROM connection_leases WHERE connections = 0)"
    )
    if not rows:
        return {}
    return of_holder(
        [row[1:] for row in rows], db.instant(rows[0][0]), command.holder, command.limit
    )


def return_all(db: TransactionSession, command: ReturnConnections) -> None:
    db.execute("DELETE FROM connection_leases WHERE holder = %s", [command.holder])


def drop_ended(db: TransactionSession, *, at: datetime) -> bool:
    """Delete some ended leases; returns whether more may remain."""
    dropped = db.execute(
        "DELETE FROM connection_leases WHERE ctid = ANY(ARRAY(SELECT ctid FROM connection_leases WHERE until <= %s"
        " LIMIT %s FOR UPDATE SKIP LOCKED))",
        [micros(at), TIDIED_MAX],
    )
    return dropped.rowcount == TIDIED_MAX
