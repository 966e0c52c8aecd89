"""Lists in PostgreSQL: runs the shared transactions of `mailprobe.storage.lists.tables` in a session."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import TypeVar

from mailprobe.storage.commands import RevokeKey
from mailprobe.storage.lists import tables
from mailprobe.storage.lists.records import ChunkPart
from mailprobe.storage.lists.tables import ListDatabase, Row, Values
from mailprobe.storage.postgres import accounts
from mailprobe.storage.postgres.driver.server import TransactionSession
from mailprobe.storage.postgres.job_claims import CLAIMING_LOCK
from mailprobe.storage.records import Caller

C = TypeVar("C")
R = TypeVar("R")

CHUNKS_LOCK = 3  # the second number of the lock; jobs have 1 and 2


@cache
def _with_psycopg_names(statement: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", statement)


class PostgresLists:
    """A session as `mailprobe.storage.lists.tables` uses it."""

    FOR_UPDATE = " FOR UPDATE"

    def __init__(self, db: TransactionSession) -> None:
        self._db = db

    def all(self, statement: str, values: Values) -> list[Row]:
        return self._db.all(_with_psycopg_names(statement), dict(values))

    def change(self, statement: str, values: Values) -> int:
        return self._db.execute(_with_psycopg_names(statement), dict(values)).rowcount

    def lock_claims(self) -> None:
        self._db.execute("SELECT pg_advisory_xact_lock(%s, %s)", [CLAIMING_LOCK, CHUNKS_LOCK])

    def callers_of_keys(self, numbers: Sequence[int]) -> Mapping[int, Caller]:
        return accounts.callers_of_keys(self._db, numbers)


def run(
    function: Callable[[ListDatabase, datetime, C], R],
) -> Callable[[TransactionSession, C], R]:
    """Return a shared transaction as one of this database."""
    return lambda db, command: function(PostgresLists(db), db.now(), command)


def revoke_key(db: TransactionSession, command: RevokeKey) -> bool:
    """Revoke a key and pause its lists; see `accounts.revoke_key`."""
    revoked = accounts.revoke_key(db, command)
    tables.pause_of_key(PostgresLists(db), command.key_id)
    return revoked


def record(db: TransactionSession, now: datetime, part: ChunkPart) -> bool:
    """Store results of a claimed chunk; see `tables.record`."""
    return tables.record(PostgresLists(db), now, part)


def drop_ended(db: TransactionSession, *, tier: str, since: int) -> bool:
    """Delete some of a list that ended before; whether there may be more."""
    return tables.drop_ended(PostgresLists(db), tier, since)


def drop_unloaded(db: TransactionSession) -> bool:
    """Delete some of a list whose upload has died; whether there may be more."""
    return tables.drop_unloaded(PostgresLists(db), db.now())
