"""The types of all request and response bodies, except those of the engine.

Handlers receive and return these types, and the API description is made from them, so
the two cannot differ.
"""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, Struct

from mailprobe.storage.records import ActorKind, SoldTier

BODY_OCTETS_MAX = 2 * 1024 * 1024
EVENT_OCTETS_MAX = 256 * 1024  # of Stripe's, which have a few KiB; anyone may send them
BODY_S_MAX = 10  # seconds, from a request's head to the end of its body
LABEL_CHARACTERS_MAX = 100
URL_CHARACTERS_MAX = 2048

# In Python "$" also matches before a final line end; in JSON Schema it does not.
LABEL = r"^[^\x00-\x1f\x7f-\x9f]+$(?!\n)"
Instant = Annotated[datetime, Meta(tz=True)]
HTTP_URL = r"^https?://[!-~]+$(?!\n)"

# -- requests ---------------------------------------------------------------------------------


def says(text: str) -> Meta:
    """What a field is, for the API description."""
    return Meta(description=text)


class AddressBody(Struct, frozen=True):
    """A body with addresses to verify."""

    def texts(self) -> Sequence[str]:
        """The addresses; one unit each."""
        raise NotImplementedError


class CreateKeyRequest(Struct, frozen=True):
    """The name of the key, without control characters. `test`: a test key, which sends nothing."""

    label: (
        Annotated[str, Meta(pattern=LABEL, min_length=1, max_length=LABEL_CHARACTERS_MAX)] | None
    ) = None
    test: bool = False


class BillingPortalRequest(Struct, frozen=True):
    """The http or https URL to which the billing portal returns."""

    return_url: Annotated[str, Meta(pattern=HTTP_URL, max_length=URL_CHARACTERS_MAX)] | None = None


# -- responses ----------------------------------------------------------------------------------


ListStatus = Literal["reading", "running", "paused", "done", "failed", "cancelled"]
ListStage = Literal["asking", "waiting"]
# minute: the key's limit. plan: the month or the cap is used up. recheck: what time may cure.
# hosts: mail hosts take no more now. paused: by the operator of the service.
ListWaitCause = Literal["minute", "plan", "recheck", "hosts", "self_protection", "paused"]


class WaitingHost(Struct, frozen=True):
    """Addresses that wait for one mail host, and about when none does any more."""

    host: str
    addresses: int
    refusals_in_10_min: int
    reason: str
    until: Instant
    done_about: Instant


class ListWait(Struct, frozen=True):
    """What addresses of a list wait for. `hosts` are those at which most wait, of `hosts_count`."""

    cause: ListWaitCause
    addresses: int
    until: Instant | None = None
    hosts_count: int = 0
    hosts: tuple[WaitingHost, ...] = ()


class ListResponse(Struct, frozen=True, kw_only=True):
    """A list. `counts` has its answered addresses by status; `cause` says why it waits or failed."""

    list_id: str
    name: str
    status: ListStatus
    created_at: Instant
    rows: int
    addresses: int
    answered: int
    counts: dict[str, int]
    per_minute: float
    left_s: float | None = None
    cause: str | None = None
    ended_at: Instant | None = None
    recheck_at: Instant | None = None
    stage: ListStage | None
    waits_until: Instant | None = None
    waits_for: tuple[ListWait, ...] = ()
    patience_s: int
    columns: list[str] = []
    unwrapped_rows: int = 0
    doubtful_rows: int = 0
    several_rows: int = 0


class ListsResponse(Struct, frozen=True):
    """The account's lists, newest first, at most a hundred."""

    lists: list[ListResponse]


class ListCallback(Struct, frozen=True):
    """The body of a list's callback."""

    list_id: str
    status: Literal["done"]
    rows: int
    addresses: int
    counts: dict[str, int]
    created_at: Instant
    ended_at: Instant


class HealthResponse(Struct, frozen=True, omit_defaults=True):
    """`ok`: the usage store can be written. `ts`: milliseconds since 1970."""

    ok: bool
    ts: int
    drained: bool = False


class AccountLimits(Struct, frozen=True):
    """What the account's tier allows."""

    monthly_calls: int
    rate_limit_per_min: int
    max_keys: int


class ManagementAccountResponse(Struct, frozen=True):
    """The account, its subscription at the billing provider, and its limits."""

    account_id: UUID
    tier: SoldTier
    limits: AccountLimits
    usage_this_month: int
    subscription_status: str | None = None
    current_period_end: Instant | None = None
    cancel_at_period_end: bool | None = None
    canceled_at: Instant | None = None
    cancel_at: Instant | None = None
    trial_start: Instant | None = None
    trial_end: Instant | None = None
    billing_cycle_anchor: Instant | None = None


class ManagementKey(Struct, frozen=True):
    """An active key, without its secret. `last_used_at` is right to an hour, and null before the first use.

    `made_by`: a browser's session, the operator's command line, or a provisioning key; `service`
    and `billing` make none. Null for a key of an older version.
    """

    id: UUID
    prefix: str
    created_at: Instant
    label: str | None = None
    kind: Literal["live", "test"] = "live"
    last_used_at: Instant | None = None
    made_by: ActorKind | None = None


class ManagementKeysListResponse(Struct, frozen=True):
    """The active keys; `count` of them are live, and `max` may be. As many may be test keys."""

    keys: list[ManagementKey]
    count: int
    max: int


class ManagementCreateKeyResponse(Struct, frozen=True):
    """A new standard key. `key` is never shown again."""

    id: UUID
    key: str
    created_at: Instant
    warning: str
    label: str | None = None


class ManagementProvisioningKeyResponse(Struct, frozen=True):
    """A new provisioning key. `key` is never shown again."""

    id: UUID
    key: str


class UsageDay(Struct, frozen=True):
    """Billable verifications of one UTC day."""

    date: date
    calls: int


class ManagementUsageResponse(Struct, frozen=True):
    """The last 30 days, oldest first, today last."""

    days: list[UsageDay]


class Period(Struct, frozen=True):
    """From `start` up to but not including `end`."""

    start: Instant
    end: Instant


class ManagementUsageSummaryResponse(Struct, frozen=True):
    """This UTC calendar month. Free counts quota units, the paid tiers billable verifications."""

    period: Period
    calls_used: int
    calls_included: int
    calls_remaining: int
    overage_calls: int
    estimated_cost_eur: float
    tier: SoldTier


class ManagementBillingPortalResponse(Struct, frozen=True):
    """The URL where the account's owner sees invoices and changes the plan."""

    url: str
