"""General trouble of a resolver: lists wait until it is over, and lose no answer to it."""

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import trio

from mailprobe.engine import in_order, open_answers
from mailprobe.engine.dns.messages import ROOT_QUESTION, LookupFailed, Route
from mailprobe.engine.dns.resolver_endpoint import CHECK_S, LOOKUP_S
from mailprobe.engine.dns.response import TransportFailed
from mailprobe.engine.testing.fake_network import FakeNetwork, open_fake_network
from mailprobe.engine.testing.mail_host import MailHost
from mailprobe.engine.testing.zone import ZoneMode
from tests.engine.engine_runs import open_test_engine
from tests.engine.invariants import assert_whole

ENDPOINTS = ("https://11.0.0.1/q",)


@dataclass
class Troubled:
    """A world's resolver that stands still, or refuses all, between two instants."""

    world: FakeNetwork
    kind: str = "stands still"
    begins_at: float = float("inf")
    ends_at: float = float("inf")
    delay_s: float = 0.02
    asked: list[bytes] = field(default_factory=list)

    def fault(self, begins_s: float, lasts_s: float) -> None:
        self.begins_at = trio.current_time() + begins_s
        self.ends_at = self.begins_at + lasts_s

    async def exchange(self, url: str, query: bytes) -> bytes:
        self.asked.append(query)
        await trio.sleep(self.delay_s)
        if self.begins_at <= trio.current_time() < self.ends_at:
            if self.kind == "refuses":
                raise TransportFailed("connection refused")
            if self.kind == "loses":
                await trio.sleep_forever()
            await trio.sleep_until(self.ends_at)
        return await self.world.transport.exchange(url, query)


@pytest.mark.parametrize("lasts_s", [0.5, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("kind", ["stands still", "loses", "refuses"])
async def test_a_list_loses_no_answer_to_a_resolver_that_comes_back(autojump_clock, kind, lasts_s):
    async with open_fake_network() as network:
        host = MailHost()
        healthy = [f"known@d{number}.test" for number in range(1_600)]
        hung = [f"known@hung{number}.test" for number in range(400)]
        for number in range(1_600):
            network.add(f"d{number}.test", host, mx=f"mx{number % 40}.test")
        for number in range(400):
            network.zone.mode(f"hung{number}.test", ZoneMode.HANG)
        texts = [*healthy, *hung]
        random.Random(1).shuffle(texts)
        transport = Troubled(network, kind)
        async with open_test_engine(network, transport=transport, doh_urls=ENDPOINTS) as engine:
            transport.fault(0.1, lasts_s)
            async with open_answers(engine, texts, account="list", deferred_start=True) as answers:
                verdicts = await in_order(answers, len(texts))
            assert transport.ends_at < trio.current_time()
            await trio.sleep(60)
            assert_whole(engine)
    outcomes = Counter((v.email in hung, v.status) for v in verdicts)
    assert outcomes == {(False, "deliverable"): 1_600, (True, "unknown"): 400}


async def test_hung_names_alone_take_a_list_no_longer_for_that(autojump_clock):
    """The endpoint says nothing of them, but shows by another question that it works."""
    async with open_fake_network() as network:
        network.zone.mode("hung.test", ZoneMode.HANG)
        transport = Troubled(network)
        async with open_test_engine(network, transport=transport, doh_urls=ENDPOINTS) as engine:
            began = trio.current_time()
            answer = await engine.routes.find("hung.test", deferred_start=True)
            assert trio.current_time() - began == pytest.approx(LOOKUP_S)
            assert isinstance(answer, LookupFailed)
            questions = transport.asked.count(ROOT_QUESTION)
            assert 0 < questions <= LOOKUP_S / CHECK_S
            await trio.sleep(60)
            assert transport.asked.count(ROOT_QUESTION) <= questions + 2


async def test_a_resolver_that_answers_is_asked_nothing_else(autojump_clock):
    async with open_fake_network() as network:
        for number in range(1_000):
            network.zone.mx(f"d{number}.test", "mx.test")
        transport = Troubled(network, delay_s=0.2)
        async with (
            open_test_engine(network, transport=transport, doh_urls=ENDPOINTS) as engine,
            trio.open_nursery() as nursery,
        ):
            for number in range(1_000):
                domain = f"d{number}.test"
                nursery.start_soon(partial(engine.routes.find, domain, deferred_start=True))
        assert len(transport.asked) == 1_000


async def test_a_request_does_not_wait_with_the_list(autojump_clock):
    """The list's look-up waits for its next try; a request that joins it has it asked at once."""
    async with open_fake_network() as network:
        network.zone.mx("shop.test", "mx.test")
        transport = Troubled(network, "refuses")
        transport.fault(0.0, 0.9)
        found = []

        async def find() -> None:
            found.append(await engine.routes.find("shop.test", "list", deferred_start=True))

        async with (
            open_test_engine(network, transport=transport, doh_urls=ENDPOINTS) as engine,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(find)
            await trio.sleep(1.0)
            began = trio.current_time()
            route = await engine.routes.find("shop.test", "request")
            assert trio.current_time() - began < 0.1
            assert isinstance(route, Route)
        assert found == [route]


@pytest.mark.parametrize("account", ["me", "another"])
async def test_a_list_that_joins_a_requests_look_up_is_patient(autojump_clock, account):
    async with open_fake_network() as network:
        network.zone.mx("shop.test", "mx.test")
        transport = Troubled(network, "loses")
        transport.fault(0.0, 1.2)
        reported: dict[bool, Any] = {}

        async def find(account: str, *, deferred_start: bool) -> None:
            reported[deferred_start] = await engine.routes.find(
                "shop.test", account, deferred_start=deferred_start
            )

        async with (
            open_test_engine(network, transport=transport, doh_urls=ENDPOINTS) as engine,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(lambda: find("me", deferred_start=False))
            await trio.sleep(0.1)
            nursery.start_soon(lambda: find(account, deferred_start=True))
        assert isinstance(reported[False], LookupFailed)
        assert isinstance(reported[True], Route)


async def test_a_list_does_not_take_a_requests_hasty_failure_from_memory(autojump_clock):
    async with open_fake_network() as network:
        network.zone.mx("shop.test", "mx.test")
        transport = Troubled(network, "refuses")
        transport.fault(0.0, 1.0)
        async with open_test_engine(network, transport=transport, doh_urls=ENDPOINTS) as engine:
            routes = engine.routes
            failed = await routes.find("shop.test", "request")
            assert isinstance(failed, LookupFailed)
            await trio.sleep(1)
            assert routes.cached_route("shop.test") == failed
            assert routes.cached_route("shop.test", deferred_start=True) is None
            assert isinstance(await routes.find("shop.test", "list", deferred_start=True), Route)
