"""In a calm world every verdict is the truth: `unknown` is no excuse.

Hosts are slow, limit what they take and split their replies, but nothing goes
wrong. A list that waits for a seat, and for what its hosts take, gets sure answers,
whatever else is asked.
"""

import random

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import EngineSettings
from tests.engine.engine_runs import open_test_engine
from tests.engine.invariants import assert_whole
from tests.seeds import seeds
from tests.simulation.lists_with_patience import ask_in_passes

# 541: six domains at a host that takes one connection and one recipient.
SEEDS = (*range(seeds(100)), 541)
SERVERS = (
    *("friendly", "postfix", "exim", "opensmtpd", "exchange", "google"),
    *("no pipelining", "one recipient", "few connections"),
)
DOMAINS = [f"d{number}.test" for number in range(6)]


def make_host(rng: random.Random) -> MailHost:
    return new_host(
        rng.choice(SERVERS),
        latency_s=rng.choice((0.0, 0.01, 0.05, 0.1)),
        reply_s=rng.choice((0.0, 0.0, 0.01)),
        splits=rng.random() < 0.3,
        idle_s=rng.choice((None, 1.0, 2.0)),
        connections_max=rng.choice((None, None, 1, 2)),
        catch_all=frozenset(domain for domain in DOMAINS if rng.random() < 0.3),
    )


def make_network(network: FakeNetwork, rng: random.Random) -> dict[str, MailHost]:
    """Domains over one to three hosts, by a name that they share or one of their own."""
    hosts = [make_host(rng) for _ in range(rng.randint(1, 3))]
    where = {}
    for domain in DOMAINS:
        number = rng.randrange(len(hosts))
        where[domain] = hosts[number]
        network.add(domain, hosts[number], mx=rng.choice((f"mx.{domain}", f"mx{number}.test")))
    return where


def truth(email: str, where: dict[str, MailHost]) -> tuple[str, float]:
    local, _, domain = email.partition("@")
    if domain in where[domain].catch_all:  # type: ignore[operator]
        return "catch_all", 0.65
    return ("deliverable", 0.97) if local.startswith("known") else ("undeliverable", 0.02)


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_verdict_is_the_truth(autojump_clock, seed):
    rng = random.Random(seed)
    settings = EngineSettings(host_connections=rng.choice((1, 2, 4)))
    async with open_fake_network(seed=seed) as network:
        where = make_network(network, rng)

        async def clean(account: str, texts: list[str], start_s: float) -> None:
            await trio.sleep(start_s)
            for answer in await ask_in_passes(engine, texts, account):
                reported = (answer.verdict.status, answer.verdict.confidence)
                assert reported == truth(answer.verdict.email, where), answer.verdict

        async with open_test_engine(network, settings, rng=rng) as engine:
            async with trio.open_nursery() as nursery:
                for number in range(rng.randint(1, 4)):
                    texts = [
                        f"{rng.choice(('known', 'nobody'))}{rng.randrange(30)}@{rng.choice(DOMAINS)}"
                        for _ in range(rng.randint(1, 40))
                    ]
                    start_s = rng.choice((0.0, 0.3, 1.0, 2.5, 6.0))
                    nursery.start_soon(clean, f"asker{number}", texts, start_s)
            await trio.sleep(30)
            assert_whole(engine)
        assert [host.record.mistakes for host in network.hosts.values()] == [[]] * len(
            network.hosts
        )
