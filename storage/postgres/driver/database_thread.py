"""Database threads: each holds a connection and executes the calls of trio tasks in batches.

A free thread takes all pending calls, executes them in one transaction, and only then
answers. While one batch is written to the disk the next one gathers, so one flush
serves many. Batches of several threads cannot deadlock: each locks its accounts in the
order of their numbers.

A server that is away is reported at once. A connection that was lost before a commit
was sent is replaced, and the work repeated. If the connection breaks during a commit,
the work is repeated as soon as the server is back: under the same locks, its marker
shows whether it was committed.

psycopg's pool is not used: it retries a lost connection after 1 s, then 2, 4 and so on,
and a server that is back must be used within 2 s. A thread that keeps its own
connection also keeps its prepared statements.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import psycopg
import trio
from msgspec import Struct
from psycopg import errors

from ...base.call_queue import CallQueue, PendingCall
from ...commands import Raised
from ...contract import OutcomeUnknown, StoreBroken, StoreUnavailable
from .partitions import Partitions, PartitionsMissing, is_missing_partition
from .server import (
    END_STALLED,
    PostgresServer,
    TransactionConnection,
    is_blocked,
    is_gone,
    is_lost,
    is_server_failure,
)

Q = TypeVar("Q")
log = logging.getLogger("mailprobe.store")

RETRY_S = 0.05
REPAIRS_MAX = 3  # partitions may be dropped again meanwhile, and a message claimed


class BatchWork(Struct, Generic[Q], frozen=True):
    """Executes a batch of calls in one transaction: all of them or none.

    `run` returns a value or Raised for each call. Repeatable work sets the session's marker
    before it commits; run again with this marker, it repeats nothing that was committed.
    """

    run: Callable[[TransactionConnection, Sequence[Q], Any], list[object]]
    group_max: int = 1
    repeatable: bool = True


class BatchExecutor(Generic[Q]):
    """Executes batches on one connection. Not thread-safe."""

    def __init__(
        self, server: PostgresServer, now: Callable[[], datetime] | None, partitions: Partitions
    ) -> None:
        self._server = server
        self._now = now
        self._partitions = partitions
        self._db: psycopg.Connection | None = None
        self._is_uncertain = False  # the last batch may have been committed, and failed

    def do(self, work: BatchWork[Q], asked: Sequence[Q], until: float) -> list[object]:
        """Return a value or Raised for each call; never raises an Exception.

        If one call fails the transaction, each is repeated in a transaction of its own.
        `until`, in seconds of time.monotonic(), limits the repetition after an uncertain commit.
        """
        try:
            return self._do(work, asked, until)
        except Exception as error:
            if is_blocked(error):
                self._end_stalled()
            if is_server_failure(error):
                unavailable = self._server.as_unavailable(error)
                if self._is_uncertain and not isinstance(unavailable, StoreBroken):
                    unavailable = OutcomeUnknown(*unavailable.args)
                return [Raised(unavailable)] * len(asked)
            if len(asked) == 1:
                return [Raised(error)]
        return [self.do(work, [one], until)[0] for one in asked]

    def check(self) -> Raised | None:
        """Open the connection if there is none, and ask the server."""
        try:
            self._session(0.0).one("SELECT 1")
        except Exception as error:
            self._clear_up(error)
            return Raised(self._server.as_unavailable(error) if is_server_failure(error) else error)
        return None

    def close(self) -> None:
        if self._db is not None:
            with suppress(psycopg.Error):
                self._db.close()
            self._db = None

    def _do(self, work: BatchWork[Q], asked: Sequence[Q], until: float) -> list[object]:
        marker: object = None
        repairs = 0
        self._is_uncertain = False
        while True:
            was_there = self._db is not None
            session = self._session(until if marker is not None else 0.0)
            try:
                return work.run(session, asked, marker)
            except Exception as error:
                self._clear_up(error)
                if _can_be_repaired(error) and repairs < REPAIRS_MAX:
                    repairs += 1
                    self._repair(error)  # clears up after itself
                elif not is_lost(error):
                    raise
                elif session.committing:
                    self._is_uncertain = True
                    if not work.repeatable or time.monotonic() > until:
                        raise
                    marker = session.marker
                elif not was_there:
                    raise

    def _session(self, until: float) -> TransactionConnection:
        """Connect; after an uncertain commit, retry until `until`."""
        if self._db is not None and is_gone(self._db):
            self.close()
        while self._db is None:
            try:
                self._db = self._server.connect()
            except StoreBroken:
                raise
            except StoreUnavailable:
                if time.monotonic() > until:
                    raise
                time.sleep(RETRY_S)
        return TransactionConnection(self._db, self._now, self._partitions.known)

    def _clear_up(self, error: Exception) -> None:
        if self._db is None:
            return
        if isinstance(error, psycopg.Error | OSError) or self._db.closed:
            # After a broken pipeline, psycopg believes that all its statements are prepared.
            self.close()
            return
        try:
            TransactionConnection(self._db, None).rollback()
        except psycopg.Error:
            self.close()

    def _end_stalled(self) -> None:
        """End the transactions of processes that stand still, so that the next try finds no lock of theirs."""
        try:
            [ended] = self._session(0.0).one(END_STALLED)
            if ended:
                log.warning("stalled transactions ended: count=%d", ended)
        except (StoreUnavailable, psycopg.Error, OSError) as error:
            self._clear_up(error)

    def _repair(self, error: Exception) -> None:
        if isinstance(error, PartitionsMissing):
            try:
                self._partitions.make(self._session(0.0), error.days)
            except Exception as failed:
                self._clear_up(failed)
                raise
        elif is_missing_partition(error):
            self._partitions.forget()


def _can_be_repaired(error: Exception) -> bool:
    return (
        isinstance(error, PartitionsMissing) or is_missing_partition(error) or _is_overtaken(error)
    )


def _is_overtaken(error: Exception) -> bool:
    """Was a meter's message claimed between our read and our write (`METERS` of the outbox)?"""
    return isinstance(error, errors.NotNullViolation) and error.diag.table_name == "outbox"


CHECK: Final = object()  # the call that uses the connection for nothing else


class ThreadPool(CallQueue[Q]):
    """Threads that do one kind of work, each on its connection."""

    begun_s = 0.15  # the server itself gives up earlier

    def __init__(
        self,
        server: PostgresServer,
        work: BatchWork[Q],
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
