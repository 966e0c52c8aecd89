"""The transactions of SQLite by their commands: for the store in a file and the one in memory."""

import sqlite3
from collections.abc import Callable
from datetime import datetime
from typing import Any

from mailprobe.storage import commands
from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.sqlite import accounts, idempotency, jobs, keys, leases, outbox, usage

DB = sqlite3.Connection
Transaction = Callable[[DB, datetime, Any], Any]


def _check(db: DB, now: datetime, _: commands.CheckStore) -> datetime:
    """Write one page with its old content to the disk; returns the clock."""
    (number,) = db.execute("PRAGMA user_version").fetchone()
    db.execute(f"PRAGMA user_version = {int(number)}")
    return now


WRITES: dict[type[StoreCommand[Any]], Transaction] = dict(
    [
        commands.CreateKey.run_by(keys.create_key),
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
