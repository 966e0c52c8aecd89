"""Measures the engine's addresses per second: by pipelining, by latency, by concurrency.

The mail hosts are the sink's, in a process of its own; routes are cached, results are
encoded. "On one core" is computed from the processor time of this process. The rounds of
the naive loop (mailprobe.bench.load.naive) alternate with the engine's, so that both run
on an equally busy machine; beside it this process and the sink have a core each. Hosts that
answer at once, and 1 and 5 ms late: what comes in one wake-up differs. Calls and wake-ups are
counted in a round of their own. The hosts' greetings do not tell their software; hosts that are
named are measured beside them once.

`MAILPROBE_BENCH_ADDRESSES` (1,000,000) is the number of addresses of "as work grows".
"""

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count, islice
from statistics import median

import msgspec
import trio

from mailprobe.api.gc_tuning import tune_collector
from mailprobe.api.settings import Settings
from mailprobe.engine import Answer, Engine, open_answers, open_engine
from mailprobe.engine.dns.messages import Route
from mailprobe.engine.dns.single_flight import FAILURE_KEPT_S
from mailprobe.engine.lists.lists import load_lists

from ..harness.counting import counting
from ..harness.engine_runs import lookup_all, rss_mib
from ..harness.figures import Figure, Result, Series
from ..harness.pinning import pinned
from ..load.naive import NaiveLoop
from ..load.smtp_sink import SmtpSink, start_sink

HOSTS = 200
CONNECTIONS = 10
LIST = 40_000  # addresses a round: two connections' recipients for each of ten at a host
ROUNDS = 5
NEAR_MS = (0, 1, 5)
COUNTED_MS = 1
DEPTH = 8  # recipients that the engine pipelines before it knows whether the host refuses them
RECIPIENTS = 100  # on one connection, then QUIT
FAR_HOSTS = 20
FAR_CONNECTIONS = 4
WARM_S, MEASURED_S = 2.5, 4.0  # of an endless list
LATENCIES_MS = (0, 10, 25, 50, 100, 200)
PROMISED_MS = (50, 100)
CONCURRENCIES = (1, 2, 4, 8, 16)
LOOK_UP_S = 60.0
GROWN = int(os.environ.get("MAILPROBE_BENCH_ADDRESSES", "1000000"))
FEW, STEP = 1_000, 20_000
BUSY_SHARE = 0.001
ENCODER = msgspec.json.Encoder()


class EngineRound(msgspec.Struct, frozen=True):
    """The times of one round of `addresses` addresses."""

    addresses: int
    wall_s: float
    cpu_s: float
    load_cpu_s: float

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.addresses * 1e6


def run() -> Result:
    tune_collector()  # as `clean` and `serve` do
    return trio.run(_run)


async def _run() -> Result:
    figures = [*await _near(), *await _unnamed(), *await _growth()]
    far, series = await _far()
    return Result([*figures, *far], series)


@asynccontextmanager
async def _engine(sink: SmtpSink, connections: int) -> AsyncIterator[Engine]:
    settings = replace(Settings.read(sink.env).engine, host_connections=connections)
    async with open_engine(settings) as engine:
        texts = [sink.mailbox(number) for number in range(sink.domains)]
        await lookup_all(engine, texts)
        with trio.move_on_after(LOOK_UP_S):
            while not all(
                isinstance(engine.routes.cached_route(sink.domain(each)), Route)
                for each in range(sink.domains)
            ):
                await trio.sleep(FAILURE_KEPT_S)  # on a busy machine some look-ups fail
                await lookup_all(engine, texts)
        yield engine


async def verify(engine: Engine, texts: Iterable[str], status: str = "deliverable") -> int:
    """Verify as `clean` does; return how many octets the results are as JSON lines.

    Raises AssertionError if more than BUSY_SHARE of the addresses have another status: on a busy
    machine a reply can be late.
    """
    octets = answered = 0
    others: list[Answer] = []
    async with open_answers(engine, texts, account="bench", deferred_start=True) as answers:
        while ready := await answers.next_ready():
            answered += len(ready)
            others += (answer for answer in ready if answer.verdict.status != status)
            octets += len(ENCODER.encode_lines([answer.verdict for answer in ready]))
    if len(others) > answered * BUSY_SHARE:
        raise AssertionError(f"{len(others)} of {answered} are not {status}: {others[0]}")
    return octets


async def _timed(
    sink: SmtpSink, work: Callable[[], Awaitable[object]], addresses: int
) -> EngineRound:
    wall, cpu, load = time.perf_counter(), time.process_time(), sink.cpu_s()
    await work()
    return EngineRound(
        addresses,
        time.perf_counter() - wall,
        time.process_time() - cpu,
        sink.cpu_s() - load,
    )


# -- near: limited by the processor ----------------------------------------------------------


async def _near() -> list[Figure]:
    figures = []
    for delay_ms in NEAR_MS:
        naive, in_step, in_rows, mixed = await _beside_naive(delay_ms)
        before = f"{delay_ms} ms a reply, " if delay_ms else ""
        figures += [
            _rate(f"{before}the naive loop, on one core", naive),
            _rate(f"{before}one RCPT a write, on one core", in_step),
            _times(f"{before}one RCPT a write: times the naive loop", naive, in_step),
        ]
        for name, rounds in (("sorted by domain", in_rows), ("in any order", mixed)):
            figures.append(_rate(f"{before}pipelined, {name}, on one core", rounds))
            figures.append(
                _times(f"{before}pipelined, {name}: times the naive loop", naive, rounds)
            )
    return [*figures, *await _counted("one RCPT a write"), *await _counted("pipelined")]


async def _beside_naive(delay_ms: float) -> list[list[EngineRound]]:
    """Return rounds: naive, lock-step, pipelined and sorted, pipelined in any order."""
    loop = NaiveLoop(load_lists())
    with (
        start_sink(hosts=HOSTS, delay_ms=delay_ms, pipelining=False) as plain,
        start_sink(hosts=HOSTS, delay_ms=delay_ms, pipelining=True) as wide,
        pinned(plain.process.pid, wide.process.pid),
    ):
        texts = [plain.mailbox(number) for number in range(LIST)]
        mixed = [wide.mailbox(number) for number in range(LIST)]
        in_rows = _sorted_by_domain(mixed)
        async with (
            _engine(plain, CONNECTIONS) as one_by_one,
            _engine(wide, CONNECTIONS) as together,
        ):
            await loop.connect(plain, CONNECTIONS)
            turns: list[tuple[SmtpSink, Callable[[], Awaitable[object]]]] = [
                (plain, lambda: loop.verify_all(texts)),
                (plain, lambda: verify(one_by_one, texts)),
                (wide, lambda: verify(together, in_rows)),
                (wide, lambda: verify(together, mixed)),
            ]
            rounds = [
                [await _timed(sink, work, LIST) for sink, work in turns] for _ in range(ROUNDS + 1)
            ]
            await loop.close()
    return [list(each) for each in zip(*rounds[1:], strict=True)]


async def _unnamed() -> list[Figure]:
    """Hosts whose greeting does not tell their software, beside hosts that are named."""
    rounds: list[list[EngineRound]] = []
    with (
        start_sink(hosts=HOSTS, delay_ms=COUNTED_MS, named=True) as named,
        start_sink(hosts=HOSTS, delay_ms=COUNTED_MS) as unnamed,
        pinned(named.process.pid, unnamed.process.pid),
    ):
        sinks = (named, unnamed)
        texts = _sorted_by_domain(named.mailbox(number) for number in range(LIST))
        async with (
            _engine(named, CONNECTIONS) as one,
            _engine(unnamed, CONNECTIONS) as other,
        ):
            for engine in (one, other):
                await verify(engine, texts)  # the first time: nothing is known of a host
            first = [sink.turnarounds() for sink in sinks]
            for _ in range(ROUNDS):
                rounds.append(
                    [
                        await _timed(named, partial(verify, one, texts), LIST),
                        await _timed(unnamed, partial(verify, other, texts), LIST),
                    ]
                )
            later = [sink.turnarounds() - before for sink, before in zip(sinks, first, strict=True)]
    of_named, of_unnamed = ([each[place] for each in rounds] for place in (0, 1))
    return [
        _times("unnamed hosts: CPU of each, beside named ones", of_unnamed, of_named),
        Figure("unnamed hosts: turn-arounds, beside named ones", later[1] / later[0], "×"),
        Figure("unnamed hosts: turn-arounds of the first list", first[1] / first[0], "×"),
    ]


def _sorted_by_domain(texts: Iterable[str]) -> list[str]:
    return sorted(texts, key=lambda text: text.partition("@")[2])


async def _counted(way: str) -> list[Figure]:
    """What an address of a sorted list costs, in calls of functions and in wake-ups."""
    with (
        start_sink(hosts=HOSTS, delay_ms=COUNTED_MS, pipelining=way == "pipelined") as sink,
        pinned(sink.process.pid),
    ):
        texts = _sorted_by_domain(sink.mailbox(number) for number in range(LIST))
        async with _engine(sink, CONNECTIONS) as engine:
            await verify(engine, texts)
            with counting() as counts:
                await verify(engine, texts)
    where = f"{COUNTED_MS} ms a reply, {way}"
    return [
        Figure(f"{where}: calls of the engine's functions", counts.calls / LIST, "an address"),
        Figure(f"{where}: wake-ups", counts.wakeups / LIST * 1000, "of 1,000 addresses"),
    ]


def _rate(what: str, rounds: list[EngineRound]) -> Figure:
    each = [one.cpu_us for one in rounds]
    load = median(one.load_cpu_s / one.addresses * 1e6 for one in rounds)
    return Figure(
        what,
        1e6 / median(each),
        "a second",
        spread=(max(each) - min(each)) / median(each),
        cpu_us=median(each),
        load_cpu_us=load,
    )


def _times(what: str, naive: list[EngineRound], ours: list[EngineRound]) -> Figure:
    """How many times as fast as the naive loop the engine is, round by round."""
    ratios = [one.cpu_us / other.cpu_us for one, other in zip(naive, ours, strict=True)]
    return Figure(what, median(ratios), "×", spread=(max(ratios) - min(ratios)) / median(ratios))


# -- as work grows ---------------------------------------------------------------------------


async def _growth() -> list[Figure]:
    with start_sink(hosts=HOSTS) as sink:
        async with _engine(sink, FAR_CONNECTIONS) as engine:
            numbers = count()

            async def verify_many(addresses: int, lists: int = 1) -> None:
                for _ in range(lists):
                    texts = (_in_runs(sink, number) for number in islice(numbers, addresses))
                    await verify(engine, texts)

            await verify_many(STEP)
            few = await _timed(sink, lambda: verify_many(FEW, 40), FEW * 40)
            before = rss_mib()
            many = await _timed(sink, lambda: verify_many(GROWN), GROWN)
            after = rss_mib()
    return [
        Figure(f"{GROWN:,} addresses: CPU of each, beside lists of 1,000", many.cpu_us / few.cpu_us, "×", cpu_us=many.cpu_us, memory_mib=after),
        Figure(f"{GROWN:,} addresses: memory beside before", after / before, "×", memory_mib=after),
        await _domains(),
    ]  # fmt: skip


def _in_runs(sink: SmtpSink, number: int) -> str:
    """Return an address; twenty consecutive numbers share a domain, as in a sorted list."""
    return f"ok{number}@{sink.domain(number // 20)}"


async def _domains() -> Figure:
    """Compare 10 domains with 10,000, at the same hosts, with the same number of addresses.

    The hosts accept everybody: else they would take too few refusals for a random name of each.
    """
    costs = []
    for domains in (10, 10_000):
        with start_sink(hosts=10, domains=domains, accepts_all=True) as sink:
            async with _engine(sink, FAR_CONNECTIONS) as engine:
                texts = [_in_runs(sink, number) for number in range(100_000)]
                await verify(engine, texts, "catch_all")
                run = partial(verify, engine, texts, "catch_all")
                costs.append(await _timed(sink, run, len(texts)))
    few, many = costs
    return Figure("10,000 domains: CPU of each, beside 10 domains", many.cpu_us / few.cpu_us, "×", cpu_us=many.cpu_us)  # fmt: skip


# -- far: limited by latency -----------------------------------------------------------------


async def _far() -> tuple[list[Figure], list[Series]]:
    figures, by_latency, ideal = [], [], []
    for latency_ms in LATENCIES_MS:
        rate = await _steady(latency_ms, FAR_CONNECTIONS, pipelining=False)
        by_latency.append((float(latency_ms), rate))
        if latency_ms:
            ideal.append((float(latency_ms), _ideal(latency_ms, FAR_CONNECTIONS, 1)))
        if latency_ms in PROMISED_MS:
            share = rate / _ideal(latency_ms, FAR_CONNECTIONS, 1)
            figures.append(Figure(f"{latency_ms} ms a reply: of connections ÷ delay", share, ""))
            rate = await _steady(latency_ms, FAR_CONNECTIONS, pipelining=True)
            share = rate / _ideal(latency_ms, FAR_CONNECTIONS, DEPTH) / _USEFUL
            what = (
                f"{latency_ms} ms a reply, pipelined: of connections × depth ÷ delay, less hellos"
            )
            figures.append(Figure(what, share, ""))
    by_connections = [
        (float(each), await _steady(50, each, pipelining=True)) for each in CONCURRENCIES
    ]
    series = [
        Series("one RCPT a write", "latency of the exchanges, ms", "addresses", "a second", by_latency, ideal),
        Series("pipelined, 50 ms a reply", "connections to each of 20 exchanges", "addresses", "a second", by_connections, [(float(each), _ideal(50, each, DEPTH) * _USEFUL) for each in CONCURRENCIES]),
    ]  # fmt: skip
    return figures, series


# Banner, EHLO and QUIT are turn-arounds without a recipient, and the last batch of a
# connection's 100 recipients is not full.
_TURNS = -(-RECIPIENTS // DEPTH) + 3
_USEFUL = RECIPIENTS / DEPTH / _TURNS


def _ideal(latency_ms: float, connections: int, depth: int) -> float:
    return FAR_HOSTS * connections * depth / latency_ms * 1000


async def _steady(latency_ms: float, connections: int, *, pipelining: bool) -> float:
    """Return the addresses per second of an endless list, after the warm-up."""
    # Longer than a connection lives, so that greetings count in their true proportion.
    life_s = latency_ms / 1000 * (_TURNS if pipelining else RECIPIENTS + 4)
    measured_s = max(MEASURED_S, 2 * life_s if latency_ms in PROMISED_MS else 0.0)
    with start_sink(hosts=FAR_HOSTS, delay_ms=latency_ms, pipelining=pipelining) as sink:
        async with _engine(sink, connections) as engine:
            answered, began = 0, float("inf")
            with trio.move_on_after(WARM_S + measured_s):
                starts = trio.current_time() + WARM_S
                async with open_answers(
                    engine, _endless(sink), account="bench", deferred_start=True
                ) as answers:
                    while ready := await answers.next_ready():
                        if trio.current_time() >= starts:
                            answered += len(ready) if began < float("inf") else 0
                            began = min(began, time.perf_counter())
                        ENCODER.encode_lines([answer.verdict for answer in ready])
            return answered / (time.perf_counter() - began)


def _endless(sink: SmtpSink) -> Iterator[str]:
    return (sink.mailbox(number) for number in count())
