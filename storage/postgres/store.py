"""The PostgreSQL store: for many machines.

Threads with a connection each (driver.database_thread). The
transactions are functions in the modules of this package, one per command. A grant or
a count holds the account's row from before the clock is read until the commit. The
clock is the database's: all machines share it.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any, ParamSpec, TypeVar

import trio
from msgspec import Struct
from msgspec.structs import fields

from .. import commands
from .. import retention as shared_retention
from ..base.call_queue import ANSWER_S
from ..base.encryption import Cipher
from ..callers import find_callers
from ..contract import StoreBroken, StoreSize, StoreUnavailable
from ..database import Function, StoreCommand
from ..records import Caller, Ledger, Tier
from ..store import Store
from . import job_claims, leases, ledgers, retention, usage
from .database import PostgresDatabase
from .driver.database_thread import BatchWork, ThreadPool
from .driver.partitions import Partitions
from .driver.process_lock import ProcessLock
from .driver.schema import prepare
from .driver.server import (
    UPKEEP_MS,
    PostgresServer,
    TransactionConnection,
)

P = ParamSpec("P")
R = TypeVar("R")
Act = Callable[[TransactionConnection], object]

UPKEEP_S = UPKEEP_MS / 1000 + ANSWER_S
CALLERS_MAX = 500  # key hashes looked up with one query


def _write(db: TransactionConnection, asked: Sequence[Act], marker: object) -> list[object]:
    """One call in its own transaction. Not repeatable: a repetition would write twice."""
    (act,) = asked
    db.begin()
    value = act(db)
    db.commit()
    return [value]


def _read(db: TransactionConnection, asked: Sequence[Act], marker: object) -> list[object]:
    """One call, each of whose statements sees the database as it is."""
    (act,) = asked
    return [act(db)]


def _callers(db: TransactionConnection, asked: Sequence[str], marker: object) -> list[object]:
    """Look up the callers of key hashes, which is each request's first call."""
    return list(find_callers(PostgresDatabase(db), asked))


class Threads(Struct, frozen=True):
    """The connections of one process, each opened at first use, or by the check before the start.

    Two metering threads would mostly wait for each other's locks, with batches half as large,
    because busy accounts recur in each batch.
    """

    metering: ThreadPool[commands.BatchCommand]
    writes: ThreadPool[Act]  # other writes, each in its own transaction
    claims: ThreadPool[commands.ClaimJobs]
    callers: ThreadPool[str]
    reads: ThreadPool[Act]
    # One: a later call must never overtake an earlier one.
    leases: ThreadPool[commands.LeaseConnections]


@asynccontextmanager
async def open_postgres(
    url: str, *, secret_key: bytes | None, now: Callable[[], datetime] | None, size: StoreSize
) -> AsyncIterator[Store]:
    """Create or check the tables, and open the store; leaving the block answers the pending calls.

    `now` None: the clock is the database's. Raises StoreBroken, StoreUnavailable.
    """
    server = PostgresServer(url, answer_s=size.answer_s)
    if secret_key is None:
        message = f"{server.name} needs MAILPROBE_SECRET_KEY, the same on every machine: "
        raise StoreBroken(message + "make one with `openssl rand -base64 32`")
    cipher = Cipher(secret_key)
    await trio.to_thread.run_sync(prepare, server, cipher)
    partitions = Partitions()
    session_lock = ProcessLock(server)
    async with AsyncExitStack() as stack:
        stack.callback(session_lock.close)

        def database_thread(work: BatchWork[Any], threads: int = 1) -> ThreadPool[Any]:
            opened: ThreadPool[object] = ThreadPool(
                server, work, now, partitions, threads=threads, answer_s=size.answer_s
            )
            stack.push_async_callback(opened.close)
            return opened

        database_threads = Threads(
            database_thread(usage.METERING),
            database_thread(BatchWork(_write, repeatable=False), size.writers),
            database_thread(job_claims.CLAIMS),
            database_thread(BatchWork(_callers, CALLERS_MAX)),
            database_thread(BatchWork(_read), size.readers),
            database_thread(BatchWork(leases.Leasing(session_lock).lease)),
        )
        yield Store(PostgresExecutor(database_threads, partitions, session_lock), cipher)


class PostgresExecutor:
    """Runs the commands of a store in one PostgreSQL database."""

    def __init__(
        self, database_threads: Threads, partitions: Partitions, session_lock: ProcessLock
    ) -> None:
        self._database_threads = database_threads
        self._partitions = partitions
        self._session_lock = session_lock
        self._rows_dropped: set[retention.RowsToDrop] = set()  # today, by this process
        self._of_kind: dict[type[StoreCommand[Any]], ThreadPool[Any]] = {
            **dict.fromkeys(usage.BATCHED, database_threads.metering),
            commands.LeaseConnections: database_threads.leases,
        }

    async def execute(self, command: StoreCommand[R]) -> R:
        """Run the command: in a batch, or in steps."""
        kind = type(command)
        result: R
        if threads := self._of_kind.get(kind):
            result = await threads.call(command)
        else:
            result = await STEPS[kind](self, command)
        return result

    async def write(self, function: Function[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = await self._do(lambda db: function(PostgresDatabase(db), *args, **kwargs))
        return result

    async def read(self, function: Function[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = await self._read(lambda db: function(PostgresDatabase(db), *args, **kwargs))
        return result

    def lease_session(self) -> int:
        return self._session_lock.changes

    async def _do(self, act: Act) -> Any:
        return await self._database_threads.writes.call(act)

    async def _read(self, act: Act) -> Any:
        return await self._database_threads.reads.call(act)

    async def find_caller(self, sha256: str) -> Caller | None:
        found: Caller | None = await self._database_threads.callers.call(sha256)
        return found

    async def read_ledger(self, command: commands.ReadLedger) -> Ledger:
        """Read without a lock, for display."""
        ledger: Ledger = await self._read(lambda db: ledgers.read_ledger(db, command))
        return ledger

    async def check(self) -> datetime:
        """Use every connection, so that none is missing, and write: a standby takes no writes."""
        threads = self._database_threads
        failed: list[StoreUnavailable] = []
        async with trio.open_nursery() as nursery:
            for each in fields(threads):
                nursery.start_soon(getattr(threads, each.name).check, failed)
        if failed:
            raise failed[0]
        now: datetime = await self._do(_clock)
        return now

    async def claim_jobs(self, command: commands.ClaimJobs) -> list[commands.EncryptedClaim]:
        """Look before the write: an idle worker must not take the lock."""
        if not await self._read(lambda db: job_claims.is_due(db, command.work)):
            return []
        claimed: list[commands.EncryptedClaim] = await self._database_threads.claims.call(command)
        return claimed

    async def apply_retention(self, retention_days: Mapping[Tier, int]) -> None:
        """Delete whole days at once, all else in small batches, so that no request waits long."""
        now: datetime = await self._do(_clock)
        await shared_retention.correct(self, now, retention.RECLAIMED)
        upkeep = partial(self._database_threads.writes.call, patience_s=UPKEEP_S)
        await self._database_threads.reads.call(
            lambda db: self._partitions.make_ahead(db, now), patience_s=UPKEEP_S
        )
        for past in await self._read(lambda db: retention.past_days(db, now, retention_days)):
            act = partial(
                retention.drop_day, partitions=self._partitions, day=past, now=now,
                retention_days=retention_days,
            )  # fmt: skip
            with suppress(StoreUnavailable):  # a backup reads it: the next minute tries again
                await upkeep(act)
        drops = shared_retention.drops(now, retention_days)
        await shared_retention.delete(self, now, drops, retention.FIRST)
        for each in await self._read(lambda db: retention.rows_to_drop(db, now, retention_days)):
            if each not in self._rows_dropped:
                await upkeep(partial(retention.drop_rows, rows=each))
                self._rows_dropped = {one for one in self._rows_dropped if one.on == each.on}
                self._rows_dropped.add(each)


def _clock(db: TransactionConnection) -> datetime:
    """Assign a transaction id, so that the commit is written to the log and flushed to disk."""
    db.one("SELECT txid_current()")
    return db.now()


STEPS: dict[type[StoreCommand[Any]], Callable[[PostgresExecutor, Any], Any]] = {
    commands.ClaimJobs: PostgresExecutor.claim_jobs,
    commands.ReadLedger: PostgresExecutor.read_ledger,
}
