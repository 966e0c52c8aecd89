"""What one egress has seen of a host holds for another only as far as the host treats both alike."""

from collections.abc import Sequence

import pytest
import trio

from mailprobe.bench.world.host_behaviours import Turning
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Answer
from mailprobe.engine.egress import Egress
from tests.engine.smtp.egress.worlds import (
    A,
    B,
    World,
    answers_of,
    open_engine_of,
    open_world,
    reasons,
)

BOTH = pytest.mark.parametrize("deferred_start", [False, True], ids=["requests", "list"])
UNKNOWN = MailHost().default_unknown


def wrong(found: Sequence[Answer], *right: str) -> list[str]:
    """The addresses whose status is neither true, nor unknown, nor one of these."""
    return [
        f"{answer.verdict.email} {answer.verdict.status}"
        for answer in found
        if answer.verdict.status
        not in (
            "unknown",
            "deliverable" if answer.verdict.email.startswith("known") else "undeliverable",
            *right,
        )
    ]


def use(world: World, egress: str) -> None:
    """All others are paused."""
    assert world.control is not None
    world.control.pause(*{"a", "b"} - {egress})


def other_host(world: World, domain: str, host: MailHost) -> None:
    """The egress "a" meets this one at the domain."""
    [address] = world.network.zone.names[f"mx.{domain}"].addresses
    world.hosts["a"].hosts[address] = host


@BOTH
@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("rest_s", [None, 30.0])
async def test_a_host_that_turns_on_one_egress_is_not_believed_by_the_next(
    autojump_clock, rest_s, first, deferred_start
):
    """It bans the sender or the network, not the address: so it refuses everybody, by each way."""
    rows = [Egress(name, weight=1e9 if name == first else 1) for name in "ab"]
    async with open_world() as world:
        turn = Turning(3, reply=UNKNOWN, rest_s=rest_s)
        [domain] = world.add(1, turn=turn, latency_s=0.02)
        async with open_engine_of(world, *rows) as engine:
            texts = [f"known{number}@{domain}" for number in range(3)]
            found = await answers_of(engine, texts, deferred_start=deferred_start)
            for round_ in range(8):
                texts = [f"nobody{round_}{number}@{domain}" for number in range(2)]
                texts += [f"known{round_}{number}@{domain}" for number in range(8)]
                found += await answers_of(engine, texts, deferred_start=deferred_start)
                await trio.sleep(20)
            assert wrong(found) == []
            assert min(world.dialled.values()) > 0


@BOTH
async def test_a_host_that_refuses_everybody_of_one_egress_is_compared_with_the_other(
    autojump_clock, deferred_start
):
    async with open_world() as world:
        [domain] = world.add(1)
        other_host(world, domain, MailHost(default_known=UNKNOWN))
        async with open_engine_of(world, A, B) as engine:
            use(world, "b")
            texts = [f"known@{domain}", f"nobody@{domain}"]
            found = await answers_of(engine, texts, deferred_start=deferred_start)
            for _ in range(3):
                use(world, "a")
                texts = [f"known{number}@{domain}" for number in range(20)]
                found += await answers_of(engine, texts, deferred_start=deferred_start)
                await trio.sleep(1800)
            assert wrong(found) == []
            assert reasons(found)["accepted"] == 1


@BOTH
async def test_a_host_that_accepts_everybody_of_one_egress_is_tested_by_it(
    autojump_clock, deferred_start
):
    async with open_world() as world:
        [domain] = world.add(1)
        other_host(world, domain, MailHost(catch_all=True))
        async with open_engine_of(world, A, B) as engine:
            use(world, "b")
            texts = [f"known@{domain}", f"nobody@{domain}"]
            found = await answers_of(engine, texts, deferred_start=deferred_start)
            use(world, "a")
            texts = [f"nobody{number}@{domain}" for number in range(20)]
            found += await answers_of(engine, texts, deferred_start=deferred_start)
            assert wrong(found, "catch_all") == []
            # What such an egress saw accepted is not a control for the other one.
            use(world, "b")
            texts = [f"gone{number}@{domain}" for number in range(20)]
            found = await answers_of(engine, texts, deferred_start=deferred_start)
            assert reasons(found) == {"no_mailbox": 20}


@BOTH
async def test_a_host_that_refuses_unknown_recipients_of_both_is_tested_by_one(
    autojump_clock, deferred_start
):
    async with open_world() as world:
        domains = world.add(20, is_shared=True, mx="mx.hoster.test")
        texts = [f"known@{domain}" for domain in domains]
        async with open_engine_of(world, A, B) as engine:
            for egress in "ab":
                use(world, egress)
                for each in ([f"nobody@{domains[0]}"], texts):
                    before = world.recipients
                    found = await answers_of(engine, each, deferred_start=deferred_start)
                    assert reasons(found).total() == len(each)
                    assert wrong(found) == []
            assert world.recipients <= before + len(texts) + 1  # a control


@BOTH
async def test_a_refusal_is_believed_by_an_egress_that_is_new_to_a_host_of_the_other(
    autojump_clock, deferred_start
):
    async with open_world() as world:
        [domain] = world.add(1)
        async with open_engine_of(world, A, B) as engine:
            use(world, "b")
            await answers_of(engine, [f"known@{domain}"], deferred_start=deferred_start)
            use(world, "a")
            sent = world.recipients
            found = await answers_of(engine, [f"nobody@{domain}"], deferred_start=deferred_start)
            assert reasons(found) == {"no_mailbox": 1}
            assert world.recipients <= sent + 3  # with the one that was accepted before, and a test
            texts = [f"nobody{number}@{domain}" for number in range(2)]
            found = await answers_of(engine, texts, deferred_start=deferred_start)
            assert reasons(found) == {"no_mailbox": 2}
