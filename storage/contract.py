"""The Store: what the API needs remembered, one transaction a method.

Three stores keep one contract (tests/storage/): memory, the
readable specification; SQLite, the default; PostgreSQL, for many machines.
A store that can't answer raises StoreUnavailable within a second and heals by
itself. What has returned is durable. The clock is read after the lock is held.
A caller that is cancelled leaves either the whole of a transaction or nothing
of it; once a transaction has begun, its caller gets the result before it learns
that it was cancelled, so no reservation is ever without somebody who knows it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
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


WINDOW = timedelta(seconds=60)  # the sliding window; units that old weigh no more
REFUSALS_SINGLE_MAX = 20  # of a key, a minute and a reason: a row each; then one row for the rest
ANSWER_OCTETS_MAX = 4 * 1024 * 1024  # 50 results with the longest evidence are far below
USAGE_ROWS_MAX = 10_000  # shown at a time: look-ups of keys wait behind them
CHANGEABLE = {field.name for field in fields(Account)} - {"id", "created_at"}
SETTLED_KEPT = timedelta(days=7)  # a reservation settled again within it is recognised
LISTED_MAX = 1_000  # jobs, attempts or letters shown at a time
METER_SLOT_S = 10  # billable verifications of so long go to the billing meter as one count
METER_REST_S = 2  # so long after its slot a count leaves
MESSAGES_KEPT_MAX = {
    "alert": timedelta(days=400),
    "meter": timedelta(days=40),
}  # a year's period; Stripe takes 35 days
# A clock that was ahead for a moment has written instants that lie far ahead; tidy() brings them back
# to the longest that anybody plans. Leases longer than that are nobody's.
LEASES_MAX = timedelta(minutes=5)  # the longest is an alert's, three minutes
WAITS_MAX = timedelta(hours=30)  # between two tries: a day, 20 % more, or what a receiver asked for
IDEMPOTENCY_KEPT_MAX = timedelta(days=1)  # an answer of a request with an idempotency key
RECEIVERS_KEPT = timedelta(days=1)  # after their last try, as the longest wait between two is


class StoreUnavailable(Exception):
    """The store could not be asked just now; nothing was changed.

    One case is open: where the disk itself stalls in mid-commit, what was asked
    may yet come true. A reservation then ends with its lease, and `settle` may
    be called again.
    """


class StoreBroken(StoreUnavailable):
    """What is there is no store of ours, and waiting will not heal it: one line for the operator."""


class KeyLimitReached(Exception):
    """The account has as many standard keys as it may have."""


class KeyCreationTooFast(Exception):
    """The account has made as many standard keys in the last minute as it may make."""

    def __init__(self, asked_at: datetime, reset_at: datetime) -> None:
        super().__init__(reset_at)
        self.asked_at = asked_at
        self.reset_at = reset_at


class IdempotencyInProgress(Exception):
    """The first request with this idempotency key is still running."""


class IdempotencyKeyReused(Exception):
    """This idempotency key came with another body before."""


def next_key_at(made: Sequence[datetime], a_minute: int) -> datetime | None:
    """When a key may be made, of those made in the last minute; None: at once."""
    if len(made) < a_minute:
        return None
    return sorted(made)[len(made) - a_minute] + WINDOW


def at_most(most: int, limit: int) -> int:
    """What is asked for, within its bound; nobody is shown fewer than none."""
    return max(0, min(limit, most))


def check_units(units: int) -> None:
    if units < 1:
        raise ValueError(f"{units} units cannot be reserved")


def units_of(rows: Sequence[UsageRow]) -> int:
    return sum(row.units for row in rows)


def check_changes(changes: dict[str, Any]) -> None:
    fixed = changes.keys() - CHANGEABLE
    if fixed:
        raise TypeError(f"an account has no {', '.join(sorted(fixed))} to change")


def as_kept(answer: Answered) -> Answered:
    """Without its body where that is too large to be kept."""
    if answer.body is not None and len(answer.body) > ANSWER_OCTETS_MAX:
        return replace(answer, body=None)
    return answer


def check_sent(sent: bool, due_at: datetime | None) -> None:
    if sent and due_at is not None:
        raise ValueError("a letter that was sent is not due again")


def check_outcome(state: JobState, due_at: datetime | None) -> None:
    if state == "pending" or (state == "delivering") != (due_at is not None):
        raise ValueError(f"a job that was tried cannot be {state} and due at {due_at}")


class Store(Protocol):
    """Everything that is remembered."""

    # accounts and keys

    async def create_account(self, email: str, tier: Tier) -> Account: ...

    async def account(self, account_id: str) -> Account | None: ...

    async def accounts(self) -> list[Account]: ...

    async def account_of_customer(self, customer_id: str) -> Account | None:
        """The account that the billing provider knows by this name."""
        ...

    async def change_account(self, account_id: str, **changes: Any) -> Account | None:
        """Set fields of Account by name; None where there is no such account.

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
        a_minute: int | None = None,
        idempotency: IdempotencyRecord | None = None,
        answer: Callable[[Key], Answered] | None = None,
    ) -> Key:
        """Keep a key's hash. `keys_max` bounds the account's active standard keys,
        `a_minute` those that were made within the last minute.

        Provisioning keys are neither counted nor bounded. With `idempotency` its
        answer, which `answer` makes of the key, is kept in the same transaction: as
        `first` in `settle`. Raises KeyLimitReached, KeysTooFast, KeyError
        where there is no such account, ValueError for a hash that is kept already.
        """
        ...

    async def keys(self, account_id: str) -> list[Key]:
        """The active keys of both kinds, oldest first."""
        ...

    async def revoke_key(self, account_id: str | None, key_id: str) -> bool:
        """Revoke for good; False where the account (None: any) has no such active key."""
        ...

    async def caller(self, sha256: str) -> Caller | None:
        """Whose key this hash is; None for an unknown or a revoked one."""
        ...

    # metering

    async def reserve(
        self,
        caller: Caller,
        units: int,
        check_limits: Callable[[Ledger], R | None],
        *,
        lease_s: float,
    ) -> Reservation | R:
        """Read the ledger, weigh, and where weigh() gives None grant the units, in one transaction.

        weigh() may run in another thread while the lock is held: pure and quick.
        What it raises, this raises, and nothing is granted. The ledger's window may
        be looked at while weigh() runs, and no longer. A reservation that
        nobody settles or extends within `lease_s` is given back: its units leave
        quota and `reserved`. The sliding window keeps what was granted, used or not.
        Raises ValueError for less than one unit.
        """
        ...

    async def extend(self, reservation: Reservation, *, lease_s: float) -> None:
        """Let the lease end `lease_s` from now; one that has ended or was settled stays so."""
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
        """Log what was used, whole or in parts; the part that `ends` gives back what was not used.

        Each part of a reservation, by its number, is logged once: a second call
        with it changes nothing, and parts may come in any order. What a part uses
        is no longer reserved. Rows of a reservation whose lease had ended are
        still counted. Each row counts where its instant lies: its UTC day and
        month, its billing period. Where `metered`, what is billable is posted to
        the meter in the same transaction, unless the account's tier is free.

        `first` is the answer of a request with an idempotency key: it is kept in the
        same transaction. Raises IdempotencyInProgress, and nothing is changed, where
        the lease of its Once has ended and another request has begun since.

        A meter's letter is named by the slot that it counts: the seconds since
        1970 at which the slot of METER_SLOT_S begins that holds the instant of the
        settlement. It is due METER_REST_S after the slot's end. One that has been
        claimed is closed: what comes after it, by a clock set back, goes to the
        account's next slot that is not.
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
        """Reserve the rows' units and settle with them, in one transaction; None where granted.

        `first` as in `settle`, and kept only where it is granted. For results that are known before they are weighed: no reservation is left
        by whoever dies in between, and it costs half of the two. Raises ValueError
        for rows of less than one unit.
        """
        ...

    async def log_refusal(self, caller: Caller, row: UsageRow) -> None:
        """Log a refused request: a row each while they are few, one a minute in a flood.

        It weighs on nothing, whatever the row's `units` say.
        """
        ...

    async def ledger(self, caller: Caller) -> Ledger:
        """The ledger as it is, to show; nothing is changed."""
        ...

    async def days(self, account_id: str, first: date, last: date) -> list[DayCount]:
        """Billable verifications of each UTC day, zeros left out, oldest first."""
        ...

    async def usage(self, account_id: str, *, limit: int) -> list[UsageRow]:
        """The rows that retention has left, newest first; of one instant the last logged first.

        Refusals are among them. At most USAGE_ROWS_MAX, however many are asked for.
        """
        ...

    # idempotency

    async def begin_idempotent(
        self, account_id: str, key: str, body_sha256: str, *, keep_s: float, lease_s: float
    ) -> Answered | IdempotencyRecord:
        """A Once: go on, this is the first; else the answer that was given.

        Raises IdempotencyInProgress, IdempotencyKeyReused (which wins), and KeyError
        where there is no such account. A first request that died is forgotten
        after `lease_s`, an answer `keep_s` after its request began.
        """
        ...

    async def finish_idempotent(
        self, idempotency: IdempotencyRecord, answer: Answered | None
    ) -> None:
        """Keep the answer for later requests, or (None) let the key be used again.

        For answers with which nothing was counted or made. The first answer stays:
        nothing is changed where another request has begun since or there is an answer.
        Of a body of more than ANSWER_OCTETS_MAX is kept that it was given.
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
        """Reserve one unit and keep the job, in one transaction; as `reserve` but for the lease.

        `first` as in `spend`. The reservation lives as long as the job is pending. Raises ValueError for
        an id that is kept already.
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
        """Take due jobs for `lease_s`: pending ones to verify, delivering ones to deliver.

        Accounts come in turn, the one with the fewest claims in force first; of an
        account those due longest come first, of one instant the first that was made;
        at most `limit` in all (mailprobe.storage.claim_order). At most `each_max` claims of one
        account (verify) or of one account's host (deliver), and `account_max` of one
        account, are in force at a time, over all processes; of a host whose last
        FAILING_AFTER tries failed one. An account or a host that is over its bound
        keeps no other waiting. Where nothing is due, nothing is written.
        A claim is spent by its outcome: what is told with it again changes nothing.
        """
        ...

    async def extend_claim(self, claim: Claim, *, lease_s: float) -> bool:
        """Have it for `lease_s` from now; False where it has ended or somebody else has the job."""
        ...

    async def job_verified(
        self, claim: Claim, row: UsageRow, payload: bytes, *, metered: bool = False
    ) -> bool:
        """Count the verification, end the reservation and make the callback due, all or nothing.

        False, and nothing is changed, where a later claim has the job, this one is
        spent, or the job is not pending. A claim whose lease has ended and that
        nobody took over still counts.
        """
        ...

    async def job_attempted(
        self, claim: Claim, attempt: Attempt, *, state: JobState, due_at: datetime | None
    ) -> bool:
        """Log the attempt to call back; `delivering` with `due_at`, or the job's end without.

        False as with `job_verified`, for a job that is not delivering. Raises
        ValueError for `pending`, for `delivering` without `due_at`, for an end with it.
        """
        ...

    async def abandon_job(self, claim: Claim) -> bool:
        """End a pending job as failed: not counted, its unit given back, nobody called.

        False as with `job_verified`.
        """
        ...

    async def job(self, job_id: str) -> Job | None: ...

    async def jobs(
        self, *, account_id: str | None = None, state: JobState | None = None, limit: int
    ) -> list[Job]:
        """Newest first, at most LISTED_MAX; None stands for any."""
        ...

    async def attempts(self, job_id: str) -> list[Attempt]:
        """In the order they were logged, at most the last LISTED_MAX."""
        ...

    async def resend_job(self, job_id: str) -> Job | None:
        """Make the callback due at once, with all its tries before it; None without a payload.

        A try that is under way is not disturbed, and its outcome no longer counts.
        A job that has ended is delivering again.
        """
        ...

    # the outbox

    async def enqueue_message(
        self, kind: MessageKind, account_id: str, name: str, body: bytes, *, due_at: datetime
    ) -> bool:
        """Keep a letter; False where one of this kind, account and name is kept already.

        Raises KeyError where there is no such account.
        """
        ...

    async def claim_messages(
        self, kind: MessageKind, *, limit: int, lease_s: float
    ) -> list[OutboxMessage]:
        """Take due letters for `lease_s`, those due longest first. As `claim_jobs`.

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
        """Tell what came of it: sent; or not, and due again at `due_at`, or (None) given up.

        False, and nothing is changed, where a later claim has the letter or this one
        is spent. Raises ValueError for one that is sent and due again.
        """
        ...

    async def messages(
        self, kind: MessageKind, *, account_id: str | None = None, limit: int
    ) -> list[OutboxMessage]:
        """Newest first, at most LISTED_MAX."""
        ...

    # seats

    async def lease_connections(
        self, holder: str, asked: Mapping[str, LeaseRequest], *, limit: int, lease_s: float
    ) -> Mapping[str, int]:
        """Lease connections to these IP addresses for `lease_s`; how many there are of each now.

        Over all holders no more than `limit` of an address are leased at a time. The
        holder keeps what it holds on to, where its lease has not ended, and gets one
        more at most: seats go in turn, first to holders that have none. Who wants one
        and gets none stands in the queue as long as it asks again within WAITING_S.
        """
        ...

    async def revocable_connections(self, holder: str, *, limit: int) -> Mapping[str, int]:
        """How many of its seats are to be given up, for holders that wait and have none."""
        ...

    async def return_connections(self, holder: str) -> None:
        """The holder has closed every connection, and waits for none."""
        ...

    # upkeep

    async def apply_retention(self, retention_days: dict[Tier, int]) -> None:
        """Drop rows past their retention, ended leases, old windows. Counts stay as they are.

        A row is kept for `retention_days` UTC days, its own the first of them;
        a job with its attempts the same, by the day it ended. Letters that are sent
        or given up go LETTERS_KEPT after they were made.

        What a clock wrote that was ahead is brought back: leases end LEASES_MAX from now
        at the latest, jobs that wait for their first try are due, and others within WAITS_MAX;
        what was granted and revoked more than WINDOW ahead was granted and revoked now.
        """
        ...

    async def check(self) -> datetime:
        """Write something, durably; the store's clock. Raises StoreUnavailable.

        For health, the doctor and the upkeep: a disk that is full shows only in writing.
        """
        ...
