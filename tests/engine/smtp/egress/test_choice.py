"""Which egress asks: by weight, by what it may, and by what the day has left for it."""

from collections import Counter
from datetime import date
from itertools import pairwise

import pytest
import trio

from mailprobe.bench.world.mail_host import HostAddress, MailHost
from mailprobe.engine import open_answers
from mailprobe.engine.egress import DailyLimit, Egress
from mailprobe.engine.smtp.egress.choice import score, seed_of
from tests.engine.smtp.egress.worlds import (
    LISTED,
    A,
    B,
    answers_of,
    open_engine_of,
    open_world,
    reasons,
)
from tests.engine.smtp.test_connection_budget import Granted
from tests.engine.smtp.test_refusal_leases import Ledger, granting

DOMAINS = [f"shop{number}.test" for number in range(10_000)]


def chosen(weights: dict[str, float]) -> list[str]:
    seeds = {name: seed_of(name) for name in weights}
    return [
        max(weights, key=lambda name: score(seed_of(domain), seeds[name], weights[name]))
        for domain in DOMAINS
    ]


def test_domains_are_divided_by_weight():
    shares = Counter(chosen({"heavy": 3.0, "light": 1.0}))
    assert 0.73 < shares["heavy"] / len(DOMAINS) < 0.77


def test_an_egress_that_is_left_out_moves_its_own_domains_alone():
    before = chosen({"a": 1.0, "b": 1.0, "c": 2.0})
    after = chosen({"a": 1.0, "b": 1.0})
    moved = Counter(new for old, new in zip(before, after, strict=True) if old == "c")
    assert all(old in ("c", new) for old, new in zip(before, after, strict=True))
    assert 0.45 < moved["a"] / moved.total() < 0.55


@pytest.mark.parametrize("deferred_start", [False, True], ids=["requests", "list"])
async def test_an_egress_asks_the_operators_that_it_may(autojump_clock, deferred_start):
    only, never = Egress("a", only=frozenset({"google"})), Egress("b", never=frozenset({"google"}))
    async with open_world() as world:
        google = world.add(10, mx="{}.aspmx.l.google.com")
        others = world.add(15)
        texts = [f"known@{domain}" for domain in google + others]
        async with open_engine_of(world, only, never) as engine:
            found = await answers_of(engine, texts, deferred_start=deferred_start)
            assert set(reasons(found)) == {"accepted"}
        assert world.control is not None
        assert world.control.answers == {("a", "accepted"): 10, ("b", "accepted"): 15}


async def test_nothing_is_sent_where_no_egress_may_ask(autojump_clock):
    async with open_world() as world:
        [domain] = world.add(1, mx="{}.aspmx.l.google.com")
        async with open_engine_of(world, Egress("a", never=frozenset({"google"}))) as engine:
            [answer] = await answers_of(engine, [f"known@{domain}"])
            assert answer.cause == ("no_egress", "us")
            assert not world.dialled


@pytest.mark.parametrize("deferred_start", [False, True], ids=["requests", "list"])
async def test_warm_up_limits_the_addresses_of_a_day(autojump_clock, deferred_start):
    young = Egress("a", daily=(DailyLimit(date(2026, 7, 1), 10), DailyLimit(date(2026, 7, 2), 20)))
    async with open_world() as world:
        texts = [f"{name}@{d}" for d in world.add(20) for name in ("known1", "known2")]
        async with open_engine_of(world, young) as engine:
            counts = []
            for _ in range(3):  # noon, midnight and noon: on the second day twice as many
                found = await answers_of(engine, texts, deferred_start=deferred_start)
                counts.append(reasons(found))
                await trio.sleep(12 * 3600 + 61)
            assert [each["accepted"] for each in counts] == [10, 20, 0]
            assert [each["no_egress"] for each in counts] == [30, 20, 40]


async def test_others_ask_when_the_day_of_an_egress_is_used_up(autojump_clock):
    young = Egress("a", daily=(DailyLimit(date(2026, 1, 1), 10),))
    async with open_world() as world:
        texts = [f"{name}@{d}" for d in world.add(30) for name in ("known1", "known2")]
        async with open_engine_of(world, young, B) as engine:
            found = await answers_of(engine, texts, deferred_start=True)
            assert set(reasons(found)) == {"accepted"}
            assert world.control is not None
            assert world.control.answers["a", "accepted"] == 10


async def test_a_pause_moves_the_rest_of_a_list_to_other_egresses(autojump_clock):
    async with open_world() as world:
        domains = world.add(6, latency_s=0.05, ehlo_lines=("SIZE",))
        texts = [f"known{n}@{domain}" for n in range(100) for domain in domains]
        async with open_engine_of(world, A, B) as engine:
            times, asked = [trio.current_time()], 0
            assert world.control is not None
            async with open_answers(engine, texts, account="me", deferred_start=True) as answers:
                async for answer in answers:
                    assert answer.cause.reason == "accepted"
                    times.append(trio.current_time())
                    if len(times) == 100:
                        world.control.pause("a")
                        asked = world.control.answers["a", "accepted"]
            assert len(times) == len(texts) + 1
            # Only what was under way, and what waited for its domain's random address.
            assert asked < world.control.answers["a", "accepted"] < asked + 150
            assert max(after - before for before, after in pairwise(times)) < 1.5


async def test_a_catch_all_that_one_egress_has_found_is_known_to_the_other(autojump_clock):
    async with open_world() as world:
        domains = world.add(10, catch_all=True)
        texts = [f"known@{domain}" for domain in domains]
        async with open_engine_of(world, A, B) as engine:
            await answers_of(engine, texts)
            sent = world.recipients
            assert world.control is not None
            world.control.pause("a")
            found = await answers_of(engine, texts)
            assert set(reasons(found)) == {"catch_all"}
            after = world.recipients
            assert after == sent + len(texts)  # no random address


async def test_the_probes_of_all_egresses_together_are_limited(autojump_clock):
    async with open_world() as world:
        texts = [f"known@{d}" for d in world.add(60, latency_s=0.1)]
        async with open_engine_of(world, A, B, probes_max=10) as engine:
            most = 0
            async with open_answers(engine, texts, account="me", deferred_start=True) as answers:
                async for answer in answers:
                    assert answer.cause.reason == "accepted"
                    most = max(most, engine.probing.turn.under_way)
            assert 5 < most <= 10


@pytest.mark.parametrize("patient", [False, True])
async def test_a_list_ends_where_a_second_exchange_refuses_an_egress(autojump_clock, patient):
    """The first exchange is down, and the second one refuses every egress."""
    async with open_world() as world:
        [domain] = world.add(1, address=HostAddress.REFUSED)
        world.network.add(domain, MailHost(banner=LISTED), mx=f"mx2.{domain}", preference=20)
        texts = [f"known{number}@{domain}" for number in range(200)]
        async with open_engine_of(world, A, B) as engine:
            for _ in range(2):
                async with open_answers(
                    engine, texts, account="me", deferred_start=True, patient=patient
                ) as answers:
                    found = [answer async for answer in answers]
                assert set(reasons(found)) <= {"blocked_us", "host_down"}


async def test_a_host_without_a_public_address_is_down_for_every_egress(autojump_clock):
    async with open_world() as world:
        world.network.add("shop.test", MailHost(), address="10.0.0.1")
        async with open_engine_of(world, A, Egress("b", source="192.0.2.1")) as engine:
            [answer] = await answers_of(engine, ["known@shop.test"])
            assert answer.cause == ("host_down", "host")


async def test_permits_of_a_host_are_counted_for_each_egress(autojump_clock):
    budget = Granted(2)
    async with open_world() as world:
        domains = world.add(12, latency_s=0.05, is_shared=True)
        texts = [f"known{n}@{domain}" for n in range(10) for domain in domains]
        async with open_engine_of(world, A, B, permits=budget) as engine:
            found = await answers_of(engine, texts, deferred_start=True)
            assert set(reasons(found)) == {"accepted"}
        [(address, host)] = world.network.hosts.items()
        assert set(budget.connections) == {f"a {address}", f"b {address}"}
        assert 2 < host.record.connections_peak <= 4


async def test_a_host_whose_list_goes_to_another_egress_asks_for_no_refusals(autojump_clock):
    """A list submits what has remained of its step: that may be nothing."""
    ledger = Ledger(granting(8), call_s=1.0)
    async with open_world() as world:
        [domain] = world.add(1)
        async with (
            open_engine_of(world, Egress("a", weight=1e9), B, refusals=ledger) as engine,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(ledger.run)
            nursery.start_soon(answers_of, engine, [f"known@{domain}"])
            await trio.sleep(1.5)  # the one that waits has asked
            [probed] = engine.probing.egresses[0].hosts.values()
            engine.probing.submit_to(probed, [])
            await trio.sleep(2.0)
            assert [report.is_wanted for _, _, report in ledger.reports] == [True]
            nursery.cancel_scope.cancel()
