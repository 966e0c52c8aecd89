"""Many addresses as one stream: order, duplicates, fairness, patience, bounds, evidence."""

import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from mailprobe.engine import (
    Answer,
    Engine,
    EngineSettings,
    in_order,
    open_answers,
    open_engine,
)
from mailprobe.engine.stream.scheduler import LOOKUPS_MAX, OPEN_MAX, SUBMIT_STEP, UNREAD_MAX
from mailprobe.engine.testing.fake_network import FakeEndpoint, FakeNetwork, open_fake_network
from mailprobe.engine.testing.faults import Late
from mailprobe.engine.testing.host_profiles import new_host
from mailprobe.engine.testing.mail_host import MailHost
from tests.engine.invariants import assert_whole
from tests.engine.test_outcomes import CATCH_ALL, DELIVERABLE, TIMED_OUT, UNDELIVERABLE, told


@asynccontextmanager
async def engine_over(network: FakeNetwork, **settings: object) -> AsyncIterator[Engine]:
    async with open_engine(
        replace(EngineSettings(), **settings),  # type: ignore[arg-type]
        transport=network.transport,
        dial=network.dial,
        rng=random.Random(0),
    ) as engine:
        yield engine


async def collect(engine: Engine, *texts: str, account: str = "me", **wishes: bool) -> list[Answer]:
    """Every answer, in the order in which they came."""
    async with open_answers(engine, texts, account=account, **wishes) as answers:
        return [answer async for answer in answers]


def knowns(count: int, domain: str = "shop.test") -> list[str]:
    return [f"known{number}@{domain}" for number in range(count)]


class Counted:
    """Texts that remember how far they were read."""

    def __init__(self, texts: Iterator[str]) -> None:
        self._texts = texts
        self.read = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.read += 1
            yield text


def endless(pattern: str) -> Counted:
    numbers = iter(range(10**9))
    return Counted(pattern.format(number) for number in numbers)


# -- order -----------------------------------------------------------------------------------


async def test_answers_come_as_they_are_found(autojump_clock):
    async with open_fake_network() as network:
        for name, latency_s in (("slow", 0.5), ("middle", 0.2), ("fast", 0.05)):
            network.add(f"{name}.test", MailHost(latency_s=latency_s))
        async with engine_over(network) as engine:
            answers = await collect(
                engine, "known@slow.test", "known@middle.test", "known@fast.test"
            )
        assert [answer.position for answer in answers] == [2, 1, 0]


async def test_what_needs_no_network_comes_first(autojump_clock):
    """And is there before anything else has happened at all."""
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        texts = ["known@shop.test", "not an address", "ann@mailinator.com", "", "b@c@d"]
        async with (
            engine_over(network) as engine,
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
            engine_over(network) as engine,
            open_answers(engine, texts, account="me") as answers,
        ):
            verdicts = await in_order(answers, 5)
        assert [verdict.email for verdict in verdicts] == texts


async def test_no_texts_are_no_answers(autojump_clock):
    async with open_fake_network() as network, engine_over(network) as engine:
        assert await collect(engine) == []
        async with open_answers(engine, [], account="me") as answers:
            assert await answers.next_ready() == []
            assert await answers.next_ready() == []


async def test_the_stream_stays_ended(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        async with (
            engine_over(network) as engine,
            open_answers(engine, knowns(1), account="me") as answers,
        ):
            assert len([answer async for answer in answers]) == 1
            assert [answer async for answer in answers] == []


# -- duplicates ------------------------------------------------------------------------------


async def test_duplicates_are_asked_once_and_answered_each(autojump_clock):
    """The domain's letters may differ, the local part's may not."""
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
        async with engine_over(network) as engine:
            answers = await collect(engine, *texts)
        assert sorted(answer.position for answer in answers) == [0, 1, 2, 3, 4]
        for answer in answers:
            assert answer.verdict.email == texts[answer.position]
        assert host.record.recipients["ann@shop.test"] == 1
        assert host.record.recipients["Ann@shop.test"] == 1
        by_place = {answer.position: told(answer.verdict) for answer in answers}
        assert by_place[0] == by_place[1] == by_place[3] == DELIVERABLE
        assert by_place[4] == UNDELIVERABLE


async def test_a_duplicate_that_comes_later_shares_the_probe_under_way(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(latency_s=0.2)
        network.add("shop.test", host)
        texts = ["known@shop.test", *(f"x{n}@nowhere.test" for n in range(SUBMIT_STEP * 3))]
        async with engine_over(network) as engine:
            answers = await collect(engine, *texts, "known@shop.test")
        assert host.record.recipients["known@shop.test"] == 1
        assert len(answers) == len(texts) + 1


async def test_two_accounts_are_no_duplicates_but_share_what_is_known(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost()
        network.add("shop.test", host)
        async with engine_over(network) as engine:
            for account in ("a", "b"):
                [answer] = await collect(engine, "known@shop.test", account=account)
                assert told(answer.verdict) == DELIVERABLE
        assert host.record.recipients["known@shop.test"] == 2
        assert len(host.record.recipients) == 2  # and one random address
        assert network.zone.queries["shop.test", "MX"] == 1
        assert network.zone.queries["mx.shop.test", "A"] == 1


# -- fairness --------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["friendly", "no pipelining"])
async def test_a_batch_does_not_starve_a_neighbour(autojump_clock, profile):
    """Fifty addresses to a slow host leave a single one its answer, soon."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host(profile, reply_s=0.2))
        async with engine_over(network) as engine, trio.open_nursery() as nursery:
            batch = [f"known{number}@shop.test" for number in range(50)]
            nursery.start_soon(lambda: collect(engine, *batch, account="batch"))
            await trio.sleep(1)
            [answer] = await collect(engine, "nobody@shop.test", account="neighbour")
            assert told(answer.verdict) == UNDELIVERABLE
            assert answer.verdict.latency_ms < 2500
            nursery.cancel_scope.cancel()


async def test_two_batches_share_a_host(autojump_clock):
    """The one that came later has as many answers as the other, give or take a window."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host("no pipelining", reply_s=0.1))
        seen: Counter[str] = Counter()
        async with engine_over(network, host_connections=1) as engine:

            async def ask(account: str) -> None:
                texts = [f"known-{account}{number}@shop.test" for number in range(50)]
                for answer in await collect(engine, *texts, account=account):
                    seen[account] += told(answer.verdict) == DELIVERABLE

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, "first")
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(ask, "second")
        assert abs(seen["first"] - seen["second"]) <= 2
        assert sum(seen.values()) >= 20


async def test_a_list_of_many_domains_does_not_starve_a_neighbour_of_room(autojump_clock):
    """With the desk full of one asker's, another one's address is the next to be let in."""
    async with open_fake_network() as network:
        network.add("slow.test", MailHost(latency_s=0.3))
        network.add("shop.test", MailHost())
        async with (
            engine_over(network, probes_max=5) as engine,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(
                lambda: collect(engine, *knowns(50, "slow.test"), account="list", patient=True)
            )
            await trio.sleep(1)
            [answer] = await collect(engine, "known@shop.test", account="neighbour")
            assert told(answer.verdict) == DELIVERABLE
            nursery.cancel_scope.cancel()


# -- patience --------------------------------------------------------------------------------


async def test_a_patient_list_at_a_slow_host_gets_all_its_answers(autojump_clock):
    """Though it takes minutes: the clock of an address begins when it is admitted."""
    async with open_fake_network() as network:
        host = new_host("no pipelining", reply_s=0.1)
        network.add("shop.test", host)
        texts = [f"{('known', 'nobody')[n % 2]}{n}@shop.test" for n in range(500)]
        async with engine_over(network, host_connections=1) as engine:
            answers = await collect(engine, *texts, patient=True)
            took_s = trio.current_time()
            await trio.sleep(30)
            assert_whole(engine)
        assert took_s > 60
        seen = Counter(told(answer.verdict) for answer in answers)
        assert seen == {DELIVERABLE: 250, UNDELIVERABLE: 250}
        assert all(answer.verdict.latency_ms <= 3050 for answer in answers)


async def test_an_impatient_list_of_the_same_length_runs_into_the_clock(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", new_host("no pipelining", reply_s=0.3))
        async with engine_over(network) as engine:
            answers = await collect(engine, *knowns(500))
        assert trio.current_time() < 3.1
        seen = Counter(told(answer.verdict) for answer in answers)
        assert seen[TIMED_OUT] > 400
        assert all(answer.verdict.latency_ms <= 3050 for answer in answers)


async def test_a_slow_host_in_a_patient_list_holds_up_no_other(autojump_clock):
    async with open_fake_network() as network:
        network.add("slow.test", new_host("no pipelining", reply_s=0.3))
        network.add("fast.test", MailHost(latency_s=0.01))
        async with engine_over(network) as engine:
            texts = [*knowns(200, "slow.test"), *knowns(200, "fast.test")]
            async with open_answers(engine, texts, account="me", patient=True) as answers:
                seen = [answer.position async for answer in answers]
        assert all(place >= 200 for place in seen[:150])
        assert sorted(seen) == list(range(400))


async def test_a_list_over_vanity_exchanges_of_one_host_is_patient(autojump_clock):
    """Each domain has an exchange of its own name, at the one address."""
    async with open_fake_network() as network:
        host = new_host("no pipelining", latency_s=0.2)
        for number in range(100):
            network.add(f"d{number}.test", host)
        texts = [f"known@d{number}.test" for number in range(100)]
        async with (
            open_engine(EngineSettings(), transport=network.transport, dial=network.dial) as engine,
            open_answers(engine, texts, account="me", patient=True) as answers,
        ):
            seen = Counter([answer.verdict.failed_check async for answer in answers])
        assert seen == {None: 100}


async def test_patient_lists_share_what_a_host_can_bear(autojump_clock):
    """However many are cleaned at once, nobody is admitted for whom there is no seat."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host("no pipelining", latency_s=0.15))
        seen: Counter[str | None] = Counter()
        async with open_engine(
            EngineSettings(host_connections=1), transport=network.transport, dial=network.dial
        ) as engine:
            async with open_answers(engine, ["known@shop.test"], account="before") as answers:
                await in_order(answers, 1)

            async def clean(account: str) -> None:
                texts = [f"known-{account}{number}@shop.test" for number in range(60)]
                async with open_answers(engine, texts, account=account, patient=True) as answers:
                    async for answer in answers:
                        seen[answer.verdict.failed_check] += 1

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(clean, f"asker{number}")
        assert seen == {None: 1200}


async def test_a_list_behind_a_dead_first_exchange_is_patient(autojump_clock):
    """What there is room for is told by the exchange that answers."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host("refused"), mx="mx1.shop.test", preference=10)
        host = new_host("no pipelining", reply_s=0.5)
        network.add("shop.test", host, mx="mx2.shop.test", preference=20)
        texts = [f"known{number}@shop.test" for number in range(40)]
        async with (
            open_engine(EngineSettings(), transport=network.transport, dial=network.dial) as engine,
            open_answers(engine, texts, account="me", patient=True) as answers,
        ):
            seen = Counter([answer.verdict.failed_check async for answer in answers])
        assert seen == {None: 40}


@pytest.mark.parametrize(("reply_s", "host_connections"), [(0.5, 4), (0.3, 1)])
async def test_a_patient_list_begins_with_as_few_as_the_host_can_bear(
    autojump_clock, reply_s, host_connections
):
    """Before the host has greeted, nobody knows whether it takes one at a time."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host("no pipelining", reply_s=reply_s))
        settings = EngineSettings(host_connections=host_connections)
        texts = [f"known{number}@shop.test" for number in range(500)]
        async with (
            open_engine(settings, transport=network.transport, dial=network.dial) as engine,
            open_answers(engine, texts, account="me", patient=True) as answers,
        ):
            seen = Counter([answer.verdict.failed_check async for answer in answers])
        assert seen == {None: 500}


async def test_who_waits_in_step_is_let_in_a_few_at_a_time(autojump_clock):
    """To let in one costs hardly less than to let in ten: one alone comes when it is needed."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host("no pipelining", reply_s=0.01))
        async with open_engine(
            EngineSettings(host_connections=4), transport=network.transport, dial=network.dial
        ) as engine:
            texts = [f"known{number}@shop.test" for number in range(40)]
            rooms = {}
            async with (
                open_answers(engine, texts, account="me") as answers,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(in_order, answers, len(texts))
                while answers.ready or engine.dispatcher.under_way or not rooms:
                    await trio.sleep(0.003)
                    for pool in engine.dispatcher.pools.values():
                        rooms[pool.under_way, len(pool.sessions)] = pool.room(1), pool.room(100)
        for (present, sessions), (for_one, for_many) in rooms.items():
            if present <= 2 * sessions:
                assert for_one == for_many > 0
            else:
                assert for_one <= 0
                assert for_many <= 0 or for_many > pool.throttle.limit
        assert {for_one > 0 for for_one, _ in rooms.values()} == {True, False}
        assert any(for_one <= 0 < for_many for for_one, for_many in rooms.values())


# -- bounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize("probes_max", [1, 2, 7])
async def test_probes_max_is_never_exceeded(autojump_clock, probes_max, patient):
    async with open_fake_network() as network:
        for number in range(5):
            network.add(f"d{number}.test", MailHost(latency_s=0.02))
        texts = [f"known{n}@d{n % 5}.test" for n in range(40)]
        async with engine_over(network, probes_max=probes_max) as engine:
            async with open_answers(engine, texts, account="me", patient=patient) as answers:
                peak = 0
                async for answer in answers:
                    peak = max(peak, engine.dispatcher.under_way)
                    assert told(answer.verdict) in (DELIVERABLE, TIMED_OUT)
                    if patient:
                        assert told(answer.verdict) == DELIVERABLE
            assert 0 < peak <= probes_max or probes_max == 1
            await trio.sleep(30)
            assert_whole(engine)


async def test_what_nobody_reads_is_not_made(autojump_clock):
    """Answers that need no network wait for their reader; the texts wait with them."""
    texts = endless("not an address {}")
    async with (
        open_fake_network() as network,
        engine_over(network) as engine,
        open_answers(engine, texts, account="me") as answers,
    ):
        await trio.sleep(60)
        assert texts.read <= UNREAD_MAX + 1
        for _ in range(300):
            await anext(answers)
        await trio.sleep(60)
        assert 1000 <= texts.read <= UNREAD_MAX + 301


async def test_texts_are_read_as_there_is_room(autojump_clock):
    """At a host that answers nobody, no more is taken up than may be open."""
    texts = endless("known{}@shop.test")
    async with open_fake_network() as network:
        network.add("shop.test", new_host("silent"))
        async with (
            engine_over(network) as engine,
            open_answers(engine, texts, account="me", patient=True),
        ):
            await trio.sleep(0.5)
            assert 1000 < texts.read <= OPEN_MAX + 1


async def test_domains_are_looked_up_a_hundred_at_a_time(autojump_clock):
    texts = endless("ann@d{}.test")
    async with open_fake_network() as network:
        for url in EngineSettings().doh_urls:
            network.transport.endpoints[url] = FakeEndpoint(delay_s=0.2)
        async with engine_over(network) as engine, open_answers(engine, texts, account="me"):
            await trio.sleep(0.1)
            assert texts.read <= LOOKUPS_MAX + 1


async def test_more_than_may_be_open_are_all_answered(autojump_clock, monkeypatch):
    """The bound made small, so that the list need not be long."""
    monkeypatch.setattr("mailprobe.engine.stream.scheduler.OPEN_MAX", 300)
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(catch_all=True))
        count = 2_000
        async with engine_over(network) as engine:
            texts = (f"a{number}@shop.test" for number in range(count))
            places = set()
            async with open_answers(engine, texts, account="me", patient=True) as answers:
                while ready := await answers.next_ready():
                    assert {told(answer.verdict) for answer in ready} == {CATCH_ALL}
                    places.update(answer.position for answer in ready)
        assert places == set(range(count))


async def test_an_endless_list_can_be_left(autojump_clock):
    texts = endless("known{}@shop.test")
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(latency_s=0.01))
        async with engine_over(network) as engine:
            async with open_answers(engine, texts, account="me", patient=True) as answers:
                for _ in range(100):
                    await anext(answers)
            read = texts.read
            await trio.sleep(30)
            assert texts.read <= read + SUBMIT_STEP
            assert_whole(engine)


async def test_duplicates_are_read_as_there_is_room(autojump_clock):
    """An endless list of one address is no reason to fill the memory."""
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for read in range(200_000):  # noqa: B007  # counted from outside
            yield "known@shop.test"

    async with open_fake_network() as network:
        network.add("shop.test", MailHost(latency_s=0.05))
        async with (
            open_engine(EngineSettings(), transport=network.transport, dial=network.dial) as engine,
            open_answers(engine, texts(), account="me"),
        ):
            await trio.sleep(0.01)
            assert read <= 25_000


async def test_a_long_list_can_be_left_quickly(autojump_clock):
    """Leaving is one step, in which nobody else gets a turn."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host("silent"))
        async with open_engine(
            EngineSettings(), transport=network.transport, dial=network.dial
        ) as engine:
            texts = [f"known{number}@shop.test" for number in range(8_000)]
            async with open_answers(engine, texts, account="me"):
                await trio.sleep(0.5)
                began = time.process_time()
            assert time.process_time() - began < 1.0  # of 8,000; by the square it would take ten


class Unreadable(Exception):
    """What a caller's own iterator may raise."""


async def test_what_the_texts_raise_is_raised_as_it_is(autojump_clock):
    """In no group, so that the caller can catch it by its name; the engine is whole."""

    def texts() -> Iterator[str]:
        yield from knowns(3)
        raise Unreadable

    async def read_all(engine: Engine) -> None:
        async with open_answers(engine, texts(), account="me") as answers:
            await in_order(answers, 3)

    async with open_fake_network() as network:
        network.add("shop.test", MailHost(latency_s=0.05))
        async with engine_over(network) as engine:
            with pytest.raises(Unreadable):
                await read_all(engine)
            await trio.sleep(30)
            assert_whole(engine)


async def test_an_account_that_leaves_takes_its_probes_along(autojump_clock):
    """What was not on its way is never asked; the neighbour gets all its answers."""
    async with open_fake_network() as network:
        host = new_host("no pipelining", latency_s=0.1)
        network.add("shop.test", host)
        async with engine_over(network, host_connections=1) as engine:
            async with trio.open_nursery() as nursery:

                async def neighbour() -> None:
                    for answer in await collect(engine, *knowns(5), account="b"):
                        assert told(answer.verdict) == DELIVERABLE

                nursery.start_soon(neighbour)
                with trio.move_on_after(0.75):
                    await collect(engine, *(f"nobody{n}@shop.test" for n in range(50)), account="a")
                asked = {name for name in host.record.recipients if name.startswith("nobody")}
            later = {name for name in host.record.recipients if name.startswith("nobody")}
            assert len(later - asked) <= 1  # the one whose turn it was
            await trio.sleep(30)
            assert_whole(engine)


async def test_leaving_at_once_asks_nothing(autojump_clock):
    """Before anything has been taken up."""
    async with open_fake_network() as network:
        host = MailHost()
        network.add("shop.test", host)
        async with open_engine(
            EngineSettings(), transport=network.transport, dial=network.dial
        ) as engine:
            async with open_answers(engine, ["known0@shop.test"], account="me") as answers:
                await in_order(answers, 1)
            async with open_answers(
                engine, [f"known{number}@shop.test" for number in range(1, 200)], account="me"
            ):
                pass
            await trio.sleep(5)
        assert {name for name in host.record.recipients if name.startswith("known")} == {
            "known0@shop.test"
        }


# -- evidence --------------------------------------------------------------------------------


async def explain(engine: Engine, text: str) -> Answer:
    [answer] = await collect(engine, text, explain=True)
    assert answer.evidence is not None
    return answer


async def test_evidence_is_given_only_where_it_is_wanted(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        async with engine_over(network) as engine:
            [answer] = await collect(engine, "known@shop.test")
        assert answer.evidence is None


async def test_the_evidence_of_a_plain_case(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(latency_s=0.1, connect_s=0.1)
        address = network.add("shop.test", host)
        async with engine_over(network) as engine:
            answer = await explain(engine, "nobody@shop.test")
        evidence = answer.evidence
        assert [(t.exchange, t.address, t.result) for t in evidence.exchanges] == [
            ("mx.shop.test", address, "answered")
        ]
        assert evidence.cached == []
        assert evidence.rule
        said = [line.text for line in evidence.conversation if line.who == "client"]
        assert [line.split(":")[0].split(" ")[0] for line in said] == [
            "(connect)",
            "EHLO",
            "MAIL",
            "RCPT",
        ]
        assert said[-1] == "RCPT TO:<nobody@shop.test>"
        received = [line.text for line in evidence.conversation if line.who == "server"]
        assert received[0].startswith("220 ")
        assert received[-1].startswith("550 5.1.1 <nobody@shop.test>")
        times = [line.at_ms for line in evidence.conversation]
        assert all(0 <= at_ms <= answer.verdict.latency_ms for at_ms in times)
        assert evidence.conversation[-1].at_ms == 400
        assert answer.verdict.latency_ms == 400


async def test_the_evidence_of_a_reused_connection(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        async with engine_over(network) as engine:
            await collect(engine, "known1@shop.test")
            await trio.sleep(1)
            answer = await explain(engine, "known2@shop.test")
        assert set(answer.evidence.cached) == {"mx", "addresses", "connection", "catch_all"}
        said = [line.text for line in answer.evidence.conversation if line.who == "client"]
        assert said[-1] == "RCPT TO:<known2@shop.test>"
        assert not any("known1" in line for line in said)


async def test_the_evidence_of_what_is_remembered_on_a_new_connection(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        async with engine_over(network) as engine:
            await collect(engine, "known1@shop.test")
            await trio.sleep(60)
            answer = await explain(engine, "known2@shop.test")
        assert set(answer.evidence.cached) == {"mx", "addresses", "catch_all"}


async def test_the_evidence_shows_the_random_address(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(catch_all=True))
        async with engine_over(network) as engine:
            answer = await explain(engine, "ann@shop.test")
        said = [line.text for line in answer.evidence.conversation if line.who == "client"]
        assert len([line for line in said if line.startswith("RCPT")]) == 2


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("refused", "nobody listens"),
        ("silent", "silent for 0.25 s"),
        ("unanswered", "silent for 0.25 s"),
        ("blocked at banner", "554"),
        ("garbage", "not a reply"),
    ],
)
async def test_the_evidence_of_a_failover(autojump_clock, first, words):
    async with open_fake_network() as network:
        bad = network.add("shop.test", new_host(first), mx="mx1.shop.test", preference=10)
        good = network.add("shop.test", MailHost(), mx="mx2.shop.test", preference=20)
        async with engine_over(network) as engine:
            answer = await explain(engine, "known@shop.test")
        assert told(answer.verdict) == DELIVERABLE
        tried = answer.evidence.exchanges
        assert [(t.exchange, t.address) for t in tried] == [
            ("mx1.shop.test", bad),
            ("mx2.shop.test", good),
        ]
        assert words in tried[0].result
        assert tried[1].result == "answered"


async def test_the_evidence_of_a_host_that_rests(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", new_host("blocked at banner"))
        async with engine_over(network) as engine:
            for number in range(3):
                await collect(engine, f"a{number}@shop.test")
            answer = await explain(engine, "ann@shop.test")
        assert "rest" in answer.evidence.cached
        assert "resting" in answer.evidence.exchanges[-1].result
        assert answer.evidence.conversation == []
        assert answer.verdict.latency_ms == 0


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("nobody at all", "syntax: "),
        ("ann@mailinator.com", "disposable"),
        ("ann@nowhere.test", "no_mx: "),
    ],
)
async def test_the_evidence_of_what_never_reached_a_host(autojump_clock, text, rule):
    async with open_fake_network() as network, engine_over(network) as engine:
        answer = await explain(engine, text)
    assert answer.evidence.rule.startswith(rule)
    assert (answer.evidence.exchanges, answer.evidence.conversation) == ([], [])


@pytest.mark.parametrize("seed", range(10))
async def test_an_explanation_changes_no_verdict(autojump_clock, seed):
    """The same world from the same seed, with and without."""
    reported_of: list[list[tuple[object, ...]]] = []
    for explained in (False, True):
        rng = random.Random(seed)
        async with open_fake_network(seed=seed) as network:
            for number in range(4):
                name = rng.choice(["friendly", "catch all", "exim", "greylisting", "no pipelining"])
                host = new_host(name, latency_s=rng.choice([0.0, 0.05]))
                host = replace(host, faults={"nobody3": Late(rng.choice([0.5, 1.5]))})
                network.add(f"d{number}.test", host)
            texts = [
                f"{kind}{n}@d{d}.test"
                for d in range(4)
                for n in range(6)
                for kind in ("known", "nobody")
            ]
            async with engine_over(network) as engine:
                answers = await collect(engine, *texts, explain=explained)
        reported_of.append(sorted((a.position, *told(a.verdict)) for a in answers))
    assert reported_of[0] == reported_of[1]


async def test_evidence_is_not_changed_after_it_was_given(autojump_clock):
    """What is learned later, for others, is not written into it."""
    async with open_fake_network() as network:
        addresses = [
            network.add(f"other{number}.test", new_host("unanswered")) for number in range(5)
        ]
        network.zone.mx("shop.test", "mx.shop.test")
        network.zone.host("mx.shop.test", *addresses)
        async with (
            open_engine(
                EngineSettings(read_s=0.9), transport=network.transport, dial=network.dial
            ) as engine,
            trio.open_nursery() as nursery,
        ):

            async def ask_bob() -> None:
                await trio.sleep(1.5)
                async with open_answers(engine, ["bob@shop.test"], account="bob") as answers:
                    await in_order(answers, 1)

            nursery.start_soon(ask_bob)
            async with open_answers(
                engine, ["ann@shop.test"], account="me", explain=True
            ) as answers:
                [answer] = [answer async for answer in answers]
            assert told(answer.verdict) == TIMED_OUT
            tried = len(answer.evidence.exchanges)
            await trio.sleep(5)
            assert len(answer.evidence.exchanges) == tried


# -- time ------------------------------------------------------------------------------------


async def test_latency_is_from_being_taken_up_to_the_answer(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(latency_s=0.1, connect_s=0.1))
        async with engine_over(network) as engine:
            await trio.sleep(100)
            answers = await collect(engine, "nobody@shop.test", "x", "ann@nowhere.test")
        latencies = {answer.position: answer.verdict.latency_ms for answer in answers}
        assert latencies == {0: 400, 1: 0, 2: 0}


async def test_being_held_back_is_no_latency(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", new_host("no pipelining", latency_s=0.2))
        async with engine_over(network, host_connections=1) as engine:
            answers = await collect(engine, *knowns(100), patient=True)
        assert trio.current_time() > 20
        assert max(answer.verdict.latency_ms for answer in answers) <= 3000
        assert answers[-1].verdict.latency_ms < 1500
