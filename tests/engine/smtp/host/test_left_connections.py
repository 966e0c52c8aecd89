"""A host that goes on sleeping counts the connections that we left: so do we."""

from math import inf

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import Late
from mailprobe.bench.world.host_profiles import NO_PIPELINING
from mailprobe.bench.world.mail_host import EHLO_LINES, MailHost
from mailprobe.engine.smtp.host.left_connections import LEFT_S
from tests.engine.engine_runs import (
    DELIVERABLE,
    FAILED,
    TIMED_OUT,
    UNKNOWN,
    fields_of,
    open_checked_engine,
    open_test_engine,
    verify,
)
from tests.engine.smtp.host.test_late_replies import found, mixed

OFFERS = {"pipelined": EHLO_LINES, "in step": NO_PIPELINING}


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("limit", [4, 1])
async def test_a_tarpit_that_sleeps_on_counts_at_most_our_limit(autojump_clock, offer, limit):
    """15 % are unknown, and each refusal takes 5 s whether we wait or not (Exchange).

    Four unknown recipients then hold every connection for longer than a request lasts, so
    a batch finds what was answered before them. A list waits, and finds all.
    """
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=OFFERS[offer], reply_s=0.02, unknown_delay_s=5.0, sleeps_on=True)
        network.add("shop.test", host)
        async with open_checked_engine(network, host_connections=limit) as engine:
            batch = await verify(engine, *mixed(50, 15))
            listed = await verify(engine, *mixed(60, 15), deferred_start=True)
        assert host.record.connections_peak <= limit
    assert max(verdict.latency_ms for verdict in batch) <= 3050
    assert limit == 1 or found(batch) >= 0.2
    assert found(listed) >= 0.99
    assert {v.status for v in batch + listed if v.email.startswith("gone")} == {"unknown"}


async def test_a_host_that_notices_the_close_is_reconnected_at_once(autojump_clock):
    async with open_fake_network() as network:
        host = MailHost(slow_s={"slow": 5.0}, reply_s=0.02)
        network.add("shop.test", host)
        async with open_test_engine(network, host_connections=1) as engine:
            [slow] = await verify(engine, "slow@shop.test")
            [known] = await verify(engine, "known@shop.test")
        assert [fields_of(slow), known.status] == [TIMED_OUT, "deliverable"]
        assert host.record.connections_peak == 1


@pytest.mark.parametrize(
    ("host", "first"),
    [
        (MailHost(slow_s={"slow": inf}, sleeps_on=True), TIMED_OUT),
        (MailHost(faults={"CONNECT": Late(100.0)}, troubled_sessions=1, sleeps_on=True), TIMED_OUT),
        (MailHost(faults={"QUIT": Late(100.0)}, troubled_sessions=1, sleeps_on=True), DELIVERABLE),
    ],
    ids=["recipient", "banner", "quit"],
)
async def test_a_permit_comes_back_after_30_s_at_the_latest(autojump_clock, host, first):
    """Meanwhile nobody connects; where the host has greeted before, that is not its fault."""
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with open_test_engine(network, host_connections=1) as engine:
            asked = "slow@shop.test" if first == TIMED_OUT else "known@shop.test"
            assert [fields_of(verdict) for verdict in await verify(engine, asked)] == [first]
            await trio.sleep(4)  # an idle session has sent QUIT by then
            [between] = await verify(engine, "known1@shop.test")
            assert host.record.sessions_seen == 1
            assert fields_of(between) == (TIMED_OUT if "CONNECT" in host.faults else UNKNOWN)
            await trio.sleep(LEFT_S)
            [after] = await verify(engine, "known2@shop.test")
            assert after.status == "deliverable"


async def test_the_engine_closes_without_waiting_for_hosts_that_it_left(autojump_clock):
    async with open_fake_network() as network:
        network.add("shop.test", MailHost(slow_s={"slow": inf}, sleeps_on=True))
        async with open_test_engine(network) as engine:
            assert [fields_of(v) for v in await verify(engine, "slow@shop.test")] == [TIMED_OUT]
            await trio.sleep(1)
            assert engine.probing.egresses[0].permits.in_use == 1
            closes_at = trio.current_time()
        assert trio.current_time() == closes_at


async def test_a_limit_of_connections_that_the_host_counts_so_is_learned(autojump_clock):
    """It tolerates two, and still counts the two that we left: that is not a failure of the host."""
    async with open_fake_network() as network:
        host = MailHost(reply_s=0.02, unknown_delay_s=5.0, sleeps_on=True, connections_max=2)
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            verdicts = await verify(engine, *mixed(60, 15), deferred_start=True)
        assert found(verdicts) >= 0.99
        assert not any(fields_of(verdict) == FAILED for verdict in verdicts)
