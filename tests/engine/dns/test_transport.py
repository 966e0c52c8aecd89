"""The transport against small DoH servers on loopback, over HTTP/1.1 and HTTP/2."""

import socket
import ssl
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
import trio
import trustme

from mailprobe.bench.lab import doh as lab
from mailprobe.bench.world.resolver_faults import ResolverFaults, RetryAfter
from mailprobe.bench.world.zone import Zone
from mailprobe.engine.dns.doh import open_transport
from mailprobe.engine.dns.endpoint import TRIES_MAX
from mailprobe.engine.dns.messages import (
    Route,
    encode_query,
    read_route,
)
from mailprobe.engine.dns.response import QueryRefused, TransportFailed
from mailprobe.engine.dns.routes import open_routes
from mailprobe.engine.settings import EngineSettings
from tests.engine.dns.scripted_endpoints import ROUTE, reply


@pytest.fixture(autouse=True)
def names_are_never_resolved(monkeypatch):
    """The system's resolver may turn digits into bytes, and nothing else."""
    real = socket.getaddrinfo

    def getaddrinfo(host, port, family=0, type=0, proto=0, flags=0):
        return real(host, port, family, type, proto, flags | socket.AI_NUMERICHOST)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@dataclass
class PlainServer:
    """DNS over HTTP/1.1; the path says how it misbehaves."""

    url: str = ""
    requests: int = 0
    connections: int = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        with suppress(trio.BrokenResourceError):  # the client went away
            await self.converse(stream)

    async def converse(self, stream: trio.SocketStream) -> None:
        async with stream:
            buffer = b""
            while True:
                while b"\r\n\r\n" not in buffer:
                    more = await stream.receive_some()
                    if not more:
                        return
                    buffer += more
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                while len(buffer) < length:
                    buffer += await stream.receive_some()
                query, buffer = buffer[:length], buffer[length:]
                self.requests += 1
                path = head.split()[1].decode()
                if await self.answer(path, query, stream):
                    return

    async def answer(self, path: str, query: bytes, stream: trio.SocketStream) -> bool:
        """Write a response; say whether to hang up after it."""
        octets = reply(query, "300 MX 10 mx.shop.test.")
        status, kind, hang_up = "200 OK", "application/dns-message", path == "/once"
        length = len(octets)
        match path:
            case "/html":
                octets = b"<html>sign in</html>"
                kind, length = "text/html", len(octets)
            case "/500":
                status = "500 Internal Server Error"
            case "/redirect":
                status = "307 Temporary Redirect\r\nLocation: /q"
            case "/parameter":
                kind = "Application/DNS-Message; charset=none"
            case "/oversize":
                octets = bytes(70_000)
                length, hang_up = len(octets), True
            case "/cut":
                length, hang_up = length + 10, True
            case "/garbage":
                await stream.send_all(b"220 mx.test ESMTP\r\n")
                return True
            case "/gone":
                return True
            case "/endless":
                head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked"
                await stream.send_all(head.encode() + b"\r\n\r\n")
                while True:
                    await stream.send_all(b"1000\r\n" + bytes(0x1000) + b"\r\n")
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n"
        head += "Date: Tue, 01 Jul 2025 10:00:00 GMT\r\n\r\n"
        await stream.send_all(head.encode() + octets)
        return hang_up


@asynccontextmanager
async def open_plain(host: str = "127.0.0.1", server: PlainServer | None = None):
    server = server or PlainServer()
    async with trio.open_nursery() as nursery:
        listener = trio.socket.socket(
            trio.socket.AF_INET6 if ":" in host else trio.socket.AF_INET, trio.socket.SOCK_STREAM
        )
        await listener.bind((host, 0))
        listener.listen()
        where = f"[{host}]" if ":" in host else host
        server.url = f"http://{where}:{listener.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, server.serve, [trio.SocketListener(listener)])
        yield server
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_plain_endpoint_answers(host):
    async with open_plain(host) as server, open_transport() as transport:
        for _ in range(3):
            octets = await transport.exchange(f"{server.url}/q", encode_query("shop.test", "MX"))
            assert read_route(octets, "shop.test") == ROUTE
        assert (server.requests, server.connections) == (3, 1)


async def test_the_date_of_the_response_is_returned():
    async with open_plain() as server, open_transport() as transport:
        response = await transport.post(f"{server.url}/q", encode_query("shop.test", "MX"))
        assert response.date == "Tue, 01 Jul 2025 10:00:00 GMT"


async def test_localhost_is_an_address_to_us():
    async with open_plain() as server, open_transport() as transport:
        url = server.url.replace("127.0.0.1", "localhost") + "/parameter"
        assert await transport.exchange(url, encode_query("shop.test", "MX"))


@pytest.mark.parametrize(
    ("path", "words", "requests"),
    [
        ("/html", "type text/html, not DNS", 1),
        ("/500", "HTTP status 500", 1),
        ("/redirect", "HTTP status 307", 1),
        ("/oversize", "more than 65535 octets", 1),
        ("/endless", "more than 65535 octets", 1),
        ("/cut", "closed", TRIES_MAX),
        ("/gone", "disconnected", TRIES_MAX),
        ("/garbage", "no HTTP", 1),
    ],
)
async def test_a_response_that_is_no_dns_answer_is_a_failure(path, words, requests):
    async with open_plain() as server, open_transport() as transport:
        with pytest.raises(TransportFailed, match=words):
            await transport.exchange(f"{server.url}{path}", encode_query("shop.test", "MX"))
        assert server.requests == requests
        assert await transport.exchange(f"{server.url}/q", encode_query("shop.test", "MX"))


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
@pytest.mark.parametrize("retry_after", RetryAfter)
@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_says_when_to_come_again(tmp_path, protocol, status, retry_after):
    """As the lab's resolver says it, over both versions of HTTP; then it answers."""
    zone = Zone()
    zone.mx("shop.test", "mx.shop.test")
    zone.faults = ResolverFaults(
        limited_first=status == 429,
        unavailable_first=status == 503,
        retry_after_s=7,
        retry_after=retry_after,
    )
    authority = lab.Authority(tmp_path, "127.0.0.1")
    [tcp] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listeners = [trio.SSLListener(tcp, authority.context(protocol))]
    url = f"https://127.0.0.1:{tcp.socket.getsockname()[1]}{lab.PATH}"
    query = encode_query("shop.test", "MX")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, lab.Resolver(zone).serve, listeners)
        async with open_transport(str(authority.trusted)) as transport:
            with pytest.raises(QueryRefused, match=f"HTTP status {status}") as refused:
                await transport.exchange(url, query)
            assert refused.value.retry_after_s == 7
            assert isinstance(read_route(await transport.exchange(url, query), "shop.test"), Route)
        nursery.cancel_scope.cancel()


async def test_a_connection_that_ended_between_questions_is_no_failure():
    async with open_plain() as server, open_transport() as transport:
        for _ in range(5):
            assert await transport.exchange(f"{server.url}/once", encode_query("shop.test", "MX"))


async def test_a_refused_connection_is_a_failure():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, not listening
        url = f"http://127.0.0.1:{free.getsockname()[1]}/q"
        async with open_transport() as transport:
            with pytest.raises(TransportFailed, match="refused"):
                await transport.exchange(url, encode_query("shop.test", "MX"))


async def test_the_transport_resolves_no_name():
    async with open_transport() as transport:
        with pytest.raises(ValueError, match="by its address"):
            await transport.exchange("https://dns.test/q", encode_query("shop.test", "MX"))


async def test_routes_over_real_sockets():
    async with open_plain() as server:
        urls = (f"{server.url}/html", f"{server.url}/500", f"{server.url}/q")
        async with open_routes(EngineSettings(doh_urls=urls), rng=Random(1)) as routes:
            assert await routes.find("shop.test") == ROUTE


@dataclass
class TlsServer:
    """DNS over HTTP/2; says GOAWAY after so many questions on a connection."""

    url: str = ""
    questions_max: int = 1_000_000
    connections: int = 0
    dropped: int = 0

    async def serve(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self.connections += 1
        wire = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        wire.initiate_connection()
        queries: dict[int, bytes] = {}
        answered = 0
        try:
            await stream.send_all(wire.data_to_send())
            while octets := await stream.receive_some():
                for event in wire.receive_data(octets):
                    match event:
                        case h2.events.RequestReceived():
                            queries[event.stream_id] = b""
                        case h2.events.DataReceived():
                            queries[event.stream_id] += event.data
                        case h2.events.StreamEnded():
                            if answered >= self.questions_max:
                                continue
                            answered += 1
                            self.answer(wire, event.stream_id, queries.pop(event.stream_id))
                if answered >= self.questions_max and queries:
                    self.dropped += len(queries)
                    wire.close_connection()
                    await stream.send_all(wire.data_to_send())
                    return
                await stream.send_all(wire.data_to_send())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    def answer(self, wire: h2.connection.H2Connection, stream_id: int, query: bytes) -> None:
        octets = reply(query, "300 MX 10 mx.shop.test.")
        with suppress(h2.exceptions.ProtocolError):  # given up by the client
            wire.send_headers(
                stream_id, [(":status", "200"), ("content-type", "application/dns-message")]
            )
            wire.send_data(stream_id, octets, end_stream=True)


@asynccontextmanager
async def open_tls(authority, **more):
    server = TlsServer(**more)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.set_alpn_protocols(["h2"])
    listener = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_STREAM)
    await listener.bind(("127.0.0.1", 0))
    listener.listen()
    server.url = f"https://127.0.0.1:{listener.getsockname()[1]}/dns-query"
    async with trio.open_nursery() as nursery:
        listeners = [trio.SSLListener(trio.SocketListener(listener), context)]
        nursery.start_soon(trio.serve_listeners, server.serve, listeners)
        yield server
        nursery.cancel_scope.cancel()


async def test_questions_share_one_connection_where_http_2_is_spoken(authority, ca_file):
    async with open_tls(authority) as server:
        settings = EngineSettings(doh_urls=(server.url,), doh_ca_file=ca_file)
        async with open_routes(settings, rng=Random(1)) as routes, trio.open_nursery() as nursery:
            for place in range(150):
                nursery.start_soon(routes.find, f"d{place}.test")
        assert server.connections == 1


async def test_an_authority_that_is_not_ours_is_a_failure(authority, tmp_path):
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    async with open_tls(authority) as server, open_transport(str(other)) as transport:
        with pytest.raises(TransportFailed, match="certificate"):
            await transport.exchange(server.url, encode_query("shop.test", "MX"))


async def test_queries_unanswered_at_goaway_are_sent_again(authority, ca_file):
    async with open_tls(authority, questions_max=45) as server:
        answered = 0

        async def account(place: int) -> None:
            nonlocal answered
            await transport.exchange(server.url, encode_query(f"d{place}.test", "MX"))
            answered += 1

        async with open_transport(ca_file) as transport:
            for start in range(0, 300, 30):
                async with trio.open_nursery() as nursery:
                    for place in range(start, start + 30):
                        nursery.start_soon(account, place)
        assert answered == 300
        assert server.dropped > 0
        assert server.connections > 1


async def test_accounts_who_give_up_at_any_moment_leave_the_connection_whole(authority, ca_file):
    async with open_tls(authority) as server, open_transport(ca_file) as transport:
        rng = Random(5)

        async def impatient(place: int) -> None:
            with trio.move_on_after(rng.random() / 20):
                await transport.exchange(server.url, encode_query(f"d{place}.test", "MX"))

        async with trio.open_nursery() as nursery:
            for place in range(100):
                nursery.start_soon(impatient, place)
        octets = await transport.exchange(server.url, encode_query("shop.test", "MX"))
        assert read_route(octets, "shop.test") == ROUTE
        assert server.connections == 1


async def test_accounts_who_give_up_before_anything_is_sent_break_no_connection():
    """Over HTTP/1.1 a connection has one question; its task has not run since it got it."""
    async with open_plain() as server, open_transport() as transport:
        url = f"{server.url}/q"
        for place in range(20):
            await transport.exchange(url, encode_query(f"d{place}.test", "MX"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(transport.exchange, url, encode_query("shop.test", "MX"))
                nursery.cancel_scope.deadline = trio.current_time()
        octets = await transport.exchange(url, encode_query("shop.test", "MX"))
        assert read_route(octets, "shop.test") == ROUTE


@pytest.mark.parametrize("after_ms", [0, 1, 2, 5, 10, 20, 40])
async def test_closing_in_mid_question_leaves_no_socket(authority, ca_file, after_ms):
    async with open_tls(authority) as server, open_transport(ca_file) as transport:
        with trio.move_on_after(after_ms / 1000):
            async with trio.open_nursery() as nursery:
                for place in range(20):
                    nursery.start_soon(
                        transport.exchange, server.url, encode_query(f"d{place}.test", "MX")
                    )


async def test_an_endpoint_that_never_shakes_hands_is_let_go(ca_file):
    """Cancelled in the handshake, httpcore would leave the socket to the collector."""
    listener = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_STREAM)
    await listener.bind(("127.0.0.1", 0))
    listener.listen()
    with listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/q"
        async with open_transport(ca_file) as transport:
            with trio.move_on_after(0.05) as limit:
                await transport.exchange(url, encode_query("shop.test", "MX"))
            assert limit.cancelled_caught


async def test_no_name_is_ever_given_to_the_systems_resolver(authority, ca_file, monkeypatch):
    """Every call there is may only be of digits that are taken as they are."""
    hosts = []
    real = socket.getaddrinfo

    def getaddrinfo(host, *args, **kwargs):
        hosts.append(host)
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    async with open_tls(authority) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        settings = EngineSettings(doh_urls=(url,), doh_ca_file=ca_file)
        async with open_routes(settings, rng=Random(1)) as routes:
            assert await routes.find("shop.test") == ROUTE
    assert set(map(str, hosts)) <= {"127.0.0.1", "b'127.0.0.1'"}
