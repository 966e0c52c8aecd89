"""The tool server without its transport: from a message to the operation and back.

Every message needs a standard key. A tool performs its operation through `dispatch`,
so that limits, quota, billing and log lines are those of the API. Management tools
also need a provisioning key, and both keys must belong to one account: a client that
combines keys of two users must not let one act on the other's account.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from mailprobe.api.admission.held import NO_ADMISSION, Admission
from mailprobe.api.mcp.jsonrpc import (
    HANDSHAKE_VERSIONS,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NULL,
    SHOWN_CHARACTERS_MAX,
    UNAUTHORIZED,
    UPSTREAM_FAILED,
    VERSIONS,
    Message,
    Params,
    RpcFault,
    check_envelope,
    check_version,
    decode,
    fault_reply,
    id_in,
    read_message,
    reasoned,
    refused,
    result_reply,
    speaks_2026,
)
from mailprobe.api.mcp.tools import (
    INSTRUCTIONS,
    PROVISIONING_HEADER,
    KeyId,
    arguments_of,
    define,
)
from mailprobe.api.refusals import (
    InvalidKey,
    MissingKey,
    OurFault,
    PayloadTooLarge,
    Refusal,
    SlowBody,
    UnsupportedCoding,
    UsageUnknown,
    WrongKeyType,
)
from mailprobe.api.rest.auth import authenticate
from mailprobe.api.rest.dispatch import answer, check_head, refuse
from mailprobe.api.rest.messages import Inbound, Operation, OperationReply
from mailprobe.api.rest.openapi import VERSION
from mailprobe.api.rest.operations import OPERATIONS
from mailprobe.api.schema import BODY_OCTETS_MAX, ApiError
from mailprobe.api.service import Service
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.records import Caller

log = logging.getLogger("mailprobe.tools")

SERVER = {"name": "mailprobe", "title": "mailprobe", "version": VERSION}
CAPABILITIES: dict[str, Any] = {"tools": {"listChanged": False}}
FRESH_MS = 600_000  # clients may cache the tool list for ten minutes
COMPLETE = {"resultType": "complete", "_meta": {"io.modelcontextprotocol/serverInfo": SERVER}}
CACHED = {**COMPLETE, "ttlMs": FRESH_MS, "cacheScope": "public"}  # the same for every caller

METHODS_2026 = ("server/discover", "tools/list", "tools/call")
METHODS = (*METHODS_2026, "initialize", "ping")  # for clients of other versions
PASSED_ON = ("idempotency-key",)  # headers passed to the operation, besides the key

_encode = msgspec.json.Encoder().encode

T = TypeVar("T", bound=Struct)


@dataclass(frozen=True, slots=True)
class Posted:
    """A POST request. Header names are in lower case; `read` is that of Inbound.

    `octets` is the body if it arrived with the head, or once it was read.
    """

    request_id: str
    headers: Mapping[str, str]
    read: Callable[[int], Awaitable[bytes]]
    octets: bytes = b""
    admission: Admission = NO_ADMISSION


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The result of a successful response, and its extra headers."""

    result: Any
    headers: Mapping[str, str]


class ToolServer:
    """The tools of one service. It keeps no state between messages."""

    def __init__(self, service: Service, docs_url: str) -> None:
        self._service = service
        self._docs_url = docs_url
        self._links = replace(service.links, docs_url=docs_url)
        self._operations = {each.name: each for each in OPERATIONS if each.tool}
        self.payload = _encode({"tools": define(OPERATIONS, service.links)})
        self._results = {
            "ping": {},
            "tools/list": {**msgspec.json.decode(self.payload), **CACHED},
            "server/discover": {
                "supportedVersions": VERSIONS, "capabilities": CAPABILITIES,
                "instructions": INSTRUCTIONS, **CACHED,
            },
        }  # fmt: skip

    async def answer(self, posted: Posted) -> OperationReply:
        """Return the response, errors included. Raises only Cancelled.

        A notification is accepted and ignored: a call without a response would only
        cost units.
        """
        modern = speaks_2026(posted.headers)
        id_: bytes | None = None
        try:
            authorization = posted.headers.get("authorization")
            caller = await authenticate(
                self._service.store,
                authorization,
                "standard",
                takes_test_keys=self._service.takes_test_keys,
            )
            posted.admission.identified(caller.key.id)
            check_head(posted.headers, BODY_OCTETS_MAX)
            posted = replace(posted, octets=await posted.read(BODY_OCTETS_MAX))
            media_type = posted.headers.get("content-type")
            message = await read_message(posted.octets, media_type, self._docs_url)
            id_ = NULL if message.notifies else bytes(message.id)
            if message.method != "initialize":  # which negotiates the version
                check_version(posted.headers, self._docs_url)
            if message.notifies:
                return OperationReply(202)
            self._service.assistants.add(caller.account.id)
            outcome = await self._perform(caller, message, posted)
            reply = result_reply(outcome.result, id_, outcome.headers)
        except Exception as error:
            fault = self._fault(error, posted)
            reply = fault_reply(fault, id_ or id_in(posted.octets), modern=modern)
        log.info("rpc: status=%d", reply.status, extra={"request": posted.request_id})
        return reply

    def _fault(self, error: Exception, posted: Posted) -> RpcFault:
        match error:
            case RpcFault():
                return error
            case PayloadTooLarge() | SlowBody() | UnsupportedCoding():
                return refused(error, INVALID_REQUEST, self._links)
            case Refusal():
                return refused(error, UNAUTHORIZED, self._links)
            case StoreUnavailable():
                log.error(
                    "store unavailable: error=%s", error, extra={"request": posted.request_id}
                )
                return _upstream(refuse(self._service, UsageUnknown()))
        log.error("tool call failed: request=%s", posted.request_id, exc_info=error)
        return refused(OurFault(posted.request_id), INTERNAL_ERROR, self._links)

    async def _perform(self, caller: Caller, message: Message, posted: Posted) -> ToolOutcome:
        headers, method = posted.headers, message.method
        known = METHODS_2026 if speaks_2026(headers) and method != "initialize" else METHODS
        if method not in known:
            raise self._fault_for(
                METHOD_NOT_FOUND, f"There is no method {method[:SHOWN_CHARACTERS_MAX]!r} here.",
                f"Use one of {', '.join(known)}.",
            )  # fmt: skip
        params = await self._decode(_members(message.params), Params, "member params")
        if method == "initialize":
            return ToolOutcome(_initialized(params.protocolVersion), {})
        check_envelope(message, params, headers, self._docs_url)
        if method == "tools/call":
            return await self._call(caller, params, posted)
        return ToolOutcome(self._results[method], {})

    async def _call(self, caller: Caller, params: Params, posted: Posted) -> ToolOutcome:
        operation = self._operation(params.name)
        authorization = posted.headers["authorization"]
        if operation.key == "provisioning":
            authorization = await self._provisioning(caller, posted.headers)
        octets = _members(params.arguments)
        try:
            taken = await self._decode(octets, arguments_of(operation), "member arguments")
        except RpcFault as fault:
            if operation.counts_malformed and fault.code == INVALID_PARAMS:
                counted = await self._call_operation(operation, authorization, {}, octets, posted)
                if counted.status != 400:  # not counted: an early repeat, or no store
                    raise _upstream(counted) from None
                fault.headers = counted.headers
            raise
        path = {"id": taken.id} if isinstance(taken, KeyId) else {}
        reply = await self._call_operation(operation, authorization, path, octets, posted)
        if reply.status >= 400:
            raise _upstream(reply)
        return _called(reply, path)

    def _operation(self, name: str | None) -> Operation:
        operation = self._operations.get(name or "")
        if operation is not None:
            return operation
        why = "The params name no tool."
        if name is not None:
            why = f"There is no tool {name[:SHOWN_CHARACTERS_MAX]!r}."
        raise self._fault_for(INVALID_PARAMS, why, f"Name one of {', '.join(self._operations)}.")

    async def _provisioning(self, caller: Caller, headers: Mapping[str, str]) -> str:
        """The authorization of a management tool. Raises RpcFault for another account's key."""
        key = headers.get(PROVISIONING_HEADER.lower(), "").strip()
        try:
            manager = await authenticate(
                self._service.store, f"Bearer {key}" if key else None, "provisioning"
            )
        except MissingKey:
            why = f"The tool needs the header {PROVISIONING_HEADER}."
        except InvalidKey:
            why = f"The key in {PROVISIONING_HEADER} is not known or has been revoked."
        except WrongKeyType:
            why = f"The key in {PROVISIONING_HEADER} is a standard key."
        else:
            if manager.account.id == caller.account.id:
                return f"Bearer {key}"
            why = f"The keys in Authorization and {PROVISIONING_HEADER} are of two accounts."
        raise self._fault_for(
            UNAUTHORIZED, why,
            f"Send {PROVISIONING_HEADER}: <key> with a provisioning key (sk_mgmt_…) of the same "
            "account, beside Authorization: Bearer <standard key>.",
        )  # fmt: skip

    async def _call_operation(
        self,
        operation: Operation,
        authorization: str,
        path: Mapping[str, str],
        octets: bytes,
        posted: Posted,
    ) -> OperationReply:
        """Perform the operation with the arguments as the body of its request."""

        async def read(octets_max: int) -> bytes:
            return octets

        sent = {name: posted.headers[name] for name in PASSED_ON if name in posted.headers}
        headers = {"authorization": authorization, **sent}
        inbound = Inbound(posted.request_id, headers, {}, path, read, admission=posted.admission)
        return await answer(self._service, operation, inbound)

    async def _decode(self, octets: bytes, kind: type[T], what: str) -> T:
        return await decode(octets, kind, what, INVALID_PARAMS, self._docs_url)

    def _fault_for(self, code: int, why: str, action: str) -> RpcFault:
        return reasoned(code, why, action, self._docs_url)


def _members(sent: Raw) -> bytes:
    """Params or arguments as bytes; null counts as absent."""
    return b"{}" if bytes(sent) == NULL else bytes(sent)


def _initialized(version: str | None) -> dict[str, Any]:
    """The result of `initialize`: the requested version, or the newest with a handshake."""
    return {
        "protocolVersion": version if version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0],
        "capabilities": CAPABILITIES,
        "serverInfo": SERVER,
        "instructions": INSTRUCTIONS,
    }


def _called(reply: OperationReply, path: Mapping[str, str]) -> ToolOutcome:
    """A tool's result: the object, and its JSON as text for older clients."""
    assert isinstance(reply.body, bytes)
    body = reply.body or _encode({"revoked": True, "id": path["id"].lower()})
    result = {
        "content": [{"type": "text", "text": body.decode()}],
        "structuredContent": Raw(body),
        "isError": False,
        **COMPLETE,
    }
    return ToolOutcome(result, reply.headers)


def _upstream(reply: OperationReply) -> RpcFault:
    """An operation's refusal as a fault with its status, body and headers."""
    assert isinstance(reply.body, bytes)
    reported = msgspec.json.decode(reply.body, type=ApiError)
    if reply.status in (401, 403):  # the key was revoked in between
        reason = {"reason": reported.message, "action": reported.action, "docs": reported.docs}
        return RpcFault(UNAUTHORIZED, reason, headers=reply.headers)
    data = {
        "status": reply.status, "body": Raw(reply.body), "action": reported.action, "docs": reported.docs,
    }  # fmt: skip
    return RpcFault(UPSTREAM_FAILED, data, reply.status, reply.headers, reply.closes)
