"""Several engines that lease a host's refusals from one store, on virtual time."""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from mailprobe.api.quota.refusal_leases import GROUP_MAX, open_refusal_leases
from mailprobe.bench.world.defended_hosts import DEFENDED_HOSTS
from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.host_defences import Defence
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Engine, Verdict
from mailprobe.engine.smtp.leases.ledger import CEILING
from mailprobe.engine.smtp.leases.refusal_leases import KEEP_S, LEASE_S, REPORT_S
from mailprobe.storage import open_store
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.sqlite.memory import MemoryStore
from mailprobe.storage.store import Store
from mailprobe.storage.tolerances import HostTolerance, LearnedTolerance, RefusalRequest
from tests.engine.engine_runs import open_test_engine, verify
from tests.engine.invariants import assert_whole
from tests.seeds import seeds
from tests.storage.fixed_clock import NOON, SECRET

CALL_S = 0.005
PROCESSES = 6  # four workers of one service, and two other services
EGRESS = "probe.mailprobe.test"
HOST = (EGRESS, "mx.shop.test")


class SharedStore(MemoryStore):
    """A store on trio's clock with a latency, which can be unavailable."""

    def __init__(self) -> None:
        super().__init__(lambda: NOON + timedelta(seconds=trio.current_time()))
        self.calls: list[int] = []  # how many hosts each call was about
        self.is_away = False
        self.lost = 0.0  # fraction of answers that are lost
        self.rng = random.Random(0)

    async def lease_refusals(self, holder: str, asked: Mapping[Any, Any], **how: Any) -> Any:
        await trio.sleep(CALL_S)
        if self.is_away:
            raise StoreUnavailable("away")
        self.calls.append(len(asked))
        granted = await super().lease_refusals(holder, asked, **how)
        await trio.sleep(CALL_S)
        if self.rng.random() < self.lost:
            raise StoreUnavailable("its answer is lost")
        return granted


@asynccontextmanager
async def machine(network: FakeNetwork, store: Store, **settings: Any) -> AsyncIterator[Engine]:
    async with open_refusal_leases(store) as refusals:
        async with open_test_engine(
            network, refusals=refusals, helo_name=EGRESS, **settings
        ) as engine:
            yield engine
        assert_whole(engine)


@asynccontextmanager
async def fleet(
    network: FakeNetwork, store: Store, count: int = PROCESSES
) -> AsyncIterator[list[Engine]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(machine(network, store)) for _ in range(count)]


def refused_by(host: MailHost) -> int:
    return sum(session.refusals for session in host.record.sessions)


def people(count: int, seed: int = 0) -> list[str]:
    """Names of mailboxes that no random one is like."""
    rng = random.Random(seed)
    return ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=10)) for _ in range(count)]


STAFF = people(600)
OFFICE = MailHost(mailboxes=frozenset(STAFF) | {"postmaster"})


KERIO = replace(DEFENDED_HOSTS["kerio"], mailboxes=OFFICE.mailboxes)


async def record(store: Store, learned: LearnedTolerance) -> None:
    """Another process has learned this of the host, and is gone."""
    asked = {HOST: RefusalRequest(0, False, learned.tolerance, learned=learned)}
    await store.lease_refusals("gone", asked, lease_s=LEASE_S)


async def leased(store: Store) -> int:
    """How many refusals all processes hold."""
    taken = {HOST: RefusalRequest(CEILING, False, CEILING)}
    given_back = {HOST: RefusalRequest(0, False, CEILING)}
    granted = await store.lease_refusals("observer", taken, lease_s=LEASE_S)
    await store.lease_refusals("observer", given_back, lease_s=LEASE_S)
    (kept,) = await store.host_tolerances(EGRESS)
    return CEILING - kept.refused - granted[HOST].leased


def count(verdicts: list[Verdict], status: str) -> int:
    return sum(verdict.status == status for verdict in verdicts)


# Each with the refusals of an hour that it is known to take.
STRICT = {
    "kerio": (KERIO, 9),
    "cisco": (replace(DEFENDED_HOSTS["cisco"], mailboxes=OFFICE.mailboxes), 24),
    "one that banned us before": (OFFICE, 4),
    "one that bans at the fifth": (replace(OFFICE, defence=Defence(hour_refusals_max=5)), 5),
}
BANNED_BEFORE = LearnedTolerance(
    tolerance=4, ceiling=4, hour=4, careful=True, ban_ages_s=(7_200.0,)
)


async def attack_and_clean(engines: list[Engine], rng: random.Random) -> list[Verdict]:
    """Attackers with unknown addresses, and lists, each at a process, for ten seconds."""
    verdicts: list[Verdict] = []

    async def ask(engine: Engine, n: int) -> None:
        for part in range(4):
            await trio.sleep(rng.uniform(0, 3))
            is_list = n % 2 == 1
            bad = [f"nobody{n}-{part}-{k}@shop.test" for k in range(6)]
            good = [f"{name}@shop.test" for name in rng.sample(STAFF, 12 if is_list else 0)]
            texts = [*bad, *good]
            rng.shuffle(texts)
            verdicts.extend(
                await verify(engine, *texts, account=f"account{n}", deferred_start=is_list)
            )

    async with trio.open_nursery() as nursery:
        for n in range(2 * len(engines)):
            nursery.start_soon(ask, engines[n % len(engines)], n)
    return verdicts


@pytest.mark.parametrize("kind", STRICT)
@pytest.mark.parametrize("seed", range(seeds(30)))
async def test_six_processes_send_a_strict_host_no_more_than_its_limit_and_two(
    autojump_clock: object, kind: str, seed: int
):
    """Attackers and lists, at all processes at once."""
    described, limit = STRICT[kind]
    host, store = replace(described), SharedStore()
    if kind == "one that banned us before":
        await record(store, BANNED_BEFORE)
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with fleet(network, store) as engines:
            await attack_and_clean(engines, random.Random(seed))
    assert 0 < refused_by(host) <= limit + 2
    assert host.record.bans <= (kind == "one that bans at the fifth")


async def test_without_leases_each_process_would_send_that_much(autojump_clock: object):
    """So the test above can fail."""
    host = replace(KERIO, defence=None)
    async with open_fake_network() as network, AsyncExitStack() as stack:
        network.add("shop.test", host)
        opened = [open_test_engine(network) for _ in range(PROCESSES)]
        engines = [await stack.enter_async_context(each) for each in opened]
        await attack_and_clean(engines, random.Random(0))
    assert refused_by(host) > 9 + 2


async def test_answers_that_are_lost_cost_no_more_refusals(autojump_clock: object):
    host, store = replace(KERIO), SharedStore()
    store.lost = 0.3
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with fleet(network, store) as engines:
            await attack_and_clean(engines, random.Random(1))
    assert refused_by(host) <= 9 + 2
    (kept,) = await store.host_tolerances(EGRESS)
    assert kept.refused_hour == refused_by(host)


async def test_processes_that_clean_a_healthy_host_lose_nothing(autojump_clock: object):
    """It takes what it is asked, so the tolerance grows for all of them."""
    host, store = replace(OFFICE, latency_s=0.02), SharedStore()
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with fleet(network, store) as engines, trio.open_nursery() as nursery:

            async def clean(engine: Engine, n: int) -> None:
                texts = [f"{name}@shop.test" for name in STAFF[n * 95 : n * 95 + 95]]
                texts += [f"nobody{n}-{k}@shop.test" for k in range(5)]
                random.Random(n).shuffle(texts)
                verdicts = await verify(engine, *texts, account="one")
                assert count(verdicts, "deliverable") == 95
                assert count(verdicts, "undeliverable") == 5

            for n, engine in enumerate(engines):
                nursery.start_soon(clean, engine, n)
    (kept,) = await store.host_tolerances(EGRESS)
    assert kept.tolerance >= 32
    assert kept.refused >= 5 * PROCESSES


async def test_knowledge_of_a_host_survives_a_restart(autojump_clock: object):
    store = SharedStore()
    host = replace(OFFICE, defence=Defence(hour_refusals_max=5, ban_s=60.0))
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with machine(network, store) as engine:
            await attack_and_clean([engine], random.Random(0))
        assert host.record.bans == 1
        before = refused_by(host)
        await trio.sleep(2 * 3600)
        async with machine(network, store) as engine:
            await attack_and_clean([engine], random.Random(1))
        assert host.record.bans == 1
        assert refused_by(host) - before <= 5
    (kept,) = await store.host_tolerances(EGRESS)
    assert kept.learned.careful


async def test_all_is_reported_and_given_back_at_the_end(autojump_clock: object):
    host, store = MailHost(), SharedStore()
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with machine(network, store) as engine:
            await verify(engine, "nobody@shop.test")
        assert await leased(store) == 0
        (kept,) = await store.host_tolerances(EGRESS)
        assert kept.refused == refused_by(host)


async def test_an_unused_lease_is_returned_soon(autojump_clock: object):
    host, store = MailHost(), SharedStore()
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with machine(network, store) as engine:
            await verify(engine, "known@shop.test")
            assert await leased(store) > 0
            await trio.sleep(KEEP_S + 2 * REPORT_S)
            assert await leased(store) == 0
            calls = len(store.calls)
            await trio.sleep(600)
            assert len(store.calls) == calls  # an idle process calls nobody


async def test_a_process_waits_for_what_an_idle_one_gives_back(autojump_clock: object):
    host, store = MailHost(default_unknown="250 2.1.5 Ok"), SharedStore()
    await record(store, LearnedTolerance(tolerance=2, ceiling=2, careful=True))
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with fleet(network, store, 3) as engines:
            for engine, name in zip(engines, STAFF, strict=False):
                await verify(engine, f"{name}@shop.test", account="one")
                assert f"{name}@shop.test" in host.record.recipients


async def test_while_the_store_is_away_nothing_is_sent(autojump_clock: object):
    host, store = replace(OFFICE), SharedStore()
    store.is_away = True
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with machine(network, store) as engine:
            (verdict,) = await verify(engine, f"{STAFF[0]}@shop.test")
            assert verdict.status == "unknown"
            assert not host.record.recipients
            store.is_away = False
            await trio.sleep(5)
            (verdict,) = await verify(engine, f"{STAFF[0]}@shop.test")
            assert verdict.status == "deliverable"


async def test_the_store_may_go_and_come_back_while_a_list_is_cleaned(autojump_clock: object):
    host, store = MailHost(latency_s=0.05), SharedStore()
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with machine(network, store) as engine, trio.open_nursery() as nursery:

            async def go_and_come() -> None:
                for _ in range(10):
                    store.is_away = not store.is_away
                    await trio.sleep(0.4)

            nursery.start_soon(go_and_come)
            for part in range(10):
                await verify(
                    engine, *(f"nobody{part}-{k}@shop.test" for k in range(5)), account="one"
                )
                await trio.sleep(0.3)
        (kept,) = await store.host_tolerances(EGRESS)
        assert kept.refused == refused_by(host)


async def test_new_hosts_cost_one_call_for_a_hundred_of_them(autojump_clock: object):
    hosts, store = [replace(OFFICE, latency_s=0.05) for _ in range(200)], SharedStore()
    async with open_fake_network() as network:
        for n, host in enumerate(hosts):
            network.add(f"shop{n}.test", host)
        async with machine(network, store) as engine:
            verdicts = await verify(
                engine, *(f"{STAFF[0]}@shop{n}.test" for n in range(len(hosts)))
            )
            assert count(verdicts, "deliverable") == len(hosts)
            assert sum(store.calls) <= 2 * len(hosts)
            assert len(store.calls) <= 2 * len(hosts) // GROUP_MAX + 2
    assert max(store.calls) <= GROUP_MAX


async def test_engines_in_several_processes_share_one_file(tmp_path: Path):
    """On a real clock, with a store of its own for each, as processes have."""
    host = replace(KERIO)
    async with open_fake_network() as network, AsyncExitStack() as stack:
        network.add("shop.test", host)
        engines = []
        for _ in range(4):
            opened = open_store(str(tmp_path / "mailprobe.db"), secret_key=SECRET)
            store = await stack.enter_async_context(opened)
            engines.append(await stack.enter_async_context(machine(network, store)))
        async with trio.open_nursery() as nursery:
            for n, engine in enumerate(engines):
                texts = [f"nobody{n}-{k}@shop.test" for k in range(10)]
                nursery.start_soon(partial(verify, engine, *texts, account=f"account{n}"))
        found: list[HostTolerance] = []
        with trio.fail_after(10):
            while not found or found[0].refused < refused_by(host):
                await trio.sleep(0.05)
                found = await store.host_tolerances(EGRESS)
    assert 0 < refused_by(host) <= 9 + 2
