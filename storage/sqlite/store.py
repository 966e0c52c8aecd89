"""The SQLite store, in one file: the default.

Write-ahead log, synchronous=FULL; one writer thread with group commit, one
reader thread (database_thread). Several processes may share the file: a writer
holds the lock from before it reads the clock until the commit is on the disk.
The transactions are functions in the modules of this package, one per subject.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path
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
from mailprobe.storage.encryption import Cipher, key_beside
from mailprobe.storage.lease_allocation import LeaseRequest
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
    Work,
)
from mailprobe.storage.sqlite import accounts, jobs, leases, retention
from mailprobe.storage.sqlite import idempotency as idempotency_records
from mailprobe.storage.sqlite import job_partitions as partitions
from mailprobe.storage.sqlite import outbox as messages
from mailprobe.storage.sqlite import usage as metering
from mailprobe.storage.sqlite.database_thread import Reader, Writer
from mailprobe.storage.sqlite.file import explain_error, prepare
from mailprobe.storage.sqlite.key_lookup import KeyLookup

R = TypeVar("R")


@asynccontextmanager
async def open_sqlite(
    path: Path, *, secret_key: bytes | None, now: Callable[[], datetime]
) -> AsyncIterator["SqliteStore"]:
    """Create or check the file, and open the store; leaving the block answers the pending calls.

    Without a secret key the one in the file beside the database is used, or created.
    Raises StoreBroken, StoreUnavailable.
    """

    def make_ready() -> bytes:
        prepare(path)
        with explain_error(path):
            return key_beside(path) if secret_key is None else secret_key

    cipher = Cipher(await trio.to_thread.run_sync(make_ready))
    with explain_error(path):
        writer = Writer(path, now)
    try:
        reader = Reader(path, now)
        try:
            key_lookup = KeyLookup(path)
            try:
                yield SqliteStore(writer, reader, key_lookup, cipher)
            finally:
                key_lookup.close()  # first: the file's last connection writes the log back
        finally:
            await reader.close()
    finally:
        await writer.close()


class SqliteStore:
    """A Store in one SQLite file."""

    def __init__(
        self, writer: Writer, reader: Reader, key_lookup: KeyLookup, cipher: Cipher
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._key_lookup = key_lookup
        self._cipher = cipher

    # accounts and keys

    async def create_account(self, email: str, tier: Tier) -> Account:
        return await self._writer.call(
            lambda db, now: accounts.create_account(db, now, email, tier)
        )

    async def account(self, account_id: str) -> Account | None:
        return await self._reader.call(lambda db, now: accounts.account(db, account_id))

    async def accounts(self) -> list[Account]:
        return await self._reader.call(lambda db, now: accounts.accounts(db))

    async def account_of_customer(self, customer_id: str) -> Account | None:
        return await self._reader.call(
            lambda db, now: accounts.account_of_customer(db, customer_id)
        )

    async def change_account(self, account_id: str, **changes: Any) -> Account | None:
        check_changes(changes)
        return await self._writer.call(
            lambda db, now: accounts.change_account(db, account_id, changes)
        )

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
        def create(db: sqlite3.Connection, now: datetime) -> Key:
            idempotency_records.check_runs(db, idempotency)
            key = accounts.create_key(
                db, now, account_id, kind, label, sha256, prefix, keys_max, keys_per_minute_max
            )
            if idempotency and answer:
                idempotency_records.keep(db, self._encrypted(FirstAnswer(idempotency, answer(key))))
            return key

        return await self._writer.call(create)

    def _encrypted(self, first: FirstAnswer | None) -> EncryptedFirst | None:
        return None if first is None else encrypted_first(self._cipher, first)

    async def keys(self, account_id: str) -> list[Key]:
        return await self._reader.call(lambda db, now: accounts.keys(db, account_id))

    async def revoke_key(self, account_id: str | None, key_id: str) -> bool:
        return await self._writer.call(
            lambda db, now: accounts.revoke_key(db, now, account_id, key_id)
        )

    async def caller(self, sha256: str) -> Caller | None:
        await trio.lowlevel.checkpoint_if_cancelled()
        known, found = await self._key_lookup.coalesced_caller(sha256)
        if not known:
            found = await self._reader.call(partial(self._look_up, sha256=sha256))
            self._key_lookup.has_read(sha256)
        return found

    def _look_up(self, db: sqlite3.Connection, _: datetime, *, sha256: str) -> Caller | None:
        self._key_lookup.open()
        return accounts.caller(db, sha256)

    # usage

    async def reserve(
        self,
        caller: Caller,
        units: int,
        check_limits: Callable[[Ledger], R | None],
        *,
        lease_s: float,
    ) -> Reservation | R:
        check_units(units)
        return await self._writer.call(
            lambda db, now: metering.reserve(db, now, caller, units, check_limits, lease_s)
        )

    async def extend(self, reservation: Reservation, *, lease_s: float) -> None:
        await self._writer.call(lambda db, now: metering.extend(db, now, reservation, lease_s))

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
        await self._writer.call(
            lambda db, now: metering.settle(db, now, reservation, rows, part, ends, metered, answer)
        )

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
        answer = self._encrypted(first)
        return await self._writer.call(
            lambda db, now: metering.spend(db, now, caller, rows, check_limits, metered, answer)
        )

    async def log_refusal(self, caller: Caller, row: UsageRow) -> None:
        await self._writer.call(lambda db, now: metering.log_refusal(db, now, caller, row))

    async def ledger(self, caller: Caller) -> Ledger:
        return await self._reader.call(lambda db, now: metering.ledger(db, now, caller))

    async def days(self, account_id: str, first: date, last: date) -> list[DayCount]:
        return await self._reader.call(
            lambda db, now: metering.days(db, now, account_id, first, last)
        )

    async def usage(self, account_id: str, *, limit: int) -> list[UsageRow]:
        most = at_most(USAGE_ROWS_MAX, limit)
        return await self._reader.call(lambda db, now: metering.usage(db, now, account_id, most))

    # idempotency

    async def begin_idempotent(
        self, account_id: str, key: str, body_sha256: str, *, keep_s: float, lease_s: float
    ) -> Answered | IdempotencyRecord:
        lease, keep = timedelta(seconds=lease_s), timedelta(seconds=keep_s)

        def begin(db: sqlite3.Connection, now: datetime) -> IdempotencyRecord | bytes:
            until = now + lease
            encrypted = idempotency_records.begin(
                db, now, account_id, key, body_sha256, until, now + keep
            )
            return IdempotencyRecord(account_id, key, until) if encrypted is None else encrypted

        begun = await self._writer.call(begin)
        if isinstance(begun, IdempotencyRecord):
            return begun
        return unpacked(self._cipher.open(begun, idempotency_context(account_id, key)))

    async def finish_idempotent(
        self, idempotency: IdempotencyRecord, answer: Answered | None
    ) -> None:
        encrypted = None if answer is None else encrypted_answer(self._cipher, idempotency, answer)
        await self._writer.call(
            lambda db, now: idempotency_records.finish(db, idempotency, encrypted)
        )

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
        answer = self._encrypted(first)
        return await self._writer.call(
            lambda db, now: jobs.create(db, now, caller, order, secret, check_limits, answer)
        )

    async def claim_jobs(
        self,
        work: Work,
        *,
        limit: int,
        each_max: int,
        lease_s: float,
        account_max: int | None = None,
    ) -> list[Claim]:
        if not await self._reader.call(
            lambda db, now: partitions.due(db, now, work, 1, each_max, account_max)
        ):
            return []
        claimed = await self._writer.call(
            lambda db, now: jobs.claim(db, now, work, limit, each_max, account_max, lease_s)
        )
        return [self._with_secret(claim, encrypted) for claim, encrypted in claimed]

    def _with_secret(self, claim: Claim, encrypted: bytes | None) -> Claim:
        if encrypted is None:
            return claim
        try:
            secret = self._cipher.open(encrypted, job_context(claim.job.id))
        except StoreBroken:  # only this job's secret; the others are readable
            return replace(claim, undecryptable=True)
        return replace(claim, secret=secret.decode())

    async def extend_claim(self, claim: Claim, *, lease_s: float) -> bool:
        return await self._writer.call(lambda db, now: jobs.extend(db, now, claim, lease_s))

    async def job_verified(
        self, claim: Claim, row: UsageRow, payload: bytes, *, metered: bool = False
    ) -> bool:
        return await self._writer.call(
            lambda db, now: jobs.verified(db, now, claim, row, payload, metered)
        )

    async def job_attempted(
        self, claim: Claim, attempt: Attempt, *, state: JobState, due_at: datetime | None
    ) -> bool:
        check_outcome(state, due_at)
        return await self._writer.call(
            lambda db, now: jobs.tried(db, now, claim, attempt, state, due_at)
        )

    async def abandon_job(self, claim: Claim) -> bool:
        return await self._writer.call(lambda db, now: jobs.abandon(db, now, claim))

    async def job(self, job_id: str) -> Job | None:
        return await self._reader.call(lambda db, now: jobs.job(db, job_id))

    async def jobs(
        self, *, account_id: str | None = None, state: JobState | None = None, limit: int
    ) -> list[Job]:
        return await self._reader.call(lambda db, now: jobs.jobs(db, account_id, state, limit))

    async def attempts(self, job_id: str) -> list[Attempt]:
        return await self._reader.call(lambda db, now: jobs.attempts(db, job_id))

    async def resend_job(self, job_id: str) -> Job | None:
        return await self._writer.call(lambda db, now: jobs.resend(db, now, job_id))

    # the outbox

    async def enqueue_message(
        self, kind: MessageKind, account_id: str, name: str, body: bytes, *, due_at: datetime
    ) -> bool:
        return await self._writer.call(
            lambda db, now: messages.post(db, now, kind, account_id, name, body, due_at)
        )

    async def claim_messages(
        self, kind: MessageKind, *, limit: int, lease_s: float
    ) -> list[OutboxMessage]:
        if not await self._reader.call(lambda db, now: messages.due(db, now, kind, 1)):
            return []
        return await self._writer.call(
            lambda db, now: messages.claim(db, now, kind, limit, lease_s)
        )

    async def message_attempted(
        self,
        message: OutboxMessage,
        *,
        sent: bool,
        due_at: datetime | None,
        error: str | None = None,
    ) -> bool:
        check_sent(sent, due_at)
        return await self._writer.call(
            lambda db, now: messages.tried(db, now, message, sent, due_at, error)
        )

    async def messages(
        self, kind: MessageKind, *, account_id: str | None = None, limit: int
    ) -> list[OutboxMessage]:
        return await self._reader.call(
            lambda db, now: messages.messages(db, kind, account_id, limit)
        )

    # connection leases

    async def lease_connections(
        self, holder: str, asked: Mapping[str, LeaseRequest], *, limit: int, lease_s: float
    ) -> Mapping[str, int]:
        return await self._writer.call(
            lambda db, now: leases.lease(db, now, holder, asked, limit, lease_s)
        )

    async def revocable_connections(self, holder: str, *, limit: int) -> Mapping[str, int]:
        return await self._reader.call(lambda db, now: leases.revoked(db, now, holder, limit))

    async def return_connections(self, holder: str) -> None:
        await self._writer.call(lambda db, now: leases.return_all(db, holder))

    # upkeep

    async def apply_retention(self, retention_days: dict[Tier, int]) -> None:
        now = await self._writer.call(retention.reclaim)
        if ahead := await self._reader.call(partitions.ahead):
            await self._writer.call(partial(partitions.reclaim, found=ahead))
        for drop in retention.drops(now, retention_days):
            while await self._writer.call(drop):
                pass  # in small transactions, so that no request waits behind one
        after: tuple[int, int] | None = (0, -1)
        while after is not None:
            old = partial(retention.drop_settled, after=after, until=now - SETTLED_KEPT)
            after = await self._writer.call(old)

    async def check(self) -> datetime:
        return await self._writer.call(_write_nothing_new)


def _write_nothing_new(db: sqlite3.Connection, now: datetime) -> datetime:
    """Write one page with its old content to the disk; returns the clock."""
    (number,) = db.execute("PRAGMA user_version").fetchone()
    db.execute(f"PRAGMA user_version = {int(number)}")
    return now
