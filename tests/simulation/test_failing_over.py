"""Preferred exchanges that greet slowly, beside backups that lie: from seeds, never a backup's word."""

from random import Random

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.faults import Late
from mailprobe.bench.world.host_profiles import NO_PIPELINING, new_host
from mailprobe.bench.world.mail_host import EHLO_LINES, MailHost
from mailprobe.engine import Verdict
from tests.engine.engine_runs import open_checked_engine, verify
from tests.seeds import seeds

SEEDS = seeds(60)
DOMAINS = [f"d{number}.test" for number in range(5)]
DELAYS_S = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
DEAD = ("refused", "unanswered", "silent", "silent at ehlo", "blocked at banner")
LIES = ("550 5.1.1 <{rcpt}>: User unknown", "250 2.1.5 Ok", "554 5.7.1 Relay access denied")
TRUTHS = {"known": "deliverable", "nobody": "undeliverable"}


def slow_host(rng: Random) -> MailHost:
    """It greets within its read deadlines."""
    banner_s = rng.choice(DELAYS_S)
    return MailHost(
        connect_s=rng.choice(DELAYS_S),
        ehlo_lines=rng.choice((EHLO_LINES, NO_PIPELINING)),
        faults={"CONNECT": Late(banner_s)} if banner_s else {},
        latency_s=rng.choice((0.0, 0.01, 0.05)),
    )


def lying_host(rng: Random) -> MailHost:
    lie = rng.choice((*LIES, "451 4.3.0 Try again later"))
    return MailHost(
        default_known=lie, default_unknown=lie, connect_s=rng.choice((0.0, 0.0, 0.1, 0.4))
    )


def move_in(network: FakeNetwork, rng: Random, domain: str, host: MailHost) -> None:
    """The host is preferred; a dead one may be preferred more or as much, and a backup lies."""
    network.add(domain, host, mx=f"mx1.{domain}", preference=10)
    if rng.random() < 0.4:
        dead = new_host(rng.choice(DEAD))
        network.add(domain, dead, mx=f"mx0.{domain}", preference=rng.choice((5, 10)))
    for number in range(rng.randint(1, 2)):
        preference = rng.choice((20, 30))
        network.add(domain, lying_host(rng), mx=f"b{number}.{domain}", preference=preference)


async def simulate(seed: int) -> tuple[list[Verdict], list[str]]:
    """Returns the verdicts, and the recipients that any backup was sent."""
    rng, verdicts = Random(seed), list[Verdict]()
    async with open_fake_network(seed=seed) as network:
        hosts = [slow_host(rng) for _ in range(rng.randint(1, 3))]
        for domain in DOMAINS:
            move_in(network, rng, domain, rng.choice(hosts))

        async def verify_some(number: int, count: int, start_s: float) -> None:
            await trio.sleep(start_s)
            texts = [f"{rng.choice(tuple(TRUTHS))}{n}@{rng.choice(DOMAINS)}" for n in range(count)]
            verdicts.extend(
                await verify(engine, *texts, account=f"a{number}", deferred_start=number == 0)
            )

        connections = rng.choice((1, 2, 4))
        async with (
            open_checked_engine(network, host_connections=connections) as engine,
            trio.open_nursery() as nursery,
        ):
            for number in range(10):
                count = rng.choice((1, 1, 2, 12))
                nursery.start_soon(verify_some, number, count, rng.random() * 3)
        backups = [
            host for host in network.hosts.values() if host.default_known == host.default_unknown
        ]
        return verdicts, [
            mailbox
            for host in backups
            for session in host.record.sessions
            for mailbox in session.recipients
        ]


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_no_backup_answers_for_an_exchange_that_greets(autojump_clock, seed):
    verdicts, sent_to_backups = await simulate(seed)
    assert sent_to_backups == []
    for verdict in verdicts:
        truth = TRUTHS[verdict.email.partition("@")[0].rstrip("0123456789")]
        assert verdict.status in (truth, "unknown"), verdict
        assert verdict.latency_ms <= 3050
    right = sum(verdict.status != "unknown" for verdict in verdicts)
    # A distant host without PIPELINING gets sixty addresses, and controls take their round trips.
    assert right >= len(verdicts) / 5
