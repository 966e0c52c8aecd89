"""One example of every body, for the API description. Tests validate them against the schemas."""

from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import msgspec

from mailprobe.api import refusals
from mailprobe.api.error_table import Links, body_of
from mailprobe.api.keys import mint, shown
from mailprobe.api.rest.management import WARNING
from mailprobe.api.schema import (
    BODY_OCTETS_MAX,
    BODY_S_MAX,
    AccountLimits,
    AsyncVerifyResponse,
    AuditChange,
    AuditEntry,
    AuditResponse,
    BatchRequest,
    BatchVerifyResponse,
    BillingPortalRequest,
    BounceCounts,
    CreateKeyRequest,
    FormRequest,
    FormResponse,
    HealthResponse,
    JobAttempt,
    JobResponse,
    ListResponse,
    ListsResponse,
    ListWait,
    ManagementAccountResponse,
    ManagementBillingPortalResponse,
    ManagementCreateKeyResponse,
    ManagementKey,
    ManagementKeysListResponse,
    ManagementUsageResponse,
    ManagementUsageSummaryResponse,
    Period,
    UsageDay,
    VerifyEmailCallback,
    VerifyEmailResult,
    VerifyRequest,
    WaitingHost,
)
from mailprobe.engine import Verdict

_AT = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
_SOON = datetime(2026, 3, 14, 9, 27, 12, tzinfo=UTC)
_MONTH = datetime(2026, 3, 1, tzinfo=UTC)
_NEXT_MONTH = datetime(2026, 4, 1, tzinfo=UTC)
_ID = UUID("0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60")
_KEY = mint("sk_live_", lambda below: 7)  # well formed, but not a real key

DELIVERABLE = Verdict(
    "ann@example.org", True, "deliverable", 0.97, None,
    False, False, False, False, False, True, "mx.example.org", None, 212,
)  # fmt: skip
MISTYPED = Verdict(
    "bob@gmial.com", False, "invalid", 0.0, "disposable",
    True, False, False, False, False, False, None, "gmail.com", 0,
)  # fmt: skip

LIST = ListResponse(
    list_id=str(_ID),
    name="customers.csv",
    status="running",
    created_at=_AT,
    rows=1_200,
    addresses=1_150,
    answered=400,
    counts={"deliverable": 350, "undeliverable": 30, "unknown": 20},
    per_minute=800.0,
    stage="asking",
    left_s=1_190.5,
    waits_for=(ListWait("hosts", 41, _AT, 1, (WaitingHost("mx.hoster.example", 41, 16, "host_budget", _AT, _AT),)),),
    patience_s=14_400,
)  # fmt: skip

BODIES: tuple[msgspec.Struct, ...] = (
    VerifyRequest("ann@example.org"),
    BatchRequest(["ann@example.org", "bob@gmial.com"]),
    CreateKeyRequest("checkout"),
    FormRequest("ann@gmial.com"),
    FormResponse("YELLOW_LIGHT", "disposable", "gmail.com"),
    BillingPortalRequest("https://shop.example.org/account"),
    VerifyEmailResult(**msgspec.structs.asdict(DELIVERABLE)),
    AsyncVerifyResponse(str(_ID)),
    JobResponse(
        job_id=str(_ID),
        status="done",
        created_at=_AT,
        ended_at=_SOON,
        result=VerifyEmailResult(**msgspec.structs.asdict(DELIVERABLE)),
        attempts=[JobAttempt(1, _SOON, 84, 204)],
    ),
    LIST,
    ListsResponse([LIST]),
    VerifyEmailCallback(**msgspec.structs.asdict(DELIVERABLE), job_id=str(_ID)),
    BatchVerifyResponse([DELIVERABLE, MISTYPED], 2, 214),
    BounceCounts(1, 0, 0),
    HealthResponse(True, 1_773_480_413_000),
    ManagementAccountResponse(_ID, "builder", AccountLimits(5_000, 100, 10), 1_234),
    ManagementKeysListResponse([ManagementKey(_ID, shown(_KEY), _AT, "checkout")], 1, 10),
    ManagementCreateKeyResponse(_ID, _KEY, _AT, WARNING, "checkout"),
    ManagementUsageResponse([UsageDay(date(2026, 3, 13), 310), UsageDay(date(2026, 3, 14), 42)]),
    ManagementUsageSummaryResponse(
        Period(_MONTH, _NEXT_MONTH), 5_100, 5_000, 0, 100, 0.4, "builder"
    ),
    ManagementBillingPortalResponse("https://billing.example.org/session/1"),
    AuditResponse(
        [
            AuditEntry(
                id=str(_ID),
                at=_SOON,
                kind="key_revoked",
                times=1,
                actor="session",
                actor_key_id=str(_ID),
                actor_key_prefix="sk_mgmt_7777",
                client_address="192.0.2.7",
                subject_id=str(_ID),
                name="checkout",
                prefix=shown(_KEY),
                changes=[],
            ),
            AuditEntry(
                id=str(_ID),
                at=_AT,
                kind="caps_changed",
                times=1,
                actor="command_line",
                changes=[AuditChange("hard_cap_eur", None, 25.0)],
            ),
        ]
    ),
)

_BY_TYPE = {type(body): body for body in BODIES}

REFUSALS: tuple[refusals.Refusal, ...] = (
    refusals.NoSuchRoute(),
    refusals.MethodNotAllowed("PATCH", "POST"),
    refusals.MissingKey(),
    refusals.InvalidKey(),
    refusals.WrongKeyType(),
    refusals.OriginNotAllowed(),
    refusals.ProofRequired(),
    refusals.FormBusy(3),
    refusals.FormOff(),
    refusals.PayloadTooLarge(BODY_OCTETS_MAX),
    refusals.SlowBody(BODY_S_MAX),
    refusals.SlowUpload(64, 10),
    refusals.UnsupportedCoding("gzip"),
    refusals.UpgradeRequired(),
    refusals.InvalidRequest("The field email is missing.", "request"),
    refusals.HardCapReached(10.0, 9.99),
    refusals.RateLimited(100, _AT, _SOON, 5),
    refusals.KeysTooFast(20, _AT, _SOON, 1),
    refusals.NeverFits(10, _AT, _SOON, 50),
    refusals.QuotaExhausted(500, 497, _AT, _NEXT_MONTH, 5),
    refusals.JobNotFound(),
    refusals.ListNotFound(),
    refusals.BounceNotFound(),
    refusals.TooManyLists(10),
    refusals.TooManyKeptLists(100),
    refusals.ListsTooLarge(64),
    refusals.ListsTooFast(20, _AT, _SOON, 1),
    refusals.KeyNotFound(),
    refusals.TooManyKeys(10),
    refusals.NoBillingAccount(),
    refusals.ProviderUnavailable(),
    refusals.IdempotencyReused(),
    refusals.IdempotencyRunning(),
    refusals.AnswerLost(),
    refusals.TooManyJobs(10_000),
    refusals.Overloaded(),
    refusals.ProbingUnavailable(),
    refusals.StorageFull(),
    refusals.UsageUnknown(),
    refusals.OurFault("6b1c0f2d9a"),
)

_BY_REFUSAL = {type(refusal): refusal for refusal in REFUSALS}


def example_of(kind: type[msgspec.Struct]) -> Any:
    """The example of a body, as built-in types for JSON."""
    return msgspec.to_builtins(_BY_TYPE[kind])


def example_lines() -> str:
    """The example of a stream's body."""
    return msgspec.json.Encoder().encode_lines([MISTYPED, DELIVERABLE]).decode()


def example_refusal(kind: type[refusals.Refusal], links: Links) -> object:
    """The example of an error's body."""
    return msgspec.to_builtins(body_of(_BY_REFUSAL[kind], links))
