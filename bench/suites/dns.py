"""Measures DNS look-ups (layer 3) over TLS, against a very cheap resolver in its own process.

A look-up is one DNS question and the reading of its answer: a domain's exchanges are one,
and the addresses of each exchange another. A rate is per core: a million microseconds
divided by `cpu_us`, the processor time that a look-up takes the engine. `load_cpu_us` is
the resolver's, on another core. httpx with dnspython queries the same server in the same
run. The rounds of all of them alternate, so that a busy machine slows them equally.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from statistics import median

import trio
from msgspec import Struct, field

from mailprobe.engine.dns.doh import open_transport, tls_context
from mailprobe.engine.dns.messages import Route, encode_query, read_route
from mailprobe.engine.dns.routes import open_routes
from mailprobe.engine.settings import EngineSettings

from ..harness.figures import Figure
from ..harness.rounds import timed

ROUNDS = 5
AT_ONCE = 100  # concurrent tasks; as many as LOOK_UPS_MAX of engine/stream/scheduler.py
QUESTIONS = 2_000  # of each round
QUESTIONS_SLOW = 500  # of each round of httpx
READS = 2_000
ROUND_S = 60.0  # a round takes half a second, httpx's two

SendQuery = Callable[[str], Awaitable[int]]  # a new domain -> how many questions were sent


class DnsServer(Struct, frozen=True):
    url: str
    ca_file: str
    pid: int

    def cpu_s(self) -> float:
        """The processor time that it has used, all threads together (proc(5))."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Measured(Struct):
    """The times of one client's look-ups, round by round."""

    questions: int = 0
    cpu_us: list[float] = field(default_factory=list)  # of this process, for each look-up
    wall_us: list[float] = field(default_factory=list)
    load_s: float = 0.0

    @property
    def each_us(self) -> float:
        return median(self.cpu_us)

    def figure(self, what: str) -> Figure:
        spread = (max(self.cpu_us) - min(self.cpu_us)) / self.each_us
        load_us = self.load_s / self.questions * 1e6
        return Figure(
            what,
            1e6 / self.each_us,
            "a second",
            spread=spread,
            cpu_us=self.each_us,
            load_cpu_us=load_us,
        )


def run() -> list[Figure]:
    with start_server("h2") as h2, start_server("http/1.1") as http1:
        by_way = trio.run(measure, h2, http1)
    ours, theirs = by_way["ours"], by_way["httpx"]
    reader, dnspython = read_alone()
    return [
        by_way["routes"].figure("look-ups (DNS questions) of unknown domains on one core"),
        ours.figure("questions over HTTP/2"),
        by_way["http/1.1"].figure("questions over HTTP/1.1"),
        theirs.figure("questions by httpx and dnspython over HTTP/2"),
        Figure("over HTTP/2, against httpx and dnspython", theirs.each_us / ours.each_us, "×"),
        Figure(
            "look-ups of unknown domains, against httpx and dnspython",
            theirs.each_us / by_way["routes"].each_us,
            "×",
        ),
        Figure("wall time of a look-up of unknown domains", median(by_way["routes"].wall_us), "µs"),
        Figure("an answer of two exchanges read", reader, "µs"),
        Figure("the same by dnspython", dnspython, "µs"),
        Figure("an answer read, against dnspython", dnspython / reader, "×"),
    ]


async def measure(h2: DnsServer, http1: DnsServer) -> dict[str, Measured]:
    import httpx

    names = (f"d{number}.unknown.test" for number in count())
    settings = EngineSettings(doh_urls=(h2.url,), doh_ca_file=h2.ca_file, allow_private=True)
    async with (
        open_transport(h2.ca_file) as fast,
        open_transport(http1.ca_file) as plain,
        httpx.AsyncClient(http2=True, verify=tls_context(h2.ca_file), trust_env=False) as client,
        open_routes(settings, rng=Random(1)) as routes,
    ):

        async def by_transport(name: str) -> int:
            assert isinstance(
                read_route(await fast.exchange(h2.url, encode_query(name, "MX")), name), Route
            )
            return 1

        async def by_http1(name: str) -> int:
            octets = await plain.exchange(http1.url, encode_query(name, "MX"))
            assert isinstance(read_route(octets, name), Route)
            return 1

        async def by_httpx(name: str) -> int:
            return await query_by_httpx(client, h2.url, name)

        async def by_routes(name: str) -> int:
            route = await routes.find(name, deferred_start=True)
            assert isinstance(route, Route)
            for exchange in route.exchanges:
                await routes.addresses(exchange.name, deferred_start=True)
            return 1 + len(route.exchanges)

        ways: dict[str, tuple[SendQuery, DnsServer, int]] = {
            "routes": (by_routes, h2, QUESTIONS),
            "ours": (by_transport, h2, QUESTIONS),
            "http/1.1": (by_http1, http1, QUESTIONS),
            "httpx": (by_httpx, h2, QUESTIONS_SLOW),
        }
        measured = {way: Measured() for way in ways}
        for number in range(ROUNDS + 1):  # the first warms the connections
            for way, (question, server, questions) in ways.items():
                target = measured[way] if number else Measured()
                with trio.fail_after(ROUND_S):
                    await one_round(question, names, server, questions, target)
    return measured


async def one_round(
    question: SendQuery, names: Iterator[str], server: DnsServer, questions: int, measured: Measured
) -> None:
    asked = 0

    async def account() -> None:
        nonlocal asked
        while asked < questions:
            asked += 1
            others = await question(next(names)) - 1
            asked += others

    load_s, wall, cpu = server.cpu_s(), time.perf_counter(), time.process_time()
    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(account)
    measured.cpu_us.append((time.process_time() - cpu) / asked * 1e6)
    measured.wall_us.append((time.perf_counter() - wall) / asked * 1e6)
    measured.load_s += server.cpu_s() - load_s
    measured.questions += asked


async def query_by_httpx(client, url: str, name: str) -> int:  # type: ignore[no-untyped-def]
    import dns.message

    question = dns.message.make_query(name, "MX", id=0)
    headers = {"accept": "application/dns-message", "content-type": "application/dns-message"}
    response = await client.post(url, content=question.to_wire(), headers=headers)
    assert response.status_code == 200
    assert len(dns.message.from_wire(response.content).answer[0]) == 2
    return 1


def read_alone() -> tuple[float, float]:
    """Return the microseconds to read one answer: by our reader, by dnspython."""
    import dns.message

    from ..load.doh_server import answer_to

    name = "d1.unknown.test"
    octets = answer_to(encode_query(name, "MX"))

    def by_ours() -> None:
        for _ in range(READS):
            read_route(octets, name)

    def by_dnspython() -> None:
        for _ in range(READS // 10):
            dns.message.from_wire(octets)

    return timed(by_ours).cpu_each_us(READS), timed(by_dnspython).cpu_each_us(READS // 10)


@contextmanager
def start_server(protocol: str) -> Iterator[DnsServer]:
    """A resolver that speaks this protocol; it ends with the block."""
    command = [sys.executable, "-m", "mailprobe.bench.load.doh_server", protocol]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield DnsServer(**json.loads(process.stdout.readline()), pid=process.pid)
        finally:
            process.stdin.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
