"""The transactions of SQLite by their commands: for the store in a file and the one in memory."""

import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any, TypeVar

from .. import commands, idempotency, outbox, retention
from ..accounts import create_keys
from ..base.columns import kept_since, micros
from ..base.lease_holders import is_gone
from ..callers import number_of
from ..commands import (
    BeginIdempotent,
    CreateKey,
    EnqueueMessage,
    FinishIdempotent,
    LeaseConnections,
    Raised,
)
from ..database import Database, Executor, RowInsert, StoreCommand
from ..leases import AddressLeases, lease_of
from ..records import Key, Tier
from . import job_partitions, jobs, usage
from .database import SqliteDatabase

DB = sqlite3.Connection
A = TypeVar("A", BeginIdempotent, CreateKey, EnqueueMessage)
R = TypeVar("R")
Transaction = Callable[[DB, datetime, Any], Any]
Call = Callable[[Callable[[DB, datetime], Any]], Awaitable[Any]]
LEASED = RowInsert(
    "connection_leases",
    "address text, holder text, connections int, since bigint, until bigint",
    " ON CONFLICT (address, holder) DO UPDATE SET connections = excluded.connections,"
    " since = excluded.since, until = excluded.until",
)


def _single(
    act: Callable[[Database, datetime, Sequence[tuple[A, int]]], Sequence[R | Raised]],
) -> Callable[[DB, datetime, A], R]:
    """Run a transaction of many commands for one; it raises what forbids the command."""

    def transaction(db: DB, now: datetime, command: A) -> R:
        shared = SqliteDatabase(db, now)
        (outcome,) = act(shared, now, [(command, number_of(shared, command.account_id))])
        if isinstance(outcome, Raised):
            raise outcome.error
        return outcome

    return transaction


_create_key = _single(create_keys)


def create_key(db: DB, now: datetime, command: CreateKey) -> Key:
    """Insert a key, and store the answer that `command.answer` makes from it."""
    idempotency.check_runs(SqliteDatabase(db, now), command.idempotency)
    key = _create_key(db, now, command)
    if command.answer is not None:
        idempotency.keep(SqliteDatabase(db, now), command.answer(key))
    return key


def finish(db: DB, now: datetime, command: FinishIdempotent) -> None:
    idempotency.finish(SqliteDatabase(db, now), command.idempotency, command.answer)


def lease(db: DB, now: datetime, command: LeaseConnections) -> dict[str, int]:
    """Lease connections for the holder; returns the number per address.

    Leases of processes that have ended are deleted on the way.
    """
    shared = SqliteDatabase(db, now)
    leases = AddressLeases(list(command.requested), command.holder)
    for address in command.requested:
        for row in shared.all(
            "SELECT holder, connections, since, until FROM connection_leases"
            " WHERE address = :address",
            {"address": address},
        ):
            leases.add(address, lease_of(row), None)
    gone = cache(is_gone)  # each holder is judged once
    leases.drop(lambda found, _: gone(found.holder))
    new = leases.allocated(command, now)
    shared.insert(
        LEASED,
        [
            (address, each.holder, each.connections, micros(each.since), micros(each.until))
            for address, each in new.items()
            if each
        ],
    )
    returned = [(address, command.holder) for address, each in new.items() if not each]
    shared.change_each(
        "DELETE FROM connection_leases WHERE address = :address AND holder = :holder",
        [{"address": address, "holder": holder} for address, holder in returned + leases.dropped],
    )
    return {address: each.connections if each else 0 for address, each in new.items()}


def check(db: DB, now: datetime) -> datetime:
    """Write one page with its old content to the disk; returns the clock."""
    (number,) = db.execute("PRAGMA user_version").fetchone()
    db.execute(f"PRAGMA user_version = {int(number)}")
    return now


WRITES: dict[type[StoreCommand[Any]], Transaction] = dict(
    [
        commands.CreateKey.run_by(create_key),
        commands.Reserve[object].run_by(usage.reserve),
        commands.Extend.run_by(usage.extend),
        commands.Settle.run_by(usage.settle),
        commands.Spend[object].run_by(usage.spend),
        commands.LogRefusal.run_by(usage.log_refusal),
        commands.BeginIdempotent.run_by(_single(idempotency.begin)),
        commands.FinishIdempotent.run_by(finish),
        commands.CreateJob[object].run_by(jobs.create),
        commands.JobVerified.run_by(jobs.complete),
        commands.JobAttempted.run_by(jobs.complete),
        commands.PostponeJob.run_by(jobs.complete),
        commands.AbandonJob.run_by(jobs.complete),
        commands.EnqueueMessage.run_by(_single(outbox.enqueue)),
        commands.LeaseConnections.run_by(lease),
    ]
)
READS: dict[type[StoreCommand[Any]], Transaction] = dict(
    [
        commands.ReadLedger.run_by(usage.read_ledger),
    ]
)
CLAIMS: dict[type[StoreCommand[Any]], tuple[Transaction, Transaction]] = {
    commands.ClaimJobs: (jobs.is_due, jobs.claim),
}


# retention, in many transactions


async def apply_retention(
    executor: Executor, write: Call, read: Call, retention_days: Mapping[Tier, int]
) -> None:
    """Delete in small transactions; `write` and `read` are calls of the connections."""
    now: datetime = await write(_clock)
    await retention.correct(executor, now, retention.RECLAIMED)
    if ahead := await read(job_partitions.ahead):
        await write(partial(job_partitions.reclaim, found=ahead))
    usage = partial(retention.drop, table="usage", which=f"{retention.OF_TIER} AND at < :at")
    logged: list[retention.Drop] = [
        partial(usage, at=micros(kept_since(now, days)), tier=tier)
        for tier, days in retention_days.items()
    ]
    drops = [*retention.drops(now, retention_days), *logged]
    await retention.delete(executor, now, drops, (0, -1))


def _clock(_: DB, now: datetime) -> datetime:
    return now
