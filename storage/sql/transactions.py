"""The shared transactions by their commands; each database adds its own."""

from collections.abc import Callable
from typing import Any

from mailprobe.storage import commands
from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.database import Database
from mailprobe.storage.lists import commands as list_commands
from mailprobe.storage.lists import queues as queue_commands
from mailprobe.storage.sql import (
    account_deletion,
    accounts,
    jobs,
    leases,
    outbox,
    queues,
    usage,
)
from mailprobe.storage.sql.list_jobs import (
    list_claims,
    list_lines,
    list_marks,
    list_results,
    list_waits,
    lists,
)

Transaction = Callable[[Database, Any], Any]

WRITES: dict[type[StoreCommand[Any]], Transaction] = dict(
    [
        commands.CreateAccount.run_by(accounts.create_account),
        commands.CreateFirstAccount.run_by(accounts.create_first_account),
        commands.ChangeAccount.run_by(accounts.change_account),
        commands.RevokeKey.run_by(accounts.revoke_key),
        commands.DeleteAccount.run_by(account_deletion.delete_account),
        list_commands.CreateList.run_by(lists.create),
        list_commands.AddChunks.run_by(lists.add_chunks),
        list_commands.ChangeList.run_by(lists.change),
        list_commands.ReleaseChunk.run_by(lists.release),
        list_commands.BeginPass.run_by(lists.begin_pass),
        list_commands.RecordPart.run_by(list_results.record_part),
        list_commands.KeepMarks.run_by(list_marks.keep),
        list_commands.NoteWait.run_by(list_marks.note_wait),
        list_commands.DeleteList.run_by(lists.delete),
        list_commands.DropUpload.run_by(lists.drop_upload),
        commands.ExtendClaim.run_by(jobs.extend),
        commands.ExtendMessage.run_by(outbox.extend),
        commands.MessageAttempted.run_by(outbox.attempted),
        commands.ReturnConnections.run_by(leases.return_all),
    ]
)
READS: dict[type[StoreCommand[Any]], Transaction] = dict(
    [
        commands.FindAccount.run_by(accounts.find_account),
        commands.ListAccounts.run_by(accounts.list_accounts),
        commands.FindAccountOfCustomer.run_by(accounts.account_of_customer),
        commands.ListKeys.run_by(accounts.list_keys),
        commands.IsFormOrigin.run_by(accounts.is_form_origin),
        list_commands.FindList.run_by(lists.find),
        list_commands.ListLists.run_by(lists.list_lists),
        list_commands.ReadChunks.run_by(list_lines.read_chunks),
        list_commands.ReadResults.run_by(list_lines.read_results),
        list_commands.ReadPlaces.run_by(list_lines.read_places),
        list_commands.FindPlaces.run_by(list_lines.find_places),
        list_commands.ReadMarks.run_by(list_marks.read),
        list_commands.ReadWaits.run_by(list_waits.read),
        list_commands.ReadColumns.run_by(lists.read_columns),
        commands.CountDays.run_by(usage.count_days),
        commands.ListUsage.run_by(usage.list_usage),
        commands.FindJob.run_by(jobs.find),
        commands.ListJobs.run_by(jobs.list_jobs),
        commands.ListReceivers.run_by(jobs.list_receivers),
        commands.ListAttempts.run_by(jobs.list_attempts),
        commands.ListMessages.run_by(outbox.list_messages),
        commands.RevocableConnections.run_by(leases.revocable_connections),
        queue_commands.ReadQueues.run_by(queues.read),
    ]
)
# A claim, and before it whether it would find something: an idle worker must write nothing.
CLAIMS: dict[type[StoreCommand[Any]], tuple[Transaction, Transaction]] = {
    commands.ClaimMessages: (outbox.is_due, outbox.claim),
    list_commands.ClaimChunks: (list_claims.is_due, list_claims.claim),
}
