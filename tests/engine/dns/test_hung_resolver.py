"""Names that hang and resolvers in trouble, over real sockets: the lab's, and one of HTTP/1.1."""

import random
import select
import socket
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
import trio.lowlevel
import trio.testing

from mailprobe.bench.lab import doh as lab
from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.bench.world.zone import Behaviour, Zone, ZoneMode
from mailprobe.engine import EngineSettings, open_answers, open_engine
from mailprobe.engine.dns.endpoint import LOOKUP_S
from mailprobe.engine.dns.messages import Route
from mailprobe.engine.dns.routes import open_routes
from tests.engine.engine_runs import verify
from tests.engine.invariants import assert_whole

MID_LIST = 60  # questions

HTTP1 = b"HTTP/1.1 200 OK\r\nContent-Type: application/dns-message\r\nContent-Length: %d\r\n\r\n"


@dataclass
class Watched:
    """A zone that says when a list's questions are under way."""

    zone: Zone
    in_mid_list: trio.Event
    questions: int = 0

    def answer(self, query: bytes) -> bytes | Behaviour:
        self.questions += 1
        if self.questions == MID_LIST:
            self.in_mid_list.set()
        return self.zone.answer(query)


@dataclass
class Http1Resolver:
    """A zone over HTTP/1.1 without TLS; a name that hangs holds its connection."""

    zone: Zone | Watched
    connections: int = 0
    at_once: int = field(default=0)

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        buffer = b""
        with suppress(trio.BrokenResourceError):
            async with stream:
                while more := await stream.receive_some():
                    buffer += more
                    head, _, body = buffer.partition(b"\r\n\r\n")
                    length = int(head.lower().partition(b"content-length:")[2].split()[0])
                    if len(body) < length:
                        continue
                    buffer = body[length:]
                    answer = self.zone.answer(body[:length])
                    if answer is ZoneMode.HANG:
                        continue  # until the client has gone
                    assert isinstance(answer, bytes)
                    await stream.send_all(HTTP1 % len(answer) + answer)


@asynccontextmanager
async def open_resolver(protocol: str, zone: Zone | Watched, folder):
    """Settings that reach a resolver of this zone."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        if protocol == "h2":
            tls, authority = lab.make_authority(folder, "127.0.0.1")
            answering: Any = zone  # it needs no more than answer()
            server = lab.Resolver(answering)
            nursery.start_soon(
                trio.serve_listeners, server.serve, [trio.SSLListener(listener, tls)]
            )
            yield EngineSettings(
                doh_urls=(f"https://127.0.0.1:{port}{lab.PATH}",), doh_ca_file=str(authority)
            )
        else:
            nursery.start_soon(trio.serve_listeners, Http1Resolver(zone).serve, [listener])
            yield EngineSettings(doh_urls=(f"http://127.0.0.1:{port}/q",))
        nursery.cancel_scope.cancel()


async def after(event: trio.Event, act, *words) -> None:
    await event.wait()
    await act(*words)


class Relay:
    """Between the engine and its resolver: it can stand still, or lose all connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._moves = trio.Event()
        self._moves.set()
        self._scopes: set[trio.CancelScope] = set()
        self._gone = False

    async def stand_still(self, lasts_s: float) -> None:
        self._moves = trio.Event()
        await trio.sleep(lasts_s)
        self._moves.set()

    async def be_gone(self, lasts_s: float) -> None:
        self._gone = True
        for scope in self._scopes:
            scope.cancel()
        await trio.sleep(lasts_s)
        self._gone = False

    async def serve(self, listener: trio.SocketListener) -> None:
        async with listener, trio.open_nursery() as nursery:
            while True:
                stream = await listener.accept()
                if self._gone:
                    await trio.aclose_forcefully(stream)
                else:
                    nursery.start_soon(self._carry, stream)

    async def _carry(self, client: trio.SocketStream) -> None:
        async with client, await trio.open_tcp_stream("127.0.0.1", self._port) as resolver:
            async with trio.open_nursery() as nursery:
                both = nursery.cancel_scope
                self._scopes.add(both)
                nursery.start_soon(self._pass_on, client, resolver, both)
                nursery.start_soon(self._pass_on, resolver, client, both)
            self._scopes.discard(both)

    async def _pass_on(
        self, source: trio.SocketStream, target: trio.SocketStream, both: trio.CancelScope
    ) -> None:
        with suppress(trio.BrokenResourceError):
            while octets := await source.receive_some():
                await self._moves.wait()
                await target.send_all(octets)
        both.cancel()


@asynccontextmanager
async def open_engine_of_domains(protocol: str, folder, *, healthy: int, hung: int):
    """An engine before a zone with so many domains that live, d…, and that hang, hung…"""
    async with open_fake_network() as network:
        host = MailHost()
        for number in range(healthy):
            network.add(f"d{number}.test", host, mx="mx.test")
        for number in range(hung):
            network.zone.mode(f"hung{number}.test", ZoneMode.HANG)
        async with (
            open_resolver(protocol, network.zone, folder) as settings,
            open_engine(settings, dial=network.dial, rng=random.Random(0)) as engine,
        ):
            with trio.fail_after(120):
                yield engine
        assert_whole(engine)


def failed(verdicts) -> set[str]:
    """The domains whose look-up is told as failed."""
    return {
        verdict.email.partition("@")[2]
        for verdict in verdicts
        if not verdict.mx_found and verdict.status == "unknown"
    }


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_a_list_of_which_a_fifth_hangs(idle_clock, protocol, tmp_path):
    healthy, hung = 120, 30
    domains = [f"d{n}.test" for n in range(healthy)] + [f"hung{n}.test" for n in range(hung)]
    random.Random(1).shuffle(domains)
    async with open_engine_of_domains(protocol, tmp_path, healthy=healthy, hung=hung) as engine:
        verdicts = await verify(
            engine, *(f"known@{domain}" for domain in domains), deferred_start=True
        )
    assert failed(verdicts) == {domain for domain in domains if domain.startswith("hung")}


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
@pytest.mark.parametrize("trouble", [Relay.stand_still, Relay.be_gone])
async def test_a_list_loses_no_answer_to_a_resolver_that_comes_back(
    idle_clock, protocol, trouble, tmp_path
):
    """It stands still, or ends its connections and takes no other, for 1.4 s in mid-list."""
    healthy, hung = 200, 20
    domains = [f"d{n}.test" for n in range(healthy)] + [f"hung{n}.test" for n in range(hung)]
    random.Random(1).shuffle(domains)
    async with open_fake_network() as network, trio.open_nursery() as nursery:
        host = MailHost()
        for domain in domains:
            if domain.startswith("hung"):
                network.zone.mode(domain, ZoneMode.HANG)
            else:
                network.add(domain, host, mx="mx.test")
        zone = Watched(network.zone, trio.Event())
        async with open_resolver(protocol, zone, tmp_path) as settings:
            [url] = settings.doh_urls
            port = urlsplit(url).port
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            relay = Relay(port)
            nursery.start_soon(relay.serve, listener)
            nursery.start_soon(after, zone.in_mid_list, trouble, relay, 1.4)
            url = url.replace(str(port), str(listener.socket.getsockname()[1]))
            texts = [f"known@{domain}" for domain in domains]
            verdicts = []
            async with (
                open_engine(
                    replace(settings, doh_urls=(url,)), dial=network.dial, rng=random.Random(0)
                ) as engine,
                open_answers(engine, texts, account="me", deferred_start=True) as answers,
            ):
                with trio.fail_after(120):
                    async for answer in answers:
                        verdicts.append(answer.verdict)
        nursery.cancel_scope.cancel()
    assert failed(verdicts) == {domain for domain in domains if domain.startswith("hung")}


@pytest.mark.parametrize(
    ("count", "delay_s", "hung", "lasts_s"), [(500, 0.0, 0, 1.3), (200, 0.02, 10, 4.0)]
)
async def test_goaway_after_every_five_answers_costs_a_list_nothing(
    idle_clock, tmp_path, count, delay_s, hung, lasts_s
):
    """What is given back is sent again, and soon no more is sent than is answered."""
    async with open_fake_network() as network, trio.open_nursery() as nursery:
        # A host takes 512 refusals in ten minutes, and each domain's test costs it one.
        hosts = [MailHost() for _ in range(8)]
        for number in range(count):
            network.add(f"d{number}.test", hosts[number % 8], mx=f"mx{number % 8}.test")
        for number in range(hung):
            network.zone.mode(f"d{number}.test", ZoneMode.HANG)
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        tls, authority = lab.make_authority(tmp_path, "127.0.0.1")
        resolver = lab.Resolver(network.zone, delay_s=delay_s, goaway_after=5)
        listeners = [trio.SSLListener(listener, tls)]
        nursery.start_soon(trio.serve_listeners, resolver.serve, listeners)
        url = f"https://127.0.0.1:{listener.socket.getsockname()[1]}{lab.PATH}"
        settings = EngineSettings(doh_urls=(url,), doh_ca_file=str(authority))
        async with open_engine(settings, dial=network.dial, rng=random.Random(0)) as engine:
            began = trio.current_time()
            texts = [f"known@d{number}.test" for number in range(count)]
            verdicts = await verify(engine, *texts, deferred_start=True)
            lasted_s = trio.current_time() - began
        nursery.cancel_scope.cancel()
    assert failed(verdicts) == {f"d{number}.test" for number in range(hung)}
    assert lasted_s < lasts_s
    assert resolver.connections_seen >= count / 5
    assert sum(network.zone.queries.values()) <= 2 * count + 20 * hung


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_batches_of_hung_domains_do_not_hurt_a_neighbour(idle_clock, protocol, tmp_path):
    """Eight batches of one account; another one's requests meanwhile are right, and soon."""
    batches = 8
    async with (
        open_engine_of_domains(protocol, tmp_path, healthy=10, hung=50 * batches) as engine,
        trio.open_nursery() as nursery,
    ):
        for number in range(batches):
            texts = [f"a@hung{50 * number + place}.test" for place in range(50)]
            nursery.start_soon(verify, engine, *texts)
        for number in range(10):
            await trio.sleep(0.1)
            [verdict] = await verify(engine, f"known@d{number}.test", account="neighbour")
            assert verdict.status == "deliverable"
            assert verdict.latency_ms < 3200


async def until_readable(sock: socket.socket) -> None:
    """Let the engine run, and only it: no other thread decides when the question is there."""
    while not select.select([sock], [], [], 0)[0]:
        await trio.lowlevel.checkpoint()


async def test_an_answer_that_came_while_the_process_stood_still_counts():
    """A busy machine stops us for seconds; what lies in the socket by then is no time-out."""
    zone = Zone()
    zone.mx("shop.test", "mx.test")
    reported = []

    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = EngineSettings(doh_urls=(f"http://127.0.0.1:{listener.getsockname()[1]}/q",))

        async def find() -> None:
            reported.append(await routes.find("shop.test"))

        async with (
            open_routes(settings, rng=random.Random(1)) as routes,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(find)
            await until_readable(listener)
            connection, _ = listener.accept()
            with connection:
                await until_readable(connection)
                body = connection.recv(65_536).partition(b"\r\n\r\n")[2]
                answer = zone.answer(body)
                assert isinstance(answer, bytes)
                connection.sendall(HTTP1 % len(answer) + answer)
                time.sleep(LOOKUP_S + 0.2)  # noqa: ASYNC251 - the process stands still
                while not reported:
                    await trio.lowlevel.checkpoint()
    [route] = reported
    assert isinstance(route, Route)
    assert route.mx_host == "mx.test"
