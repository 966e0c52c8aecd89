"""The one table of what can be asked for: routes, API description and tools come from it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache

import msgspec

from mailprobe.api.quota.capacity import BODY_OCTETS_MAX, EVENT_OCTETS_MAX
from mailprobe.api.rest import management, verification
from mailprobe.api.rest.errors import Links
from mailprobe.api.rest.messages import NDJSON, Call, OperationReply, reply
from mailprobe.api.rest.openapi import describe
from mailprobe.api.rest.refusals import (
    AnswerLost,
    HardCapReached,
    IdempotencyReused,
    IdempotencyRunning,
    InvalidKey,
    InvalidRequest,
    KeyNotFound,
    KeysTooFast,
    MethodNotAllowed,
    MissingKey,
    NeverFits,
    NoBillingAccount,
    NoSuchRoute,
    OurFault,
    Overloaded,
    PayloadTooLarge,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    Refusal,
    Section,
    SlowBody,
    TooManyJobs,
    TooManyKeys,
    UnsupportedCoding,
    UsageUnknown,
    WrongKeyType,
)
from mailprobe.api.rest.schema import (
    AsyncVerifyResponse,
    BatchRequest,
    BatchVerifyResponse,
    BillingPortalRequest,
    CreateKeyRequest,
    HealthResponse,
    ManagementAccountResponse,
    ManagementBillingPortalResponse,
    ManagementCreateKeyResponse,
    ManagementKeysListResponse,
    ManagementUsageResponse,
    ManagementUsageSummaryResponse,
    VerifyEmailResult,
    VerifyRequest,
)
from mailprobe.api.service import Service
from mailprobe.storage.records import KeyKind

HEALTH = "/health"

Handler = Callable[[Service, Call], Awaitable[OperationReply]]
Refusals = tuple[type[Refusal], ...]

ANYWHERE: Refusals = (NoSuchRoute, MethodNotAllowed, OurFault, Overloaded)
KEYED: Refusals = (MissingKey, InvalidKey, UsageUnknown)
BODIED: Refusals = (InvalidRequest, PayloadTooLarge, SlowBody, UnsupportedCoding)
REPEATABLE: Refusals = (IdempotencyReused, IdempotencyRunning, AnswerLost)
VERIFYING: Refusals = (*KEYED, *BODIED, HardCapReached, RateLimited, NeverFits, QuotaExhausted)
MANAGING: Refusals = (*KEYED, WrongKeyType)


@dataclass(frozen=True, slots=True)
class Operation:
    """One row: what it is called, where it is, what goes in, what comes out, what may go wrong."""

    name: str
    method: str
    path: str
    summary: str
    handler: Handler
    key: KeyKind | None
    gives: type[msgspec.Struct] | None
    status: int = 200
    promises: type[msgspec.Struct] | None = None  # the 202 of work that goes on
    takes: type[msgspec.Struct] | None = None
    body_required: bool = True
    section: Section = "management"
    may: Refusals = ()
    media_type: str = "application/json"
    tool: bool = True
    raw: bool = False  # the handler wants the body's octets: they are signed
    octets_max: int = BODY_OCTETS_MAX
    is_on: Callable[[Service], bool] = lambda service: True  # else there is nothing at its path

    @property
    def metered(self) -> bool:
        """Does it verify, and so weigh on the caller's limits?"""
        return self.key == "standard"

    @property
    def counts_malformed(self) -> bool:
        """Is a malformed request that was JSON worth a unit? A single one is."""
        return self.takes is VerifyRequest

    @property
    def limits_malformed(self) -> bool:
        """Does a malformed request take one unit of the minute, whatever it was? A list does."""
        return self.takes is BatchRequest

    @property
    def repeatable(self) -> bool:
        return self.media_type != NDJSON

    @property
    def takes_idempotency_key(self) -> bool:
        return self.method == "POST" and self.key is not None

    @property
    def refusals(self) -> Refusals:
        return (*self.may, *ANYWHERE)


async def health(service: Service, call: Call) -> OperationReply:
    """Is the service up, and can its store be written?"""
    ok = await service.store_check.ok()
    return reply(200, HealthResponse(ok, int(service.now().timestamp() * 1000)))


async def openapi(service: Service, call: Call) -> OperationReply:
    """This description."""
    return OperationReply(200, description(service.links))


@cache
def description(places: Links) -> bytes:
    """The whole table as OpenAPI 3.1, made once."""
    return msgspec.json.encode(describe(OPERATIONS, places))


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "verify_email", "POST", "/v1/email/verify", "Verify one address",
        verification.verify_email, "standard", VerifyEmailResult,
        promises=AsyncVerifyResponse, takes=VerifyRequest, section="request", may=(*VERIFYING, *REPEATABLE, TooManyJobs),
    ),
    Operation(
        "verify_batch", "POST", "/v1/email/verify/batch", "Verify up to 50 addresses, in order",
        verification.verify_batch, "standard", BatchVerifyResponse,
        takes=BatchRequest, section="batch", may=(*VERIFYING, *REPEATABLE), tool=False,
    ),
    Operation(
        "verify_stream", "POST", "/v1/email/verify/stream",
        "Verify up to 50 addresses, a line for each as its result comes",
        verification.verify_stream, "standard", VerifyEmailResult,
        takes=BatchRequest, section="streaming", may=VERIFYING, media_type=NDJSON, tool=False,
    ),
    Operation(
        "create_api_key", "POST", "/v1/management/keys", "Make a standard key",
        management.create_api_key, "provisioning", ManagementCreateKeyResponse, 201,
        takes=CreateKeyRequest, body_required=False,
        may=(*MANAGING, *BODIED, *REPEATABLE, TooManyKeys, KeysTooFast),
    ),
    Operation(
        "list_api_keys", "GET", "/v1/management/keys", "List the active standard keys",
        management.list_api_keys, "provisioning", ManagementKeysListResponse, may=MANAGING,
    ),
    Operation(
        "revoke_api_key", "DELETE", "/v1/management/keys/{id}", "Revoke a standard key for good",
        management.revoke_api_key, "provisioning", None, 204, may=(*MANAGING, KeyNotFound),
    ),
    Operation(
        "get_usage_summary", "GET", "/v1/management/usage/summary", "This month's use and its cost",
        management.get_usage_summary, "provisioning", ManagementUsageSummaryResponse, may=MANAGING,
    ),
    Operation(
        "get_account", "GET", "/v1/management/account", "The account, its tier and its limits",
        management.get_account, "provisioning", ManagementAccountResponse, may=MANAGING,
    ),
    Operation(
        "get_usage", "GET", "/v1/management/usage", "Billable verifications a day, 30 days",
        management.get_usage, "provisioning", ManagementUsageResponse, may=MANAGING,
    ),
    Operation(
        "create_billing_portal", "POST", "/v1/management/billing/portal",
        "Open the billing portal",
        management.create_billing_portal, "provisioning", ManagementBillingPortalResponse,
        takes=BillingPortalRequest, body_required=False,
        may=(*MANAGING, *BODIED, *REPEATABLE, NoBillingAccount, ProviderUnavailable),
    ),
    Operation(
        "take_billing_event", "POST", "/v1/billing/stripe", "What the billing provider tells",
        management.receive_billing_event, None, None, 204, section="endpoints",
        may=(*BODIED, ProviderUnavailable), tool=False, raw=True, octets_max=EVENT_OCTETS_MAX,
        is_on=management.receives_billing_events,
    ),
    Operation(
        "health", "GET", HEALTH, "Is the service up?",
        health, None, HealthResponse, section="endpoints", tool=False,
    ),
    Operation(
        "openapi", "GET", "/openapi.json", "This description",
        openapi, None, None, section="endpoints", tool=False,
    ),
)  # fmt: skip
