"""Database threads: each holds a connection and executes the calls of trio tasks in batches.

A free thread takes all pending calls, executes them in one transaction, and only then
answers. While one batch is written to the disk the next one gathers, so one flush
serves many. Batches of several threads cannot deadlock: each locks its accounts in the
order of their numbers.

psycopg's pool is not used: it retries a lost connection after 1 s, then 2, 4 and so on,
and a server that is back must be used within 2 s. A thread that keeps its own
connection also keeps its prepared statements.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, Generic, TypeVar

import trio

from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.postgres.driver.batch_executor import BatchExecutor, Raised, Work
from mailprobe.storage.postgres.driver.partitions import Partitions
from mailprobe.storage.postgres.driver.server import PostgresServer
from mailprobe.storage.thread_futures import ThreadFuture, resume

Q = TypeVar("Q")

ANSWER_S = 0.8  # then StoreUnavailable: the contract says 1 s, and a request makes several calls
BEGUN_S = 0.15  # more for a call that has begun: the server itself gives up earlier
CLOSING_S = 5.0
WAITING_MAX = 20_000  # more calls than any server answers in ANSWER_S


class _PendingCommands(ThreadFuture, Generic[Q]):
    """One call, from its submission to its answer."""

    __slots__ = ("outcome", "until", "what")

    def __init__(self, what: Q, task: trio.lowlevel.Task, patience_s: float) -> None:
        super().__init__(task)
        self.what = what
        self.until = time.monotonic() + patience_s
        self.outcome: Any = None  # a value, or Raised


class ThreadPool(Generic[Q]):
    """Threads that do one kind of work, and the queue in front of them."""

    def __init__(
        self,
        server: PostgresServer,
        work: Work[Q],
        now: Callable[[], datetime] | None,
        partitions: Partitions,
        *,
        threads: int,
    ) -> None:
        self._server = server
        self._work = work
        self._now = now
        self._partitions = partitions
        self._queue: deque[_PendingCommands[Q]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._trio = trio.lowlevel.current_trio_token()
        self._running = threads
        self._ended = trio.Event()
        self._threads = [
            threading.Thread(target=self._run, name="PostgreSQL", daemon=True)
            for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    async def call(self, what: Q, *, patience_s: float | None = None) -> Any:
        """Execute a call; raises its error, or StoreUnavailable after `patience_s` seconds.

        A cancelled caller gets its answer first: the wait is short, and the caller must know
        what was committed.
        """
        patience_s = ANSWER_S if patience_s is None else patience_s
        await trio.lowlevel.checkpoint_if_cancelled()
        asked = _PendingCommands(what, trio.lowlevel.current_task(), patience_s)
        self._enqueue(asked)
        await asked.wait(patience_s)
        if not asked.answered and not self._fail(asked):
            await asked.wait(BEGUN_S)
        if not asked.answered:
            raise StoreUnavailable(f"{self._server.name} did not answer within {patience_s:g} s")
        if isinstance(asked.outcome, Raised):
            raise asked.outcome.error
        return asked.outcome

    def _fail(self, asked: _PendingCommands[Q]) -> bool:
        """Abandon the call; False if a thread has begun it."""
        with self._changed:
            asked.abandoned = not asked.delivered
            return asked.abandoned

    async def close(self) -> None:
        """Answer the pending calls and end the threads, within CLOSING_S."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSING_S):
            await self._ended.wait()
            for thread in self._threads:
                thread.join()

    def _enqueue(self, asked: _PendingCommands[Q]) -> None:
        with self._changed:
            if self._closing:
                raise StoreUnavailable("the store has been closed")
            if len(self._queue) >= WAITING_MAX:
                raise StoreUnavailable("too many wait for the store")
            self._queue.append(asked)
            self._changed.notify()

    # the methods below run in the threads

    def _run(self) -> None:
        executor: BatchExecutor[Q] = BatchExecutor(self._server, self._now, self._partitions)
        while group := self._next_group():
            until = min(asked.until for asked in group)
            try:
                outcomes = executor.do(self._work, [asked.what for asked in group], until)
                for asked, outcome in zip(group, outcomes, strict=True):
                    asked.outcome = outcome
            except Exception as error:  # a bug fails the batch, never the thread
                for asked in group:
                    asked.outcome = Raised(error)
            with suppress(trio.RunFinishedError):
                self._trio.run_sync_soon(resume, group)
        executor.close()
        with self._changed:
            self._running -= 1
            last = not self._running
        if last:
            with suppress(trio.RunFinishedError):
                self._trio.run_sync_soon(self._ended.set)

    def _next_group(self) -> list[_PendingCommands[Q]]:
        """Return the pending calls up to the batch size; empty once the pool is closed."""
        with self._changed:
            while True:
                group: list[_PendingCommands[Q]] = []
                while self._queue and len(group) < self._work.group_max:
                    asked = self._queue.popleft()
                    if not asked.abandoned:
                        asked.delivered = True
                        group.append(asked)
                if group or self._closing:
                    return group
                self._changed.wait()
