"""One example of every body, for the API description. Tests validate them against the schemas."""

from datetime import date

import msgspec

from mailprobe.api.keys import shown
from mailprobe.api.operations.examples import AT, ID, KEY, MONTH, NEXT_MONTH
from mailprobe.api.rest.management import WARNING
from mailprobe.api.schema import (
    AccountLimits,
    BillingPortalRequest,
    CreateKeyRequest,
    HealthResponse,
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
    WaitingHost,
)

LIST = ListResponse(
    list_id=str(ID),
    name="customers.csv",
    status="running",
    created_at=AT,
    rows=1_200,
    addresses=1_150,
    answered=400,
    counts={"deliverable": 350, "undeliverable": 30, "unknown": 20},
    per_minute=800.0,
    stage="asking",
    left_s=1_190.5,
    waits_for=(ListWait("hosts", 41, AT, 1, (WaitingHost("mx.hoster.example", 41, 16, "host_budget", AT, AT),)),),
    patience_s=14_400,
)  # fmt: skip

BODIES: tuple[msgspec.Struct, ...] = (
    CreateKeyRequest("checkout"),
    BillingPortalRequest("https://shop.example.org/account"),
    LIST,
    ListsResponse([LIST]),
    HealthResponse(True, 1_773_480_413_000),
    ManagementAccountResponse(ID, "builder", AccountLimits(5_000, 100, 10), 1_234),
    ManagementKeysListResponse([ManagementKey(ID, shown(KEY), AT, "checkout")], 1, 10),
    ManagementCreateKeyResponse(ID, KEY, AT, WARNING, "checkout"),
    ManagementUsageResponse([UsageDay(date(2026, 3, 13), 310), UsageDay(date(2026, 3, 14), 42)]),
    ManagementUsageSummaryResponse(Period(MONTH, NEXT_MONTH), 5_100, 5_000, 0, 100, 0.4, "builder"),
    ManagementBillingPortalResponse("https://billing.example.org/session/1"),
)
