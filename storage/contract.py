"""The Store protocol: what the API keeps, one transaction per method.

Three stores implement it (the same tests run on each, tests/storage/): memory, the
readable specification; SQLite, the default; PostgreSQL, for many machines.
A store that cannot answer raises StoreUnavailable within a second and recovers by
itself. What has returned is durable. The clock is read after the lock is acquired.
A cancelled caller leaves either a whole transaction or nothing. Once a transaction
has begun, its caller receives the result before the cancellation, so every
reservation is known to its caller.

Instants are aware datetimes in UTC. Arguments that end in `_s` are seconds.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Protocol, TypeVar

from mailprobe.storage.lease_allocation import LeaseRequest
from mailprobe.storage.records import (
    Account,
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
)

R = TypeVar("R")


WINDOW = timedelta(seconds=60)  # the sliding window; older units no longer count
REFUSALS_SINGLE_MAX = 20  # rows per key, minute and reason; the other refusals share one more row
ANSWER_OCTETS_MAX = 4 * 1024 * 1024  # 50 results with the longest evidence need far less
USAGE_ROWS_MAX = 10_000  # per call: key look-ups wait until the rows are read
SETTLED_KEPT = timedelta(days=7)  # a second settlement within this time is recognised
LISTED_MAX = 1_000  # jobs, attempts or messages per call
METER_SLOT_S = 10  # billable verifications within a slot go to the billing meter as one count
METER_REST_S = 2  # from the end of a slot until its count is due
MESSAGES_KEPT_MAX: dict[MessageKind, timedelta] = {
    "alert": timedelta(days=400),
    "meter": timedelta(days=40),
}  # alert: a yearly period; meter: Stripe accepts events of the last 35 days
# A clock that was ahead for a moment has written instants far in the future. apply_retention() limits
# them to the longest lease and the longest wait that the program itself ever sets.
LEASES_MAX = timedelta(minutes=5)  # the longest is an alert's, three minutes
WAITS_MAX = timedelta(
    hours=30
)  # between two attempts: a day plus 20 %, or what a receiver asked for
IDEMPOTENCY_KEPT_MAX = timedelta(days=1)  # the answer to a request with an idempotency key
RECEIVERS_KEPT = timedelta(days=1)  # after the last attempt: the longest wait between two attempts


class StoreUnavailable(Exception):
    """The store could not answer, and nothing was changed.

    One case stays open: if the disk stalls in mid-commit, the transaction may still
    be committed. A reservation then ends with its lease, and `settle` may be called
    again.
    """


class StoreBroken(StoreUnavailable):
    """The database is not usable by this program, and a retry will not help. One line for the operator."""


class KeyLimitReached(Exception):
    """The account already has its maximum number of standard keys."""


class KeyCreationTooFast(Exception):
    """The account created its maximum number of standard keys within the last minute.

    `asked_at` is the store's clock, `reset_at` when the next key may be created.
    """

    def __init__(self, asked_at: datetime, reset_at: datetime) -> None:
        super().__init__(reset_at)
        self.asked_at = asked_at
        self.reset_at = reset_at


class IdempotencyInProgress(Exception):
    """The first request with this idempotency key is still running."""


class IdempotencyKeyReused(Exception):
    """This idempotency key was used before with another request body."""


class Store(Protocol):
    """Everything that the API keeps. Every method raises StoreUnavailable if the store cannot answer."""

    # accounts and keys

    async def create_account(self, email: str, tier: Tier) -> Account:
        """Create an account with a new UUID and return it. E-mail addresses need not be unique."""
        ...

    async def account(self, account_id: str) -> Account | None:
        """Return the account, or None if there is none with this id."""
        ...

    async def accounts(self) -> list[Account]:
        """Return all accounts, oldest first."""
        ...

    async def account_of_customer(self, customer_id: str) -> Account | None:
        """Return the account with this customer id of the billing provider, or None."""
        ...

    async def change_account(self, account_id: str, **changes: Any) -> Account | None:
        """Set fields of Account by name and return the account; None if there is no such account.

        Raises TypeError for a name that is no field, or one that never changes
        (`id`, `created_at`), ValueError for a `customer_id` that another account has.
        """
        ...

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
    ) -> Key:
        """Store a key by its SHA-256 (hex digits) and return it without its secret.

        `keys_max` limits the account's active standard keys, `a_minute` those created
        within the last minute; None is no limit. Provisioning keys are neither counted nor
        limited. With `idempotency`, the answer that `answer` makes from the key is stored in
        the same transaction: like `first` in `settle`. Raises KeyLimitReached,
        KeyCreationTooFast, KeyError if there is no such account, ValueError for a hash that
        is stored already.
        """
        ...

    async def keys(self, account_id: str) -> list[Key]:
        """Return the account's active keys of both kinds, oldest first."""
        ...

    async def revoke_key(self, account_id: str | None, key_id: str) -> bool:
        """Revoke a key permanently; False if the account (None: any) has no such active key."""
        ...

    async def caller(self, sha256: str) -> Caller | None:
        """Return the key with this SHA-256 and its account; None for an unknown or a revoked key."""
        ...

    # usage

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
        ...

    async def extend(self, reservation: Reservation, *, lease_s: float) -> None:
        """Let the lease end `lease_s` from now; does nothing if it has ended or was settled."""
        ...

    async def settle(
        self,
        reservation: Reservation,
        rows: Sequence[UsageRow],
        *,
        part: int = 0,
        ends: bool = True,
        metered: bool = False,
        first: FirstAnswer | None = None,
    ) -> None:
        """Log what was used, whole or in parts; the part with `ends` gives back the unused units.

        Each numbered part of a reservation is logged once: a second call with the same part
        changes nothing, and parts may come in any order. The units that a part uses are no
        longer reserved. Rows are still counted if the lease has ended. Each row counts at
        its own instant: in its UTC day and month and its billing period. With `metered`,
        the billable rows are added to the meter's message in the same transaction, unless
        the account's tier is free.

        `first` is the answer to a request with an idempotency key, stored in the same
        transaction. Raises IdempotencyInProgress, and changes nothing, if the lease of its
        idempotency record has ended and another request has begun since.

        A meter's message is named after the slot that it counts: the Unix time in seconds
        at which the slot of METER_SLOT_S begins that contains the instant of settlement. It
        is due METER_REST_S after the end of its slot. A claimed message is closed: what a
        clock that was set back adds later goes to the account's next open slot.
        """
        ...

    async def spend(
        self,
        caller: Caller,
        rows: Sequence[UsageRow],
        check_limits: Callable[[Ledger], R | None],
        *,
        metered: bool = False,
        first: FirstAnswer | None = None,
    ) -> R | None:
        """Reserve the rows' units and settle them in one transaction; returns the refusal or None.

        For results that are known before the limits are checked: no reservation can be left
        behind, and it costs half as much as the two calls. `first` as in `settle`, stored
        only if the units are granted. Raises ValueError for rows of less than one unit.
        """
        ...

    async def log_refusal(self, caller: Caller, row: UsageRow) -> None:
        """Log a refused request: one row each while they are few, then one row per minute.

        It counts towards no limit, whatever the row's `units` say.
        """
        ...

    async def ledger(self, caller: Caller) -> Ledger:
        """Return the caller's ledger for display; nothing is changed."""
        ...

    async def days(self, account_id: str, first: date, last: date) -> list[DayCount]:
        """Return the billable verifications per UTC day from `first` to `last`, both included.

        Oldest first; days without any are left out.
        """
        ...

    async def usage(self, account_id: str, *, limit: int) -> list[UsageRow]:
        """Return the rows still within retention, newest first; of one instant the last logged first.

        Refusals are included. At most USAGE_ROWS_MAX rows, however large `limit` is.
        """
        ...

    # idempotency

    async def begin_idempotent(
        self, account_id: str, key: str, body_sha256: str, *, keep_s: float, lease_s: float
    ) -> Answered | IdempotencyRecord:
        """Begin a request with an idempotency key.

        Returns a record if this request is the first, else the answer to the first. Raises
        IdempotencyInProgress, IdempotencyKeyReused (which takes precedence), and KeyError
        if there is no such account. A first request that died is forgotten after `lease_s`,
        an answer `keep_s` after its request began.
        """
        ...

    async def finish_idempotent(
        self, idempotency: IdempotencyRecord, answer: Answered | None
    ) -> None:
        """Store the answer for later requests, or (None) free the key for another request.

        For answers that come with no other change. The first answer stays: nothing is
        changed if another request has begun since or an answer is stored. A body of more
        than ANSWER_OCTETS_MAX is not stored; the answer's status is.
        """
        ...

    # jobs

    async def create_job(
        self,
        caller: Caller,
        order: JobOrder,
        check_limits: Callable[[Ledger], R | None],
        *,
        first: FirstAnswer | None = None,
    ) -> Job | R:
        """Reserve one unit and store the job, in one transaction; like `reserve`, without a lease.

        The reservation lasts as long as the job is pending. `first` as in `spend`. Raises
        ValueError for an id that is stored already.
        """
        ...

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
        (mailprobe.storage.claim_order). Over all processes at most `each_max` claims of one
        account (verify) or of one account's host (deliver), and `account_max` of one
        account, are active at a time; one of a host whose last FAILING_AFTER attempts
        failed. An account or a host at its limit does not delay the others. If nothing is
        due, nothing is written. A claim ends with its outcome: a second outcome for it
        changes nothing.
        """
        ...

    async def extend_claim(self, claim: Claim, *, lease_s: float) -> bool:
        """Let the claim end `lease_s` from now; False if it has ended or another claim has the job."""
        ...

    async def job_verified(
        self, claim: Claim, row: UsageRow, payload: bytes, *, metered: bool = False
    ) -> bool:
        """Count the verification, end the reservation and make the callback due, all or nothing.

        `payload` is the callback's body. False, and nothing is changed, if a later claim has
        the job, this one has had its outcome, or the job is not pending. A claim whose lease
        has ended still counts if no other claim followed it.
        """
        ...

    async def job_attempted(
        self, claim: Claim, attempt: Attempt, *, state: JobState, due_at: datetime | None
    ) -> bool:
        """Log the callback attempt; the job is due again at `due_at`, or it ends (None).

        False as with `job_verified`, for a job that is not delivering. Raises
        ValueError for `pending`, for `delivering` without `due_at`, for an end with it.
        """
        ...

    async def abandon_job(self, claim: Claim) -> bool:
        """End a pending job as failed: not counted, its unit given back, no callback.

        False as with `job_verified`.
        """
        ...

    async def job(self, job_id: str) -> Job | None:
        """Return the job, or None if there is none with this id."""
        ...

    async def jobs(
        self, *, account_id: str | None = None, state: JobState | None = None, limit: int
    ) -> list[Job]:
        """Return jobs newest first, at most LISTED_MAX; None stands for any account or state."""
        ...

    async def attempts(self, job_id: str) -> list[Attempt]:
        """Return the job's attempts in the order they were logged, at most the last LISTED_MAX."""
        ...

    async def resend_job(self, job_id: str) -> Job | None:
        """Make the callback due at once, with all its attempts available; None without a payload.

        An attempt that is in progress is not disturbed, and its outcome no longer counts.
        A job that has ended is delivering again.
        """
        ...

    # the outbox

    async def enqueue_message(
        self, kind: MessageKind, account_id: str, name: str, body: bytes, *, due_at: datetime
    ) -> bool:
        """Store a message; False if one of this kind, account and name is stored already.

        Raises KeyError if there is no such account.
        """
        ...

    async def claim_messages(
        self, kind: MessageKind, *, limit: int, lease_s: float
    ) -> list[OutboxMessage]:
        """Claim due messages for `lease_s`, those due longest first. Like `claim_jobs`.

        `first_tried_at` is the instant of the first claim.
        """
        ...

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
        ...

    async def messages(
        self, kind: MessageKind, *, account_id: str | None = None, limit: int
    ) -> list[OutboxMessage]:
        """Return messages newest first, at most LISTED_MAX; None stands for any account."""
        ...

    # connection leases

    async def lease_connections(
        self, holder: str, asked: Mapping[str, LeaseRequest], *, limit: int, lease_s: float
    ) -> Mapping[str, int]:
        """Lease connections to these IP addresses for `lease_s`; returns the number per address.

        Over all holders at most `limit` connections to an address are leased at a time. The
        holder keeps what it holds, if its lease has not ended, and gets at most one more per
        call: holders without a connection come first. A holder that asked and got none stays
        in the queue as long as it asks again within WAITING_S.
        """
        ...

    async def revocable_connections(self, holder: str, *, limit: int) -> Mapping[str, int]:
        """Return how many connections per address the holder must give up for waiting holders."""
        ...

    async def return_connections(self, holder: str) -> None:
        """Release all leases of the holder, and its places in the queues."""
        ...

    # upkeep

    async def apply_retention(self, retention_days: dict[Tier, int]) -> None:
        """Delete rows past their retention, ended leases and old windows. Counters stay as they are.

        A row is kept for `retention_days` UTC days, its own day the first of them; a job and
        its attempts likewise, by the day the job ended. Messages that are sent or given up
        are deleted MESSAGES_KEPT_MAX after they were created.

        Instants written by a clock that was ahead are corrected: leases end LEASES_MAX from
        now at the latest, jobs that wait for their first attempt are due, others within
        WAITS_MAX; what was granted or revoked more than WINDOW ahead counts as of now.
        """
        ...

    async def check(self) -> datetime:
        """Write durably and return the store's clock. Raises StoreUnavailable.

        For health checks, the doctor and upkeep: a full disk is noticed only by writing.
        """
        ...
