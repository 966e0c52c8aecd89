"""Runs an engine against a lab for the suites: opens it, verifies lists, takes the times."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import trio

from mailprobe.api.settings import Settings
from mailprobe.engine import Engine, Verdict, in_order, open_answers, open_engine
from mailprobe.engine.dns.messages import Route
from mailprobe.engine.observer import NoObserver

from ..lab import Lab


class Watch(NoObserver):
    """Measurements of an engine's layer 4: how long probes take, how many are under way."""

    def __init__(self) -> None:
        self.layer4_ms: list[float] = []  # from the start of each probe to its verdict
        self.under_way_most = 0
        self.engine: Engine | None = None

    def probe_settled(self, began: float) -> None:
        self.layer4_ms.append((trio.current_time() - began) * 1000)
        if self.engine is not None:  # the settled one is no longer counted
            self.under_way_most = max(self.under_way_most, self.engine.probing.turn.under_way + 1)


@asynccontextmanager
async def open_watched(lab: Lab, **changes: Any) -> AsyncIterator[tuple[Engine, Watch]]:
    """An engine for this lab, and a watch on layer 4."""
    settings = replace(Settings.read(lab.env).engine, **changes)
    watch = Watch()
    async with open_engine(settings, observer=watch) as engine:
        watch.engine = engine
        yield engine, watch


async def lookup_all(engine: Engine, texts: Sequence[str]) -> None:
    """Look up every route and exchange first, so that layer 4 starts for all addresses at once."""

    async def look_up(domain: str) -> None:
        async with limit:
            route = await engine.routes.find(domain, deferred_start=True)
            if isinstance(route, Route):
                for exchange in route.exchanges:
                    await engine.routes.addresses(exchange.name, deferred_start=True)

    limit = trio.CapacityLimiter(50)
    async with trio.open_nursery() as nursery:
        for domain in {text.rpartition("@")[2] for text in texts}:
            nursery.start_soon(look_up, domain)


async def verify_all(
    engine: Engine, texts: Sequence[str], *, deferred_start: bool = False
) -> list[Verdict]:
    async with open_answers(
        engine, texts, account="bench", deferred_start=deferred_start
    ) as answers:
        return await in_order(answers, len(texts))


def wrong(verdicts: Sequence[Verdict], expected: dict[str, str]) -> Counter[str]:
    """Count verdicts that differ from the lab's scenario, by "expected -> reported"."""
    return Counter(
        f"{expected[verdict.email]} -> {verdict.status}/{verdict.failed_check}"
        for verdict in verdicts
        if f"{verdict.status}/{verdict.failed_check}" != expected[verdict.email]
    )


def rss_mib() -> float:
    """The resident memory of this process now, in MiB (proc(5))."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0
