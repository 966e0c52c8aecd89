"""The transactions of SQLite by their commands: for the store in a file and the one in memory."""

import sqlite3
from collections.abc import Callable
from datetime import datetime
from typing import Any

from mailprobe.storage import commands, reputation, sessions
from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.lists import commands as list_commands
from mailprobe.storage.lists import tables
from mailprobe.storage.sqlite import (
    accounts,
    idempotency,
    jobs,
    leases,
    lists,
    outbox,
    usage,
)

DB = sqlite3.Connection
Transaction = Callable[[DB, datetime, Any], Any]


def _check(db: DB, now: datetime, _: commands.CheckStore) -> datetime:
    """Write one page with its old content to the disk; returns the clock."""
    (number,) = db.execute("PRAGMA user_version").fetchone()
    db.execute(f"PRAGMA user_version = {int(number)}")
    return now


WRITES: dict[type[StoreCommand[Any]], Transaction] = dict(
    [
        commands.CreateAccount.run_by(accounts.create_account),
        commands.CreateFirstAccount.run_by(accounts.create_first_account),
        commands.ChangeAccount.run_by(accounts.change_account),
        commands.CreateKey.run_by(idempotency.create_key),
        commands.RevokeKey.run_by(lists.revoke_key),
        commands.Reserve[Any].run_by(usage.reserve),
        commands.Extend.run_by(usage.extend),
        commands.Settle.run_by(usage.settle),
        commands.Spend[Any].run_by(usage.spend),
        commands.LogRefusal.run_by(usage.log_refusal),
        commands.BeginIdempotent.run_by(idempotency.begin),
        commands.FinishIdempotent.run_by(idempotency.finish),
        commands.CreateJob[Any].run_by(jobs.create),
        commands.ExtendClaim.run_by(jobs.extend),
        commands.JobVerified.run_by(jobs.verified),
        commands.JobAttempted.run_by(jobs.attempted),
        commands.PostponeJob.run_by(jobs.postpone),
        commands.AbandonJob.run_by(jobs.abandon),
        commands.ResendJob.run_by(jobs.resend),
        list_commands.CreateList.run_by(lists.run(tables.create)),
        list_commands.AddChunks.run_by(lists.run(tables.add_chunks)),
        list_commands.ChangeList.run_by(lists.run(tables.change)),
        list_commands.ExtendChunk.run_by(lists.run(tables.extend)),
        list_commands.ReleaseChunk.run_by(lists.run(tables.release)),
        sessions.EndSession.run_by(lists.run(sessions.end)),
        reputation.CountReputation.run_by(lists.run(reputation.count)),
        list_commands.BeginPass.run_by(lists.run(tables.begin_pass)),
        list_commands.RecordPart.run_by(lists.run(tables.record_part)),
        list_commands.DeleteList.run_by(lists.run(tables.delete)),
        commands.EnqueueMessage.run_by(outbox.enqueue),
        commands.ExtendMessage.run_by(outbox.extend),
        commands.MessageAttempted.run_by(outbox.attempted),
        commands.LeaseConnections.run_by(leases.lease),
        commands.ReturnConnections.run_by(leases.return_all),
        commands.CheckStore.run_by(_check),
    ]
)
READS: dict[type[StoreCommand[Any]], Transaction] = dict(
    [
        commands.FindCaller.run_by(accounts.find_caller),
        commands.FindAccount.run_by(accounts.find_account),
        commands.ListAccounts.run_by(accounts.list_accounts),
        commands.FindAccountOfCustomer.run_by(accounts.account_of_customer),
        commands.ListKeys.run_by(accounts.list_keys),
        commands.ReadLedger.run_by(usage.read_ledger),
        commands.CountDays.run_by(usage.count_days),
        commands.ListUsage.run_by(usage.list_usage),
        commands.FindJob.run_by(jobs.find),
        commands.ListJobs.run_by(jobs.list_jobs),
        commands.ListAttempts.run_by(jobs.list_attempts),
        sessions.HasSessionEnded.run_by(lists.run(sessions.has_ended)),
        reputation.ReadReputation.run_by(lists.run(reputation.read)),
        list_commands.FindList.run_by(lists.run(tables.find)),
        list_commands.ListLists.run_by(lists.run(tables.list_lists)),
        list_commands.ReadChunks.run_by(lists.run(tables.read_chunks)),
        list_commands.ReadResults.run_by(lists.run(tables.read_results)),
        list_commands.ReadColumns.run_by(lists.run(tables.read_columns)),
        commands.ListMessages.run_by(outbox.list_messages),
        commands.RevocableConnections.run_by(leases.revocable_connections),
    ]
)
CLAIMS: dict[type[StoreCommand[Any]], tuple[Transaction, Transaction]] = {
    # a claim, and whether it would find something: an idle worker must not take the lock
    commands.ClaimJobs: (jobs.is_due, jobs.claim),
    commands.ClaimMessages: (outbox.is_due, outbox.claim),
    list_commands.ClaimChunks: (lists.run(tables.is_due), lists.run(tables.claim)),
}
