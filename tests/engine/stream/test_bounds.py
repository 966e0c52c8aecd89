"""How much a stream holds at a time, and what leaving it cancels."""

import time
from collections.abc import Iterator

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeEndpoint, open_fake_network
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import (
    Engine,
    EngineSettings,
    in_order,
    open_answers,
)
from mailprobe.engine.stream.scheduler import LOOKUPS_MAX, OPEN_MAX, SUBMIT_STEP, UNREAD_MAX
from tests.engine.engine_runs import (
    CATCH_ALL,
    DELIVERABLE,
    TIMED_OUT,
    fields_of,
    knowns,
    open_test_engine,
    verify,
)
from tests.engine.invariants import assert_whole
from tests.engine.stream.streams import collect, endless


@pytest.mark.parametrize("deferred_start", [False, True])
@pytest.mark.parametrize("probes_max", [1, 2, 7])
async def test_probes_max_is_never_exceeded(autojump_clock, probes_max, deferred_start):
    async with open_fake_network() as network:
        for number in range(5):
            network.add(f"d{number}.test", MailHost(latency_s=0.02))
        texts = [f"known{n}@d{n % 5}.test" for n in range(40)]
        async with open_test_engine(network, probes_max=probes_max) as engine:
            async with open_answers(
                engine, texts, account="me", deferred_start=deferred_start
            ) as answers:
                peak = 0
                async for answer in answers:
                    peak = max(peak, engine.probing.turn.under_way)
                    assert fields_of(answer.verdict) in (DELIVERABLE, TIMED_OUT)
                    if deferred_start:
                        assert fields_of(answer.verdict) == DELIVERABLE
            assert 0 < peak <= probes_max or probes_max == 1
            await trio.sleep(30)
            assert_whole(engine)


async def test_answers_are_not_made_beyond_what_is_read(autojump_clock):
    """Answers that need no network wait for their reader; the texts wait with them."""
    texts = endless("not an address {}")
    async with (
        open_fake_network() as network,
        open_test_engine(network) as engine,
        open_answers(engine, texts, account="me") as answers,
    ):
        await trio.sleep(60)
        assert texts.read <= UNREAD_MAX + 1
        for _ in range(300):
            await anext(answers)
        await trio.sleep(60)
        assert 1000 <= texts.read <= UNREAD_MAX + 301


async def test_texts_are_read_as_there_is_room(autojump_clock):
    """At a silent host, no more addresses are admitted than may be open."""
    texts = endless("known{}@shop.test")
    async with open_fake_network() as network:
        network.add("shop.test", new_host("silent"))
        async with (
            open_test_engine(network) as engine,
            open_answers(engine, texts, account="me", deferred_start=True),
        ):
            await trio.sleep(0.5)
            assert 1000 < texts.read <= OPEN_MAX + 1


async def test_domains_are_looked_up_a_hundred_at_a_time(autojump_clock):
    texts = endless("ann@d{}.test")
    async with open_fake_network() as network:
        for url in EngineSettings().doh_urls:
            network.transport.endpoints[url] = FakeEndpoint(delay_s=0.2)
        async with open_test_engine(network) as engine, open_answers(engine, texts, account="me"):
            await trio.sleep(0.1)
            assert texts.read <= LOOKUPS_MAX + 1


async def test_more_than_may_be_open_are_all_answered(autojump_clock, monkeypatch):
    """With a small bound, so that the list need not be long."""
    monkeypatch.setattr("mailprobe.engine.stream.scheduler.OPEN_MAX", 300)
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(catch_all=True))
        count = 2_000
        async with open_test_engine(network) as engine:
            texts = (f"a{number}@shop.test" for number in range(count))
            places: set[int] = set()
            async with open_answers(engine, texts, account="me", deferred_start=True) as answers:
                while ready := await answers.next_ready():
                    assert {fields_of(answer.verdict) for answer in ready} == {CATCH_ALL}
                    places.update(answer.position for answer in ready)
        assert places == set(range(count))


async def test_an_endless_list_can_be_left(autojump_clock):
    texts = endless("known{}@shop.test")
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(latency_s=0.01))
        async with open_test_engine(network) as engine:
            async with open_answers(engine, texts, account="me", deferred_start=True) as answers:
                for _ in range(100):
                    await anext(answers)
            read = texts.read
            await trio.sleep(30)
            assert texts.read <= read + SUBMIT_STEP
            assert_whole(engine)


async def test_duplicates_are_read_as_there_is_room(autojump_clock):
    """An endless list of one address does not fill the memory."""
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for read in range(200_000):  # noqa: B007  # counted from outside
            yield "known@shop.test"

    async with open_fake_network() as network:
        network.add("shop.test", MailHost(latency_s=0.05))
        async with (
            open_test_engine(network) as engine,
            open_answers(engine, texts(), account="me"),
        ):
            await trio.sleep(0.01)
            assert read <= 25_000


async def test_a_long_list_can_be_left_quickly(autojump_clock):
    """Leaving is one step, in which no other task runs."""
    async with open_fake_network() as network:
        network.add("shop.test", new_host("silent"))
        async with open_test_engine(network) as engine:
            texts = knowns(8_000)
            async with open_answers(engine, texts, account="me"):
                await trio.sleep(0.5)
                began = time.process_time()
            assert time.process_time() - began < 1.0  # of 8,000; a quadratic cost would be ten


class Unreadable(Exception):
    """An error of the caller's own iterator."""


async def test_an_exception_of_the_texts_is_raised_unchanged(autojump_clock):
    """In no exception group, so that the caller can catch its class; the engine is whole."""

    def texts() -> Iterator[str]:
        yield from knowns(3)
        raise Unreadable

    async def read_all(engine: Engine) -> None:
        async with open_answers(engine, texts(), account="me") as answers:
            await in_order(answers, 3)

    async with open_fake_network() as network:
        network.add("shop.test", MailHost(latency_s=0.05))
        async with open_test_engine(network) as engine:
            with pytest.raises(Unreadable):
                await read_all(engine)
            await trio.sleep(30)
            assert_whole(engine)


async def test_an_account_that_leaves_takes_its_probes_along(autojump_clock):
    """What was not yet sent is never sent; the neighbour gets all its answers."""
    async with open_fake_network() as network:
        host = new_host("no pipelining", latency_s=0.1)
        network.add("shop.test", host)
        async with open_test_engine(network, host_connections=1) as engine:
            async with trio.open_nursery() as nursery:

                async def neighbour() -> None:
                    for answer in await collect(engine, *knowns(5), account="b"):
                        assert fields_of(answer.verdict) == DELIVERABLE

                nursery.start_soon(neighbour)
                with trio.move_on_after(0.75):
                    await collect(engine, *(f"nobody{n}@shop.test" for n in range(50)), account="a")
                asked = {name for name in host.record.recipients if name.startswith("nobody")}
            later = {name for name in host.record.recipients if name.startswith("nobody")}
            assert len(later - asked) <= 1  # the one that was due
            await trio.sleep(30)
            assert_whole(engine)


async def test_leaving_at_once_asks_nothing(autojump_clock):
    """Before any address has been submitted."""
    async with open_fake_network() as network:
        host = MailHost()
        network.add("shop.test", host)
        async with open_test_engine(network) as engine:
            await verify(engine, "known0@shop.test")
            async with open_answers(
                engine, [f"known{number}@shop.test" for number in range(1, 200)], account="me"
            ):
                pass
            await trio.sleep(5)
        assert {name for name in host.record.recipients if name.startswith("known")} == {
            "known0@shop.test"
        }
