"""A silent exchange costs a quarter of a second: then the next one is dialled beside it."""

import pytest
import trio

from mailprobe.engine.testing.fake_network import FakeNetwork, open_fake_network
from mailprobe.engine.testing.faults import Late
from mailprobe.engine.testing.host_profiles import new_host
from mailprobe.engine.testing.mail_host import MailHost
from tests.engine.engine_runs import (
    DELIVERABLE,
    TIMED_OUT,
    fields_of,
    knowns,
    open_checked_engine,
    verify,
)


def two_exchanges(network: FakeNetwork, first: MailHost, second: MailHost, domain: str) -> None:
    network.add(domain, first, mx=f"mx1.{domain}", preference=10)
    network.add(domain, second, mx=f"mx2.{domain}", preference=20)


@pytest.mark.parametrize("first", ["silent", "unanswered", "late banner", "silent at ehlo"])
async def test_the_next_exchange_answers_for_a_silent_one(autojump_clock, first):
    async with open_fake_network() as network:
        two_exchanges(network, new_host(first), MailHost(latency_s=0.01), "shop.test")
        async with open_checked_engine(network) as engine:
            [verdict] = await verify(engine, "known@shop.test")
            assert fields_of(verdict) == DELIVERABLE
            assert verdict.latency_ms < 400
            verdicts = await verify(engine, *knowns(20))
            assert set(map(fields_of, verdicts)) == {DELIVERABLE}
            assert max(verdict.latency_ms for verdict in verdicts) < 600


async def test_an_exchange_that_greets_in_time_is_asked_alone(autojump_clock):
    async with open_fake_network() as network:
        first, second = MailHost(latency_s=0.1), MailHost()
        two_exchanges(network, first, second, "shop.test")
        async with open_checked_engine(network) as engine:
            [verdict] = await verify(engine, "known@shop.test")
        assert fields_of(verdict) == DELIVERABLE
        assert second.record.sessions_seen == 0


async def test_the_first_greeting_wins_and_the_other_is_told_goodbye(autojump_clock):
    """The slow one greets after all: it is not asked a second time, and gets its QUIT."""
    async with open_fake_network() as network:
        first = MailHost(faults={"CONNECT": Late(0.6)})
        second = MailHost(faults={"CONNECT": Late(0.1)})
        two_exchanges(network, first, second, "shop.test")
        async with open_checked_engine(network) as engine:
            [verdict] = await verify(engine, "known@shop.test")
            assert fields_of(verdict) == DELIVERABLE
            await trio.sleep(5)
        assert [session.recipients for session in first.record.sessions] == [[]]
        assert [session.closed for session in first.record.sessions] == ["quit"]
        assert second.record.sessions[0].recipients[0] == "known@shop.test"


async def test_a_slow_first_exchange_wins_where_the_next_is_slower(autojump_clock):
    async with open_fake_network() as network:
        first = MailHost(faults={"CONNECT": Late(0.5)})
        second = MailHost(faults={"CONNECT": Late(0.9)})
        two_exchanges(network, first, second, "shop.test")
        async with open_checked_engine(network) as engine:
            [verdict] = await verify(engine, "known@shop.test")
            await trio.sleep(5)
        assert fields_of(verdict) == DELIVERABLE
        assert [session.recipients for session in second.record.sessions] == [[]]


@pytest.mark.parametrize("second", ["refused", "silent", "closing", "blocked at banner"])
async def test_a_hedge_that_fails_leaves_the_first_exchange_its_time(autojump_clock, second):
    async with open_fake_network() as network:
        first = MailHost(faults={"CONNECT": Late(0.8)})
        two_exchanges(network, first, new_host(second), "shop.test")
        async with open_checked_engine(network) as engine:
            [verdict] = await verify(engine, "known@shop.test")
        assert fields_of(verdict) == DELIVERABLE


async def test_where_both_are_silent_each_is_tried_once(autojump_clock):
    async with open_fake_network() as network:
        two_exchanges(network, new_host("silent"), new_host("silent"), "shop.test")
        async with open_checked_engine(network) as engine:
            [verdict] = await verify(engine, "known@shop.test")
        assert fields_of(verdict) == TIMED_OUT
        assert len(network.dialled) == 2
        assert verdict.latency_ms < 1500


async def test_one_dead_address_of_several_is_hedged_too(autojump_clock):
    async with open_fake_network() as network:
        dead = network.add("dead.test", new_host("unanswered"))
        alive = network.add("alive.test", MailHost())
        network.zone.mx("shop.test", "mx.shop.test")
        network.zone.host("mx.shop.test", dead, alive)
        async with open_checked_engine(network) as engine:
            for number in range(10):
                [verdict] = await verify(engine, f"known{number}@shop.test")
                assert fields_of(verdict) == DELIVERABLE
                assert verdict.latency_ms < 400
