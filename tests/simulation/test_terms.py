"""Hosts that want TLS or another sender, from seeds: in calm the truth, in any weather never a lie."""

import random
from dataclasses import replace

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.faults import (
    Close,
    Garbage,
    Late,
    ResetConnection,
    SendLine,
    StaySilent,
)
from mailprobe.bench.world.host_profiles import NAMED_SENDER, NULL_SENDER, new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import EngineSettings, Verdict, open_answers
from mailprobe.engine.smtp.session.recipient_limits import REFUSALS_MAX
from tests.engine.engine_runs import open_test_engine
from tests.engine.invariants import assert_whole
from tests.seeds import seeds
from tests.simulation.lists_with_patience import ask_in_passes

SEEDS_CALM = seeds(60)
SEEDS_STORMY = seeds(150)
NAMED = "check@probe.test"
SERVERS = ("friendly", "postfix", "exim", "opensmtpd", "no pipelining", "one recipient")
DOMAINS = [f"d{number}.test" for number in range(5)]
FAULTS = (
    *(Late(0.2), Late(1.5), StaySilent(), Close(), ResetConnection(), Garbage()),
    *(SendLine("421 4.3.2 Shutting down", close=True), SendLine("451 4.3.0 Try again later")),
)
UPGRADES = ("TLS", "STARTTLS", "EHLO 2", "EHLO", "MAIL 2", "RSET")
TRUTHS = {"known": "deliverable", "nobody": "undeliverable"}


def make_host(rng: random.Random, *, stormy: bool) -> MailHost:
    host = new_host(
        rng.choice(SERVERS),
        latency_s=rng.choice((0.0, 0.01, 0.05)),
        splits=rng.random() < 0.2,
        idle_s=rng.choice((None, 1.0)),
        connections_max=rng.choice((None, None, 2)),
        tls_demanded_at=rng.choice((None, "MAIL", "RCPT")),
        null_sender_reply=rng.choice((None, None, NULL_SENDER)),
        judges_sender_at_rcpt=rng.random() < 0.5,
    )
    if host.tls_demanded_at is not None:
        host = replace(host, ehlo_lines=(*host.ehlo_lines, "STARTTLS"))
    if host.null_sender_reply is None:
        host = replace(host, named_sender_reply=rng.choice((None, NAMED_SENDER)))
    if not stormy:
        return host
    return replace(
        host,
        faults={rng.choice(UPGRADES): rng.choice(FAULTS)} if rng.random() < 0.5 else {},
        troubled_sessions=rng.choice((None, 1, 2)),
        weather=((rng.choice((0.0, 0.02, 0.1)), rng.choice(FAULTS)),),
    )


async def simulate(seed: int, *, stormy: bool) -> list[Verdict]:
    rng = random.Random(f"{seed}/{stormy}")
    settings = EngineSettings(host_connections=rng.choice((1, 2, 4)), mail_from=NAMED)
    verdicts: list[Verdict] = []
    async with open_fake_network(seed=seed) as network:
        hosts = [make_host(rng, stormy=stormy) for _ in range(rng.randint(1, 3))]
        for domain in DOMAINS:
            network.add(domain, rng.choice(hosts))

        async def verify_list(
            number: int, texts: list[str], start_s: float, leave_s: float
        ) -> None:
            await trio.sleep(start_s)
            if not stormy:
                answers = await ask_in_passes(engine, texts, f"asker{number}")
                verdicts.extend(answer.verdict for answer in answers)
                return
            with trio.move_on_after(leave_s):
                async with open_answers(
                    engine, texts, account=f"asker{number}", deferred_start=number == 0
                ) as stream:
                    async for answer in stream:
                        verdicts.append(answer.verdict)

        async with open_test_engine(network, settings, rng=rng) as engine:
            async with trio.open_nursery() as nursery:
                for number in range(rng.randint(1, 4)):
                    texts = [
                        f"{rng.choice(('known', 'nobody'))}{rng.randrange(30)}@{rng.choice(DOMAINS)}"
                        for _ in range(rng.randint(1, 30))
                    ]
                    leaves = stormy and rng.random() < 0.3
                    leave_s = rng.uniform(0, 3) if leaves else float("inf")
                    nursery.start_soon(
                        verify_list, number, texts, rng.choice((0.0, 0.3, 2.5, 6.0)), leave_s
                    )
            await trio.sleep(30)
            assert_whole(engine)
        assert_polite(network, settings)
    return verdicts


def assert_polite(network: FakeNetwork, settings: EngineSettings) -> None:
    for host in network.hosts.values():
        assert host.record.mistakes == []
        assert host.record.connections_now == 0
        assert host.record.connections_peak <= settings.host_connections
        for session in host.record.sessions:
            assert session.refusals <= REFUSALS_MAX


def truth(verdict: Verdict) -> str:
    return TRUTHS[verdict.email.partition("@")[0].rstrip("0123456789")]


@pytest.mark.parametrize("seed", range(SEEDS_CALM))
async def test_every_verdict_is_the_truth(autojump_clock, seed):
    for verdict in await simulate(seed, stormy=False):
        assert verdict.status == truth(verdict), verdict
        assert verdict.confidence in (0.97, 0.02)


@pytest.mark.parametrize("seed", range(SEEDS_STORMY))
async def test_no_verdict_is_a_lie(autojump_clock, seed):
    for verdict in await simulate(seed, stormy=True):
        assert verdict.status in (truth(verdict), "unknown"), verdict
        assert verdict.latency_ms <= 3050
