"""The tool server without its transport: from a message to the operation and back.

It serves the specification's eight tools, where a failed call is an error of JSON-RPC, or the
wider set, where it is a result: models see results.

Every message needs a standard key. A tool performs its operation through `dispatch`,
so that limits, quota, billing and log lines are those of the API. Management tools
also need a provisioning key, and both keys must belong to one account: a client that
combines keys of two users must not let one act on the other's account.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.records import Caller

from ..error_table import ApiError
from ..observability.request_context import request_scope
from ..operations.operation import Call, Operation, OperationReply, ToolRequest
from ..refusals import (
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
from ..rest.auth import authenticate
from ..rest.dispatch import answer, check_head, refuse
from ..schema import BODY_OCTETS_MAX
from ..service import Service
from .jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NULL,
    SHOWN_CHARACTERS_MAX,
    UNAUTHORIZED,
    UPSTREAM_FAILED,
    Message,
    Params,
    RpcFault,
    check_envelope,
    check_version,
    decode,
    failure_text,
    fault_reply,
    fits,
    id_in,
    members_of,
    read_message,
    reasoned,
    refused,
    result_reply,
    speaks_2026,
)
from .outcomes import (
    METHODS,
    METHODS_2026,
    called,
    constant_results,
    failed,
    initialized,
)
from .tools import (
    INSTRUCTIONS,
    NEEDS_HEADER,
    PROVISIONING_HEADER,
    WIDE_INSTRUCTIONS,
    Tool,
    tools,
    wide_tools,
)

log = logging.getLogger("mailprobe.tools")

# Headers passed on, besides the key.
PASSED_ON = ("idempotency-key", "traceparent", "tracestate", "x-forwarded-for")


T = TypeVar("T", bound=Struct)


class ToolOutcome(Struct, frozen=True):
    """The result of a successful response, and its extra headers."""

    result: object
    headers: Mapping[str, str]


class ToolServer:
    """The tools of one service. It keeps no state between messages."""

    def __init__(self, service: Service, docs_url: str, *, wide: bool = False) -> None:
        self._service = service
        self._docs_url = docs_url
        self._links = replace(service.links, docs_url=docs_url)
        self._fails_in_results = wide
        self._tools = (wide_tools if wide else tools)(NEEDS_HEADER)
        self._instructions = WIDE_INSTRUCTIONS if wide else INSTRUCTIONS
        definitions = [tool.definition for tool in self._tools.values()]
        self.payload = msgspec.json.encode({"tools": definitions})
        self._results = constant_results(definitions, self._instructions)

    async def answer(self, posted: Call) -> OperationReply:
        """Return the response, errors included. Raises only Cancelled.

        `posted` has the octets of the body if they arrived with the head. A notification is
        accepted and ignored: a call without a response would only cost units.
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
            posted.admission.identified(caller.account.id)
            check_head(posted.headers, BODY_OCTETS_MAX)
            posted = replace(posted, body=await posted.read(BODY_OCTETS_MAX))
            media_type = posted.headers.get("content-type")
            message = await read_message(posted.body, media_type, self._docs_url, caller.account.id)
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
            reply = fault_reply(fault, id_ or id_in(posted.body), modern=modern)
        log.info("rpc: status=%d", reply.status, extra={"request": posted.request_id})
        return reply

    def _fault(self, error: Exception, posted: Call) -> RpcFault:
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

    async def _perform(self, caller: Caller, message: Message, posted: Call) -> ToolOutcome:
        headers, method = posted.headers, message.method
        known = METHODS_2026 if speaks_2026(headers) and method != "initialize" else METHODS
        if method not in known:
            raise self._fault_for(
                METHOD_NOT_FOUND, f"There is no method {method[:SHOWN_CHARACTERS_MAX]!r} here.",
                f"Use one of {', '.join(known)}.",
            )  # fmt: skip
        params = await self._decode(
            members_of(message.params), Params, "member params", caller.account.id
        )
        if method == "initialize":
            return ToolOutcome(initialized(params.protocolVersion, self._instructions), {})
        check_envelope(message, params, headers, self._docs_url)
        if method != "tools/call":
            return ToolOutcome(self._results[method], {})
        try:
            return await self._call(caller, params, posted)
        except Exception as error:
            if not self._fails_in_results:
                raise
            fault = self._fault(error, posted)
            return ToolOutcome(failed(failure_text(fault)), fault.headers)

    async def _call(self, caller: Caller, params: Params, posted: Call) -> ToolOutcome:
        tool = self._tool(params.name)
        operation = tool.operation
        authorization = posted.headers["authorization"]
        if operation.key == "provisioning":
            authorization = await self._provisioning(caller, posted.headers)
        octets = members_of(params.arguments)
        try:
            taken = await self._decode(octets, tool.takes, "member arguments", caller.account.id)
        except RpcFault as fault:
            if _is_counted(operation, fault, octets):
                request = ToolRequest(body=octets)
                counted = await self._perform_request(tool, authorization, request, posted)
                if counted.status != 400:  # not counted: an early repeat, or no store
                    raise _upstream(counted) from None
                fault.headers = counted.headers
            raise
        request = tool.request_of(taken, octets)
        reply = await self._perform_request(tool, authorization, request, posted)
        if reply.status >= 400:
            raise _upstream(reply)
        return ToolOutcome(called(await tool.answer_of(taken, reply)), reply.headers)

    def _tool(self, name: str | None) -> Tool:
        tool = self._tools.get(name or "")
        if tool is not None:
            return tool
        raise unknown_tool(name, self._tools, self._docs_url)

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

    async def _perform_request(
        self, tool: Tool, authorization: str, request: ToolRequest, posted: Call
    ) -> OperationReply:
        """Perform the tool's operation as if the request had come to the API."""
        parts = iter((request.body,))

        async def read(octets_max: int) -> bytes:
            return request.body

        async def receive() -> bytes:
            return next(parts, b"")

        sent = {name: posted.headers[name] for name in PASSED_ON if name in posted.headers}
        headers = {"authorization": authorization, **sent, **request.headers}
        call = Call(
            posted.request_id, headers, request.query, request.path, read, receive,
            posted.admission, posted.client,
        )  # fmt: skip
        trace = (headers.get("traceparent", ""), headers.get("tracestate", ""))
        with request_scope(self._service.request_log, posted.request_id, sent=trace):
            return await answer(self._service, tool.operation, call)

    async def _decode(self, octets: bytes, kind: type[T], what: str, account_id: str) -> T:
        return await decode(octets, kind, what, INVALID_PARAMS, self._docs_url, account_id)

    def _fault_for(self, code: int, why: str, action: str) -> RpcFault:
        return reasoned(code, why, action, self._docs_url)


def _is_counted(operation: Operation, fault: RpcFault, octets: bytes) -> bool:
    """Whether malformed arguments cost a unit: if the API would find them malformed, and count it."""
    if not operation.counts_malformed or fault.code != INVALID_PARAMS:
        return False
    return operation.takes is not None and not fits(octets, operation.takes)


def unknown_tool(name: str | None, known: Iterable[str], docs_url: str) -> RpcFault:
    """The fault of a call that names no tool, or one that is not there."""
    why = "The params name no tool."
    if name is not None:
        why = f"There is no tool {name[:SHOWN_CHARACTERS_MAX]!r}."
    return reasoned(INVALID_PARAMS, why, f"Name one of {', '.join(known)}.", docs_url)


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
