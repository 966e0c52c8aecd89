"""The tools, made from the table of operations: the eight of /mcp, and the wider set of /mcp/all
and `mailprobe mcp`, where a tool has the form that a model needs.

A definition has the schemas of the operation's types, and texts for a model and a
person. Schemas contain no references: many clients do not resolve them.
Pure: no clock, no transport.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..operations.description import schemas_of
from ..operations.operation import (
    Operation,
    OperationReply,
    ToolForm,
    ToolRequest,
    ToolText,
)
from ..operations.table import OPERATIONS
from ..operations.verify import EMAILS_MAX

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


WIDE_INSTRUCTIONS = (
    f"{COUNTED} {READING} Verify up to {EMAILS_MAX} addresses with verify_batch, more with "
    "create_list. A call that fails says why and what to do. The tools that manage the account "
    f"need the header {PROVISIONING_HEADER} beside Authorization."
)


class Tool(Struct, frozen=True):
    """A tool: its definition, the type of its arguments, and the operation that a call performs.

    `request_of` takes the arguments, decoded and as sent; `answer_of` makes the object that the
    tool returns of them and of a successful reply.
    """

    definition: Mapping[str, object]
    takes: type[Struct]
    operation: Operation
    request_of: Callable[[Any, bytes], ToolRequest]
    answer_of: Callable[[Any, OperationReply], Awaitable[bytes]]


@cache
def tools(needs: str) -> Mapping[str, Tool]:
    """The specification's eight by name, in the order of the table of operations.

    `needs` is said of the tools that need a provisioning key.
    """
    schemas = schemas_of(OPERATIONS)
    for name in ("evidence", "reason", "light", "advice"):  # these tools cannot request them
        del schemas["VerifyEmailResult"]["properties"][name]
    return {
        each.name: _tool(each, each.tool, schemas, needs)
        for each in OPERATIONS
        if each.tool is not None
    }


@cache
def wide_tools(needs: str) -> Mapping[str, Tool]:
    """The wider set, likewise: the eight, batches, jobs and lists."""
    schemas = schemas_of(OPERATIONS)
    return {
        each.name: _tool(each, form, schemas, needs)
        for each in OPERATIONS
        if (form := each.wide or each.tool) is not None
    }


def _tool(operation: Operation, form: ToolForm, schemas: Mapping[str, object], needs: str) -> Tool:
    text = replace(
        form.text,
        title=form.text.title or operation.summary,
        description=form.text.description or operation.handler.__doc__ or "",
    )
    definition = define(
        operation.name,
        text,
        input_schema(form.takes, form.arguments, form.hides),
        output_schema(operation, schemas) if form.output is None else form.output,
        needs if operation.key == "provisioning" else "",
    )
    return Tool(definition, form.takes, operation, form.request_of, form.answer_of)


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


def input_schema(
    takes: type[Struct],
    additions: Mapping[str, Mapping[str, object]] = {},
    hides: Sequence[str] = (),
) -> dict[str, Any]:
    """The schema of a tool's arguments, with these additions to the schema of each."""
    _, found = msgspec.json.schema_components([takes], ref_template="{name}")
    shape = found[takes.__name__]
    properties = {
        name: {**plain_argument(known), **additions.get(name, {})}
        for name, known in shape["properties"].items()
        if name not in hides
    }
    required = shape.get("required", [])
    return {
        "type": "object", "properties": properties,
        **({"required": required} if required else {}),
    }  # fmt: skip


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
