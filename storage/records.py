"""What is remembered, as frozen values; no SQL, no clock.

Instants are aware datetimes in UTC. Money is whole micro-euros (1 EUR =
1,000,000). A unit is one verification asked for: it weighs on the rate limit
and the free quota. A billable verification is one whose result was returned
after layer 1 passed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, overload

Tier = Literal["free", "builder", "scale"]
KeyKind = Literal["standard", "provisioning"]
JobState = Literal["pending", "delivering", "done", "failed"]
Work = Literal["verify", "deliver"]  # what is to be done with a job
MessageKind = Literal["alert", "meter"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Account:
    """Whoever asks and pays."""

    id: str  # uuid
    email: str
    tier: Tier
    created_at: datetime
    soft_cap_micros: int | None = None
    hard_cap_micros: int | None = None
    alerts: bool = True
    # the subscription, as the billing provider tells it; all None without one
    subscription_status: str | None = None
    current_period_start: datetime | None = None
    current_period_end: datetime | None = None
    cancel_at_period_end: bool | None = None
    canceled_at: datetime | None = None
    cancel_at: datetime | None = None
    trial_start: datetime | None = None
    trial_end: datetime | None = None
    billing_cycle_anchor: datetime | None = None
    customer_id: str | None = None  # who the account is to the billing provider
    customer_generation: int = 0  # customers before this one, deleted by now


@dataclass(frozen=True, slots=True)
class Key:
    """A key without its secret: that is nowhere but with its holder."""

    id: str  # uuid
    account_id: str
    kind: KeyKind
    label: str | None
    prefix: str  # the first 12 characters, to show
    created_at: datetime
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a key that is in force, and its account as it is now."""

    account: Account
    key: Key


class Window(Sequence[tuple[datetime, int]]):
    """Instants with their units, oldest first, unfolded only where somebody looks.

    A key may have used a thousand units in its minute, and is weighed at each
    request: making a thousand instants took 1 ms of the store's time, ten times
    all the rest.
    """

    __slots__ = ("_counts", "_instants", "units")

    def __init__(self, instants: str, counts: str, units: int) -> None:
        """Both as numbers with commas between: microseconds since 1970, and units."""
        self._instants = instants
        self._counts = counts
        self.units = units

    def __iter__(self) -> Iterator[tuple[datetime, int]]:
        instants, counts = self._instants.split(","), self._counts.split(",")
        for at, count in zip(instants, counts, strict=True) if self._counts else ():
            yield EPOCH + timedelta(microseconds=int(at)), int(count)

    def __len__(self) -> int:
        return self._counts.count(",") + 1 if self._counts else 0

    @overload
    def __getitem__(self, place: int) -> tuple[datetime, int]: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[tuple[datetime, int], ...]: ...

    def __getitem__(self, place: int | slice) -> Any:
        return tuple(self)[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # equal to tuples, which hash otherwise


@dataclass(frozen=True, slots=True)
class Ledger:
    """What weighing needs to know of a caller, read in one transaction after the lock is held.

    `window` holds the units of the key's last 60 seconds with their instants,
    oldest first; those granted and not yet settled are among them. A grant that seems
    to come later than now was made by a clock that was ahead, and counts as made now.
    """

    asked_at: datetime
    window: Sequence[tuple[datetime, int]]
    month_units: int  # of the account's UTC month, those reserved included: the free quota
    month_billable: int  # of the account's UTC month, settled
    period_start: datetime  # of the billing period: the subscription's, else the UTC month
    period_end: datetime
    period_billable: int  # settled
    reserved: int  # units granted to the account and not yet settled: billable at worst
    keys: int = 1  # standard ones of the account that were in force within the window
    account_window: Sequence[tuple[datetime, int]] = field(
        default=(), compare=False
    )  # of all these
    undelivered: int = 0  # jobs of the account whose callback has not ended, pending ones too

    @property
    def window_units(self) -> int:
        """What the window holds in all; cheaper than adding it up where it is long."""
        if isinstance(self.window, Window):
            return self.window.units
        return sum(units for _, units in self.window)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Units that were granted and are under way; settled, or given back when its lease ends."""

    id: str
    caller: Caller
    units: int
    reserved_at: datetime


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One verification, or one request that was refused or malformed, as it is logged.

    `failed_check` is the result's, or `invalid_request`, `rate_limit_exceeded`,
    `monthly_quota_exceeded`. `units` weigh on the free quota (0 for a 429),
    `billable` on the bill. In a flood of refusals one row stands for many: `times`.
    """

    at: datetime
    operation: str  # "verify", "batch", "stream"
    status: str | None
    failed_check: str | None
    units: int
    billable: bool
    latency_ms: int
    times: int = 1


@dataclass(frozen=True, slots=True)
class DayCount:
    """Billable verifications of one UTC day."""

    day: date
    calls: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer that an idempotency key got the first time, byte for byte.

    `body` is None where the answer was given and is not kept: nothing is done again.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | None


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """The first request with an idempotency key, as long as it runs.

    The end of its lease tells it from another one, which may begin when that has come.
    """

    account_id: str
    key: str
    lease_until: datetime


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    """What a request that runs once is answered, to be kept with what it has done."""

    once: IdempotencyRecord
    answer: Answered


# jobs


@dataclass(frozen=True, slots=True)
class JobOrder:
    """What a job is to do: verify, then call back. The secret signs the callback."""

    id: str  # uuid
    email: str
    webhook: str  # URL
    host: str  # whose receiver it is, and the URL's host and port: callbacks are bounded by it
    secret: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A verification that was promised. It ends as done or failed, with its callback.

    pending: to be verified. delivering: verified, counted, `payload` to be delivered.
    """

    id: str
    account_id: str
    email: str
    webhook: str
    host: str
    state: JobState
    created_at: datetime
    due_at: datetime | None  # when it is to be worked on next; None once it has ended
    tries: int = 0  # callbacks so far; a resend begins anew
    payload: bytes | None = None  # the callback's bytes, the same at every try
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that one worker has for a while. A later claim of it has a higher fence."""

    job: Job
    caller: Caller  # the key may have been revoked since
    secret: str | None
    fence: int
    sealed: bool = False  # the secret cannot be read: it was sealed with another key


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to deliver a callback, and what came of it: a status, or why there is none."""

    number: int  # from 1
    at: datetime
    took_ms: int
    status: int | None
    error: str | None = None


# the outbox


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """Something that must reach somebody outside: an alert, or a count for the billing meter.

    Its name is unique within its account and kind, for as long as it is kept.
    """

    id: str
    kind: MessageKind
    account_id: str
    name: str
    body: bytes
    count: int  # a meter's: billable verifications
    made_at: datetime
    due_at: datetime | None  # None: sent, or given up
    tries: int = 0
    fence: int = 0
    first_tried_at: datetime | None = None
    sent_at: datetime | None = None
    error: str | None = None  # of the last try


def message_id(kind: MessageKind, account_id: str, name: str) -> str:
    """The same in every store and for good, so that it may be told outside: who gets it twice knows."""
    return f"{kind} {account_id} {name}"
