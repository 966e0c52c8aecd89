"""The shared transactions by their commands; each database adds its own."""

from collections.abc import Callable
from typing import Any

from mailprobe.storage import commands
from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.database import Database
from mailprobe.storage.sql import (
    account_deletion,
    accounts,
    jobs,
    leases,
    outbox,
    usage,
)

Transaction = Callable[[Database, Any], Any]

WRITES: dict[type[StoreCommand[Any]], Transaction] = dict(
    [
        commands.CreateAccount.run_by(accounts.create_account),
        commands.CreateFirstAccount.run_by(accounts.create_first_account),
        commands.ChangeAccount.run_by(accounts.change_account),
        commands.RevokeKey.run_by(accounts.revoke_key),
        commands.DeleteAccount.run_by(account_deletion.delete_account),
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
        commands.CountDays.run_by(usage.count_days),
        commands.ListUsage.run_by(usage.list_usage),
        commands.FindJob.run_by(jobs.find),
        commands.ListJobs.run_by(jobs.list_jobs),
        commands.ListReceivers.run_by(jobs.list_receivers),
        commands.ListAttempts.run_by(jobs.list_attempts),
        commands.ListMessages.run_by(outbox.list_messages),
        commands.RevocableConnections.run_by(leases.revocable_connections),
    ]
)
# A claim, and before it whether it would find something: an idle worker must write nothing.
CLAIMS: dict[type[StoreCommand[Any]], tuple[Transaction, Transaction]] = {
    commands.ClaimMessages: (outbox.is_due, outbox.claim),
}
