"""The transactions of SQLite by their commands: for the store in a file and the one in memory."""

import sqlite3
from collections.abc import Callable
from datetime import datetime
from typing import Any

from .. import commands
from ..accounts import insert_key, new_key, next_key_at
from ..base.columns import instant, micros
from ..commands import CreateKey
from ..contract import WINDOW, KeyCreationTooFast, KeyLimitReached
from ..database import StoreCommand
from ..records import Key, KeyKind
from . import accounts, idempotency, jobs, leases, outbox, usage
from .accounts import number_of
from .database import SqliteDatabase

DB = sqlite3.Connection
Transaction = Callable[[DB, datetime, Any], Any]


def create_key(db: DB, now: datetime, command: CreateKey) -> Key:
    """Insert a key, and store the answer that `command.answer` makes from it."""
    idempotency.check_runs(db, command.idempotency)
    account = number_of(db, command.account_id)
    if command.keys_max is not None:
        (active,) = db.execute(
            "SELECT count(*) FROM keys WHERE account = ? AND kind = ? AND revoked_at IS NULL",
            (account, command.kind),
        ).fetchone()
        if active >= command.keys_max:
            raise KeyLimitReached
    if command.keys_per_minute_max is not None:
        _check_creation_rate(db, now, account, command.kind, command.keys_per_minute_max)
    if db.execute("SELECT 1 FROM keys WHERE sha256 = ?", (command.sha256,)).fetchone():
        raise ValueError("a key with this hash is kept already")
    key = new_key(command, now)
    insert_key(SqliteDatabase(db, now), account, key, command.sha256, command.by)
    if command.answer is not None:
        idempotency.keep(db, command.answer(key))
    return key


def _check_creation_rate(
    db: DB, now: datetime, account: int, kind: KeyKind, keys_per_minute_max: int
) -> None:
    rows = db.execute(
        "SELECT created_at FROM keys WHERE account = ? AND kind = ?"
        " AND created_at > ? AND created_at <= ?",
        (account, kind, micros(now - WINDOW), micros(now)),
    )
    at = next_key_at([instant(at) for (at,) in rows], keys_per_minute_max)
    if at is not None:
        raise KeyCreationTooFast(now, at)


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
        commands.BeginIdempotent.run_by(idempotency.begin),
        commands.FinishIdempotent.run_by(idempotency.finish),
        commands.CreateJob[object].run_by(jobs.create),
        commands.JobVerified.run_by(jobs.verified),
        commands.JobAttempted.run_by(jobs.attempted),
        commands.PostponeJob.run_by(jobs.postpone),
        commands.AbandonJob.run_by(jobs.abandon),
        commands.ResendJob.run_by(jobs.resend),
        commands.EnqueueMessage.run_by(outbox.enqueue),
        commands.LeaseConnections.run_by(leases.lease),
        commands.CheckStore.run_by(_check),
    ]
)
READS: dict[type[StoreCommand[Any]], Transaction] = dict(
    [
        commands.FindCaller.run_by(accounts.find_caller),
        commands.ReadLedger.run_by(usage.read_ledger),
    ]
)
CLAIMS: dict[type[StoreCommand[Any]], tuple[Transaction, Transaction]] = {
    commands.ClaimJobs: (jobs.is_due, jobs.claim),
}
