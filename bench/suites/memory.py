"""Measures the memory of 2,000 probes under way, each at its own host that never answers."""

import trio

from ..harness.engine_runs import lookup_all, open_watched, rss_mib, verify_all
from ..harness.figures import Figure
from ..lab import start_lab

PROBES = 2_000
WATCH_S = 3.0  # after the last probe starts: until every connection has its banner
TIMEOUTS = {"read_s": 60.0, "probe_s": 120.0}  # no probe times out before the last one starts


def run() -> list[Figure]:
    return trio.run(_run)


async def _run() -> list[Figure]:
    with start_lab("waiting") as lab:
        texts = lab.addresses["timed_out"]
        async with open_watched(lab, **TIMEOUTS) as (engine, _):
            await lookup_all(engine, texts)
            before = rss_mib()
            most = 0.0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(verify_all, engine, texts)
                while engine.probing.turn.under_way < PROBES:  # noqa: ASYNC110 - it has no event
                    await trio.sleep(0.02)
                under_way = engine.probing.turn.under_way
                ends_at = trio.current_time() + WATCH_S
                while trio.current_time() < ends_at:
                    most = max(most, rss_mib())
                    await trio.sleep(0.02)
                nursery.cancel_scope.cancel()
    return [
        Figure("probes under way", under_way, ""),
        Figure("resident memory before", before, "MiB"),
        Figure("resident memory with them", most, "MiB"),
    ]
