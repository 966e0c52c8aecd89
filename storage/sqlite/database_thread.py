"""Threads that hold a connection each, and the hand-off between them and trio.

A task asks with a function of the connection and the instant. The writer takes
whatever is waiting once it holds the database's lock, runs it, commits all
together, and only then answers. So a caller that gives up before its turn has
changed nothing, and one disk flush serves many. Where one fails that had written
something, all are done again, each in a savepoint of its own: that is rare, and
savepoints cost each of them copies of the pages that it changes.
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

ANSWER_S = 0.8  # then StoreUnavailable: a second was promised, and a request asks more than once
CLOSING_S = 5.0  # as long the end waits for a disk that has stalled
WAITING_MAX = 20_000  # more than are answered in ANSWER_S anywhere
GROUP_MAX = 500  # acts in one transaction: some 20 ms
READING_MS = 250  # a reader waits only where the whole file is locked


class _PendingCall(ThreadFuture, Generic[T]):
    """One act, from its asking to its answer."""

    __slots__ = ("apart", "call", "error", "value")

    def __init__(self, act: DatabaseCall[T], task: trio.lowlevel.Task) -> None:
        super().__init__(task)
        self.call = act
        self.apart = False  # the thread's: in a savepoint of its own, since its group was spoilt
        self.value: Any = None
        self.error: Exception | None = None


STALL_S = 5.0  # then the outcome of a transaction whose disk stalls stays unknown


class DatabaseThread(ABC):
    """A thread that answers, and the queue before it."""

    stall_s = 0.0  # what is only read may be asked again

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

    async def call(self, act: DatabaseCall[T]) -> T:
        """Have it done; raises what it raises, or StoreUnavailable within ANSWER_S.

        What has been begun by then is waited for a little longer, lest its outcome
        be unknown. A caller that is cancelled meanwhile gets its answer first: the
        wait is short, and what was committed must be known to somebody.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        asked = _PendingCall(act, trio.lowlevel.current_task())
        self._enqueue(asked)
        await asked.wait(ANSWER_S)
        if not asked.answered and not self._fail_call(asked):
            await asked.wait(self.stall_s)
        if not asked.answered:
            self._fail_call(asked)  # it may have been put back
            raise StoreUnavailable(f"{self._path} did not answer within {ANSWER_S} s")
        if asked.error:
            raise asked.error
        value: T = asked.value
        return value

    def _fail_call(self, asked: _PendingCall[Any]) -> bool:
        """False where it has been begun."""
        with self._changed:
            asked.abandoned = not asked.delivered
            return asked.abandoned

    async def close(self) -> None:
        """Answer what is waiting, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSING_S):
            await self._ended.wait()
            self._thread.join()

    def _enqueue(self, asked: _PendingCall[Any]) -> None:
        with self._changed:
            if self._closing:
                raise StoreUnavailable("the store has been closed")
            if len(self._queue) >= WAITING_MAX:
                raise StoreUnavailable("too many wait for the store")
            self._queue.append(asked)
            self._changed.notify()

    # from here on in the thread

    def _run(self) -> None:
        while self._await_work():
            try:
                self._serve()
            except Exception:  # a bug of ours: those it took give up in time, the others go on
                log.exception("the store's thread failed")
        self._disconnect()
        with suppress(trio.RunFinishedError):
            self._trio.run_sync_soon(self._ended.set)

    def _await_work(self) -> bool:
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return bool(self._queue)

    def _anyone_waits(self) -> bool:
        with self._changed:
            while self._queue and self._queue[0].abandoned:
                self._queue.popleft()
            return bool(self._queue)

    def _dequeue(self, most: int) -> list[_PendingCall[Any]]:
        with self._changed:
            next_ones = [self._queue.popleft() for _ in range(min(most, len(self._queue)))]
            taken = [asked for asked in next_ones if not asked.abandoned]
            for asked in taken:
                asked.delivered = True
        return taken

    @abstractmethod
    def _serve(self) -> None:
        """Answer those who wait, or some of them."""

    def _connected(self) -> sqlite3.Connection:
        """The connection, to the file that is there now: one moved away is not written to."""
        if self._db and self._inode != inode_of(self._path):
            self._disconnect()
        if self._db is None:
            self._inode = inode_of(self._path)
            self._db = connect(self._path)
            self._furnish(self._db)
        return self._db

    @abstractmethod
    def _furnish(self, db: sqlite3.Connection) -> None:
        """Set up a new connection for what it is to do."""

    def _disconnect(self) -> None:
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None

    def _fail(self, those: list[_PendingCall[Any]], error: Exception) -> None:
        """Tell them that it cannot be done; the next who asks gets a connection of his own."""
        self._disconnect()
        for asked in those:
            asked.error = as_unavailable(error, self._path) if is_file_failure(error) else error
        self._answer(those)

    def _answer(self, those: list[_PendingCall[Any]]) -> None:
        with suppress(trio.RunFinishedError):
            self._trio.run_sync_soon(resume, those)


class Writer(DatabaseThread):
    """Many transactions in one, in turn with the writers of other processes."""

    stall_s = STALL_S

    def __init__(self, path: Path, now: Callable[[], datetime]) -> None:
        self._writer_queue = WriterQueue(path)
        super().__init__(path, now)

    async def close(self) -> None:
        await super().close()
        if not self._thread.is_alive():
            self._writer_queue.close()

    def _furnish(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA busy_timeout = 0")  # waiting is the turnstile's business

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
            for asked in group:
                _act(db, asked, now)
            db.execute("COMMIT")
        except _SpoiltGroup:
            self._requeue(db, group)
        except Exception as error:
            self._fail(group, error)
        else:
            self._answer(group)

    def _requeue(self, db: sqlite3.Connection, group: list[_PendingCall[Any]]) -> None:
        """None of it has happened: to be done again, before all others."""
        try:
            db.execute("ROLLBACK")
        except sqlite3.Error as error:
            self._fail(group, error)
            return
        with self._changed:
            for asked in group:
                asked.delivered, asked.apart = False, True
                asked.value = asked.error = None
            self._queue.extendleft(reversed(group))

    def _begin(self, db: sqlite3.Connection) -> bool:
        """Take the lock; False where everybody gave up before it was free."""
        if not self._until(self._writer_queue.try_enter):
            return False
        try:
            return self._until(lambda: _try_begin(db))
        finally:
            self._writer_queue.release()

    def _until(self, attempt: Callable[[], bool]) -> bool:
        while not attempt():
            if not self._anyone_waits():
                return False
            time.sleep(RETRY_S)
        return True


class Reader(DatabaseThread):
    """Looks at one state of the database for all who ask together; it waits for no writer."""

    def _furnish(self, db: sqlite3.Connection) -> None:
        db.execute(f"PRAGMA busy_timeout = {READING_MS}")
        db.execute("PRAGMA query_only = ON")

    def _serve(self) -> None:
        group = self._dequeue(
            GROUP_MAX
        )  # before BEGIN: they see all that was committed before they asked
        try:
            db = self._connected()
            db.execute("BEGIN")
            now = self._now()
            for asked in group:
                _act(db, asked, now)
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


class _SpoiltGroup(Exception):
    """An act has failed that had written something, beside the work of others."""


def _act(db: sqlite3.Connection, asked: _PendingCall[Any], now: datetime) -> None:
    """Where it fails, the others' work stays: it has written nothing, or is rolled back alone."""
    if asked.apart:
        db.execute("SAVEPOINT act")
    before = db.total_changes
    try:
        asked.value = asked.call(db, now)
    except Exception as error:
        if is_file_failure(error):
            raise
        if asked.apart:
            db.execute("ROLLBACK TO act")
        elif db.total_changes != before:
            raise _SpoiltGroup from error
        asked.error = error
    if asked.apart:
        db.execute("RELEASE act")
