"""Several engines that lease their connections from one store, on virtual time."""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any, cast

import pytest
import trio
import trio.testing

from mailprobe.api.quota.connection_leases import (
    CUT_S,
    KEEP_S,
    LEASE_S,
    POLL_S,
    TICK_S,
    LeasedBudget,
    is_shared,
    open_leases,
)
from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import (
    Engine,
    Verdict,
    open_answers,
)
from mailprobe.engine.reasons import VerdictCause
from mailprobe.storage.base.columns import micros
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.leases import GONE_S, LOST_S
from mailprobe.storage.records import LeaseRequest
from mailprobe.storage.sqlite.memory import MemoryExecutor, MemoryStore
from tests.engine.engine_runs import knowns, open_test_engine, verify
from tests.engine.invariants import assert_whole
from tests.seeds import seeds
from tests.storage.fixed_clock import NOON

TRUTHS = {"known": "deliverable", "nobody": "undeliverable"}
CALL_S = 0.005


class SharedStore(MemoryStore):
    """A store on trio's clock with a latency, which can be unavailable to some holders."""

    def __init__(self) -> None:
        super().__init__(lambda: NOON + timedelta(seconds=trio.current_time()))
        self.calls: list[int] = []  # how many addresses each lease call was for
        self.away_for: set[str] = set()  # holders
        self.session = 0
        self.lost = 0.0  # fraction of answers that are lost
        self.rng = random.Random(0)

    async def lease_connections(self, holder: str, asked: Mapping[str, Any], **how: Any) -> Any:
        await self._reach(holder)
        self.calls.append(len(asked))
        granted = await super().lease_connections(holder, asked, **how)
        if self.rng.random() < self.lost:
            raise StoreUnavailable("nobody knows")
        return granted

    def lease_session(self) -> int:
        return self.session

    async def revocable_connections(self, holder: str, **how: Any) -> Any:
        await self._reach(holder)
        return await super().revocable_connections(holder, **how)

    async def return_connections(self, holder: str) -> None:
        await self._reach(holder)
        await super().return_connections(holder)

    async def _reach(self, holder: str) -> None:
        await trio.sleep(CALL_S)
        if holder in self.away_for:
            await trio.sleep(0.8)
            raise StoreUnavailable("away")

    def leased(self, address: str) -> int:
        executor = cast(MemoryExecutor, self.executor)
        (leased,) = executor.db.execute(
            "SELECT coalesce(sum(connections), 0) FROM connection_leases"
            " WHERE address = ? AND until > ?",
            (address, micros(executor.now())),
        ).fetchone()
        return int(leased)


@asynccontextmanager
async def machine(
    network: FakeNetwork, store: SharedStore, limit: int = 4
) -> AsyncIterator[tuple[Engine, LeasedBudget]]:
    async with open_leases(store, limit) as permits:
        async with open_test_engine(network, permits=permits, host_connections=limit) as engine:
            yield engine, permits
        assert_whole(engine)


def check(verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        assert verdict.status == TRUTHS[verdict.email.partition("@")[0].rstrip("0123456789")]


async def test_the_first_connection_waits_for_one_call(autojump_clock):
    host, store = MailHost(), SharedStore()
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with machine(network, store) as (engine, _):
            began = trio.current_time()
            check(await verify(engine, "known1@shop.test"))
            assert trio.current_time() - began < 3 * CALL_S
            assert store.leased(address) == 1
            assert store.calls == [1]


async def test_many_hosts_go_into_one_call(autojump_clock):
    store = SharedStore()
    async with open_fake_network() as network:
        for n in range(50):
            network.add(f"shop{n}.test", MailHost())
        async with machine(network, store) as (engine, _):
            check(await verify(engine, *[f"known@shop{n}.test" for n in range(50)]))
            assert len(store.calls) < 10
            assert max(store.calls) > 20


async def test_unused_leases_are_returned_and_a_stop_leaves_none(autojump_clock):
    store = SharedStore()
    async with open_fake_network() as network:
        address, other = network.add("a.test", MailHost()), network.add("b.test", MailHost())
        async with machine(network, store) as (engine, permits):
            check(await verify(engine, "known1@a.test"))
            await trio.sleep(3 + KEEP_S + 1)  # a session idles for 3
            assert store.leased(address) == 0
            assert not permits.addresses
            check(await verify(engine, "known1@b.test"))
            assert store.leased(other) == 1
        assert store.leased(other) == 0


@pytest.mark.parametrize("seed", range(seeds(30)))
async def test_all_machines_keep_one_limit(autojump_clock, seed: int):
    """Lists and single addresses, machines that come, stop and die, a store that loses answers."""
    rng = random.Random(seed)
    limit = rng.choice((1, 2, 4))
    store = SharedStore()
    store.rng, store.lost = rng, rng.choice((0.0, 0.0, 0.2))
    hosts = [MailHost(latency_s=rng.choice((0.0, 0.05, 0.2))) for _ in range(3)]
    reported: list[Verdict] = []
    async with open_fake_network(seed=seed) as network:
        for n, host in enumerate(hosts):
            network.add("shop.test", host)
            network.add(f"shop{n}.test", host, mx=f"mx{n}.other.test")

        async def one(number: int) -> None:
            await trio.sleep(rng.uniform(0, 3))
            with trio.move_on_after(rng.choice((4.0, 300.0)) if number else 300):
                async with (
                    machine(network, store, limit) as (engine, _),
                    trio.open_nursery() as asking,
                ):
                    for _ in range(2):
                        asking.start_soon(work, engine, number)

        async def work(engine: Engine, number: int) -> None:
            domain = rng.choice(("shop.test", "shop0.test", "shop1.test", "shop2.test"))
            for _ in range(3):
                texts = [
                    f"{rng.choice(('known', 'nobody'))}{number}{n}@{domain}" for n in range(30)
                ]
                reported.extend(await verify(engine, *texts, deferred_start=rng.random() < 0.7))
                await trio.sleep(rng.uniform(0, 4))

        async with trio.open_nursery() as machines:
            for number in range(5):
                machines.start_soon(one, number)
        await trio.testing.wait_all_tasks_blocked()
    sure = [verdict for verdict in reported if verdict.status != "unknown"]
    check(sure)
    assert sure
    for host in hosts:
        assert host.record.connections_peak <= limit
        assert not host.record.mistakes


async def test_more_machines_than_permits_take_turns(autojump_clock):
    """Eight machines with long lists share four connections; all progress without a long wait."""
    host, store = MailHost(latency_s=0.05), SharedStore()
    done: dict[int, list[float]] = {}

    async def list_of(network: FakeNetwork, number: int) -> None:
        async with machine(network, store) as (engine, _):
            done[number] = [trio.current_time()]
            texts = [f"known{number}x{n}@shop.test" for n in range(300)]
            async with open_answers(engine, texts, account="me", deferred_start=True) as answers:
                async for answer in answers:
                    assert answer.verdict.status == "deliverable"
                    done[number].append(trio.current_time())

    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(list_of, network, number)
    assert host.record.connections_peak == 4
    for times in done.values():
        waits = [later - sooner for sooner, later in pairwise(times)]
        assert max(waits) < 3, "or a single address would not have been answered"


async def test_a_holder_of_all_makes_room_for_who_comes(autojump_clock):
    """One machine holds every connection; another machine's single address is answered in time."""
    host, store = MailHost(latency_s=0.1), SharedStore()
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with (
            machine(network, store) as (busy, _),
            machine(network, store) as (late, _),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_verify_list, busy, 2_000)
            while store.leased(address) < 4:  # noqa: ASYNC110 - another task's doing
                await trio.sleep(0.1)
            began = trio.current_time()
            check(await verify(late, "known99999@shop.test"))
            assert trio.current_time() - began < 2.5
    assert host.record.connections_peak == 4


async def _verify_list(engine: Engine, count: int) -> None:
    check(await verify(engine, *knowns(count), deferred_start=True))


async def test_a_holder_that_cannot_extend_stops_before_another_begins(autojump_clock):
    """The store is unavailable to one machine: its connections close before its leases end."""
    host, store = MailHost(latency_s=0.3), SharedStore()
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with (
            machine(network, store, 1) as (lonely, permits),
            machine(network, store, 1) as (
                other,
                _,
            ),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_verify_during_outage, lonely)
            while store.leased(address) < 1:  # noqa: ASYNC110
                await trio.sleep(0.01)
            store.away_for.add(permits.holder)
            leased_at = trio.current_time()
            nursery.start_soon(_verify_during_outage, other)
            await trio.sleep(LEASE_S - CUT_S + TICK_S)
            assert host.record.connections_now == 0
            assert permits.at(address) == 0
            while not host.record.connections_now:  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert LEASE_S - 1 <= trio.current_time() - leased_at <= LEASE_S + 1
            store.away_for.clear()
            nursery.cancel_scope.cancel()
    assert host.record.connections_peak == 1


async def _verify_during_outage(engine: Engine) -> None:
    for verdict in await verify(engine, *knowns(300), deferred_start=True):
        assert verdict.status in ("deliverable", "unknown")


async def test_a_store_that_is_away_for_a_while_is_not_noticed_by_who_has_permits(autojump_clock):
    host, store = MailHost(latency_s=0.25), SharedStore()
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with machine(network, store) as (engine, permits), trio.open_nursery() as nursery:
            nursery.start_soon(_verify_list, engine, 800)
            await trio.sleep(2)
            store.away_for.add(permits.holder)
            await trio.sleep(LEASE_S / 2)
            store.away_for.clear()
    assert [session.closed for session in host.record.sessions if session.closed != "quit"] == []


async def test_without_a_store_the_verdict_is_unknown_and_no_host_is_connected(autojump_clock):
    host, store = MailHost(), SharedStore()
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with machine(network, store) as (engine, permits):
            store.away_for.add(permits.holder)
            began = trio.current_time()
            (verdict,) = await verify(engine, "known1@shop.test")
            assert verdict.status == "unknown"
            assert trio.current_time() - began <= 3.05
            assert not host.record.sessions_seen
            store.away_for.clear()
            check(await verify(engine, "known1@shop.test"))


async def test_the_permits_of_a_machine_that_died_come_back(autojump_clock):
    host, store = MailHost(latency_s=0.1), SharedStore()
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with trio.open_nursery() as dead:
            permits = LeasedBudget(store, 1)
            dead.start_soon(permits.allocate)
            permits.request(address)
            while not store.leased(address):  # noqa: ASYNC110
                await trio.sleep(0.01)
            dead.cancel_scope.cancel()
        died_at = trio.current_time()
        async with machine(network, store, 1) as (engine, _):
            (verdict,) = await verify(engine, "known1@shop.test")
            assert verdict.status == "unknown"
            await trio.sleep(died_at + LEASE_S - trio.current_time())
            check(await verify(engine, "known1@shop.test"))


async def test_in_a_new_session_all_is_leased_again_and_nothing_is_noticed(autojump_clock):
    host, store = MailHost(latency_s=0.25), SharedStore()
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with machine(network, store) as (engine, permits), trio.open_nursery() as nursery:
            nursery.start_soon(_verify_list, engine, 800)
            await trio.sleep(2)
            store.session += 1
            await trio.sleep(LOST_S)
            assert permits.addresses[address].session == store.session
            assert host.record.connections_now == 4
    assert [session.closed for session in host.record.sessions if session.closed != "quit"] == []


async def test_a_holder_that_cannot_lease_again_stops_before_another_begins(autojump_clock):
    """The store has lost its session, and cannot be asked: others may take this process for gone."""
    host, store = MailHost(latency_s=0.25), SharedStore()
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with machine(network, store) as (engine, permits), trio.open_nursery() as nursery:
            nursery.start_soon(_verify_list, engine, 800)
            await trio.sleep(2)
            store.away_for.add(permits.holder)
            await trio.sleep(LOST_S + TICK_S)
            assert host.record.connections_now == 4
            store.session += 1
            await trio.sleep(LOST_S + 2 * TICK_S)
            assert host.record.connections_now == 0
            assert permits.at(address) == 0
            assert LOST_S + 2 * TICK_S < GONE_S
            store.away_for.clear()


@pytest.mark.parametrize("deferred_start", [True, False])
async def test_a_list_waits_for_a_permit_and_a_request_says_that_it_was_ours(
    autojump_clock, deferred_start: bool
):
    """Another process has every connection for ten seconds: it holds them, and does not look."""
    host, store = MailHost(), SharedStore()
    texts = ["known1@shop.test", "nobody2@shop.test", "known3@shop.test"]
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with machine(network, store, 1) as (engine, _), trio.open_nursery() as nursery:
            asked = {address: LeaseRequest(0, 1)}
            await store.lease_connections("other", asked, limit=1, lease_s=10)
            nursery.start_soon(_queue_behind, store, address)
            async with open_answers(
                engine, texts, account="me", deferred_start=deferred_start
            ) as answers:
                found = [answer async for answer in answers]
            nursery.cancel_scope.cancel()
    verdicts = [answer.verdict for answer in found]
    if deferred_start:
        check(verdicts)
        assert trio.current_time() > 10
        assert max(verdict.latency_ms for verdict in verdicts) < 100
    else:
        assert trio.current_time() <= 3.05
        assert {verdict.failed_check for verdict in verdicts} == {None}
        assert {verdict.status for verdict in verdicts} == {"unknown"}
        assert {answer.cause for answer in found} == {VerdictCause("no_connection_free", "us")}
        assert host.record.sessions_seen == 0


async def _queue_behind(store: SharedStore, address: str) -> None:
    """A third process wants the connection as well, but later: it must not be served first."""
    await trio.sleep(5)
    while True:
        asked = {address: LeaseRequest(0, 1)}
        granted = await store.lease_connections("third", asked, limit=1, lease_s=1)
        assert not granted[address]
        await trio.sleep(0.5)


async def test_turns_are_noticed_within_a_look(autojump_clock):
    """An idle connection of one machine does not delay another machine's address."""
    host, store = MailHost(), SharedStore()
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with machine(network, store, 1) as (one, _), machine(network, store, 1) as (two, _):
            check(await verify(one, "known1@shop.test"))
            assert host.record.connections_now == 1
            began = trio.current_time()
            check(await verify(two, "known2@shop.test"))
            assert trio.current_time() - began < POLL_S + 2 * TICK_S + 0.1
    assert host.record.connections_peak == 1


@pytest.mark.parametrize(
    ("database", "shared"),
    [("data/mailprobe.db", True), ("postgresql://h/n", True), ("memory:", False)],
)
def test_permits_are_shared_where_the_store_is(database: str, shared: bool):
    assert is_shared(database) is shared
