"""Resolvers that commit every fault by chance: each look-up ends in time, and nothing is left."""

import random
from functools import partial

import pytest
import trio

from mailprobe.engine.dns.messages import NoMail, Route, RouteAnswer
from mailprobe.engine.dns.routes import Routes, open_routes
from mailprobe.engine.settings import EngineSettings
from tests.engine.dns.faulty_resolver import EXCHANGE, FAULTS, FaultyResolver, open_faulty
from tests.seeds import seeds

LOOKUP_S = 1.5  # a request's look-up, whatever happens
LIST_S = 90.0 + 15.0  # a list's: it may wait for its turn, and outlast a resolver's trouble
SLACK_S = 0.1  # of the clock: it stands still while octets are under way
CONNECTIONS_MAX = 32
# Three queries of a look-up, each sent three times where its connections end, to two
# endpoints; a list's look-up is tried four times.
ASKED_MAX = 3 * 3
TRIES_MAX = 4
NAMES = 120


async def find(
    routes: Routes,
    name: str,
    answers: dict[str, RouteAnswer],
    *,
    deferred_start: bool,
    delay_s: float,
) -> None:
    await trio.sleep(delay_s)
    began = trio.current_time()
    answer = await routes.find(name, f"account {len(name)}", deferred_start=deferred_start)
    took_s = trio.current_time() - began
    assert took_s <= (LIST_S if deferred_start else LOOKUP_S) + SLACK_S, (name, took_s, answer)
    answers[name] = answer


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
@pytest.mark.parametrize("seed", range(seeds(60)))
async def test_each_look_up_ends_in_time_whatever_a_resolver_does(
    idle_clock, authority, ca_file, protocol, seed
):
    """Its answer is right or a failure; the next one is answered, and no connection is left."""
    rng = random.Random(seed)
    faults = {fault: share * rng.choice((0, 0, 1, 1, 3)) for fault, share in FAULTS.items()}
    first = FaultyResolver(seed, protocol, faults, streams_max=rng.choice((1, 5, 100, 1_000)))
    second = FaultyResolver(seed + 1, rng.choice(("h2", "http/1.1")))
    answers: dict[str, RouteAnswer] = {}
    async with open_faulty(authority, first), open_faulty(authority, second):
        urls = (first.url, second.url)[: rng.choice((1, 2))]
        settings = EngineSettings(doh_urls=urls, doh_ca_file=ca_file)
        async with open_routes(settings, rng=rng) as routes:
            async with trio.open_nursery() as nursery:
                for number in range(NAMES):
                    name = f"d{number}.test" if rng.random() < 0.9 else "shared.test"
                    deferred = rng.random() < 0.5
                    delay_s = rng.choice((0.0, rng.random()))
                    look_up = partial(find, routes, name, answers, deferred_start=deferred)
                    nursery.start_soon(partial(look_up, delay_s=delay_s))
                for number in range(20):  # callers that give up
                    nursery.start_soon(give_up, routes, f"g{number}.test", rng.random())
            first.cured = second.cured = True
            last = await routes.find("last.test", deferred_start=True)  # after the longest pause
            assert isinstance(last, Route)
        with trio.fail_after(5):
            while first.open_now + second.open_now:  # noqa: ASYNC110 - of what others see
                await trio.sleep(0.01)
        for resolver in (first, second):
            assert resolver.open_max <= CONNECTIONS_MAX + 8
            for name, count in resolver.asked.items():
                assert count <= ASKED_MAX * TRIES_MAX or name == ".", name
    for answer in answers.values():
        assert not isinstance(answer, NoMail)
        if isinstance(answer, Route):
            assert answer.mx_host == EXCHANGE
        else:
            assert answer.reason
    found = sum(isinstance(answer, Route) for answer in answers.values())
    assert found >= len(answers) // 3


async def give_up(routes: Routes, name: str, after_s: float) -> None:
    with trio.move_on_after(after_s):
        await routes.find(name, "impatient")


@pytest.mark.parametrize("deferred_start", [False, True])
@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
@pytest.mark.parametrize("trouble", ["dead", "refuses", "hangs", "500"])
async def test_the_second_resolver_answers_soon(
    idle_clock, authority, ca_file, protocol, trouble, deferred_start
):
    """As soon as the first one has failed, or after 0.3 s of its silence; then at once."""
    first = FaultyResolver(1, protocol, {trouble: 100}, dead=trouble == "dead")
    second = FaultyResolver(2, protocol, {})
    async with open_faulty(authority, first), open_faulty(authority, second):
        url = first.url if trouble != "refuses" else "https://127.0.0.1:1/q"
        settings = EngineSettings(doh_urls=(url, second.url), doh_ca_file=ca_file)
        async with open_routes(settings, rng=random.Random(1)) as routes:
            took_s = []
            for number in range(5):
                began = trio.current_time()
                answer = await routes.find(f"d{number}.test", deferred_start=deferred_start)
                took_s.append(trio.current_time() - began)
                assert isinstance(answer, Route)
                await trio.sleep(0.5)
    assert took_s[0] <= (0.3 if trouble in ("dead", "hangs") else 0) + SLACK_S
    assert max(took_s[1:]) <= SLACK_S


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
async def test_a_list_of_another_account_delays_no_request_at_a_narrow_resolver(
    idle_clock, authority, ca_file, protocol
):
    """Accounts take turns, though the resolver takes few questions at a time."""
    resolver = FaultyResolver(1, protocol, {"late": 100}, streams_max=5)
    async with open_faulty(authority, resolver):
        settings = EngineSettings(doh_urls=(resolver.url,), doh_ca_file=ca_file)
        async with open_routes(settings, rng=random.Random(1)) as routes:
            await routes.find("first.test")  # so that we know how many
            async with trio.open_nursery() as nursery:
                for number in range(400):
                    name = f"d{number}.test"
                    nursery.start_soon(partial(routes.find, name, "list", deferred_start=True))
                await trio.sleep(0.2)
                began = trio.current_time()
                assert isinstance(await routes.find("request.test", "other"), Route)
                took_s = trio.current_time() - began
    assert took_s <= 2 * 0.05 + SLACK_S
    assert set(resolver.asked.values()) == {1}
