"""The table of operations as OpenAPI 3.1. The schemas come from the handlers' types."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mailprobe.engine import Verdict

from ..error_table import TABLE, Links
from ..jobs.rules import VerifyEmailCallback
from ..refusals import Refusal
from .description_text import (
    ADVICE,
    CALLBACK,
    CALLBACK_HEADERS,
    ENGINE_FIELDS,
    EVIDENCE,
    HEADERS,
    IDEMPOTENCY_KEY,
    KEY_ID,
    SECURITY_SCHEMES,
    UPLOAD,
    WEBHOOK,
    WORK_ID,
)
from .examples import example_refusal
from .keys import ManagementProvisioningKeyResponse
from .operation import JSON, NDJSON, XLSX, Operation
from .verify import VerifyEmailResult

VERSION = "1.0.0"
_TEXT = {"type": "string"}
_OCTETS = {"type": "string", "format": "binary"}
SCHEMAS = "#/components/schemas/{name}"
LIMITS = ("RateLimit", "RateLimit-Policy")
LIMITED = {400, 402, 409, 413, 415, 422, 429, 503}  # may say what is left: the key is known by then


Examples = Mapping[type[msgspec.Struct], Any]


def examples_of(operations: Sequence[Operation]) -> Examples:
    """An example of each body, as built-in types for JSON."""
    bodies = [each for operation in operations for each in operation.examples]
    return {type(body): msgspec.to_builtins(body) for body in bodies}


def describe(operations: Sequence[Operation], links: Links) -> dict[str, object]:
    """The OpenAPI document, as built-in types."""
    paths: dict[str, dict[str, object]] = {}
    examples = examples_of(operations)
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(
            operation, links, examples
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mailprobe",
            "version": VERSION,
            "summary": "Is an email address well formed, not disposable, and accepted?",
            "description": f"Documentation: {links.docs_url}",
        },
        "servers": [{"url": links.base_url}],
        "paths": paths,
        "components": {
            "schemas": schemas_of(operations),
            "headers": HEADERS,
            "securitySchemes": SECURITY_SCHEMES,
        },
    }


def schemas_of(operations: Sequence[Operation]) -> dict[str, Any]:
    """The schemas of all bodies, every field described.

    A field that may be left out has no default: generators take one to mean that clients send it.
    """
    bodies = [
        kind for each in operations for kind in (each.takes, each.gives, each.promises) if kind
    ]
    errors = [row.shape for row in TABLE.values()]
    others = (VerifyEmailCallback, ManagementProvisioningKeyResponse)
    _, schemas = msgspec.json.schema_components((*bodies, *errors, *others), ref_template=SCHEMAS)
    schemas.pop("Verdict", None)  # the engine's name of a result without evidence
    for shape in schemas.values():
        properties = shape.get("properties", {})
        for name, known in properties.items():
            said = {} if "description" in known else ENGINE_FIELDS.get(name, {})
            own = {key: value for key, value in known.items() if key != "default"}
            properties[name] = {**said, **own}
    return _renamed(schemas)  # type: ignore[no-any-return]


def _renamed(node: Any) -> Any:
    """The same schemas with references to Verdict replaced by VerifyEmailResult."""
    if isinstance(node, dict):
        return {key: _renamed(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_renamed(value) for value in node]
    if node == SCHEMAS.format(name="Verdict"):
        return SCHEMAS.format(name="VerifyEmailResult")
    return node


def _operation(operation: Operation, links: Links, examples: Examples) -> dict[str, object]:
    reported: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": operation.handler.__doc__,
        "tags": [operation.path.split("/")[2] if operation.key else "service"],
        "security": _security(operation),
        "responses": {
            str(operation.status): _success(operation, examples),
            **_failures(operation, links),
        },
    }
    parameters = [
        *(
            [KEY_ID if operation.key == "provisioning" else WORK_ID]
            if "{id}" in operation.path
            else []
        ),
        *([EVIDENCE, ADVICE] if operation.shows_limits else []),
        *([IDEMPOTENCY_KEY] if _is_repeated(operation) else []),
        *operation.parameters,
    ]
    if parameters:
        reported["parameters"] = parameters
    if operation.takes is not None:
        reported["requestBody"] = {
            "required": operation.body_required,
            "content": {
                JSON: {"schema": _ref(operation.takes), "example": examples[operation.takes]}
            },
        }
    if operation.raw:
        reported["requestBody"] = {"required": True, "content": operation.raw}
    if operation.uploads:
        reported["requestBody"] = {"required": True, "content": UPLOAD}
    if operation.promises is not None:
        reported["responses"]["202"] = _promise(operation, examples)
        reported["callbacks"] = {"verified": {WEBHOOK: {"post": _callback(examples)}}}
    return reported


def _security(operation: Operation) -> list[dict[str, list[str]]]:
    schemes = [f"{operation.key}Key"] if operation.key else []
    return [{name: []} for name in (*schemes, *(["basicKey"] if operation.takes_basic else []))]


def _is_repeated(operation: Operation) -> bool:
    """Does a repetition with the same Idempotency-Key get the stored answer?"""
    return operation.takes_idempotency_key and operation.repeatable


def _promise(operation: Operation, examples: Examples) -> dict[str, object]:
    assert operation.promises is not None
    return {
        "description": "With a webhook or async: the job has been stored",
        "headers": _headers("X-Request-Id", *_of_success(operation)),
        "content": {JSON: _body(operation.promises, examples)},
    }


def _of_success(operation: Operation) -> tuple[str, ...]:
    """The headers of an operation's own successful answers."""
    repeated = ("Idempotency-Replayed",) if _is_repeated(operation) else ()
    return (*(LIMITS if operation.shows_limits else ()), *repeated)


def _callback(examples: Examples) -> dict[str, object]:
    """The callback: what the service posts, and the responses it expects."""
    return {
        "summary": "The verification has ended",
        "description": CALLBACK,
        "parameters": CALLBACK_HEADERS,
        "requestBody": {
            "required": True,
            "content": {
                JSON: {
                    "schema": _ref(VerifyEmailCallback),
                    "example": examples[VerifyEmailCallback],
                }
            },
        },
        "responses": {
            "2XX": {"description": "Accepted: it is not sent again"},
            "410": {"description": "No longer wanted: it is not sent again"},
            "default": {"description": "It is sent again later, with the same bytes"},
        },
    }


def _success(operation: Operation, examples: Examples) -> dict[str, object]:
    answer: dict[str, Any] = {
        "description": operation.summary,
        "headers": _headers("X-Request-Id", *_of_success(operation)),
    }
    if operation.media_types:
        answer["content"] = {
            media_type: {"schema": _OCTETS if media_type == XLSX else _TEXT}
            for media_type in operation.media_types
        }
        if operation.gives is not None:
            answer["content"][JSON] = _body(operation.gives, examples)
    elif operation.media_type == NDJSON:
        answer["content"] = {
            NDJSON: {
                "schema": {
                    "type": "string",
                    "description": "Lines that end with LF, each a VerifyEmailResult in JSON.",
                    "contentMediaType": NDJSON,
                    "contentSchema": _ref(VerifyEmailResult),
                },
                "x-itemSchema": _ref(VerifyEmailResult),  # what OpenAPI 3.2 calls itemSchema
                "example": _lines(operation),
            }
        }
    elif operation.gives is not None:
        answer["content"] = {JSON: _body(operation.gives, examples)}
    elif operation.status not in (101, 204):
        answer["content"] = {JSON: {"schema": {"type": "object"}, "example": {"openapi": "3.1.0"}}}
    return answer


def _lines(operation: Operation) -> str:
    """The example of a stream's body."""
    results = [each for each in operation.examples if isinstance(each, Verdict)]
    return msgspec.json.Encoder().encode_lines(results).decode()


def _body(kind: type[msgspec.Struct], examples: Examples) -> dict[str, object]:
    return {"schema": _ref(kind), "example": examples[kind]}


def _failures(operation: Operation, links: Links) -> dict[str, Any]:
    by_status: dict[int, list[type[Refusal]]] = {}
    for refusal in operation.refusals:
        by_status.setdefault(TABLE[refusal].status, []).append(refusal)
    failures = {str(status): _failure(by_status[status], links) for status in sorted(by_status)}
    for status in LIMITED & by_status.keys() if operation.shows_limits else ():
        failures[str(status)]["headers"] |= _headers(*LIMITS)
    if operation.unready is not None:
        answer = failures["503"]["content"][JSON]
        answer["schema"] = {"anyOf": [answer["schema"], _ref(operation.unready)]}
        failures["503"]["description"] += "; not ready"
    return failures


def _failure(refusals: list[type[Refusal]], links: Links) -> dict[str, Any]:
    rows = [TABLE[refusal] for refusal in refusals]
    shapes = list(dict.fromkeys(row.shape for row in rows))
    schema = _ref(shapes[0]) if len(shapes) == 1 else {"anyOf": [_ref(shape) for shape in shapes]}
    extra = {
        401: ("WWW-Authenticate",), 405: ("Allow",), 426: ("Upgrade",), 428: ("Form-Challenge",), 429: ("Retry-After",), 503: ("Retry-After",),
    }.get(rows[0].status, ())  # fmt: skip
    return {
        "description": "; ".join(dict.fromkeys(f"`{row.code}`" for row in rows)),
        "headers": _headers("X-Request-Id", *extra),
        "content": {
            JSON: {
                "schema": schema,
                "examples": {
                    refusal.__name__: {"value": example_refusal(refusal, links)}
                    for refusal in refusals
                },
            }
        },
    }


def _headers(*names: str) -> dict[str, object]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _ref(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": SCHEMAS.format(name=kind.__name__)}
