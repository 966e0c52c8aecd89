"""A client of a session in this process."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio
import trio.testing

from mailprobe.api.cli.toolserver.toolbox import Toolbox

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


@dataclass
class ToolClient:
    """Sends messages to a session, and receives what it writes, line by line."""

    lines: trio.MemorySendChannel[bytes]
    written: trio.MemoryReceiveChannel[bytes]

    async def send(self, message: Any) -> None:
        octets = message if isinstance(message, bytes) else json.dumps(message).encode()
        await self.lines.send(octets)

    async def request(self, method: str, params: Any = None, id_: Any = 1) -> None:
        more = {} if params is None else {"params": params}
        await self.send({"jsonrpc": "2.0", "id": id_, "method": method, **more})

    async def notify(self, method: str, params: Any) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def call(self, tool: str, arguments: Any, *, id_: Any = 1, token: Any = None) -> None:
        meta = {} if token is None else {"_meta": {"progressToken": token}}
        await self.request("tools/call", {"name": tool, "arguments": arguments, **meta}, id_)

    async def next(self) -> Any:
        """The next message of the session."""
        line = await self.written.receive()
        assert b"\n" not in line
        return json.loads(line)

    async def result(self, tool: str, arguments: Any) -> Any:
        """The object that a call returns."""
        await self.call(tool, arguments)
        result = (await self.next())["result"]
        assert not result["isError"], result
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        return result["structuredContent"]

    async def failure(self, tool: str, arguments: Any) -> str:
        """The text of a call that fails."""
        await self.call(tool, arguments)
        result = (await self.next())["result"]
        assert result["isError"], result
        return result["content"][0]["text"]  # type: ignore[no-any-return]

    async def nothing(self) -> None:
        """Assert that the session has nothing more to say to what it got."""
        await trio.testing.wait_all_tasks_blocked()
        assert self.written.statistics().current_buffer_used == 0


@asynccontextmanager
async def open_session(toolbox: Toolbox, *, begins: bool = True) -> AsyncIterator[ToolClient]:
    """A session with these tools, initialized if it `begins`.

    Its input ends with the block, and it must then end too.
    """
    # 0.6 s for `mcp`, which every process would take to collect these tests
    from mailprobe.api.cli.toolserver.protocol import serve_tools

    lines, source = trio.open_memory_channel[bytes](200)
    sink, written = trio.open_memory_channel[bytes](200)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_tools, toolbox, source, sink.send)
        async with lines:
            client = ToolClient(lines, written)
            if begins:
                await client.request("initialize", INITIALIZE)
                await client.next()
                await client.notify("notifications/initialized", {})
            yield client
