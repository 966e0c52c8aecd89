"""JSON-RPC 2.0, one message per POST, for plain clients and all versions of MCP.

Up to revision 2025-11-25 MCP begins with `initialize`. Errors of the message itself, not
of HTTP or keys, have status 200: older clients take another status for the end of the
connection. From 2026-07-28 on each request names its method and version in headers and
in `_meta`, both must agree, and the status mirrors the error. Other clients get plain
JSON-RPC. No state is kept between messages.
"""

import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ..error_table import BEFORE_ROUTING, Links, body_of, headers_of, row_of
from ..operations.operation import JSON, OperationReply
from ..refusals import InvalidRequest, Refusal, Section
from ..rest.decoding import check_media_type, parse

VERSION_2026 = "2026-07-28"
HANDSHAKE_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")  # newest first
VERSIONS = (VERSION_2026, *HANDSHAKE_VERSIONS)
VERSION_HEADER = "mcp-protocol-version"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNAUTHORIZED = -32001
UPSTREAM_FAILED = -32002
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022


class FaultRow(Struct, frozen=True):
    """The message of an error code, and its HTTP status unless the fault has its own."""

    message: str
    status: int
    status_2026: int


TABLE: dict[int, FaultRow] = {
    PARSE_ERROR: FaultRow("Parse error", 400, 400),
    INVALID_REQUEST: FaultRow("Invalid Request", 400, 400),
    METHOD_NOT_FOUND: FaultRow("Method not found", 200, 404),
    INVALID_PARAMS: FaultRow("Invalid params", 200, 400),
    INTERNAL_ERROR: FaultRow("Internal error", 500, 500),
    UNAUTHORIZED: FaultRow("Unauthorized", 401, 401),
    # Not used: the fault has the upstream's status.
    UPSTREAM_FAILED: FaultRow("Upstream request failed", 502, 502),
    HEADER_MISMATCH: FaultRow("Header mismatch", 400, 400),
    UNSUPPORTED_VERSION: FaultRow("Unsupported protocol version", 400, 400),
}

SECTION: Section = "tools"
AS_DESCRIBED = "Send it as tools/list and the documentation describe it."
NULL = b"null"
SOUGHT_OCTETS_MAX = 64 * 1024  # a larger refused body is not searched for its id
SHOWN_CHARACTERS_MAX = 80  # of a client's text repeated in an error


@dataclass(eq=False)
class RpcFault(Exception):
    """A JSON-RPC error response."""

    code: int
    data: Mapping[str, Any]
    status: int | None = None  # None: the table's
    headers: Mapping[str, str] = field(default_factory=dict)
    closes: bool = False


def reasoned(code: int, reason: str, action: str, docs_url: str) -> RpcFault:
    """A fault with a reason, an action and a link to the documentation."""
    return RpcFault(code, {"reason": reason, "action": action, "docs": f"{docs_url}#{SECTION}"})


def refused(refusal: Refusal, code: int, links: Links) -> RpcFault:
    """An API refusal as a fault with the same status and headers."""
    row, reported = row_of(refusal), body_of(refusal, links)
    data = {"reason": reported.message, "action": reported.action, "docs": reported.docs}
    return RpcFault(code, data, row.status, headers_of(refusal), row.closes)


# -- requests ----------------------------------------------------------------------------

T = TypeVar("T", bound=Struct)


class Message(Struct, frozen=True):
    """A request, or a notification if it has no id. The response repeats the id verbatim."""

    jsonrpc: Literal["2.0"]
    method: str
    id: Raw = Raw(b"")
    params: Raw = Raw(b"{}")

    @property
    def notifies(self) -> bool:
        return not bytes(self.id)


class Meta(Struct, frozen=True):
    """The `_meta` of a 2026-07-28 request. Older versions have other members."""

    version: str | UnsetType = msgspec.field(
        name="io.modelcontextprotocol/protocolVersion", default=UNSET
    )
    capabilities: dict[str, Raw] | UnsetType = msgspec.field(
        name="io.modelcontextprotocol/clientCapabilities", default=UNSET
    )


class Params(Struct, frozen=True):
    """The members that any method reads of its params; others are ignored.

    The names are the protocol's, so that a duplicate is found.
    """

    name: str | None = None
    arguments: Raw = Raw(NULL)
    protocolVersion: str | None = None
    _meta: Meta | None = None

    @property
    def meta(self) -> Meta:
        return self._meta or Meta()


class _Identified(Struct, frozen=True):
    id: Raw = Raw(NULL)


async def read_message(
    octets: bytes, media_type: str | None, docs_url: str, account_id: str = ""
) -> Message:
    """Decode one message of an account; an array is refused. Raises RpcFault.

    `id: null` is a request, by JSON-RPC; MCP clients never send it.
    """
    try:
        check_media_type(media_type, SECTION)
    except InvalidRequest as refusal:
        action = f"Send the header Content-Type: {JSON}."
        raise reasoned(INVALID_REQUEST, refusal.why, action, docs_url) from None
    message = await decode(octets, Message, "request", INVALID_REQUEST, docs_url, account_id)
    if not message.notifies and not _is_id(message.id):
        why = "The member id is neither a string nor a number nor null."
    elif bytes(message.params)[:1] not in (b"{", b"[", b"n"):  # n: null counts as absent
        why = "The member params is neither an object nor an array."
    else:
        return message
    raise reasoned(INVALID_REQUEST, why, AS_DESCRIBED, docs_url)


async def decode(
    octets: bytes,
    kind: type[T],
    what: str,
    otherwise: int,
    docs_url: str,
    account_id: str = "",
) -> T:
    """Decode bytes as `kind`. Raises RpcFault, with code `otherwise` for JSON of another type.

    A duplicate member counts as malformed JSON: of two readers one would take the first,
    the other the last.
    """
    try:
        return await parse(octets, kind, SECTION, account_id)
    except InvalidRequest as refusal:
        wrong_type = refusal.was_json and not fits(octets, kind)
        why = refusal.why.replace("The body", f"The {what}", 1)
        code = otherwise if wrong_type else PARSE_ERROR
        raise reasoned(code, why, AS_DESCRIBED, docs_url) from None


def members_of(sent: Raw) -> bytes:
    """Params or arguments as bytes; null counts as absent."""
    return b"{}" if bytes(sent) == NULL else bytes(sent)


def fits(octets: bytes, kind: type[Struct]) -> bool:
    """Whether JSON has this type."""
    try:
        msgspec.json.decode(octets, type=kind)
    except msgspec.ValidationError:
        return False
    return True


def id_in(octets: bytes) -> bytes:
    """The id in a body of any content; null if none can be found."""
    if len(octets) > SOUGHT_OCTETS_MAX:
        return NULL
    try:
        found = msgspec.json.decode(octets, type=_Identified).id
        octets.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NULL
    return bytes(found) if _is_id(found) else NULL


def _is_id(found: Raw) -> bool:
    """Whether a well-formed JSON value is an id; its first byte decides."""
    return bytes(found)[:1] not in (b"t", b"f", b"[", b"{", b"")


# -- versions of MCP -----------------------------------------------------------------------------


def speaks_2026(headers: Mapping[str, str]) -> bool:
    return headers.get(VERSION_HEADER) == VERSION_2026


def check_version(headers: Mapping[str, str], docs_url: str) -> None:
    """Raise RpcFault for an MCP version that is not supported."""
    version = headers.get(VERSION_HEADER)
    if version is None or version in VERSIONS:
        return
    fault = reasoned(
        UNSUPPORTED_VERSION, "This version of MCP is not supported.",
        f"Use one of {', '.join(VERSIONS)}.", docs_url,
    )  # fmt: skip
    versions = {"supported": VERSIONS, "requested": version[:SHOWN_CHARACTERS_MAX]}
    raise RpcFault(fault.code, {**versions, **fault.data})


def check_envelope(
    message: Message, params: Params, headers: Mapping[str, str], docs_url: str
) -> None:
    """Raise RpcFault if headers and body differ: a proxy must see the same request as we do."""
    version, meta = headers.get(VERSION_HEADER), params.meta
    mirrored: dict[str, tuple[str | None, str]] = {}
    if speaks_2026(headers):
        if meta.version is UNSET or meta.capabilities is UNSET:
            raise reasoned(
                INVALID_PARAMS, "The _meta lacks the protocol version or the capabilities.",
                f"Send both, as {VERSION_2026} wants it, or begin with initialize.", docs_url,
            )  # fmt: skip
        mirrored["Mcp-Method"] = (headers.get("mcp-method"), message.method)
        if message.method == "tools/call" and params.name is not None:
            mirrored["Mcp-Name"] = (_decoded(headers.get("mcp-name", "")), params.name)
    if meta.version is not UNSET:
        mirrored["MCP-Protocol-Version"] = (version, meta.version)
    for name, (sent, meant) in mirrored.items():
        if sent != meant:
            raise reasoned(
                HEADER_MISMATCH, f"The header {name} differs from the body.",
                "Send the same in both.", docs_url,
            )  # fmt: skip


_CODED = re.compile(r"=\?base64\?(.*)\?=")


def _decoded(value: str) -> str | None:
    """A header's value, decoded if it is in base64; None if it cannot be decoded."""
    coded = _CODED.fullmatch(value)
    if coded is None:
        return value
    try:
        return b64decode(coded[1], validate=True).decode()
    except ValueError:
        return None


# -- responses ----------------------------------------------------------------------------


def result_reply(result: object, id_: bytes, headers: Mapping[str, str]) -> OperationReply:
    """A success. Its status is always 200: MCP's 202 has no result."""
    return OperationReply(
        200, msgspec.json.encode({"jsonrpc": "2.0", "id": Raw(id_), "result": result}), headers
    )


def fault_reply(fault: RpcFault, id_: bytes = NULL, *, modern: bool = False) -> OperationReply:
    """Convert a fault into a response; all faults pass here."""
    row = TABLE[fault.code]
    status = fault.status or (row.status_2026 if modern else row.status)
    error = {"code": fault.code, "message": row.message, "data": fault.data}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": Raw(id_), "error": error})
    challenge = {"WWW-Authenticate": "Bearer"} if status == 401 else {}  # RFC 9110 11.6.1
    return OperationReply(status, body, {**challenge, **fault.headers}, closes=fault.closes)


def failure_text(fault: RpcFault) -> str:
    """Why a call failed and what to do, in one paragraph for a model."""
    data = fault.data
    if "body" not in data:
        return f"{data['reason']} {data['action']}"
    body = msgspec.json.decode(bytes(data["body"]))
    facts = [f"{data['status']} {body['error']}"]
    if "reset_at" in body:
        facts.append(f"reset_at {body['reset_at']}")
    if "Retry-After" in fault.headers:
        facts.append(f"Retry-After {fault.headers['Retry-After']} seconds")
    return f"{body['message']} {body['action']} ({', '.join(facts)})"


def error_body(code: str, links: Links) -> bytes:
    """The body of a refusal by the HTTP server itself, by its code."""
    refusal = BEFORE_ROUTING[code]
    ours = row_of(refusal).status >= 500
    reply = fault_reply(refused(refusal, INTERNAL_ERROR if ours else INVALID_REQUEST, links))
    assert isinstance(reply.body, bytes)
    return reply.body
