"""Look-ups while this process gets no processor: the clock jumps between two turns of its loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.engine import open_answers
from mailprobe.engine.dns.endpoint import LOOKUP_S
from mailprobe.engine.dns.messages import LookupFailed
from tests.engine.dns.scripted_endpoints import (
    BROKEN,
    FIRST,
    GOOD,
    ROUTE,
    SILENT,
    Endpoints,
    open_test,
)
from tests.engine.engine_runs import open_test_engine


@dataclass
class SlowlyRead:
    """Endpoints whose answers come at once, and are read after many turns of the loop."""

    endpoints: Endpoints
    turns: int

    async def exchange(self, url: str, query: bytes) -> bytes:
        for _ in range(self.turns):
            await trio.lowlevel.checkpoint()
        return await self.endpoints.exchange(url, query)


@asynccontextmanager
async def open_lag(clock: trio.testing.MockClock, lost_s: float) -> AsyncIterator[None]:
    """Lose so much time between every two turns of the loop, as long as the block lasts."""

    async def lose() -> None:
        while True:
            clock.jump(lost_s)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lose)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("lost_s", [0.06, 0.09, 0.3, 5.0])
async def test_a_list_waits_for_an_answer_that_has_come_however_slow_this_process_is(
    autojump_clock, lost_s
):
    endpoints = SlowlyRead(Endpoints(), turns=int(LOOKUP_S / 0.06))
    async with open_test(endpoints, FIRST) as routes, open_lag(autojump_clock, lost_s):
        began = trio.current_time()
        assert await routes.find("shop.test", deferred_start=True) == ROUTE
        assert trio.current_time() - began >= LOOKUP_S


async def test_a_list_outlasts_failures_of_a_machine_that_is_busy(autojump_clock):
    """There a handshake fails as well, and a resolver on the same machine does not answer."""
    endpoints = Endpoints({FIRST: BROKEN})
    async with open_test(endpoints, FIRST) as routes, trio.open_nursery() as nursery:

        async def be_busy() -> None:
            async with open_lag(autojump_clock, 0.3):
                await trio.sleep(120)
            endpoints.script[FIRST] = GOOD

        nursery.start_soon(be_busy)
        assert await routes.find("shop.test", deferred_start=True) == ROUTE
        assert trio.current_time() > 100


async def test_a_list_does_not_wait_for_ever_where_no_answer_comes(autojump_clock):
    silent = Endpoints({FIRST: SILENT})
    async with open_test(silent, FIRST) as routes, open_lag(autojump_clock, 0.09):
        failed = await routes.find("shop.test", deferred_start=True)
    assert isinstance(failed, LookupFailed)
    assert not failed.by_lag


async def test_the_failure_of_a_request_is_ours_where_this_process_had_no_time(autojump_clock):
    endpoints = SlowlyRead(Endpoints(), turns=20)
    async with open_test(endpoints, FIRST) as routes:
        async with open_lag(autojump_clock, 0.3):
            failed = await routes.find("shop.test")
        assert isinstance(failed, LookupFailed)
        assert failed.by_lag
        assert await routes.find("shop.test") == ROUTE  # it says nothing of the name: not kept


@pytest.mark.parametrize("lost_s", [0.0, 0.02])
async def test_a_silence_is_the_resolvers_where_this_process_had_time(autojump_clock, lost_s):
    async with open_test(Endpoints({FIRST: SILENT}), FIRST) as routes:
        if lost_s:
            async with open_lag(autojump_clock, lost_s):
                failed = await routes.find("shop.test")
        else:
            failed = await routes.find("shop.test")
    assert isinstance(failed, LookupFailed)
    assert not failed.by_lag


@pytest.mark.parametrize(
    ("lost_s", "rule", "blame"), [(0.3, "clock.dns-lag", "us"), (0.0, "resolver", "network")]
)
async def test_a_result_says_who_is_to_blame(autojump_clock, lost_s, rule, blame):
    async with (
        open_fake_network() as network,
        open_test_engine(network, transport=Endpoints({"MX": SILENT})) as engine,
        open_answers(engine, ["ann@shop.test"], account="me", explain=True) as answers,
    ):
        if lost_s:
            async with open_lag(autojump_clock, lost_s):
                [answer] = [answer async for answer in answers]
        else:
            [answer] = [answer async for answer in answers]
    assert answer.evidence is not None
    assert answer.evidence.rule is not None
    assert answer.evidence.rule.partition(":")[0] == rule
    assert (answer.evidence.reason, answer.evidence.blame) == ("resolver", blame)
    verdict = answer.verdict
    assert (verdict.status, verdict.failed_check, verdict.mx_found) == ("unknown", None, False)


async def test_an_exchange_whose_look_up_had_no_time_is_our_failure_too(autojump_clock):
    async with (
        open_fake_network() as network,
        open_test_engine(network, transport=Endpoints({"A": SILENT, "AAAA": SILENT})) as engine,
        open_answers(engine, ["ann@shop.test"], account="me", explain=True) as answers,
        open_lag(autojump_clock, 0.3),
    ):
        [answer] = [answer async for answer in answers]
    assert answer.evidence is not None
    assert answer.evidence.rule is not None
    assert answer.evidence.rule.partition(":")[0] == "clock.dns-lag"
    assert answer.verdict.mx_found
