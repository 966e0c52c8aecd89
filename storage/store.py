"""The store: what the API keeps, one transaction per method.

`Store` checks the arguments, encrypts what must be read again, and hands a command
(mailprobe.storage.commands) to an executor. There are three, and the same tests run on
each (tests/storage/): SQLite in a file, the default; SQLite in memory, for tests and
demos; PostgreSQL, for many machines.
A store that cannot answer raises StoreUnavailable within a second and recovers by
itself. What has returned is durable. The clock is read after the lock is acquired.
A cancelled caller leaves either a whole transaction or nothing. Once a transaction
has begun, its caller receives the result before the cancellation, so every
reservation is known to its caller.

Instants are aware datetimes in UTC. Arguments that end in `_s` are seconds.
"""

from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import TypeVar

from mailprobe.storage import commands
from mailprobe.storage.audit import AuditStore
from mailprobe.storage.base.checks import (
    at_most,
    check_changes,
    check_outcome,
    check_sent,
    check_units,
)
from mailprobe.storage.base.lease_holders import own_holder
from mailprobe.storage.bounces import BounceStore
from mailprobe.storage.contract import LISTED_MAX, USAGE_ROWS_MAX
from mailprobe.storage.egresses import EgressStore
from mailprobe.storage.facts import FactStore
from mailprobe.storage.fleet.connection_leases import ConnectionLeases
from mailprobe.storage.list_jobs.queues import QueueStore
from mailprobe.storage.list_jobs.store import ListStore
from mailprobe.storage.list_records import ChunkPart
from mailprobe.storage.oversight import OversightStore
from mailprobe.storage.pauses import PauseStore
from mailprobe.storage.records import (
    SERVICE,
    Account,
    Actor,
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
    units_of,
)
from mailprobe.storage.sessions import KeyUseStore, SessionStore
from mailprobe.storage.store_part import (
    StorePart,
    encrypted_answer,
    idempotency_context,
    job_context,
    unpacked,
    with_secret,
)
from mailprobe.storage.tolerances.store import ToleranceStore

R = TypeVar("R")


class AccountStore(StorePart):
    """Accounts and their keys."""

    async def create_account(self, email: str, tier: Tier, *, by: Actor = SERVICE) -> Account:
        """Create an account with a new UUID and return it. E-mail addresses need not be unique."""
        return await self._execute(commands.CreateAccount(email, tier, by))

    async def create_first_account(
        self,
        email: str,
        tier: Tier,
        keys: Sequence[commands.NewKey],
        *,
        by: Actor = SERVICE,
    ) -> Account | None:
        """Create an account with these keys; None, and nothing is created, if there is an account."""
        return await self._execute(commands.CreateFirstAccount(email, tier, keys, by))

    async def account(self, account_id: str) -> Account | None:
        """Return the account, or None if there is none with this id."""
        return await self._execute(commands.FindAccount(account_id))

    async def accounts(self) -> list[Account]:
        """Return all accounts, oldest first."""
        return await self._execute(commands.ListAccounts())

    async def account_of_customer(self, customer_id: str) -> Account | None:
        """Return the account with this customer id of the billing provider, or None."""
        return await self._execute(commands.FindAccountOfCustomer(customer_id))

    async def change_account(
        self, account_id: str, *, by: Actor = SERVICE, **changes: object
    ) -> Account | None:
        """Set fields of Account by name and return the account; None if there is no such account.

        Raises TypeError for a name that is no field, or one that never changes
        (`id`, `created_at`), ValueError for a `customer_id` that another account has.
        """
        check_changes(changes)
        return await self._execute(commands.ChangeAccount(account_id, changes, by))

    async def delete_account(self, account_id: str, *, by: Actor = SERVICE) -> bool:
        """Delete all that is personal of an account; False if there is no such account.

        Its e-mail address becomes empty, its keys are revoked, its jobs, lists, results, callbacks
        and alerts go; an outcome of a job or a list that runs changes nothing any more. What
        counts money stays. It takes many transactions, the first of which ends what runs: a call
        that was interrupted is repeated.
        """
        while not (gone := await self._execute(commands.DeleteAccount(account_id, by))):
            if gone is None:
                return False
        return True

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
        origins: Sequence[str] = (),
        rate_per_min: int | None = None,
        by: Actor = SERVICE,
    ) -> Key:
        """Store a key by its SHA-256 (hex digits) and return it without its secret.

        `keys_max` limits the account's active keys of this kind, `keys_per_minute_max` those
        created within the last minute; None is no limit. Provisioning keys are not limited. A
        publishable key has `origins`, serialised as browsers do, and `rate_per_min`. With
        `idempotency`, the answer that `answer` makes from the key is stored in the same
        transaction: like `first` in `settle`. Raises KeyLimitReached,
        KeyCreationTooFast, KeyError if there is no such account, ValueError for a hash that
        is stored already.
        """
        if kind == "provisioning":
            keys_max = keys_per_minute_max = None
        stored = self._encrypting(idempotency, answer)
        return await self._execute(
            commands.CreateKey(
                account_id, kind, label, sha256, prefix, keys_max, keys_per_minute_max,
                idempotency, stored, tuple(origins), rate_per_min, by,
            )
        )  # fmt: skip

    async def is_form_origin(self, origin: str) -> bool:
        """Whether an active publishable key, of whichever account, names this origin."""
        return await self._execute(commands.IsFormOrigin(origin))

    async def keys(self, account_id: str) -> list[Key]:
        """Return the account's active keys of all kinds, oldest first."""
        return await self._execute(commands.ListKeys(account_id))

    async def revoke_key(self, account_id: str | None, key_id: str, *, by: Actor = SERVICE) -> bool:
        """Revoke a key permanently; False if the account (None: any) has no such active key."""
        return await self._execute(commands.RevokeKey(account_id, key_id, by))

    async def caller(self, sha256: str) -> Caller | None:
        """Return the key with this SHA-256 and its account; None for an unknown or a revoked key."""
        return await self._execute(commands.FindCaller(sha256))


class UsageStore(StorePart):
    """What was reserved and used, and its limits."""

    async def reserve(
        self,
        caller: Caller,
        units: int,
        check_limits: Callable[[Ledger], R | None],
        *,
        lease_s: float,
    ) -> Reservation | R:
        """Read the ledger, check the limits, and reserve the units, in one transaction.

        Returns the reservation, or the refusal that `check_limits` returned. `check_limits`
        may run in another thread while the lock is held: it must be pure and quick, and may
        read the ledger's window only until it returns. If it raises, this raises the same
        and nothing is reserved. A reservation that is neither settled nor extended within
        `lease_s` is given back: its units leave the quota and `reserved`. The sliding
        window keeps what was granted, used or not. Raises ValueError for less than one unit.
        """
        check_units(units)
        return await self._execute(commands.Reserve(caller, units, check_limits, lease_s))

    async def extend(self, reservation: Reservation, *, lease_s: float) -> None:
        """Let the lease end `lease_s` from now; does nothing if it has ended or was settled."""
        await self._execute(commands.Extend(reservation, lease_s))

    async def settle(
        self,
        reservation: Reservation,
        rows: Sequence[UsageRow],
        *,
        part: int = 0,
        ends: bool = True,
        emit_meter_event: bool = False,
        first: FirstAnswer | None = None,
        chunk: ChunkPart | None = None,
    ) -> None:
        """Log what was used, whole or in parts; the part with `ends` gives back the unused units.

        Each numbered part of a reservation is logged once: a second call with the same part
        changes nothing, and parts may come in any order. The units that a part uses are no
        longer reserved. Rows are still counted if the lease has ended. Each row counts at
        its own instant: in its UTC day and month and its billing period. With
        `emit_meter_event`, the billable rows are added to the account's message to the
        billing meter in the same transaction.

        `first` is the answer to a request with an idempotency key, stored in the same
        transaction. Raises IdempotencyInProgress, and changes nothing, if the lease of its
        idempotency record has ended and another request has begun since.

        `chunk` has results of a list, stored in the same transaction. If another claim has
        followed that of its chunk, neither they nor the rows are stored or counted.

        A meter's message is named after the slot that it counts: the Unix time in seconds
        at which the slot of METER_SLOT_S begins that contains the instant of settlement. It
        is due METER_REST_S after the end of its slot. A claimed message is closed: what a
        clock that was set back adds later goes to the account's next open slot.
        """
        answer = self._encrypted(first)
        await self._execute(
            commands.Settle(reservation, rows, part, ends, emit_meter_event, answer, chunk)
        )

    async def spend(
        self,
        caller: Caller,
        rows: Sequence[UsageRow],
        check_limits: Callable[[Ledger], R | None],
        *,
        emit_meter_event: bool = False,
        first: FirstAnswer | None = None,
    ) -> R | None:
        """Reserve the rows' units and settle them in one transaction; returns the refusal or None.

        For results that are known before the limits are checked: no reservation can be left
        behind, and it costs half as much as the two calls. `first` as in `settle`, stored
        only if the units are granted. Raises ValueError for rows of less than one unit.
        """
        check_units(units_of(rows))
        answer = self._encrypted(first)
        return await self._execute(
            commands.Spend(caller, rows, check_limits, emit_meter_event, answer)
        )

    async def log_refusal(self, caller: Caller, row: UsageRow) -> None:
        """Log a refused request: one row each while they are few, then one row per minute.

        It counts towards no limit, whatever the row's `units` say.
        """
        await self._execute(commands.LogRefusal(caller, row))

    async def ledger(self, caller: Caller) -> Ledger:
        """Return the caller's ledger for display; nothing is changed."""
        return await self._execute(commands.ReadLedger(caller))

    async def days(self, account_id: str, first: date, last: date) -> list[DayCount]:
        """Return the verifications per UTC day from `first` to `last`, both included.

        Oldest first; days without any are left out.
        """
        return await self._execute(commands.CountDays(account_id, first, last))

    async def usage(self, account_id: str, *, limit: int) -> list[UsageRow]:
        """Return the rows still within retention, newest first; of one instant the last logged first.

        Refusals are included. At most USAGE_ROWS_MAX rows, however large `limit` is.
        """
        return await self._execute(commands.ListUsage(account_id, at_most(USAGE_ROWS_MAX, limit)))


class IdempotencyStore(StorePart):
    """The first requests with idempotency keys, and their answers."""

    async def begin_idempotent(
        self,
        account_id: str,
        key: str,
        body_sha256: str,
        *,
        keep_s: float,
        lease_s: float,
        mark: int = 0,
    ) -> Answered | IdempotencyRecord:
        """Begin a request with an idempotency key.

        Returns a record if this request is the first, else the answer to the first. Raises
        IdempotencyInProgress, IdempotencyKeyReused (which takes precedence), and KeyError
        if there is no such account. A first request that died is forgotten after `lease_s`, or
        at once if its process has ended for certain (see `lease_holders`), an answer `keep_s` after its request began. After an OutcomeUnknown the key is freed
        by `mark`, a random number below MARKS (`IdempotencyRecord.marked`).
        """
        begun = await self._execute(
            commands.BeginIdempotent(
                account_id, key, body_sha256, lease_s, keep_s, mark, own_holder()
            )
        )
        if isinstance(begun, IdempotencyRecord):
            return begun
        return unpacked(self._cipher.open(begun, idempotency_context(account_id, key)))

    async def finish_idempotent(
        self, idempotency: IdempotencyRecord, answer: Answered | None
    ) -> None:
        """Store the answer for later requests, or (None) free the key for another request.

        For answers that come with no other change. The first answer stays: nothing is
        changed if another request has begun since or an answer is stored. A body of more
        than ANSWER_OCTETS_MAX is not stored; the answer's status is.
        """
        encrypted = None if answer is None else encrypted_answer(self._cipher, idempotency, answer)
        await self._execute(commands.FinishIdempotent(idempotency, encrypted))


class JobStore(StorePart):
    """Asynchronous verifications and their callbacks."""

    async def create_job(
        self,
        caller: Caller,
        order: JobOrder,
        check_limits: Callable[[Ledger], R | None],
        *,
        first: FirstAnswer | None = None,
    ) -> Job | R:
        """Reserve one unit and store the job, in one transaction; like `reserve`, without a lease.

        The reservation lasts while the job is pending; one with `order.payload` counts in the
        window alone. `first` as in `spend`. Raises ValueError for an id that is stored already.
        """
        secret = None
        if order.secret is not None:
            secret = self._cipher.close(order.secret.encode(), job_context(order.id))
        answer = self._encrypted(first)
        return await self._execute(commands.CreateJob(caller, order, secret, check_limits, answer))

    async def claim_jobs(
        self,
        work: Work,
        *,
        limit: int,
        each_max: int,
        lease_s: float,
        account_max: int | None = None,
    ) -> list[Claim]:
        """Claim due jobs for `lease_s`: pending ones to verify, delivering ones to deliver.

        Accounts take turns, the one with the fewest active claims first. Within an account
        the jobs due longest come first, then the oldest; at most `limit` in all
        (mailprobe.storage.base.claim_order). Over all processes at most `each_max` claims of one
        account (verify) or of one account's host (deliver), and `account_max` of one
        account, are active at a time; one of a host whose last FAILING_AFTER attempts
        failed. Calls of a host that have taken longer than HANGS_AFTER do not count towards the
        account's limit; such a host has HANGING_EACH_MAX, after the account's others.
        An account or a host at its limit does not delay the others. If nothing is
        due, nothing is written. A claim ends with its outcome: a second outcome for it
        changes nothing.
        """
        claimed = await self._execute(
            commands.ClaimJobs(work, max(0, limit), each_max, lease_s, account_max)
        )
        return [
            with_secret(self._cipher, claim, secret, job_context(claim.job.id))
            for claim, secret in claimed
        ]

    async def extend_claim(self, claim: Claim, *, lease_s: float) -> bool:
        """Let the claim end `lease_s` from now; False if it has ended or another claim has the job."""
        return await self._execute(commands.ExtendClaim(claim, lease_s))

    async def job_verified(
        self, claim: Claim, row: UsageRow, payload: bytes, *, emit_meter_event: bool = False
    ) -> bool:
        """Count the verification, end the reservation and make the callback due, all or nothing.

        `payload` is the callback's body; without a webhook the job is done. False, and nothing is
        changed, if a later claim has the job, this one has had its outcome, or the job is not
        pending. A claim whose lease has ended still counts if no other claim followed it.
        """
        return await self._execute(commands.JobVerified(claim, row, payload, emit_meter_event))

    async def job_attempted(
        self, claim: Claim, attempt: Attempt, *, state: JobState, due_at: datetime | None
    ) -> bool:
        """Log the callback attempt; the job is due again at `due_at`, or it ends (None).

        False as with `job_verified`, for a job that is not delivering. Raises
        ValueError for `pending`, for `delivering` without `due_at`, for an end with it.
        """
        check_outcome(state, due_at)
        return await self._execute(commands.JobAttempted(claim, attempt, state, due_at))

    async def postpone_job(self, claim: Claim, due_at: datetime) -> bool:
        """Verify a pending job again at `due_at`: nothing is counted, its unit stays reserved.

        False as with `job_verified`. The job's `tries` counts its verifications.
        """
        return await self._execute(commands.PostponeJob(claim, due_at))

    async def abandon_job(self, claim: Claim) -> bool:
        """End a pending job as failed: not counted, its unit given back, no callback.

        False as with `job_verified`.
        """
        return await self._execute(commands.AbandonJob(claim))

    async def job(self, job_id: str) -> Job | None:
        """Return the job, or None if there is none with this id."""
        return await self._execute(commands.FindJob(job_id))

    async def jobs(
        self,
        *,
        account_id: str | None = None,
        state: JobState | None = None,
        host: str | None = None,
        before: str | None = None,
        prefix: str | None = None,
        limit: int,
    ) -> list[Job]:
        """Return jobs newest first, at most LISTED_MAX; None stands for any.

        `host` is that of a JobOrder with a webhook. With `before`, only jobs that were created
        before the one with this id. With `prefix`, only those whose ids, which are UUIDs, begin
        so: none for fewer than ID_PREFIX_MIN characters.
        """
        limit = at_most(LISTED_MAX, limit)
        return await self._execute(
            commands.ListJobs(account_id, state, host, before, limit, prefix)
        )

    async def receivers(self, account_id: str) -> list[str]:
        """Return the hosts of the account's jobs with a webhook in order, at most RECEIVERS_MAX."""
        return await self._execute(commands.ListReceivers(account_id))

    async def attempts(self, job_id: str) -> list[Attempt]:
        """Return the job's attempts in the order they were logged, at most the last LISTED_MAX."""
        return await self._execute(commands.ListAttempts(job_id))

    async def resend_job(self, job_id: str) -> Job | None:
        """Make the callback due at once, with all attempts; None without a payload or a webhook.

        An attempt that is in progress is not disturbed, and its outcome no longer counts.
        A job that has ended is delivering again.
        """
        return await self._execute(commands.ResendJob(job_id))


class OutboxStore(StorePart):
    """Messages that must arrive."""

    async def enqueue_message(
        self, kind: MessageKind, account_id: str, name: str, body: bytes, *, due_at: datetime
    ) -> bool:
        """Store a message; False if one of this kind, account and name is stored already.

        Raises KeyError if there is no such account.
        """
        return await self._execute(commands.EnqueueMessage(account_id, kind, name, body, due_at))

    async def claim_messages(
        self, kind: MessageKind, *, limit: int, lease_s: float
    ) -> list[OutboxMessage]:
        """Claim due messages for `lease_s`, those due longest first. Like `claim_jobs`.

        `first_tried_at` is the instant of the first claim.
        """
        return await self._execute(commands.ClaimMessages(kind, max(0, limit), lease_s))

    async def extend_message(self, message: OutboxMessage, *, lease_s: float) -> bool:
        """Let the claim end `lease_s` from now; False if it has ended or another claim has the message."""
        return await self._execute(commands.ExtendMessage(message, lease_s))

    async def message_attempted(
        self,
        message: OutboxMessage,
        *,
        sent: bool,
        due_at: datetime | None,
        error: str | None = None,
    ) -> bool:
        """Record the result of sending: sent, due again at `due_at`, or given up (None).

        False, and nothing is changed, if a later claim has the message or this one has had
        its outcome. Raises ValueError for a message that is both sent and due again.
        """
        check_sent(sent, due_at)
        return await self._execute(commands.MessageAttempted(message, sent, due_at, error))

    async def messages(
        self, kind: MessageKind, *, account_id: str | None = None, limit: int
    ) -> list[OutboxMessage]:
        """Return messages newest first, at most LISTED_MAX; None stands for any account."""
        return await self._execute(
            commands.ListMessages(kind, account_id, at_most(LISTED_MAX, limit))
        )


class Store(
    AccountStore,
    UsageStore,
    IdempotencyStore,
    JobStore,
    OutboxStore,
    ListStore,
    QueueStore,
    BounceStore,
    SessionStore,
    KeyUseStore,
    AuditStore,
    OversightStore,
    EgressStore,
    PauseStore,
    ConnectionLeases,
    FactStore,
    ToleranceStore,
):
    """Everything that the API keeps. Every method raises StoreUnavailable if the store cannot answer."""

    def derived_key(self, purpose: str) -> bytes:
        """32 octets for signatures, the same in every process of this store."""
        return self._cipher.derived_key(purpose)

    async def apply_retention(self, retention_days: dict[Tier, int]) -> None:
        """Delete rows past their retention, ended leases and old windows. Counters stay as they are.

        A row is kept for `retention_days` UTC days, its own day the first of them; a job and
        its attempts likewise, by the day the job ended. Messages that are sent or given up
        are deleted MESSAGES_KEPT_MAX after they were created.

        Instants written by a clock that was ahead are corrected: leases end LEASES_MAX from
        now at the latest, jobs that wait for their first attempt are due, others within
        WAITS_MAX; what was granted or revoked more than WINDOW ahead counts as of now.
        """
        await self._execute(commands.ApplyRetention(retention_days))

    async def check(self) -> datetime:
        """Write durably and return the store's clock. Raises StoreUnavailable.

        For health checks, the doctor and upkeep: a full disk is noticed only by writing.
        """
        return await self._execute(commands.CheckStore())
