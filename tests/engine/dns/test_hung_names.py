"""Names whose look-up hangs: they cost nobody else a verdict, and never the wrong one."""

import random
from collections import Counter
from dataclasses import dataclass
from functools import partial

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeEndpoint, FakeNetwork, open_fake_network
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.bench.world.zone import ZoneMode
from mailprobe.engine import EngineSettings
from mailprobe.engine.dns.endpoint import LOOKUPS_MAX
from mailprobe.engine.dns.messages import Route
from mailprobe.engine.dns.query_queue import LATE_S
from mailprobe.engine.smtp.address_lookups import EXCHANGE_S
from tests.engine.engine_runs import (
    DELIVERABLE,
    TIMED_OUT,
    UNKNOWN,
    fields_of,
    open_test_engine,
    verify,
)
from tests.engine.invariants import assert_whole
from tests.seeds import pairs


@dataclass
class SlowFor:
    """The world's resolvers, which take their time for names with this label."""

    world: FakeNetwork
    label: bytes
    delay_s: float

    async def exchange(self, url: str, query: bytes) -> bytes:
        if self.label in query:
            await trio.sleep(self.delay_s)
        return await self.world.transport.exchange(url, query)


def add_domains(
    network: FakeNetwork, count: int, *, hung_share: float = 0.0
) -> tuple[list[str], list[str]]:
    """Domains at a few hosts, of which some hang: the healthy ones, and those.

    A host takes 512 refusals in ten minutes, and each domain's test costs it one.
    """
    hosts = [MailHost() for _ in range(1 + count // 300)]
    healthy, hung = [], []
    for number in range(count):
        domain = f"d{number}.test"
        if random.Random(number).random() < hung_share:
            network.zone.mode(domain, ZoneMode.HANG)
            hung.append(domain)
        else:
            place = number % len(hosts)
            network.add(domain, hosts[place], mx=f"mx{place}.test")
            healthy.append(domain)
    return healthy, hung


@pytest.mark.parametrize("delay_s", [0.02, 0.25])
async def test_hung_domains_cost_the_others_of_their_list_nothing(autojump_clock, delay_s):
    async with open_fake_network() as network:
        healthy, hung = add_domains(network, 500, hung_share=0.2)
        for url in EngineSettings().doh_urls:
            network.transport.endpoints[url] = FakeEndpoint(delay_s=delay_s)
        texts = [f"known@{domain}" for domain in sorted([*healthy, *hung])]
        async with open_test_engine(network) as engine:
            verdicts = await verify(engine, *texts, deferred_start=True)
            await trio.sleep(30)
            assert_whole(engine)
        outcomes = Counter(
            (verdict.email.partition("@")[2] in hung, *fields_of(verdict)) for verdict in verdicts
        )
    assert outcomes == {
        (False, *DELIVERABLE): len(healthy),
        (True, *UNKNOWN): len(hung),
    }


@pytest.mark.parametrize(("batches", "accounts"), pairs([1, 4, 8], [1, 3]))
@pytest.mark.parametrize("priority", ["domain", "exchange"])
async def test_dead_domains_do_not_delay_a_neighbour(autojump_clock, batches, accounts, priority):
    """Requests of another account, one after the other, while batches of 50 dead domains run."""
    async with open_fake_network() as network:
        for url in EngineSettings().doh_urls:
            network.transport.endpoints[url] = FakeEndpoint(delay_s=0.05)
        for number in range(50 * batches * accounts):
            if priority == "domain":
                network.zone.mode(f"dead{number}.test", ZoneMode.HANG)
            else:  # the domain is found, the name of its exchange hangs
                network.zone.mx(f"dead{number}.test", f"mx.dead{number}.test")
                network.zone.mode(f"mx.dead{number}.test", ZoneMode.HANG)
        add_domains(network, 20)

        async def dead(number: int) -> None:
            texts = [f"a@dead{50 * number + place}.test" for place in range(50)]
            verdicts = await verify(engine, *texts, account=f"account{number % accounts}")
            assert {fields_of(verdict) for verdict in verdicts} == {UNKNOWN}
            assert max(verdict.latency_ms for verdict in verdicts) <= 4550

        async with open_test_engine(network) as engine:
            async with trio.open_nursery() as nursery:
                for number in range(batches * accounts):
                    nursery.start_soon(dead, number)
                for number in range(20):
                    await trio.sleep(0.11)
                    [verdict] = await verify(engine, f"known@d{number}.test", account="neighbour")
                    assert fields_of(verdict) == DELIVERABLE
                    assert verdict.latency_ms < 1000
            await trio.sleep(30)
            assert_whole(engine)


async def test_the_healthy_ones_of_a_crowded_batch_are_found(autojump_clock):
    """The account's own late queries give way to those that were not asked yet."""
    async with open_fake_network() as network:
        _, hung = add_domains(network, 6 * LOOKUPS_MAX, hung_share=1.0)
        add_domains(network, 20)
        for domain in hung[:20]:
            network.zone.mode(domain, None)
        healthy = [f"known@d{number}.test" for number in range(20)]
        async with open_test_engine(network) as engine, trio.open_nursery() as nursery:
            for start in range(20, 2 * LOOKUPS_MAX, 50):
                texts = [f"a@{domain}" for domain in hung[start : start + 50]]
                nursery.start_soon(verify, engine, *texts)
            await trio.sleep(0.01)
            verdicts = await verify(engine, *healthy)
            assert {fields_of(verdict) for verdict in verdicts} == {DELIVERABLE}
            assert max(verdict.latency_ms for verdict in verdicts) < 2 * LATE_S * 1000 + 100


async def test_a_shared_name_takes_the_better_turn(autojump_clock):
    """What a crowded account has queued, and another one wants, does not wait for the crowd."""
    async with open_fake_network() as network:
        add_domains(network, 1)
        async with open_test_engine(network) as engine, trio.open_nursery() as nursery:
            for number in range(4 * LOOKUPS_MAX):
                network.zone.mode(f"dead{number}.test", ZoneMode.HANG)
                nursery.start_soon(
                    partial(engine.routes.find, f"dead{number}.test", "crowd", deferred_start=True)
                )
            nursery.start_soon(lambda: engine.routes.find("d0.test", "crowd", deferred_start=True))
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            route = await engine.routes.find("d0.test", "neighbour")
            assert isinstance(route, Route)
            assert route.mx_host == "mx0.test"
            assert trio.current_time() - began < LATE_S + 0.1
            nursery.cancel_scope.cancel()


# -- exchanges whose name hangs --------------------------------------------------------------


def add_exchanges(network: FakeNetwork, hung: str, count: int = 2) -> None:
    """shop.test with exchanges 0 … count - 1, each alive but for those whose number hangs."""
    for number in range(count):
        network.add("shop.test", MailHost(), mx=f"mx{number}.shop.test", preference=number)
        if str(number) in hung:
            network.zone.mode(f"mx{number}.shop.test", ZoneMode.HANG)


@pytest.mark.parametrize("deferred_start", [False, True])
async def test_an_exchange_whose_name_hangs_leaves_time_for_the_next(
    autojump_clock, deferred_start
):
    async with open_fake_network() as network:
        add_exchanges(network, hung="0")
        async with open_test_engine(network) as engine:
            [verdict] = await verify(engine, "known@shop.test", deferred_start=deferred_start)
            await trio.sleep(30)
            assert_whole(engine)
        assert fields_of(verdict) == DELIVERABLE
        assert verdict.mx_host == "mx0.shop.test"
        assert deferred_start or EXCHANGE_S * 1000 <= verdict.latency_ms < EXCHANGE_S * 1000 + 200


async def test_a_late_answer_is_still_used(autojump_clock):
    """The first exchange's address comes after its second was given up for the next, which hangs."""
    async with open_fake_network() as network:
        add_exchanges(network, hung="1")
        slow = SlowFor(network, b"mx0", 1.3)
        async with open_test_engine(network, transport=slow) as engine:
            [verdict] = await verify(engine, "known@shop.test")
            await trio.sleep(30)
            assert_whole(engine)
        assert fields_of(verdict) == DELIVERABLE
        assert verdict.latency_ms < 2000


@pytest.mark.parametrize("count", [1, 2, 3, 5])
async def test_look_ups_that_fail_in_the_end_are_the_resolvers_failure(autojump_clock, count):
    async with open_fake_network() as network:
        add_exchanges(network, hung="01234", count=count)
        async with open_test_engine(network) as engine:
            [verdict] = await verify(engine, "known@shop.test")
            await trio.sleep(30)
            assert_whole(engine)
        assert fields_of(verdict) == UNKNOWN
        assert (verdict.mx_found, verdict.mx_host) == (True, "mx0.shop.test")
        assert verdict.latency_ms <= 3050


async def test_a_host_that_was_tried_says_more_than_a_name_that_hangs(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", new_host("silent"), mx="mx0.shop.test", preference=0)
        network.zone.mx("shop.test", (0, "mx0.shop.test"), (1, "mx1.shop.test"))
        network.zone.mode("mx1.shop.test", ZoneMode.HANG)
        async with open_test_engine(network) as engine:
            [verdict] = await verify(engine, "known@shop.test")
        assert fields_of(verdict) == TIMED_OUT


async def test_an_account_that_leaves_frees_its_look_ups(autojump_clock):
    async with open_fake_network() as network:
        add_exchanges(network, hung="01")
        async with open_test_engine(network) as engine:
            with trio.move_on_after(0.5):
                await verify(engine, "known@shop.test")
            await trio.testing.wait_all_tasks_blocked()
            for endpoint in engine.routes.resolver_set.endpoints:
                assert endpoint.queue.under_way == 0
            assert_whole(engine)
