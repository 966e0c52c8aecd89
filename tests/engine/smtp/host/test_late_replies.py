"""A host that answers some recipients late, or never, delays nobody else."""

import heapq
import itertools
import random
from collections import deque
from functools import partial
from typing import Any

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.host_profiles import NO_PIPELINING, new_host
from mailprobe.bench.world.mail_host import EHLO_LINES, MailHost
from mailprobe.engine.verdict import Verdict
from tests.engine.engine_runs import TIMED_OUT, fields_of, knowns, open_checked_engine, verify

OFFERS = {"pipelined": EHLO_LINES, "in step": NO_PIPELINING}


def mixed(count: int, unknown_of_100: int, domain: str = "shop.test") -> list[str]:
    """So many addresses, of which this share is unknown to the host, spread evenly."""
    return [
        f"{'gone' if n * unknown_of_100 % 100 < unknown_of_100 else 'known'}{n}@{domain}"
        for n in range(count)
    ]


def found(verdicts: list[Verdict]) -> float:
    """The share of the living mailboxes that were called deliverable."""
    living = [verdict for verdict in verdicts if verdict.email.startswith("known")]
    return sum(verdict.status == "deliverable" for verdict in living) / len(living)


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("delay_s", [0.6, 5.0])
async def test_a_tarpit_hides_few_living_mailboxes_of_a_batch(autojump_clock, offer, delay_s):
    """15 % of 50 are unknown; a refusal takes 5 s (Exchange), an acceptance 20 ms."""
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=OFFERS[offer], reply_s=0.02, unknown_delay_s=delay_s)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            verdicts = await verify(engine, *mixed(50, 15))
            assert host.record.connections_peak <= 4
    assert found(verdicts) >= 0.95
    assert not any(v.status == "deliverable" for v in verdicts if v.email.startswith("gone"))
    assert max(verdict.latency_ms for verdict in verdicts) <= 3050


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("delay_s", [0.6, 5.0])
async def test_a_tarpit_hides_no_living_mailbox_of_a_list(autojump_clock, offer, delay_s):
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=OFFERS[offer], reply_s=0.02, unknown_delay_s=delay_s)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            verdicts = await verify(engine, *mixed(200, 15), deferred_start=True)
    assert found(verdicts) >= 0.99
    assert not any(v.status == "deliverable" for v in verdicts if v.email.startswith("gone"))


@pytest.mark.parametrize("profile", ["silent for some", "silent for some, in step"])
@pytest.mark.parametrize("places", [(0, 1), (0, 4), (3, 7)])
async def test_two_silent_recipients_of_eight_hide_no_other(autojump_clock, profile, places):
    async with open_fake_network() as network:
        network.add("shop.test", new_host(profile, reply_s=0.02))
        texts = [f"known{'.silent' if n in places else n}{n}@shop.test" for n in range(8)]
        async with open_checked_engine(network) as engine:
            verdicts = await verify(engine, *texts)
    for place, verdict in enumerate(verdicts):
        if place in places:
            assert fields_of(verdict) == TIMED_OUT
        else:
            assert verdict.status == "deliverable"


async def test_a_neighbour_at_a_tarpit_is_answered(autojump_clock):
    """One account asks for nothing but unknown recipients: another's turn comes all the same."""
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(reply_s=0.02, unknown_delay_s=5.0))
        async with open_checked_engine(network) as engine, trio.open_nursery() as nursery:
            unknown = [f"gone{n}@shop.test" for n in range(200)]
            for number in range(4):
                nursery.start_soon(partial(verify, engine, *unknown[number::4], account="theirs"))
            for number in range(4):
                [verdict] = await verify(engine, f"known{number}@shop.test")
                assert verdict.status == "deliverable"
                assert verdict.latency_ms < 3050


async def test_one_slow_reply_is_forgotten_in_time(autojump_clock):
    """After many prompt replies several recipients are asked at a time again."""
    async with open_fake_network() as network:
        host = MailHost(slow_s={"known3@": 0.5}, reply_s=0.001)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            texts = knowns(1_000)
            verdicts = await verify(engine, *texts, deferred_start=True)
            (probed,) = engine.probing.egresses[0].hosts.values()
            assert probed.window() == 8
    assert found(verdicts) == 1.0


# -- at real distances -----------------------------------------------------------------------

FAR: dict[str, dict[str, Any]] = {
    "100 ms": {"latency_s": 0.1},
    "100 ms and the connect": {"latency_s": 0.1, "connect_s": 0.1},
    "100 ms and 20 ms of work": {"latency_s": 0.1, "reply_s": 0.02},
    "150 ms": {"latency_s": 0.15},
    "50 ms of work": {"reply_s": 0.05},
}
FARTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "150 ms in step": ("in step", {"latency_s": 0.15}),
    "150 ms and the connect": ("pipelined", {"latency_s": 0.15, "connect_s": 0.15}),
    "150 ms and the connect, in step": ("in step", {"latency_s": 0.15, "connect_s": 0.15}),
    "200 ms and the connect, in step": ("in step", {"latency_s": 0.2, "connect_s": 0.2}),
    "100 ms of work": ("pipelined", {"reply_s": 0.1}),
}
BATCH = 50
UNKNOWN = 8


def shuffled(seed: int) -> list[str]:
    """A batch of 50 with 8 unknown, at random places."""
    unknown = set(random.Random(seed).sample(range(BATCH), UNKNOWN))
    return [f"{'gone' if n in unknown else 'known'}{n}@shop.test" for n in range(BATCH)]


def best_possible(
    texts: list[str],
    *,
    pipelined: bool,
    connect_s: float = 0.0,
    latency_s: float = 0.0,
    reply_s: float = 0.0,
    delay_s: float,
) -> float:
    """The share of the living mailboxes that the best prober would find in 3 s.

    It has 4 connections, the third and fourth once the first is greeted. It sees the moment
    at which a reply becomes late, and then opens another connection or waits, whichever is
    cheaper. A round that a late reply ends proves none of its answers. One random address
    is asked, too. It knows the best depth of a round, and that is all it knows beforehand.
    """
    step_s = latency_s + reply_s
    greeting_s = connect_s + 2 * step_s
    opening_s = greeting_s + (0.0 if pipelined else step_s)
    found = []
    for depth in range(1, 9 if pipelined else 2):
        waiting = deque(text.startswith("gone") for text in texts)
        waiting.insert(1, True)  # the random address
        begun = [(opening_s, n, True) for n in (0, 1)]
        begun += [(greeting_s + opening_s, n, True) for n in (2, 3)]
        reported = 0
        while begun and waiting and begun[0][0] <= 3:
            now, number, fresh = heapq.heappop(begun)
            asked = [waiting.popleft() for _ in range(min(depth, len(waiting)))]
            now += latency_s + (reply_s if fresh and pipelined else 0.0)
            accepted, late = 0, False
            while asked and not late:
                now += reply_s
                if not asked.pop(0):
                    accepted += now <= 3
                elif delay_s <= opening_s:
                    now += delay_s
                else:
                    late = True
            waiting.extendleft(reversed(asked))
            if late:
                waiting.extendleft([False] * accepted)
            else:
                reported += accepted
            heapq.heappush(begun, (now + opening_s * late, number, late))
        found.append(reported)
    return max(found) / sum(text.startswith("known") for text in texts)


async def found_at(host: MailHost, texts: list[str]) -> float:
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            verdicts = await verify(engine, *texts)
            assert host.record.connections_peak <= 4
    assert not any(v.status == "deliverable" for v in verdicts if v.email.startswith("gone"))
    assert not any(v.status == "undeliverable" for v in verdicts if v.email.startswith("known"))
    assert max(verdict.latency_ms for verdict in verdicts) <= 3050
    return found(verdicts)


@pytest.mark.parametrize(
    ("offer", "distance"),
    [each for each in itertools.product(OFFERS, FAR) if each != ("in step", "150 ms")],
)  # the best prober can't do that in step: see the next test
@pytest.mark.parametrize("delay_s", [0.25, 0.6, 5.0])
async def test_a_tarpit_far_away_hides_few_living_mailboxes(
    autojump_clock, offer, distance, delay_s
):
    host = MailHost(ehlo_lines=OFFERS[offer], **FAR[distance], unknown_delay_s=delay_s)
    assert await found_at(host, mixed(BATCH, 15)) >= 0.95


@pytest.mark.parametrize("distance", FARTHER)
@pytest.mark.parametrize("delay_s", [0.6, 5.0])
async def test_where_not_all_can_be_found_most_of_those_are_that_can(
    autojump_clock, distance, delay_s
):
    offer, ways = FARTHER[distance]
    ours = best = 0.0
    for seed in range(4):
        texts = shuffled(seed)
        host = MailHost(ehlo_lines=OFFERS[offer], **ways, unknown_delay_s=delay_s)
        ours += await found_at(host, texts) / 4
        best += best_possible(texts, pipelined=offer == "pipelined", delay_s=delay_s, **ways) / 4
    assert ours >= 0.8 * best  # 0.85 to 0.92 measured; a fixed late threshold costs the rest


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("latency_s", [0.0, 0.1])
@pytest.mark.parametrize("accepting_s", [0.3, 0.4])
async def test_a_host_that_accepts_late_is_waited_for(
    autojump_clock, offer, latency_s, accepting_s
):
    """It greets us at once and takes its time for each recipient: that is no tarpit."""
    slow_s = {"known": accepting_s, "gone": accepting_s}
    host = MailHost(ehlo_lines=OFFERS[offer], latency_s=latency_s, slow_s=slow_s)
    assert await found_at(host, mixed(10, 15)) == 1.0


@pytest.mark.parametrize(("accounts", "connect_s"), [(1, 0.0), (4, 0.0), (1, 0.2)])
@pytest.mark.parametrize("offer", OFFERS)
async def test_a_neighbour_at_a_tarpit_far_away_is_answered(
    autojump_clock, offer, connect_s, accounts
):
    async with open_fake_network() as network:
        latency_s = connect_s or 0.1
        network.add(
            "shop.test",
            MailHost(
                ehlo_lines=OFFERS[offer],
                latency_s=latency_s,
                connect_s=connect_s,
                unknown_delay_s=5.0,
            ),
        )
        async with open_checked_engine(network) as engine, trio.open_nursery() as nursery:
            unknown = [f"gone{n}@shop.test" for n in range(200)]
            for number in range(4):
                account = f"theirs{number % accounts}"
                nursery.start_soon(partial(verify, engine, *unknown[number::4], account=account))
            for number in range(4):
                [verdict] = await verify(engine, f"known{number}@shop.test")
                assert verdict.status == "deliverable"
            nursery.cancel_scope.cancel()
