"""Six cases at plain hosts, in virtual time: what must be right at a host of which nothing is known.

    python -m mailprobe.bench.suites.truths.rows [CASE]...

The engine and the hosts are the real ones and meet in memory. Every host has a name and a
greeting that tell nothing of its software. A list has the patience of a list job.
"""

import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio
from rich.console import Console
from trio.testing import MockClock

from mailprobe.engine import Engine, EngineSettings, open_answers, open_engine
from mailprobe.engine.settings import DOH_URLS
from mailprobe.engine.verdict import light_of

from ...harness.figures import Figure
from ...harness.tables import figure_table
from ...world.fake_network import FakeNetwork, open_fake_network
from ...world.host_profiles import new_host

PATIENCE_S = 4 * 3600.0
PAUSE_S = 1.0  # before a list asks again, at least
LIVING = "known"  # local parts that begin so live at every scripted host
GATEWAY = "gateway"


@asynccontextmanager
async def _engine(network: FakeNetwork) -> AsyncIterator[Engine]:
    async with open_engine(
        EngineSettings(doh_urls=DOH_URLS[:1]),
        transport=network.transport,
        dial=network.dial,
        rng=random.Random(0),
        computed_s=lambda: 0.0,  # virtual time does not pass while this thread computes
    ) as engine:
        yield engine


def _plain(domain: str, **changes: Any) -> Any:
    return new_host("plain", f"mx.{domain}", latency_s=0.02, **changes)


def _mix(addresses: int, bad: int, domain: str, first: int = 0) -> list[str]:
    texts = [f"gone.x{first + n}@{domain}" for n in range(bad)]
    texts += [f"{LIVING}{first + n}@{domain}" for n in range(addresses - bad)]
    random.Random(1).shuffle(texts)
    return texts


def _truth(text: str) -> str:
    if GATEWAY in text:
        return "catch_all"
    return "deliverable" if text.startswith(LIVING) else "undeliverable"


async def _verify(
    engine: Engine, texts: Iterable[str], account: str = "mine", patience_s: float = 0.0
) -> dict[str, Any]:
    """The last answer to each, by address; with patience it is a list and comes back."""
    found: dict[str, Any] = {}
    left, ends_at = list(texts), trio.current_time() + patience_s
    while left:
        again: dict[str, float] = {}
        patience_left_s = max(0.0, ends_at - trio.current_time())
        async with open_answers(
            engine, left, account=account, deferred_start=patience_s > 0, patience_s=patience_left_s
        ) as answers:
            async for answer in answers:
                found[answer.verdict.email] = answer
                if answer.retry_s is not None:
                    again[answer.verdict.email] = trio.current_time() + answer.retry_s
        left = [text for text, at in again.items() if at <= ends_at]
        if patience_s <= 0 or not left:
            break
        await trio.sleep_until(
            max(min(again[text] for text in left), trio.current_time() + PAUSE_S)
        )
    return found


def _right(found: dict[str, Any]) -> int:
    return sum(answer.verdict.status == _truth(text) for text, answer in found.items())


def _wrong(found: dict[str, Any]) -> int:
    return sum(
        answer.verdict.status not in (_truth(text), "unknown") for text, answer in found.items()
    )


# -- cases -------------------------------------------------------------------------------------


async def _one_by_one(network: FakeNetwork) -> dict[str, int]:
    network.add("shop.test", _plain("shop.test"))
    found: dict[str, Any] = {}
    async with _engine(network) as engine:
        for text in _mix(40, 40, "shop.test"):
            found |= await _verify(engine, [text])
    return {"right": _right(found), "wrong": _wrong(found)}


async def _many_domains(network: FakeNetwork) -> dict[str, int]:
    texts: list[str] = []
    for number in range(500):
        domain = f"shop{number}.test"
        network.add(domain, _plain(domain))
        texts += _mix(10, 3, domain)
    async with _engine(network) as engine:
        found = await _verify(engine, _shuffled(texts), patience_s=PATIENCE_S)
    return {"right": _right(found), "wrong": _wrong(found)}


async def _one_list(network: FakeNetwork) -> dict[str, int]:
    network.add("shop.test", _plain("shop.test"))
    async with _engine(network) as engine:
        found = await _verify(engine, _mix(400, 20, "shop.test"), patience_s=PATIENCE_S)
    return {"right": _right(found), "wrong": _wrong(found)}


async def _customers(network: FakeNetwork) -> dict[str, int]:
    network.add("shop.test", _plain("shop.test"))
    texts, found = _mix(400, 20, "shop.test"), dict[str, Any]()
    async with _engine(network) as engine:
        for number in range(200):
            found |= await _verify(engine, texts[2 * number :][:2], f"customer{number}")
    return {"right": _right(found), "wrong": _wrong(found)}


async def _living(network: FakeNetwork) -> dict[str, int]:
    host, texts = _plain("hoster.test"), list[str]()
    for number in range(20):
        network.add(f"shop{number}.test", host, mx=host.name)
        texts += _mix(20, 0, f"shop{number}.test")
    async with _engine(network) as engine:
        found = await _verify(engine, _shuffled(texts), patience_s=PATIENCE_S)
    return {"right": _right(found), "wrong": _wrong(found)}


async def _neighbour(network: FakeNetwork) -> dict[str, int]:
    network.add("shop.test", _plain("shop.test"))
    async with _engine(network) as engine:
        await _verify(engine, _mix(4, 4, "shop.test"), "yours")
        found = await _verify(engine, _mix(30, 0, "shop.test", first=100), "another")
    return {"right": _right(found), "wrong": _wrong(found)}


async def _gateway(network: FakeNetwork) -> dict[str, int]:
    host, texts = _plain("filter.test", catch_all=True), list[str]()
    for number in range(10):
        domain = f"{GATEWAY}{number}.test"
        network.add(domain, host, mx=host.name)
        texts += _mix(100, 50, domain)
    async with _engine(network) as engine:
        found = await _verify(engine, _shuffled(texts), patience_s=PATIENCE_S)
    green = sum(light_of(answer.verdict) == "GREEN_LIGHT" for answer in found.values())
    return {"right": _right(found), "green": green}


def _shuffled(texts: Sequence[str]) -> list[str]:
    return random.Random(1).sample(texts, len(texts))


CASES: dict[str, Callable[[FakeNetwork], Awaitable[dict[str, int]]]] = {
    "40 unknown at a plain host, one by one": _one_by_one,
    "5,000 of 500 domains, 30 % bad": _many_domains,
    "400 at a plain host, 5 % bad": _one_list,
    "200 customers with 2 each at a plain host": _customers,
    "400 living of 20 domains at one host": _living,
    "30 living of another account after 4 wrong ones": _neighbour,
    "1,000 at a gateway that accepts everybody": _gateway,
}


def row_figures(names: Sequence[str] = ()) -> list[Figure]:
    """The figures of these cases, by default of all."""
    figures: list[Figure] = []
    for name, case in CASES.items():
        if names and name not in names:
            continue
        found = trio.run(_on_a_network, case, clock=MockClock(autojump_threshold=0))
        figures += [Figure(f"{name}: {what}", value, "") for what, value in found.items()]
    return figures


async def _on_a_network(case: Callable[[FakeNetwork], Awaitable[dict[str, int]]]) -> dict[str, int]:
    async with open_fake_network() as network:
        return await case(network)


if __name__ == "__main__":
    Console().print(figure_table(row_figures(sys.argv[1:])))
