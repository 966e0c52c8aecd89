"""Verifies at 1,000 hosts that are silent, drip, stall or lie and 1,000 healthy ones at once.

Then measures one fault after the other: bench/suites/hostile_rows.py.
"""

import time

import trio

from ..harness.engine_runs import lookup_all, open_watched, verify_all, wrong
from ..harness.figures import Figure
from ..lab import start_lab
from .hostile_rows import real_rows, virtual_rows


def run() -> list[Figure]:
    return [*trio.run(_verify_everybody), *trio.run(_verify_each_kind), *virtual_rows()]


async def _verify_each_kind() -> list[Figure]:
    with start_lab("adverse") as lab:
        return await real_rows(lab)


async def _verify_everybody() -> list[Figure]:
    with start_lab("hostile") as lab:
        healthy = lab.addresses["deliverable"]
        hostile = [*lab.addresses["timed_out"], *lab.addresses["conversation_failed"]]
        texts = [text for pair in zip(healthy, hostile, strict=True) for text in pair]
        expected = dict.fromkeys(healthy, "deliverable/None")
        expected |= dict.fromkeys(lab.addresses["timed_out"], "unknown/smtp_timeout")
        expected |= dict.fromkeys(lab.addresses["conversation_failed"], "unknown/smtp")
        async with open_watched(lab) as (engine, watch):
            await lookup_all(engine, texts)
            began = time.perf_counter()
            verdicts = await verify_all(engine, texts)
            took_s = time.perf_counter() - began
    mistaken = wrong(verdicts, expected)
    for what, count in mistaken.items():
        print(f"# {count} × {what}")
    healthy_wrong = sum(count for what, count in mistaken.items() if what.startswith("deliverable"))
    return [
        Figure("the latest verdict, after layer 4 began", max(watch.layer4_ms), "ms"),
        Figure("wrong verdicts for healthy hosts", healthy_wrong, f"of {len(healthy)}"),
        Figure(
            "wrong verdicts for hostile hosts",
            mistaken.total() - healthy_wrong,
            f"of {len(hostile)}",
        ),
        Figure("probes under way, at most", watch.under_way_most, ""),
        Figure("in all", took_s, "s"),
    ]
