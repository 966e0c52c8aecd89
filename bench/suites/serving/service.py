"""Measures the service in its own process: a list as `clean --server` sends it, then requests.

The lab, the service and this client share the machine. The service's database is within
this checkout, where `data/` would be, so that its flushes cost the same.

The cost of a request is the service's processor time, all threads together, in short
alternating rounds. "On one core" is a second divided by the cost in the cheapest round:
other load on the core makes a round dearer, never cheaper. For comparison: an empty route
behind a key on the same server, and a bare Quart application on hypercorn's worker.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx
import trio
from msgspec import Struct, field

from mailprobe.api.cli.remote.source import open_remote_source
from mailprobe.api.cli.remote.stream_way import PATH as STREAM
from mailprobe.api.cli.remote.stream_way import REQUEST_ADDRESSES_MAX
from mailprobe.engine import Verdict

from ...harness.engine_runs import wrong
from ...harness.figures import NOT_MEASURED, RESULTS, Figure
from ...lab import start_lab
from ...load.empty_route import PATH as EMPTY
from ...load.load_generator import Flooded, flood, generate_load, request
from ...load.neighbours import measure_burst, measure_neighbours
from ...load.service_process import (
    PLANS,
    ROOT,
    SINGLE,
    START_S,
    STOP_S,
    ServiceFailed,
    ServiceProcess,
    cpu_s_of,
    start_service,
)
from ...processes import stop_process

ADDRESSES = 2_000
FIRST_LINES = 10  # requests whose first line is timed, one after the other
SINGLES = 1_500  # requests that are timed by the wall clock
CONNECTIONS = 16  # of the single verifications
ROUNDS = 12
ROUND_REQUESTS = 100
LISTS = 12  # requests of 50 in a round
WARM = 60  # domains of the streams, on as many hosts
OVERLOAD_S = 2.0
OVERLOAD_RUNS, OVERLOAD_TURNS = 10, 3
PEAK_SHARES = (0.65, 0.75)  # of the rate of few connections: the peak is near these
PEAK_S = 1.0
FORGOTTEN_S = 1.5  # after this time a standing queue no longer affects admission
FLOOD_CONNECTIONS = 1_800  # fewer than the service accepts, more than it serves at once
ANSWER_S = 180.0  # for a step of the suite, which takes some seconds on an idle machine


class RequestCost(Struct, frozen=True):
    """The time of a number of requests, and the service's processor time for them."""

    count: int
    took_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.count / self.took_s

    @property
    def cpu_ms_each(self) -> float:
        return self.cpu_s * 1000 / self.count


def run() -> list[Figure]:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="service-", dir=RESULTS) as folder,
        tempfile.TemporaryDirectory(prefix="service-", dir=RESULTS) as second,
        tempfile.TemporaryDirectory(prefix="service-", dir=RESULTS) as third,
        start_lab("many") as lab,
    ):
        addresses = lab.addresses["deliverable"]
        domains = [text.partition("@")[2] for text in addresses]
        with start_service(lab.env, Path(folder), plans=PLANS) as service:
            figures = trio.run(measure, service, addresses)
            figures += measure_requests(service, domains)
            with start_service(lab.env, Path(second), plans=PLANS, workers=2) as two:
                figures += measure_workers(service, two)
            figures += measure_burst(service) + measure_overload(service)
        return figures + measure_bad_customers(Path(third))


def measure_bad_customers(folder: Path) -> list[Figure]:
    """Measure beside the worst customers, with hosts that time out or answer within 100 ms."""
    with start_lab("hostile") as lab, start_service(lab.env, folder, plans=PLANS) as service:
        return measure_neighbours(
            service, service.another_key(), lab.addresses["timed_out"], lab.addresses["deliverable"]
        )


async def measure(
    service: ServiceProcess, addresses: Sequence[str], count: int = ADDRESSES
) -> list[Figure]:
    """Return the figures of a list of deliverable addresses, of domains new to the service."""
    texts, others = addresses[:count], addresses[count:][: FIRST_LINES * REQUEST_ADDRESSES_MAX]
    cold, cold_cost = await verify_list(service, texts)
    warm, warm_cost = await verify_list(service, texts)
    first_cold, first_warm = await first_lines(service, others), await first_lines(service, others)
    mistaken = wrong([*cold, *warm], dict.fromkeys(texts, "deliverable/None"))
    for what, number in mistaken.items():
        print(f"# {number} × {what}")
    asked = 2 * len(texts)
    return [
        Figure("right verdicts", asked - mistaken.total(), f"of {asked}", at_least=asked),
        Figure("cold: addresses", cold_cost.rate, "a second"),
        Figure("cold: processor time of the service", cold_cost.cpu_ms_each, "ms each"),
        Figure("cold: the latest result", _latest_ms(cold), "ms"),
        Figure("cold: a request's first line, median", median(first_cold), "ms"),
        Figure("warm: addresses", warm_cost.rate, "a second"),
        Figure("warm: processor time of the service", warm_cost.cpu_ms_each, "ms each"),
        Figure("warm: the latest result", _latest_ms(warm), "ms"),
        Figure("warm: a request's first line, median", median(first_warm), "ms"),
    ]


def _latest_ms(verdicts: Sequence[Verdict]) -> float:
    return max(verdict.latency_ms for verdict in verdicts)


# -- the client ------------------------------------------------------------------------------


async def verify_list(
    service: ServiceProcess, texts: Sequence[str]
) -> tuple[list[Verdict], RequestCost]:
    """Verify with the client of `clean --server`: requests of 50, with its usual concurrency."""
    with trio.fail_after(ANSWER_S):
        cpu_s, began = service.cpu_s(), time.perf_counter()
        async with (
            open_remote_source(service.url, service.key, "stream") as source,
            source.open_answers(texts) as answers,
        ):
            verdicts = [answer.verdict async for answer in answers]
        took_s = time.perf_counter() - began
    return verdicts, RequestCost(len(verdicts), took_s, service.cpu_s() - cpu_s)


async def first_lines(service: ServiceProcess, texts: Sequence[str]) -> list[float]:
    """Return the milliseconds to the first line of each request of 50, sent one by one."""
    times_ms: list[float] = []
    headers = {"Authorization": f"Bearer {service.key}"}
    with trio.fail_after(ANSWER_S):
        async with httpx.AsyncClient(headers=headers, trust_env=False) as client:
            await client.get(f"{service.url}/health")  # from here on the connection is open
            for start in range(0, len(texts), REQUEST_ADDRESSES_MAX):
                body = {"emails": texts[start : start + REQUEST_ADDRESSES_MAX]}
                began = time.perf_counter()
                async with client.stream("POST", service.url + STREAM, json=body) as response:
                    lines = response.raise_for_status().aiter_lines()
                    await anext(lines)
                    times_ms.append((time.perf_counter() - began) * 1000)
                    async for _ in lines:
                        pass
    return times_ms


# -- what a request costs ----------------------------------------------------------------------


class RequestKind(Struct, frozen=True):
    """One kind of request, and how it is sent in a round."""

    pid: int  # whose processor time counts
    at: tuple[str, int]
    requests: Sequence[bytes]
    connections: int = CONNECTIONS
    items: int = 1  # addresses in a request


class Rounds(Struct):
    """The cost of one item of a kind, round by round."""

    cpu_us: list[float] = field(default_factory=list)
    load_us: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)

    @property
    def least_us(self) -> float:
        return min(self.cpu_us)

    def on_one_core(self, what: str) -> Figure:
        return Figure(
            what,
            1e6 / self.least_us,
            "a second on one core",
            spread=(max(self.cpu_us) - self.least_us) / median(self.cpu_us),
            cpu_us=self.least_us,
            load_cpu_us=min(self.load_us),
        )

    def against(self, other: "Rounds") -> float:
        """Return how many times as many items as the other kind fit into the same time."""
        return other.least_us / self.least_us


def in_turn(kinds: Mapping[str, RequestKind], rounds: int) -> dict[str, Rounds]:
    """Send all kinds in alternating rounds, after one warm-up round."""
    done = {name: Rounds() for name in kinds}
    for kind in kinds.values():
        generate_load(kind.at, kind.requests, kind.connections)
    for _ in range(rounds):
        for name, kind in kinds.items():
            cpu_s = cpu_s_of(kind.pid)
            asked = generate_load(kind.at, kind.requests, kind.connections)
            items = asked.count * kind.items
            done[name].cpu_us.append((cpu_s_of(kind.pid) - cpu_s) / items * 1e6)
            done[name].load_us.append(asked.cpu_s / items * 1e6)
            done[name].first_ms.append(median(asked.first_ms))
    return done


def measure_requests(
    service: ServiceProcess,
    domains: Sequence[str],
    rounds: int = ROUNDS,
    size: int = ROUND_REQUESTS,
) -> list[Figure]:
    """Measure each kind of request, beside an empty route and a bare server.

    The domains are cached from the first round on; later rounds verify other mailboxes there.
    """
    with start_bare_server() as (pid, at):
        singles = {
            "plain": RequestKind(
                pid, at, [request("GET", "/", host="plain", key=service.key)] * size
            ),
            "empty": RequestKind(
                service.pid, service.at, [_requesting(service, "GET", EMPTY)] * size
            ),
            "single": RequestKind(service.pid, service.at, [_single(service)] * size),
        }
        one = in_turn(singles, rounds)
    lists = in_turn(
        {
            "sorted": RequestKind(service.pid, service.at, _lists(service, domains, 3), 4, 50),
            "mixed": RequestKind(service.pid, service.at, _lists(service, domains, 50), 4, 50),
            "alone": RequestKind(service.pid, service.at, _lists(service, domains, 3), 1, 50),
        },
        rounds,
    )
    plain, empty, single = one["plain"], one["empty"], one["single"]
    return [
        plain.on_one_core("a bare Quart application on hypercorn: requests"),
        empty.on_one_core("an empty route behind a key: requests"),
        single.on_one_core("single, no probe: requests"),
        Figure("an empty route against the bare application", empty.against(plain), "times"),
        Figure("a single against the bare application", single.against(plain), "times"),
        Figure("a single against an empty route", 100 * single.against(empty), "%"),
        lists["sorted"].on_one_core("stream, few domains, warm: addresses"),
        Figure(
            "stream, few domains: addresses against the bare application's requests",
            lists["sorted"].against(plain),
            "times",
        ),
        Figure("stream, few domains, warm: first line", min(lists["alone"].first_ms), "ms"),
        lists["mixed"].on_one_core("stream, 50 domains, warm: addresses"),
    ]


def measure_workers(one: ServiceProcess, two: ServiceProcess) -> list[Figure]:
    """Compare two workers with one by wall time, and print which side used how many cores."""
    rates = {}
    for count, service in ((1, one), (2, two)):
        cpu_s = service.cpu_s()
        asked = generate_load(service.at, [_single(service)] * SINGLES, CONNECTIONS)
        shares = (service.cpu_s() - cpu_s) / asked.took_s, asked.cpu_s / asked.took_s
        print(f"# {count} workers had {shares[0]:.2f} cores, the load side {shares[1]:.2f}")
        rates[count] = asked.rate
    return [Figure("two workers against one", rates[2] / rates[1], "times by the clock")]


def measure_overload(service: ServiceProcess) -> list[Figure]:
    """Send three times the peak load: the service must reject quickly and keep serving.

    The peak load is the most that it serves of requests at a steady rate, on as many
    connections. Few connections that wait for their answers, as elsewhere in this suite,
    align with the store's transactions and reach a higher rate. A run is the median of some
    rounds of peak and overload, since this machine's speed changes from second to second.
    """
    few = generate_load(service.at, [_single(service)] * SINGLES, CONNECTIONS).rate
    figures, remarks = overload_figures(
        [[_overload(service, few) for _ in range(OVERLOAD_TURNS)] for _ in range(OVERLOAD_RUNS)]
    )
    for remark in remarks:
        print(f"# {remark}")
    return figures


class OverloadTurn(Struct, frozen=True):
    """One peak, and the overload after it, which has no meaning without the peak."""

    peak: float  # requests served per second
    flooded: Flooded

    @property
    def share(self) -> float | None:
        """What was served of the overload, in percent of the peak."""
        return 100 * _served(self.flooded) / self.peak if self.peak else None


def overload_figures(
    runs: Sequence[Sequence[OverloadTurn]],
) -> tuple[list[Figure], list[str]]:
    """The figures of these runs, and what could not be measured, in words. Pure.

    A busy machine may serve no request at all in the second of a peak.
    """
    shares: list[float] = []
    for turns in runs:
        if found := [turn.share for turn in turns if turn.share is not None]:
            shares.append(median(found))
    shed_ms = sorted(each for turns in runs for turn in turns for each in turn.flooded.shed_ms)
    what, remarks = "at three times its load", []
    if (lost := sum(turn.share is None for turns in runs for turn in turns)) > 0:
        turns_in_all = sum(map(len, runs))
        remarks.append(f"{what}: no peak was served in {lost} of {turns_in_all} turns, left out")
    if not shed_ms:
        remarks.append(f"{what}: nothing was refused, so its refusals have no time")
    quick = sum(each < 50 for each in shed_ms)
    count = len(shed_ms)
    figures = [
        Figure(f"{what}: of its peak, the median of {OVERLOAD_RUNS}", _median(shares), "%"),
        Figure(
            f"{what}: of its peak, the worst of {OVERLOAD_RUNS}",
            min(shares, default=NOT_MEASURED),
            "%",
        ),
        Figure(
            f"{what}: shed within 50 ms",
            100 * quick / count if count else NOT_MEASURED,
            f"% of {count:,}",
        ),
        Figure(f"{what}: a refusal, median", _median(shed_ms), "ms"),
        Figure(
            f"{what}: a refusal, 99 %",
            shed_ms[count * 99 // 100] if count else NOT_MEASURED,
            "ms",
        ),
    ]
    return figures, remarks


def _median(values: Sequence[float]) -> float:
    return median(values) if values else NOT_MEASURED


def _overload(service: ServiceProcess, few: float) -> OverloadTurn:
    """Find its peak, then send three times as much."""
    peak = max(_served(_flood(service, share * few, PEAK_S)) for share in PEAK_SHARES)
    time.sleep(FORGOTTEN_S)
    if not peak:
        return OverloadTurn(0.0, Flooded())
    flooded = _flood(service, 3 * peak, OVERLOAD_S)
    time.sleep(FORGOTTEN_S)
    return OverloadTurn(peak, flooded)


def _flood(service: ServiceProcess, rate: float, seconds: float) -> Flooded:
    return flood(
        service.at, _single(service), rate=rate, seconds=seconds, connections=FLOOD_CONNECTIONS
    )


def _served(flooded: Flooded) -> float:
    """Return the requests served per second."""
    return flooded.served / flooded.took_s


def _requesting(service: ServiceProcess, method: str, path: str, body: object = None) -> bytes:
    octets = None if body is None else json.dumps(body).encode()
    return request(method, path, host=service.host, key=service.key, body=octets)


def _single(service: ServiceProcess) -> bytes:
    return _requesting(service, "POST", "/v1/email/verify", {"email": SINGLE})


def _lists(service: ServiceProcess, domains: Sequence[str], each: int) -> list[bytes]:
    """Return LISTS requests of 50 addresses, each over `each` domains."""
    return [
        _requesting(
            service, "POST", STREAM,
            {
                "emails": [
                    f"known.{place}.{number}@{domains[(number * each + place % each) % WARM]}"
                    for place in range(50)
                ]
            },
        )
        for number in range(LISTS)
    ]  # fmt: skip


@contextmanager
def start_bare_server() -> Iterator[tuple[int, tuple[str, int]]]:
    """Run the bare application for the block; yields its process id and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = free.getsockname()
    process = subprocess.Popen(
        [sys.executable, "-m", "mailprobe.bench.load.plain_server", str(at[1])],
        cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait_until_open(at)
        yield process.pid, at
    finally:
        stop_process(process, STOP_S)


def _wait_until_open(at: tuple[str, int]) -> None:
    ends_at = time.monotonic() + START_S
    while time.monotonic() < ends_at:
        try:
            socket.create_connection(at).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return
    raise ServiceFailed("the bare application did not start")
