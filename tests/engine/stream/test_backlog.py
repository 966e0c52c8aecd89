"""Lists: addresses wait in the backlog until their host has capacity."""

from collections import Counter
from typing import Any

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import (
    EngineSettings,
    in_order,
    open_answers,
    open_engine,
)
from tests.engine.engine_runs import (
    DELIVERABLE,
    FAILED,
    TIMED_OUT,
    UNDELIVERABLE,
    fields_of,
    knowns,
    open_test_engine,
    verify,
)
from tests.engine.invariants import assert_whole
from tests.engine.stream.streams import collect


async def test_a_patient_list_at_a_slow_host_gets_all_its_answers(autojump_clock):
    """Even if it takes minutes: the deadline of an address begins when it is admitted."""
    async with open_fake_network() as network:
        host = new_host("no pipelining", reply_s=0.1)
        network.add("shop.test", host)
        texts = [f"{('known', 'nobody')[n % 2]}{n}@shop.test" for n in range(500)]
        async with open_test_engine(network, host_connections=1) as engine:
            answers = await collect(engine, *texts, deferred_start=True)
            took_s = trio.current_time()
            await trio.sleep(30)
            assert_whole(engine)
        assert took_s > 60
        seen = Counter(fields_of(answer.verdict) for answer in answers)
        assert seen == {DELIVERABLE: 250, UNDELIVERABLE: 250}
        assert all(answer.verdict.latency_ms <= 3050 for answer in answers)


async def test_an_impatient_list_of_the_same_length_runs_into_the_clock(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", new_host("no pipelining", reply_s=0.3))
        async with open_test_engine(network) as engine:
            answers = await collect(engine, *knowns(500))
        assert trio.current_time() < 3.1
        seen = Counter(fields_of(answer.verdict) for answer in answers)
        assert seen[TIMED_OUT] > 400
        assert all(answer.verdict.latency_ms <= 3050 for answer in answers)


async def test_a_slow_host_in_a_patient_list_holds_up_no_other(autojump_clock):
    async with open_fake_network() as network:
        network.add("slow.test", new_host("no pipelining", reply_s=0.3))
        network.add("fast.test", MailHost(latency_s=0.01))
        async with open_test_engine(network) as engine:
            texts = [*knowns(200, "slow.test"), *knowns(200, "fast.test")]
            async with open_answers(engine, texts, account="me", deferred_start=True) as answers:
                seen = [answer.position async for answer in answers]
        assert all(place >= 200 for place in seen[:150])
        assert sorted(seen) == list(range(400))


async def test_a_list_over_vanity_exchanges_of_one_host_is_patient(autojump_clock):
    """Each domain has an exchange of its own name, all at one address."""
    async with open_fake_network() as network:
        host = new_host("no pipelining", latency_s=0.2)
        for number in range(100):
            network.add(f"d{number}.test", host)
        texts = [f"known@d{number}.test" for number in range(100)]
        async with (
            open_test_engine(network) as engine,
            open_answers(engine, texts, account="me", deferred_start=True) as answers,
        ):
            seen = Counter([answer.verdict.failed_check async for answer in answers])
        assert seen == {None: 100}


async def test_patient_lists_share_what_a_host_can_bear(autojump_clock):
    """However many lists run at once, an address is admitted only if its host has capacity."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host("no pipelining", latency_s=0.15))
        seen: Counter[str | None] = Counter()
        async with open_test_engine(network, host_connections=1) as engine:
            await verify(engine, "known@shop.test", account="before")

            async def clean(account: str) -> None:
                texts = [f"known-{account}{number}@shop.test" for number in range(60)]
                async with open_answers(
                    engine, texts, account=account, deferred_start=True
                ) as answers:
                    async for answer in answers:
                        seen[answer.verdict.failed_check] += 1

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(clean, f"asker{number}")
        assert seen == {None: 1200}


async def test_a_list_behind_a_dead_first_exchange_is_patient(autojump_clock):
    """The capacity is that of the exchange which answers."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host("refused"), mx="mx1.shop.test", preference=10)
        host = new_host("no pipelining", reply_s=0.5)
        network.add("shop.test", host, mx="mx2.shop.test", preference=20)
        texts = knowns(40)
        async with (
            open_test_engine(network) as engine,
            open_answers(engine, texts, account="me", deferred_start=True) as answers,
        ):
            seen = Counter([answer.verdict.failed_check async for answer in answers])
        assert seen == {None: 40}


@pytest.mark.parametrize(("reply_s", "host_connections"), [(0.5, 4), (0.3, 1)])
async def test_a_patient_list_begins_with_as_few_as_the_host_can_bear(
    autojump_clock, reply_s, host_connections
):
    """Before its greeting a host may turn out to allow one recipient at a time."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host("no pipelining", reply_s=reply_s))
        settings = EngineSettings(host_connections=host_connections)
        texts = knowns(500)
        async with (
            open_engine(settings, transport=network.transport, dial=network.dial) as engine,
            open_answers(engine, texts, account="me", deferred_start=True) as answers,
        ):
            seen = Counter([answer.verdict.failed_check async for answer in answers])
        assert seen == {None: 500}


async def test_probes_of_a_lock_step_host_are_admitted_a_few_at_a_time(autojump_clock):
    """Admitting one costs about as much as admitting ten, so one alone is admitted only when needed."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host("no pipelining", reply_s=0.01))
        async with open_test_engine(network, host_connections=4) as engine:
            await collect(engine, "known@shop.test")  # so no address waits for the domain's test
            texts = knowns(40)
            rooms: dict[Any, tuple[int, int]] = {}
            async with (
                open_answers(engine, texts, account="me") as answers,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(in_order, answers, len(texts))
                while answers.ready or engine.probing.turn.under_way or not rooms:
                    await trio.sleep(0.003)
                    for probed in engine.probing.egresses[0].hosts.values():
                        rooms[
                            probed.load.present - probed.load.backlog,
                            len(probed.staffing.sessions.open),
                        ] = (
                            probed.load.room(1, "me"),
                            probed.load.room(100, "me"),
                        )
        for (present, sessions), (for_one, for_many) in rooms.items():
            if present <= 2 * sessions:
                assert for_one == for_many > 0
            else:
                assert for_one <= 0
                assert for_many <= 0 or for_many > probed.staffing.connections.throttle.limit
        assert {for_one > 0 for for_one, _ in rooms.values()} == {True, False}
        assert any(for_one <= 0 < for_many for for_one, for_many in rooms.values())


@pytest.mark.parametrize(
    ("profile", "longest_s"), [("refused", 0.1), ("unanswered", 3.1), ("silent", 3.1)]
)
async def test_a_dead_host_does_not_hold_up_the_end_of_a_list(
    autojump_clock: trio.testing.MockClock, profile: str, longest_s: float
) -> None:
    """It has its second try at once when nothing else is left to do, and the list ends."""
    async with open_fake_network() as network:
        dead = new_host(profile)
        for number in range(400):
            network.add(f"d{number}.test", dead, mx="mx.dead.test")
        network.add("shop.test", new_host("friendly"))
        async with open_test_engine(network) as engine:
            texts = [f"known{number}@d{number}.test" for number in range(400)]
            answers = await collect(engine, *texts, "known@shop.test", deferred_start=True)
            took_s = trio.current_time()
            await trio.sleep(30)
            assert_whole(engine)
        assert took_s < longest_s
        seen = Counter(fields_of(answer.verdict) for answer in answers)
        assert seen[DELIVERABLE] == 1
        assert sum(seen[unknown] for unknown in (FAILED, TIMED_OUT)) == 400


async def test_a_host_that_recovers_while_others_are_probed_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_fake_network() as network:
        host = new_host("refused")
        address = network.add("down.test", host)
        network.add("shop.test", new_host("no pipelining", reply_s=0.3))
        async with (
            open_test_engine(network, host_connections=1) as engine,
            trio.open_nursery() as nursery,
        ):

            async def come_back() -> None:
                await trio.sleep(4)
                network.hosts[address] = new_host("friendly")

            nursery.start_soon(come_back)
            texts = [*knowns(20, "down.test"), *knowns(60)]
            answers = await collect(engine, *texts, deferred_start=True)
        seen = Counter(fields_of(answer.verdict) for answer in answers)
        assert seen[DELIVERABLE] == 78  # the first probe found the host down, and the second too
