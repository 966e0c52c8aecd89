"""Key look-up on the event loop's own thread, if it cannot block.

Each request looks up its key in the file, as another process may have revoked it. A
hand-off to a thread and back costs several times the look-up itself. In write-ahead
mode a reader waits for no writer and no lock; only the disk could delay it. So only
a key that was read a moment ago, whose pages are in memory, is looked up here. Any
other key, and any failure, goes to the reader's thread.
"""

import sqlite3
import time
from contextlib import suppress
from pathlib import Path

import trio
from msgspec import Struct, field

from ..callers import ACTIVE, caller_of
from ..contract import StoreUnavailable
from ..records import Caller
from .file import connect, inode_of

WARM_S = 60.0  # pages read within this time are assumed to be in memory; they serve many keys
KEYS_MAX = 10_000
CACHE_KIB = 1024  # of keys and accounts alone: those of some thousand


def caller(db: sqlite3.Connection, sha256: str) -> Caller | None:
    """Return the active key with this hash and its account, or None."""
    row = db.execute(f"{ACTIVE} = ?", (sha256,)).fetchone()
    return caller_of(row[1:]) if row else None


class _CoalescedLookup(Struct, eq=False):
    done: trio.Event = field(default_factory=trio.Event)
    found: tuple[bool, Caller | None] = (False, None)


class KeyLookup:
    """A read connection of the event loop's thread; the reader's thread opens it, as that uses the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._inode = (0, 0)
        self._read_at: dict[str, float] = {}  # by the key's hash; the most recent last
        self._pending: dict[str, _CoalescedLookup] = {}  # look-ups that are about to run

    async def coalesced_caller(self, sha256: str) -> tuple[bool, Caller | None]:
        """Look a key up once for all tasks that ask for it in the same turn of the event loop.

        The look-up runs after the last of them has asked, so each sees the state of the
        file after its own request. Returns the same as `caller`.
        """
        lookup = self._pending.get(sha256)
        if lookup is not None:
            await lookup.done.wait()
            return lookup.found
        lookup = self._pending[sha256] = _CoalescedLookup()
        try:
            await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            del self._pending[sha256]
            lookup.found = self.caller(sha256)
            lookup.done.set()
        return lookup.found

    def caller(self, sha256: str) -> tuple[bool, Caller | None]:
        """Return whether the look-up was possible at once, and the caller it found."""
        db = self._db
        if db is None or time.monotonic() - self._read_at.get(sha256, -WARM_S) >= WARM_S:
            return False, None
        try:
            if inode_of(self._path) == self._inode:
                found = caller(db, sha256)
                self.has_read(sha256)
                return True, found
        except (sqlite3.Error, OSError):
            pass  # the reader's thread reports the error
        self.close()
        return False, None

    def has_read(self, sha256: str) -> None:
        """Note that the key's pages were just read."""
        self._read_at.pop(sha256, None)
        self._read_at[sha256] = time.monotonic()
        if len(self._read_at) > KEYS_MAX:
            del self._read_at[next(iter(self._read_at))]

    def close(self) -> None:
        """Close the connection, if it is open."""
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    # called in the reader's thread

    def open(self) -> None:
        """Open the connection if it is not: a failure closes it, and it is opened again afterwards."""
        if self._db is not None:
            return
        with suppress(sqlite3.Error, OSError, StoreUnavailable):
            inode = inode_of(self._path)
            db = connect(self._path, CACHE_KIB)
            db.execute("PRAGMA busy_timeout = 0")
            db.execute("PRAGMA query_only = ON")
            self._inode, self._db = inode, db
