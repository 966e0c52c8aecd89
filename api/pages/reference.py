"""The API reference: the OpenAPI description as pages show it, operation by operation.

It is made from the same document that `/openapi.json` serves, so the two cannot differ. Pure.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup
from msgspec import Struct

Node = Mapping[str, Any]

# constraints of a JSON schema in words; `{}` is the value
_LIMITS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "pattern": "matches {}",
}


class ReferenceField(Struct, frozen=True):
    """One field or parameter."""

    name: str
    kind: str  # its type in words
    required: bool
    text: str
    limits: str


class ReferenceBody(Struct, frozen=True):
    """What a request or an answer of one status carries."""

    title: str
    media_type: str
    fields: Sequence[ReferenceField]
    examples: Sequence[tuple[str, str]]  # (name, text)


class ReferenceAnswer(Struct, frozen=True):
    """An answer: its status, when it comes, and its body."""

    status: str
    text: str
    headers: Sequence[str]
    body: ReferenceBody | None

    @property
    def is_error(self) -> bool:
        return not self.status.startswith("2")


class ReferenceOperation(Struct, frozen=True):
    """One operation."""

    name: str
    method: str
    path: str
    summary: str
    text: str
    key: str  # which key it needs, in words
    parameters: Sequence[ReferenceField]
    request: ReferenceBody | None
    answers: Sequence[ReferenceAnswer]


def inline(text: str) -> Markup:
    """A sentence of the description as HTML. Of Markdown it has code in backticks alone."""
    parts = enumerate(text.strip().split("`"))
    return Markup().join(
        Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in parts
    )


def operations_in(document: Node) -> list[ReferenceOperation]:
    """The operations of an OpenAPI document, in its order."""
    return [
        _operation(document, method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def _operation(document: Node, method: str, path: str, operation: Node) -> ReferenceOperation:
    keys = [name for needed in operation.get("security", ()) for name in needed]
    return ReferenceOperation(
        operation["operationId"],
        method.upper(),
        path,
        operation.get("summary", ""),
        operation.get("description") or "",
        {
            "standardKey": "a standard key",
            "provisioningKey": "a provisioning key",
            "formKey": "a publishable key",
        }[keys[0]]
        if keys
        else "no key",
        [_parameter(document, each) for each in operation.get("parameters", ())],
        next(_bodies(document, operation.get("requestBody", {})), None),
        [
            ReferenceAnswer(
                status,
                answer.get("description", ""),
                list(answer.get("headers", ())),
                next(_bodies(document, answer), None),
            )
            for status, answer in operation["responses"].items()
        ],
    )


def _parameter(document: Node, parameter: Node) -> ReferenceField:
    schema = _resolved(document, parameter["schema"])
    return ReferenceField(
        parameter["name"],
        f"{_kind(document, schema)}, in the {parameter['in']}",
        bool(parameter.get("required")),
        parameter.get("description", ""),
        _limits(schema),
    )


def _bodies(document: Node, carrier: Node) -> Iterator[ReferenceBody]:
    for media_type, content in carrier.get("content", {}).items():
        schema = content.get("x-itemSchema") or content["schema"]
        examples = content.get("examples") or (
            {"": {"value": content["example"]}} if "example" in content else {}
        )
        yield ReferenceBody(
            _name(schema),
            media_type,
            list(_fields(document, schema)),
            [(name, _text(example["value"])) for name, example in examples.items()],
        )


def _fields(document: Node, schema: Node) -> Iterator[ReferenceField]:
    """The fields of an object; of several possible ones, each field once."""
    seen: set[str] = set()
    for part in schema.get("anyOf", [schema]):
        shape = _resolved(document, part)
        for name, field in shape.get("properties", {}).items():
            if name in seen:
                continue
            seen.add(name)
            inner = _resolved(document, field)
            yield ReferenceField(
                name,
                _kind(document, field),
                name in shape.get("required", ()),
                field.get("description") or inner.get("description", ""),
                _limits(field),
            )


def _kind(document: Node, schema: Node) -> str:
    """The type of a field in words."""
    if "$ref" in schema:
        resolved = _resolved(document, schema)
        return _name(schema) if "properties" in resolved else _kind(document, resolved)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(document, each) for each in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join("null" if each is None else f"“{each}”" for each in schema["enum"])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"list of {_kind(document, schema.get('items', {}))}"
    return f"{kind} ({schema['format']})" if "format" in schema else str(kind)


def _limits(schema: Node) -> str:
    found = [words.format(schema[name]) for name, words in _LIMITS.items() if name in schema]
    for part in schema.get("anyOf", ()):
        found += [words.format(part[name]) for name, words in _LIMITS.items() if name in part]
    return ", ".join(found)


def _resolved(document: Node, schema: Node) -> Node:
    while "$ref" in schema:
        schema = document["components"]["schemas"][_name(schema)]
    return schema


def _name(schema: Node) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
