"""Layer 3: hedging, limits, memory and single flight in virtual time; then real sockets."""

import socket
import ssl
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random

import dns.message
import dns.rcode
import dns.rrset
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
import trio
import trustme

from mailprobe.engine.dns.deadlines import DeadlineClock
from mailprobe.engine.dns.doh import check_doh_url, open_transport
from mailprobe.engine.dns.endpoint import TRIES_MAX
from mailprobe.engine.dns.messages import (
    Addresses,
    LookupFailed,
    MailExchange,
    NoAddress,
    NoMail,
    Route,
    encode_query,
    read_route,
)
from mailprobe.engine.dns.resolver import AGAIN_AFTER_S, HEDGE_S
from mailprobe.engine.dns.resolver_endpoint import LOOKUPS_MAX, TRY_S
from mailprobe.engine.dns.response import TransportFailed
from mailprobe.engine.dns.routes import open_routes
from mailprobe.engine.dns.single_flight import FAILURE_KEPT_S, SingleFlightCache
from mailprobe.engine.settings import DOH_URLS, EngineSettings

FIRST, SECOND, THIRD = "https://11.0.0.1/q", "https://11.0.0.2/q", "https://11.0.0.3/q"


def reply(query: bytes, *records: str, rcode: str = "NOERROR") -> bytes:
    """An answer with records such as `300 MX 10 mx.test.`, all of the name asked about."""
    question = dns.message.from_wire(query)
    message = dns.message.make_response(question)
    message.set_rcode(dns.rcode.from_text(rcode))
    for record in records:
        ttl, kind, rest = record.split(" ", 2)
        owner = question.question[0].name
        message.answer.append(dns.rrset.from_text(owner, int(ttl), "IN", kind, rest))
    if rcode == "NXDOMAIN":
        soa = "ns.test. hostmaster.test. 1 7200 3600 86400 300"
        message.authority.append(dns.rrset.from_text("test.", 0, "IN", "SOA", soa))
    return message.to_wire()


@dataclass(frozen=True)
class Says:
    """How an endpoint answers one kind of question."""

    records: tuple[str, ...] = ("300 MX 10 mx.shop.test.",)
    rcode: str = "NOERROR"
    delay_s: float = 0.0
    failure: str | None = None


GOOD = Says()
SILENT = Says(delay_s=3600)
BROKEN = Says(failure="connection refused")
SERVFAIL = Says((), "SERVFAIL")
NXDOMAIN = Says((), "NXDOMAIN")
EMPTY = Says(())


def address(*records: str, delay_s: float = 0.0) -> Says:
    return Says(records, delay_s=delay_s)


def kind_of(query: bytes) -> str:
    return {1: "A", 2: "NS", 12: "PTR", 15: "MX", 28: "AAAA"}[query[query.index(b"\0", 12) + 2]]


@dataclass
class Endpoints:
    """A DohTransport of scripts: by (url, kind), else by url, else GOOD."""

    script: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)  # (when, url, kind)
    ended: Counter = field(default_factory=Counter)
    at_once: int = 0
    at_once_max: int = 0

    async def exchange(self, url: str, query: bytes) -> bytes:
        kind = kind_of(query)
        self.asked.append((trio.current_time(), url, kind))
        says = self.script.get((url, kind)) or self.script.get(url) or self.script.get(kind, GOOD)
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            await trio.sleep(says.delay_s)
        finally:
            self.at_once -= 1
        if says.failure:
            raise TransportFailed(says.failure)
        self.ended[url] += 1
        return reply(query, *says.records, rcode=says.rcode)

    def times(self, since: float) -> list[tuple[float, str]]:
        return [(round(when - since, 3), url) for when, url, _ in self.asked]


def open_test(endpoints: Endpoints, *urls: str, **more):
    settings = EngineSettings(doh_urls=urls or (FIRST, SECOND), **more)
    return open_routes(settings, transport=endpoints, rng=Random(1))


ROUTE = Route("shop.test", (MailExchange("mx.shop.test", 10),), "mx.shop.test")


async def test_the_first_endpoint_answers_and_nobody_else_is_asked(autojump_clock):
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


async def test_after_a_silent_first_the_second_is_asked_at_once_until_it_speaks(autojump_clock):
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


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize("count", [1, 2, 11])
async def test_a_silent_name_takes_a_second_and_a_half_in_all(autojump_clock, count, patient):
    urls = tuple(f"https://11.0.0.{n}/q" for n in range(1, count + 1))
    script = {(url, "MX"): SILENT for url in urls}
    async with open_test(Endpoints(script), *urls) as routes:
        began = trio.current_time()
        failed = await routes.find("shop.test", patient=patient)
        assert isinstance(failed, LookupFailed)
        assert "no answer within 1.5 s" in failed.reason
        assert trio.current_time() - began == pytest.approx(1.5)


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize("count", [1, 2, 11])
async def test_a_list_waits_for_silent_endpoints_but_not_for_ever(autojump_clock, count, patient):
    urls = tuple(f"https://11.0.0.{n}/q" for n in range(1, count + 1))
    async with open_test(Endpoints(dict.fromkeys(urls, SILENT)), *urls) as routes:
        began = trio.current_time()
        failed = await routes.find("shop.test", patient=patient)
        assert isinstance(failed, LookupFailed)
        assert "no answer within 1.5 s" in failed.reason
        in_all_s = (len(AGAIN_AFTER_S) + 1) * TRY_S + sum(AGAIN_AFTER_S) if patient else 1.5
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

            async def patient():
                assert await routes.find("shop.test") == ROUTE

            nursery.start_soon(impatient)  # may be the one who began it
            nursery.start_soon(patient)
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
    reported = {}

    async def asker(account: str, *, patient: bool) -> None:
        answer = await routes.find("shop.test", account, patient=patient)
        reported[account] = answer, round(trio.current_time() - began, 2)

    async with open_test(endpoints, FIRST, SECOND) as routes, trio.open_nursery() as nursery:
        began = trio.current_time()
        endpoints.script[FIRST] = endpoints.script[SECOND] = Says(delay_s=0.25)
        for place in range(LOOKUPS_MAX):  # so that the look-up begins later than its asker
            nursery.start_soon(routes.find, f"d{place}.test", "others")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(lambda: asker("request", patient=False))
        nursery.start_soon(lambda: asker("list", patient=True))
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
async def test_what_is_certain_is_kept_six_hours(autojump_clock, says):
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
        def __init__(self, name, flight) -> None:
            self.name, self.flight = name, flight

        def start(self) -> None:
            self.flight.finish(self.name, 60.0)

    async with trio.open_nursery():
        memory = SingleFlightCache(DeadlineClock(), AtOnce, names_max=3)
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
            assert (await routes.find(name, patient=True)).mx_host == "mx.shop.test"

        for place in range(10 * LOOKUPS_MAX):
            nursery.start_soon(account, f"d{place}.test")
    assert endpoints.at_once_max == LOOKUPS_MAX


async def test_a_request_that_has_no_turn_within_its_clock_fails(autojump_clock):
    endpoints = Endpoints({FIRST: Says(delay_s=0.26)})
    answers = Counter()
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


async def test_a_name_that_cannot_be_asked_is_the_callers_mistake(autojump_clock):
    async with open_test(Endpoints()) as routes:
        with pytest.raises(ValueError, match="not a domain name"):
            await routes.find("a..b")
        with pytest.raises(ValueError, match="not a domain name"):
            await routes.addresses("")
        with pytest.raises(ValueError, match="not a domain name"):
            await routes.addresses_now("a..b")


async def test_equal_exchanges_are_shuffled_at_each_use(autojump_clock):
    async with open_test(Endpoints({FIRST: Says(("9 MX 5 a.test.", "9 MX 5 b.test."))})) as routes:
        route = await routes.find("shop.test")
        firsts = {routes.in_order(route)[0].name for _ in range(50)}
        assert firsts == {"a.test", "b.test"}


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


FOUR, SIX = "900 A 11.0.0.9", "700 AAAA 2a00::9"
PRIVATE_FOUR, PRIVATE_SIX = "900 A 10.0.0.9", "900 AAAA fd00::9"
IPV4, IPV6 = FOUR.split()[2], SIX.split()[2]

ADDRESSES = {
    "IPv4 is enough": ({"A": address(FOUR)}, Addresses((IPV4,), 900), ["A"]),
    "one public is enough": (
        {"A": address(PRIVATE_FOUR, FOUR)},
        Addresses(("10.0.0.9", IPV4), 900),
        ["A"],
    ),
    "IPv6 alone": ({"A": EMPTY, "AAAA": address(SIX)}, Addresses((IPV6,), 0), ["A", "AAAA"]),
    "private, and IPv6": (
        {"A": address(PRIVATE_FOUR), "AAAA": address(SIX)},
        Addresses(("10.0.0.9", IPV6), 700),
        ["A", "AAAA"],
    ),
    "private, no IPv6": (
        {"A": address(PRIVATE_FOUR), "AAAA": EMPTY},
        Addresses(("10.0.0.9",), 0),
        ["A", "AAAA"],
    ),
    "none": (
        {"A": EMPTY, "AAAA": EMPTY},
        NoAddress("no A records, no AAAA records", 0),
        ["A", "AAAA"],
    ),
    "no such name": ({"A": NXDOMAIN, "AAAA": NXDOMAIN}, NoAddress("NXDOMAIN", 0), ["A", "AAAA"]),
    "IPv4 unknown, IPv6": (
        {"A": SERVFAIL, "AAAA": address(SIX)},
        Addresses((IPV6,), 700),
        ["A", "AAAA"],
    ),
    "IPv4 unknown, no IPv6": (
        {"A": SERVFAIL, "AAAA": EMPTY},
        LookupFailed("11.0.0.1: SERVFAIL"),
        ["A", "AAAA"],
    ),
    "no IPv4, IPv6 unknown": (
        {"A": EMPTY, "AAAA": SERVFAIL},
        LookupFailed("11.0.0.1: SERVFAIL"),
        ["A", "AAAA"],
    ),
    "private, IPv6 unknown": (
        {"A": address(PRIVATE_FOUR), "AAAA": SERVFAIL},
        LookupFailed("11.0.0.1: SERVFAIL"),
        ["A", "AAAA"],
    ),
}


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize(("script", "reported", "asked"), ADDRESSES.values(), ids=ADDRESSES)
async def test_the_addresses_of_an_exchange(autojump_clock, script, reported, asked, patient):
    """A list asks for IPv6 where IPv4 is no help; whose clock runs asks for both together."""
    endpoints = Endpoints(script)
    async with open_test(endpoints, FIRST) as routes:
        assert routes.cached_addresses("MX.test") is None
        assert await routes.addresses("MX.test", patient=patient) == reported
        assert routes.cached_addresses("mx.test") == reported
        kinds = [kind for _, _, kind in endpoints.asked]
        assert kinds == asked if patient else sorted(kinds) == ["A", "AAAA"]


async def test_a_silent_look_up_of_the_other_family_delays_nobody(autojump_clock):
    endpoints = Endpoints({"A": address(FOUR), "AAAA": SILENT})
    async with open_test(endpoints, FIRST) as routes:
        began = trio.current_time()
        assert await routes.addresses("mx.test") == Addresses((IPV4,), 900)
        assert trio.current_time() == began
        await trio.sleep(HEDGE_S + 0.01)
        assert endpoints.at_once == 0  # and it is given up soon


async def test_six_will_do_where_the_clock_runs_out_over_four(autojump_clock):
    endpoints = Endpoints({"A": SILENT, "AAAA": address(SIX)})
    async with open_test(endpoints, FIRST) as routes:
        began = trio.current_time()
        assert await routes.addresses("mx.test") == Addresses((IPV6,), 700)
        assert trio.current_time() - began == pytest.approx(1.5)


async def test_a_private_address_is_enough_where_private_ones_are_allowed(autojump_clock):
    endpoints = Endpoints({"A": address(PRIVATE_FOUR)})
    async with open_test(endpoints, FIRST, allow_private=True) as routes:
        assert await routes.addresses("mx.test", patient=True) == Addresses(("10.0.0.9",), 900)
        assert [kind for _, _, kind in endpoints.asked] == ["A"]


ALL_ADDRESSES = {
    "both": ({"A": address(FOUR), "AAAA": address(SIX)}, Addresses((IPV4, IPV6), 700)),
    "IPv4 alone": ({"A": address(FOUR), "AAAA": EMPTY}, Addresses((IPV4,), 0)),
    "IPv6 alone": ({"A": EMPTY, "AAAA": address(SIX)}, Addresses((IPV6,), 0)),
    "public beside private": (
        {"A": address(FOUR, PRIVATE_FOUR), "AAAA": address(PRIVATE_SIX)},
        Addresses((IPV4, "10.0.0.9", "fd00::9"), 900),
    ),
    "none": ({"A": EMPTY, "AAAA": EMPTY}, NoAddress("no A records, no AAAA records", 0)),
    "no such name": ({"A": NXDOMAIN, "AAAA": NXDOMAIN}, NoAddress("NXDOMAIN", 0)),
    "IPv4 unknown": (
        {"A": SERVFAIL, "AAAA": address(SIX)},
        LookupFailed("11.0.0.1: SERVFAIL"),
    ),
    "IPv6 unknown": (
        {"A": address(FOUR), "AAAA": SERVFAIL},
        LookupFailed("11.0.0.1: SERVFAIL"),
    ),
}


@pytest.mark.parametrize(("script", "reported"), ALL_ADDRESSES.values(), ids=ALL_ADDRESSES)
async def test_all_addresses_that_a_host_has_now(autojump_clock, script, reported):
    async with open_test(Endpoints(script), FIRST) as routes:
        assert await routes.addresses_now("Hooks.test") == reported


async def test_what_a_host_has_now_is_asked_each_time_and_not_remembered(autojump_clock):
    endpoints = Endpoints({"A": address(FOUR), "AAAA": EMPTY})
    async with open_test(endpoints, FIRST) as routes:
        await routes.addresses("mx.test", patient=True)
        endpoints.script["A"] = address(PRIVATE_FOUR)
        assert (await routes.addresses_now("mx.test")).ips == ("10.0.0.9",)
        assert (await routes.addresses_now("mx.test")).ips == ("10.0.0.9",)
        assert [kind for _, _, kind in endpoints.asked] == ["A", *["A", "AAAA"] * 2]
        assert routes.cached_addresses("mx.test").ips == (IPV4,)


@pytest.mark.parametrize(
    ("script", "kept_s"),
    [
        ({"A": address("0 A 11.0.0.9")}, 300),
        ({"A": address("1000 A 11.0.0.9")}, 1000),
        ({"A": address("999999 A 11.0.0.9")}, 6 * 3600),
        ({"A": EMPTY, "AAAA": EMPTY}, 300),
        ({"A": SERVFAIL, "AAAA": EMPTY}, 5),
        ({"A": SERVFAIL, "AAAA": address(SIX)}, 5),
    ],
)
async def test_addresses_are_kept_by_their_ttl_within_bounds(autojump_clock, script, kept_s):
    async with open_test(Endpoints(script), FIRST) as routes:
        reported = await routes.addresses("mx.test")
        await trio.sleep(kept_s - 1)
        assert routes.cached_addresses("mx.test") == reported
        await trio.sleep(1.1)
        assert routes.cached_addresses("mx.test") is None


async def test_an_address_is_asked_for_its_names(autojump_clock):
    endpoints = Endpoints({"PTR": Says(("60 PTR mail.shop.test.",))})
    async with open_test(endpoints, FIRST) as routes:
        assert await routes.pointers("11.0.0.9") == ("mail.shop.test",)
        endpoints.script["PTR"] = NXDOMAIN
        assert await routes.pointers("11.0.0.9") == ()
        endpoints.script["PTR"] = SERVFAIL
        assert isinstance(await routes.pointers("11.0.0.9"), LookupFailed)


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("https://9.9.9.9/dns-query", "https://9.9.9.9/dns-query"),
        ("https://9.9.9.9:8443/q?x=1", "https://9.9.9.9:8443/q?x=1"),
        ("HTTPS://9.9.9.9/Q", "https://9.9.9.9/Q"),
        ("https://[2620:fe::fe]/dns-query", "https://[2620:fe::fe]/dns-query"),
        ("https://[2620:FE:0::FE]:444/", "https://[2620:fe::fe]:444/"),
        ("http://127.0.0.1:8053/q", "http://127.0.0.1:8053/q"),
        ("http://127.9.9.9/q", "http://127.9.9.9/q"),
        ("http://[::1]:8053/q", "http://[::1]:8053/q"),
        ("http://localhost:8053/q", "http://127.0.0.1:8053/q"),
        ("https://LOCALHOST/q", "https://127.0.0.1/q"),
    ],
)
def test_an_endpoint_named_by_address(url, asked):
    assert check_doh_url(url) == asked


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "https://address/path"),
        ("9.9.9.9", "https://address/path"),
        ("ftp://9.9.9.9/", "https://address/path"),
        ("https:///dns-query", "https://address/path"),
        ("https://dns.quad9.net/dns-query", "not as dns.quad9.net"),
        ("https://localhost.example/q", "not as localhost.example"),
        ("https://2130706433/q", "by its address"),
        ("https://0x7f.1/q", "by its address"),
        ("https://127.1/q", "by its address"),
        ("https://127.0.0.1./q", "by its address"),
        ("https://９.９.９.９/q", "beyond ASCII"),
        ("http://9.9.9.9/q", "loopback addresses alone"),
        ("http://10.0.0.1/q", "loopback addresses alone"),
        ("http://[::ffff:127.0.0.1]/q", "loopback addresses alone"),
        ("https://me:secret@9.9.9.9/q", "neither a user"),
        ("https://9.9.9.9/q#there", "neither a user"),
        ("https://9.9.9.9:99999/q", "it takes https"),
        ("https://[::1/q", "it takes https"),
        ("https://[fe80::1%25eth0]/q", "by its address"),
        ("https://9.9.9.9/a b", "no spaces"),
        ("https://9.9.9.9/\nq", "no spaces"),
    ],
)
def test_an_endpoint_that_cannot_be_asked(url, words):
    with pytest.raises(ValueError, match=words):
        check_doh_url(url)


async def test_routes_do_not_open_on_a_named_endpoint():
    with pytest.raises(ValueError, match="by its address"):
        async with open_routes(EngineSettings(doh_urls=("https://dns.test/q",)), rng=Random(1)):
            pass


# From here on: real sockets on loopback.


@pytest.fixture(autouse=True)
def names_are_never_resolved(monkeypatch):
    """The system's resolver may turn digits into bytes, and nothing else."""
    real = socket.getaddrinfo

    def getaddrinfo(host, port, family=0, type=0, proto=0, flags=0):
        return real(host, port, family, type, proto, flags | socket.AI_NUMERICHOST)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@dataclass
class PlainServer:
    """DNS over HTTP/1.1; the path says how it misbehaves."""

    url: str = ""
    requests: int = 0
    connections: int = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        with suppress(trio.BrokenResourceError):  # the client went away
            await self.converse(stream)

    async def converse(self, stream: trio.SocketStream) -> None:
        async with stream:
            buffer = b""
            while True:
                while b"\r\n\r\n" not in buffer:
                    more = await stream.receive_some()
                    if not more:
                        return
                    buffer += more
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                while len(buffer) < length:
                    buffer += await stream.receive_some()
                query, buffer = buffer[:length], buffer[length:]
                self.requests += 1
                path = head.split()[1].decode()
                if await self.answer(path, query, stream):
                    return

    async def answer(self, path: str, query: bytes, stream: trio.SocketStream) -> bool:
        """Write a response; say whether to hang up after it."""
        octets = reply(query, "300 MX 10 mx.shop.test.")
        status, kind, hang_up = "200 OK", "application/dns-message", path == "/once"
        length = len(octets)
        match path:
            case "/html":
                octets = b"<html>sign in</html>"
                kind, length = "text/html", len(octets)
            case "/500":
                status = "500 Internal Server Error"
            case "/redirect":
                status = "307 Temporary Redirect\r\nLocation: /q"
            case "/parameter":
                kind = "Application/DNS-Message; charset=none"
            case "/oversize":
                octets = bytes(70_000)
                length, hang_up = len(octets), True
            case "/cut":
                length, hang_up = length + 10, True
            case "/garbage":
                await stream.send_all(b"220 mx.test ESMTP\r\n")
                return True
            case "/gone":
                return True
            case "/endless":
                head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked"
                await stream.send_all(head.encode() + b"\r\n\r\n")
                while True:
                    await stream.send_all(b"1000\r\n" + bytes(0x1000) + b"\r\n")
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n"
        head += "Date: Tue, 01 Jul 2025 10:00:00 GMT\r\n\r\n"
        await stream.send_all(head.encode() + octets)
        return hang_up


@asynccontextmanager
async def open_plain(host: str = "127.0.0.1", server: PlainServer | None = None):
    server = server or PlainServer()
    async with trio.open_nursery() as nursery:
        listener = trio.socket.socket(
            trio.socket.AF_INET6 if ":" in host else trio.socket.AF_INET, trio.socket.SOCK_STREAM
        )
        await listener.bind((host, 0))
        listener.listen()
        where = f"[{host}]" if ":" in host else host
        server.url = f"http://{where}:{listener.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, server.serve, [trio.SocketListener(listener)])
        yield server
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_plain_endpoint_answers(host):
    async with open_plain(host) as server, open_transport() as transport:
        for _ in range(3):
            octets = await transport.exchange(f"{server.url}/q", encode_query("shop.test", "MX"))
            assert read_route(octets, "shop.test") == ROUTE
        assert (server.requests, server.connections) == (3, 1)


async def test_the_answers_date_is_told():
    async with open_plain() as server, open_transport() as transport:
        response = await transport.enqueue_message(
            f"{server.url}/q", encode_query("shop.test", "MX")
        )
        assert response.date == "Tue, 01 Jul 2025 10:00:00 GMT"


async def test_localhost_is_an_address_to_us():
    async with open_plain() as server, open_transport() as transport:
        url = server.url.replace("127.0.0.1", "localhost") + "/parameter"
        assert await transport.exchange(url, encode_query("shop.test", "MX"))


@pytest.mark.parametrize(
    ("path", "words", "requests"),
    [
        ("/html", "type text/html, not DNS", 1),
        ("/500", "HTTP status 500", 1),
        ("/redirect", "HTTP status 307", 1),
        ("/oversize", "more than 65535 octets", 1),
        ("/endless", "more than 65535 octets", 1),
        ("/cut", "closed", TRIES_MAX),
        ("/gone", "disconnected", TRIES_MAX),
        ("/garbage", "no HTTP", 1),
    ],
)
async def test_what_is_no_dns_answer_is_a_failure(path, words, requests):
    async with open_plain() as server, open_transport() as transport:
        with pytest.raises(TransportFailed, match=words):
            await transport.exchange(f"{server.url}{path}", encode_query("shop.test", "MX"))
        assert server.requests == requests
        assert await transport.exchange(f"{server.url}/q", encode_query("shop.test", "MX"))


async def test_a_connection_that_ended_between_questions_is_no_failure():
    async with open_plain() as server, open_transport() as transport:
        for _ in range(5):
            assert await transport.exchange(f"{server.url}/once", encode_query("shop.test", "MX"))


async def test_nobody_there_is_a_failure():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, not listening
        url = f"http://127.0.0.1:{free.getsockname()[1]}/q"
        async with open_transport() as transport:
            with pytest.raises(TransportFailed, match="refused"):
                await transport.exchange(url, encode_query("shop.test", "MX"))


async def test_a_name_is_not_asked_even_by_the_transport():
    async with open_transport() as transport:
        with pytest.raises(ValueError, match="by its address"):
            await transport.exchange("https://dns.test/q", encode_query("shop.test", "MX"))


async def test_routes_over_real_sockets():
    async with open_plain() as server:
        urls = (f"{server.url}/html", f"{server.url}/500", f"{server.url}/q")
        async with open_routes(EngineSettings(doh_urls=urls), rng=Random(1)) as routes:
            assert await routes.find("shop.test") == ROUTE


@dataclass
class TlsServer:
    """DNS over HTTP/2; says GOAWAY after so many questions on a connection."""

    url: str = ""
    questions_max: int = 1_000_000
    connections: int = 0
    dropped: int = 0

    async def serve(self, stream: trio.SSLStream) -> None:
        self.connections += 1
        wire = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        wire.initiate_connection()
        queries: dict[int, bytes] = {}
        answered = 0
        try:
            await stream.send_all(wire.data_to_send())
            while octets := await stream.receive_some():
                for event in wire.receive_data(octets):
                    match event:
                        case h2.events.RequestReceived():
                            queries[event.stream_id] = b""
                        case h2.events.DataReceived():
                            queries[event.stream_id] += event.data
                        case h2.events.StreamEnded():
                            if answered >= self.questions_max:
                                continue
                            answered += 1
                            self.answer(wire, event.stream_id, queries.pop(event.stream_id))
                if answered >= self.questions_max and queries:
                    self.dropped += len(queries)
                    wire.close_connection()
                    await stream.send_all(wire.data_to_send())
                    return
                await stream.send_all(wire.data_to_send())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    def answer(self, wire: h2.connection.H2Connection, stream_id: int, query: bytes) -> None:
        octets = reply(query, "300 MX 10 mx.shop.test.")
        with suppress(h2.exceptions.ProtocolError):  # given up by the client
            wire.send_headers(
                stream_id, [(":status", "200"), ("content-type", "application/dns-message")]
            )
            wire.send_data(stream_id, octets, end_stream=True)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def ca_file(authority, tmp_path):
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


@asynccontextmanager
async def open_tls(authority, **more):
    server = TlsServer(**more)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.set_alpn_protocols(["h2"])
    listener = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_STREAM)
    await listener.bind(("127.0.0.1", 0))
    listener.listen()
    server.url = f"https://127.0.0.1:{listener.getsockname()[1]}/dns-query"
    async with trio.open_nursery() as nursery:
        listeners = [trio.SSLListener(trio.SocketListener(listener), context)]
        nursery.start_soon(trio.serve_listeners, server.serve, listeners)
        yield server
        nursery.cancel_scope.cancel()


async def test_questions_share_one_connection_where_http_2_is_spoken(authority, ca_file):
    async with open_tls(authority) as server:
        settings = EngineSettings(doh_urls=(server.url,), doh_ca_file=ca_file)
        async with open_routes(settings, rng=Random(1)) as routes, trio.open_nursery() as nursery:
            for place in range(150):
                nursery.start_soon(routes.find, f"d{place}.test")
        assert server.connections == 1


async def test_an_authority_that_is_not_ours_is_a_failure(authority, tmp_path):
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    async with open_tls(authority) as server, open_transport(str(other)) as transport:
        with pytest.raises(TransportFailed, match="certificate"):
            await transport.exchange(server.url, encode_query("shop.test", "MX"))


async def test_what_a_goaway_leaves_unanswered_is_asked_again(authority, ca_file):
    async with open_tls(authority, questions_max=45) as server:
        answered = 0

        async def account(place: int) -> None:
            nonlocal answered
            await transport.exchange(server.url, encode_query(f"d{place}.test", "MX"))
            answered += 1

        async with open_transport(ca_file) as transport:
            for start in range(0, 300, 30):
                async with trio.open_nursery() as nursery:
                    for place in range(start, start + 30):
                        nursery.start_soon(account, place)
        assert answered == 300
        assert server.dropped > 0
        assert server.connections > 1


async def test_accounts_who_give_up_at_any_moment_leave_the_connection_whole(authority, ca_file):
    async with open_tls(authority) as server, open_transport(ca_file) as transport:
        rng = Random(5)

        async def impatient(place: int) -> None:
            with trio.move_on_after(rng.random() / 20):
                await transport.exchange(server.url, encode_query(f"d{place}.test", "MX"))

        async with trio.open_nursery() as nursery:
            for place in range(100):
                nursery.start_soon(impatient, place)
        octets = await transport.exchange(server.url, encode_query("shop.test", "MX"))
        assert read_route(octets, "shop.test") == ROUTE
        assert server.connections == 1


@pytest.mark.parametrize("after_ms", [0, 1, 2, 5, 10, 20, 40])
async def test_closing_in_mid_question_leaves_no_socket(authority, ca_file, after_ms):
    async with open_tls(authority) as server, open_transport(ca_file) as transport:
        with trio.move_on_after(after_ms / 1000):
            async with trio.open_nursery() as nursery:
                for place in range(20):
                    nursery.start_soon(
                        transport.exchange, server.url, encode_query(f"d{place}.test", "MX")
                    )


async def test_an_endpoint_that_never_shakes_hands_is_let_go(ca_file):
    """Cancelled in the handshake, httpcore would leave the socket to the collector."""
    listener = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_STREAM)
    await listener.bind(("127.0.0.1", 0))
    listener.listen()
    with listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/q"
        async with open_transport(ca_file) as transport:
            with trio.move_on_after(0.05) as limit:
                await transport.exchange(url, encode_query("shop.test", "MX"))
            assert limit.cancelled_caught


async def test_no_name_is_ever_given_to_the_systems_resolver(authority, ca_file, monkeypatch):
    """Every call there is may only be of digits that are taken as they are."""
    hosts = []
    real = socket.getaddrinfo

    def getaddrinfo(host, *args, **kwargs):
        hosts.append(host)
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    async with open_tls(authority) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        settings = EngineSettings(doh_urls=(url,), doh_ca_file=ca_file)
        async with open_routes(settings, rng=Random(1)) as routes:
            assert await routes.find("shop.test") == ROUTE
    assert set(map(str, hosts)) <= {"127.0.0.1", "b'127.0.0.1'"}
