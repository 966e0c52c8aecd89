"""Lists in SQLite: runs the shared transactions of `mailprobe.storage.lists.tables` on a connection."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from mailprobe.storage.commands import RevokeKey
from mailprobe.storage.lists import tables
from mailprobe.storage.lists.records import ChunkPart
from mailprobe.storage.lists.tables import ListDatabase, Row, Values
from mailprobe.storage.records import Caller
from mailprobe.storage.sqlite import accounts

DB = sqlite3.Connection
C = TypeVar("C")
R = TypeVar("R")


class SqliteLists:
    """A connection as `mailprobe.storage.lists.tables` uses it; SQLite has one writer, so nothing is locked."""

    FOR_UPDATE = ""

    def __init__(self, db: DB) -> None:
        self._db = db

    def all(self, statement: str, values: Values) -> list[Row]:
        return self._db.execute(statement, dict(values)).fetchall()

    def change(self, statement: str, values: Values) -> int:
        return self._db.execute(statement, dict(values)).rowcount

    def lock_claims(self) -> None:
        """Nothing is locked."""

    def callers_of_keys(self, numbers: Sequence[int]) -> Mapping[int, Caller]:
        return {number: accounts.caller_of_key(self._db, number) for number in numbers}


def run(
    function: Callable[[ListDatabase, datetime, C], R],
) -> Callable[[DB, datetime, C], R]:
    """Return a shared transaction as one of this database."""
    return lambda db, now, command: function(SqliteLists(db), now, command)


def revoke_key(db: DB, now: datetime, command: RevokeKey) -> bool:
    """Revoke a key and pause its lists; see `accounts.revoke_key`."""
    revoked = accounts.revoke_key(db, now, command)
    tables.pause_of_key(SqliteLists(db), command.key_id)
    return revoked


def record(db: DB, now: datetime, part: ChunkPart) -> bool:
    """Store results of a claimed chunk; see `tables.record`."""
    return tables.record(SqliteLists(db), now, part)


def drop_ended(db: DB, _: datetime, *, tier: str, since: int) -> bool:
    """Delete some of a list that ended before; whether there may be more."""
    return tables.drop_ended(SqliteLists(db), tier, since)


def drop_unloaded(db: DB, now: datetime) -> bool:
    """Delete some of a list whose upload has died; whether there may be more."""
    return tables.drop_unloaded(SqliteLists(db), now)
