"""A fleet of engines that share what they know through one store, on virtual time."""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from datetime import timedelta
from typing import Any, cast

import pytest
import trio

from mailprobe.api.quota.connection_leases import open_leases
from mailprobe.api.quota.shared_cache import (
    EXCHANGE_S,
    REFRESH_S,
    START_S,
    StoredSharedCache,
    exchanging,
)
from mailprobe.api.serve import deployment_of, shared_cache_of
from mailprobe.api.settings import Settings
from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.faults import SendLine
from mailprobe.bench.world.host_profiles import SPAMHAUS
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Engine
from mailprobe.engine.shared_cache import Fact
from mailprobe.engine.smtp.host.host_shared_cache import APART_SHARE, LATER_S, WORDS
from mailprobe.storage import open_store
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.shared_cache import NewFact
from mailprobe.storage.sqlite.memory import MemoryStore
from tests.api.stores import store_settings
from tests.engine.engine_runs import (
    CATCH_ALL,
    DELIVERABLE,
    UNDELIVERABLE,
    fields_of,
    open_test_engine,
    verify,
)
from tests.storage.fixed_clock import NOON, SECRET

FLEET = 29
CONNECTIONS = 4  # to one address at a time, by all of them
LATE_S = 2 * EXCHANGE_S + 0.05  # after which every process knows; the last of 29 is within 60 s
UNKNOWN_SOFTWARE = "220 {name} ESMTP"  # of which eight refusals an hour are expected at most
HELO = "probe.example.org"


def refuser() -> MailHost:
    return MailHost(faults={"CONNECT": SendLine(SPAMHAUS, close=True)})


def new_store() -> MemoryStore:
    return MemoryStore(lambda: NOON + timedelta(seconds=trio.current_time()))


@asynccontextmanager
async def machine(
    network: FakeNetwork,
    store: Any,
    helo_name: str = HELO,
    *,
    leases: bool = True,
    **settings: Any,
) -> AsyncIterator[Engine]:
    """An engine that shares what it knows, and its connections as services do."""
    facts = StoredSharedCache(store)
    leased = open_leases(store, CONNECTIONS, facts.refresh) if leases else nullcontext()
    async with (
        leased as permits,
        open_test_engine(
            network, permits=permits, exchange=facts, helo_name=helo_name, **settings
        ) as engine,
        exchanging(facts),
    ):
        yield engine


@asynccontextmanager
async def fleet(
    network: FakeNetwork, store: Any, count: int = FLEET
) -> AsyncIterator[list[Engine]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(machine(network, store)) for _ in range(count)]


async def each_verifies(engines: list[Engine], texts: Callable[[int], list[str]], apart_s: float):
    """Every engine verifies its texts, one after the other; the first begins first."""
    outcomes: list[tuple[Any, ...]] = []

    async def run(number: int, engine: Engine) -> None:
        await trio.sleep(number * apart_s)
        for text in texts(number):
            [verdict] = await verify(engine, text)
            outcomes.append(fields_of(verdict))

    async with trio.open_nursery() as nursery:
        for number, engine in enumerate(engines):
            nursery.start_soon(run, number, engine)
    return outcomes


@pytest.mark.parametrize(("apart_s", "most"), [(LATE_S, 2), (0.5, 2), (0.1, 4), (0.0, 8)])
async def test_a_refusing_host_is_struck_twice_by_a_fleet(autojump_clock, apart_s, most):
    """As often again as others begin before they could know: as many as have permits at once."""
    async with open_fake_network() as network:
        host = refuser()
        network.add("shop.test", host)
        async with fleet(network, new_store()) as engines:
            found = await each_verifies(
                engines, lambda number: [f"known{number}{n}@shop.test" for n in range(4)], apart_s
            )
        struck = host.record.sessions_seen
        assert struck <= most
        assert {status for status, *_ in found} == {"unknown"}


async def test_engines_of_one_address_each_strike_a_refusing_host_twice_together(autojump_clock):
    """None of them would back off by itself: one refusal may be chance."""
    async with open_fake_network() as network:
        host = refuser()
        network.add("shop.test", host)
        async with fleet(network, new_store()) as engines:
            await each_verifies(engines, lambda number: [f"known{number}@shop.test"], LATE_S)
        assert host.record.sessions_seen == 2


async def test_one_of_a_fleet_tries_a_refusing_host_again(autojump_clock):
    """Their back-offs end together, and all have addresses for it all the time."""
    async with open_fake_network() as network:
        host = refuser()
        network.add("shop.test", host)
        async with fleet(network, new_store()) as engines:
            for number in range(2):
                await verify(engines[0], f"known{number}@shop.test")
            await trio.sleep(55)
            assert host.record.sessions_seen == 2

            async def keep_asking(number: int) -> None:
                for n in range(60):
                    await verify(engines[number], f"known{number}{n}@shop.test")
                    await trio.sleep(0.3)

            async with trio.open_nursery() as nursery:
                for number in range(FLEET):
                    nursery.start_soon(keep_asking, number)
        assert host.record.sessions_seen <= 5  # 31 if all came at once


def random_recipients(host: MailHost) -> int:
    recipients = [each for session in host.record.sessions for each in session.recipients]
    return sum(not each.startswith(("known", "nobody")) for each in recipients)


@pytest.mark.parametrize(("accepts_all", "outcome"), [(True, CATCH_ALL), (False, DELIVERABLE)])
async def test_a_domain_gets_one_random_address_from_a_fleet(autojump_clock, accepts_all, outcome):
    async with open_fake_network() as network:
        host = MailHost(catch_all=accepts_all)
        network.add("shop.test", host)
        async with fleet(network, new_store()) as engines:
            found = await each_verifies(
                engines, lambda number: [f"known{number}@shop.test"], LATE_S
            )
        assert set(found) == {outcome}
        assert random_recipients(host) == 1
        assert sum(network.transport.exchanged.values()) <= 1 + 2 * FLEET  # one query for the MX


async def test_a_result_of_a_test_ends_when_its_finder_ends_it(autojump_clock):
    """That long after the test, however often others have used it."""
    async with open_fake_network() as network:
        host = MailHost(catch_all=True)
        network.add("shop.test", host)
        store, kept = new_store(), cast(dict[str, Any], {"cache_s": 60.0})
        async with machine(network, store, **kept) as one, machine(network, store, **kept) as two:
            await verify(one, "known1@shop.test")
            await trio.sleep(50)
            await verify(two, "known2@shop.test")
            assert random_recipients(host) == 1
            await trio.sleep(12)
            async with machine(network, store, **kept) as three:
                for number, engine in enumerate((two, three)):
                    await verify(engine, f"known3{number}@shop.test")
                    await trio.sleep(LATE_S)
        assert random_recipients(host) == 2


async def test_a_catch_all_that_refuses_somebody_is_tested_again_by_all(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(catch_all=True, replies={"nobody": MailHost().default_unknown})
        network.add("shop.test", host)
        store = new_store()
        async with machine(network, store) as one, machine(network, store) as two:
            await verify(one, "known1@shop.test")
            await trio.sleep(LATE_S)
            [refused] = await verify(two, "nobody@shop.test")
            assert fields_of(refused) == UNDELIVERABLE
            await trio.sleep(LATE_S)
            await verify(one, "known2@shop.test")
        assert random_recipients(host) == 2


async def test_a_new_process_does_not_strike_what_refused_the_others(autojump_clock):
    async with open_fake_network() as network:
        host = refuser()
        network.add("shop.test", host)
        store = new_store()
        async with machine(network, store) as one:
            await verify(one, "known1@shop.test")
            await verify(one, "known2@shop.test")
            await trio.sleep(LATE_S)
        assert host.record.sessions_seen == 2
        async with machine(network, store) as two:
            await verify(two, "known3@shop.test")
            [resting] = two.probing.overview.hosts_backing_off()
            assert (resting.name, resting.words) == ("mx.shop.test", WORDS)
        assert host.record.sessions_seen == 2
        async with machine(network, store, "mail.example.net") as other:  # another egress
            await verify(other, "known4@shop.test")
        assert host.record.sessions_seen == 3


FACTS = [  # of a version with faults
    ("weather", "shop.test", "rain", 60),
    ("acceptance", "mx.shop.test shop.test", "perhaps", 60),
    ("acceptance", "mx.shop.test", "all", 60),
    ("backoff", f"{HELO} name mx.shop.test", '["UNDELIVERABLE","x",2]', 60),
    ("backoff", f"{HELO} name mx.shop.test", '["TIMED_OUT","x",2]', 60),
    ("backoff", f"{HELO} name mx.shop.test", '["WEATHER","x",2]', 60),
    ("backoff", f"{HELO} name mx.shop.test", "[" * 2000, 60),
    ("backoff", f"{HELO} name mx.shop.test", '["REFUSED_BY_POLICY","x",2]', -60),
    ("refusals", f"{HELO} 11.0.0.1 other", "[[0,3,9]]", 3600),
    ("refusals", f"{HELO} 11.0.0.1 other", "[[-7200,9,9]]", 3600),
    ("refusals", f"{HELO} 11.0.0.1 other", f"[{'[0,9,9],' * 40}[0,9,9]]", 3600),
    ("route", "shop.test", '[[],"NXDOMAIN"]', 60),
    ("route", "00000000 shop.test", '[[],"NXDOMAIN"]', 60),
    ("strike", HELO, "", 60),
    ("strike", f"{HELO} {'x' * 10_000}", "", 60),
]


async def test_facts_that_make_no_sense_are_ignored(autojump_clock, faults):
    """They reach the engine although the store would refuse most of them."""
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        facts = StoredSharedCache(new_store())
        async with open_test_engine(network, exchange=facts, helo_name=HELO) as engine:
            for kind, key, value, left_s in FACTS:
                facts.heed(Fact(kind, key, value, left_s))
            for absurd_s in (float("nan"), float("inf"), float("-inf")):
                facts.heed(Fact("strike", f"{HELO} mx.shop.test", "", absurd_s))
            [verdict] = await verify(engine, "known1@shop.test")
            assert fields_of(verdict) == DELIVERABLE
            assert engine.probing.overview.hosts_backing_off() == []
        assert faults == []


async def test_an_absurd_end_is_cut_to_that_of_its_kind(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost()
        network.add("shop.test", host)
        facts = StoredSharedCache(new_store())
        async with open_test_engine(network, exchange=facts, helo_name=HELO) as engine:
            backoff = '["REFUSED_BY_POLICY","x",9999999]'
            facts.heed(Fact("backoff", f"{HELO} name mx.shop.test", backoff, 1e15))
            [verdict] = await verify(engine, "known1@shop.test")
            assert verdict.status == "unknown"
            await trio.sleep(3601 + LATER_S + APART_SHARE * 3600)
            [verdict] = await verify(engine, "known1@shop.test")
            assert fields_of(verdict) == DELIVERABLE


class BrokenStore:
    """Cannot answer, at once or at all."""

    def __init__(self, *, hangs: bool) -> None:
        self.hangs = hangs
        self.is_away = True
        self.written: list[NewFact] = []

    async def write_facts(self, facts: list[NewFact], *, by_process: str) -> None:
        await self._reach()
        self.written += facts

    async def read_facts(self, after: int, **_: Any) -> Any:
        await self._reach()
        return await new_store().read_facts(after, not_by="me")

    async def _reach(self) -> None:
        if self.is_away and self.hangs:
            await trio.sleep_forever()
        if self.is_away:
            raise StoreUnavailable("away")


@pytest.mark.parametrize("hangs", [False, True])
async def test_probing_never_waits_for_the_store(autojump_clock, caplog, hangs):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        store = BrokenStore(hangs=hangs)
        began = trio.current_time()
        async with machine(network, store, leases=False) as engine:
            assert trio.current_time() - began <= START_S
            for number in range(10):
                [verdict] = await verify(engine, f"known{number}@shop.test")
                assert fields_of(verdict) == DELIVERABLE
                assert verdict.latency_ms < 1000
                await trio.sleep(1)
            lines = [each for each in caplog.records if each.name == "mailprobe.facts"]
            assert len(lines) == (not hangs)
            store.is_away = False
            await trio.sleep(LATE_S)
        assert hangs or {each.kind for each in store.written} == {"acceptance", "route"}


@pytest.mark.parametrize(("hangs", "within_s"), [(False, 0.0), (True, REFRESH_S)])
async def test_a_permit_hardly_waits_for_what_others_were_refused(autojump_clock, hangs, within_s):
    facts = StoredSharedCache(cast(Any, BrokenStore(hangs=hangs)))
    began = trio.current_time()
    await facts.refresh()
    assert trio.current_time() - began == pytest.approx(within_s)


async def test_the_facts_that_wait_to_be_written_are_bounded(autojump_clock):
    store = new_store()
    facts = StoredSharedCache(store)
    for number in range(50_000):
        facts.share(Fact("route", f"00000000 d{number}.test", '[[],"none"]', 60))
    facts.share(Fact("strike", f"{HELO} mx.shop.test", "", 60))
    facts.share(Fact("route", "x" * 10_000, "", 60))
    async with exchanging(facts):
        await trio.sleep(0.5)
        read = await store.read_facts(0, not_by="me")
        assert read.facts[0].kind == "strike"
        assert len(read.facts) == 200
        await trio.sleep(20)
        assert len((await store.read_facts(0, not_by="me")).facts) == 2_001


async def test_two_services_with_one_database_share(tmp_path):
    """A file of SQLite or PostgreSQL, on the real clock."""
    database = store_settings().get("database", str(tmp_path / "shared.db"))
    arrived = trio.Event()

    def count(kind: str, _: int) -> None:
        if kind == "backoff":
            arrived.set()

    host = refuser()
    async with (
        open_fake_network() as network,
        open_store(database, secret_key=SECRET) as its,
        open_store(database, secret_key=SECRET) as other,
    ):
        network.add("shop.test", host)
        one, two = StoredSharedCache(its), StoredSharedCache(other, absorbed=count)
        async with (
            open_test_engine(network, exchange=one, helo_name=HELO) as engine,
            open_test_engine(network, exchange=two, helo_name=HELO) as neighbour,
            exchanging(one),
            exchanging(two),
        ):
            for number in range(2):
                await verify(engine, f"known{number}@shop.test")
            with trio.fail_after(60):
                await arrived.wait()
            await verify(neighbour, "known3@shop.test")
            assert host.record.sessions_seen == 2


@pytest.mark.parametrize(
    ("database", "workers", "shares"),
    [("memory:", 1, False), ("a.db", 1, False), ("a.db", 2, True), ("postgresql://db/a", 1, True)],
)
def test_the_only_process_of_a_store_shares_nothing(database, workers, shares):
    secret = {"MAILPROBE_SECRET_KEY": base64.b64encode(SECRET).decode()}
    settings = Settings.read({"MAILPROBE_DATABASE": database, **secret})
    deployment = deployment_of(settings, workers, None, None)
    assert (shared_cache_of(settings, new_store(), None, deployment) is not None) == shares
