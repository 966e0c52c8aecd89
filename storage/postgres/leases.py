"""Transactions of connection leases, in SQL.

A lease call holds an advisory lock for each of its addresses' buckets, from before the
clock is read until the commit. Repeating it gives the same result, as requests are absolute.
"""

import time
from collections.abc import Sequence
from functools import cache
from zlib import crc32

from ..base.columns import micros
from ..base.lease_holders import is_gone
from ..commands import LeaseConnections
from ..leases import GONE_S, AddressLeases, lease_of
from .driver.process_lock import ProcessLock, ended_sessions
from .driver.server import NOW, TransactionConnection

LEASING_LOCK = 0x6D70_7374  # "mpst": the first of two numbers of the lock
BUCKETS = 1024  # bounds one call's locks in the server's shared lock table

ENDED_MAX = 1000  # ended sessions that are remembered

LEASES = "SELECT address, holder, connections, since, until, session FROM connection_leases"
KEEP = (
    "INSERT INTO connection_leases (address, holder, connections, since, until, session)"
    " SELECT leased.*, %s::bigint FROM"
    " unnest(%s::text[], %s::text[], %s::int[], %s::bigint[], %s::bigint[]) AS leased"
    " ON CONFLICT (address, holder) DO UPDATE SET connections = excluded.connections,"
    " since = excluded.since, until = excluded.until, session = excluded.session"
)
DROP = (
    "DELETE FROM connection_leases USING unnest(%s::text[], %s::text[]) AS dropped(address, holder)"
    " WHERE connection_leases.address = dropped.address AND connection_leases.holder = dropped.holder"
)


class Leasing:
    """Leases connections; each process has one call in progress at a time.

    The leases of another machine's process end when its session has ended for GONE_S, those
    of a process here as soon as it has ended.
    """

    def __init__(self, session_lock: ProcessLock) -> None:
        self._session_lock = session_lock
        self._ended_at: dict[int, float] = {}  # sessions; when they were first found to have ended

    def lease(
        self, db: TransactionConnection, asked: Sequence[LeaseConnections], marker: object
    ) -> list[object]:
        """Work for the database threads."""
        self._session_lock.start()
        return [self._lease(db, wanted) for wanted in asked]

    def _lease(self, db: TransactionConnection, wanted: LeaseConnections) -> dict[str, int]:
        """Two round trips: read the leases, write the new ones. One more where some are lacking."""
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
        leases = AddressLeases(addresses, wanted.holder)
        for address, *row, session in found.fetchall():
            leases.add(address, lease_of(tuple(row)), session)
        ended = cache(is_gone)  # each holder is judged once
        leases.drop(lambda lease, _: ended(lease.holder))
        new = leases.allocated(wanted, now)
        if numbers := leases.sessions_before(wanted, new, now):
            over = self._long_ended(ended_sessions(db, numbers))
            leases.drop(lambda _, session: session in over)
            new = leases.allocated(wanted, now)
        kept = [
            (address, lease.holder, lease.connections, micros(lease.since), micros(lease.until))
            for address, lease in new.items()
            if lease
        ]
        gone = [(address, wanted.holder) for address, lease in new.items() if not lease]
        with db.db.pipeline():
            if kept:
                columns = [list(column) for column in zip(*kept, strict=True)]
                db.execute(KEEP, [self._session_lock.number, *columns])
            if gone or leases.dropped:
                pairs = [list(column) for column in zip(*gone, *leases.dropped, strict=True)]
                db.execute(DROP, pairs)
            db.commit()
        return {address: lease.connections if lease else 0 for address, lease in new.items()}

    def _long_ended(self, sessions: Sequence[int]) -> set[int]:
        """Return those of these ended sessions that were found so GONE_S ago."""
        now = time.monotonic()
        if len(self._ended_at) > ENDED_MAX:
            self._ended_at.clear()
        return {
            session
            for session in sessions
            if now - self._ended_at.setdefault(session, now) >= GONE_S
        }


def buckets(addresses: Sequence[str]) -> list[int]:
    """Return the addresses' lock numbers, in the order in which every process acquires them."""
    return sorted({crc32(address.encode()) % BUCKETS for address in addresses})
