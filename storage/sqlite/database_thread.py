"""Database threads: each holds a connection and executes the calls of trio tasks.

A task submits a function of the connection and the instant. Once the writer holds
the database's lock it takes all pending calls, executes them, commits them together,
and only then answers. So a caller that gives up before its turn has changed nothing,
and one disk flush serves many. If a call fails after it wrote something, the whole
batch is executed again, each call in a savepoint of its own. That is rare, and a
savepoint costs a copy of every page that the call changes.
"""

import logging
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import trio

from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.sqlite.file import (
    RETRY_S,
    WriterQueue,
    as_unavailable,
    code_of,
    connect,
    inode_of,
    is_file_failure,
)
from mailprobe.storage.thread_futures import ThreadFuture, resume

log = logging.getLogger("mailprobe.store")

T = TypeVar("T")
DatabaseCall = Callable[[sqlite3.Connection, datetime], T]

ANSWER_S = 0.8  # then StoreUnavailable: one second is promised, and a request makes several calls
CLOSING_S = 5.0  # how long close() waits for a stalled disk
WAITING_MAX = 20_000  # more than any machine answers in ANSWER_S
GROUP_MAX = 500  # calls in one transaction: some 20 ms
READING_MS = 250  # a reader waits only while the whole file is locked


class _PendingCall(ThreadFuture, Generic[T]):
    """One call, from its submission to its answer."""

    __slots__ = ("call", "error", "isolated", "value")

    def __init__(self, call: DatabaseCall[T], task: trio.lowlevel.Task) -> None:
        super().__init__(task)
        self.call = call
        self.isolated = False  # the thread's: in a savepoint of its own, as its batch failed
        self.value: Any = None
        self.error: Exception | None = None


STALL_S = 5.0  # then the outcome of a transaction on a stalled disk stays unknown


class DatabaseThread(ABC):
    """A thread that executes calls, and the queue in front of it."""

    stall_s = 0.0  # reads may simply be repeated

    def __init__(self, path: Path, now: Callable[[], datetime]) -> None:
        self._path = path
        self._now = now
        self._queue: deque[_PendingCall[Any]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._trio = trio.lowlevel.current_trio_token()
        self._ended = trio.Event()
        self._db: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
        self._thread.start()

    async def call(self, call: DatabaseCall[T]) -> T:
        """Execute a call and return its value; raises what it raises, or StoreUnavailable within ANSWER_S.

        A call that has begun by then is awaited for `stall_s` longer, so that its outcome
        is known. A cancelled caller gets its answer first: the wait is short, and the
        caller must know what was committed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        pending = _PendingCall(call, trio.lowlevel.current_task())
        self._enqueue(pending)
        await pending.wait(ANSWER_S)
        if not pending.answered and not self._abandon(pending):
            await pending.wait(self.stall_s)
        if not pending.answered:
            self._abandon(pending)  # it may have been requeued
            raise StoreUnavailable(f"{self._path} did not answer within {ANSWER_S} s")
        if pending.error:
            raise pending.error
        value: T = pending.value
        return value

    def _abandon(self, pending: _PendingCall[Any]) -> bool:
        """Abandon a call; False if it has begun."""
        with self._changed:
            pending.abandoned = not pending.delivered
            return pending.abandoned

    async def close(self) -> None:
        """Answer the pending calls, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSING_S):
            await self._ended.wait()
            self._thread.join()

    def _enqueue(self, pending: _PendingCall[Any]) -> None:
        with self._changed:
            if self._closing:
                raise StoreUnavailable("the store has been closed")
            if len(self._queue) >= WAITING_MAX:
                raise StoreUnavailable("too many wait for the store")
            self._queue.append(pending)
            self._changed.notify()

    # below: executed in the thread

    def _run(self) -> None:
        while self._await_work():
            try:
                self._serve()
            except Exception:  # a bug of ours: the calls it took time out, the others continue
                log.exception("the store's thread failed")
        self._disconnect()
        with suppress(trio.RunFinishedError):
            self._trio.run_sync_soon(self._ended.set)

    def _await_work(self) -> bool:
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return bool(self._queue)

    def _has_waiting_call(self) -> bool:
        with self._changed:
            while self._queue and self._queue[0].abandoned:
                self._queue.popleft()
            return bool(self._queue)

    def _dequeue(self, most: int) -> list[_PendingCall[Any]]:
        with self._changed:
            next_ones = [self._queue.popleft() for _ in range(min(most, len(self._queue)))]
            taken = [pending for pending in next_ones if not pending.abandoned]
            for pending in taken:
                pending.delivered = True
        return taken

    @abstractmethod
    def _serve(self) -> None:
        """Answer all pending calls, or some of them."""

    def _connected(self) -> sqlite3.Connection:
        """Return a connection to the file that is at the path now; a file that was moved is not written."""
        if self._db and self._inode != inode_of(self._path):
            self._disconnect()
        if self._db is None:
            self._inode = inode_of(self._path)
            self._db = connect(self._path)
            self._configure(self._db)
        return self._db

    @abstractmethod
    def _configure(self, db: sqlite3.Connection) -> None:
        """Configure a new connection."""

    def _disconnect(self) -> None:
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None

    def _fail(self, calls: list[_PendingCall[Any]], error: Exception) -> None:
        """Fail these calls with the error; the next call gets a new connection."""
        self._disconnect()
        for pending in calls:
            pending.error = as_unavailable(error, self._path) if is_file_failure(error) else error
        self._answer(calls)

    def _answer(self, calls: list[_PendingCall[Any]]) -> None:
        with suppress(trio.RunFinishedError):
            self._trio.run_sync_soon(resume, calls)


class Writer(DatabaseThread):
    """Commits many calls in one transaction; writers of several processes take turns."""

    stall_s = STALL_S

    def __init__(self, path: Path, now: Callable[[], datetime]) -> None:
        self._writer_queue = WriterQueue(path)
        super().__init__(path, now)

    async def close(self) -> None:
        """Answer the pending calls, end the thread and release the lock file."""
        await super().close()
        if not self._thread.is_alive():
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
            self._requeue(db, group)
        except Exception as error:
            self._fail(group, error)
        else:
            self._answer(group)

    def _requeue(self, db: sqlite3.Connection, group: list[_PendingCall[Any]]) -> None:
        """Put a failed batch back at the head of the queue; none of it has happened."""
        try:
            db.execute("ROLLBACK")
        except sqlite3.Error as error:
            self._fail(group, error)
            return
        with self._changed:
            for pending in group:
                pending.delivered, pending.isolated = False, True
                pending.value = pending.error = None
            self._queue.extendleft(reversed(group))

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

    def _configure(self, db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA busy_timeout = {READING_MS}")
        db.execute("PRAGMA query_only = ON")

    def _serve(self) -> None:
        group = self._dequeue(
            GROUP_MAX
        )  # before BEGIN: they see all that was committed before their submission
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


def _execute(db: sqlite3.Connection, pending: _PendingCall[Any], now: datetime) -> None:
    """Execute one call. If it fails, the other calls' work stays.

    A failed call either has written nothing, or only its own savepoint is rolled back.
    """
    if pending.isolated:
        db.execute("SAVEPOINT call")
    before = db.total_changes
    try:
        pending.value = pending.call(db, now)
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
