"""Look-ups of routes in virtual time: hedging, limits, the cache and single flight."""

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import trio

from mailprobe.engine.dns.deadlines import DeadlineClock
from mailprobe.engine.dns.endpoint import LOOKUPS_MAX, TRY_S
from mailprobe.engine.dns.messages import (
    LookupFailed,
    NoMail,
    Route,
)
from mailprobe.engine.dns.resolver import AGAIN_AFTER_S, HEDGE_S
from mailprobe.engine.dns.routes import open_routes
from mailprobe.engine.dns.single_flight import FAILURE_KEPT_S, InFlightLookup, SingleFlightCache
from mailprobe.engine.settings import DOH_URLS, EngineSettings
from tests.engine.dns.scripted_endpoints import (
    BROKEN,
    EMPTY,
    FIRST,
    GOOD,
    NXDOMAIN,
    ROUTE,
    SECOND,
    SERVFAIL,
    SILENT,
    THIRD,
    Endpoints,
    Says,
    open_test,
    reply,
)


async def test_no_other_endpoint_is_queried_if_the_first_answers(autojump_clock):
    endpoints = Endpoints()
    async with open_test(endpoints) as routes:
        assert routes.cached_route("shop.test") is None
        assert await routes.find("shop.test") == ROUTE
        assert routes.cached_route("shop.test") == ROUTE
        assert [url for _, url, _ in endpoints.asked] == [FIRST]


async def test_a_slow_first_is_hedged_and_may_still_win(autojump_clock):
    endpoints = Endpoints({FIRST: Says(delay_s=0.4), SECOND: Says((), "NXDOMAIN", delay_s=0.2)})
    async with open_test(endpoints) as routes:
        began = trio.current_time()
        assert await routes.find("shop.test") == ROUTE
        assert trio.current_time() - began == pytest.approx(0.4)
        assert endpoints.times(began) == [(0.0, FIRST), (HEDGE_S, SECOND)]


async def test_the_second_wins_where_the_first_is_silent(autojump_clock):
    endpoints = Endpoints({FIRST: SILENT, SECOND: Says(delay_s=0.02)})
    async with open_test(endpoints) as routes:
        began = trio.current_time()
        assert await routes.find("shop.test") == ROUTE
        assert trio.current_time() - began == pytest.approx(HEDGE_S + 0.02)


async def test_after_a_silent_first_endpoint_the_second_is_queried_at_once_until_the_first_answers(
    autojump_clock,
):
    endpoints = Endpoints({FIRST: SILENT})
    async with open_test(endpoints) as routes:
        await routes.find("one.test")
        await trio.sleep(2)  # its limit runs out
        began = trio.current_time()
        await routes.find("two.test")
        assert trio.current_time() == began
        endpoints.script[FIRST] = GOOD
        await routes.find("three.test")
        await trio.sleep(2)
        endpoints.asked.clear()
        await routes.find("four.test")
        assert [url for _, url, _ in endpoints.asked] == [FIRST]


@pytest.mark.parametrize("fault", [SERVFAIL, BROKEN, Says((), "REFUSED")])
async def test_a_failure_moves_on_at_once(autojump_clock, fault):
    endpoints = Endpoints({FIRST: fault})
    async with open_test(endpoints) as routes:
        began = trio.current_time()
        assert await routes.find("shop.test") == ROUTE
        assert endpoints.times(began) == [(0.0, FIRST), (0.0, SECOND)]


@pytest.mark.parametrize("no", [NXDOMAIN, EMPTY, Says(("300 MX 0 .",))])
async def test_a_certain_no_of_the_second_is_certain(autojump_clock, no):
    async with open_test(Endpoints({FIRST: SERVFAIL, SECOND: no})) as routes:
        assert isinstance(await routes.find("shop.test"), NoMail)


async def test_it_fails_only_when_all_have_and_says_what_each_did(autojump_clock):
    endpoints = Endpoints({FIRST: SERVFAIL, SECOND: BROKEN, THIRD: SILENT})
    async with open_test(endpoints, FIRST, SECOND, THIRD) as routes:
        began = trio.current_time()
        assert await routes.find("shop.test") == LookupFailed(
            "11.0.0.1: SERVFAIL; 11.0.0.2: connection refused; 11.0.0.3: no answer within 1.5 s"
        )
        assert trio.current_time() - began == pytest.approx(1.5)


@pytest.mark.parametrize("deferred_start", [False, True])
@pytest.mark.parametrize("count", [1, 2, 11])
async def test_a_silent_name_takes_a_second_and_a_half_in_all(
    autojump_clock, count, deferred_start
):
    urls = tuple(f"https://11.0.0.{n}/q" for n in range(1, count + 1))
    script = {(url, "MX"): SILENT for url in urls}
    async with open_test(Endpoints(script), *urls) as routes:
        began = trio.current_time()
        failed = await routes.find("shop.test", deferred_start=deferred_start)
        assert isinstance(failed, LookupFailed)
        assert "no answer within 1.5 s" in failed.reason
        assert trio.current_time() - began == pytest.approx(1.5)


@pytest.mark.parametrize("deferred_start", [False, True])
@pytest.mark.parametrize("count", [1, 2, 11])
async def test_a_list_waits_for_silent_endpoints_but_not_for_ever(
    autojump_clock, count, deferred_start
):
    urls = tuple(f"https://11.0.0.{n}/q" for n in range(1, count + 1))
    async with open_test(Endpoints(dict.fromkeys(urls, SILENT)), *urls) as routes:
        began = trio.current_time()
        failed = await routes.find("shop.test", deferred_start=deferred_start)
        assert isinstance(failed, LookupFailed)
        assert "no answer within 1.5 s" in failed.reason
        in_all_s = (len(AGAIN_AFTER_S) + 1) * TRY_S + sum(AGAIN_AFTER_S) if deferred_start else 1.5
        assert trio.current_time() - began == pytest.approx(in_all_s)
        assert in_all_s <= 15


async def test_bytes_that_are_no_dns_are_a_failure(autojump_clock):
    class Portal:
        async def exchange(self, url: str, query: bytes) -> bytes:
            await trio.lowlevel.checkpoint()
            return b"<html>sign in</html>"

    async with open_routes(
        EngineSettings(doh_urls=(FIRST,)), transport=Portal(), rng=Random(1)
    ) as routes:
        assert isinstance(await routes.find("shop.test"), LookupFailed)


async def test_however_many_ask_one_look_up_is_made(autojump_clock):
    endpoints = Endpoints({FIRST: Says(delay_s=0.2)})
    answers = []

    async def account(name):
        answers.append(await routes.find(name))

    async with open_test(endpoints) as routes, trio.open_nursery() as nursery:
        for place in range(100):
            nursery.start_soon(account, "shop.test" if place % 2 else "SHOP.test")
    assert answers == [ROUTE] * 100
    assert len(endpoints.asked) == 1


async def test_an_account_who_gives_up_takes_nothing_from_the_others(autojump_clock):
    endpoints = Endpoints({FIRST: Says(delay_s=0.2)})
    async with open_test(endpoints) as routes:
        async with trio.open_nursery() as nursery:

            async def impatient():
                with trio.move_on_after(0.1) as scope:
                    await routes.find("shop.test")
                assert scope.cancelled_caught

            async def deferred_start():
                assert await routes.find("shop.test") == ROUTE

            nursery.start_soon(impatient)  # may be the one who began it
            nursery.start_soon(deferred_start)
            nursery.start_soon(impatient)
        assert len(endpoints.asked) == 1


async def test_a_look_up_that_nobody_wants_any_more_is_given_up_at_once(autojump_clock):
    endpoints = Endpoints({FIRST: SILENT})
    async with open_test(endpoints) as routes:
        for after_s, asked in ((0.1, 1), (0.5, 2)):
            with trio.move_on_after(after_s):
                await routes.find("shop.test")
            await trio.testing.wait_all_tasks_blocked()
            assert endpoints.at_once == 0
            assert len(endpoints.asked) == asked
            endpoints.asked.clear()
            endpoints.script[SECOND] = SILENT


async def test_a_caller_whose_clock_ran_out_fails_alone(autojump_clock):
    """The look-up goes on for who came later, and for the memory."""
    endpoints = Endpoints()
    reported: dict[str, tuple[Any, float]] = {}

    async def asker(account: str, *, deferred_start: bool) -> None:
        answer = await routes.find("shop.test", account, deferred_start=deferred_start)
        reported[account] = answer, round(trio.current_time() - began, 2)

    async with open_test(endpoints, FIRST, SECOND) as routes, trio.open_nursery() as nursery:
        began = trio.current_time()
        endpoints.script[FIRST] = endpoints.script[SECOND] = Says(delay_s=0.25)
        for place in range(LOOKUPS_MAX):  # so that the look-up begins later than its asker
            nursery.start_soon(routes.find, f"d{place}.test", "others")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(lambda: asker("request", deferred_start=False))
        nursery.start_soon(lambda: asker("list", deferred_start=True))
        await trio.testing.wait_all_tasks_blocked()
        endpoints.script.update({FIRST: SILENT, SECOND: Says(delay_s=1.3)})
    assert reported["request"] == (LookupFailed(reported["request"][0].reason), 1.5)
    assert reported["list"] == (ROUTE, 1.6)
    assert routes.cached_route("shop.test") == ROUTE


async def test_closing_ends_what_is_under_way(autojump_clock):
    began = trio.current_time()
    async with open_test(Endpoints({FIRST: SILENT, SECOND: SILENT})) as routes:
        with trio.move_on_after(0.5):
            await routes.find("shop.test")
    assert trio.current_time() - began == pytest.approx(0.5)


@pytest.mark.parametrize("says", [GOOD, NXDOMAIN, EMPTY])
async def test_a_certain_answer_is_cached_for_six_hours(autojump_clock, says):
    endpoints = Endpoints({FIRST: says})
    async with open_test(endpoints) as routes:
        answer = await routes.find("shop.test")
        await trio.sleep(6 * 3600 - 1)
        assert await routes.find("SHOP.test") == answer
        assert len(endpoints.asked) == 1
        await trio.sleep(2)
        assert routes.cached_route("shop.test") is None
        assert await routes.find("shop.test") == answer
        assert len(endpoints.asked) == 2


async def test_a_failure_is_kept_five_seconds(autojump_clock):
    endpoints = Endpoints({FIRST: SERVFAIL, SECOND: SERVFAIL})
    async with open_test(endpoints) as routes:
        failed = await routes.find("shop.test")
        assert isinstance(failed, LookupFailed)
        endpoints.script.clear()
        await trio.sleep(FAILURE_KEPT_S - 0.1)
        assert await routes.find("shop.test") == failed
        await trio.sleep(0.2)
        assert await routes.find("shop.test") == ROUTE


async def test_memory_is_bounded_and_forgets_the_oldest(autojump_clock):
    class AtOnce:
        def __init__(self, name: str, flight: InFlightLookup[str]) -> None:
            self.name, self.flight = name, flight

        def start(self) -> None:
            self.flight.finish(self.name, 60.0)

    async with trio.open_nursery():
        new_lookup: Any = AtOnce  # only start() is called
        memory: SingleFlightCache[str] = SingleFlightCache(DeadlineClock(), new_lookup, names_max=3)
        for name in ("a", "b", "c", "d"):
            await memory.find(name)
        assert [memory.cached(name) for name in "abcd"] == [None, "b", "c", "d"]
        await trio.sleep(61)
        await memory.find("b")  # learned anew: now c is the oldest
        await memory.find("e")
        assert [name for name in "abcde" if memory.cached(name)] == ["b", "e"]


async def test_only_so_many_look_ups_are_made_at_a_time(autojump_clock):
    """The limit of an exchange begins when it has its seat: a burst is no outage."""
    endpoints = Endpoints({FIRST: Says(delay_s=0.2)})
    async with open_test(endpoints, FIRST) as routes, trio.open_nursery() as nursery:

        async def account(name):
            route = await routes.find(name, deferred_start=True)
            assert isinstance(route, Route)
            assert route.mx_host == "mx.shop.test"

        for place in range(10 * LOOKUPS_MAX):
            nursery.start_soon(account, f"d{place}.test")
    assert endpoints.at_once_max == LOOKUPS_MAX


async def test_a_request_that_has_no_turn_within_its_clock_fails(autojump_clock):
    endpoints = Endpoints({FIRST: Says(delay_s=0.26)})
    answers: Counter[str] = Counter()
    async with open_test(endpoints, FIRST) as routes, trio.open_nursery() as nursery:

        async def account(name):
            answer = await routes.find(name)
            answers[answer.reason if isinstance(answer, LookupFailed) else "found"] += 1
            assert trio.current_time() - began < 1.5 + 0.01

        began = trio.current_time()
        for place in range(15 * LOOKUPS_MAX):
            nursery.start_soon(account, f"d{place}.test")
        nursery.start_soon(trio.sleep, 2)
    assert answers == {
        "found": 5 * LOOKUPS_MAX,
        "11.0.0.1: no answer within 1.5 s": LOOKUPS_MAX,
        "11.0.0.1: too many look-ups under way": 9 * LOOKUPS_MAX,
    }
    assert len(endpoints.asked) == 6 * LOOKUPS_MAX  # none whose clock was about to end


async def test_a_name_that_cannot_be_queried_is_an_error_of_the_caller(autojump_clock):
    async with open_test(Endpoints()) as routes:
        with pytest.raises(ValueError, match="not a domain name"):
            await routes.find("a..b")
        with pytest.raises(ValueError, match="not a domain name"):
            await routes.addresses("")
        with pytest.raises(ValueError, match="not a domain name"):
            await routes.addresses_now("a..b")


async def test_equal_exchanges_are_shuffled_at_each_use_and_others_stay(autojump_clock):
    pairs = ("10 a.test.", "10 b.test.", "10 c.test.", "20 d.test.", "30 e.test.")
    says = Says(tuple(f"9 MX {pair}" for pair in pairs))
    async with open_test(Endpoints({FIRST: says})) as routes:
        route = await routes.find("shop.test")
        assert isinstance(route, Route)
        orders = {tuple(each.name for each in routes.in_order(route)) for _ in range(200)}
        assert len(orders) == 6
        assert {order[3:] for order in orders} == {("d.test", "e.test")}
        assert route.mx_host == "a.test"


async def test_a_resolver_that_filters_has_failed(autojump_clock):
    """The next endpoint knows better; and where all filter, nothing is certain."""

    @dataclass
    class Filters:
        urls: tuple[str, ...]

        async def exchange(self, url: str, query: bytes) -> bytes:
            await trio.lowlevel.checkpoint()
            if url not in self.urls:
                return reply(query, *GOOD.records)
            blocked = bytearray(reply(query))
            blocked[3] |= 3  # NXDOMAIN, without a SOA
            return bytes(blocked)

    settings = EngineSettings(doh_urls=(FIRST, SECOND))
    async with open_routes(settings, transport=Filters((FIRST,)), rng=Random(1)) as routes:
        assert await routes.find("shop.test") == ROUTE
    async with open_routes(settings, transport=Filters((FIRST, SECOND)), rng=Random(1)) as routes:
        failed = await routes.find("shop.test")
        assert isinstance(failed, LookupFailed)
        assert failed.reason.count("the resolver filters") == 2


def test_the_default_endpoints_filter_nothing():
    assert DOH_URLS == ("https://9.9.9.10/dns-query", "https://1.1.1.1/dns-query")
