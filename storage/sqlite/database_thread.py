"""Database threads: each holds a connection and executes the calls of trio tasks.

A task submits a function of the connection and the instant. Once the writer holds
the database's lock it takes all pending calls, executes them, commits them together,
and only then answers. So a caller that gives up before its turn has changed nothing,
and one disk flush serves many. If a call fails after it wrote something, the whole
batch is executed again, each call in a savepoint of its own. That is rare, and a
savepoint costs a copy of every page that the call changes.
"""

import sqlite3
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from ..base.call_queue import WAITING_MAX, CallQueue, PendingCall, log
from .file import (
    READER_CACHE_KIB,
    RETRY_S,
    WRITER_CACHE_KIB,
    WriterQueue,
    as_unavailable,
    code_of,
    connect,
    inode_of,
    is_file_failure,
)

T = TypeVar("T")
DatabaseCall = Callable[[sqlite3.Connection, datetime], T]
_Pending = PendingCall[DatabaseCall[object]]

GROUP_MAX = 500  # calls in one transaction: some 20 ms
READING_MS = 250  # a reader waits only while the whole file is locked
STALL_S = 5.0  # then the outcome of a transaction on a stalled disk stays unknown


class DatabaseThread(CallQueue[DatabaseCall[object]]):
    """A thread that executes calls on its connection."""

    cache_kib = WRITER_CACHE_KIB

    def __init__(
        self, path: Path, now: Callable[[], datetime], answer_s: float | None = None
    ) -> None:
        self._path = path
        self._now = now
        self.db: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        super().__init__(str(path), answer_s=answer_s)

    # below: executed in the thread

    def _serve_calls(self) -> None:
        while self._await_work():
            try:
                self._serve()
            except Exception:  # a bug of ours: the calls it took time out, the others continue
                log.exception("database thread failed")
        self._disconnect()

    @abstractmethod
    def _serve(self) -> None:
        """Answer all pending calls, or some of them."""

    def _connected(self) -> sqlite3.Connection:
        """Return a connection to the file that is at the path now; a file that was moved is not written."""
        if self.db and self._inode != inode_of(self._path):
            self._disconnect()
        if self.db is None:
            self._inode = inode_of(self._path)
            self.db = connect(self._path, self.cache_kib)
            self._configure(self.db)
        return self.db

    @abstractmethod
    def _configure(self, db: sqlite3.Connection) -> None:
        """Configure a new connection."""

    def _disconnect(self) -> None:
        if self.db is not None:
            with suppress(sqlite3.Error):
                self.db.close()
            self.db = None

    def _fail(self, calls: list[_Pending], error: Exception) -> None:
        """Fail these calls with the error; the next call gets a new connection."""
        self._disconnect()
        for pending in calls:
            pending.error = as_unavailable(error, self._path) if is_file_failure(error) else error
        self._answer(calls)


class Writer(DatabaseThread):
    """Commits many calls in one transaction; writers of several processes take turns."""

    begun_s = STALL_S

    def __init__(
        self, path: Path, now: Callable[[], datetime], answer_s: float | None = None
    ) -> None:
        self._writer_queue = WriterQueue(path)
        super().__init__(path, now, answer_s)

    async def close(self) -> None:
        """Answer the pending calls, end the thread and release the lock file."""
        await super().close()
        if not any(thread.is_alive() for thread in self._threads):
            self._writer_queue.close()

    def _configure(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA busy_timeout = 0")  # WriterQueue does the waiting

    def _serve(self) -> None:
        try:
            db = self._connected()
            if not self._begin(db):
                return
        except Exception as error:
            self._fail(self._dequeue(WAITING_MAX), error)
            return
        group = self._dequeue(GROUP_MAX)
        try:
            now = self._now()
            for pending in group:
                _execute(db, pending, now)
            db.execute("COMMIT")
        except _BatchFailed:
            self._retry_isolated(db, group)
        except Exception as error:
            self._fail(group, error)
        else:
            self._answer(group)

    def _retry_isolated(self, db: sqlite3.Connection, group: list[_Pending]) -> None:
        """Queue a failed batch again, each call isolated; none of it has happened."""
        try:
            db.execute("ROLLBACK")
        except sqlite3.Error as error:
            self._fail(group, error)
            return
        for pending in group:
            pending.isolated = True
        self._requeue(group)

    def _begin(self, db: sqlite3.Connection) -> bool:
        """Acquire the lock; False if all callers gave up before it was free."""
        if not self._until(self._writer_queue.try_enter):
            return False
        try:
            return self._until(lambda: _try_begin(db))
        finally:
            self._writer_queue.release()

    def _until(self, attempt: Callable[[], bool]) -> bool:
        while not attempt():
            if not self._has_waiting_call():
                return False
            time.sleep(RETRY_S)
        return True


class Reader(DatabaseThread):
    """Answers all pending calls from one snapshot; it waits for no writer."""

    cache_kib = READER_CACHE_KIB

    def _configure(self, db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA busy_timeout = {READING_MS}")
        db.execute("PRAGMA query_only = ON")

    def _serve(self) -> None:
        # Before BEGIN: they see all that was committed before their submission.
        group = self._dequeue(GROUP_MAX)
        try:
            db = self._connected()
            db.execute("BEGIN")
            now = self._now()
            for pending in group:
                _execute(db, pending, now)
            db.execute("COMMIT")
        except Exception as error:
            self._fail(group, error)
        else:
            self._answer(group)


def _try_begin(db: sqlite3.Connection) -> bool:
    try:
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if code_of(error) == sqlite3.SQLITE_BUSY:
            return False
        raise
    return True


class _BatchFailed(Exception):
    """A call failed after it wrote something, in one transaction with other calls."""


def _execute(db: sqlite3.Connection, pending: _Pending, now: datetime) -> None:
    """Execute one call. If it fails, the other calls' work stays.

    A failed call either has written nothing, or only its own savepoint is rolled back.
    """
    if pending.isolated:
        db.execute("SAVEPOINT call")
    before = db.total_changes
    try:
        pending.value = pending.what(db, now)
    except Exception as error:
        if is_file_failure(error):
            raise
        if pending.isolated:
            db.execute("ROLLBACK TO call")
        elif db.total_changes != before:
            raise _BatchFailed from error
        pending.error = error
    if pending.isolated:
        db.execute("RELEASE call")
