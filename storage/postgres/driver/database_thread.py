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
from typing import TypeVar

from mailprobe.storage.call_queue import CallQueue
from mailprobe.storage.postgres.driver.batch_executor import BatchExecutor, Raised, Work
from mailprobe.storage.postgres.driver.partitions import Partitions
from mailprobe.storage.postgres.driver.server import PostgresServer

Q = TypeVar("Q")


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
    ) -> None:
        self._server = server
        self._work = work
        self._now = now
        self._partitions = partitions
        super().__init__(server.name, threads=threads)

    def _serve_calls(self) -> None:
        executor: BatchExecutor[Q] = BatchExecutor(self._server, self._now, self._partitions)
        while self._await_work():
            if not (group := self._dequeue(self._work.group_max)):
                continue
            until = min(pending.until for pending in group)
            try:
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
