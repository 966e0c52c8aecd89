"""A host that answers some recipients late, or never, delays nobody else."""

import pytest
import trio

from engine.testing.hosts import EHLO_LINES, MailHost
from engine.testing.personalities import NO_PIPELINING, new_host
from engine.testing.world import open_world
from engine.verdict import Verdict
from tests.engine.smtp.test_pool import ask, engine_over
from tests.engine.test_outcomes import TIMED_OUT, told

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
    async with open_world() as world:
        host = MailHost(ehlo_lines=OFFERS[offer], reply_s=0.02, unknown_delay_s=delay_s)
        world.add("shop.test", host)
        async with engine_over(world) as engine:
            verdicts = await ask(engine, *mixed(50, 15))
            assert host.record.connections_peak <= 4
    assert found(verdicts) >= 0.95
    assert not any(v.status == "deliverable" for v in verdicts if v.email.startswith("gone"))
    assert max(verdict.latency_ms for verdict in verdicts) <= 3050


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("delay_s", [0.6, 5.0])
async def test_a_tarpit_hides_no_living_mailbox_of_a_list(autojump_clock, offer, delay_s):
    async with open_world() as world:
        host = MailHost(ehlo_lines=OFFERS[offer], reply_s=0.02, unknown_delay_s=delay_s)
        world.add("shop.test", host)
        async with engine_over(world) as engine:
            verdicts = await ask(engine, *mixed(400, 15), patient=True)
    assert found(verdicts) >= 0.99
    assert not any(v.status == "deliverable" for v in verdicts if v.email.startswith("gone"))


@pytest.mark.parametrize("personality", ["silent for some", "silent for some, in step"])
@pytest.mark.parametrize("places", [(0, 1), (0, 4), (3, 7)])
async def test_two_silent_recipients_of_eight_hide_no_other(autojump_clock, personality, places):
    async with open_world() as world:
        world.add("shop.test", new_host(personality, reply_s=0.02))
        texts = [f"known{'.silent' if n in places else n}{n}@shop.test" for n in range(8)]
        async with engine_over(world) as engine:
            verdicts = await ask(engine, *texts)
    for place, verdict in enumerate(verdicts):
        if place in places:
            assert told(verdict) == TIMED_OUT
        else:
            assert verdict.status == "deliverable"


async def test_a_neighbour_at_a_tarpit_is_answered(autojump_clock):
    """One account asks for nothing but unknown recipients: another's turn comes all the same."""
    async with open_world() as world:
        world.add("shop.test", MailHost(reply_s=0.02, unknown_delay_s=5.0))
        async with engine_over(world) as engine, trio.open_nursery() as nursery:
            unknown = [f"gone{n}@shop.test" for n in range(200)]
            for number in range(4):
                nursery.start_soon(lambda n=number: ask(engine, *unknown[n::4], asker="theirs"))
            for number in range(6):
                [verdict] = await ask(engine, f"known{number}@shop.test")
                assert verdict.status == "deliverable"
                assert verdict.latency_ms < 3050


async def test_one_slow_reply_is_forgotten_in_time(autojump_clock):
    """After many prompt replies several recipients are asked at a time again."""
    async with open_world() as world:
        host = MailHost(slow_s={"known3@": 0.5}, reply_s=0.001)
        world.add("shop.test", host)
        async with engine_over(world) as engine:
            texts = [f"known{n}@shop.test" for n in range(1_000)]
            verdicts = await ask(engine, *texts, patient=True)
            (pool,) = engine.prober._pools.values()
            assert pool.window() == 8
    assert found(verdicts) == 1.0
