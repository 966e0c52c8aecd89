"""Shared set-up of the callback tests: receivers over TLS on loopback and in memory."""

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
import trustme
from trio.testing import memory_stream_pair

from mailprobe.api.jobs.delivery import (
    INTERIM_MAX,
    Delivered,
    FindAddresses,
    WebhookSender,
    open_webhook_sender,
)
from mailprobe.api.jobs.rules import callback_headers, check_webhook
from mailprobe.engine.dns.messages import AddressAnswer, Addresses

HOST = "hooks.shop.test"
AT = datetime(2025, 7, 1, 10, tzinfo=UTC)
JOB = "0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60"
BODY = '{"email": "ann@exämple.org",  "valid":true}\r\n\r\n'.encode()  # these very octets
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HEADERS = callback_headers(JOB, BODY, SECRET, AT)
PUBLIC = "11.0.0.1"

NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"

LONG = b"x" * 1_000_000

Serve = Callable[[trio.abc.Stream], Awaitable[None]]  # what a server does on a connection


def context_of(authority: trustme.CA, *names: str, **more: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names, **more).configure_cert(context)
    return context


@dataclass
class Receiver:
    """A receiver's server: reads one request on each connection, then does as `act` does."""

    act: Serve
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    gone: trio.Event = field(default_factory=trio.Event)  # the first connection has ended
    port: int = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.connections += 1
        try:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                if (request := await self.read_request(stream)) is not None:
                    self.requests.append(request)
                    await self.act(stream)
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)
            self.gone.set()

    async def read_request(self, stream: trio.abc.Stream) -> bytes | None:
        received = b""
        while b"\r\n\r\n" not in received:
            if not (octets := await stream.receive_some()):
                return None
            received += octets
        head = received.partition(b"\r\n\r\n")[0]
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        while len(received) < len(head) + 4 + length:
            received += await stream.receive_some()
        return received


def says(*octets: bytes) -> Serve:
    async def act(stream: trio.abc.Stream) -> None:
        for each in octets:
            await stream.send_all(each)
        if isinstance(stream, trio.SSLStream):
            await stream.unwrap()

    return act


def says_for_ever(first: bytes, then: bytes, every_s: float = 0.0) -> Serve:
    async def act(stream: trio.abc.Stream) -> None:
        await stream.send_all(first)
        while True:
            await trio.sleep(every_s)
            await stream.send_all(then)

    return act


async def is_silent(stream: trio.abc.Stream) -> None:
    await stream.receive_some()


async def resets(stream: trio.abc.Stream) -> None:
    assert isinstance(stream, trio.SSLStream)
    connection = stream.transport_stream.socket
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


@asynccontextmanager
async def open_listener(
    serve: Serve,
    tls: ssl.SSLContext | None,
    host: str = "127.0.0.1",
) -> AsyncIterator[int]:
    """Open a port on loopback, with TLS or without."""
    family = trio.socket.AF_INET6 if ":" in host else trio.socket.AF_INET
    listening = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    await listening.bind((host, 0))
    listening.listen()
    listener: trio.abc.Listener[trio.abc.Stream] = trio.SocketListener(listening)
    if tls is not None:
        listener = trio.SSLListener(listener, tls, https_compatible=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield listening.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_receiver(
    authority: trustme.CA,
    act: Serve | None = None,
    *,
    names: Iterable[str] = (HOST,),
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    **more: Any,
) -> AsyncIterator[Receiver]:
    receiver = Receiver(act or says(NO_CONTENT))
    tls = tls or context_of(authority, *names, **more)
    async with open_listener(receiver.serve, tls, host) as receiver.port:
        yield receiver


def finds(*ips: str) -> FindAddresses:
    """Make a resolver that always returns these addresses."""

    async def find(name: str) -> AddressAnswer:
        await trio.lowlevel.checkpoint()
        return Addresses(ips, 60)

    return find


def open_local(ca_file: str | None, *ips: str) -> AbstractAsyncContextManager[WebhookSender]:
    """Open a webhook sender that may connect to loopback, where every name resolves."""
    return open_webhook_sender(finds(*(ips or ("127.0.0.1",))), allow_private=True, ca_file=ca_file)


async def deliver(
    webhook_sender: WebhookSender,
    port: int,
    path: str = "/mail",
    host: str = HOST,
    body: bytes = BODY,
) -> Delivered:
    return await webhook_sender.deliver(
        check_webhook(f"https://{host}:{port}{path}"), HEADERS, body
    )


@dataclass
class InMemoryReceivers:
    """A dialer to receivers in memory, which keeps all streams that it opened."""

    nursery: trio.Nursery
    serve: Serve
    silent: frozenset[str] = frozenset()
    connect_s: float = 0.0
    dialled: list[str] = field(default_factory=list)
    clients: list[trio.abc.Stream] = field(default_factory=list)

    async def dial(self, address: str, port: int) -> trio.abc.Stream:
        self.dialled.append(address)
        await trio.sleep(float("inf") if address in self.silent else self.connect_s)
        client, server = memory_stream_pair()
        self.clients.append(client)
        self.nursery.start_soon(self.serve, server)
        return client

    async def assert_hung_up(self) -> None:
        for client in self.clients:
            with pytest.raises(trio.ClosedResourceError):
                await client.send_all(b"x")


def over_tls(authority: trustme.CA, act: Serve) -> Serve:
    tls = context_of(authority, HOST)
    receiver = Receiver(act)

    async def serve(stream: trio.abc.Stream) -> None:
        secured = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        await receiver.serve(secured)

    return serve


@asynccontextmanager
async def open_in_memory(
    serve: Serve, ca_file: str, *ips: str, find: FindAddresses | None = None, **more: Any
) -> AsyncIterator[tuple[InMemoryReceivers, WebhookSender]]:
    async with trio.open_nursery() as nursery:
        receivers = InMemoryReceivers(nursery, serve, **more)
        async with open_webhook_sender(
            find or finds(*(ips or (PUBLIC,))),
            allow_private=False,
            ca_file=ca_file,
            dial=receivers.dial,
        ) as webhook_sender:
            yield receivers, webhook_sender
        nursery.cancel_scope.cancel()


async def stalls(stream: trio.abc.Stream) -> None:
    """Read everything and send nothing."""
    while await stream.receive_some():
        pass


async def drips_tls(stream: trio.abc.Stream) -> None:
    """Send the beginning of a handshake, one octet per second."""
    with suppress(trio.BrokenResourceError):
        for octet in b"\x16\x03\x03\x40\x00" + bytes(100):
            await trio.sleep(1)
            await stream.send_all(bytes([octet]))


OK_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"

TEXT = b"Content-Type: text/plain\r\n"
NO_ANSWER = "the connection was closed without an answer"
NOT_HTTP = "the answer is not HTTP"

ANSWERS = {
    "200": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, None),
    "200, until closed": (b"HTTP/1.1 200 OK\r\n" + TEXT + b"\r\nok", 200, None),
    "200, in chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200, None),
    "201": (b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n", 201, None),
    "204": (NO_CONTENT, 204, None),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\nok", 200, None),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, None),
    "an early hint": (b"HTTP/1.1 103 Early Hints\r\n\r\n" + NO_CONTENT, 204, None),
    "100 first": (b"HTTP/1.1 100 Continue\r\n\r\n" * INTERIM_MAX + NO_CONTENT, 204, None),
    "a long body": (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + LONG, 200, None),
    "a long body in chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100_000, 200, None),
    "ends in the body": (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nok", 200, None),
    "garbage in the body": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nwhat?\r\n", 200, None),
    "a broken encoding": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nno", 200, None),
    "301": (b"HTTP/1.1 301 Moved\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n", 301, None),
    "307": (b"HTTP/1.1 307 Moved\r\nLocation: https://127.0.0.1/\r\nContent-Length: 0\r\n\r\n", 307, None),
    "401": (b"HTTP/1.1 401 No\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n", 401, None),
    "410": (b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n", 410, None),
    "429": (b"HTTP/1.1 429 Slow down\r\nRetry-After: 120\r\nContent-Length: 0\r\n\r\n", 429, 120.0),
    "429, a date": (
        b"HTTP/1.1 429 Slow down\r\nretry-after: Tue, 01 Jul 2025 10:05:00 GMT\r\n\r\n", 429, 300.0),
    "429, garbage": (b"HTTP/1.1 429 Slow down\r\nRetry-After: \xff\xfe soon\r\n\r\n", 429, None),
    "500": (b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops", 500, None),
    "503": (b"HTTP/1.1 503 Later\r\nRetry-After:  7 \r\nRetry-After: 9\r\n\r\n", 503, 7.0),
    "999": (b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n", 999, None),
}  # fmt: skip
