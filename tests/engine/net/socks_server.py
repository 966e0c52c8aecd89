"""Small servers on loopback: SOCKS5 proxies, and others."""

import atexit
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import trio

Handler = Callable[[trio.SocketStream], Awaitable[None]]


@asynccontextmanager
async def open_server(handler: Handler, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A server on a free port; what its handler raises on a broken connection is let go."""

    async def handle(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async with stream:
                await handler(stream)

    listener = trio.socket.socket(
        trio.socket.AF_INET6 if ":" in host else trio.socket.AF_INET, trio.socket.SOCK_STREAM
    )
    await listener.bind((host, 0))
    listener.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, [trio.SocketListener(listener)])
        yield listener.getsockname()[1]
        nursery.cancel_scope.cancel()


async def greet(stream: trio.SocketStream) -> None:
    await stream.send_all(b"220 mx.test\r\n")
    await stream.receive_some()  # until the client hangs up


def closed_port() -> int:
    """A port that nobody listens at."""
    bound = socket.socket()
    atexit.register(bound.close)  # kept bound until then, so that no other program gets its port
    bound.bind(("127.0.0.1", 0))
    port: int = bound.getsockname()[1]
    return port


@dataclass
class Socks:
    """A SOCKS5 server for one user, or for everybody; `says` replaces its reply."""

    user: bytes | None = None
    password: bytes = b""
    says: int | None = None
    silent: bool = False
    hang_up: bool = False
    garbage: bool = False
    drops: bool = False  # hangs up after the request, without a reply
    gives_up: Callable[[], object] | None = None  # called at the request, which gets no reply
    reaches: frozenset[str] = frozenset()  # targets for which `says` does not hold
    bound: bytes = b"\1\0\0\0\0\0\0"  # address type, address and port in its reply
    asked: list[tuple[str, int]] = field(default_factory=list)
    connections: int = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        if self.silent:
            await stream.receive_some(1)
            await trio.sleep_forever()
        version, count = await exactly(stream, 2)
        methods = await exactly(stream, count)
        if self.hang_up:
            return
        if self.garbage:
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return
        wanted = 0 if self.user is None else 2
        if version != 5 or wanted not in methods:
            await stream.send_all(b"\5\xff")
            return
        await stream.send_all(bytes([5, wanted]))
        if wanted == 2 and not await self.authenticate(stream):
            return
        await self.connect(stream)

    async def authenticate(self, stream: trio.SocketStream) -> bool:
        _, length = await exactly(stream, 2)
        user = await exactly(stream, length)
        password = await exactly(stream, (await exactly(stream, 1))[0])
        right = (user, password) == (self.user, self.password)
        await stream.send_all(b"\1\0" if right else b"\1\1")
        return right

    async def connect(self, stream: trio.SocketStream) -> None:
        _, _, _, kind = await exactly(stream, 4)
        family = {1: socket.AF_INET, 4: socket.AF_INET6}[kind]
        host = socket.inet_ntop(family, await exactly(stream, 4 if kind == 1 else 16))
        port = int.from_bytes(await exactly(stream, 2), "big")
        self.asked.append((host, port))
        if self.drops:
            return
        if self.gives_up is not None:
            self.gives_up()
            await stream.receive_some()
            return
        if self.says is not None and host not in self.reaches:
            await stream.send_all(bytes([5, self.says, 0]) + self.bound)
            return
        # Reply and banner in one write: neither may swallow the other.
        await stream.send_all(b"\5\0\0" + self.bound + b"220 mx.test\r\n")
        await stream.receive_some()


async def exactly(stream: trio.SocketStream, octets: int) -> bytes:
    read = b""
    while len(read) < octets:
        more = await stream.receive_some(octets - len(read))
        if not more:
            raise trio.BrokenResourceError
        read += more
    return read


TARGET = ("11.0.0.1", 25)


@asynccontextmanager
async def open_socks(*servers: Socks, userinfo: str = "") -> AsyncIterator[list[str]]:
    """Dialers' URLs of these servers."""
    async with trio.open_nursery() as nursery:
        urls = []

        async def run(server: Socks, task_status: trio.TaskStatus[str]) -> None:
            async with open_server(server.serve) as port:
                task_status.started(f"socks5://{userinfo}127.0.0.1:{port}")
                await trio.sleep_forever()

        for server in servers:
            urls.append(await nursery.start(run, server))
        yield urls
        nursery.cancel_scope.cancel()


def targets(count: int) -> list[tuple[str, int]]:
    return [(f"11.0.0.{n}", 25) for n in range(1, count + 1)]
