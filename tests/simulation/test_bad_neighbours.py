"""Whatever some hosts, resolvers and askers do, the others are not delayed and nobody is lied about.

A seed makes a world with tarpits, hosts that are silent for some recipients,
names whose look-up hangs or fails, and askers who ask for little but those,
beside healthy hosts and modest askers. The rules: no verdict is wrong; none is
later than the clocks allow; every text is answered once; an address at a
healthy host that shares nothing with the trouble gets its sure answer.
"""

import random
from functools import partial
from math import inf

import pytest
import trio
from msgspec import Struct, field

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.bench.world.zone import ZoneMode
from mailprobe.engine import Answer, Engine, EngineSettings, open_answers
from tests.engine.engine_runs import open_test_engine
from tests.engine.invariants import assert_whole
from tests.seeds import seeds

SEEDS = seeds(30)
LAYER_3_S = 1.5  # of an address of a request, all queues included
LAYER_4_S = 3.05
HEALTHY = ("friendly", "postfix", "exim", "opensmtpd", "exchange", "google", "no pipelining")
TARPITS = ("tarpit", "tarpit in step", "silent for some", "silent for some, in step")
DEAD = (*[ZoneMode.HANG] * 8, ZoneMode.SERVFAIL, ZoneMode.UNREACHABLE)
DEAD_DOMAINS = 1_000
TRUTHS = {"known": "deliverable", "gone": "undeliverable"}  # by the beginning of a local part


class MailWorld(Struct):
    """The domains of a world, by what is to be expected of them."""

    healthy: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)


def make_world(network: FakeNetwork, rng: random.Random) -> MailWorld:
    world = MailWorld()
    for number in range(rng.randint(2, 6)):
        host = new_host(
            rng.choice(HEALTHY),
            latency_s=rng.choice((0.0, 0.01, 0.05)),
            splits=rng.random() < 0.2,
        )
        for part in range(rng.randint(1, 6)):
            world.healthy.append(f"healthy{number}-{part}.test")
            network.add(world.healthy[-1], host, mx=f"mx.healthy{number}.test")
    for number in range(rng.randint(1, 3)):
        world.slow.append(f"slow{number}.test")
        network.add(world.slow[-1], make_slow_host(rng))
    for number in range(DEAD_DOMAINS):
        world.dead.append(f"dead{number}.test")
        mode = rng.choice(DEAD)
        if rng.random() < 0.8:
            network.zone.mode(world.dead[-1], mode)
        else:  # the domain is found, its exchange is not
            network.zone.mx(world.dead[-1], f"mx.{world.dead[-1]}")
            network.zone.mode(f"mx.{world.dead[-1]}", mode)
    return world


def make_slow_host(rng: random.Random) -> MailHost:
    return new_host(
        rng.choice(TARPITS),
        latency_s=rng.choice((0.0, 0.02, 0.1)),
        unknown_delay_s=rng.choice((0.0, 0.5, 1.2, 5.0)),
        slow_s={"known.silent": rng.choice((0.9, 2.0, inf))},
    )


def check(answer: Answer, world: MailWorld, *, is_new: bool) -> None:
    """No lie, and at a healthy domain no `unknown` either, but where it takes no more refusals.

    If its refusals are used up, only an account that is new there, or has enough accepted
    addresses there, may raise them.
    """
    verdict = answer.verdict
    local, _, domain = verdict.email.partition("@")
    true = next(reported for start, reported in TRUTHS.items() if local.startswith(start))
    is_spent = answer.cause.reason == "host_budget" and not is_new
    allowed = {true} if domain in world.healthy and not is_spent else {true, "unknown"}
    if domain in world.dead:
        allowed = {"unknown"}
    assert verdict.status in allowed, verdict


async def verify_and_check(
    engine: Engine,
    world: MailWorld,
    account: str,
    texts: list[str],
    *,
    deferred_start: bool,
    is_new: bool = False,
) -> None:
    asked_at = trio.current_time()
    places = []
    async with open_answers(
        engine, texts, account=account, deferred_start=deferred_start
    ) as answers:
        async for answer in answers:
            check(answer, world, is_new=is_new)
            places.append(answer.position)
            if not deferred_start:
                assert trio.current_time() - asked_at <= LAYER_3_S + LAYER_4_S, answer.verdict
    assert sorted(places) == list(range(len(texts)))


async def verify_singly(engine: Engine, world: MailWorld, rng: random.Random, account: str) -> None:
    """Single addresses at healthy hosts: each has its answer, soon."""
    met: set[str] = set()  # hosts
    for _ in range(rng.randint(3, 8)):
        await trio.sleep(rng.uniform(0, 2))
        asked_at = trio.current_time()
        text = f"{rng.choice(list(TRUTHS))}{rng.randrange(10)}@{rng.choice(world.healthy)}"
        host = text.rpartition("@")[2].partition("-")[0]
        is_new = host not in met
        met.add(host)
        await verify_and_check(engine, world, account, [text], deferred_start=False, is_new=is_new)
        assert trio.current_time() - asked_at < 2.0


SHARES = ((1, 0, 0), (1, 0, 0), (6, 2, 1), (1, 8, 1))  # of dead, slow and healthy domains


async def verify_bad_list(
    engine: Engine,
    world: MailWorld,
    rng: random.Random,
    shares: tuple[int, int, int],
    *,
    deferred_start: bool,
) -> None:
    """Much, and of little else than trouble."""
    await trio.sleep(rng.uniform(0, 1))
    texts = []
    for _ in range(200 if deferred_start else 50):
        domains = rng.choices((world.dead, world.slow, world.healthy), shares)[0]
        local = rng.choice(("known", "known", "known.silent", "gone"))
        texts.append(f"{local}{rng.randrange(1000)}@{rng.choice(domains)}")
    await verify_and_check(engine, world, "greedy", texts, deferred_start=deferred_start)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_trouble_stays_where_it_is(autojump_clock, seed):
    rng = random.Random(seed)
    async with open_fake_network(seed=seed) as network:
        world = make_world(network, rng)
        settings = EngineSettings(host_connections=rng.choice((2, 4)))
        async with open_test_engine(network, settings, rng=rng) as engine:
            async with trio.open_nursery() as nursery:
                for number in range(rng.randint(1, 3)):
                    nursery.start_soon(verify_singly, engine, world, rng, f"modest{number}")
                shares = rng.choice(SHARES)
                for _ in range(rng.randint(1, 8)):
                    verify_some = partial(verify_bad_list, deferred_start=rng.random() < 0.2)
                    nursery.start_soon(verify_some, engine, world, rng, shares)
            await trio.sleep(30)
            assert_whole(engine)
        for host in network.hosts.values():
            assert host.record.mistakes == []
            assert host.record.connections_peak <= settings.host_connections
