"""2,000 probes under way, each at a host of its own that keeps it waiting."""

import trio

from bench.asking import ask_all, look_up_all, open_watched, rss_mib
from bench.figures import Figure
from bench.lab import start_lab

PROBES = 2_000


def run() -> list[Figure]:
    return trio.run(_run)


async def _run() -> list[Figure]:
    with start_lab("waiting") as lab:
        texts = lab.addresses["timed_out"]
        async with open_watched(lab) as (engine, watch):
            await look_up_all(engine, texts)
            before = rss_mib()
            most = 0.0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask_all, engine, texts)
                while not watch.layer4_ms:
                    if engine.prober.under_way == PROBES:
                        most = max(most, rss_mib())
                    await trio.sleep(0.02)
                nursery.cancel_scope.cancel()
    return [
        Figure("probes under way", watch.under_way_most, "", at_least=PROBES),
        Figure("resident memory before", before, "MiB"),
        Figure("resident memory with them", most, "MiB", at_most=150),
    ]
