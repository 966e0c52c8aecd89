"""Recipients one by one, most of them by the short way: whatever is odd is nobody else's.

Each table is walked in memory, where a task hears every reply, and over sockets, where
replies are taken as their octets come.
"""

import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.faults import (
    Close,
    Drip,
    Garbage,
    Half,
    ReplyFault,
    ResetConnection,
    SendLine,
    Twice,
)
from mailprobe.bench.world.host_profiles import NO_PIPELINING, NO_SMTPUTF8
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import (
    Engine,
    EngineSettings,
    Verdict,
    open_engine,
)
from mailprobe.engine.dns.messages import Route
from mailprobe.engine.smtp.probe import Probe, ProbeTarget
from mailprobe.engine.verdict import Outcome
from tests.engine.engine_runs import knowns, verify
from tests.engine.invariants import assert_whole

ODD = 7  # its place among those asked
WITHIN_S = 60.0  # by the clock; it takes less than one


@asynccontextmanager
async def open_engine_over(
    network: FakeNetwork, sockets: bool, **settings: Any
) -> AsyncIterator[Engine]:
    """An engine with one connection to a host, in memory or over pairs of sockets."""
    async with trio.open_nursery() as nursery:

        async def dial(address: str, port: int) -> trio.abc.Stream:
            ours, theirs = map(trio.socket.from_stdlib_socket, socket.socketpair())
            nursery.start_soon(network.hosts[address].serve, trio.SocketStream(theirs))
            return trio.SocketStream(ours)

        async with open_engine(
            replace(EngineSettings(), **{"host_connections": 1} | settings),
            transport=network.transport,
            dial=dial if sockets else network.dial,
            rng=random.Random(0),
        ) as engine:
            yield engine
        assert_whole(engine)
        nursery.cancel_scope.cancel()


async def verify_in_time(engine: Engine, *texts: str) -> list[Verdict]:
    with trio.fail_after(WITHIN_S):
        return await verify(engine, *texts, deferred_start=True)


@pytest.fixture(params=["memory", "sockets"])
def sockets(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "sockets")


@pytest.fixture
def clock(sockets: bool, idle_clock: MockClock) -> MockClock:
    """Virtual, in memory and over sockets."""
    return idle_clock if sockets else MockClock(autojump_threshold=0)


FAULTS: dict[str, tuple[ReplyFault, set[str]]] = {
    "two replies at once": (Twice(), {"unknown"}),
    "hangs up": (Close(), {"unknown"}),
    "breaks": (ResetConnection(), {"unknown"}),
    "half a reply, and hangs up": (Half(), {"unknown"}),
    "no SMTP": (Garbage(), {"unknown"}),
    "a code that RCPT never has": (SendLine("354 go on"), {"unknown"}),
    "goodbye": (SendLine("421 4.3.2 closing", close=True), {"unknown"}),
    "a reply of two lines": (SendLine("250-2.1.5 Well\n250 2.1.5 Ok"), {"deliverable"}),
    "octet by octet": (Drip(0.001), {"deliverable"}),
    "refused as unknown": (SendLine("550 5.1.1 User unknown"), {"undeliverable"}),
    "refused for now": (SendLine("451 4.3.0 Try later"), {"unknown"}),
    "refused because of us": (
        SendLine("550 5.7.1 Client host blocked using a blocklist"),
        {"unknown"},
    ),
    "wants it by itself": (SendLine("452 4.5.3 Too many recipients"), {"unknown"}),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_odd_reply_affects_its_own_recipient_alone(sockets, clock, fault):
    answer, statuses = FAULTS[fault]
    texts = knowns(20)
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=NO_PIPELINING, faults={f"known{ODD}": answer})
        network.add("shop.test", host)
        async with open_engine_over(network, sockets) as engine:
            await verify_in_time(engine, "known@shop.test")  # so that no test is due
            verdicts = await verify_in_time(engine, *texts)
    reported = {verdict.email: verdict.status for verdict in verdicts}
    assert reported.pop(texts[ODD]) in statuses
    assert set(reported.values()) == {"deliverable"}


async def test_refusals_and_acceptances_in_turn(sockets, clock):
    """Eight refusals a session, and each to the address that was asked about."""
    texts = [f"{'known' if number % 3 else 'no'}{number}@shop.test" for number in range(60)]
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=NO_PIPELINING)
        network.add("shop.test", host)
        async with open_engine_over(network, sockets) as engine:
            verdicts = await verify_in_time(engine, *texts)
        assert [verdict.status for verdict in verdicts] == [
            "deliverable" if verdict.email.startswith("known") else "undeliverable"
            for verdict in verdicts
        ]
        assert max(session.refusals for session in host.record.sessions) <= 8


async def test_an_unusual_recipient_takes_the_general_path(sockets, clock):
    """Domains whose test is due, and a mailbox that the host can't be asked about, in between."""
    texts = [f"known{number}@{'ab'[number % 7 == 3]}.test" for number in range(40)]
    texts[20] = "känn@a.test"
    texts[30] = "known@all.test"
    async with open_fake_network() as network:
        host = MailHost(
            ehlo_lines=tuple(line for line in NO_PIPELINING if line in NO_SMTPUTF8),
            catch_all=frozenset({"all.test"}),
        )
        for name in ("a.test", "b.test", "all.test"):
            network.add(name, host)
        async with open_engine_over(network, sockets) as engine:
            verdicts = await verify_in_time(engine, *texts)
    reported = {verdict.email: verdict.status for verdict in verdicts}
    assert reported.pop("känn@a.test") == "unknown"
    assert reported.pop("known@all.test") == "catch_all"
    assert set(reported.values()) == {"deliverable"}


async def test_a_connection_is_left_after_its_hundredth_recipient(sockets, clock):
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=NO_PIPELINING)
        network.add("shop.test", host)
        async with open_engine_over(network, sockets) as engine:
            verdicts = await verify_in_time(engine, *knowns(250))
        assert {verdict.status for verdict in verdicts} == {"deliverable"}
        counts = [len(session.recipients) for session in host.record.sessions]
        assert len(counts) == 3
        assert max(counts) <= 100


async def test_a_declared_limit_of_recipients_is_kept(sockets, clock):
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=(*NO_PIPELINING, "LIMITS RCPTMAX=5"), recipients_max=5)
        network.add("shop.test", host)
        async with open_engine_over(network, sockets) as engine:
            verdicts = await verify_in_time(engine, *knowns(30))
        assert {verdict.status for verdict in verdicts} == {"deliverable"}
        for session in host.record.sessions:
            said = " ".join(spoken.line.partition(" ")[0] for spoken in session.commands_seen)
            assert all(each.count("RCPT") <= 5 for each in said.split("MAIL"))


@pytest.mark.parametrize("let_in", ["as it is settled", "as room is made"])
async def test_a_probe_admitted_when_a_verdict_is_proven_wakes_the_idle_session(
    sockets, clock, let_in
):
    """The session proves while it idles, and takes nothing by itself."""
    async with open_fake_network() as network:
        host = MailHost(ehlo_lines=NO_PIPELINING)
        network.add("shop.test", host)
        async with open_engine_over(network, sockets) as engine:
            await verify_in_time(engine, "known@shop.test")
            route = engine.routes.cached_route("shop.test")
            assert isinstance(route, Route)
            settled: list[Probe] = []
            submitted = 0
            all_settled = trio.Event()

            def submit_next(_: object) -> None:
                nonlocal submitted
                if submitted == len(settled) < 5:
                    mailbox = f"known{submitted}@shop.test"
                    submitted += 1
                    target = ProbeTarget([*route.exchanges])
                    engine.probing.submit(Probe(mailbox, "shop.test", "me", target, on_settled))

            def on_settled(done: Probe) -> None:
                settled.append(done)
                if let_in == "as it is settled":
                    submit_next(done)
                if len(settled) == 5:
                    all_settled.set()

            if let_in == "as room is made":
                engine.probing.turn.subscribe(submit_next)
            submit_next(None)
            with trio.fail_after(WITHIN_S):
                await all_settled.wait()
            engine.probing.turn.unsubscribe(submit_next)
            assert len(host.record.sessions) == 1  # nobody waited until it ended
    assert [done.result.outcome for done in settled] == [Outcome.DELIVERABLE] * 5
