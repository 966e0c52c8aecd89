"""Whatever the weather, no reply is ever given to another address.

A seed makes a world: hosts that answer late, in pieces, not at all, that close,
reset and talk nonsense at random moments; askers that come and go. What a local
part is, is written in its name, so every verdict can be checked against the
truth. Virtual time: a thousand of these worlds take a minute.
"""

import random
from dataclasses import replace

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.faults import (
    Close,
    Drip,
    Half,
    Late,
    ResetConnection,
    SendLine,
    StaySilent,
)
from mailprobe.bench.world.host_profiles import HOST_PROFILES, LIMIT_REPLIES
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import EngineSettings, open_answers
from mailprobe.engine.smtp.session.recipient_limits import RECIPIENTS_MAX, REFUSALS_MAX
from tests.engine.engine_runs import open_test_engine
from tests.engine.invariants import assert_whole
from tests.seeds import seeds

SEEDS = seeds(300)
SERVERS = ("friendly", "postfix", "exim", "opensmtpd", "exchange", "google", "catch all")
FAULTS = (
    Late(0.2),
    Late(0.95),
    Late(1.05),
    Late(1.5),
    Late(2.9),
    StaySilent(),
    Close(),
    ResetConnection(),
    Half(),
    Half(stall=True),
    Drip(0.01),
    SendLine("421 4.3.2 Shutting down", close=True),
    SendLine("451 4.3.0 Try again later"),
)
FULL = "552 5.2.2 <{rcpt}>: Mailbox full"
TRUTHS = {  # the beginning of a local part -> what may be said of it
    "known": {"deliverable", "unknown"},
    "gone": {"undeliverable", "unknown"},
    "full": {"unknown"},
}


def make_host(rng: random.Random) -> MailHost:
    host = HOST_PROFILES[rng.choice(SERVERS)]
    chance = rng.choice((0.0, 0.01, 0.05, 0.2))
    return replace(
        host,
        latency_s=rng.choice((0.0, 0.01, 0.05, 0.3, 0.9)),
        reply_s=rng.choice((0.0, 0.0, 0.02, 0.2)),
        splits=rng.random() < 0.3,
        idle_s=rng.choice((None, 1.0, 2.0)),
        connections_max=rng.choice((None, None, 2)),
        recipients_max=rng.choice((None, None, 1, 3)),
        recipients_reply=rng.choice(LIMIT_REPLIES),
        session_recipients_max=rng.choice((None, None, None, 1, 2, 5)),
        session_recipients_reply=rng.choice(LIMIT_REPLIES),
        counts_accepted_only=rng.random() < 0.5,
        refusals_max=rng.choice((None, 20)),
        weather=((chance, rng.choice(FAULTS)), (chance / 2, rng.choice(FAULTS))),
        replies={f"full{number}": FULL for number in range(10)},
    )


def make_network(network: FakeNetwork, rng: random.Random) -> dict[str, bool]:
    """Domains over one to four hosts; gives which of them accept everything."""
    hosts = [make_host(rng) for _ in range(rng.randint(1, 4))]
    catch_all = {}
    for number in range(rng.randint(1, 6)):
        domain = f"d{number}.test"
        behind = rng.sample(hosts, rng.randint(1, min(2, len(hosts))))
        for preference, host in enumerate(behind):
            network.add(domain, host, mx=f"mx{preference}.{domain}", preference=preference)
        catch_all[domain] = any(bool(host.catch_all) for host in behind)
    return catch_all


def make_list(rng: random.Random, domains: list[str]) -> list[str]:
    kinds = list(TRUTHS)
    return [
        f"{rng.choice(kinds)}{rng.randrange(10)}@{rng.choice(domains)}"
        for _ in range(rng.randint(1, 50))
    ]


def check(email: str, status: str, *, catch_all: bool) -> None:
    kind = email.partition("@")[0].rstrip("0123456789")
    allowed = TRUTHS[kind] | ({"catch_all", "deliverable", "unknown"} if catch_all else set())
    assert status in allowed, f"{email} called {status}"


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_no_reply_is_given_to_another_address(autojump_clock, seed):
    rng = random.Random(seed)
    settings = EngineSettings(
        host_connections=rng.choice((1, 2, 4)), probes_max=rng.choice((5, 2000))
    )
    async with open_fake_network(seed=seed) as network:
        catch_all = make_network(network, rng)
        domains = list(catch_all)

        async def verify_list(name: str, texts: list[str], start_s: float, leave_s: float) -> None:
            await trio.sleep(start_s)
            deferred_start = name == "patient"
            with trio.move_on_after(leave_s):
                asked_at = trio.current_time()
                async with open_answers(
                    engine, texts, account=name, deferred_start=deferred_start
                ) as answers:
                    seen = []
                    async for answer in answers:
                        verdict = answer.verdict
                        check(
                            verdict.email,
                            verdict.status,
                            catch_all=catch_all[verdict.email.split("@")[1]],
                        )
                        seen.append(answer.position)
                        assert verdict.latency_ms <= 3050
                        if not deferred_start:
                            assert trio.current_time() - asked_at <= 3.05
                assert sorted(seen) == list(range(len(texts)))

        async with open_test_engine(network, settings, rng=rng) as engine:
            async with trio.open_nursery() as nursery:
                for number in range(rng.randint(1, 5)):
                    name = "patient" if number == 4 else f"asker{number}"
                    leave_s = rng.choice((float("inf"), float("inf"), rng.uniform(0, 3)))
                    nursery.start_soon(
                        verify_list,
                        name,
                        make_list(rng, domains),
                        rng.choice((0.0, 0.5, 2.5)),
                        leave_s,
                    )
            await trio.sleep(30)  # every reply that is still on its way finds nobody
            assert_whole(engine)
        for host in network.hosts.values():
            assert host.record.mistakes == []
            assert host.record.connections_peak <= settings.host_connections
            for session in host.record.sessions:
                assert session.refusals <= REFUSALS_MAX
                assert len(session.recipients) <= RECIPIENTS_MAX
