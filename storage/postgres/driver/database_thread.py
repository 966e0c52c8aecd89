"""Database threads: each holds a connection and executes the calls of trio tasks in batches.

A free thread takes all pending calls, executes them in one transaction, and only then
answers. While one batch is written to the disk the next one gathers, so one flush
serves many. Batches of several threads cannot deadlock: each locks its accounts in the
order of their numbers.

psycopg's pool is not used: it retries a lost connection after 1 s, then 2, 4 and so on,
and a server that is back must be used within 2 s. A thread that keeps its own
connection also keeps its prepared statements.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

import trio

from ...base.call_queue import CallQueue, PendingCall
from ...commands import Raised
from ...contract import StoreUnavailable
from .batch_executor import BatchExecutor, Work
from .partitions import Partitions
from .server import PostgresServer

Q = TypeVar("Q")

CHECK: Final = object()  # the call that uses the connection for nothing else


class ThreadPool(CallQueue[Q]):
    """Threads that do one kind of work, each on its connection."""

    begun_s = 0.15  # the server itself gives up earlier

    def __init__(
        self,
        server: PostgresServer,
        work: Work[Q],
        now: Callable[[], datetime] | None,
        partitions: Partitions,
        *,
        threads: int,
        answer_s: float | None = None,
    ) -> None:
        self._server = server
        self._work = work
        self._now = now
        self._partitions = partitions
        super().__init__(server.name, threads=threads, answer_s=answer_s)

    async def check(self, failed: list[StoreUnavailable]) -> None:
        """Open the connections that are missing, and use each; add what failed to the list.

        As many calls as threads: a thread takes one such call at a time, and those that are
        free take turns.
        """
        async with trio.open_nursery() as nursery:
            for _ in self._threads:
                nursery.start_soon(self._check_one, failed)

    async def _check_one(self, failed: list[StoreUnavailable]) -> None:
        try:
            await self.call(CHECK)  # type: ignore[arg-type]  # no call of the work's kind
        except StoreUnavailable as error:
            failed.append(error)

    def _serve_calls(self) -> None:
        executor: BatchExecutor[Q] = BatchExecutor(self._server, self._now, self._partitions)
        while self._await_work():
            if not (group := self._next_group()):
                continue
            until = min(pending.until for pending in group)
            try:
                if group[0].what is CHECK:
                    outcomes: list[object] = [executor.check()]
                else:
                    outcomes = executor.do(self._work, [pending.what for pending in group], until)
                for pending, outcome in zip(group, outcomes, strict=True):
                    if isinstance(outcome, Raised):
                        pending.error = outcome.error
                    else:
                        pending.value = outcome
            except Exception as error:  # a bug fails the batch, never the thread
                for pending in group:
                    pending.error = error
            self._answer(group)
        executor.close()

    def _next_group(self) -> list[PendingCall[Q]]:
        """The pending calls of one transaction; a check is alone."""
        group = self._dequeue(self._work.group_max)
        for place, pending in enumerate(group):
            if pending.what is CHECK:
                cut = max(place, 1)
                self._requeue(group[cut:])
                return group[:cut]
        return group
