"""The table of operations: routes, API description and tools are made from it."""

from functools import cache

import msgspec

from mailprobe.api.error_table import Links
from mailprobe.api.operations import (
    account,
    audit,
    billing,
    bounces,
    forms,
    health,
    jobs,
    keys,
    usage,
    verify,
)
from mailprobe.api.operations.operation import (
    BODIED,
    KEYED,
    REPEATABLE,
    Call,
    Operation,
    OperationReply,
)
from mailprobe.api.quota.list_limits import UPLOAD_OCTETS_MAX
from mailprobe.api.refusals import (
    InvalidRequest,
    ListNotFound,
    ListsTooFast,
    ListsTooLarge,
    SlowUpload,
    TooManyKeptLists,
    TooManyLists,
)
from mailprobe.api.rest import lists
from mailprobe.api.rest.openapi import describe
from mailprobe.api.schema import ListResponse, ListsResponse
from mailprobe.api.service import Service

LISTS = "/v1/lists"


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
    *keys.OPERATIONS,
    usage.SUMMARY,
    *account.OPERATIONS,
    usage.DAYS,
    billing.PORTAL,
    *audit.OPERATIONS,
    billing.EVENTS,
    *health.OPERATIONS,
    Operation(
        "openapi", "GET", "/openapi.json", "This description",
        openapi, None, None, section="endpoints", tool=False,
    ),
)  # fmt: skip
