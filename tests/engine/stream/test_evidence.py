"""The evidence that a stream gives for a verdict."""

import random
from dataclasses import replace

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import Late
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import (
    Answer,
    Engine,
    open_answers,
)
from mailprobe.engine.evidence import Evidence
from tests.engine.engine_runs import DELIVERABLE, TIMED_OUT, fields_of, open_test_engine, verify
from tests.engine.stream.streams import collect
from tests.seeds import seeds


def evidence_of(answer: Answer) -> Evidence:
    assert answer.evidence is not None
    return answer.evidence


async def explain(engine: Engine, text: str) -> Answer:
    [answer] = await collect(engine, text, explain=True)
    assert answer.evidence is not None
    return answer


async def test_evidence_is_given_only_where_it_is_wanted(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        async with open_test_engine(network) as engine:
            [answer] = await collect(engine, "known@shop.test")
        assert answer.evidence is None


async def test_the_evidence_of_a_plain_case(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(latency_s=0.1, connect_s=0.1)
        address = network.add("shop.test", host)
        async with open_test_engine(network) as engine:
            answer = await explain(engine, "nobody@shop.test")
        evidence = evidence_of(answer)
        assert [(t.exchange, t.address, t.result) for t in evidence.exchanges] == [
            ("mx.shop.test", address, "answered")
        ]
        assert evidence.cached == []
        assert evidence.rule
        said = [line.text for line in evidence.conversation if line.who == "client"]
        assert [line.split(":")[0].split(" ")[0] for line in said] == [
            "(connect)",
            "EHLO",
            "MAIL",
            "RCPT",
        ]
        assert said[-1] == "RCPT TO:<nobody@shop.test>"
        received = [line.text for line in evidence.conversation if line.who == "server"]
        assert received[0].startswith("220 ")
        assert received[-1].startswith("550 5.1.1 <nobody@shop.test>")
        times = [line.at_ms for line in evidence.conversation]
        assert all(0 <= at_ms <= answer.verdict.latency_ms for at_ms in times)
        assert evidence.conversation[-1].at_ms == 400
        assert answer.verdict.latency_ms == 400


async def test_the_evidence_of_a_reused_connection(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        async with open_test_engine(network) as engine:
            await collect(engine, "known1@shop.test")
            await trio.sleep(1)
            answer = await explain(engine, "known2@shop.test")
        assert set(evidence_of(answer).cached) == {"mx", "addresses", "connection", "catch_all"}
        said = [line.text for line in evidence_of(answer).conversation if line.who == "client"]
        assert said[-1] == "RCPT TO:<known2@shop.test>"
        assert not any("known1" in line for line in said)


async def test_the_evidence_of_what_is_remembered_on_a_new_connection(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost())
        async with open_test_engine(network) as engine:
            await collect(engine, "known1@shop.test")
            await trio.sleep(60)
            answer = await explain(engine, "known2@shop.test")
        assert set(evidence_of(answer).cached) == {"mx", "addresses", "catch_all"}


async def test_the_evidence_shows_the_random_address(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(catch_all=True))
        async with open_test_engine(network) as engine:
            answer = await explain(engine, "ann@shop.test")
        said = [line.text for line in evidence_of(answer).conversation if line.who == "client"]
        assert len([line for line in said if line.startswith("RCPT")]) == 2


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("refused", "nothing listens"),
        ("silent", "silent at banner"),
        ("unanswered", "no answer to connect"),
        ("blocked at banner", "554"),
        ("garbage", "not a reply"),
    ],
)
async def test_the_evidence_of_a_failover(autojump_clock, first, words):
    async with open_fake_network() as network:
        bad = network.add("shop.test", new_host(first), mx="mx1.shop.test", preference=10)
        good = network.add("shop.test", MailHost(), mx="mx2.shop.test", preference=20)
        async with open_test_engine(network) as engine:
            answer = await explain(engine, "known@shop.test")
        assert fields_of(answer.verdict) == DELIVERABLE
        tried = evidence_of(answer).exchanges
        assert [(t.exchange, t.address) for t in tried] == [
            ("mx1.shop.test", bad),
            ("mx2.shop.test", good),
        ]
        assert words in tried[0].result
        assert tried[1].result == "answered"


async def test_the_evidence_of_a_host_that_rests(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", new_host("blocked at banner"))
        async with open_test_engine(network) as engine:
            for number in range(3):
                await collect(engine, f"a{number}@shop.test")
            answer = await explain(engine, "ann@shop.test")
        assert "rest" in evidence_of(answer).cached
        assert "resting" in evidence_of(answer).exchanges[-1].result
        assert evidence_of(answer).conversation == []
        assert answer.verdict.latency_ms == 0


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("nobody at all", "syntax: "),
        ("ann@mailinator.com", "disposable"),
        ("ann@nowhere.test", "no_mx: "),
    ],
)
async def test_the_evidence_of_what_never_reached_a_host(autojump_clock, text, rule):
    async with open_fake_network() as network, open_test_engine(network) as engine:
        answer = await explain(engine, text)
    evidence = evidence_of(answer)
    assert evidence.rule is not None
    assert evidence.rule.startswith(rule)
    assert (evidence.exchanges, evidence.conversation) == ([], [])


@pytest.mark.parametrize("seed", range(seeds(40)))
async def test_an_explanation_changes_no_verdict(autojump_clock, seed):
    """The same network with the same seed, with evidence and without."""
    reported_of: list[list[tuple[object, ...]]] = []
    for explained in (False, True):
        rng = random.Random(seed)
        async with open_fake_network(seed=seed) as network:
            for number in range(4):
                name = rng.choice(["friendly", "catch all", "exim", "greylisting", "no pipelining"])
                host = new_host(name, latency_s=rng.choice([0.0, 0.05]))
                host = replace(host, faults={"nobody3": Late(rng.choice([0.5, 1.5]))})
                network.add(f"d{number}.test", host)
            texts = [
                f"{kind}{n}@d{d}.test"
                for d in range(4)
                for n in range(6)
                for kind in ("known", "nobody")
            ]
            async with open_test_engine(network) as engine:
                answers = await collect(engine, *texts, explain=explained)
        reported_of.append(sorted((a.position, *fields_of(a.verdict)) for a in answers))
    assert reported_of[0] == reported_of[1]


async def test_evidence_is_not_changed_after_it_was_given(autojump_clock):
    """What the engine learns later is not added to it."""
    async with open_fake_network() as network:
        addresses = [
            network.add(f"other{number}.test", new_host("unanswered")) for number in range(5)
        ]
        network.zone.mx("shop.test", "mx.shop.test")
        network.zone.host("mx.shop.test", *addresses)
        async with (
            open_test_engine(network, read_s=0.9) as engine,
            trio.open_nursery() as nursery,
        ):

            async def verify_bob() -> None:
                await trio.sleep(1.5)
                await verify(engine, "bob@shop.test", account="bob")

            nursery.start_soon(verify_bob)
            async with open_answers(
                engine, ["ann@shop.test"], account="me", explain=True
            ) as answers:
                [answer] = [answer async for answer in answers]
            assert fields_of(answer.verdict) == TIMED_OUT
            tried = len(evidence_of(answer).exchanges)
            await trio.sleep(5)
            assert len(evidence_of(answer).exchanges) == tried
