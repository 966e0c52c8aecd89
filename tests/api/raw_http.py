"""A client that sends any octets, and a server for it: for tests on real sockets.

With STOCK_HTTP=1 in the environment `serving` runs unmodified hypercorn instead of
our server. This shows which tests fail without the repairs, and later which repairs
are no longer needed.
"""

import json
import math
import os
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import trio
from msgspec.structs import replace

from mailprobe.api.admission.overload import AdmissionQueue
from mailprobe.api.admission.request_bodies import BodyBudget
from mailprobe.api.http.encoder import ErrorBody
from mailprobe.api.http.exchange import UpgradeHandler
from mailprobe.api.http.listeners import listeners_on, open_sockets
from mailprobe.api.http.received_request import Application, Receive, Scope, Send
from mailprobe.api.http.server import serve_app
from mailprobe.api.http.shared import Limits

STOCK = os.environ.get("STOCK_HTTP") == "1"
PATIENCE_S = 60.0  # the longest wait, on a busy machine; only a failing test reaches it
ENDS_S = 5.0  # until a server has ended


def error_body(code: str) -> bytes:
    fields = {"error": code, "message": "m", "action": "a", "docs": "https://docs.test/"}
    return json.dumps(fields).encode()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        fields: dict[str, str] = json.loads(self.body)
        assert fields.keys() == {"error", "message", "action", "docs"}
        assert self.headers["content-type"] == "application/json"
        assert self.headers["x-request-id"]
        return fields["error"]


class Raw:
    """One connection. Every operation waits `PATIENCE_S` at most."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.received = b""

    async def send(self, octets: bytes | str) -> None:
        octets = octets.encode() if isinstance(octets, str) else octets
        with trio.fail_after(PATIENCE_S):
            await self.stream.send_all(octets)

    async def more(self) -> bool:
        with trio.fail_after(PATIENCE_S):
            octets = await self.stream.receive_some(65536)
        self.received += octets
        return bool(octets)

    async def until(self, mark: bytes) -> bytes:
        while mark not in self.received:
            assert await self.more(), f"closed after {self.received!r}"
        found, _, self.received = self.received.partition(mark)
        return found + mark

    async def _exactly(self, count: int) -> bytes:
        while len(self.received) < count:
            assert await self.more(), f"closed after {self.received!r}"
        found, self.received = self.received[:count], self.received[count:]
        return found

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.until(b"\r\n\r\n")).decode().split("\r\n")
        fields = (line.partition(": ") for line in lines[1:-2])
        return int(lines[0].split()[1]), {name.lower(): value for name, _, value in fields}

    async def chunk(self) -> bytes:
        size = int(await self.until(b"\r\n"), 16)
        return (await self._exactly(size + 2))[:-2]

    async def answer(self, *, head_only: bool = False) -> Answer:
        """Return the next whole answer; skip interim ones."""
        status, headers = await self.head()
        while status < 200:
            status, headers = await self.head()
        body = b""
        if head_only or status in (204, 304):
            pass
        elif "content-length" in headers:
            body = await self._exactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            while chunk := await self.chunk():
                body += chunk
        else:
            body = await self.rest()
        return Answer(status, headers, body)

    async def request(self, octets: bytes | str) -> Answer:
        await self.send(octets)
        return await self.answer()

    async def rest(self) -> bytes:
        """Return all octets until the server closes."""
        while await self.more():
            pass
        found, self.received = self.received, b""
        return found

    async def assert_closed(self) -> None:
        with suppress(trio.BrokenResourceError):  # a reset counts as closed
            assert await self.rest() == b""


@asynccontextmanager
async def connected(port: int, *, receive_octets: int | None = None) -> AsyncIterator[Raw]:
    sock = trio.socket.socket()
    if receive_octets is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_octets)
    async with trio.SocketStream(sock) as stream:
        await sock.connect(("127.0.0.1", port))
        yield Raw(stream)


class Serving:
    """A running server: its port, and its end."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.drain = trio.Event()
        self.ended = trio.Event()
        self.cancel_scope = trio.CancelScope()

    def connect(self, *, receive_octets: int | None = None) -> AbstractAsyncContextManager[Raw]:
        return connected(self.port, receive_octets=receive_octets)

    async def request(self, octets: bytes | str) -> Answer:
        async with self.connect() as raw:
            return await raw.request(octets)

    async def assert_ends(self, within_s: float = ENDS_S) -> None:
        self.drain.set()
        with trio.fail_after(within_s):
            await self.ended.wait()


# Short enough for tests; a test of one of the limits sets its own.
LIMITS = Limits(
    head_s=3.0, body_s=3.0, refuse_s=0.1, keep_alive_s=3.0, send_s=3.0, linger_s=1.0, drain_s=3.0
)


@asynccontextmanager
async def serving(
    app: Application,
    admission_queue: AdmissionQueue | None = None,
    *,
    intake: BodyBudget | None = None,
    vital: Iterable[bytes] = (),
    upgrade: UpgradeHandler | None = None,
    error_body: ErrorBody = error_body,
    **limits: Any,
) -> AsyncIterator[Serving]:
    """Serve this ASGI application on a free port of loopback."""
    (sock,) = open_sockets("127.0.0.1", 0)
    server = Serving(sock.getsockname()[1])

    async def run(task_status: trio.TaskStatus[None]) -> None:
        with server.cancel_scope:
            if STOCK:
                await serve_stock(app, sock, server, replace(LIMITS, **limits), task_status)
            else:
                await serve_app(
                    app,
                    listeners_on([sock]),
                    drain=server.drain,
                    error_body=error_body,
                    limits=replace(LIMITS, **limits),
                    admission_queue=admission_queue,
                    intake=intake,
                    vital=vital,
                    upgrades={b"/live": upgrade} if upgrade else {},
                    task_status=task_status,
                )
        server.ended.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        try:
            yield server
        finally:
            server.cancel_scope.cancel()


async def serve_stock(
    app: Application,
    sock: socket.socket,
    server: Serving,
    limits: Limits,
    task_status: trio.TaskStatus[Any],
) -> None:
    from hypercorn.config import Config
    from hypercorn.trio import serve

    config = Config()
    config.bind = [f"fd://{sock.detach()}"]
    config.keep_alive_timeout = limits.keep_alive_s
    config.graceful_timeout = limits.drain_s
    config.errorlog = None

    async def without_lifespan(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for word in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{word}.complete"})

    await serve(
        without_lifespan, config, shutdown_trigger=server.drain.wait, task_status=task_status
    )


async def read_body(receive: Receive) -> bytes:
    """Return the whole body, as an application reads it."""
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return body
        body += message["body"]
        if not message["more_body"]:
            return body


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, b"ok")


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the received body."""
    await respond(send, await read_body(receive))


class Streaming:
    """An application that sends a line each time one is put, and records how it ended."""

    def __init__(self) -> None:
        self.put, self._lines = trio.open_memory_channel[bytes](math.inf)
        self.begun = trio.Event()
        self.ended = trio.Event()
        self.whole = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await read_body(receive)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            self.begun.set()
            async for line in self._lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            self.whole = True
        finally:
            self.ended.set()


async def respond(send: Send, body: bytes = b"ok", status: int = 200) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
