"""Trouble of a resolver: lists wait until it is over, and failures at once are asked about again."""

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeEndpoint, FakeNetwork, open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.bench.world.resolver_faults import ResolverFaults, RetryAfter
from mailprobe.bench.world.zone import ZoneMode
from mailprobe.engine import in_order, open_answers
from mailprobe.engine.dns.endpoint import CHECK_S, LOOKUP_S
from mailprobe.engine.dns.messages import ROOT_QUESTION, LookupFailed, Route
from mailprobe.engine.dns.resolver import RETRY_AFTER_S
from mailprobe.engine.dns.response import TransportFailed
from tests.engine.engine_runs import (
    DELIVERABLE,
    UNKNOWN,
    fields_of,
    open_checked_engine,
    open_test_engine,
    verify,
)
from tests.engine.invariants import assert_whole
from tests.seeds import stride

ENDPOINTS = ("https://11.0.0.1/q",)
BOTH = (*ENDPOINTS, "https://11.0.0.2/q")
ROUND_TRIP_S = 0.02


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


@pytest.mark.parametrize("lasts_s", [0.5, 1.0, 1.5, 3.0][:: min(3, stride(1))])
@pytest.mark.parametrize("kind", ["stands still", "loses", "refuses"])
async def test_a_list_loses_no_answer_to_a_resolver_that_comes_back(autojump_clock, kind, lasts_s):
    async with open_fake_network() as network:
        # A host takes 512 refusals in ten minutes, and each domain's test costs it one.
        hosts = [MailHost() for _ in range(4)]
        healthy = [f"known@d{number}.test" for number in range(160)]
        hung = [f"known@hung{number}.test" for number in range(40)]
        for number in range(160):
            network.add(f"d{number}.test", hosts[number % 4], mx=f"mx{number % 40}.test")
        for number in range(40):
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
    assert outcomes == {(False, "deliverable"): 160, (True, "unknown"): 40}


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


async def test_a_resolver_that_answers_gets_no_further_query(autojump_clock):
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


# -- failures at once --------------------------------------------------------------------------

SERVFAIL_ONCE = {"servfail_first": 1}
ONCE: dict[str, dict[str, Any]] = {
    "SERVFAIL": SERVFAIL_ONCE,
    "503": {"unavailable_first": 1},
    "503, Retry-After: 1": {"unavailable_first": 1, "retry_after_s": 1.0},
    "429": {"limited_first": 1},
    "429, Retry-After: 1": {"limited_first": 1, "retry_after_s": 1.0},
    "429, a date": {"limited_first": 1, "retry_after_s": 1.0, "retry_after": RetryAfter.DATE},
}


def add_faults(network: FakeNetwork, *urls: str, **faults: Any) -> list[ResolverFaults]:
    """Give these endpoints these faults; each counts by itself."""
    counted = []
    for url in urls:
        counted.append(ResolverFaults(now=trio.current_time, **faults))
        network.transport.endpoints[url] = FakeEndpoint(ROUND_TRIP_S, faults=counted[-1])
    return counted


@pytest.mark.parametrize("deferred_start", [False, True])
@pytest.mark.parametrize("kind", ["MX", "A", "AAAA"])
@pytest.mark.parametrize("urls", [ENDPOINTS, BOTH], ids=["one", "both"])
@pytest.mark.parametrize("faults", ONCE.values(), ids=ONCE)
async def test_a_failure_at_once_costs_no_answer(
    autojump_clock, faults, urls, kind, deferred_start
):
    """The same endpoint is asked again, be it for a domain or for an exchange's address."""
    async with open_fake_network() as network:
        network.add(
            "shop.test", MailHost(), mx="mx.test", address="2a00::9" if kind == "AAAA" else None
        )
        add_faults(network, *urls, kinds=frozenset({kind}), **faults)
        async with open_checked_engine(network, doh_urls=urls) as engine:
            [verdict] = await verify(engine, "known@shop.test", deferred_start=deferred_start)
    assert fields_of(verdict) == DELIVERABLE
    assert deferred_start or verdict.latency_ms < LOOKUP_S * 1000 + 1500


@pytest.mark.parametrize("faults", ONCE.values(), ids=ONCE)
async def test_a_failure_at_once_at_one_endpoint_moves_to_the_other(autojump_clock, faults):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(), mx="mx.test")
        add_faults(network, *BOTH)
        add_faults(network, BOTH[0], **faults)
        async with open_checked_engine(network, doh_urls=BOTH) as engine:
            began = trio.current_time()
            assert isinstance(await engine.routes.find("shop.test"), Route)
            assert trio.current_time() - began == pytest.approx(2 * ROUND_TRIP_S)


async def test_an_endpoint_that_limits_us_is_passed_over_meanwhile(autojump_clock):
    """While the first endpoint refuses everything for a minute, the second is asked at once."""
    async with open_fake_network() as network:
        for number in range(100):
            network.zone.mx(f"d{number}.test", "mx.test")
        add_faults(network, *BOTH)
        [first] = add_faults(network, BOTH[0], limited_every=1, retry_after_s=60)
        async with open_test_engine(network, doh_urls=BOTH) as engine:
            for number in range(100):
                began = trio.current_time()
                assert isinstance(await engine.routes.find(f"d{number}.test"), Route)
                assert trio.current_time() - began <= 2 * ROUND_TRIP_S + 0.001
            assert engine.routes.failing_resolvers() == [BOTH[0]]
    assert first.questions == 1


async def test_a_silent_second_endpoint_does_not_delay_the_retry_at_the_first(
    autojump_clock,
):
    async with open_fake_network() as network:
        network.zone.mx("shop.test", "mx.test")
        add_faults(network, BOTH[0], **SERVFAIL_ONCE)
        network.transport.endpoints[BOTH[1]] = FakeEndpoint(mode=ZoneMode.HANG)
        async with open_test_engine(network, doh_urls=BOTH) as engine:
            began = trio.current_time()
            assert isinstance(await engine.routes.find("shop.test"), Route)
            assert trio.current_time() - began < RETRY_AFTER_S[0] + 3 * ROUND_TRIP_S


PERMANENT: dict[str, dict[str, Any]] = {
    "SERVFAIL": {"servfail_first": 1_000_000},
    "503": {"unavailable_first": 1_000_000},
    "429": {"limited_every": 1},
    "429, Retry-After: 1": {"limited_every": 1, "retry_after_s": 1},
    "429, Retry-After: 0": {"limited_every": 1, "retry_after_s": 0},
    "503, Retry-After: 9999": {"unavailable_first": 1_000_000, "retry_after_s": 9999},
}


@pytest.mark.parametrize("kind", ["MX", "A"])
@pytest.mark.parametrize("faults", PERMANENT.values(), ids=PERMANENT)
async def test_a_resolver_that_always_fails_costs_few_questions(autojump_clock, faults, kind):
    """Unknown within the clock, and never no_mx."""
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(), mx="mx.test")
        kinds = frozenset({"MX"} if kind == "MX" else {"A", "AAAA"})
        counted = add_faults(network, *BOTH, kinds=kinds, **faults)
        async with open_checked_engine(network, doh_urls=BOTH) as engine:
            [verdict] = await verify(engine, "known@shop.test")
    assert fields_of(verdict) == UNKNOWN
    assert verdict.mx_found == (kind == "A")
    assert verdict.latency_ms <= (1550 if kind == "MX" else 3050)
    for faults in counted:
        assert faults.questions <= len(kinds) * (1 + len(RETRY_AFTER_S))


@pytest.mark.parametrize("deferred_start", [False, True])
async def test_a_name_that_is_really_broken_costs_few_questions(autojump_clock, deferred_start):
    """The endpoint answers other names: so a list waits no longer for it than a request."""
    async with open_fake_network() as network:
        network.zone.mode("bogus.test", ZoneMode.SERVFAIL)
        add_faults(network, *BOTH)
        async with open_test_engine(network, doh_urls=BOTH) as engine:
            began = trio.current_time()
            answer = await engine.routes.find("bogus.test", deferred_start=deferred_start)
            assert isinstance(answer, LookupFailed)
            assert trio.current_time() - began < LOOKUP_S
            await trio.sleep(30)
            asked = network.zone.queries["bogus.test", "MX"]
    assert asked == len(BOTH) * (1 + len(RETRY_AFTER_S))


@pytest.mark.parametrize("deferred_start", [False, True])
@pytest.mark.parametrize("kind", ["A", "AAAA"])
@pytest.mark.parametrize("urls", [ENDPOINTS, BOTH], ids=["one", "both"])
async def test_one_failure_for_a_shared_exchange_loses_no_row(
    autojump_clock, urls, kind, deferred_start
):
    async with open_fake_network() as network:
        host = MailHost()
        for number in range(50):
            address = "2a00::9" if kind == "AAAA" else None
            network.add(f"d{number}.test", host, mx="mx.test", address=address)
        add_faults(network, *urls, kinds=frozenset({kind}), **SERVFAIL_ONCE)
        texts = [f"known@d{number}.test" for number in range(50)]
        async with open_checked_engine(network, doh_urls=urls) as engine:
            verdicts = await verify(engine, *texts, deferred_start=deferred_start)
    assert Counter(map(fields_of, verdicts)) == {DELIVERABLE: 50}


@pytest.mark.parametrize("mode", [ZoneMode.SERVFAIL, ZoneMode.HANG])
async def test_a_failed_look_up_of_an_exchange_is_not_shared_with_later_domains(
    autojump_clock, mode
):
    """Neither with a domain that comes after it, nor with one that came while it was failing."""
    async with open_fake_network() as network:
        host = MailHost()
        for number in range(150):
            network.add(f"d{number}.test", host, mx="mx.test")
        network.zone.mode("mx.test", mode)
        verdicts: dict[int, Any] = {}

        async def verify_later(number: int) -> None:
            await trio.sleep(number * 0.05)
            [verdicts[number]] = await verify(engine, f"known@d{number}.test")

        async with (
            open_checked_engine(network, doh_urls=ENDPOINTS) as engine,
            trio.open_nursery() as nursery,
        ):
            for number in range(150):
                nursery.start_soon(verify_later, number)
            await trio.sleep(2.0)
            network.zone.mode("mx.test", None)
    for number, verdict in verdicts.items():
        assert verdict.latency_ms <= 3050
        if number * 0.05 > 1.7:  # its clock runs for longer than the trouble
            assert fields_of(verdict) == DELIVERABLE


async def test_a_caller_that_joins_a_failing_look_up_gets_one_new_look_up(autojump_clock):
    """However many there are: the list's callers have no deadline that would end it."""
    async with open_fake_network() as network:
        network.zone.mode("mx.test", ZoneMode.SERVFAIL)
        ended: list[int] = []

        async def find(number: int) -> None:
            await trio.sleep(0.15 + number * 0.001)
            await engine.routes.addresses("mx.test", deferred_start=True)
            ended.append(number)

        add_faults(network, *ENDPOINTS)
        async with (
            open_test_engine(network, doh_urls=ENDPOINTS) as engine,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(lambda: engine.routes.addresses("mx.test", deferred_start=True))
            for number in range(150):
                nursery.start_soon(find, number)
        assert len(ended) == 150
        asked = sum(network.zone.queries["mx.test", kind] for kind in ("A", "AAAA"))
    assert asked == 2 * 2 * (1 + len(RETRY_AFTER_S))


async def test_a_broken_exchange_that_many_domains_share_costs_few_questions(autojump_clock):
    async with open_fake_network() as network:
        for number in range(150):
            network.add(f"d{number}.test", MailHost(), mx="mx.test")
        network.zone.mode("mx.test", ZoneMode.SERVFAIL)
        texts = [f"known@d{number}.test" for number in range(150)]
        async with open_checked_engine(network, doh_urls=BOTH) as engine:
            verdicts = await verify(engine, *texts, deferred_start=True)
            asked = sum(network.zone.queries["mx.test", kind] for kind in ("A", "AAAA"))
    assert Counter(map(fields_of, verdicts)) == {UNKNOWN: 150}
    assert asked < 100


@pytest.mark.parametrize("deferred_start", [False, True])
@pytest.mark.parametrize(
    ("faults", "count", "lasts_s"),
    [
        ({"unavailable_first": 40}, 100, 1.5),
        ({"limited_first": 40}, 100, 1.5),
        ({"limited_first": 40, "retry_after_s": 1}, 100, 1.5),
        ({"servfail_first": 2}, 100, 1.5),
    ],
)
async def test_many_look_ups_survive_a_short_trouble(
    autojump_clock, faults, count, lasts_s, deferred_start
):
    async with open_fake_network() as network:
        for number in range(count):
            network.zone.mx(f"d{number}.test", "mx.test")
        add_faults(network, *ENDPOINTS, **faults)
        found = []

        async def find(domain: str) -> None:
            found.append(await engine.routes.find(domain, deferred_start=deferred_start))

        async with open_test_engine(network, doh_urls=ENDPOINTS) as engine:
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                for number in range(count):
                    nursery.start_soon(find, f"d{number}.test")
            assert trio.current_time() - began <= lasts_s
    assert Counter(type(answer) for answer in found) == {Route: count}


@pytest.mark.parametrize("retry_after_s", [None, 1.0])
async def test_a_list_goes_at_the_pace_that_its_only_endpoint_allows(autojump_clock, retry_after_s):
    """Twenty questions a second are answered; no row is lost, and few questions are refused."""
    async with open_fake_network() as network:
        # A host takes 512 refusals in ten minutes, and each domain's test costs it one.
        hosts = [MailHost() for _ in range(2)]
        for number in range(600):
            network.add(f"d{number}.test", hosts[number % 2], mx=f"mx{number % 2}.test")
        [faults] = add_faults(network, *ENDPOINTS, per_second=20, retry_after_s=retry_after_s)
        texts = [f"known@d{number}.test" for number in range(600)]
        async with open_checked_engine(network, doh_urls=ENDPOINTS) as engine:
            began = trio.current_time()
            verdicts = await verify(engine, *texts, deferred_start=True)
            lasted_s = trio.current_time() - began
    assert Counter(map(fields_of, verdicts)) == {DELIVERABLE: 600}
    assert lasted_s < 2.5 * 600 / 20
    assert faults.questions < 600 * 1.5


async def test_every_tenth_question_refused_costs_a_list_no_row(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost()
        for number in range(300):
            network.add(f"d{number}.test", host, mx="mx.test")
        [faults] = add_faults(network, *ENDPOINTS, limited_every=10, retry_after_s=1)
        texts = [f"known@d{number}.test" for number in range(300)]
        async with open_checked_engine(network, doh_urls=ENDPOINTS) as engine:
            verdicts = await verify(engine, *texts, deferred_start=True)
    assert Counter(map(fields_of, verdicts)) == {DELIVERABLE: 300}
    assert faults.questions < 500


async def test_a_list_waits_for_the_longest_retry_after(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(), mx="mx.test")
        [faults] = add_faults(network, *ENDPOINTS, limited_first=1, retry_after_s=9999)
        async with open_checked_engine(network, doh_urls=ENDPOINTS) as engine:
            began = trio.current_time()
            [verdict] = await verify(engine, "known@shop.test", deferred_start=True)
            assert 60 <= trio.current_time() - began < 61
    assert fields_of(verdict) == DELIVERABLE
    assert faults.questions == 3


async def test_an_endpoint_that_refuses_everything_is_queried_at_the_pace_it_allows(autojump_clock):
    """However many requests there are; and what nobody waits for any more is not asked."""
    async with open_fake_network() as network:
        [faults] = add_faults(network, *ENDPOINTS, limited_every=1, retry_after_s=1)
        async with open_test_engine(network, doh_urls=ENDPOINTS) as engine:
            async with trio.open_nursery() as nursery:
                for number in range(1_000):
                    nursery.start_soon(engine.routes.find, f"d{number}.test")
                    await trio.sleep(0.01)
            assert faults.questions <= 12  # in ten seconds, with those of the first moment
            await trio.sleep(5)
            assert faults.questions <= 12
            [endpoint] = engine.routes.resolver_set.endpoints
            assert not endpoint.queue.waiting


async def test_a_list_survives_a_resolver_that_fails_for_all_names(autojump_clock):
    """SERVFAIL for everything, as of a resolver without a way out, says nothing of a name."""
    async with open_fake_network() as network:
        host = MailHost()
        for number in range(300):
            network.add(f"d{number}.test", host, mx="mx.test")
        texts = [f"known@d{number}.test" for number in range(300)]
        network.transport.endpoints[ENDPOINTS[0]] = FakeEndpoint(mode=ZoneMode.SERVFAIL)

        async def recover() -> None:
            await trio.sleep(3.0)
            network.transport.endpoints.clear()

        async with (
            open_checked_engine(network, doh_urls=ENDPOINTS) as engine,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(recover)
            verdicts = await verify(engine, *texts, deferred_start=True)
    assert Counter(map(fields_of, verdicts)) == {DELIVERABLE: 300}
