"""An engine whose seats are granted, shrink and end: never more connections than it has been told."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.faults import Late, StaySilent
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Engine, Verdict, open_answers
from mailprobe.engine.reasons import VerdictCause
from mailprobe.engine.smtp.connection_budget import PermitHolder
from tests.engine.engine_runs import knowns, open_test_engine, verify
from tests.engine.invariants import assert_whole
from tests.seeds import seeds

TRUTHS = {"known": "deliverable", "nobody": "undeliverable"}


class Granted:
    """Seats as a test grants them."""

    def __init__(self, count: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        self.count = count  # at every other address
        self.connections: Counter[str] = Counter()
        self.wanted: Counter[str] = Counter()
        self.tight = False
        self.permit_holder: PermitHolder | None = None

    def open_for(self, permit_holder: PermitHolder) -> None:
        self.permit_holder = permit_holder

    def at(self, address: str) -> int:
        return self.counts.get(address, self.count)

    def short(self, address: str) -> bool:
        return self.tight

    def request(self, address: str) -> None:
        self.wanted[address] += 1

    def used(self, address: str, count: int) -> None:
        assert count <= max(self.at(address), self.connections[address]), "one too many"
        self.connections[address] = count

    def grant(self, address: str, count: int) -> None:
        assert self.permit_holder
        self.counts[address] = count
        self.permit_holder.permits_changed(address)

    def end(self, address: str) -> None:
        assert self.permit_holder
        self.counts[address] = 0
        self.permit_holder.permits_revoked(address)
        self.permit_holder.permits_changed(address)


@asynccontextmanager
async def open_engine_with(
    network: FakeNetwork, permits: Granted, **settings: Any
) -> AsyncIterator[Engine]:
    async with open_test_engine(network, permits=permits, **settings) as engine:
        yield engine
    assert_whole(engine)
    assert not +permits.connections


def check(verdicts: Sequence[Verdict]) -> None:
    for verdict in verdicts:
        assert verdict.status == TRUTHS[verdict.email.partition("@")[0].rstrip("0123456789")]


async def test_no_connection_is_opened_before_a_permit_is_granted(autojump_clock):
    """Who waits is told at the end of the clock that nothing is known."""
    host, permits = MailHost(), Granted()
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with open_engine_with(network, permits) as engine:
            began = trio.current_time()
            (verdict,) = await verify(engine, *knowns(1))
            assert trio.current_time() - began <= 3.05
            assert verdict.status == "unknown"
            assert permits.wanted[address]
    assert host.record.sessions_seen == 0


async def test_a_late_grant_wakes_who_waits(autojump_clock):
    host, permits = MailHost(), Granted()
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with open_engine_with(network, permits) as engine, trio.open_nursery() as nursery:

            async def grant() -> None:
                await trio.sleep(2.5)
                permits.grant(address, 1)

            nursery.start_soon(grant)
            check(await verify(engine, *knowns(3)))
            assert trio.current_time() < 3
    assert host.record.sessions_seen == 1


async def test_one_connection_is_opened_where_several_addresses_are_granted_at_once(
    autojump_clock,
):
    permits = Granted()
    hosts = [MailHost(latency_s=0.05) for _ in range(4)]
    async with open_fake_network() as network:
        for host in hosts:
            network.add("shop.test", host)
        async with open_engine_with(network, permits) as engine, trio.open_nursery() as nursery:

            async def grant() -> None:
                await trio.sleep(0.1)
                for address in list(network.hosts):
                    permits.grant(address, 1)

            nursery.start_soon(grant)
            check(await verify(engine, *knowns(2)))
    assert sum(host.record.sessions_seen for host in hosts) == 1


async def test_a_list_wants_more_and_uses_what_comes(autojump_clock):
    host, permits = MailHost(latency_s=0.3), Granted(1)
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with open_engine_with(network, permits) as engine, trio.open_nursery() as nursery:

            async def grant() -> None:
                for count in (2, 3):
                    before = permits.wanted[address]
                    while permits.wanted[address] == before:  # noqa: ASYNC110 - another task's doing
                        await trio.sleep(0.01)
                    assert host.record.connections_peak <= count - 1
                    permits.grant(address, count)

            nursery.start_soon(grant)
            check(await verify(engine, *knowns(200), deferred_start=True))
    assert host.record.connections_peak == 3


async def test_a_grant_that_shrinks_is_obeyed_after_the_round(autojump_clock):
    """Of three connections two go; nothing is asked in vain, and the third goes on."""
    host, permits = MailHost(latency_s=0.2), Granted(3)
    open_then: list[int] = []
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with open_engine_with(network, permits) as engine, trio.open_nursery() as nursery:

            async def shrink() -> None:
                while host.record.connections_now < 3:  # noqa: ASYNC110
                    await trio.sleep(0.1)
                permits.tight = True
                permits.grant(address, 1)
                await trio.sleep(1.5)
                while not nursery.cancel_scope.cancel_called:
                    open_then.append(host.record.connections_now)
                    await trio.sleep(0.1)

            nursery.start_soon(shrink)
            check(await verify(engine, *knowns(400), deferred_start=True))
            nursery.cancel_scope.cancel()
    assert len(open_then) > 5
    assert max(open_then) == 1
    assert all(session.closed == "quit" for session in host.record.sessions)
    assert max(host.record.recipients[text] for text in knowns(400)) == 1


async def test_an_idle_connection_goes_home_at_once_where_the_grant_shrinks(autojump_clock):
    host, permits = MailHost(), Granted(1)
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with open_engine_with(network, permits) as engine:
            check(await verify(engine, *knowns(1)))
            assert host.record.connections_now == 1
            permits.grant(address, 0)
            await trio.sleep(0.1)
            assert host.record.connections_now == 0


async def test_a_revoked_connection_is_closed_at_once_and_its_probes_wait(autojump_clock):
    """In the middle of a round that takes 0.9 s, before a late reply gives way: and the answer comes by another connection."""
    host = MailHost(faults={"known0": Late(0.9)})
    permits = Granted(1)
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with open_engine_with(network, permits) as engine, trio.open_nursery() as nursery:

            async def end() -> None:
                await trio.sleep(0.17)  # a late reply gives way from 0.19 s on
                assert permits.connections[address] == 1
                permits.end(address)
                await trio.testing.wait_all_tasks_blocked()
                assert permits.connections[address] == 0
                assert host.record.connections_now == 0
                await trio.sleep(0.5)
                assert host.record.sessions_seen == 1
                permits.grant(address, 1)

            nursery.start_soon(end)
            check(await verify(engine, "known0@shop.test", "nobody1@shop.test"))
            (probed,) = engine.probing.egresses[0].hosts.values()
            assert probed.staffing.connections.throttle.bad == 0
            assert not probed.rest.backoff.failures
    assert host.record.sessions_seen == 3  # the late one gives way once


@pytest.mark.parametrize("after_s", [n * 0.02 for n in range(60)])
async def test_permits_that_end_at_any_moment(autojump_clock, after_s: float):
    """In the connect, the greeting, a round, the random address, QUIT: no connection stays, and
    what is told is right or unknown."""
    host, permits = MailHost(latency_s=0.1, connect_s=0.1), Granted(1)
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with open_engine_with(network, permits) as engine, trio.open_nursery() as nursery:

            async def end() -> None:
                await trio.sleep(after_s)
                permits.end(address)
                await trio.testing.wait_all_tasks_blocked()
                assert permits.connections[address] == 0
                assert host.record.connections_now == 0
                await trio.sleep(0.3)
                permits.grant(address, 1)

            nursery.start_soon(end)
            check(await verify(engine, "known1@shop.test", "nobody2@shop.test"))
        await trio.testing.wait_all_tasks_blocked()


# -- without a permit -------------------------------------------------------------------------

OURS = VerdictCause("no_connection_free", "us")
HOSTS = VerdictCause("timeout", "host")


async def causes(engine: Engine, *texts: str, deferred_start: bool = False) -> list[VerdictCause]:
    async with open_answers(engine, texts, account="me", deferred_start=deferred_start) as answers:
        return [answer.cause async for answer in answers]


@pytest.mark.parametrize(("granted_s", "cause"), [(1.5, HOSTS), (2.5, OURS)])
async def test_a_silent_host_is_to_blame_if_it_had_the_time_of_a_read(
    autojump_clock, granted_s: float, cause: VerdictCause
):
    host, permits = MailHost(faults={"known0": StaySilent()}), Granted()
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with open_engine_with(network, permits) as engine, trio.open_nursery() as nursery:

            async def grant() -> None:
                await trio.sleep(granted_s)
                permits.grant(address, 1)

            nursery.start_soon(grant)
            assert await causes(engine, *knowns(1)) == [cause]
    assert host.record.sessions_seen == 1


@pytest.mark.parametrize(("local", "cause"), [("known", OURS), ("silent", HOSTS)])
async def test_a_host_that_keeps_all_our_connections_waiting_is_to_blame(
    autojump_clock, local: str, cause: VerdictCause
):
    """Nine hosts share the address of the only permit, and take turns: the ninth comes too late."""
    host = new_host(
        "no pipelining", latency_s=0.1, faults={f"silent{n}": StaySilent() for n in range(40)}
    )
    permits = Granted()
    async with open_fake_network() as network:
        shared = network.add("only.test", host)
        permits.counts[shared] = 1
        for n in range(9):
            network.zone.mx(f"shop{n}.test", f"mx.shop{n}.test")
            other = network.add(f"other{n}.test", MailHost())
            network.zone.host(f"mx.shop{n}.test", shared, other)
        async with open_engine_with(network, permits) as engine, trio.open_nursery() as nursery:
            for n in range(8):
                texts = [f"{local}{place}@shop{n}.test" for place in range(40)]
                nursery.start_soon(partial(causes, engine, *texts, deferred_start=True))
            while not permits.connections[shared]:  # noqa: ASYNC110 - another task's doing
                await trio.sleep(0.01)
            await trio.sleep(0.4)
            assert await causes(engine, "known@shop8.test") == [cause]
            nursery.cancel_scope.cancel()


async def test_a_list_whose_permits_end_waits_for_others(autojump_clock):
    """Its addresses in the middle of a batch wait too, and those that were admitted behind them."""
    host, permits = MailHost(latency_s=0.2), Granted(2)
    async with open_fake_network() as network:
        address = network.add("shop.test", host)
        async with open_engine_with(network, permits) as engine, trio.open_nursery() as nursery:

            async def end() -> None:
                for _ in range(3):
                    while not permits.connections[address]:  # noqa: ASYNC110 - another task's doing
                        await trio.sleep(0.1)
                    await trio.sleep(0.5)
                    permits.end(address)
                    await trio.sleep(20)
                    assert host.record.connections_now == 0
                    permits.grant(address, 2)

            nursery.start_soon(end)
            verdicts = await verify(engine, *knowns(300), deferred_start=True)
            check(verdicts)
            assert trio.current_time() > 60
            assert max(verdict.latency_ms for verdict in verdicts) < 10_000


async def test_a_probe_that_waits_for_a_permit_occupies_no_slot(autojump_clock):
    """Neither that of the list's addresses at other hosts, nor that of requests."""
    permits = Granted(4)
    async with open_fake_network() as network:
        addresses = [network.add(f"shop{n}.test", MailHost()) for n in range(8)]
        network.add("free.test", MailHost())
        permits.counts.update(dict.fromkeys(addresses, 0))
        permits.tight = True
        texts = [*[f"known@shop{n}.test" for n in range(8)], *knowns(5, "free.test")]
        async with (
            open_engine_with(network, permits, probes_max=2) as engine,
            open_answers(engine, texts, account="me", deferred_start=True) as answers,
        ):
            check([(await anext(aiter(answers))).verdict for _ in range(5)])
            check(await verify(engine, *knowns(9, "free.test"), account="other"))
            assert trio.current_time() < 1
            await trio.sleep(60)
            for address in addresses:
                permits.grant(address, 1)
            check([answer.verdict async for answer in answers])


async def test_probes_whose_permits_are_on_their_way_keep_their_places(autojump_clock):
    """Else a list would open the connections to all its new hosts at once."""
    permits, hosts = Granted(), [MailHost(latency_s=0.2) for _ in range(12)]
    async with open_fake_network() as network:
        addresses = [network.add(f"shop{n}.test", host) for n, host in enumerate(hosts)]
        async with (
            open_engine_with(network, permits, probes_max=4) as engine,
            trio.open_nursery() as nursery,
        ):

            async def grant() -> None:
                while not all(permits.counts[address] for address in addresses):
                    await trio.sleep(0.5)
                    assert engine.probing.turn.under_way <= 4
                    for address in addresses:
                        if permits.wanted[address] and not permits.counts[address]:
                            permits.grant(address, 1)

            nursery.start_soon(grant)
            texts = [f"known@shop{n}.test" for n in range(len(hosts))]
            check(await verify(engine, *texts, deferred_start=True))
    began = [host.record.sessions[0].opened_at_s for host in hosts]
    assert max(Counter(round(each, 1) for each in began).values()) <= 4


async def test_a_list_that_is_left_while_it_waits_leaves_nothing(autojump_clock):
    permits = Granted()
    async with open_fake_network() as network:
        address = network.add("shop.test", MailHost())
        async with open_engine_with(network, permits) as engine:
            with trio.move_on_after(5):
                await verify(engine, *knowns(9), deferred_start=True)
            permits.grant(address, 1)
            await trio.sleep(1)
            assert not engine.probing.egresses[0].permits.waits.present
            check(await verify(engine, *knowns(1)))


@pytest.mark.parametrize("seed", range(seeds(60)))
async def test_never_more_connections_than_granted(autojump_clock, seed: int):
    """Grants that come, shrink and end, lists and single addresses, askers that leave."""
    rng = random.Random(seed)
    permits = Granted(rng.randint(0, 2))
    hosts = [MailHost(latency_s=rng.choice((0.0, 0.05, 0.3))) for _ in range(3)]
    reported: list[Verdict] = []
    async with open_fake_network(seed=seed) as network:
        for n, host in enumerate(hosts):
            network.add("shop.test", host)
            network.add(f"shop{n}.test", host, mx=f"mx{n}.other.test")
        addresses = list(network.hosts)
        async with open_engine_with(network, permits) as engine, trio.open_nursery() as nursery:

            async def change() -> None:
                while True:
                    await trio.sleep(rng.uniform(0.01, 0.6))
                    address = rng.choice(addresses)
                    permits.tight = rng.random() < 0.3
                    if rng.random() < 0.2:
                        permits.end(address)
                    else:
                        permits.grant(address, rng.randint(0, 4))

            async def list_of(domain: str) -> None:
                texts = [f"{rng.choice(('known', 'nobody'))}{n}@{domain}" for n in range(60)]
                with trio.move_on_after(60 if domain == "shop.test" else rng.choice((0.7, 60))):
                    reported.extend(await verify(engine, *texts, deferred_start=rng.random() < 0.5))

            nursery.start_soon(change)
            async with trio.open_nursery() as asking:
                for domain in ("shop.test", "shop0.test", "shop1.test", "shop2.test"):
                    asking.start_soon(list_of, domain)
            nursery.cancel_scope.cancel()
    assert reported, "or nobody asked"
    check([verdict for verdict in reported if verdict.status != "unknown"])
    for host in hosts:
        assert not host.record.mistakes
