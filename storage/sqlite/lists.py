"""Lists in SQLite: runs the shared transactions of `mailprobe.storage.lists.tables` on a connection."""

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime

from mailprobe.storage.lists import tables
from mailprobe.storage.lists.commands import (
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
from mailprobe.storage.lists.records import ChunkPart, ListChunk, StoredList
from mailprobe.storage.lists.tables import Row, Values
from mailprobe.storage.records import Caller
from mailprobe.storage.sqlite import accounts

DB = sqlite3.Connection


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


def create(db: DB, now: datetime, command: CreateList) -> StoredList | None:
    return tables.create(SqliteLists(db), now, command)


def add_chunks(db: DB, _: datetime, command: AddChunks) -> bool:
    return tables.add_chunks(SqliteLists(db), command)


def change(db: DB, now: datetime, command: ChangeList) -> StoredList | None:
    return tables.change(SqliteLists(db), now, command)


def find(db: DB, _: datetime, command: FindList) -> StoredList | None:
    return tables.find(SqliteLists(db), command)


def list_lists(db: DB, _: datetime, command: ListLists) -> list[StoredList]:
    return tables.list_lists(SqliteLists(db), command)


def is_due(db: DB, now: datetime) -> bool:
    return tables.is_due(SqliteLists(db), now)


def claim(db: DB, now: datetime, command: ClaimChunks) -> list[EncryptedListClaim]:
    return tables.claim(SqliteLists(db), now, command)


def extend(db: DB, now: datetime, command: ExtendChunk) -> bool:
    return tables.extend(SqliteLists(db), now, command)


def release(db: DB, _: datetime, command: ReleaseChunk) -> bool:
    return tables.release(SqliteLists(db), command)


def record(db: DB, now: datetime, part: ChunkPart) -> bool:
    return tables.record(SqliteLists(db), now, part)


def read_chunks(db: DB, _: datetime, command: ReadChunks) -> list[ListChunk]:
    return tables.read_chunks(SqliteLists(db), command)


def delete(db: DB, _: datetime, command: DeleteList) -> bool:
    return tables.delete(SqliteLists(db), command)


def drop_ended(db: DB, _: datetime, *, tier: str, since: int) -> bool:
    return tables.drop_ended(SqliteLists(db), tier, since)


def drop_unloaded(db: DB, now: datetime) -> bool:
    return tables.drop_unloaded(SqliteLists(db), now)
