"""Runs engines over a fake network: open one, verify texts with it, compare its verdicts.

The expected verdicts are written out: the engine's own table would compare with itself.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import trio

from mailprobe.bench.world.fake_network import FakeNetwork
from mailprobe.engine import Engine, EngineSettings, Verdict, in_order, open_answers, open_engine
from mailprobe.engine.dns.doh import DohTransport
from mailprobe.engine.egress import EgressControl
from mailprobe.engine.observer import NO_OBSERVER, Observer
from mailprobe.engine.shared_cache import SharedCache
from mailprobe.engine.smtp.connection_budget import ConnectionBudget
from mailprobe.engine.smtp.leases.ledger import RefusalLedger
from mailprobe.engine.smtp.tolerance.hosts import Attach
from tests.engine.invariants import assert_whole, time_passing

DELIVERABLE = ("deliverable", True, 0.97, None)
UNTESTED = ("deliverable", True, 0.90, None)
CATCH_ALL = ("catch_all", True, 0.65, None)
UNDELIVERABLE = ("undeliverable", False, 0.02, "smtp")
UNKNOWN = ("unknown", False, 0.50, None)
FAILED = ("unknown", False, 0.50, "smtp")
TIMED_OUT = ("unknown", False, 0.50, "smtp_timeout")
NO_MX = ("invalid", False, 0.0, "no_mx")

DEFAULTS = EngineSettings()
SETTLED_S = 30.0  # after which every deadline and idle connection of an engine has ended


def fields_of(verdict: Verdict) -> tuple[str, bool, float, str | None]:
    """The fields that an outcome determines, to be compared with the constants above."""
    return verdict.status, verdict.valid, verdict.confidence, verdict.failed_check


def knowns(count: int, domain: str = "shop.test") -> list[str]:
    """Addresses that a fake mail host accepts by default."""
    return [f"known{number}@{domain}" for number in range(count)]


@asynccontextmanager
async def open_test_engine(
    network: FakeNetwork,
    base: EngineSettings = DEFAULTS,
    *,
    rng: random.Random | None = None,
    transport: DohTransport | None = None,
    mint: Callable[[int], str] | None = None,
    observer: Observer = NO_OBSERVER,
    permits: ConnectionBudget | None = None,
    exchange: SharedCache | None = None,
    refusals: RefusalLedger | Attach | None = None,
    egress_control: EgressControl | None = None,
    **settings: Any,
) -> AsyncIterator[Engine]:
    """An engine over this network, with these settings, and a fixed seed if no `rng` is given."""
    async with open_engine(
        replace(base, **settings),
        transport=transport or network.transport,
        dial=network.dial,
        rng=rng or random.Random(0),
        computed_s=lambda: 0.0,  # virtual time does not pass while this thread computes
        mint=mint,
        observer=observer,
        permits=permits,
        exchange=exchange,
        refusals=refusals,
        egress_control=egress_control,
    ) as engine:
        yield engine


@asynccontextmanager
async def open_checked_engine(network: FakeNetwork, **settings: Any) -> AsyncIterator[Engine]:
    """Like `open_test_engine`; at its end, SETTLED_S later, nothing may be under way."""
    async with time_passing(), open_test_engine(network, **settings) as engine:
        yield engine
        await trio.sleep(SETTLED_S)
        assert_whole(engine)


async def verify(
    engine: Engine,
    *texts: str,
    account: str = "me",
    deferred_start: bool = False,
    patient: bool = False,
    patience_s: float = 0.0,
) -> list[Verdict]:
    """Verify these texts as one stream. Returns the verdicts in the order of the texts."""
    async with open_answers(
        engine,
        texts,
        account=account,
        deferred_start=deferred_start,
        patient=patient,
        patience_s=patience_s,
    ) as answers:
        return await in_order(answers, len(texts))


async def verify_once(network: FakeNetwork, *texts: str, **settings: Any) -> list[Verdict]:
    """Verify these texts with a checked engine of their own."""
    async with open_checked_engine(network, **settings) as engine:
        return await verify(engine, *texts)


async def verify_lists(
    engine: Engine, *lists: list[str], deferred_start: bool = False
) -> Counter[object]:
    """Verify all lists at the same time, each for an account of its own. Counts the verdicts."""
    counts: Counter[object] = Counter()

    async def verify_list(account: str, texts: list[str]) -> None:
        verdicts = await verify(engine, *texts, account=account, deferred_start=deferred_start)
        counts.update(map(fields_of, verdicts))

    async with trio.open_nursery() as nursery:
        for number, texts in enumerate(lists):
            nursery.start_soon(verify_list, f"account{number}", texts)
    return counts
