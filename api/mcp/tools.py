"""The tools: what each is called, takes and gives, made from the table of operations.

A definition has the schemas of the operation's own types, and what a model and a
person need beside them. Schemas are whole: many clients follow no reference.
Pure: no clock, no transport.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from mailprobe.api.rest.errors import Links
from mailprobe.api.rest.messages import Operation
from mailprobe.api.rest.openapi import describe
from mailprobe.api.rest.openapi_text import KEY_ID

PROVISIONING_HEADER = "X-Service-Provisioning-Key"
INSTRUCTIONS = (
    "Every verification is counted and may be billed. Read a result in this order: a suggestion "
    "(a likely typo) is to be shown to the person; disposable, invalid and undeliverable addresses "
    "are bad; catch_all and unknown prove nothing, and alone are no reason to reject an address; "
    "deliverable is good. All tools but verify_email manage the account, and need the header "
    f"{PROVISIONING_HEADER} beside Authorization."
)


@dataclass(frozen=True, slots=True)
class Telling:
    """What is told of a tool beyond its schemas. The flags are hints to whoever may ask a person."""

    title: str
    description: str
    only_reads: bool = False
    destroys: bool = False
    repeats_freely: bool = False  # a second call with the same arguments changes nothing more
    reaches_out: bool = False  # to others than this service


TELLINGS: dict[str, Telling] = {
    "verify_email": Telling(
        "Verify an email address",
        "Find out whether an email address takes mail, without sending any. Takes some 3 seconds "
        "at most. Every call is one verification of the account's quota. With a webhook the "
        "answer is a job_id at once, and the result is posted to the webhook.",
        reaches_out=True,
    ),
    "create_api_key": Telling(
        "Make an API key",
        "Make a standard key for the account. The key is in the answer and is shown this once: "
        "hand it to the person and keep it nowhere else.",
    ),
    "list_api_keys": Telling(
        "List the API keys", "List the account's active standard keys, without their secrets.",
        only_reads=True, repeats_freely=True,
    ),
    "revoke_api_key": Telling(
        "Revoke an API key",
        "Revoke a standard key for good: whatever uses it stops working at once, this "
        "connection too if it is its own key. list_api_keys tells the ids.",
        destroys=True, repeats_freely=True,
    ),
    "get_usage_summary": Telling(
        "This month's usage",
        "This UTC month: verifications used, included, left and beyond the plan, and the "
        "estimated cost in EUR.",
        only_reads=True, repeats_freely=True,
    ),
    "get_account": Telling(
        "The account", "The account's tier, its limits, its usage this month, its subscription.",
        only_reads=True, repeats_freely=True,
    ),
    "get_usage": Telling(
        "Usage by day", "Billable verifications of each of the last 30 UTC days.",
        only_reads=True, repeats_freely=True,
    ),
    "create_billing_portal": Telling(
        "Open the billing portal",
        "Make a link to the billing portal, where the account's owner sees invoices and changes "
        "plan or payment. Whoever has the link can: hand it to the person alone.",
        reaches_out=True,
    ),
}  # fmt: skip

# what an argument's type does not say: (tool, argument) -> more of its JSON schema
ARGUMENTS: dict[tuple[str, str], dict[str, Any]] = {
    ("verify_email", "webhook"): {
        "format": "uri",
        "description": "A public https URL with a host name. The answer is a job_id at once, and "
        "the result is posted there.",
    },
    ("create_api_key", "label"): {"description": "A name to know the key by."},
    ("create_billing_portal", "return_url"): {
        "format": "uri", "description": "Where the portal leads back to: http or https.",
    },
    ("revoke_api_key", "id"): {"description": "The key's id, as list_api_keys tells it."},
}  # fmt: skip


class Nothing(Struct, frozen=True):
    """The arguments of a tool that takes none: an object all the same."""


class KeyId(Struct, frozen=True):
    """The argument that stands in the operation's path."""

    id: str


REVOKED = {
    "title": "Revoked",
    "description": "The key with this id is revoked.",
    "type": "object",
    "properties": {"revoked": {"type": "boolean"}, "id": {"type": "string", "format": "uuid"}},
    "required": ["revoked", "id"],
}


def arguments_of(operation: Operation) -> type[Struct]:
    """The type of a tool's arguments: the operation's body, or what its path leaves open."""
    return operation.takes or (KeyId if "{id}" in operation.path else Nothing)


def define(operations: Sequence[Operation], places: Links) -> list[dict[str, Any]]:
    """The definitions of all operations that are tools, in their order."""
    schemas = describe(operations, places)["components"]["schemas"]
    schemas["VerifyEmailResult"]["properties"].pop("evidence")  # no tool can ask for it
    return [_definition(each, schemas) for each in operations if each.tool]


def _definition(operation: Operation, schemas: Mapping[str, Any]) -> dict[str, Any]:
    telling = TELLINGS[operation.name]
    needs = f" Needs the header {PROVISIONING_HEADER}." if operation.key == "provisioning" else ""
    return {
        "name": operation.name,
        "title": telling.title,
        "description": telling.description + needs,
        "inputSchema": _input_schema(operation, schemas),
        "outputSchema": _output_schema(operation, schemas),
        "annotations": {
            "title": telling.title,
            "readOnlyHint": telling.only_reads,
            "destructiveHint": telling.destroys,
            "idempotentHint": telling.repeats_freely,
            "openWorldHint": telling.reaches_out,
        },
    }


def _input_schema(operation: Operation, schemas: Mapping[str, Any]) -> dict[str, Any]:
    if operation.takes is not None:
        taken = _whole(schemas[operation.takes.__name__], schemas)
        properties, required = taken["properties"], taken["required"]
    else:
        required = list(arguments_of(operation).__struct_fields__)
        properties = dict.fromkeys(required, KEY_ID["schema"])
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            name: _argument(known) | ARGUMENTS.get((operation.name, name), {})
            for name, known in properties.items()
        },
    }
    return schema | ({"required": required} if required else {})


def _argument(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What may be left out is told as left out; null is taken too, and no model need know.

    A pattern's guard against a line end is for Python's dialect alone, and hosts of
    models refuse what looks ahead.
    """
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    given = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    for kind in kinds:
        given = {**kind, **given}
    if "pattern" in given:
        given["pattern"] = given["pattern"].removesuffix(r"(?!\n)")
    return given


def _output_schema(operation: Operation, schemas: Mapping[str, Any]) -> dict[str, Any]:
    kinds = [kind.__name__ for kind in (operation.gives, operation.promises) if kind is not None]
    if not kinds:
        return REVOKED
    if len(kinds) == 1:
        schema: dict[str, Any] = _whole(schemas[kinds[0]], schemas)
        return schema
    return {"type": "object", "anyOf": [_whole(schemas[kind], schemas) for kind in kinds]}


_REFERENCE = re.compile(r"#/components/schemas/(\w+)")


def _whole(node: Any, schemas: Mapping[str, Any]) -> Any:
    """The same with every reference replaced by what it leads to; none leads to itself."""
    if isinstance(node, list):
        return [_whole(value, schemas) for value in node]
    if not isinstance(node, dict):
        return node
    own = {key: _whole(value, schemas) for key, value in node.items() if key != "$ref"}
    led = _REFERENCE.fullmatch(node.get("$ref", ""))
    return {**_whole(schemas[led[1]], schemas), **own} if led else own
