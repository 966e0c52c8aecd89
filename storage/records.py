"""The records of the stores, as frozen values; no SQL, no clock.

Instants are aware datetimes in UTC. Money is whole micro-euros (1 EUR =
1,000,000). A unit is one requested verification: it counts towards the rate limit
and the free quota. A billable verification is one whose result was returned
after layer 1 passed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Literal

from msgspec import Struct

SoldTier = Literal["free", "builder", "scale"]  # those that answers name
# `own` is an operator's own account, without limits and prices; answers call it `scale`.
Tier = Literal["free", "builder", "scale", "own"]
# The two kinds of forms are publishable: they stand in web pages.
# A `person` acts by a key that nobody knows (mailprobe.storage.people).
KeyKind = Literal["standard", "test", "provisioning", "form", "form_test", "person"]
JobState = Literal["pending", "delivering", "done", "failed"]
Work = Literal["verify", "deliver"]  # the next step of a job
MessageKind = Literal["alert", "meter"]
ActorKind = Literal["key", "session", "command_line", "billing", "service"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MARKS = 1_000_000  # of idempotent requests: the microseconds of a second


class Account(Struct, frozen=True):
    """A customer's account with its tier, spending caps and subscription."""

    id: str  # uuid
    email: str
    tier: Tier
    created_at: datetime
    soft_cap_micros: int | None = None
    hard_cap_micros: int | None = None
    alerts: bool = True
    # the subscription, as the billing provider reports it; all None without one
    subscription_status: str | None = None
    current_period_start: datetime | None = None
    current_period_end: datetime | None = None
    cancel_at_period_end: bool | None = None
    canceled_at: datetime | None = None
    cancel_at: datetime | None = None
    trial_start: datetime | None = None
    trial_end: datetime | None = None
    billing_cycle_anchor: datetime | None = None
    customer_id: str | None = None  # the billing provider's id of the account
    customer_generation: int = 0  # earlier customers of the provider, since deleted


class Key(Struct, frozen=True):
    """An API key without its secret, which only the client has."""

    id: str  # uuid
    account_id: str
    kind: KeyKind
    label: str | None
    prefix: str  # the first 12 characters, for display
    created_at: datetime
    revoked_at: datetime | None = None
    origins: tuple[str, ...] = ()  # of a publishable key: the sites whose pages may use it
    rate_per_min: int | None = None  # of a publishable key: units a minute
    made_by: ActorKind | None = None  # None: before this was recorded
    used_at: datetime | None = None  # the last use, to KEY_USE_EVERY; None: none is known

    @property
    def is_test(self) -> bool:
        """Is it for a client's tests? It then sends nothing to a mail host and costs nothing."""
        return self.kind in ("test", "form_test")

    @property
    def signs_in(self) -> bool:
        """Does a browser act by it, for a person or for whoever has the provisioning key?"""
        return self.kind in ("provisioning", "person")

    @property
    def is_publishable(self) -> bool:
        """May it stand in a web page? It is then good for the checks of forms alone."""
        return self.kind in ("form", "form_test")


class Caller(Struct, frozen=True):
    """An authenticated client: an active key and the current state of its account."""

    account: Account
    key: Key

    def may_see(self, account_id: str, *, is_test: bool) -> bool:
        """Whether a list or a job of this account and kind is the caller's.

        A browser that is signed in sees both kinds.
        """
        if account_id != self.account.id:
            return False
        return self.key.signs_in or self.key.is_test == is_test


class Window(Iterable[tuple[datetime, int]]):
    """The (instant, units), oldest first, decoded only when it is read.

    A key may have used a thousand units in its minute, and its limits are checked at each
    request: decoding a thousand instants took 1 ms of the store's time, ten times
    everything else. `units` is the sum of all units.
    """

    __slots__ = ("_counts", "_instants", "units")

    def __init__(self, instants: str, counts: str, units: int) -> None:
        """Both as comma-separated numbers: microseconds since 1970, and units."""
        self._instants = instants
        self._counts = counts
        self.units = units

    def __iter__(self) -> Iterator[tuple[datetime, int]]:
        instants, counts = self._instants.split(","), self._counts.split(",")
        for at, count in zip(instants, counts, strict=True) if self._counts else ():
            yield EPOCH + timedelta(microseconds=int(at)), int(count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Iterable) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # equal to tuples, which hash otherwise


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the limit check knows of a caller, read in one transaction under the lock.

    `window` holds the units of the key's last 60 seconds with their instants,
    oldest first, including those granted and not yet settled. A grant that seems later
    than now was made by a clock that was ahead, and counts as made now.
    """

    asked_at: datetime
    window: Iterable[tuple[datetime, int]]
    month_units: int  # in the account's UTC month, including reserved ones: the free quota
    month_billable: int  # in the account's UTC month, settled
    period_start: datetime  # of the billing period: the subscription's, else the UTC month
    period_end: datetime
    period_billable: int  # settled
    reserved: int  # units granted to the account and not yet settled; all may become billable
    keys: int = 1  # standard keys of the account that were active within the window
    # Of all these keys.
    account_window: Iterable[tuple[datetime, int]] = field(default=(), compare=False)
    undelivered: int = 0  # jobs of the account whose callback is not done, including pending ones

    @property
    def window_units(self) -> int:
        """The sum of the window's units, without decoding a long window."""
        if isinstance(self.window, Window):
            return self.window.units
        return sum(units for _, units in self.window)


class Reservation(Struct, frozen=True):
    """Granted units that are in use: settled, or given back when the lease ends."""

    id: str
    caller: Caller
    units: int


DayLight = Literal["green", "yellow", "red"]
DAY_LIGHTS: tuple[DayLight, ...] = ("green", "yellow", "red")


class UsageRow(Struct, frozen=True):
    """One logged verification, or one request that was refused or malformed.

    `failed_check` is the result's, or `invalid_request`, `rate_limit_exceeded`,
    `monthly_quota_exceeded`. `units` count towards the free quota (0 for a 429),
    `billable` towards the invoice. One row may stand for many refusals: `times`.
    """

    at: datetime
    operation: str  # "verify", "batch", "stream"
    status: str | None
    failed_check: str | None
    units: int
    billable: bool
    latency_ms: int
    times: int = 1
    light: DayLight | None = None  # of the result, counted by day; not kept with the row


def units_of(rows: Sequence[UsageRow]) -> int:
    return sum(row.units for row in rows)


class DayCount(Struct, frozen=True):
    """Billable verifications of one UTC day, and its results by light, billable or not."""

    day: date
    calls: int
    green: int = 0
    yellow: int = 0
    red: int = 0


class Answered(Struct, frozen=True):
    """The first answer to an idempotency key, byte for byte.

    `body` is None if an answer was given but not stored: the request is still not repeated.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | None


class IdempotencyRecord(Struct, frozen=True):
    """The first request with an idempotency key, while it runs.

    `lease_until` distinguishes it from a later request, which may begin once it has passed.
    Its microseconds are the request's mark.
    """

    account_id: str
    key: str
    lease_until: datetime

    @classmethod
    def marked(cls, account_id: str, key: str, mark: int) -> "IdempotencyRecord":
        """The record of a request that does not know whether it began; only to free the key."""
        return cls(account_id, key, EPOCH.replace(microsecond=mark))


class FirstAnswer(Struct, frozen=True):
    """The answer to a request with an idempotency key, stored together with its effects."""

    once: IdempotencyRecord
    answer: Answered


# jobs


class JobOrder(Struct, frozen=True):
    """What a job does: verify, then call back if there is a webhook. The secret signs the callback.

    With `payload` the result is known already, as for a test key: nothing is reserved or counted.
    """

    id: str  # uuid
    email: str
    webhook: str | None  # URL
    host: str  # the URL's host and port, with its owner: callbacks are limited by it
    secret: str | None = None
    payload: bytes | None = None
    recheck: bool = False  # verify again later what time may cure
    asks_hosts: bool = True  # False: layer 4 is left out
    trace: str | None = None  # of the request that made it, for the callback

    @property
    def first_state(self) -> JobState:
        """The state in which the job is stored."""
        return "pending" if self.payload is None else state_with_result(self.webhook)


def state_with_result(webhook: str | None) -> JobState:
    """Return the state of a job whose result is known: without a webhook it has ended."""
    return "delivering" if webhook else "done"


class Job(Struct, frozen=True):
    """An accepted verification. It ends as done or failed, with its callback if it has one.

    pending: waits for verification. delivering: verified and counted, `payload` is to be
    delivered. Without a webhook a job is done when it is verified.
    """

    id: str
    account_id: str
    email: str
    webhook: str | None
    host: str
    state: JobState
    created_at: datetime
    due_at: datetime | None  # when the next step is due; None once it has ended
    # callback attempts so far, which a resend resets; of a pending job: verifications so far
    tries: int = 0
    payload: bytes | None = None  # the callback's body, the same at every attempt
    ended_at: datetime | None = None
    recheck: bool = False
    is_test: bool = False  # made by a test key
    asks_hosts: bool = True
    is_signed: bool = False  # its callback has a secret
    trace: str | None = None


def new_job(order: JobOrder, caller: Caller, now: datetime) -> Job:
    """Return the job of an order that is stored now."""
    state = order.first_state
    due_at, ended_at = (None, now) if state == "done" else (now, None)
    place = order.email, order.webhook, order.host
    known = order.payload, ended_at
    kind = order.recheck, caller.key.is_test, order.asks_hosts, order.secret is not None
    return Job(
        order.id, caller.account.id, *place, state, now, due_at, 0, *known, *kind, order.trace
    )


class Claim(Struct, frozen=True):
    """A job that one worker holds under a lease. A later claim of it has a higher fence."""

    job: Job
    caller: Caller  # the key may have been revoked since
    secret: str | None
    fence: int
    undecryptable: bool = False  # the secret cannot be decrypted: another key encrypted it


class Attempt(Struct, frozen=True):
    """One attempt to deliver a callback, with its HTTP status, or the error if there is none."""

    number: int  # from 1
    at: datetime
    took_ms: int
    status: int | None
    error: str | None = None


# the outbox


class OutboxMessage(Struct, frozen=True):
    """A message to an external party: an alert, or a count for the billing meter.

    Its name is unique within its account and kind, as long as it is stored.
    """

    id: str
    kind: MessageKind
    account_id: str
    name: str
    body: bytes
    count: int  # of a meter message: billable verifications
    made_at: datetime
    due_at: datetime | None  # None: sent, or given up
    tries: int = 0
    fence: int = 0
    first_tried_at: datetime | None = None
    sent_at: datetime | None = None
    error: str | None = None  # of the last attempt


def message_id(kind: MessageKind, account_id: str, name: str) -> str:
    """Return the message's id: the same in every store and permanent, so receivers can deduplicate."""
    return f"{kind} {account_id} {name}"


# connection leases


class LeaseRequest(Struct, frozen=True):
    """What a process wants of an address: connections to keep (`held`) and in all (`requested`).

    Both are absolute: repeating a request changes nothing but the lease's end.
    """

    held: int
    requested: int


# the audit log


class Actor(Struct, frozen=True):
    """Who acts, and from where.

    A session has the provisioning key that it was signed in with. `billing` is the billing
    provider, and `service` the service by itself.
    """

    kind: ActorKind
    key_id: str | None = None
    key_prefix: str | None = None  # its first characters, for display
    address: str | None = None  # the IP address of the client
    # The account of an operator who acts on others: theirs learn neither key nor address, and an
    # entry in its own log says what was done to which account.
    operator_id: str | None = None
    person: str | None = None  # the e-mail address of the person who acts


SERVICE = Actor("service")
COMMAND_LINE = Actor("command_line")
BILLING = Actor("billing")
