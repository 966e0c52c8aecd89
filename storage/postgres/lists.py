"""Lists in PostgreSQL: runs the shared transactions of `mailprobe.storage.lists.tables` in a session."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache

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
from mailprobe.storage.postgres.accounts import callers_of_keys
from mailprobe.storage.postgres.driver.server import TransactionSession
from mailprobe.storage.postgres.job_claims import CLAIMING_LOCK
from mailprobe.storage.records import Caller

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
        return callers_of_keys(self._db, numbers)


def create(db: TransactionSession, command: CreateList) -> StoredList | None:
    return tables.create(PostgresLists(db), db.now(), command)


def add_chunks(db: TransactionSession, command: AddChunks) -> bool:
    return tables.add_chunks(PostgresLists(db), command)


def change(db: TransactionSession, command: ChangeList) -> StoredList | None:
    return tables.change(PostgresLists(db), db.now(), command)


def find(db: TransactionSession, command: FindList) -> StoredList | None:
    return tables.find(PostgresLists(db), command)


def list_lists(db: TransactionSession, command: ListLists) -> list[StoredList]:
    return tables.list_lists(PostgresLists(db), command)


def is_due(db: TransactionSession) -> bool:
    return tables.is_due(PostgresLists(db), db.now())


def claim(db: TransactionSession, command: ClaimChunks) -> list[EncryptedListClaim]:
    return tables.claim(PostgresLists(db), db.now(), command)


def extend(db: TransactionSession, command: ExtendChunk) -> bool:
    return tables.extend(PostgresLists(db), db.now(), command)


def release(db: TransactionSession, command: ReleaseChunk) -> bool:
    return tables.release(PostgresLists(db), command)


def record(db: TransactionSession, now: datetime, part: ChunkPart) -> bool:
    return tables.record(PostgresLists(db), now, part)


def read_chunks(db: TransactionSession, command: ReadChunks) -> list[ListChunk]:
    return tables.read_chunks(PostgresLists(db), command)


def delete(db: TransactionSession, command: DeleteList) -> bool:
    return tables.delete(PostgresLists(db), command)


def drop_ended(db: TransactionSession, *, tier: str, since: int) -> bool:
    return tables.drop_ended(PostgresLists(db), tier, since)


def drop_unloaded(db: TransactionSession) -> bool:
    return tables.drop_unloaded(PostgresLists(db), db.now())
