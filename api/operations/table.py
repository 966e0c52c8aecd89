"""The table of operations: routes, API description and tools are made from it."""

from functools import cache

import msgspec

from ..error_table import Links
from ..service import Service
from . import (
    account,
    audit,
    billing,
    bounces,
    forms,
    health,
    jobs,
    keys,
    list_jobs,
    list_uploads,
    usage,
    verify,
)
from .description import describe
from .operation import (
    Call,
    Operation,
    OperationReply,
)


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
    *list_uploads.OPERATIONS,
    *list_jobs.OPERATIONS,
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
        openapi, None, None, section="endpoints",
    ),
)  # fmt: skip
