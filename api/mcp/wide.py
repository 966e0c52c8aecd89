"""The wider set of tools, of /mcp/all and of `mailprobe mcp`: the eight, batches, jobs and lists.

Each is an operation of the API too. Where a model needs another form than a program, the tool
has it: a list's addresses are an argument, and its rows come in pages.
Pure: no clock, no transport.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from mailprobe.api.lists.downloads import BegunDownload
from mailprobe.api.mcp.tools import (
    ARGUMENTS,
    COUNTED,
    PROVISIONING_HEADER,
    READING,
    TOOL_TEXTS,
    KeyId,
    NoArguments,
    Tool,
    ToolRequest,
    ToolText,
    define,
    output_schema,
    path_of,
    plain_argument,
    resolved,
    tools,
)
from mailprobe.api.operations.description import schemas_of
from mailprobe.api.operations.operation import NDJSON, Operation, OperationReply, StreamedParts
from mailprobe.api.operations.table import OPERATIONS
from mailprobe.api.operations.verify import EMAILS_MAX, BatchRequest, VerifyRequest
from mailprobe.api.settings import PATIENCE_S_MAX

LIST_EMAILS_MAX = 5_000  # a model has no more at hand; a longer list is a file
PAGE_ROWS_MAX = 200
PAGE_OCTETS_MAX = 128 * 1024  # some 40,000 tokens; a single row may have more

WIDE_INSTRUCTIONS = (
    f"{COUNTED} {READING} Verify up to {EMAILS_MAX} addresses with verify_batch, more with "
    "create_list. A call that fails says why and what to do. The tools that manage the account "
    f"need the header {PROVISIONING_HEADER} beside Authorization."
)

_encode = msgspec.json.Encoder()


class VerifyArguments(VerifyRequest, frozen=True):
    """One address."""

    evidence: bool = False


class BatchArguments(BatchRequest, frozen=True):
    """One to fifty addresses."""

    evidence: bool = False


class ItemId(KeyId, frozen=True):
    """The id of a job or a list."""


class ListArguments(Struct, frozen=True):
    """The addresses of a list, and how they are verified."""

    emails: Annotated[list[str], Meta(min_length=1, max_length=LIST_EMAILS_MAX)]
    name: str | None = None
    start: bool = True
    recheck: bool = False
    strict_clocks: bool = False
    patience_s: Annotated[int, Meta(ge=0, le=int(PATIENCE_S_MAX))] | None = None
    smtp: bool = True
    webhook: str | None = None
    webhook_secret: str | None = None


class ResultsArguments(ItemId, frozen=True):
    """A page of a list's rows."""

    only: str | None = None
    offset: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)] = 50


class ResultsPage(Struct, frozen=True):
    """A page of rows. `next_offset` is that of the next page; null at the end."""

    rows: list[Raw]
    next_offset: int | None


WIDE_TEXTS: dict[str, ToolText] = {
    "verify_email": replace(
        TOOL_TEXTS["verify_email"],
        description=TOOL_TEXTS["verify_email"].description
        + " With evidence the answer says why: the mail hosts that were tried, the conversation "
        "with them, and the rule that decided.",
    ),
    "verify_batch": ToolText(
        "Verify up to 50 addresses",
        "Find out which of up to 50 email addresses take mail, without sending any. Takes some 3 "
        "seconds at most. The results are in the order of the addresses; each is one "
        "verification of the account's quota.",
        reaches_out=True,
    ),
    "get_job": ToolText(
        "A background verification",
        "The state of a verification that was started with webhook or async, its result once "
        "there is one, and the attempts to call back.",
        only_reads=True, repeats_freely=True,
    ),
    "create_list": ToolText(
        "Verify a list in the background",
        f"Start to verify up to {LIST_EMAILS_MAX:,} email addresses in the background. The answer "
        "is the list's id at once; get_list says how far it is, get_list_results has the rows. "
        "Each different address is one verification of the account's quota.",
        reaches_out=True,
    ),
    "list_lists": ToolText(
        "The lists", "The account's lists, newest first, with their states and counts.",
        only_reads=True, repeats_freely=True,
    ),
    "get_list": ToolText(
        "A list's state",
        "How far a list is, the seconds that are left, how many of its addresses have which "
        "status, and why it waits if it does.",
        only_reads=True, repeats_freely=True,
    ),
    "get_list_results": ToolText(
        "A list's rows",
        "A page of the rows of a list with their results, as far as they are known. Call it "
        "again with next_offset as the offset until that is null.",
        only_reads=True, repeats_freely=True,
    ),
    "pause_list": ToolText(
        "Pause a list", "Pause a list: nothing more is verified or counted until it is resumed.",
        repeats_freely=True,
    ),
    "resume_list": ToolText(
        "Resume a list", "Resume a paused list.", repeats_freely=True, reaches_out=True,
    ),
    "cancel_list": ToolText(
        "End a list",
        "End a list for good. What is known stays; nothing more is verified or counted.",
        destroys=True, repeats_freely=True,
    ),
    "delete_list": ToolText(
        "Delete a list", "Delete a list with its rows and results, whatever its state.",
        destroys=True,
    ),
}  # fmt: skip

LIST_ID = {"description": "The list's id, from create_list or list_lists."}
# (tool, argument) -> additions to its JSON schema, as in ARGUMENTS
WIDE_ARGUMENTS: dict[tuple[str, str], dict[str, Any]] = {
    **ARGUMENTS,
    ("verify_email", "evidence"): {"description": "true: say why, with the conversation."},
    ("verify_email", "async"): {
        "description": "true: the answer is a job_id at once; get_job has the result.",
    },
    ("verify_batch", "evidence"): {"description": "true: say why, for each address."},
    ("get_job", "id"): {"description": "The job_id of verify_email."},
    ("create_list", "emails"): {"description": "The addresses."},
    ("create_list", "name"): {"description": "A name for people."},
    ("create_list", "start"): {"description": "false: the list waits until it is resumed."},
    ("create_list", "recheck"): {"description": "true: ask again later what time may cure."},
    ("create_list", "strict_clocks"): {
        "description": "true: give slow hosts no more time then than in the first pass.",
    },
    ("create_list", "patience_s"): {
        "description": "How many seconds each address may wait for what its mail host takes; 0: "
        "not at all. Default: as the service is set, such as four hours.",
    },
    ("create_list", "smtp"): {"description": "false: no mail host is asked."},
    ("create_list", "webhook"): {
        "format": "uri",
        "description": "A public https URL with a host name, called when the list is done.",
    },
    ("create_list", "webhook_secret"): {"description": "Signs the callback."},
    ("get_list_results", "only"): {
        "description": "Only the rows of these lights, such as green,yellow.",
    },
    ("get_list_results", "offset"): {"description": "How many rows to pass over."},
    ("get_list_results", "limit"): {"description": "How many rows at most."},
    **{
        (f"{word}_list{more}", "id"): LIST_ID
        for word, more in (
            ("get", ""), ("get", "_results"), ("pause", ""), ("resume", ""), ("cancel", ""),
            ("delete", ""),
        )
    },
}  # fmt: skip
DELETED = {
    "title": "Deleted",
    "description": "The list with this id is deleted.",
    "type": "object",
    "properties": {"deleted": {"type": "boolean"}, "id": {"type": "string", "format": "uuid"}},
    "required": ["deleted", "id"],
}
PAGE = {
    "title": "ResultsPage",
    "description": "A page of rows: their own fields, and those of their results; null where "
    "there is no result yet.",
    "type": "object",
    "properties": {
        "rows": {"type": "array", "items": {"type": "object"}},
        "next_offset": {
            "anyOf": [{"type": "integer"}, {"type": "null"}],
            "description": "The offset of the next page; null at the end.",
        },
    },
    "required": ["rows", "next_offset"],
}


# -- the requests of calls, and the objects that they return --------------------------------------


def _by_body(taken: VerifyArguments | BatchArguments, octets: bytes) -> ToolRequest:
    """The API ignores the member `evidence` of a body, and takes it in the query."""
    return ToolRequest(query={"evidence": ["1"]} if taken.evidence else {}, body=octets)


def _by_id(taken: Struct, octets: bytes) -> ToolRequest:
    return ToolRequest(path_of(taken))


def _upload(taken: ListArguments, octets: bytes) -> ToolRequest:
    query = {
        "column": ["email"], "start": [str(int(taken.start))],
        "recheck": [str(int(taken.recheck))],
        "smtp": [str(int(taken.smtp))], "strict_clocks": [str(int(taken.strict_clocks))],
    }  # fmt: skip
    for name in ("name", "webhook", "patience_s"):
        if (value := getattr(taken, name)) is not None:
            query[name] = [str(value)]
    headers = {"content-type": NDJSON}
    if taken.webhook_secret is not None:
        headers["webhook-secret"] = taken.webhook_secret
    body = _encode.encode_lines([{"email": email} for email in taken.emails])
    return ToolRequest(query=query, body=body, headers=headers)


def _results(taken: ResultsArguments, octets: bytes) -> ToolRequest:
    query = {"format": ["ndjson"], **({} if taken.only is None else {"only": [taken.only]})}
    return ToolRequest(path_of(taken), query)


async def _whole(taken: Struct, reply: OperationReply) -> bytes:
    assert isinstance(reply.body, bytes)
    return reply.body or _encode.encode({"deleted": True, "id": path_of(taken)["id"].lower()})


async def _page(taken: ResultsArguments, reply: OperationReply) -> bytes:
    assert isinstance(reply.body, StreamedParts)
    return await page_of(reply.body.parts, taken.offset, taken.limit)


async def page_of(parts: AsyncIterator[bytes], offset: int, limit: int) -> bytes:
    """A page of lines in JSON, without reading further than to the row behind it."""
    async with AsyncExitStack() as stack:
        if isinstance(parts, AsyncGenerator | BegunDownload):
            await stack.enter_async_context(aclosing(parts))
        return _encode.encode(await _read_page(parts, offset, limit))


async def _read_page(parts: AsyncIterator[bytes], offset: int, limit: int) -> ResultsPage:
    rows: list[Raw] = []
    octets, number, rest = 0, 0, b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if number >= offset:
                octets += len(line)
                if len(rows) == limit or (rows and octets > PAGE_OCTETS_MAX):
                    return ResultsPage(rows, number)
                rows.append(Raw(line))
            number += 1
    return ResultsPage(rows, None)


@dataclass(frozen=True, slots=True)
class Form:
    """How the arguments of a tool become a request; None: the operation's own output."""

    takes: type[Struct]
    request_of: Callable[[Any, bytes], ToolRequest] = _by_id
    output: Mapping[str, object] | None = None
    answer_of: Callable[[Any, OperationReply], Any] = _whole


FORMS: Mapping[str, Form] = {
    "verify_email": Form(VerifyArguments, _by_body),
    "verify_batch": Form(BatchArguments, _by_body),
    "get_job": Form(ItemId),
    "create_list": Form(ListArguments, _upload),
    "list_lists": Form(NoArguments),
    "get_list": Form(ItemId),
    "get_list_results": Form(ResultsArguments, _results, PAGE, _page),
    "pause_list": Form(ItemId),
    "resume_list": Form(ItemId),
    "cancel_list": Form(ItemId),
    "delete_list": Form(ItemId, output=DELETED),
}


@cache
def wide_tools(needs: str) -> Mapping[str, Tool]:
    """The wider set by name, in the order of the table of operations.

    `needs` is said of the tools that need a provisioning key.
    """
    schemas = schemas_of(OPERATIONS)
    eight = tools(needs)
    return {
        each.name: _tool(each, FORMS[each.name], schemas)
        if each.name in FORMS
        else eight[each.name]
        for each in OPERATIONS
        if each.name in FORMS or each.name in eight
    }


def _tool(operation: Operation, form: Form, schemas: Mapping[str, object]) -> Tool:
    output = output_schema(operation, schemas) if form.output is None else form.output
    definition = define(
        operation.name, WIDE_TEXTS[operation.name],
        input_schema(operation.name, form.takes, schemas), output,
    )  # fmt: skip
    return Tool(definition, form.takes, operation, form.request_of, form.answer_of)


def input_schema(name: str, takes: type[Struct], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments. The API describes those that its bodies have."""
    _, found = msgspec.json.schema_components([takes], ref_template="{name}")
    shape = found[takes.__name__]
    described = {
        argument: known
        for kind in takes.__mro__
        for argument, known in schemas.get(kind.__name__, {}).get("properties", {}).items()
    }
    properties = {
        argument: plain_argument(resolved(described.get(argument, known), schemas))
        | WIDE_ARGUMENTS.get((name, argument), {})
        for argument, known in shape["properties"].items()
    }
    required = shape.get("required", [])
    return {
        "type": "object", "properties": properties,
        **({"required": required} if required else {}),
    }  # fmt: skip
