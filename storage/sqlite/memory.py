"""The store in memory: SQLite's transactions on one connection, executed at once.

For tests, demos and whatever may forget. There is no thread and nothing waits, so that it
works in virtual time; the clock is injected.
"""

import secrets
import sqlite3
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import ParamSpec, TypeVar

import trio

from ..base.encryption import KEY_OCTETS, Cipher
from ..database import Function, StoreCommand
from ..records import Caller, Tier
from ..store import Store
from .database import SqliteDatabase
from .file import create_tables
from .key_lookup import caller
from .transactions import CLAIMS, READS, WRITES, apply_retention, check

P = ParamSpec("P")
R = TypeVar("R")
TRANSACTIONS = {**WRITES, **READS, **{kind: claim for kind, (_, claim) in CLAIMS.items()}}


class MemoryExecutor:
    """Runs the commands of a store that lasts until the process ends."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.now = now
        self.db = _connect()
        self.db.deserialize(_tables())
        weakref.finalize(self, self.db.close)

    async def execute(self, command: StoreCommand[R]) -> R:
        """Run the command at once."""
        await trio.lowlevel.checkpoint()
        result: R = await self._call(TRANSACTIONS[type(command)], command)
        return result

    async def write(self, function: Function[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        await trio.lowlevel.checkpoint()
        return await self._call(lambda db, now: function(SqliteDatabase(db, now), *args, **kwargs))

    read = write

    async def find_caller(self, sha256: str) -> Caller | None:
        await trio.lowlevel.checkpoint()
        return await self._call(lambda db, _: caller(db, sha256))

    async def apply_retention(self, retention_days: Mapping[Tier, int]) -> None:
        await apply_retention(self, self._call, self._call, retention_days)

    async def check(self) -> datetime:
        return await self._call(check)

    async def _call(self, transaction: Callable[..., R], *commands: object) -> R:
        self.db.execute("BEGIN")
        try:
            result = transaction(self.db, self.now(), *commands)
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")
        return result

    def lease_session(self) -> int:
        return 0


class MemoryStore(Store):
    """A store of its own; its secrets are encrypted with a random key."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(MemoryExecutor(now), Cipher(secrets.token_bytes(KEY_OCTETS)))


def _connect() -> sqlite3.Connection:
    return sqlite3.connect(
        ":memory:",
        isolation_level=None,  # we begin and end transactions ourselves
        check_same_thread=False,  # the garbage collector may close it from any thread
        cached_statements=256,
    )


@cache
def _tables() -> bytes:
    """The empty tables as a database's image: to copy it takes a tenth of making them anew."""
    db = _connect()
    try:
        create_tables(db)
        return db.serialize()
    finally:
        db.close()
