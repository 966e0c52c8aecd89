"""A host that takes one connection at a time is far away, and closes it when it idles.

What is asked at that moment meets our own connection, which is being closed and still counts.
"""

import random

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.engine import Engine
from tests.engine.engine_runs import knowns, open_test_engine, verify

IDLE_S = 2.0


async def statuses_of(engine: Engine, texts: list[str]) -> list[str]:
    return [verdict.status for verdict in await verify(engine, *texts, deferred_start=True)]


@pytest.mark.parametrize("server", ["postfix", "no pipelining"])
@pytest.mark.parametrize("latency_s", [0.05, 0.1, 0.15])
async def test_our_own_connection_that_is_closing_makes_nobody_unknown(
    autojump_clock, server, latency_s
):
    for tenth in range(-2, 10):
        rng = random.Random(tenth)
        host = new_host(server, latency_s=latency_s, connections_max=1, idle_s=IDLE_S)
        async with open_fake_network(seed=tenth) as network:
            network.add("far.test", host)
            async with open_test_engine(network, rng=rng) as engine:
                first = await statuses_of(engine, ["known0@far.test"])
                await trio.sleep(IDLE_S + tenth * latency_s / 4)
                second = await statuses_of(engine, knowns(7, "far.test")[1:])
        assert first + second == ["deliverable"] * 7, (tenth, second)
