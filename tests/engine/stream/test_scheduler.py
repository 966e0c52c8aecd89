"""Many addresses as one stream: order, duplicates, fairness, time."""

from collections import Counter

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import (
    in_order,
    open_answers,
)
from mailprobe.engine.stream.scheduler import SUBMIT_STEP
from tests.engine.engine_runs import DELIVERABLE, UNDELIVERABLE, fields_of, knowns, open_test_engine
from tests.engine.stream.streams import collect


async def test_answers_come_as_they_are_found(autojump_clock):
    async with open_fake_network() as network:
        for name, latency_s in (("slow", 0.5), ("middle", 0.2), ("fast", 0.05)):
            network.add(f"{name}.test", MailHost(latency_s=latency_s))
        async with open_test_engine(network) as engine:
            answers = await collect(
                engine, "known@slow.test", "known@middle.test", "known@fast.test"
            )
        assert [answer.position for answer in answers] == [2, 1, 0]


async def test_answers_that_need_no_network_come_first(autojump_clock):
    """It is ready before any time has passed."""
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        texts = ["known@shop.test", "not an address", "ann@mailinator.com", "", "b@c@d"]
        async with (
            open_test_engine(network) as engine,
            open_answers(engine, texts, account="me") as answers,
        ):
            first = await answers.next_ready()
            assert [answer.position for answer in first] == [1, 2, 3, 4]
            assert trio.current_time() == 0
            assert [a.verdict.failed_check for a in first].count("syntax") == 3
            assert first[1].verdict.failed_check == "disposable"
            assert [answer.position async for answer in answers] == [0]


async def test_in_order_gives_the_order_of_the_texts(autojump_clock):
    async with open_fake_network() as network:
        for number in range(5):
            network.add(f"d{number}.test", MailHost(latency_s=0.1 * (5 - number)))
        texts = [f"known@d{number}.test" for number in range(5)]
        async with (
            open_test_engine(network) as engine,
            open_answers(engine, texts, account="me") as answers,
        ):
            verdicts = await in_order(answers, 5)
        assert [verdict.email for verdict in verdicts] == texts


async def test_no_texts_are_no_answers(autojump_clock):
    async with open_fake_network() as network, open_test_engine(network) as engine:
        assert await collect(engine) == []
        async with open_answers(engine, [], account="me") as answers:
            assert await answers.next_ready() == []
            assert await answers.next_ready() == []


async def test_the_stream_stays_ended(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        async with (
            open_test_engine(network) as engine,
            open_answers(engine, knowns(1), account="me") as answers,
        ):
            assert len([answer async for answer in answers]) == 1
            assert [answer async for answer in answers] == []


async def test_duplicates_are_probed_once_and_answered_each(autojump_clock):
    """Case matters in the local part, not in the domain."""
    async with open_fake_network() as network:
        host = MailHost(mailboxes=frozenset({"ann"}))
        network.add("shop.test", host)
        texts = [
            "ann@shop.test",
            "ann@SHOP.test",
            "Ann@shop.test",
            "ann@shop.test",
            "bob@Shop.Test",
        ]
        async with open_test_engine(network) as engine:
            answers = await collect(engine, *texts)
        assert sorted(answer.position for answer in answers) == [0, 1, 2, 3, 4]
        for answer in answers:
            assert answer.verdict.email == texts[answer.position]
        assert host.record.recipients["ann@shop.test"] == 1
        assert host.record.recipients["Ann@shop.test"] == 1
        by_place = {answer.position: fields_of(answer.verdict) for answer in answers}
        assert by_place[0] == by_place[1] == by_place[3] == DELIVERABLE
        assert by_place[4] == UNDELIVERABLE


async def test_a_duplicate_that_comes_later_shares_the_probe_under_way(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(latency_s=0.2)
        network.add("shop.test", host)
        texts = ["known@shop.test", *(f"x{n}@nowhere.test" for n in range(SUBMIT_STEP * 3))]
        async with open_test_engine(network) as engine:
            answers = await collect(engine, *texts, "known@shop.test")
        assert host.record.recipients["known@shop.test"] == 1
        assert len(answers) == len(texts) + 1


async def test_two_accounts_are_no_duplicates_but_share_what_is_known(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost()
        network.add("shop.test", host)
        async with open_test_engine(network) as engine:
            for account in ("a", "b"):
                [answer] = await collect(engine, "known@shop.test", account=account)
                assert fields_of(answer.verdict) == DELIVERABLE
        assert host.record.recipients["known@shop.test"] == 2
        assert len(host.record.recipients) == 2  # and one random address
        assert network.zone.queries["shop.test", "MX"] == 1
        assert network.zone.queries["mx.shop.test", "A"] == 1


@pytest.mark.parametrize("profile", ["friendly", "no pipelining"])
async def test_a_batch_does_not_starve_a_neighbour(autojump_clock, profile):
    """Beside fifty addresses at a slow host, a single one is answered soon."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host(profile, reply_s=0.2))
        async with open_test_engine(network) as engine, trio.open_nursery() as nursery:
            batch = knowns(50)
            nursery.start_soon(lambda: collect(engine, *batch, account="batch"))
            await trio.sleep(1)
            [answer] = await collect(engine, "nobody@shop.test", account="neighbour")
            assert fields_of(answer.verdict) == UNDELIVERABLE
            assert answer.verdict.latency_ms < 2500
            nursery.cancel_scope.cancel()


async def test_two_batches_share_a_host(autojump_clock):
    """The later one gets as many answers as the first, give or take a window."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host("no pipelining", reply_s=0.1))
        seen: Counter[str] = Counter()
        async with open_test_engine(network, host_connections=1) as engine:

            async def count_delivered(account: str) -> None:
                texts = [f"known{account}{number}@shop.test" for number in range(50)]
                for answer in await collect(engine, *texts, account=account):
                    seen[account] += fields_of(answer.verdict) == DELIVERABLE

            async with trio.open_nursery() as nursery:
                nursery.start_soon(count_delivered, "first")
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(count_delivered, "second")
        assert abs(seen["first"] - seen["second"]) <= 2
        assert sum(seen.values()) >= 20


async def test_a_list_of_many_domains_does_not_starve_a_neighbour_of_room(autojump_clock):
    """While one account fills the dispatcher, another account's address is admitted next."""
    async with open_fake_network() as network:
        network.add("slow.test", MailHost(latency_s=0.3))
        network.add("shop.test", MailHost())
        async with (
            open_test_engine(network, probes_max=5) as engine,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(
                lambda: collect(
                    engine, *knowns(50, "slow.test"), account="list", deferred_start=True
                )
            )
            await trio.sleep(1)
            [answer] = await collect(engine, "known@shop.test", account="neighbour")
            assert fields_of(answer.verdict) == DELIVERABLE
            nursery.cancel_scope.cancel()


async def test_latency_is_from_being_taken_up_to_the_answer(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(latency_s=0.1, connect_s=0.1))
        async with open_test_engine(network) as engine:
            await trio.sleep(100)
            answers = await collect(engine, "nobody@shop.test", "x", "ann@nowhere.test")
        latencies = {answer.position: answer.verdict.latency_ms for answer in answers}
        assert latencies == {0: 400, 1: 0, 2: 0}


async def test_being_held_back_is_no_latency(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", new_host("no pipelining", latency_s=0.2))
        async with open_test_engine(network, host_connections=1) as engine:
            answers = await collect(engine, *knowns(100), deferred_start=True)
        assert trio.current_time() > 20
        assert max(answer.verdict.latency_ms for answer in answers) <= 3000
        assert answers[-1].verdict.latency_ms < 1500
