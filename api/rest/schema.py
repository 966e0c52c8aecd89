"""The types of all request and response bodies, except those of the engine.

Handlers receive and return these types, and the API description is made from them, so
the two cannot differ.
"""

from datetime import date, datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Struct, UnsetType

from mailprobe.engine import Evidence, Verdict
from mailprobe.storage.records import Tier

EMAILS_MAX = 50
LABEL_CHARACTERS_MAX = 100
SECRET_CHARACTERS_MIN = 8
SECRET_CHARACTERS_MAX = 256
URL_CHARACTERS_MAX = 2048

# In Python "$" also matches before a final line end; in JSON Schema it does not.
LABEL = r"^[^\x00-\x1f\x7f-\x9f]+$(?!\n)"
HTTP_URL = r"^https?://[!-~]+$(?!\n)"

# -- requests ---------------------------------------------------------------------------------


class VerifyRequest(Struct, frozen=True):
    """One address. Every string gets a result; one that is not an address fails `syntax`."""

    email: str
    webhook: str | None = None
    webhook_secret: (
        Annotated[str, Meta(min_length=SECRET_CHARACTERS_MIN, max_length=SECRET_CHARACTERS_MAX)]
        | None
    ) = None


class BatchRequest(Struct, frozen=True):
    """One to fifty addresses, duplicates allowed: one result each."""

    emails: Annotated[list[str], Meta(min_length=1, max_length=EMAILS_MAX)]


class CreateKeyRequest(Struct, frozen=True):
    """The name of the key, without control characters."""

    label: (
        Annotated[str, Meta(pattern=LABEL, min_length=1, max_length=LABEL_CHARACTERS_MAX)] | None
    ) = None


class BillingPortalRequest(Struct, frozen=True):
    """The http or https URL to which the billing portal returns."""

    return_url: Annotated[str, Meta(pattern=HTTP_URL, max_length=URL_CHARACTERS_MAX)] | None = None


# -- responses ----------------------------------------------------------------------------------


class VerifyEmailResult(Verdict, frozen=True):
    """The result of a verification; `evidence` only on request."""

    evidence: Evidence | UnsetType = UNSET


class BatchVerifyResponse(Struct, frozen=True):
    """Results in the order of the request."""

    results: list[Verdict]
    count: int
    latency_ms: int


class VerifyEmailCallback(Verdict, frozen=True, kw_only=True):
    """The body of a callback: the result and the id of its job."""

    job_id: str


class AsyncVerifyResponse(Struct, frozen=True):
    """The verification runs, and its result will be posted to the webhook."""

    job_id: str
    status: Literal["pending"] = "pending"


class HealthResponse(Struct, frozen=True):
    """`ok`: the usage store can be written. `ts`: milliseconds since 1970."""

    ok: bool
    ts: int


class AccountLimits(Struct, frozen=True):
    """What the account's tier allows."""

    monthly_calls: int
    rate_limit_per_min: int
    max_keys: int


class ManagementAccountResponse(Struct, frozen=True):
    """The account, its subscription at the billing provider, and its limits."""

    account_id: UUID
    tier: Tier
    limits: AccountLimits
    usage_this_month: int
    subscription_status: str | None = None
    current_period_end: datetime | None = None
    cancel_at_period_end: bool | None = None
    canceled_at: datetime | None = None
    cancel_at: datetime | None = None
    trial_start: datetime | None = None
    trial_end: datetime | None = None
    billing_cycle_anchor: datetime | None = None


class ManagementKey(Struct, frozen=True):
    """An active standard key, without its secret."""

    id: UUID
    prefix: str
    created_at: datetime
    label: str | None = None


class ManagementKeysListResponse(Struct, frozen=True):
    """The active standard keys, and how many there may be."""

    keys: list[ManagementKey]
    count: int
    max: int


class ManagementCreateKeyResponse(Struct, frozen=True):
    """A new standard key. `key` is never shown again."""

    id: UUID
    key: str
    created_at: datetime
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

    start: datetime
    end: datetime


class ManagementUsageSummaryResponse(Struct, frozen=True):
    """This UTC calendar month. Free counts quota units, the paid tiers billable verifications."""

    period: Period
    calls_used: int
    calls_included: int
    calls_remaining: int
    overage_calls: int
    estimated_cost_eur: float
    tier: Tier


class ManagementBillingPortalResponse(Struct, frozen=True):
    """The URL where the account's owner sees invoices and changes the plan."""

    url: str


# -- errors -----------------------------------------------------------------------------------


class ApiError(Struct, frozen=True):
    """An error: what is wrong, and what to do about it."""

    error: str
    message: str
    action: str
    docs: str


class RateLimitError(ApiError, frozen=True):
    """The key's limit per minute. The same request passes from `reset_at` on."""

    limit: int
    window: Literal["1m"]
    reset_at: datetime


class MonthlyQuotaError(ApiError, frozen=True):
    """The free tier's month is used up. `used` is what was counted before this request."""

    limit: int
    used: int
    reset_at: datetime


class PaymentRequiredError(ApiError, frozen=True):
    """The request would exceed the hard spend cap of the billing period."""

    hard_cap_eur: float | None
    current_overage_eur: float
