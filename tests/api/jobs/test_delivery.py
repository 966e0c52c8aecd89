"""Callbacks as receivers get them: over real TLS on loopback, and in virtual time in memory."""

import hashlib
import hmac
import logging
import random
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
import trio
import trustme
from trio.testing import memory_stream_pair

from mailprobe.api.jobs import delivery
from mailprobe.api.jobs.delivery import (
    ADDRESSES_MAX,
    ANSWER_OCTETS_MAX,
    CONNECT_S,
    DELIVERY_S,
    INTERIM_MAX,
    Delivered,
    WebhookSender,
    open_webhook_sender,
)
from mailprobe.api.jobs.rules import USER_AGENT, callback_headers, check_webhook
from mailprobe.engine.dns.doh import tls_context
from mailprobe.engine.dns.messages import AddressAnswer, Addresses, LookupFailed, NoAddress
from mailprobe.engine.dns.routes import open_routes
from mailprobe.engine.net.tcp import CannotConnect
from mailprobe.engine.settings import EngineSettings
from mailprobe.engine.testing.fake_network import FakeTransport
from mailprobe.engine.testing.zone import Zone, ZoneMode
from tests.engine.net.test_public_addresses import NO_ADDRESSES, NOT_PUBLIC

HOST = "hooks.shop.test"
AT = datetime(2025, 7, 1, 10, tzinfo=UTC)
JOB = "0b8f4c1e-6f0a-4f7e-9a53-1d2c7f9e4b60"
BODY = '{"email": "ann@exämple.org",  "valid":true}\r\n\r\n'.encode()  # these very octets
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HEADERS = callback_headers(JOB, BODY, SECRET, AT)
PUBLIC = "11.0.0.1"

NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


# -- the world --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("authority") / "authority.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


@pytest.fixture(autouse=True)
def names_are_never_resolved(monkeypatch):
    """The system's resolver may turn digits into bytes, and nothing else."""
    real = socket.getaddrinfo

    def getaddrinfo(host, port, family=0, type=0, proto=0, flags=0):
        return real(host, port, family, type, proto, flags | socket.AI_NUMERICHOST)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def context_of(authority: trustme.CA, *names: str, **more) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names, **more).configure_cert(context)
    return context


@dataclass
class Receiver:
    """A receiver's server: hears one request on each connection, then does as `act` says."""

    act: Callable[[trio.abc.Stream], Awaitable[None]]
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    gone: trio.Event = field(default_factory=trio.Event)  # the first connection has ended
    port: int = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.connections += 1
        try:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                if (request := await self.hear(stream)) is not None:
                    self.requests.append(request)
                    await self.act(stream)
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)
            self.gone.set()

    async def hear(self, stream: trio.abc.Stream) -> bytes | None:
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


def says(*octets: bytes) -> Callable[[trio.abc.Stream], Awaitable[None]]:
    async def act(stream: trio.abc.Stream) -> None:
        for each in octets:
            await stream.send_all(each)
        with suppress(AttributeError):  # a stream without TLS has none
            await stream.unwrap()

    return act


def says_for_ever(first: bytes, then: bytes, every_s: float = 0.0):
    async def act(stream: trio.abc.Stream) -> None:
        await stream.send_all(first)
        while True:
            await trio.sleep(every_s)
            await stream.send_all(then)

    return act


async def is_silent(stream: trio.abc.Stream) -> None:
    await stream.receive_some()


async def resets(stream: trio.abc.Stream) -> None:
    connection = stream.transport_stream.socket
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


@asynccontextmanager
async def open_listener(
    serve: Callable[[trio.abc.Stream], Awaitable[None]],
    tls: ssl.SSLContext | None,
    host: str = "127.0.0.1",
) -> AsyncIterator[int]:
    """A port on loopback, with TLS or without."""
    family = trio.socket.AF_INET6 if ":" in host else trio.socket.AF_INET
    listening = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    await listening.bind((host, 0))
    listening.listen()
    listener: trio.abc.Listener = trio.SocketListener(listening)
    if tls is not None:
        listener = trio.SSLListener(listener, tls, https_compatible=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield listening.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_receiver(
    authority: trustme.CA, act=None, *, names=(HOST,), host="127.0.0.1", tls=None, **more
) -> AsyncIterator[Receiver]:
    receiver = Receiver(act or says(NO_CONTENT))
    tls = tls or context_of(authority, *names, **more)
    async with open_listener(receiver.serve, tls, host) as receiver.port:
        yield receiver


def finds(*ips: str):
    """A resolver that always tells these addresses."""

    async def find(name: str) -> AddressAnswer:
        await trio.lowlevel.checkpoint()
        return Addresses(ips, 60)

    return find


def open_local(ca_file: str | None, *ips: str):
    """A courier that may go to loopback, where every name is found."""
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


# -- what goes out ----------------------------------------------------------------------------


async def test_what_is_received_is_exactly_what_was_signed(authority, ca_file):
    async with open_receiver(authority) as receiver, open_local(ca_file) as webhook_sender:
        delivered = await deliver(webhook_sender, receiver.port, "/mail?a=ä")
        assert (delivered.status, delivered.error, delivered.retry_after_s) == (204, None, None)
        assert delivered.took_ms >= 0
        (request,) = receiver.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert body == BODY
    line, *fields = head.decode("ascii").split("\r\n")
    assert line == "POST /mail?a=%C3%A4 HTTP/1.1"
    assert fields == [
        f"Host: {HOST}:{receiver.port}",
        "Content-Type: application/json",
        f"User-Agent: {USER_AGENT}",
        f"webhook-id: {JOB}",
        "webhook-timestamp: 1751364000",
        f"X-Service-Signature: sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}",
        "webhook-signature: " + HEADERS["webhook-signature"],
        f"Content-Length: {len(BODY)}",
        "Connection: close",
    ]


async def test_a_body_of_any_length_arrives_whole(authority, ca_file):
    async with open_receiver(authority) as receiver, open_local(ca_file) as webhook_sender:
        for body in (b"", b"\0", bytes(300_000)):
            assert (await deliver(webhook_sender, receiver.port, body=body)).status == 204
            assert receiver.requests.pop().partition(b"\r\n\r\n")[2] == body


async def test_each_delivery_has_its_own_connection_and_look_up(authority, ca_file):
    looked_up = []

    async def find(name: str) -> AddressAnswer:
        looked_up.append(name)
        return Addresses(("127.0.0.1",), 86_400)

    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n"
    async with (
        open_receiver(authority, says(answer)) as receiver,
        open_webhook_sender(find, allow_private=True, ca_file=ca_file) as webhook_sender,
    ):
        for _ in range(3):
            assert (await deliver(webhook_sender, receiver.port)).status == 200
        assert receiver.connections == 3
    assert looked_up == [HOST] * 3


async def test_a_host_is_never_given_another_ones_connection(authority, ca_file):
    """Both are at the same address and port; the certificate is the first one's."""
    async with open_receiver(authority) as receiver, open_local(ca_file) as webhook_sender:
        assert (await deliver(webhook_sender, receiver.port)).status == 204
        other = await deliver(webhook_sender, receiver.port, host="other.shop.test")
        assert other.status is None
        assert "certificate not accepted" in other.error
        assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("Hooks.SHOP.test", "hooks.shop.test"),
        ("hooks.shop.test.", "hooks.shop.test"),
        ("münchen.test", "xn--mnchen-3ya.test"),
        ("MÜNCHEN。test", "xn--mnchen-3ya.test"),
    ],
)
async def test_tls_and_the_receiver_are_told_the_hosts_name(authority, ca_file, host, name):
    reported = []
    tls = context_of(authority, name)
    tls.sni_callback = lambda socket, server_name, context: reported.append(server_name)
    async with open_receiver(authority, tls=tls) as receiver, open_local(ca_file) as webhook_sender:
        assert (await deliver(webhook_sender, receiver.port, host=host)).status == 204
        assert f"Host: {name}:{receiver.port}\r\n".encode() in receiver.requests[0]
    assert reported == [name]


async def test_only_http_1_1_is_offered(authority, ca_file):
    tls = context_of(authority, HOST)
    tls.set_alpn_protocols(["h2", "http/1.1"])
    chosen = []

    async def act(stream: trio.SSLStream) -> None:
        chosen.append(stream.selected_alpn_protocol())
        await stream.send_all(NO_CONTENT)

    async with (
        open_receiver(authority, act, tls=tls) as receiver,
        open_local(ca_file) as webhook_sender,
    ):
        assert (await deliver(webhook_sender, receiver.port)).status == 204
    assert chosen == ["http/1.1"]


async def test_a_wildcard_certificate_is_good(authority, ca_file):
    async with (
        open_receiver(authority, names=["*.shop.test"]) as receiver,
        open_local(ca_file) as webhook_sender,
    ):
        assert (await deliver(webhook_sender, receiver.port)).status == 204


async def test_six_is_called_like_four(authority, ca_file):
    async with (
        open_receiver(authority, host="::1") as receiver,
        open_local(ca_file, "::1") as webhook_sender,
    ):
        assert (await deliver(webhook_sender, receiver.port)).status == 204


async def test_no_proxy_of_the_environment_is_used(authority, ca_file, monkeypatch):
    async with open_receiver(authority) as proxy, open_receiver(authority) as receiver:
        for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        async with open_local(ca_file) as webhook_sender:
            assert (await deliver(webhook_sender, receiver.port)).status == 204
        assert (proxy.connections, receiver.connections) == (0, 1)


# -- what comes back --------------------------------------------------------------------------

TEXT = b"Content-Type: text/plain\r\n"
LONG = b"x" * 1_000_000
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


@pytest.mark.parametrize("answer", ANSWERS)
async def test_an_answers_status_is_told(authority, ca_file, answer):
    octets, status, retry_after_s = ANSWERS[answer]
    async with (
        open_receiver(authority, says(octets)) as receiver,
        open_webhook_sender(
            finds("127.0.0.1"), allow_private=True, ca_file=ca_file, now=lambda: AT
        ) as webhook_sender,
    ):
        delivered = await deliver(webhook_sender, receiver.port)
        await receiver.gone.wait()
        assert receiver.connections == 1  # nothing is followed, nothing repeated
    assert delivered == Delivered(status, None, retry_after_s, delivered.took_ms)


NO_ANSWER = "the connection was closed without an answer"
NOT_HTTP = "the answer is not HTTP"
LONG_HEAD = "the answer's head is too long"
NO_ANSWERS = {
    "hangs up": (says(), NO_ANSWER),
    "resets": (resets, "the connection broke"),
    "dies in the head": (says(b"HTTP/1.1 200 OK\r\nContent-"), NO_ANSWER),
    "dies after 100": (says(b"HTTP/1.1 100 Continue\r\n\r\n"), NO_ANSWER),
    "HTTP/0.9": (says(b"<html>\r\n\r\nok"), NOT_HTTP),
    "another protocol": (says(b"220 mx.shop.test ESMTP\r\n\r\n"), NOT_HTTP),
    "HTTP/2": (says(b"HTTP/2 200 OK\r\n\r\n"), NOT_HTTP),
    "a status of two digits": (says(b"HTTP/1.1 20 OK\r\n\r\n"), NOT_HTTP),
    "a status below 100": (says(b"HTTP/1.1 099 OK\r\n\r\n"), NOT_HTTP),
    "switches": (says(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"), NOT_HTTP),
    "NUL": (says(bytes(9) + b"\r\n\r\n"), NOT_HTTP),
    "a NUL in a header": (says(b"HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n"), NOT_HTTP),
    "two lengths": (
        says(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"), NOT_HTTP),
    "garbage without an end": (says_for_ever(b"", b"x" * 10_000), LONG_HEAD),
    "lines without an end": (says_for_ever(b"", b"what?\r\n" * 1000), LONG_HEAD),
    "a header without an end": (says_for_ever(b"HTTP/1.1 200 OK\r\nA: ", b"x" * 1000), LONG_HEAD),
    "headers without an end": (says_for_ever(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 100), LONG_HEAD),
    "a head of 64 KiB": (
        says(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 11_000 + b"\r\n"), LONG_HEAD),
    "100 for ever": (
        says_for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), f"more than {INTERIM_MAX} interim answers"),
    "long 100s for ever": (
        says_for_ever(b"", b"HTTP/1.1 100 Continue\r\nA: " + b"x" * 10_000 + b"\r\n\r\n"),
        f"an answer of more than {ANSWER_OCTETS_MAX} octets"),
}  # fmt: skip


@pytest.mark.parametrize("fault", NO_ANSWERS)
async def test_what_is_no_answer_is_an_error_in_a_few_words(authority, ca_file, fault):
    act, error = NO_ANSWERS[fault]
    async with open_receiver(authority, act) as receiver, open_local(ca_file) as webhook_sender:
        delivered = await deliver(webhook_sender, receiver.port)
        await receiver.gone.wait()  # we do not stay to hear what never ends
        assert delivered == Delivered(None, error, None, delivered.took_ms)
        receiver.act = says(NO_CONTENT)
        assert (await deliver(webhook_sender, receiver.port)).status == 204


@pytest.mark.parametrize("body", [LONG * 3, b"x" * (ANSWER_OCTETS_MAX + 1)])
async def test_no_more_than_64_kib_of_an_answer_is_read(authority, ca_file, body, monkeypatch):
    read = 0
    receive_some = trio.SSLStream.receive_some

    async def counting(stream, max_bytes=None):
        nonlocal read
        octets = await receive_some(stream, max_bytes)
        read += len(octets) * (not stream._ssl_object.server_side)
        return octets

    monkeypatch.setattr(trio.SSLStream, "receive_some", counting)
    answer = b"HTTP/1.1 200 OK\r\n\r\n" + body
    async with (
        open_receiver(authority, says(answer)) as receiver,
        open_local(ca_file) as webhook_sender,
    ):
        assert (await deliver(webhook_sender, receiver.port)).status == 200
    assert read == ANSWER_OCTETS_MAX


# -- TLS --------------------------------------------------------------------------------------

YESTERDAY = datetime.now(UTC) - timedelta(days=1)
CERTIFICATES = {
    "another name": ({"names": ["other.test"]}, "Hostname mismatch"),
    "a name below": ({"names": [f"a.{HOST}"]}, "Hostname mismatch"),
    "a wildcard too high": ({"names": ["*.test"]}, "Hostname mismatch"),
    "its address alone": ({"names": ["127.0.0.1"]}, "Hostname mismatch"),
    "the common name alone": (
        {"names": ["other.test"], "common_name": HOST}, "Hostname mismatch"),
    "expired": ({"not_after": YESTERDAY}, "certificate has expired"),
    "of tomorrow": ({"not_before": datetime.now(UTC) + timedelta(days=1)}, "not yet valid"),
}  # fmt: skip


@pytest.mark.parametrize("certificate", CERTIFICATES)
async def test_a_certificate_that_is_not_good_for_the_host(authority, ca_file, certificate):
    more, words = CERTIFICATES[certificate]
    async with open_receiver(authority, **more) as receiver, open_local(ca_file) as webhook_sender:
        await expect_refused_certificate(webhook_sender, receiver, words)


async def expect_refused_certificate(
    webhook_sender: WebhookSender, receiver: Receiver, words: str
) -> None:
    delivered = await deliver(webhook_sender, receiver.port)
    assert delivered.status is None
    assert delivered.error.startswith("certificate not accepted: ")
    assert words in delivered.error
    assert receiver.requests == []


async def test_an_authority_that_is_not_ours(authority, tmp_path):
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    async with open_receiver(authority) as receiver, open_local(str(other)) as webhook_sender:
        await expect_refused_certificate(webhook_sender, receiver, "local issuer")


async def test_the_systems_authorities_do_not_know_ours(authority):
    async with open_receiver(authority) as receiver, open_local(None) as webhook_sender:
        await expect_refused_certificate(webhook_sender, receiver, "issuer")


async def test_the_systems_authorities_are_read_once_and_not_before_a_receiver_is_called(
    authority, ca_file, monkeypatch
):
    """They take 60 ms to read: no start waits for them, nor does the service stand still."""
    read_in: list[int] = []

    def read(named: str | None) -> ssl.SSLContext:
        assert named is None
        read_in.append(threading.get_ident())
        return tls_context(ca_file)

    monkeypatch.setattr(delivery, "tls_context", read)
    async with open_receiver(authority) as receiver, open_local(None) as webhook_sender:
        assert read_in == []
        statuses: list[int | None] = []

        async def deliver_one() -> None:
            statuses.append((await deliver(webhook_sender, receiver.port)).status)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(deliver_one)
        assert statuses == [204] * 3
    assert len(read_in) == 1
    assert read_in[0] != threading.get_ident()


async def test_an_authority_file_that_is_not_there_is_the_operators_mistake(tmp_path):
    with pytest.raises(FileNotFoundError):
        async with open_local(str(tmp_path / "nowhere.pem")):
            pass


PLAIN = {
    "plain HTTP": says(NO_CONTENT),
    "nothing": says(),
    "a mail host": says(b"220 mx.shop.test ESMTP\r\n"),
    "a record that is cut": says(b"\x16\x03\x03\x00\x7a\x02"),
}


@pytest.mark.parametrize("what", PLAIN)
async def test_a_port_without_tls(ca_file, what):
    async def serve(stream: trio.abc.Stream) -> None:
        async with stream:
            with suppress(trio.BrokenResourceError):
                await stream.receive_some()  # the handshake's beginning
                await PLAIN[what](stream)

    async with open_listener(serve, None) as port, open_local(ca_file) as webhook_sender:
        delivered = await deliver(webhook_sender, port)
        assert delivered.status is None
        assert delivered.error.startswith("TLS failed: ")


# -- whom we connect to -----------------------------------------------------------------------


@dataclass
class Counter:
    """Somebody at home, who counts who comes."""

    connections: int = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.connections += 1
        await stream.aclose()


@pytest.mark.parametrize("family", ["127.0.0.1", "::1"])
@pytest.mark.parametrize(
    "others", [(), (PUBLIC,), (PUBLIC, "2620:fe::fe")], ids=["alone", "one", "two"]
)
async def test_not_one_connection_is_made_to_a_host_that_is_not_public(ca_file, family, others):
    """Neither to its private address nor to the public ones beside it."""
    at_home, dialled = Counter(), []

    async def dial(address: str, port: int) -> trio.abc.Stream:
        dialled.append(address)
        raise CannotConnect("connection refused")

    async with open_listener(at_home.serve, None, family) as port:
        for ips in ((*others, family), (family, *others)):
            for more in ({}, {"dial": dial}):
                async with open_webhook_sender(
                    finds(*ips), allow_private=False, ca_file=ca_file, **more
                ) as webhook_sender:
                    assert (await deliver(webhook_sender, port)).error == (
                        "the host has an address that is not public"
                    )
    assert dialled == []
    assert at_home.connections == 0


@pytest.mark.parametrize("ip", [*NOT_PUBLIC, *NO_ADDRESSES])
async def test_no_kind_of_address_that_is_not_public_is_dialled(ca_file, ip):
    dialled = []

    async def dial(address: str, port: int) -> trio.abc.Stream:
        dialled.append(address)
        raise CannotConnect("connection refused")

    for ips in ((ip,), (PUBLIC, ip), (ip, PUBLIC), (PUBLIC, "2620:fe::fe", ip)):
        async with open_webhook_sender(
            finds(*ips), allow_private=False, ca_file=ca_file, dial=dial
        ) as webhook_sender:
            delivered = await deliver(webhook_sender, 443)
            assert (delivered.status, delivered.error) == (
                None,
                "the host has an address that is not public",
            )
    assert dialled == []


async def test_a_name_that_changes_between_look_ups_gains_nothing(ca_file):
    """What was checked is what is connected to; there is no second look-up in between."""
    reported = [(PUBLIC,), ("127.0.0.1",), (PUBLIC,), (PUBLIC, "127.0.0.1")]
    looked_up, dialled = [], []
    at_home = Counter()

    async def find(name: str) -> AddressAnswer:
        looked_up.append(name)
        return Addresses(reported[len(looked_up) - 1], 0)

    async def dial(address: str, port: int) -> trio.abc.Stream:
        dialled.append(address)
        raise CannotConnect("connection refused")

    async with (
        open_listener(at_home.serve, None) as port,
        open_webhook_sender(
            find, allow_private=False, ca_file=ca_file, dial=dial
        ) as webhook_sender,
    ):
        errors = [(await deliver(webhook_sender, port)).error for _ in reported]
    assert errors == ["connection refused", "the host has an address that is not public"] * 2
    assert len(looked_up) == len(reported)
    assert dialled == [PUBLIC, PUBLIC]
    assert at_home.connections == 0


async def test_where_private_addresses_are_allowed_names_are_still_none(ca_file):
    async with open_webhook_sender(
        finds("localhost"), allow_private=True, ca_file=ca_file
    ) as webhook_sender:
        assert (await deliver(webhook_sender, 443)).error == "not an IP address: 'localhost'"


@asynccontextmanager
async def open_zone(zone: Zone, ca_file: str, *, allow_private: bool):
    """A courier with the engine's own resolver before a table of names."""
    settings = EngineSettings(doh_urls=("https://11.0.0.9/q",), allow_private=allow_private)
    async with (
        open_routes(settings, transport=FakeTransport(zone), rng=random.Random(1)) as routes,
        open_webhook_sender(
            routes.addresses_now, allow_private=allow_private, ca_file=ca_file
        ) as webhook_sender,
    ):
        yield webhook_sender


@pytest.mark.parametrize(
    "addresses",
    [
        ("127.0.0.1",),
        ("11.0.0.1", "127.0.0.1"),
        ("11.0.0.1", "::1"),
        ("11.0.0.1", "::ffff:127.0.0.1"),
    ],
)
async def test_the_engines_resolver_is_asked_for_both_kinds(ca_file, addresses):
    """A probe takes IPv4 where there is some; here IPv6 must be public as well."""
    zone, at_home = Zone(), Counter()
    zone.host("real.test", *addresses)
    zone.cname(HOST, "real.test")
    async with (
        open_listener(at_home.serve, None) as port,
        open_zone(zone, ca_file, allow_private=False) as webhook_sender,
    ):
        delivered = await deliver(webhook_sender, port)
    assert delivered.error == "the host has an address that is not public"
    assert at_home.connections == 0


async def test_a_change_of_address_is_followed_at_once(authority, ca_file):
    zone = Zone()
    zone.host(HOST, "127.0.0.2", ttl_s=86_400)
    async with (
        open_receiver(authority) as receiver,
        open_zone(zone, ca_file, allow_private=True) as webhook_sender,
    ):
        assert (await deliver(webhook_sender, receiver.port)).error == "connection refused"
        zone.host(HOST, "127.0.0.1")
        assert (await deliver(webhook_sender, receiver.port)).status == 204


NAMES = {
    "there is none": (ZoneMode.NXDOMAIN, "the host has no address: NXDOMAIN"),
    "nobody knows": (ZoneMode.SERVFAIL, "the look-up failed: 11.0.0.9: SERVFAIL"),
    "garbage": (ZoneMode.GARBAGE, "the look-up failed: 11.0.0.9: "),
}


@pytest.mark.parametrize("what", NAMES)
async def test_a_name_that_leads_nowhere(ca_file, what):
    mood, words = NAMES[what]
    zone = Zone()
    zone.mode(HOST, mood)
    async with open_zone(zone, ca_file, allow_private=False) as webhook_sender:
        delivered = await deliver(webhook_sender, 443)
        assert delivered.status is None
        assert delivered.error.startswith(words)


async def test_the_next_address_is_tried_where_one_cannot_be_connected_to(authority, ca_file):
    async with open_receiver(authority) as receiver:
        async with open_local(ca_file, "127.0.0.2", "127.0.0.3", "127.0.0.1") as webhook_sender:
            assert (await deliver(webhook_sender, receiver.port)).status == 204
        async with open_local(ca_file, "127.0.0.2", "127.0.0.3") as webhook_sender:
            assert (await deliver(webhook_sender, receiver.port)).error == "connection refused"


async def test_what_was_sent_once_is_not_sent_to_the_next_address(authority, ca_file):
    async with (
        open_receiver(authority, says()) as receiver,
        open_local(ca_file, "127.0.0.1", "127.0.0.1") as webhook_sender,
    ):
        assert (await deliver(webhook_sender, receiver.port)).error == NO_ANSWER
        assert receiver.connections == 1


# -- time, in memory --------------------------------------------------------------------------


@dataclass
class Street:
    """A dial to receivers in memory, with all streams it has given out."""

    nursery: trio.Nursery
    serve: Callable[[trio.abc.Stream], Awaitable[None]]
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


def over_tls(authority: trustme.CA, act) -> Callable[[trio.abc.Stream], Awaitable[None]]:
    tls = context_of(authority, HOST)
    receiver = Receiver(act)

    async def serve(stream: trio.abc.Stream) -> None:
        secured = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        await receiver.serve(secured)

    return serve


@asynccontextmanager
async def open_street(serve, ca_file: str, *ips: str, find=None, **more):
    async with trio.open_nursery() as nursery:
        street = Street(nursery, serve, **more)
        async with open_webhook_sender(
            find or finds(*(ips or (PUBLIC,))),
            allow_private=False,
            ca_file=ca_file,
            dial=street.dial,
        ) as webhook_sender:
            yield street, webhook_sender
        nursery.cancel_scope.cancel()


async def stalls(stream: trio.abc.Stream) -> None:
    """Takes what is sent, and says nothing."""
    while await stream.receive_some():
        pass


async def drips_tls(stream: trio.abc.Stream) -> None:
    """The beginning of a handshake, an octet a second."""
    with suppress(trio.BrokenResourceError):
        for octet in b"\x16\x03\x03\x40\x00" + bytes(100):
            await trio.sleep(1)
            await stream.send_all(bytes([octet]))


OK_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"
SLOW = {
    "TLS that stalls": (None, stalls, "the TLS handshake took longer than 15 s"),
    "TLS that drips": (None, drips_tls, "the TLS handshake took longer than 15 s"),
    "silence": (is_silent, None, "the answer took longer than 15 s"),
    "a head that drips": (
        says_for_ever(b"HTTP/1.1 200 OK\r\nA: ", b"x", 0.5), None, "the answer took longer than 15 s"),
    "100 now and then": (
        says_for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 2), None, "the answer took longer than 15 s"),
}  # fmt: skip


@pytest.mark.parametrize("what", SLOW)
async def test_a_slow_receiver_has_15_seconds_in_all(autojump_clock, authority, ca_file, what):
    act, serve, words = SLOW[what]
    async with open_street(serve or over_tls(authority, act), ca_file) as (street, webhook_sender):
        began = trio.current_time()
        delivered = await deliver(webhook_sender, 443)
        assert trio.current_time() - began == pytest.approx(DELIVERY_S)
        assert delivered == Delivered(None, words, None, 15_000)
        await street.assert_hung_up()


async def test_the_status_stands_however_slow_the_body_is(autojump_clock, authority, ca_file):
    act = says_for_ever(OK_HEAD, b"x", 0.5)
    async with open_street(over_tls(authority, act), ca_file) as (_, webhook_sender):
        delivered = await deliver(webhook_sender, 443)
        assert delivered == Delivered(200, None, None, 15_000)


async def test_the_look_up_is_of_the_15_seconds(autojump_clock, authority, ca_file):
    async def find(name: str) -> AddressAnswer:
        await trio.sleep(10)
        return Addresses((PUBLIC,), 60)

    async with open_street(over_tls(authority, is_silent), ca_file, find=find) as (
        _,
        webhook_sender,
    ):
        delivered = await deliver(webhook_sender, 443)
        assert delivered == Delivered(None, "the answer took longer than 15 s", None, 15_000)


async def test_a_look_up_without_an_end(autojump_clock, ca_file):
    async def find(name: str) -> AddressAnswer:
        await trio.sleep_forever()
        raise AssertionError

    async with open_street(stalls, ca_file, find=find) as (street, webhook_sender):
        delivered = await deliver(webhook_sender, 443)
        assert delivered == Delivered(None, "the look-up took longer than 15 s", None, 15_000)
        assert street.dialled == []


async def test_an_address_that_never_answers_leaves_time_for_the_next(
    autojump_clock, authority, ca_file
):
    ips = ("11.0.0.1", "11.0.0.2", "11.0.0.3")
    async with open_street(
        over_tls(authority, says(NO_CONTENT)), ca_file, *ips, silent=frozenset(ips[:2])
    ) as (street, webhook_sender):
        delivered = await deliver(webhook_sender, 443)
        assert delivered == Delivered(204, None, None, int(2 * CONNECT_S * 1000))
        assert street.dialled == list(ips)


async def test_an_only_address_that_never_answers(autojump_clock, ca_file):
    async with open_street(stalls, ca_file, silent=frozenset({PUBLIC})) as (_, webhook_sender):
        delivered = await deliver(webhook_sender, 443)
        assert delivered == Delivered(None, "no connection within 4 s", None, 4000)


async def test_many_addresses_that_never_answer(autojump_clock, ca_file):
    ips = tuple(f"11.0.0.{n}" for n in range(1, 60))
    async with open_street(stalls, ca_file, *ips, silent=frozenset(ips)) as (
        street,
        webhook_sender,
    ):
        delivered = await deliver(webhook_sender, 443)
        assert delivered == Delivered(None, "connecting took longer than 15 s", None, 15_000)
        assert len(street.dialled) <= ADDRESSES_MAX


async def test_only_a_few_addresses_are_tried_and_both_kinds(ca_file):
    """A customer's name with dozens of other people's addresses makes no scanner of us."""
    fours = [f"11.0.0.{n}" for n in range(1, 30)]
    sixes = [f"2620:fe::{n}" for n in range(1, 30)]
    dialled = []

    async def dial(address: str, port: int) -> trio.abc.Stream:
        dialled.append(address)
        raise CannotConnect("network unreachable")

    async with open_webhook_sender(
        finds(*fours, *sixes), allow_private=False, ca_file=ca_file, dial=dial
    ) as webhook_sender:
        assert (await deliver(webhook_sender, 443)).error == "network unreachable"
    assert len(dialled) == ADDRESSES_MAX
    assert {ip_address(each).version for each in dialled} == {4, 6}


async def test_slow_deliveries_do_not_wait_for_each_other(autojump_clock, authority, ca_file):
    async with open_street(over_tls(authority, is_silent), ca_file) as (_, webhook_sender):
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(deliver, webhook_sender, 443)
        assert trio.current_time() - began == pytest.approx(DELIVERY_S)


# -- whatever happens -------------------------------------------------------------------------

BUGS = [ValueError("s3cret"), OSError(5, "s3cret"), ExceptionGroup("s3cret", [KeyError()])]


@pytest.mark.parametrize("bug", BUGS, ids=repr)
async def test_it_raises_nothing(ca_file, bug):
    async def fails(*_: object) -> AddressAnswer:
        raise bug

    for more in ({"find": fails}, {"dial": fails}):
        async with open_webhook_sender(
            more.get("find", finds(PUBLIC)), allow_private=False, ca_file=ca_file,
            dial=more.get("dial"),
        ) as webhook_sender:  # fmt: skip
            delivered = await deliver(webhook_sender, 443)
            assert delivered.status is None
            assert delivered.error == f"failed ({type(bug).__name__})"


@pytest.mark.parametrize(
    "found", [Addresses((), 0), NoAddress("no A records"), LookupFailed("x" * 5000)]
)
async def test_a_look_up_that_finds_nothing(ca_file, found):
    async def find(name: str) -> AddressAnswer:
        return found

    async with open_webhook_sender(find, allow_private=False, ca_file=ca_file) as webhook_sender:
        delivered = await deliver(webhook_sender, 443)
        assert delivered.status is None
        assert 0 < len(delivered.error) <= 200


def mangled(rng: random.Random) -> bytes:
    """An answer with something wrong in it."""
    octets = bytearray(rng.choice(list(ANSWERS.values()))[0][:400])
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(octets) + 1)
        match rng.randrange(4):
            case 0:
                octets[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                del octets[place : place + rng.randrange(1, 9)]
            case 2:
                octets[place:place] = rng.choice(
                    [b"\r\n", b"\n", b"\0", b":", b" ", b"\xff", b"9" * 30]
                )
            case 3:
                octets = octets[:place]
    return bytes(octets)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_answered_is_a_status_or_a_few_words(
    autojump_clock, authority, ca_file, seed
):
    rng = random.Random(seed)

    async def act(stream: trio.abc.Stream) -> None:
        octets = mangled(rng)
        cut = rng.randrange(len(octets) + 1)
        await says(octets[:cut], octets[cut:])(stream)

    async with open_street(over_tls(authority, act), ca_file) as (_, webhook_sender):
        for _ in range(60):
            delivered = await deliver(webhook_sender, 443)
            assert (delivered.status is None) != (delivered.error is None)
            assert delivered.error in (None, NOT_HTTP, NO_ANSWER)


class Cutter(trio.abc.Instrument):
    """Cancels a scope after so many steps of whatever tasks."""

    def __init__(self, steps: int, scope: trio.CancelScope) -> None:
        self.left = steps
        self._scope = scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self._scope.cancel()


async def test_a_delivery_that_is_cancelled_at_any_step_leaves_no_connection(
    autojump_clock, authority, ca_file
):
    tls_of_one = over_tls(authority, says(OK_HEAD, b"x" * 9999))
    for steps in range(1, 500):
        async with open_street(tls_of_one, ca_file, connect_s=0.1) as (street, webhook_sender):
            with trio.CancelScope() as scope:
                cutter = Cutter(steps, scope)
                trio.lowlevel.add_instrument(cutter)
                try:
                    delivered = await deliver(webhook_sender, 443)
                finally:
                    trio.lowlevel.remove_instrument(cutter)
            await street.assert_hung_up()
        if cutter.left > 0:
            assert delivered.status == 200
            assert steps > 20
            return
    pytest.fail("it never ended")


async def test_nothing_secret_is_told_or_logged(authority, ca_file, caplog):
    caplog.set_level(logging.DEBUG)
    path = "/s3cret-path?token=s3cret-query"
    body = b'{"email": "s3cret-body"}'
    reported = []
    answer = says(b"s3cret-answer\r\n\r\n")
    async with open_local(ca_file) as webhook_sender:
        for act in (answer, says(), says(NO_CONTENT)):
            async with open_receiver(authority, act) as receiver:
                reported.append(await deliver(webhook_sender, receiver.port, path, body=body))
        async with open_receiver(authority, names=["s3cret-name.test"]) as receiver:
            reported.append(await deliver(webhook_sender, receiver.port, path, body=body))
    assert [each.status for each in reported] == [None, None, 204, None]
    written = repr(reported) + caplog.text
    assert "s3cret" not in written
    assert HEADERS["X-Service-Signature"] not in written
