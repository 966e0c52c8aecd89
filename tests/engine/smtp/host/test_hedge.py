"""A silent exchange is hedged: its answer counts as long as it may greet, and failing over is quick."""

from random import Random
from typing import Any

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.faults import Close, Late
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.bench.world.mail_host import MailHost
from tests.engine.engine_runs import (
    DELIVERABLE,
    TIMED_OUT,
    UNDELIVERABLE,
    UNTESTED,
    fields_of,
    knowns,
    open_checked_engine,
    verify,
)
from tests.engine.stream.streams import collect
from tests.seeds import pairs


def two_exchanges(network: FakeNetwork, first: MailHost, second: MailHost, domain: str) -> None:
    network.add(domain, first, mx=f"mx1.{domain}", preference=10)
    network.add(domain, second, mx=f"mx2.{domain}", preference=20)


LIVING, MISSING = 60, 15
CONNECTED = {  # how a host greets after this many seconds
    "connect": lambda delay_s: {"connect_s": delay_s},
    "banner": lambda delay_s: {"faults": {"CONNECT": Late(delay_s)}},
    "both": lambda delay_s: {"connect_s": delay_s / 2, "faults": {"CONNECT": Late(delay_s / 2)}},
}
BACKUPS: dict[str, dict[str, Any]] = {
    "refuses": {"replies": {"@shop.test": "550 5.1.1 <{rcpt}>: User unknown"}},
    "accepts all": {"catch_all": True},
    "denies relaying": {"domains": frozenset()},
    "is busy": {"replies": {"@shop.test": "451 4.3.0 Try again later"}},
}


def mixed() -> list[str]:
    """Living and missing mailboxes, in an order without a pattern."""
    texts = knowns(LIVING) + [f"gone{number}@shop.test" for number in range(MISSING)]
    Random(0).shuffle(texts)
    return texts


def right_for(text: str) -> tuple[str, bool, float, str | None]:
    return DELIVERABLE if text.startswith("known") else UNDELIVERABLE


def recipients_of(host: MailHost) -> list[str]:
    return [mailbox for session in host.record.sessions for mailbox in session.recipients]


@pytest.mark.parametrize(("backup", "slow"), pairs(BACKUPS, CONNECTED))
@pytest.mark.parametrize("delay_s", [0.15, 0.28, 0.4, 0.9])
@pytest.mark.parametrize("deferred_start", [False, True], ids=["requests", "list"])
async def test_a_slow_exchange_answers_for_itself(
    autojump_clock, backup, slow, delay_s, deferred_start
):
    async with open_fake_network() as network:
        first, second = MailHost(**CONNECTED[slow](delay_s)), MailHost(**BACKUPS[backup])
        two_exchanges(network, first, second, "shop.test")
        async with open_checked_engine(network) as engine:
            verdicts = await verify(engine, *mixed(), deferred_start=deferred_start)
        for verdict in verdicts:
            assert fields_of(verdict) == right_for(verdict.email)
        assert recipients_of(second) == []
        if deferred_start:
            assert second.record.sessions_seen == 0
        assert {session.closed for session in second.record.sessions} <= {"quit"}


@pytest.mark.parametrize("backup", BACKUPS)
@pytest.mark.parametrize("round_trip_s", [0.15, 0.28, 0.4, 0.9])
@pytest.mark.parametrize("deferred_start", [False, True], ids=["requests", "list"])
async def test_a_distant_exchange_is_not_overruled(
    autojump_clock, backup, round_trip_s, deferred_start
):
    """Where its replies take too long the verdict is unknown, and never the backup's."""
    async with open_fake_network() as network:
        first = MailHost(connect_s=round_trip_s, latency_s=round_trip_s)
        second = MailHost(**BACKUPS[backup])
        two_exchanges(network, first, second, "shop.test")
        async with open_checked_engine(network) as engine:
            verdicts = await verify(engine, *mixed(), deferred_start=deferred_start)
        for verdict in verdicts:
            assert fields_of(verdict) in (right_for(verdict.email), UNTESTED, TIMED_OUT)
        assert recipients_of(second) == []
        right = sum(fields_of(verdict) == right_for(verdict.email) for verdict in verdicts)
        assert right >= (len(verdicts) * 3 // 4 if round_trip_s < 0.4 else 0)


FAILING = ("silent", "unanswered", "silent at ehlo", "refused", "unreachable", "closing")


@pytest.mark.parametrize("first", [*FAILING, "421 banner", "554 banner"])
@pytest.mark.parametrize("deferred_start", [False, True], ids=["requests", "list"])
async def test_the_next_exchange_answers_for_one_that_fails(autojump_clock, first, deferred_start):
    async with open_fake_network() as network:
        primary = (
            MailHost(banner=f"{first[:3]} no service here")
            if first.endswith("banner")
            else new_host(first)
        )
        backup = MailHost(latency_s=0.01)
        two_exchanges(network, primary, backup, "shop.test")
        async with open_checked_engine(network) as engine:
            verdicts = await verify(engine, *mixed(), deferred_start=deferred_start)
        for verdict in verdicts:
            assert fields_of(verdict) == right_for(verdict.email)
            assert verdict.latency_ms <= 3050


@pytest.mark.parametrize("first", ["silent", "unanswered", "late banner", "silent at ehlo"])
async def test_failing_over_takes_no_longer_than_the_read_deadline(autojump_clock, first):
    """The connection to the next exchange is open when that ends."""
    async with open_fake_network() as network:
        two_exchanges(network, new_host(first), MailHost(latency_s=0.1), "shop.test")
        async with open_checked_engine(network) as engine:
            [verdict] = await verify(engine, "known@shop.test")
            assert fields_of(verdict) == DELIVERABLE
            assert 1000 < verdict.latency_ms < 1250
            verdicts = await verify(engine, *knowns(20))
            assert set(map(fields_of, verdicts)) == {DELIVERABLE}
            assert max(verdict.latency_ms for verdict in verdicts) < 1800


@pytest.mark.parametrize("addresses", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("host_connections", [1, 2, 8])
async def test_a_silent_exchange_with_many_addresses_leaves_time_for_the_next(
    autojump_clock, addresses, host_connections
):
    async with open_fake_network() as network:
        silent = [network.add(f"a{n}.test", new_host("unanswered")) for n in range(addresses)]
        backup = network.add("backup.test", MailHost(latency_s=0.05))
        network.zone.mx("shop.test", "mx1.shop.test", "mx2.shop.test")
        network.zone.host("mx1.shop.test", *silent)
        network.zone.host("mx2.shop.test", backup)
        async with open_checked_engine(network, host_connections=host_connections) as engine:
            [verdict] = await verify(engine, "known@shop.test")
        assert fields_of(verdict) == DELIVERABLE
        assert verdict.latency_ms <= 3000
        tried = [address for address, _ in network.dialled if address != backup]
        assert len(tried) == len(set(tried))
        if addresses == 2 and host_connections > 1:
            assert verdict.latency_ms < 1400


async def test_no_other_exchange_is_connected_to_if_the_first_greets_in_time(autojump_clock):
    async with open_fake_network() as network:
        first, second = MailHost(latency_s=0.1), MailHost()
        two_exchanges(network, first, second, "shop.test")
        async with open_checked_engine(network) as engine:
            [verdict] = await verify(engine, "known@shop.test")
        assert fields_of(verdict) == DELIVERABLE
        assert second.record.sessions_seen == 0


async def test_a_hedge_that_is_not_needed_gets_its_quit(autojump_clock):
    async with open_fake_network() as network:
        first, second = MailHost(faults={"CONNECT": Late(0.6)}), MailHost()
        two_exchanges(network, first, second, "shop.test")
        async with open_checked_engine(network) as engine:
            [verdict] = await verify(engine, "known@shop.test")
            assert fields_of(verdict) == DELIVERABLE
            await trio.sleep(5)
        assert [session.recipients for session in second.record.sessions] == [[]]
        assert [session.closed for session in second.record.sessions] == ["quit"]
        assert first.record.sessions[0].recipients[0] == "known@shop.test"


async def test_a_hedge_serves_the_domains_of_its_own_host(autojump_clock):
    """It is an open connection like any other."""
    async with open_fake_network() as network:
        second = MailHost()
        two_exchanges(network, new_host("unanswered"), second, "shop.test")
        network.add("other.test", second, mx="mx2.shop.test")
        async with open_checked_engine(network) as engine, trio.open_nursery() as nursery:
            nursery.start_soon(verify, engine, "known@shop.test")
            await trio.sleep(0.5)
            [verdict] = await verify(engine, "known@other.test")
            assert fields_of(verdict) == DELIVERABLE
        assert second.record.sessions_seen == 1


@pytest.mark.parametrize("first", ["unanswered", "late banner"])
async def test_of_equal_exchanges_the_first_to_greet_answers(autojump_clock, first):
    async with open_fake_network() as network:
        slow, quick = new_host(first), MailHost(latency_s=0.01)
        network.add("shop.test", slow, mx="mx1.shop.test")
        network.add("shop.test", quick, mx="mx2.shop.test")
        async with open_checked_engine(network) as engine:
            for number in range(4):  # whichever of them is the first
                verdicts = await verify(
                    engine, f"known{number}@shop.test", f"gone{number}@shop.test"
                )
                assert list(map(fields_of, verdicts)) == [DELIVERABLE, UNDELIVERABLE]
                assert max(verdict.latency_ms for verdict in verdicts) < 450
        assert recipients_of(slow) == []


@pytest.mark.parametrize("second", ["closing at mail", "blocked at mail"])
async def test_an_equal_exchange_that_fails_leaves_the_slow_one_its_time(autojump_clock, second):
    """The backup may not answer before both of them have failed."""
    async with open_fake_network() as network:
        slow = MailHost(connect_s=0.9)
        failing = MailHost(
            faults={"MAIL": Close()} if second == "closing at mail" else {},
            mail_reply="554 5.7.1 blocked" if second == "blocked at mail" else "250 Ok",
        )
        network.add("shop.test", slow, mx="mx1.shop.test")
        network.add("shop.test", failing, mx="mx2.shop.test")
        backup = MailHost(**BACKUPS["refuses"])
        network.add("shop.test", backup, mx="mx3.shop.test", preference=20)
        async with open_checked_engine(network) as engine:
            for number in range(4):
                [verdict] = await verify(engine, f"known{number}@shop.test")
                assert fields_of(verdict) == DELIVERABLE
                await trio.sleep(10)
        assert recipients_of(backup) == []


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


async def test_a_hedge_leaves_no_evidence(autojump_clock):
    async with open_fake_network() as network:
        two_exchanges(network, MailHost(connect_s=0.9), MailHost(), "shop.test")
        async with open_checked_engine(network) as engine:
            [answer] = await collect(engine, "known@shop.test", explain=True)
        assert len(network.dialled) == 2
        assert answer.evidence is not None
        exchanges = [(each.exchange, each.result) for each in answer.evidence.exchanges]
        assert exchanges == [("mx1.shop.test", "answered")]


async def test_probes_that_come_while_the_exchange_is_silent_wait_for_it_too(autojump_clock):
    async with open_fake_network() as network:
        first, second = MailHost(connect_s=0.9), MailHost(**BACKUPS["refuses"])
        two_exchanges(network, first, second, "shop.test")
        verdicts = []

        async def verify_at(place: int) -> None:
            await trio.sleep(place / 20)
            verdicts.extend(await verify(engine, f"known{place}@shop.test", account=f"a{place}"))

        async with open_checked_engine(network) as engine, trio.open_nursery() as nursery:
            for place in range(30):
                nursery.start_soon(verify_at, place)
        assert [fields_of(verdict) for verdict in verdicts] == [DELIVERABLE] * 30
        assert recipients_of(second) == []
