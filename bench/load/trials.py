"""The trials of `tune`: an engine against mail hosts of one latency, with one setting at one value."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path

import trio

from mailprobe.api.settings import Settings
from mailprobe.engine import Engine, Verdict, open_answers, open_engine
from mailprobe.engine.settings import EngineSettings

from ..harness.engine_runs import lookup_all, verify_all
from ..harness.tune import HOST_LIMIT, Findings, Trial
from .smtp_sink import SmtpSink, start_sink

CONNECTIONS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PROBES = (100, 250, 500, 1000, 2000)
TOGETHER = (1, 2, 4, 8, 16)
LIST = 500  # least number of addresses in a list
HOSTS = 200  # so many that no host limits the number of probes under way
WARM_SHARE = 0.3  # of a trial, not counted: the first connections open then
PROBE_PARTS = 3  # times as long as the others: an address times out only after 3 s
TRIAL_S_MIN = 1.5  # at 50 ms a reply a host's first answers take half a second
PROBE_TRIAL_S_MIN = 4.0

OnTrial = Callable[[str], None]


def values_to(most: int) -> list[int]:
    """The numbers of connections to try, up to and including `most`."""
    return [*(value for value in CONNECTIONS if value < most), most]


async def try_all(
    delays_ms: Sequence[float], seconds: float, host_limit: int, tell: OnTrial
) -> list[Findings]:
    """Run every trial, in about `seconds` or longer if needed; `tell` is called before each trial."""
    connections = values_to(host_limit)
    parts = len(connections) + len(TOGETHER) + PROBE_PARTS * len(PROBES)
    part_s = max(TRIAL_S_MIN, seconds / len(delays_ms) / parts)
    findings = []
    for delay_ms in delays_ms:
        with start_sink(hosts=HOSTS, delay_ms=delay_ms) as exchanges:
            findings.append(await _try_latency(exchanges, delay_ms, part_s, connections, tell))
    return findings


async def _try_latency(
    exchanges: SmtpSink, delay_ms: float, part_s: float, connections: Sequence[int], tell: OnTrial
) -> Findings:
    settings = settings_for(exchanges)
    found = Findings(delay_ms, [], [], [])
    for value in connections:
        tell(f"{delay_ms:g} ms a reply: connections to one host: {value}")
        bench = _Bench(exchanges, replace(settings, host_connections=value), part_s)
        found.connections.append(await bench.probe_one_host(value))
    for value in TOGETHER:
        tell(f"{delay_ms:g} ms a reply: addresses of a domain together: {value}")
        bench = _Bench(exchanges, replace(settings, host_connections=1), part_s)
        found.together.append(await bench.probe_together(value))
    for value in PROBES:
        tell(f"{delay_ms:g} ms a reply: probes under way: {value}")
        changed = replace(settings, host_connections=HOST_LIMIT, probes_max=value)
        bench = _Bench(exchanges, changed, max(PROBE_TRIAL_S_MIN, part_s * PROBE_PARTS))
        found.probes.append(await bench.probe_all_hosts(value))
    return found


def settings_for(exchanges: SmtpSink) -> EngineSettings:
    """Settings that reach only the sink; the user's own mailprobe.toml is not read."""
    return Settings.read(exchanges.env, Path(__file__).parent).engine


@dataclass(slots=True)
class _Bench:
    """One trial."""

    exchanges: SmtpSink
    settings: EngineSettings
    seconds: float
    _count: "_Count" = field(init=False)

    def __post_init__(self) -> None:
        self._count = _Count(self.exchanges, self.seconds * WARM_SHARE)

    async def probe_one_host(self, value: int) -> Trial:
        texts = (self.exchanges.mailbox(number * HOSTS) for number in count())
        return await self._verify_lists(value, texts, [self.exchanges.mailbox(0)], LIST)

    async def probe_all_hosts(self, value: int) -> Trial:
        texts = (self.exchanges.mailbox(number) for number in count())
        every = [self.exchanges.mailbox(number) for number in range(HOSTS)]
        return await self._verify_lists(value, texts, every, max(LIST, 2 * value))

    async def _verify_lists(
        self, value: int, texts: Iterator[str], known: Sequence[str], addresses: int
    ) -> Trial:
        """Verify two lists at a time, as `clean` does: one has more work while the other drains.

        Each list has `addresses` addresses. The engine would first accept many thousands
        of an endless list, and a short trial would measure only that.
        """
        async with open_engine(self.settings) as engine:
            await lookup_all(engine, known)
            self._count.begin()
            with trio.move_on_after(self.seconds):
                async with trio.open_nursery() as nursery:
                    for _ in range(2):
                        nursery.start_soon(self._verify_on, engine, texts, addresses)
            return self._count.trial(value)

    async def _verify_on(self, engine: Engine, texts: Iterator[str], addresses: int) -> None:
        while True:
            part = list(islice(texts, addresses))
            async with open_answers(engine, part, account="tune", deferred_start=True) as answers:
                async for answer in answers:
                    self._count.add(answer.verdict, engine)

    async def probe_together(self, value: int) -> Trial:
        """Verify `value` addresses of one domain at a time, as requests do."""
        numbers = count()
        async with open_engine(self.settings) as engine:
            await lookup_all(engine, [self.exchanges.mailbox(0)])
            self._count.begin()
            with trio.move_on_after(self.seconds):
                while True:
                    texts = [self.exchanges.mailbox(next(numbers) * HOSTS) for _ in range(value)]
                    for verdict in await verify_all(engine, texts):
                        self._count.add(verdict, engine)
            return self._count.trial(value)


class _Count:
    """Counts verdicts, from the end of the warm-up on."""

    def __init__(self, exchanges: SmtpSink, warm_s: float) -> None:
        self._exchanges = exchanges
        self._warm_s = warm_s
        self._warm_until = 0.0
        self._right = self._wrong = self._under_way = 0
        self._began = (0.0, 0.0, 0.0)

    def begin(self) -> None:
        self._warm_until = time.perf_counter() + self._warm_s
        self._began = self._now()

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), self._exchanges.cpu_s()

    def add(self, verdict: Verdict, engine: Engine) -> None:
        self._under_way = max(self._under_way, engine.probing.turn.under_way)
        if self._warm_until and time.perf_counter() >= self._warm_until:
            self._warm_until = 0.0
            self._right = 0
            self._began = self._now()
        right = verdict.status == "deliverable"
        self._right += right
        self._wrong += not right

    def trial(self, value: int) -> Trial:
        wall_s, cpu_s, load_s = (
            now - began for now, began in zip(self._now(), self._began, strict=True)
        )
        each = 1e6 / max(1, self._right)
        return Trial(
            value=value,
            rate=self._right / wall_s,
            wrong=self._wrong,
            under_way=self._under_way,
            cpu_us=cpu_s * each,
            load_cpu_us=load_s * each,
            cpu_share=cpu_s / wall_s,
        )
