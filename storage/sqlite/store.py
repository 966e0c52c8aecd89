"""The SQLite store, in one file: the default.

Write-ahead log, synchronous=FULL; one writer thread with group commit, one
reader thread (database_thread). Several processes may share the file: a writer
holds the lock from before it reads the clock until the commit is on the disk.
The transactions are functions in the modules of this package, one per command.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import trio

from ..base.encryption import Cipher
from ..contract import StoreSize
from ..database import Function, StoreCommand
from ..records import Caller, Tier
from ..store import Store
from .database import SqliteDatabase
from .database_thread import Reader, Writer
from .file import explain_error, prepare
from .key_lookup import KeyLookup, caller
from .secret_key import ready_key
from .transactions import CLAIMS, READS, WRITES, apply_retention, check

P = ParamSpec("P")
R = TypeVar("R")


@asynccontextmanager
async def open_sqlite(
    path: Path, *, secret_key: bytes | None, now: Callable[[], datetime], size: StoreSize
) -> AsyncIterator[Store]:
    """Create or check the file, and open the store; leaving the block answers the pending calls.

    Without a secret key the one in the file beside the database is used, or created. Another key
    than the database's is refused.
    Raises StoreBroken, StoreUnavailable.
    """

    def make_ready() -> bytes:
        prepare(path)
        return ready_key(path, secret_key)

    cipher = Cipher(await trio.to_thread.run_sync(make_ready))
    with explain_error(path):
        writer = Writer(path, now, size.answer_s)
    try:
        reader = Reader(path, now, size.answer_s)
        try:
            key_lookup = KeyLookup(path)
            try:
                yield Store(SqliteExecutor(writer, reader, key_lookup), cipher)
            finally:
                key_lookup.close()  # first: the file's last connection writes the log back
        finally:
            await reader.close()
    finally:
        await writer.close()


class SqliteExecutor:
    """Runs the commands of a store in one SQLite file."""

    def __init__(self, writer: Writer, reader: Reader, key_lookup: KeyLookup) -> None:
        self.writer = writer
        self.reader = reader
        self._key_lookup = key_lookup

    async def execute(self, command: StoreCommand[R]) -> R:
        """Run the command: in the writer's thread, in the reader's, or in several steps."""
        kind = type(command)
        result: object = None
        if write := WRITES.get(kind):
            result = await self.writer.call(lambda db, now: write(db, now, command))
        elif read := READS.get(kind):
            result = await self.reader.call(lambda db, now: read(db, now, command))
        else:
            result = await self._claim(command)
        return cast(R, result)

    async def _claim(self, command: StoreCommand[Any]) -> Any:
        """Look before the write: an idle worker must not take the lock."""
        is_due, claim = CLAIMS[type(command)]
        if not await self.reader.call(lambda db, now: is_due(db, now, command)):
            return []
        return await self.writer.call(lambda db, now: claim(db, now, command))

    async def write(self, function: Function[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = await self.writer.call(
            lambda db, now: function(SqliteDatabase(db, now), *args, **kwargs)
        )
        return result

    async def read(self, function: Function[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = await self.reader.call(
            lambda db, now: function(SqliteDatabase(db, now), *args, **kwargs)
        )
        return result

    def lease_session(self) -> int:
        return 0

    async def apply_retention(self, retention_days: Mapping[Tier, int]) -> None:
        await apply_retention(self, self.writer.call, self.reader.call, retention_days)

    async def check(self) -> datetime:
        now: datetime = await self.writer.call(check)
        return now

    async def find_caller(self, sha256: str) -> Caller | None:
        """Look the key up in this thread if that cannot block, else in the reader's."""
        await trio.lowlevel.checkpoint_if_cancelled()
        known, found = await self._key_lookup.coalesced_caller(sha256)
        if not known:
            found = await self.reader.call(partial(self._look_up, sha256=sha256))
            self._key_lookup.has_read(sha256)
        return found

    def _look_up(self, db: sqlite3.Connection, _: datetime, *, sha256: str) -> Caller | None:
        self._key_lookup.open()
        return caller(db, sha256)
