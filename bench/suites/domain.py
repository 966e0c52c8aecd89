"""Counts the round trips for fifty addresses of one domain whose host replies after 50 ms."""

import time
from typing import Any

import trio

from ..harness.engine_runs import open_watched, verify_all
from ..harness.figures import Figure
from ..lab import start_lab


def run() -> list[Figure]:
    return trio.run(_run)


async def _run() -> list[Figure]:
    with start_lab("slow") as lab:
        texts = lab.addresses["deliverable"]
        async with open_watched(lab) as (engine, _):
            began = time.perf_counter()
            verdicts = await verify_all(engine, texts)
            took_s = time.perf_counter() - began
        right = sum(verdict.confidence == 0.97 for verdict in verdicts)
        [host] = lab.records()["hosts"].values()
    return [
        Figure("addresses with the right verdict", right, f"of {len(texts)}", at_least=len(texts)),
        Figure("connections", host["sessions"], ""),
        Figure("turn-arounds in all", _turnarounds(host), ""),
        Figure("in all", took_s, "s"),
    ]


def _turnarounds(host: dict[str, Any]) -> int:
    """Count the banners and the answered writes, without QUIT: its reply delays no result."""
    return sum(1 + int(count) for count in host["turnarounds"]) - int(host["quits"])
