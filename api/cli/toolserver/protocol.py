"""A session of the Model Context Protocol over lines: tools served by the package `mcp`.

The package has the protocol, all revisions of it. Its own transport for standard streams has no
bound on a line or on requests, ends calls with the input, answers no damaged line, and waits for
a line when it is cancelled; so the streams are made here. A failed call is a result, not an error.

The extra `mcp` installs the package. It takes long to import: no other module does.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

import msgspec
import trio
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.session import ServerSession
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from ...errors import CommandError
from ...mcp.calls import unknown_tool
from ...mcp.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    SHOWN_CHARACTERS_MAX,
    RpcFault,
    decode,
    failure_text,
)
from ...mcp.outcomes import FRESH_MS, SERVER
from .lines import LINE_OCTETS_MAX
from .toolbox import CALLS_MAX, Report, Toolbox

log = logging.getLogger("mailprobe.tools")

UNSENT_MAX = 100  # lines that a slow client has not read yet; then calls and the reader wait
GRACE_S = 5.0  # from the end of the input: a verification takes 3 s, and a client waits no longer
CACHED = CacheHint(FRESH_MS, "public")  # the same for every caller
BUG = "A bug in mailprobe ended the call. Its standard error says more. Try something else."


async def serve_tools(
    toolbox: Toolbox, lines: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[None]]
) -> None:
    """Answer a client until its lines end. Calls have GRACE_S after that, then they are cancelled."""
    server = server_of(toolbox)
    received, messages = trio.open_memory_channel[SessionMessage | Exception](0)
    unwritten, replies = trio.open_memory_channel[SessionMessage](UNSENT_MAX)
    channel = _ClientChannel(received, unwritten)

    async def write_all() -> None:
        async with replies:
            async for reply in replies:
                line = reply.message.model_dump_json(by_alias=True, exclude_unset=True)
                await write(line.encode())

    async def read_all() -> None:
        async with received:
            async for line in lines:
                await channel.accept(line.strip())
            whole.deadline = trio.current_time() + GRACE_S
            await channel.until_answered()

    with trio.CancelScope() as whole:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_all)
            nursery.start_soon(read_all)
            await server.run(messages, channel, server.create_initialization_options())


class _ClientChannel(msgspec.Struct, frozen=True):
    """The messages of a client, of which CALLS_MAX may wait for an answer, and those for it."""

    received: trio.MemorySendChannel[SessionMessage | Exception]
    unwritten: trio.MemorySendChannel[SessionMessage]
    _room: trio.Semaphore = msgspec.field(
        default_factory=lambda: trio.Semaphore(CALLS_MAX, max_value=CALLS_MAX)
    )

    # -- from the client

    async def accept(self, line: bytes) -> None:
        """Pass a line on, or answer that it is wrong or one too many."""
        if not line:
            return
        if len(line) > LINE_OCTETS_MAX:
            why = f"The line has more than {LINE_OCTETS_MAX} octets. Send less in a message."
            await self._refuse(INVALID_REQUEST, why)
            return
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError as error:
            if error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid":
                await self._refuse(PARSE_ERROR, "The line is not valid JSON.")
            else:
                await self._refuse(INVALID_REQUEST, "The line is not a message of JSON-RPC 2.0.")
            return
        if isinstance(message, JSONRPCRequest):
            try:
                self._room.acquire_nowait()
            except trio.WouldBlock:
                why = f"{CALLS_MAX} requests are under way. Wait until one has ended."
                await self._refuse(INVALID_REQUEST, why, message.id)
                return
        metadata = ServerMessageMetadata(on_request_unanswered=self._make_room)
        await self.received.send(SessionMessage(message, metadata))

    async def until_answered(self) -> None:
        """Wait until no request is under way. It takes all the room: call it last."""
        for _ in range(CALLS_MAX):
            await self._room.acquire()

    async def _make_room(self) -> None:
        self._room.release()

    async def _refuse(self, code: int, why: str, id_: str | int | None = None) -> None:
        error = ErrorData(code=code, message=why)
        await self.unwritten.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=id_, error=error)))

    # -- to the client, as the package writes

    async def send(self, message: SessionMessage) -> None:
        try:
            await self.unwritten.send(message)
        except trio.BrokenResourceError:  # the session ends, and the package says so to each call
            pass
        finally:
            if isinstance(message.message, JSONRPCResponse | JSONRPCError):
                self._room.release()

    async def aclose(self) -> None:
        await self.unwritten.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


def server_of(toolbox: Toolbox) -> Server:
    """The package's server of these tools."""
    definitions = [Tool.model_validate(tool.definition) for tool in toolbox.tools.values()]

    async def list_tools(
        context: ServerRequestContext, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=definitions)

    async def call_tool(
        context: ServerRequestContext, params: CallToolRequestParams
    ) -> CallToolResult:
        try:
            body = await _perform(toolbox, params, _reporting(context.session))
        except RpcFault as fault:
            return _failed(failure_text(fault))
        except CommandError as error:
            return _failed(error.message)
        except Exception:
            log.exception("tool call failed: tool=%s", params.name[:SHOWN_CHARACTERS_MAX])
            return _failed(BUG)
        texts = (body.decode(), *toolbox.notes)
        return CallToolResult(
            content=[TextContent(text=text) for text in texts],
            structured_content=msgspec.json.decode(body),
        )

    return Server(
        SERVER["name"],
        title=SERVER["title"],
        version=SERVER["version"],
        instructions=toolbox.instructions,
        cache_hints={"tools/list": CACHED, "server/discover": CACHED},
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _perform(toolbox: Toolbox, params: CallToolRequestParams, report: Report) -> bytes:
    tool = toolbox.tools.get(params.name)
    if tool is None:
        if (hint := toolbox.elsewhere.get(params.name)) is not None:
            raise CommandError(hint)
        raise unknown_tool(params.name, toolbox.tools, toolbox.docs_url)
    octets = msgspec.json.encode(params.arguments or {})
    taken = await decode(octets, tool.takes, "member arguments", INVALID_PARAMS, toolbox.docs_url)
    return await tool.perform(taken, octets, report)


def _failed(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


def _reporting(session: ServerSession) -> Report:
    reported = 0.0

    async def report(done: float, total: float, words: str) -> None:
        nonlocal reported
        if done > reported:  # it must increase
            reported = done
            await session.report_progress(done, total, words)

    return report
