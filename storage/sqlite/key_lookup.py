"""A key's look-up on the loop's own thread, where nothing has to be waited for.

Each request asks whose key it has, and it must ask the file: another process may
have revoked the key. Handing that to a thread and back costs several times the
look-up itself. In the write-ahead log a reader waits for no writer and for no lock;
what could keep it is the disk. So only a key is looked up here that was read a
moment ago, whose pages are in memory; any other, and whatever fails, goes to the
reader's thread.
"""

import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.records import Caller
from mailprobe.storage.sqlite.accounts import caller
from mailprobe.storage.sqlite.file import connect, inode_of

WARM_S = 60.0  # what was read since is taken to be in memory: the same pages serve many keys
KEYS_MAX = 10_000


@dataclass(slots=True, eq=False)
class _Joint:
    is_made: trio.Event = field(default_factory=trio.Event)
    found: tuple[bool, Caller | None] = (False, None)


class KeyLookup:
    """A reading connection of the loop's thread; opened by the reader's, since that takes the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._inode = (0, 0)
        self._read_at: dict[str, float] = {}  # by the key's hash; the last read last
        self._joint: dict[str, _Joint] = {}  # look-ups that are about to be made

    async def joint_caller(self, sha256: str) -> tuple[bool, Caller | None]:
        """The same, together with all who ask for this key in the same turn of the loop.

        The look-up comes after the last of them has asked, so each has the state of the
        file as it is after its request.
        """
        joint = self._joint.get(sha256)
        if joint is not None:
            await joint.is_made.wait()
            return joint.found
        joint = self._joint[sha256] = _Joint()
        try:
            await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            del self._joint[sha256]
            joint.found = self.caller(sha256)
            joint.is_made.set()
        return joint.found

    def caller(self, sha256: str) -> tuple[bool, Caller | None]:
        """Whether it could be looked up at once, and if so whose key it is."""
        db = self._db
        if db is None or time.monotonic() - self._read_at.get(sha256, -WARM_S) >= WARM_S:
            return False, None
        try:
            if inode_of(self._path) == self._inode:
                found = caller(db, sha256)
                self.has_read(sha256)
                return True, found
        except (sqlite3.Error, OSError):
            pass  # the reader's thread will say what it is
        self.close()
        return False, None

    def has_read(self, sha256: str) -> None:
        self._read_at.pop(sha256, None)
        self._read_at[sha256] = time.monotonic()
        if len(self._read_at) > KEYS_MAX:
            del self._read_at[next(iter(self._read_at))]

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    # in the reader's thread

    def open(self) -> None:
        """Where it is not: it may be closed by a fault, and is opened again when that has healed."""
        if self._db is not None:
            return
        with suppress(sqlite3.Error, OSError, StoreUnavailable):
            inode = inode_of(self._path)
            db = connect(self._path)
            db.execute("PRAGMA busy_timeout = 0")
            db.execute("PRAGMA query_only = ON")
            self._inode, self._db = inode, db
