"""The eight tools of /mcp, made from the table of operations.

A definition has the schemas of the operation's types, and texts for a model and a
person. Schemas contain no references: many clients do not resolve them.
Pure: no clock, no transport.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from mailprobe.api.operations.description import schemas_of
from mailprobe.api.operations.description_text import KEY_ID
from mailprobe.api.operations.operation import Operation, OperationReply
from mailprobe.api.operations.table import OPERATIONS

PROVISIONING_HEADER = "X-Service-Provisioning-Key"
NEEDS_HEADER = f" Needs the header {PROVISIONING_HEADER}."
COUNTED = "Every verification is counted and may be billed."
READING = (
    "Read a result in this order: a suggestion "
    "(a likely typo) is to be shown to the person; disposable, invalid and undeliverable addresses "
    "are bad; catch_all and unknown prove nothing, and alone are no reason to reject an address; "
    "deliverable is good."
)
INSTRUCTIONS = (
    f"{COUNTED} {READING} All tools but verify_email manage the account, and need the header "
    f"{PROVISIONING_HEADER} beside Authorization."
)

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """The request to the API that a call makes."""

    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its definition, the type of its arguments, and the operation that a call performs.

    `request_of` takes the arguments, decoded and as sent; `answer_of` makes the object that the
    tool returns of them and of a successful reply.
    """

    definition: Mapping[str, object]
    takes: type[Struct]
    operation: Operation
    request_of: Callable[[Any, bytes], ToolRequest]
    answer_of: Callable[[Any, OperationReply], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class ToolText:
    """A tool's texts, and the flags of its MCP annotations."""

    title: str
    description: str
    only_reads: bool = False
    destroys: bool = False
    repeats_freely: bool = False  # a second call with the same arguments changes nothing more
    reaches_out: bool = False  # to others than this service


TOOL_TEXTS: dict[str, ToolText] = {
    "verify_email": ToolText(
        "Verify an email address",
        "Find out whether an email address takes mail, without sending any. Takes some 3 seconds "
        "at most. Every call is one verification of the account's quota. With a webhook the "
        "answer is a job_id at once, and the result is posted to the webhook.",
        reaches_out=True,
    ),
    "create_api_key": ToolText(
        "Create an API key",
        "Create a standard key for the account. The answer has the key, which is never shown "
        "again: give it to the person and store it nowhere else.",
    ),
    "list_api_keys": ToolText(
        "List the API keys", "List the account's active standard keys, without their secrets.",
        only_reads=True, repeats_freely=True,
    ),
    "revoke_api_key": ToolText(
        "Revoke an API key",
        "Revoke a standard key permanently: everything that uses it stops working at once, "
        "including this connection if it uses the key. list_api_keys returns the ids.",
        destroys=True, repeats_freely=True,
    ),
    "get_usage_summary": ToolText(
        "This month's usage",
        "This UTC month: verifications used, included, left and beyond the plan, and the "
        "estimated cost in EUR.",
        only_reads=True, repeats_freely=True,
    ),
    "get_account": ToolText(
        "The account", "The account's tier, its limits, its usage this month, its subscription.",
        only_reads=True, repeats_freely=True,
    ),
    "get_usage": ToolText(
        "Usage by day", "Billable verifications of each of the last 30 UTC days.",
        only_reads=True, repeats_freely=True,
    ),
    "create_billing_portal": ToolText(
        "Open the billing portal",
        "Create a link to the billing portal, where the account's owner sees invoices and "
        "changes plan or payment. The link grants access: give it to the person only.",
        reaches_out=True,
    ),
}  # fmt: skip

# (tool, argument) -> additions to its JSON schema
ARGUMENTS: dict[tuple[str, str], dict[str, object]] = {
    ("verify_email", "webhook"): {
        "format": "uri",
        "description": "A public https URL with a host name. The answer is a job_id at once, and "
        "the result is posted there.",
    },
    ("create_api_key", "label"): {"description": "The name of the key."},
    ("create_billing_portal", "return_url"): {
        "format": "uri", "description": "The http or https URL to which the portal returns.",
    },
    ("revoke_api_key", "id"): {"description": "The key's id, from list_api_keys."},
}  # fmt: skip


class NoArguments(Struct, frozen=True):
    """The arguments of a tool without any: an empty object."""


class KeyId(Struct, frozen=True):
    """The argument that the operation takes in its path."""

    id: str


REVOKED = {
    "title": "Revoked",
    "description": "The key with this id is revoked.",
    "type": "object",
    "properties": {"revoked": {"type": "boolean"}, "id": {"type": "string", "format": "uuid"}},
    "required": ["revoked", "id"],
}


def arguments_of(operation: Operation) -> type[Struct]:
    """The type of a tool's arguments: the operation's body or path parameters."""
    return operation.takes or (KeyId if "{id}" in operation.path else NoArguments)


@cache
def tools(needs: str) -> Mapping[str, Tool]:
    """The eight tools by name, in the order of the table of operations.

    `needs` is said of the tools that need a provisioning key.
    """
    schemas = schemas_of(OPERATIONS)
    schemas["VerifyEmailResult"]["properties"].pop("evidence")  # these tools cannot request it
    return {each.name: _tool(each, schemas, needs) for each in OPERATIONS if each.tool}


def _tool(operation: Operation, schemas: Mapping[str, object], needs: str) -> Tool:
    text = TOOL_TEXTS[operation.name]
    return Tool(
        define(
            operation.name,
            text,
            _input_schema(operation, schemas),
            output_schema(operation, schemas),
            needs if operation.key == "provisioning" else "",
        ),
        arguments_of(operation),
        operation,
        _request_of,
        _answer_of,
    )


def _request_of(taken: Struct, octets: bytes) -> ToolRequest:
    return ToolRequest(path_of(taken), body=octets)


async def _answer_of(taken: Struct, reply: OperationReply) -> bytes:
    assert isinstance(reply.body, bytes)
    return reply.body or _encode({"revoked": True, "id": path_of(taken)["id"].lower()})


def path_of(taken: Struct) -> dict[str, str]:
    """The variable part of the operation's path."""
    return {"id": taken.id} if isinstance(taken, KeyId) else {}


def define(
    name: str,
    text: ToolText,
    input_schema: Mapping[str, object],
    output_schema: Mapping[str, object],
    needs: str = "",
) -> dict[str, object]:
    """A definition as `tools/list` has it."""
    return {
        "name": name,
        "title": text.title,
        "description": text.description + needs,
        "inputSchema": input_schema,
        "outputSchema": output_schema,
        "annotations": {
            "title": text.title,
            "readOnlyHint": text.only_reads,
            "destructiveHint": text.destroys,
            "idempotentHint": text.repeats_freely,
            "openWorldHint": text.reaches_out,
        },
    }


def _input_schema(operation: Operation, schemas: Mapping[str, object]) -> dict[str, object]:
    if operation.takes is not None:
        taken = resolved(schemas[operation.takes.__name__], schemas)
        properties, required = dict(taken["properties"]), taken["required"]
        # No tool would fetch the result of the first two; the arguments are the specification's.
        for name in ("async", "recheck", "smtp"):
            properties.pop(name, None)
    else:
        required = list(arguments_of(operation).__struct_fields__)
        properties = dict.fromkeys(required, KEY_ID["schema"])
    schema: dict[str, object] = {
        "type": "object",
        "properties": {
            name: plain_argument(known) | ARGUMENTS.get((operation.name, name), {})
            for name, known in properties.items()
        },
    }
    return schema | ({"required": required} if required else {})


def plain_argument(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An argument's schema without null: an optional argument is simply left out.

    The look-ahead against a line end is needed in Python only, and MCP clients refuse it.
    """
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    given = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    for kind in kinds:
        given = {**kind, **given}
    if "pattern" in given:
        given["pattern"] = given["pattern"].removesuffix(r"(?!\n)")
    return given


def output_schema(operation: Operation, schemas: Mapping[str, Any]) -> dict[str, Any]:
    kinds = [kind.__name__ for kind in (operation.gives, operation.promises) if kind is not None]
    if not kinds:
        return REVOKED
    if len(kinds) == 1:
        schema: dict[str, object] = resolved(schemas[kinds[0]], schemas)
        return schema
    return {"type": "object", "anyOf": [resolved(schemas[kind], schemas) for kind in kinds]}


_REFERENCE = re.compile(r"#/components/schemas/(\w+)")


def resolved(node: Any, schemas: Mapping[str, Any]) -> Any:
    """The schema with every reference replaced by its target. References are not cyclic."""
    if isinstance(node, list):
        return [resolved(value, schemas) for value in node]
    if not isinstance(node, dict):
        return node
    own = {key: resolved(value, schemas) for key, value in node.items() if key != "$ref"}
    reference = _REFERENCE.fullmatch(node.get("$ref", ""))
    return {**resolved(schemas[reference[1]], schemas), **own} if reference else own
