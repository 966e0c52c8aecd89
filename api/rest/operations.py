"""The table of operations: routes, API description and tools are made from it."""

from dataclasses import replace
from functools import cache

import msgspec

from mailprobe.api.error_table import Links
from mailprobe.api.operations import audit, bounces, forms, jobs, verify
from mailprobe.api.operations.operation import (
    BODIED,
    KEYED,
    MANAGING,
    REPEATABLE,
    Call,
    Operation,
    OperationReply,
    reply,
)
from mailprobe.api.quota.list_limits import UPLOAD_OCTETS_MAX
from mailprobe.api.refusals import (
    InvalidRequest,
    KeyNotFound,
    KeysTooFast,
    ListNotFound,
    ListsTooFast,
    ListsTooLarge,
    NoBillingAccount,
    ProviderUnavailable,
    SlowUpload,
    TooManyKeptLists,
    TooManyKeys,
    TooManyLists,
)
from mailprobe.api.rest import lists, management
from mailprobe.api.rest.openapi import describe
from mailprobe.api.rest.openapi_text import BILLING_EVENT, READY
from mailprobe.api.schema import (
    EVENT_OCTETS_MAX,
    BillingPortalRequest,
    CreateKeyRequest,
    HealthResponse,
    ListResponse,
    ListsResponse,
    ManagementAccountResponse,
    ManagementBillingPortalResponse,
    ManagementCreateKeyResponse,
    ManagementKeysListResponse,
    ManagementUsageResponse,
    ManagementUsageSummaryResponse,
)
from mailprobe.api.service import Service

HEALTH = "/health"
LISTS = "/v1/lists"


async def health(service: Service, call: Call) -> OperationReply:
    """Is the service up, and can its store be written? With `ready=1`, is it ready for requests?

    Headers show which program it is.
    """
    ok = await service.store_check.ok()
    drained = service.quota.pauses.drained
    state = HealthResponse(ok, int(service.now().timestamp() * 1000), drained)
    headers = service.build.headers() if service.build else {}
    if ok or "1" not in call.query.get("ready", ()):
        return replace(reply(200, state), headers=headers)
    # closed: the proxy's next request takes another service
    return replace(reply(503, state), headers=headers, closes=True)


async def openapi(service: Service, call: Call) -> OperationReply:
    """This description."""
    return OperationReply(200, description(service.links))


@cache
def description(links: Links) -> bytes:
    """The table as an OpenAPI 3.1 document in JSON, made once per set of links."""
    return msgspec.json.encode(describe(OPERATIONS, links))


OPERATIONS: tuple[Operation, ...] = (
    *verify.OPERATIONS,
    *forms.OPERATIONS,
    *jobs.OPERATIONS,
    Operation(
        "create_list", "POST", LISTS, "Send a list",
        lists.create_list, "standard", ListResponse, 202, section="lists",
        may=(*KEYED, *BODIED, *REPEATABLE, SlowUpload, TooManyLists, TooManyKeptLists, ListsTooLarge, ListsTooFast),
        tool=False, uploads=True, octets_max=UPLOAD_OCTETS_MAX, parameters=lists.CREATE_PARAMETERS,
    ),
    Operation(
        "list_lists", "GET", LISTS, "The lists, newest first",
        lists.list_lists, "standard", ListsResponse, section="lists", may=(*KEYED, InvalidRequest),
        tool=False, parameters=lists.LIST_PARAMETERS,
    ),
    Operation(
        "get_list", "GET", LISTS + "/{id}", "A list: its state and its counts",
        lists.get_list, "standard", ListResponse, section="lists", may=(*KEYED, ListNotFound), tool=False,
    ),
    Operation(
        "get_list_results", "GET", LISTS + "/{id}/results", "The rows of a list with their results",
        lists.get_list_results, "standard", None, section="lists",
        may=(*KEYED, ListNotFound, InvalidRequest), tool=False, parameters=lists.RESULT_PARAMETERS,
        media_types=tuple(media_type for media_type, _ in lists.FORMATS.values()),
    ),
    *(
        Operation(
            f"{word}_list", "POST", f"{LISTS}/{{id}}/{word}", summary,
            handler, "standard", ListResponse, section="lists",
            may=(*KEYED, *REPEATABLE, InvalidRequest, ListNotFound), tool=False,
        )
        for word, handler, summary in (
            ("pause", lists.pause_list, "Pause a list"),
            ("resume", lists.resume_list, "Resume a paused list"),
            ("cancel", lists.cancel_list, "End a list"),
        )
    ),
    Operation(
        "delete_list", "DELETE", LISTS + "/{id}", "Delete a list with its results",
        lists.delete_list, "standard", None, 204, section="lists", may=(*KEYED, ListNotFound), tool=False,
    ),
    *bounces.OPERATIONS,
    Operation(
        "create_api_key", "POST", "/v1/management/keys", "Create a standard key",
        management.create_api_key, "provisioning", ManagementCreateKeyResponse, 201,
        takes=CreateKeyRequest, body_required=False,
        may=(*MANAGING, *BODIED, *REPEATABLE, TooManyKeys, KeysTooFast),
    ),
    Operation(
        "list_api_keys", "GET", "/v1/management/keys", "List the active standard keys",
        management.list_api_keys, "provisioning", ManagementKeysListResponse, may=MANAGING,
    ),
    Operation(
        "revoke_api_key", "DELETE", "/v1/management/keys/{id}", "Revoke a standard key permanently",
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
    *audit.OPERATIONS,
    Operation(
        "take_billing_event", "POST", "/v1/billing/stripe", "Receive an event of the billing provider",
        management.receive_billing_event, None, None, 204, section="endpoints",
        may=(*BODIED, ProviderUnavailable), tool=False, raw=BILLING_EVENT, octets_max=EVENT_OCTETS_MAX,
        is_on=management.receives_billing_events,
    ),
    Operation(
        "health", "GET", HEALTH, "Is the service up?",
        health, None, HealthResponse, section="endpoints", tool=False, parameters=(READY,), unready=HealthResponse,
    ),
    Operation(
        "openapi", "GET", "/openapi.json", "This description",
        openapi, None, None, section="endpoints", tool=False,
    ),
)  # fmt: skip
