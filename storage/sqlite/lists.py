"""Lists in SQLite: runs the shared transactions of `list_tables` on a connection."""

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime

from mailprobe.storage import list_tables
from mailprobe.storage.commands import (
    AddChunks,
    ChangeList,
    ClaimChunks,
    CreateList,
    DeleteList,
    EncryptedListClaim,
    ExtendChunk,
    FindList,
    ListLists,
    ReadChunks,
    ReleaseChunk,
)
from mailprobe.storage.list_records import ChunkPart, ListChunk, StoredList
from mailprobe.storage.list_tables import Row, Values
from mailprobe.storage.records import Caller
from mailprobe.storage.sqlite import accounts

DB = sqlite3.Connection


class SqliteLists:
    """A connection as `list_tables` uses it; SQLite has one writer, so nothing is locked."""

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


def create(db: DB, now: datetime, command: CreateList) -> StoredList | None:
    return list_tables.create(SqliteLists(db), now, command)


def add_chunks(db: DB, _: datetime, command: AddChunks) -> bool:
    return list_tables.add_chunks(SqliteLists(db), command)


def change(db: DB, now: datetime, command: ChangeList) -> StoredList | None:
    return list_tables.change(SqliteLists(db), now, command)


def find(db: DB, _: datetime, command: FindList) -> StoredList | None:
    return list_tables.find(SqliteLists(db), command)


def list_lists(db: DB, _: datetime, command: ListLists) -> list[StoredList]:
    return list_tables.list_lists(SqliteLists(db), command)


def is_due(db: DB, now: datetime) -> bool:
    return list_tables.is_due(SqliteLists(db), now)


def claim(db: DB, now: datetime, command: ClaimChunks) -> list[EncryptedListClaim]:
    return list_tables.claim(SqliteLists(db), now, command)


def extend(db: DB, now: datetime, command: ExtendChunk) -> bool:
    return list_tables.extend(SqliteLists(db), now, command)


def release(db: DB, _: datetime, command: ReleaseChunk) -> bool:
    return list_tables.release(SqliteLists(db), command)


def record(db: DB, now: datetime, part: ChunkPart) -> bool:
    return list_tables.record(SqliteLists(db), now, part)


def read_chunks(db: DB, _: datetime, command: ReadChunks) -> list[ListChunk]:
    return list_tables.read_chunks(SqliteLists(db), command)


def delete(db: DB, _: datetime, command: DeleteList) -> bool:
    return list_tables.delete(SqliteLists(db), command)


def drop_ended(db: DB, _: datetime, *, tier: str, since: int) -> bool:
    return list_tables.drop_ended(SqliteLists(db), tier, since)


def drop_unloaded(db: DB, now: datetime) -> bool:
    return list_tables.drop_unloaded(SqliteLists(db), now)
