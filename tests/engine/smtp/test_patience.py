"""A later pass waits for hosts that were slow, on few connections; nothing else waits for it."""

from functools import partial
from typing import Any

import pytest
import trio

from mailprobe.bench.world.fake_network import open_fake_network
from mailprobe.bench.world.faults import Late
from mailprobe.bench.world.host_profiles import NO_PIPELINING
from mailprobe.bench.world.mail_host import EHLO_LINES, HostAddress, MailHost
from tests.engine.engine_runs import (
    DELIVERABLE,
    FAILED,
    TIMED_OUT,
    UNDELIVERABLE,
    UNTESTED,
    fields_of,
    open_checked_engine,
    verify,
)

OFFERS = {"pipelined": EHLO_LINES, "in step": NO_PIPELINING}
SLOW: dict[str, dict[str, Any]] = {
    "banner after 1.5 s": {"faults": {"CONNECT": Late(1.5)}},
    "postscreen": {"faults": {"CONNECT": Late(6.0)}},
    "callouts of 1.5 s": {"slow_s": {"": 1.5}},
    "replies of 1.2 s": {"reply_s": 1.2},
    "tarpit of 1.5 s": {"unknown_delay_s": 1.5},
    "tarpit of 5 s": {"unknown_delay_s": 5.0},
}
RECHECK_S = 300.0
MIXED = [f"{'gone' if n & 2 else 'known'}{n}@shop.test" for n in range(20)]


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("kind", SLOW)
async def test_all_addresses_of_a_slow_host_are_known_after_a_patient_pass(
    autojump_clock, kind, offer
):
    """The host goes on sleeping after we hang up. No more connections than for the first pass."""
    host = MailHost(ehlo_lines=OFFERS[offer], sleeps_on=True, **SLOW[kind])
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            strict = await verify(engine, *MIXED, deferred_start=True)
            assert max(verdict.latency_ms for verdict in strict) <= 3050
            again = [v.email for v in strict if v.status == "unknown" or fields_of(v) == UNTESTED]
            assert again
            await trio.sleep(RECHECK_S)
            first_pass, host.record.connections_peak = host.record.sessions_seen, 0
            patient = await verify(engine, *again, deferred_start=True, patient=True)
    final = {verdict.email: fields_of(verdict) for verdict in strict + patient}
    assert final == {
        text: DELIVERABLE if text.startswith("known") else UNDELIVERABLE for text in MIXED
    }
    assert host.record.sessions_seen - first_pass <= first_pass
    assert host.record.connections_peak <= 2
    assert not host.record.mistakes


async def test_a_patient_pass_and_requests_share_the_limit_of_a_host_with_two_addresses(
    autojump_clock,
):
    host = MailHost(reply_s=0.02, unknown_delay_s=5.0, sleeps_on=True)
    async with open_fake_network() as network:
        for address in ("11.0.1.1", "11.0.1.2"):
            network.add("shop.test", host, address=address)
        async with open_checked_engine(network) as engine, trio.open_nursery() as nursery:
            for number, patient in enumerate((True, False)):
                texts = [f"{'gone' if n & 1 else 'known'}{number}{n}@shop.test" for n in range(30)]
                run = partial(verify, engine, deferred_start=True, patient=patient)
                nursery.start_soon(run, *texts)
        assert host.record.connections_peak == 4


@pytest.mark.parametrize("limit", [4, 2])
async def test_a_request_is_answered_beside_a_patient_pass(autojump_clock, limit):
    host = MailHost(reply_s=0.02, unknown_delay_s=5.0, sleeps_on=True)
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with (
            open_checked_engine(network, host_connections=limit) as engine,
            trio.open_nursery() as nursery,
        ):
            pass_over = partial(verify, engine, deferred_start=True, patient=True, account="list")
            nursery.start_soon(pass_over, *[f"gone{n}@shop.test" for n in range(10)])
            for number in range(4):
                await trio.sleep(8)
                [verdict] = await verify(engine, f"known{number}@shop.test")
                assert verdict.status == "deliverable"
                assert verdict.latency_ms <= 3050
        assert host.record.connections_peak <= limit


async def test_silent_hosts_of_a_patient_pass_leave_places_to_others(autojump_clock):
    async with open_fake_network() as network:
        for number in range(30):
            network.add(f"dead{number}.test", MailHost(address=HostAddress.SILENT))
        network.add("shop.test", MailHost(reply_s=0.02))
        async with (
            open_checked_engine(network, probes_max=10) as engine,
            trio.open_nursery() as nursery,
        ):
            pass_over = partial(verify, engine, deferred_start=True, patient=True, account="list")
            nursery.start_soon(pass_over, *[f"known@dead{n}.test" for n in range(30)])
            for number in range(4):
                await trio.sleep(3)
                [verdict] = await verify(engine, f"known{number}@shop.test")
                assert verdict.status == "deliverable"


async def test_a_host_that_was_quick_keeps_its_deadlines(autojump_clock):
    """Greylisting is no slowness."""
    host = MailHost(greylist_s=60.0, reply_s=0.02)
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            await verify(engine, *MIXED, deferred_start=True)
            for _ in range(2):  # the random name is greylisted as well
                await trio.sleep(RECHECK_S)
                verdicts = await verify(engine, *MIXED, deferred_start=True, patient=True)
            assert not len(engine.probing.egresses[0].patient_hosts)
    assert {fields_of(verdict) for verdict in verdicts} == {DELIVERABLE, UNDELIVERABLE}


@pytest.mark.parametrize(
    ("host", "fields", "connections"),
    [
        (MailHost(banner="554 5.7.1 Service unavailable; client blocked"), FAILED, 0),
        (MailHost(address=HostAddress.SILENT), TIMED_OUT, 4),
        (MailHost(faults={"CONNECT": Late(100.0)}), TIMED_OUT, 4),
    ],
    ids=["refuses us", "connect", "banner"],
)
async def test_patience_has_an_end(autojump_clock, host, fields, connections):
    """A host that refused us rests all the same, and one that stays silent is left soon."""
    async with open_fake_network() as network:
        network.add("shop.test", host)
        async with open_checked_engine(network) as engine:
            await verify(engine, *MIXED, deferred_start=True)
            before = len(network.dialled)
            began_at = trio.current_time()
            verdicts = await verify(engine, *MIXED, deferred_start=True, patient=True)
            assert trio.current_time() - began_at <= 60
            assert len(network.dialled) - before <= connections
    assert {fields_of(verdict) for verdict in verdicts} == {fields}
