"""A session of the Model Context Protocol over lines: JSON-RPC 2.0, one message or batch a line.

The client may begin with `initialize` (revisions up to 2025-11-25) or name its version in the
`_meta` of each request (2026-07-28). Calls run side by side and are answered in the order in
which they end; a client may cancel each by its id. A failed call is a result, not an error.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec
import trio
from msgspec import UNSET, Raw, Struct, UnsetType

from mailprobe.api.cli.toolserver.lines import LINE_OCTETS_MAX
from mailprobe.api.errors import CommandError
from mailprobe.api.mcp.calls import unknown_tool
from mailprobe.api.mcp.jsonrpc import (
    AS_DESCRIBED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    SHOWN_CHARACTERS_MAX,
    VERSION_2026,
    VERSION_HEADER,
    Message,
    Params,
    RpcFault,
    check_version,
    decode,
    failure_text,
    fault_reply,
    id_in,
    members_of,
    read_message,
    reasoned,
    result_reply,
)
from mailprobe.api.mcp.outcomes import (
    METHODS,
    METHODS_2026,
    called,
    constant_results,
    failed,
    initialized,
    negotiated,
)
from mailprobe.api.rest.messages import JSON, OperationReply

log = logging.getLogger("mailprobe.tools")

BATCHES_IN = "2025-03-26"  # the only revision in which a line may be an array of messages
BATCH_MAX = 100  # messages in an array: more than any client of that revision sends
CALLS_MAX = 100  # under way at a time: a model makes a few
UNSENT_MAX = 100  # lines that a slow client has not read yet; then calls wait
GRACE_S = 5.0  # from the end of the input: a verification takes 3 s, and a client waits no longer

T = TypeVar("T", bound=Struct)

Report = Callable[[float, float, str], None]
"""Reports how much is done, of how much, in words. Never waits."""


def report_nothing(done: float, total: float, words: str) -> None:
    """The Report of a call whose client asked for no progress."""


@dataclass(frozen=True, slots=True)
class SessionTool:
    """A tool: its definition, the type of its arguments, and what a call does.

    `perform` takes the arguments, decoded and as sent, and returns an object in JSON on one line.
    It raises RpcFault or CommandError for what a model should read.
    """

    definition: Mapping[str, object]
    takes: type[Struct]
    perform: Callable[[Any, bytes, Report], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a session by name.

    `elsewhere`: what to say of tools that it does not have. `notes` are said with each result.
    """

    tools: Mapping[str, SessionTool]
    instructions: str
    docs_url: str
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


class Lines(Protocol):
    """Where the messages come from."""

    async def receive(self) -> bytes | None: ...


class _Reply(Struct, frozen=True):
    """A message of the client that answers one of ours; there are none, so it is ignored."""

    method: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class _ProgressMeta(Struct, frozen=True):
    progressToken: str | int | None = None


class _ProgressParams(Struct, frozen=True):
    _meta: _ProgressMeta | None = None


class _Cancelled(Struct, frozen=True):
    requestId: str | int | float | None = None


@dataclass(eq=False, slots=True)
class _Call:
    """A call under way."""

    id: bytes
    params: Params
    progress_token: str | int | None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    reported: float = 0.0


class ToolSession:
    """One client's session; `run()` ends with its input."""

    def __init__(self, toolbox: Toolbox, source: Lines, sink: Callable[[bytes], Awaitable[None]]):
        self._toolbox = toolbox
        self._source = source
        self._sink = sink
        self._version: str | None = None  # None before initialize
        self._calls: dict[str | int | float, _Call] = {}
        definitions = [tool.definition for tool in toolbox.tools.values()]
        self._results = constant_results(definitions, toolbox.instructions)
        self._unsent, self._lines = trio.open_memory_channel[bytes](UNSENT_MAX)

    async def run(self) -> None:
        """Answer until the input ends. Calls have GRACE_S after that, then they are cancelled."""
        with trio.CancelScope() as whole:
            async with trio.open_nursery() as writing:
                writing.start_soon(self._write)
                async with self._unsent, trio.open_nursery() as calls:
                    while (line := await self._source.receive()) is not None:
                        await self._handle(line.strip(), calls)
                    whole.deadline = trio.current_time() + GRACE_S

    async def _write(self) -> None:
        async for line in self._lines:
            await self._sink(line)

    async def _handle(self, line: bytes, calls: trio.Nursery) -> None:
        if not line:
            return
        if len(line) > LINE_OCTETS_MAX:
            why = f"The line has more than {LINE_OCTETS_MAX} octets."
            await self._send_fault(self._fault(INVALID_REQUEST, why, "Send less in a message."))
        elif line.startswith(b"["):
            await self._handle_batch(line, calls)
        else:
            begun = await self._begin(line)
            if isinstance(begun, bytes):
                await self._unsent.send(begun)
            elif begun is not None:
                calls.start_soon(self._answer, begun)

    async def _handle_batch(self, line: bytes, calls: trio.Nursery) -> None:
        if self._version != BATCHES_IN:
            why = f"An array of messages is taken in revision {BATCHES_IN} of MCP only."
            await self._send_fault(self._fault(INVALID_REQUEST, why, "Send one message a line."))
            return
        try:
            messages = msgspec.json.decode(line, type=list[Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            why = "The line is not valid JSON."
            await self._send_fault(self._fault(PARSE_ERROR, why, AS_DESCRIBED))
            return
        if not 1 <= len(messages) <= BATCH_MAX:
            why = f"The array has {len(messages)} messages."
            how = f"Send 1 to {BATCH_MAX} messages in an array."
            await self._send_fault(self._fault(INVALID_REQUEST, why, how))
            return
        begun = [await self._begin(bytes(message)) for message in messages]
        calls.start_soon(self._answer_batch, begun)

    async def _answer_batch(self, begun: "Sequence[bytes | _Call | None]") -> None:
        """Send the replies as one array once all are there; nothing if there are none."""
        replies: list[bytes] = [each for each in begun if isinstance(each, bytes)]

        async def run(call: _Call) -> None:
            if (reply := await self._run(call)) is not None:
                replies.append(reply)

        async with trio.open_nursery() as nursery:
            for each in begun:
                if isinstance(each, _Call):
                    nursery.start_soon(run, each)
        if replies:
            await self._unsent.send(b"[" + b",".join(replies) + b"]")

    async def _answer(self, call: _Call) -> None:
        if (reply := await self._run(call)) is not None:
            await self._unsent.send(reply)

    # -- one message

    async def _begin(self, octets: bytes) -> bytes | _Call | None:
        """The reply of a message that has one at once, the call of one that has it later."""
        id_: bytes | None = None
        try:
            message = await read_message(octets, JSON, self._toolbox.docs_url)
            if message.notifies:
                self._notice(message)
                return None
            id_ = bytes(message.id)
            result = await self._result(message)
        except RpcFault as fault:
            if _is_reply(octets):
                return None
            return _octets(fault_reply(fault, id_ or id_in(octets)))
        if isinstance(result, _Call):
            return result
        return _octets(result_reply(result, id_, {}))

    async def _result(self, message: Message) -> dict[str, object] | _Call:
        """Perform a request, or begin a call. Raises RpcFault."""
        octets = members_of(message.params)
        params = await self._decode(octets, Params, "member params")
        version = params.meta.version
        if version is not UNSET:
            check_version({VERSION_HEADER: version}, self._toolbox.docs_url)
        known = METHODS_2026 if version == VERSION_2026 else METHODS
        if message.method not in known:
            why = f"There is no method {message.method[:SHOWN_CHARACTERS_MAX]!r} here."
            raise self._fault(METHOD_NOT_FOUND, why, f"Use one of {', '.join(known)}.")
        if message.method == "initialize":
            self._version = negotiated(params.protocolVersion)
            return initialized(params.protocolVersion, self._toolbox.instructions)
        if message.method != "tools/call":
            return self._results[message.method]
        wanted = await self._decode(octets, _ProgressParams, "member params")
        token = None if wanted._meta is None else wanted._meta.progressToken
        return self._register(_Call(bytes(message.id), params, token))

    def _register(self, call: _Call) -> _Call:
        key = msgspec.json.decode(call.id)
        if key in self._calls:
            why = "A call with this id is under way."
            raise self._fault(INVALID_REQUEST, why, "Give each request another id.")
        if len(self._calls) >= CALLS_MAX:
            why = f"{CALLS_MAX} calls are under way."
            raise self._fault(INVALID_REQUEST, why, "Wait until one has ended.")
        self._calls[key] = call
        return call

    def _notice(self, message: Message) -> None:
        """Take a notification; those that are not known are ignored."""
        if message.method != "notifications/cancelled":
            return
        try:
            cancelled = msgspec.json.decode(members_of(message.params), type=_Cancelled).requestId
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if cancelled is not None and (call := self._calls.get(cancelled)) is not None:
            call.scope.cancel()

    # -- calls

    async def _run(self, call: _Call) -> bytes | None:
        """Run a call; its reply, or None if it was cancelled."""
        result = None
        try:
            with call.scope:
                result = called(await self._perform(call), self._toolbox.notes)
        except RpcFault as fault:
            result = failed(failure_text(fault))
        except CommandError as error:
            result = failed(error.message)
        except Exception:
            log.exception(
                "tool call failed: tool=%s", (call.params.name or "")[:SHOWN_CHARACTERS_MAX]
            )
            result = failed(
                "A bug in mailprobe ended the call. Its standard error says more. Try something else."
            )
        finally:
            del self._calls[msgspec.json.decode(call.id)]
        if call.scope.cancelled_caught or result is None:
            return None
        return _octets(result_reply(result, call.id, {}))

    async def _perform(self, call: _Call) -> bytes:
        name = call.params.name
        tool = self._toolbox.tools.get(name or "")
        if tool is None:
            if (hint := self._toolbox.elsewhere.get(name or "")) is not None:
                raise CommandError(hint)
            raise unknown_tool(name, self._toolbox.tools, self._toolbox.docs_url)
        octets = members_of(call.params.arguments)
        taken = await self._decode(octets, tool.takes, "member arguments")
        return await tool.perform(taken, octets, self._reporting(call))

    def _reporting(self, call: _Call) -> Report:
        if call.progress_token is None:
            return report_nothing

        def report(done: float, total: float, words: str) -> None:
            if done <= call.reported:  # it must increase
                return
            params = {
                "progressToken": call.progress_token, "progress": done, "total": total, "message": words,
            }  # fmt: skip
            line = msgspec.json.encode(
                {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
            )
            try:
                self._unsent.send_nowait(line)
            except trio.WouldBlock:  # the client reads slowly: the next one tells as much
                return
            call.reported = done

        return report

    # -- faults

    async def _decode(self, octets: bytes, kind: type[T], what: str) -> T:
        return await decode(octets, kind, what, INVALID_PARAMS, self._toolbox.docs_url)

    def _fault(self, code: int, why: str, action: str) -> RpcFault:
        return reasoned(code, why, action, self._toolbox.docs_url)

    async def _send_fault(self, fault: RpcFault) -> None:
        await self._unsent.send(_octets(fault_reply(fault)))


def _octets(reply: OperationReply) -> bytes:
    assert isinstance(reply.body, bytes)
    return reply.body


def _is_reply(octets: bytes) -> bool:
    """Whether a message that is no request answers one."""
    try:
        reply = msgspec.json.decode(octets, type=_Reply)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return reply.method is UNSET and not (reply.result is UNSET and reply.error is UNSET)
