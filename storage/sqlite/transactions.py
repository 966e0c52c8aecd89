"""The transactions of SQLite by their commands: for the store in a file and the one in memory."""

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from .. import commands, idempotency, outbox
from ..accounts import create_keys
from ..callers import number_of
from ..commands import (
    BeginIdempotent,
    CreateKey,
    EnqueueMessage,
    FinishIdempotent,
    Raised,
)
from ..database import Database, StoreCommand
from ..records import Key
from . import jobs, key_lookup, leases, usage
from .database import SqliteDatabase

DB = sqlite3.Connection
A = TypeVar("A", BeginIdempotent, CreateKey, EnqueueMessage)
R = TypeVar("R")
Transaction = Callable[[DB, datetime, Any], Any]


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
    idempotency.finish(SqliteDatabase(db, now), command)


def _check(db: DB, now: datetime, _: commands.CheckStore) -> datetime:
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
        commands.LeaseConnections.run_by(leases.lease),
        commands.CheckStore.run_by(_check),
    ]
)
READS: dict[type[StoreCommand[Any]], Transaction] = dict(
    [
        commands.FindCaller.run_by(key_lookup.find_caller),
        commands.ReadLedger.run_by(usage.read_ledger),
    ]
)
CLAIMS: dict[type[StoreCommand[Any]], tuple[Transaction, Transaction]] = {
    commands.ClaimJobs: (jobs.is_due, jobs.claim),
}
