"""The memory store: dictionaries, the readable specification of the others.

It works in virtual time: nothing here waits, and the clock is injected. A method runs
one command, and is a transaction because it is no coroutine. The store is built
from layers, each of which knows those below it: accounts, idempotency records, the
outbox, usage, jobs, lists, and here what needs all of them.
"""

import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import trio

from mailprobe.storage import commands, reputation, sessions
from mailprobe.storage.commands import StoreCommand
from mailprobe.storage.contract import IDEMPOTENCY_KEPT_MAX, LEASES_MAX, WAITS_MAX, WINDOW
from mailprobe.storage.encryption import KEY_OCTETS, Cipher
from mailprobe.storage.lists import commands as list_commands
from mailprobe.storage.memory.leases import MemoryLeases
from mailprobe.storage.memory.lists import MemoryLists
from mailprobe.storage.periods import FOREVER, kept_since
from mailprobe.storage.store import Store

R = TypeVar("R")


class MemoryExecutor(MemoryLists, MemoryLeases):
    """Runs the commands of a store that lasts until the process ends."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        MemoryLists.__init__(self, now)
        MemoryLeases.__init__(self, now)
        self._ended_sessions: dict[str, datetime] = {}

    async def execute(self, command: StoreCommand[R]) -> R:
        """Run the command at once."""
        await trio.lowlevel.checkpoint()
        result: R = COMMANDS[type(command)](self, command)
        return result

    def end_session(self, command: sessions.EndSession) -> None:
        self._ended_sessions[command.id] = command.until

    def has_session_ended(self, command: sessions.HasSessionEnded) -> bool:
        return command.id in self._ended_sessions

    # upkeep

    def apply_retention(self, command: commands.ApplyRetention) -> None:
        now = self._now()
        for account in self._accounts.values():
            if account.tier in command.retention_days:
                since = kept_since(now, command.retention_days[account.tier])
                self._drop_rows(account.id, since)
                self._drop_jobs(account.id, since)
                self._drop_lists(account.id, since)
                self._drop_keys(account.id, since, self._keys_in_use())
        self._correct_instants(now)
        self._drop_ended(now)
        self._drop_messages(now)
        self._drop_receivers(now)
        self._drop_unloaded(now)
        self._drop_leases(now)
        self._ended_sessions = {id: at for id, at in self._ended_sessions.items() if at > now}
        self._drop_idempotency(now)

    def _correct_instants(self, now: datetime) -> None:
        """Correct the instants that a clock wrote that was ahead."""
        lease_max, wait_max = now + LEASES_MAX, now + WAITS_MAX
        for id, lease in self._leases.items():
            if lease_max < lease.until < FOREVER:  # a job's has no end
                self._leases[id] = replace(lease, until=lease_max)
        self._messages.reclaim(lambda message: wait_max, lease_max)
        self._jobs.reclaim(lambda kept: wait_max if kept.job.tries else now, lease_max)
        self._reclaim_chunks(lease_max, wait_max)
        self._reclaim_leases(lease_max)
        self._reclaim_records(now + IDEMPOTENCY_KEPT_MAX)
        for key in list(self._keys.values()):
            if key.revoked_at and key.revoked_at > now + WINDOW:
                self._keys[key.id] = replace(key, revoked_at=now)
            if any(at > now + WINDOW for at in self._windows.get(key.id, ())):
                self._reclaim(key, now)

    def check(self, _: commands.CheckStore) -> datetime:
        return self._now()


class MemoryStore(Store):
    """A store of its own; its secrets are encrypted with a key that nobody else has."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(MemoryExecutor(now), Cipher(secrets.token_bytes(KEY_OCTETS)))


COMMANDS: dict[type[StoreCommand[Any]], Callable[[MemoryExecutor, Any], Any]] = dict(
    [
        commands.CreateAccount.run_by(MemoryExecutor.create_account),
        commands.CreateFirstAccount.run_by(MemoryExecutor.create_first_account),
        commands.FindAccount.run_by(MemoryExecutor.account),
        commands.ListAccounts.run_by(MemoryExecutor.accounts),
        commands.FindAccountOfCustomer.run_by(MemoryExecutor.account_of_customer),
        commands.ChangeAccount.run_by(MemoryExecutor.change_account),
        commands.CreateKey.run_by(MemoryExecutor.create_key),
        commands.ListKeys.run_by(MemoryExecutor.keys),
        commands.RevokeKey.run_by(MemoryExecutor.revoke_key),
        commands.FindCaller.run_by(MemoryExecutor.caller),
        commands.Reserve[Any].run_by(MemoryExecutor.reserve),
        commands.Extend.run_by(MemoryExecutor.extend),
        commands.Settle.run_by(MemoryExecutor.settle),
        commands.Spend[Any].run_by(MemoryExecutor.spend),
        commands.LogRefusal.run_by(MemoryExecutor.log_refusal),
        commands.ReadLedger.run_by(MemoryExecutor.ledger),
        commands.CountDays.run_by(MemoryExecutor.days),
        commands.ListUsage.run_by(MemoryExecutor.usage),
        commands.BeginIdempotent.run_by(MemoryExecutor.begin_idempotent),
        commands.FinishIdempotent.run_by(MemoryExecutor.finish_idempotent),
        commands.CreateJob[Any].run_by(MemoryExecutor.create_job),
        commands.ClaimJobs.run_by(MemoryExecutor.claim_jobs),
        commands.ExtendClaim.run_by(MemoryExecutor.extend_claim),
        commands.JobVerified.run_by(MemoryExecutor.job_verified),
        commands.JobAttempted.run_by(MemoryExecutor.job_attempted),
        commands.PostponeJob.run_by(MemoryExecutor.postpone_job),
        commands.AbandonJob.run_by(MemoryExecutor.abandon_job),
        commands.FindJob.run_by(MemoryExecutor.job),
        commands.ListJobs.run_by(MemoryExecutor.jobs),
        commands.ListAttempts.run_by(MemoryExecutor.attempts),
        commands.ResendJob.run_by(MemoryExecutor.resend_job),
        list_commands.CreateList.run_by(MemoryExecutor.create_list),
        list_commands.AddChunks.run_by(MemoryExecutor.add_chunks),
        list_commands.ChangeList.run_by(MemoryExecutor.change_list),
        list_commands.FindList.run_by(MemoryExecutor.stored_list),
        list_commands.ListLists.run_by(MemoryExecutor.lists),
        list_commands.ClaimChunks.run_by(MemoryExecutor.claim_chunks),
        list_commands.ExtendChunk.run_by(MemoryExecutor.extend_chunk),
        list_commands.ReleaseChunk.run_by(MemoryExecutor.release_chunk),
        list_commands.ReadChunks.run_by(MemoryExecutor.chunks),
        list_commands.ReadResults.run_by(MemoryExecutor.list_results),
        list_commands.ReadColumns.run_by(MemoryExecutor.list_columns),
        sessions.EndSession.run_by(MemoryExecutor.end_session),
        sessions.HasSessionEnded.run_by(MemoryExecutor.has_session_ended),
        reputation.CountReputation.run_by(MemoryExecutor.count_reputation),
        reputation.ReadReputation.run_by(MemoryExecutor.reputation),
        list_commands.BeginPass.run_by(MemoryExecutor.begin_pass),
        list_commands.RecordPart.run_by(MemoryExecutor.record_part),
        list_commands.DeleteList.run_by(MemoryExecutor.delete_list),
        commands.EnqueueMessage.run_by(MemoryExecutor.enqueue_message),
        commands.ClaimMessages.run_by(MemoryExecutor.claim_messages),
        commands.ExtendMessage.run_by(MemoryExecutor.extend_message),
        commands.MessageAttempted.run_by(MemoryExecutor.message_attempted),
        commands.ListMessages.run_by(MemoryExecutor.messages),
        commands.LeaseConnections.run_by(MemoryExecutor.lease_connections),
        commands.RevocableConnections.run_by(MemoryExecutor.revocable_connections),
        commands.ReturnConnections.run_by(MemoryExecutor.return_connections),
        commands.ApplyRetention.run_by(MemoryExecutor.apply_retention),
        commands.CheckStore.run_by(MemoryExecutor.check),
    ]
)
