"""A live socket without a network: the server's half and the library's client, on memory streams."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio
from trio.testing import memory_stream_pair
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from mailprobe.api.admission.connections import LiveConnections
from mailprobe.api.live.server import LiveServer
from tests.api.service_fixture import RunningService

LIVE = "/v1/email/verify/live"


class Live:
    """The client of one live socket; `lines` are what it has received."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self.socket = socket
        self.lines: list[Any] = []
        self.closed: int | None = None

    async def send(self, *lines: Any) -> None:
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        await self.socket.send_message("\n".join(texts))

    async def receive(self) -> bool:
        """Receive a message; False once the service has closed, with `closed` as its code."""
        try:
            message = await self.socket.get_message()
        except ConnectionClosed as closed:
            self.closed = closed.reason.code if closed.reason else 1006
            return False
        self.lines += [json.loads(line) for line in str(message).split("\n")]
        return True

    async def until(self, type: str, count: int = 1) -> list[Any]:
        """Receive until there are so many lines of a type; return all of them."""
        while len(self.of(type)) < count:
            assert await self.receive(), f"closed with {self.closed} after {self.lines[-3:]}"
        return self.of(type)

    async def until_closed(self) -> int:
        while await self.receive():
            pass
        assert self.closed is not None
        return self.closed

    def of(self, type: str) -> list[Any]:
        return [line for line in self.lines if line["type"] == type]


async def _hand_over(live: LiveServer, wire: trio.abc.Stream) -> None:
    """Read the head of the request as the HTTP server does, and pass the rest on."""
    octets = b""
    while b"\r\n\r\n" not in octets:
        octets += await wire.receive_some()
    head, _, rest = octets.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    target, _, query = first.split()[1].partition(b"?")
    fields = [(name.lower(), value) for name, value in (line.split(b": ", 1) for line in lines)]
    await live.serve(
        {"raw_path": target, "query_string": query, "headers": fields, "state": {}}, wire, rest
    )


@asynccontextmanager
async def open_live(
    shop: RunningService,
    live: LiveServer | None = None,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    path: str = LIVE,
) -> AsyncIterator[Live]:
    """Open a live socket with the shop's key. Raises ConnectionRejected, in groups."""
    live = live or LiveServer(shop.service, LiveConnections(trio.Event()))
    ours: Any
    ours, theirs = memory_stream_pair()
    sent = {"Authorization": f"Bearer {key or shop.key}"} if headers is None else headers
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hand_over, live, theirs)
        socket = await wrap_client_stream(
            nursery, ours, "api.test", path,
            extra_headers=[(name.encode(), text.encode()) for name, text in sent.items()],
        )  # fmt: skip
        yield Live(socket)
        await trio.aclose_forcefully(ours)
        nursery.cancel_scope.cancel()


HANDSHAKE = (
    f"GET {LIVE} HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)


@asynccontextmanager
async def open_raw(shop: RunningService, live: LiveServer) -> AsyncIterator[trio.abc.Stream]:
    """A client that has said the handshake, and nothing that a library would say."""
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hand_over, live, theirs)
        await ours.send_all(f"{HANDSHAKE}Authorization: Bearer {shop.key}\r\n\r\n".encode())
        assert (await ours.receive_some()).startswith(b"HTTP/1.1 101 ")
        yield ours
        await trio.aclose_forcefully(ours)
        nursery.cancel_scope.cancel()
