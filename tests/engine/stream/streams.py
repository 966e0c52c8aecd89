"""Engines over a fake network, and texts for their streams."""

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

from mailprobe.engine import (
    Answer,
    Engine,
    EngineSettings,
    open_answers,
    open_engine,
)
from mailprobe.engine.testing.fake_network import FakeNetwork


@asynccontextmanager
async def engine_over(network: FakeNetwork, **settings: object) -> AsyncIterator[Engine]:
    async with open_engine(
        replace(EngineSettings(), **settings),  # type: ignore[arg-type]
        transport=network.transport,
        dial=network.dial,
        rng=random.Random(0),
    ) as engine:
        yield engine


async def collect(engine: Engine, *texts: str, account: str = "me", **wishes: bool) -> list[Answer]:
    """Every answer, in the order in which they came."""
    async with open_answers(engine, texts, account=account, **wishes) as answers:
        return [answer async for answer in answers]


def knowns(count: int, domain: str = "shop.test") -> list[str]:
    return [f"known{number}@{domain}" for number in range(count)]


class Counted:
    """Texts that remember how far they were read."""

    def __init__(self, texts: Iterator[str]) -> None:
        self._texts = texts
        self.read = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.read += 1
            yield text


def endless(pattern: str) -> Counted:
    numbers = iter(range(10**9))
    return Counted(pattern.format(number) for number in numbers)
