"""The model as a store: the property tests give the same calls to it and to another store.

It has the commands that these tests make. Each layer knows those below it: accounts,
idempotency records, the outbox, usage, jobs, and here what needs all of them.
"""

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

import trio
from msgspec.structs import replace

from mailprobe.storage import accounts, commands, jobs, outbox, usage
from mailprobe.storage.base.columns import kept_since
from mailprobe.storage.base.encryption import KEY_OCTETS, Cipher
from mailprobe.storage.contract import IDEMPOTENCY_KEPT_MAX, LEASES_MAX, WAITS_MAX, WINDOW
from mailprobe.storage.database import Function, StoreCommand
from mailprobe.storage.records import Caller, Tier
from mailprobe.storage.store import Store
from tests.storage.ledger.jobs import FOREVER, ModelJobs

P = ParamSpec("P")
R = TypeVar("R")


class ModelExecutor(ModelJobs):
    """Runs the commands of a store that lasts until the process ends."""

    async def execute(self, command: StoreCommand[R]) -> R:
        """Run the command at once."""
        await trio.lowlevel.checkpoint()
        result: R = COMMANDS[type(command)](self, command)
        return result

    async def write(self, function: Function[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the model of the function at once."""
        await trio.lowlevel.checkpoint()
        result: R = FUNCTIONS[function](self, *args, **kwargs)
        return result

    read = write

    def lease_session(self) -> int:
        return 0

    async def find_caller(self, sha256: str) -> Caller | None:
        await trio.lowlevel.checkpoint()
        return self.caller(sha256)

    async def check(self) -> datetime:
        return self._now()

    async def apply_retention(self, retention_days: Mapping[Tier, int]) -> None:
        await trio.lowlevel.checkpoint()
        now = self._now()
        for account in self._accounts.values():
            if account.tier in retention_days:
                since = kept_since(now, retention_days[account.tier])
                self._drop_rows(account.id, since)
                self._drop_jobs(account.id, since)
                self._drop_keys(account.id, since, self._keys_in_use())
        self._correct_instants(now)
        self._drop_ended(now)
        self._drop_messages(now)
        self._drop_receivers(now)
        self._drop_idempotency(now)

    def _correct_instants(self, now: datetime) -> None:
        """Correct the instants that a clock wrote that was ahead."""
        lease_max, wait_max = now + LEASES_MAX, now + WAITS_MAX
        for id, lease in self._leases.items():
            if lease_max < lease.until < FOREVER:  # a job's has no end
                self._leases[id] = replace(lease, until=lease_max)
        self._messages.reclaim(lambda message: wait_max, lease_max)
        self._jobs.reclaim(lambda kept: wait_max if kept.job.tries else now, lease_max)
        self._reclaim_records(now + IDEMPOTENCY_KEPT_MAX)
        for key in list(self._keys.values()):
            if key.revoked_at and key.revoked_at > now + WINDOW:
                self._keys[key.id] = replace(key, revoked_at=now)
            if any(at > now + WINDOW for at in self._windows.get(key.id, ())):
                self._reclaim(key, now)


class ModelStore(Store):
    """A store of its own."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(ModelExecutor(now), Cipher(secrets.token_bytes(KEY_OCTETS)))


COMMANDS: dict[type[StoreCommand[Any]], Callable[[ModelExecutor, Any], Any]] = dict(
    [
        commands.CreateKey.run_by(ModelExecutor.create_key),
        commands.Reserve[Any].run_by(ModelExecutor.reserve),
        commands.Extend.run_by(ModelExecutor.extend),
        commands.Settle.run_by(ModelExecutor.settle),
        commands.Spend[Any].run_by(ModelExecutor.spend),
        commands.LogRefusal.run_by(ModelExecutor.log_refusal),
        commands.ReadLedger.run_by(ModelExecutor.ledger),
        commands.BeginIdempotent.run_by(ModelExecutor.begin_idempotent),
        commands.FinishIdempotent.run_by(ModelExecutor.finish_idempotent),
        commands.CreateJob[Any].run_by(ModelExecutor.create_job),
        commands.ClaimJobs.run_by(ModelExecutor.claim_jobs),
        commands.JobVerified.run_by(ModelExecutor.job_verified),
        commands.JobAttempted.run_by(ModelExecutor.job_attempted),
        commands.PostponeJob.run_by(ModelExecutor.postpone_job),
        commands.AbandonJob.run_by(ModelExecutor.abandon_job),
        commands.EnqueueMessage.run_by(ModelExecutor.enqueue_message),
    ]
)


def _modelled(
    function: Function[P, R], model: Callable[Concatenate[ModelExecutor, P], R]
) -> tuple[Function[..., Any], Callable[..., Any]]:
    """Return an entry of FUNCTIONS; mypy compares their arguments and results."""
    return function, model


FUNCTIONS: dict[Function[..., Any], Callable[..., Any]] = dict[Any, Any](
    [
        _modelled(accounts.create_account, ModelExecutor.create_account),
        _modelled(accounts.find_account, ModelExecutor.account),
        _modelled(accounts.list_accounts, ModelExecutor.accounts),
        _modelled(accounts.change_account, ModelExecutor.change_account),
        _modelled(accounts.list_keys, ModelExecutor.keys),
        _modelled(accounts.is_form_origin, ModelExecutor.is_form_origin),
        _modelled(accounts.revoke_key, ModelExecutor.revoke_key),
        _modelled(accounts.note_uses, ModelExecutor.note_key_uses),
        _modelled(usage.count_days, ModelExecutor.days),
        _modelled(usage.list_usage, ModelExecutor.usage),
        _modelled(jobs.extend_claim, ModelExecutor.extend_claim),
        _modelled(jobs.find_job, ModelExecutor.job),
        _modelled(jobs.list_jobs, ModelExecutor.jobs),
        _modelled(jobs.list_attempts, ModelExecutor.attempts),
        _modelled(jobs.resend_job, ModelExecutor.resend_job),
        _modelled(outbox.is_due, ModelExecutor.is_message_due),
        _modelled(outbox.claim, ModelExecutor.claim_messages),
        _modelled(outbox.extend_message, ModelExecutor.extend_message),
        _modelled(outbox.message_attempted, ModelExecutor.message_attempted),
        _modelled(outbox.list_messages, ModelExecutor.messages),
    ]
)
