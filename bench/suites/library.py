"""Measures what the library adds to the engine, for each address: on trio, on asyncio and without either.

The same list goes through the bare engine and through the library, in rounds that alternate; routes
are cached. The cost is the processor time of this process, of all its threads.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from statistics import median

import trio

from mailprobe.api.gc_tuning import tune_collector
from mailprobe.api.settings import Settings
from mailprobe.engine import EngineSettings, Verifier, open_answers, open_engine

from ..harness.figures import Figure
from ..load.smtp_sink import SmtpSink, start_sink

HOSTS = 200
CONNECTIONS = 10
WARM = 5_000  # addresses; the routes are cached and the rules compiled after them
LIST = 20_000  # addresses a round
ROUNDS = 5


def run() -> list[Figure]:
    tune_collector()
    with start_sink(hosts=HOSTS) as sink:
        settings = replace(
            Settings.read(sink.env).engine, host_connections=CONNECTIONS, helo_name="bench.test"
        )
        rounds = [_round(sink, settings) for _ in range(ROUNDS)]
    bare = median(each[0] for each in rounds)
    return [
        Figure("the bare engine: CPU of each", bare, "µs", cpu_us=bare),
        *(
            _times(what, [(each[0], each[number]) for each in rounds])
            for number, what in enumerate(("on trio", "on asyncio", "without an event loop"), 1)
        ),
    ]


def _times(what: str, pairs: list[tuple[float, float]]) -> Figure:
    ratios = [ours / bare for bare, ours in pairs]
    spread = (max(ratios) - min(ratios)) / median(ratios)
    cpu_us = median(ours for _, ours in pairs)
    return Figure(f"{what}: CPU beside the bare engine's", median(ratios), "×", spread=spread, cpu_us=cpu_us)  # fmt: skip


def _round(sink: SmtpSink, settings: EngineSettings) -> list[float]:
    """The µs of each address: of the bare engine, on trio, on asyncio, without an event loop."""
    lists = [[sink.mailbox(number) for number in range(count)] for count in (WARM, LIST)]
    return [
        trio.run(_bare, settings, lists),
        trio.run(_in_loop, settings, lists),
        asyncio.run(_in_loop(settings, lists)),
        _blocking(settings, lists),
    ]


async def _bare(settings: EngineSettings, lists: list[list[str]]) -> float:
    async with open_engine(settings) as engine:

        async def verify(texts: list[str]) -> None:
            async with open_answers(engine, texts, account="bench", deferred_start=True) as answers:
                _check([answer.verdict.status async for answer in answers])

        return await _cost_us(verify, lists)


async def _in_loop(settings: EngineSettings, lists: list[list[str]]) -> float:
    async with Verifier(settings) as verifier:

        async def verify(texts: list[str]) -> None:
            _check([verdict.status async for verdict in verifier.stream(texts)])

        return await _cost_us(verify, lists)


def _blocking(settings: EngineSettings, lists: list[list[str]]) -> float:
    with Verifier(settings) as verifier:
        warm, measured = lists
        _check([verdict.status for verdict in verifier.stream(warm)])
        spent = time.process_time()
        _check([verdict.status for verdict in verifier.stream(measured)])
        return (time.process_time() - spent) / len(measured) * 1e6


async def _cost_us(verify: Callable[[list[str]], Awaitable[None]], lists: list[list[str]]) -> float:
    warm, measured = lists
    await verify(warm)
    spent = time.process_time()
    await verify(measured)
    return (time.process_time() - spent) / len(measured) * 1e6


def _check(statuses: Iterable[str]) -> None:
    """A busy machine may leave a few look-ups without an answer in the first list of a round."""
    statuses = list(statuses)
    known = sum(status == "deliverable" for status in statuses)
    if known < 0.98 * len(statuses):
        raise AssertionError(f"told wrong: {len(statuses) - known} of {len(statuses)}")
