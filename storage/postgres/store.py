"""The PostgreSQL store: for many machines.

Threads with a connection each (driver.database_thread, driver.batch_executor). The
transactions are functions in the modules of this package, one per subject. A grant or
a count holds the account's row from before the clock is read until the commit. The
clock is the database's: all machines share it.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from typing import Any, TypeVar

import trio

from mailprobe.storage.checks import (
    at_most,
    check_changes,
    check_outcome,
    check_sent,
    check_units,
    units_of,
)
from mailprobe.storage.contract import SETTLED_KEPT, USAGE_ROWS_MAX, StoreBroken
from mailprobe.storage.encrypted_columns import (
    EncryptedFirst,
    encrypted_answer,
    encrypted_first,
    idempotency_context,
    job_context,
    unpacked,
)
from mailprobe.storage.encryption import Cipher
from mailprobe.storage.lease_allocation import LeaseRequest
from mailprobe.storage.postgres import accounts, jobs, leases, ledgers, retention
from mailprobe.storage.postgres import job_claims as claims
from mailprobe.storage.postgres import outbox as messages
from mailprobe.storage.postgres import usage as metering
from mailprobe.storage.postgres import usage_log as usage
from mailprobe.storage.postgres.driver import commands
from mailprobe.storage.postgres.driver.batch_executor import Work
from mailprobe.storage.postgres.driver.database_thread import ANSWER_S, ThreadPool
from mailprobe.storage.postgres.driver.partitions import Partitions
from mailprobe.storage.postgres.driver.schema import prepare
from mailprobe.storage.postgres.driver.server import UPKEEP_MS, PostgresServer, TransactionSession
from mailprobe.storage.postgres.driver.work import Callers, Reads, SingleWrites
from mailprobe.storage.records import (
    Account,
    Answered,
    Attempt,
    Caller,
    Claim,
    DayCount,
    FirstAnswer,
    IdempotencyRecord,
    Job,
    JobOrder,
    JobState,
    Key,
    KeyKind,
    Ledger,
    MessageKind,
    OutboxMessage,
    Reservation,
    Tier,
    UsageRow,
)
from mailprobe.storage.records import Work as JobWork

R = TypeVar("R")
T = TypeVar("T")
Act = Callable[[TransactionSession], T]

# Connections of one process, each opened at first use. Two metering threads would mostly wait for
# each other's locks, with batches half as large, because busy accounts recur in each batch.
THREADS = {
    "metering": 1,
    "writes": 2,
    "claims": 1,
    "callers": 1,
    "reads": 2,
    "connection_leases": 1,
}
UPKEEP_S = UPKEEP_MS / 1000 + ANSWER_S


@dataclass(frozen=True, slots=True)
class Threads:
    metering: ThreadPool[commands.Command]
    writes: ThreadPool[Act[Any]]  # other writes, each in its own transaction
    claims: ThreadPool[claims.WantedJobs]
    callers: ThreadPool[str]
    reads: ThreadPool[Act[Any]]
    leases: ThreadPool[
        leases.WantedLeases
    ]  # one thread: a later call must never overtake an earlier one


@asynccontextmanager
async def open_postgres(
    url: str, *, secret_key: bytes | None, now: Callable[[], datetime] | None
) -> AsyncIterator["PostgresStore"]:
    """Create or check the tables, and open the store; leaving the block answers the pending calls.

    `now` None: the clock is the database's. Raises StoreBroken, StoreUnavailable.
    """
    server = PostgresServer(url)
    if secret_key is None:
        message = f"{server.name} needs MAILPROBE_SECRET_KEY, the same on every machine: "
        raise StoreBroken(message + "make one with `openssl rand -base64 32`")
    cipher = Cipher(secret_key)
    await trio.to_thread.run_sync(prepare, server, cipher)
    partitions = Partitions()
    async with AsyncExitStack() as stack:

        def database_thread(work: Work[Any], name: str) -> ThreadPool[Any]:
            opened: ThreadPool[Any] = ThreadPool(
                server, work, now, partitions, threads=THREADS[name]
            )
            stack.push_async_callback(opened.close)
            return opened

        database_threads = Threads(
            database_thread(metering.BatchMetering(), "metering"),
            database_thread(SingleWrites(), "writes"),
            database_thread(claims.Claims(), "claims"),
            database_thread(Callers(), "callers"),
            database_thread(Reads(), "reads"),
            database_thread(leases.Leasing(), "connection_leases"),
        )
        yield PostgresStore(database_threads, partitions, cipher)


class PostgresStore:
    """A Store in one PostgreSQL database."""

    def __init__(self, database_threads: Threads, partitions: Partitions, cipher: Cipher) -> None:
        self._database_threads = database_threads
        self._partitions = partitions
        self._cipher = cipher

    async def _do(self, act: Act[T]) -> T:
        value: T = await self._database_threads.writes.call(act)
        return value

    async def _read(self, act: Act[T]) -> T:
        value: T = await self._database_threads.reads.call(act)
        return value

    # accounts and keys

    async def create_account(self, email: str, tier: Tier) -> Account:
        return await self._do(lambda db: accounts.create_account(db, email, tier))

    async def account(self, account_id: str) -> Account | None:
        return await self._read(lambda db: accounts.account(db, account_id))

    async def accounts(self) -> list[Account]:
        return await self._read(accounts.accounts)

    async def account_of_customer(self, customer_id: str) -> Account | None:
        return await self._read(lambda db: accounts.account_of_customer(db, customer_id))

    async def change_account(self, account_id: str, **changes: Any) -> Account | None:
        check_changes(changes)
        return await self._do(lambda db: accounts.change_account(db, account_id, changes))

    async def create_key(
        self,
        account_id: str,
        kind: KeyKind,
        label: str | None,
        *,
        sha256: str,
        prefix: str,
        keys_max: int | None,
        keys_per_minute_max: int | None = None,
        idempotency: IdempotencyRecord | None = None,
        answer: Callable[[Key], Answered] | None = None,
    ) -> Key:
        def cipher(key: Key) -> EncryptedFirst:
            assert idempotency
            assert answer
            return encrypted_first(self._cipher, FirstAnswer(idempotency, answer(key)))

        command = commands.NewKey(
            account_id,
            kind,
            label,
            sha256,
            prefix,
            keys_max,
            keys_per_minute_max,
            idempotency,
            cipher if idempotency else None,
        )
        key: Key = await self._database_threads.metering.call(command)
        return key

    def _encrypted(self, first: FirstAnswer | None) -> EncryptedFirst | None:
        return None if first is None else encrypted_first(self._cipher, first)

    async def keys(self, account_id: str) -> list[Key]:
        return await self._read(lambda db: accounts.keys(db, account_id))

    async def revoke_key(self, account_id: str | None, key_id: str) -> bool:
        return await self._do(lambda db: accounts.revoke_key(db, account_id, key_id))

    async def caller(self, sha256: str) -> Caller | None:
        found: Caller | None = await self._database_threads.callers.call(sha256)
        return found

    # metering

    async def reserve(
        self,
        caller: Caller,
        units: int,
        check_limits: Callable[[Ledger], R | None],
        *,
        lease_s: float,
    ) -> Reservation | R:
        check_units(units)
        command = commands.Reserve(caller, units, check_limits, lease_s)
        outcome: Reservation | R = await self._database_threads.metering.call(command)
        return outcome

    async def extend(self, reservation: Reservation, *, lease_s: float) -> None:
        await self._database_threads.metering.call(commands.Extend(reservation, lease_s))

    async def settle(
        self,
        reservation: Reservation,
        rows: Sequence[UsageRow],
        *,
        part: int = 0,
        ends: bool = True,
        metered: bool = False,
        first: FirstAnswer | None = None,
    ) -> None:
        answer = self._encrypted(first)
        command = commands.Settle(reservation, rows, part, ends, metered, answer)
        await self._database_threads.metering.call(command)

    async def spend(
        self,
        caller: Caller,
        rows: Sequence[UsageRow],
        check_limits: Callable[[Ledger], R | None],
        *,
        metered: bool = False,
        first: FirstAnswer | None = None,
    ) -> R | None:
        check_units(units_of(rows))
        refusal: R | None = await self._database_threads.metering.call(
            commands.Spend(caller, rows, check_limits, metered, self._encrypted(first))
        )
        return refusal

    async def log_refusal(self, caller: Caller, row: UsageRow) -> None:
        await self._database_threads.metering.call(commands.Refuse(caller, row))

    async def ledger(self, caller: Caller) -> Ledger:
        return await self._read(lambda db: ledgers.ledger(db, caller))

    async def days(self, account_id: str, first: date, last: date) -> list[DayCount]:
        return await self._read(lambda db: usage.days(db, account_id, first, last))

    async def usage(self, account_id: str, *, limit: int) -> list[UsageRow]:
        most = at_most(USAGE_ROWS_MAX, limit)
        return await self._read(lambda db: usage.usage(db, account_id, most))

    # idempotency

    async def begin_idempotent(
        self, account_id: str, key: str, body_sha256: str, *, keep_s: float, lease_s: float
    ) -> Answered | IdempotencyRecord:
        command = commands.Begin(account_id, key, body_sha256, lease_s, keep_s)
        begun: IdempotencyRecord | bytes = await self._database_threads.metering.call(command)
        if isinstance(begun, IdempotencyRecord):
            return begun
        return unpacked(self._cipher.open(begun, idempotency_context(account_id, key)))

    async def finish_idempotent(
        self, idempotency: IdempotencyRecord, answer: Answered | None
    ) -> None:
        # in the thread that settles: it must not overtake a settlement that stores the answer
        encrypted = None if answer is None else encrypted_answer(self._cipher, idempotency, answer)
        await self._database_threads.metering.call(commands.Finish(idempotency, encrypted))

    # jobs

    async def create_job(
        self,
        caller: Caller,
        order: JobOrder,
        check_limits: Callable[[Ledger], R | None],
        *,
        first: FirstAnswer | None = None,
    ) -> Job | R:
        secret = None
        if order.secret is not None:
            secret = self._cipher.close(order.secret.encode(), job_context(order.id))
        command = commands.CreateJob(caller, order, secret, check_limits, self._encrypted(first))
        outcome: Job | R = await self._database_threads.metering.call(command)
        return outcome

    async def claim_jobs(
        self,
        work: JobWork,
        *,
        limit: int,
        each_max: int,
        lease_s: float,
        account_max: int | None = None,
    ) -> list[Claim]:
        if not await self._read(lambda db: claims.is_due(db, work)):
            return []
        wanted = claims.WantedJobs(work, limit, each_max, lease_s, account_max)
        claimed = await self._database_threads.claims.call(wanted)
        return [self._with_secret(claim, encrypted) for claim, encrypted in claimed]

    def _with_secret(self, claim: Claim, encrypted: bytes | None) -> Claim:
        if encrypted is None:
            return claim
        try:
            secret = self._cipher.open(encrypted, job_context(claim.job.id))
        except StoreBroken:  # one unreadable secret must not fail the other claims
            return replace(claim, undecryptable=True)
        return replace(claim, secret=secret.decode())

    async def extend_claim(self, claim: Claim, *, lease_s: float) -> bool:
        return await self._do(lambda db: jobs.extend(db, claim, lease_s))

    async def job_verified(
        self, claim: Claim, row: UsageRow, payload: bytes, *, metered: bool = False
    ) -> bool:
        return await self._notify(commands.Verified(claim, row, payload, metered))

    async def job_attempted(
        self, claim: Claim, attempt: Attempt, *, state: JobState, due_at: datetime | None
    ) -> bool:
        check_outcome(state, due_at)
        return await self._notify(commands.JobAttempted(claim, attempt, state, due_at))

    async def abandon_job(self, claim: Claim) -> bool:
        return await self._notify(commands.Abandoned(claim))

    async def _notify(self, outcome: commands.Outcome) -> bool:
        counts: bool = await self._database_threads.metering.call(outcome)
        return counts

    async def job(self, job_id: str) -> Job | None:
        return await self._read(lambda db: jobs.job(db, job_id))

    async def jobs(
        self, *, account_id: str | None = None, state: JobState | None = None, limit: int
    ) -> list[Job]:
        return await self._read(lambda db: jobs.jobs(db, account_id, state, limit))

    async def attempts(self, job_id: str) -> list[Attempt]:
        return await self._read(lambda db: jobs.attempts(db, job_id))

    async def resend_job(self, job_id: str) -> Job | None:
        return await self._do(lambda db: jobs.resend(db, job_id))

    # the outbox

    async def enqueue_message(
        self, kind: MessageKind, account_id: str, name: str, body: bytes, *, due_at: datetime
    ) -> bool:
        command = commands.Post(account_id, kind, name, body, due_at)
        posted: bool = await self._database_threads.metering.call(command)
        return posted

    async def claim_messages(
        self, kind: MessageKind, *, limit: int, lease_s: float
    ) -> list[OutboxMessage]:
        if not await self._read(lambda db: messages.is_due(db, kind)):
            return []
        return await self._do(lambda db: messages.claim(db, kind, limit, lease_s))

    async def message_attempted(
        self,
        message: OutboxMessage,
        *,
        sent: bool,
        due_at: datetime | None,
        error: str | None = None,
    ) -> bool:
        check_sent(sent, due_at)
        return await self._do(lambda db: messages.tried(db, message, sent, due_at, error))

    async def messages(
        self, kind: MessageKind, *, account_id: str | None = None, limit: int
    ) -> list[OutboxMessage]:
        return await self._read(lambda db: messages.messages(db, kind, account_id, limit))

    # connection leases

    async def lease_connections(
        self, holder: str, asked: Mapping[str, LeaseRequest], *, limit: int, lease_s: float
    ) -> Mapping[str, int]:
        wanted = leases.WantedLeases(holder, asked, limit, lease_s)
        granted: Mapping[str, int] = await self._database_threads.leases.call(wanted)
        return granted

    async def revocable_connections(self, holder: str, *, limit: int) -> Mapping[str, int]:
        return await self._read(lambda db: leases.revoked(db, holder, limit))

    async def return_connections(self, holder: str) -> None:
        await self._do(lambda db: leases.return_all(db, holder))

    # upkeep

    async def apply_retention(self, retention_days: dict[Tier, int]) -> None:
        now = await self.check()
        for statement in retention.RECLAIMED:
            await self._do(partial(retention.reclaim, statement=statement, now=now))
        upkeep = partial(self._database_threads.writes.call, patience_s=UPKEEP_S)
        await self._database_threads.reads.call(
            lambda db: self._partitions.make_ahead(db, now), patience_s=UPKEEP_S
        )
        await upkeep(lambda db: retention.drop_days(db, self._partitions, now, retention_days))
        for day in await self._read(retention.days_past_retention):
            await upkeep(
                partial(retention.drop_rows, day=day, now=now, retention_days=retention_days)
            )
        for drop in retention.drops(now, retention_days):
            while await self._do(drop):
                pass  # in small batches, so that no request waits long
        while await self._do(partial(leases.drop_ended, at=now)):
            pass
        after: Any = retention.FIRST
        while after is not None:
            old = partial(retention.drop_settled, after=after, until=now - SETTLED_KEPT)
            after = await self._do(old)

    async def check(self) -> datetime:
        """Check on the writing connection: a read-only server cannot assign a transaction id."""
        return await self._do(_write_nothing_new)


def _write_nothing_new(db: TransactionSession) -> datetime:
    """Assign a transaction id, so that the commit is written to the log and flushed to disk."""
    db.one("SELECT txid_current()")
    return db.now()
