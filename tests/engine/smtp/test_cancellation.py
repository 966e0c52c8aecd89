"""Whoever leaves, whenever: the engine is whole and the next question gets its right answer.

A scenario is run again and again; the n-th run is cut after the n-th step that any
task makes, so that there is a run for every await on the way: the route's and the
exchange's look-up, the connect, the banner, EHLO, HELO, MAIL, each RCPT, the random
address, RSET, QUIT and the idle wait. Three ways to cut: the asker leaves its block,
the asker is cancelled, or the engine is closed under it.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import pytest
import trio

from mailprobe.bench.world.fake_network import FakeEndpoint, FakeNetwork, open_fake_network
from mailprobe.bench.world.faults import Late, StaySilent
from mailprobe.bench.world.host_profiles import new_host
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import (
    Engine,
    EngineSettings,
    Verdict,
    open_answers,
    open_engine,
)
from mailprobe.engine.smtp.host.serving import ServedSession
from mailprobe.engine.smtp.probe import Probe
from tests.cutter import Cutter
from tests.engine.engine_runs import verify
from tests.engine.invariants import assert_whole
from tests.seeds import stride

STEPS_MAX = 2_000  # no scenario is so long
TRUTHS = {"known": ("deliverable", 0.97), "nobody": ("undeliverable", 0.02)}
HERS = ("known1@shop.test", "nobody1@shop.test", "known2@shop.test")
NEIGHBOURS = ("known8@shop.test", "nobody8@shop.test")
NEXT = ("known9@shop.test", "nobody9@shop.test")


@dataclass
class Tap:
    """A world's dial, and all that was written to its hosts."""

    world: FakeNetwork
    written: list[bytes] = field(default_factory=list)
    open: int = 0

    async def dial(self, address: str, port: int) -> trio.abc.Stream:
        stream = await self.world.dial(address, port)
        self.open += 1
        return Tapped(stream, self)


class Tapped(trio.abc.Stream):
    """A stream whose writes are seen, and whose end is counted."""

    def __init__(self, stream: trio.abc.Stream, tap: Tap) -> None:
        self._stream = stream
        self._tap = tap
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._tap.written.append(bytes(data))
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        self._tap.open -= not self._closed
        self._closed = True
        await self._stream.aclose()


SETTINGS = EngineSettings()
FAR = MailHost(latency_s=0.05, connect_s=0.05)


@dataclass(frozen=True)
class Scenario:
    """A host, and what is asked of it."""

    host: Callable[[], MailHost] = lambda: FAR
    texts: tuple[str, ...] = HERS
    first: Callable[[], MailHost] | None = None  # a better exchange, that fails
    asked_before: bool = False  # there is an idle connection, the route is known
    idle_s: float = 0.0  # since then: after 3 s the connection is gone
    resolver_s: float = 0.0
    deferred_start: bool = False
    neighbour: bool = True
    pause_s: float = 0.0  # until the next one asks
    stride: int = 4  # cut after every so many steps; an await lasts for several
    settings: EngineSettings = SETTINGS

    def build(self, network: FakeNetwork) -> list[MailHost]:
        hosts = [replace(self.host())]
        network.add("shop.test", hosts[0], mx="mx2.shop.test", preference=20)
        if self.first is not None:
            hosts.append(self.first())
            network.add("shop.test", hosts[1], mx="mx1.shop.test", preference=10)
        for url in self.settings.doh_urls:
            network.transport.endpoints[url] = FakeEndpoint(self.resolver_s)
        return hosts


SCENARIOS = {
    "pipelined": Scenario(),
    "in step": Scenario(lambda: new_host("no pipelining", latency_s=0.05), neighbour=False),
    "helo": Scenario(lambda: new_host("helo only", latency_s=0.05), texts=HERS[:2]),
    "each by itself": Scenario(lambda: new_host("one recipient"), stride=8),
    "in pieces": Scenario(
        lambda: new_host("splitting"), texts=HERS[:1], neighbour=False, stride=12
    ),
    "on an idle connection": Scenario(asked_before=True),
    "far resolver": Scenario(MailHost, texts=HERS[:2], resolver_s=0.4),
    "refused at first": Scenario(first=lambda: new_host("refused")),
    "blocked at first": Scenario(first=lambda: new_host("blocked at banner")),
    "silent at first": Scenario(first=lambda: new_host("silent")),
    "one answer late": Scenario(
        lambda: MailHost(latency_s=0.05, faults={"nobody1": Late(1.5)}), asked_before=True
    ),
    "one answer never": Scenario(
        lambda: MailHost(latency_s=0.05, faults={"nobody1": StaySilent()}),
        neighbour=False,
        pause_s=1.1,  # whoever shares the silent round shares its silence
    ),
    "quit after eight": Scenario(
        lambda: MailHost(latency_s=0.05),
        texts=tuple(f"nobody1{number}@shop.test" for number in range(9)),
        neighbour=False,
        stride=8,
    ),
    "patient": Scenario(
        lambda: new_host("no pipelining", latency_s=0.05),
        texts=tuple(f"known1{number}@shop.test" for number in range(4)),
        deferred_start=True,
        neighbour=False,
        settings=EngineSettings(host_connections=1),
    ),
    "tls demanded": Scenario(lambda: new_host("starttls demanded", latency_s=0.05)),
    "tls demanded at rcpt, in step": Scenario(
        lambda: new_host("starttls demanded at rcpt, in step", latency_s=0.05),
        texts=HERS[:2],
        neighbour=False,
    ),
    "tls known to be demanded": Scenario(
        lambda: new_host("starttls demanded", latency_s=0.05),
        asked_before=True,
        idle_s=10.0,
    ),
    "handshake in silence": Scenario(
        first=lambda: new_host("starttls demanded", faults={"TLS": StaySilent()}),
        texts=HERS[:2],
        neighbour=False,
        pause_s=1.1,
    ),
    "null sender alone": Scenario(
        lambda: new_host("no named sender", latency_s=0.05),
        settings=EngineSettings(mail_from="check@probe.test"),
    ),
    "one probe at a time": Scenario(settings=EngineSettings(probes_max=1)),
}


def check(verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        kind = verdict.email.partition("@")[0].rstrip("0123456789")
        assert (verdict.status, verdict.confidence) == TRUTHS[kind], verdict


async def verify_and_check(engine: Engine, *texts: str, account: str) -> None:
    check(await verify(engine, *texts, account=account))


def may_be_said_still(engine: Engine) -> set[str]:
    """Who is in a round under way: a command of theirs may be on its way."""
    return {
        asked.mailbox
        for probed in engine.probing.egresses[0].hosts.values()
        for served in probed.staffing.sessions.open
        if isinstance(served, ServedSession)
        for asked in served.session.exchange.batch.unanswered
        if isinstance(asked, Probe)
    }


def may_be_control(engine: Engine) -> set[str]:
    """Addresses with an answer, of which a host is asked once more whether it still gives it."""
    probed_hosts = list(engine.probing.egresses[0].hosts.values())
    kept = [each for probed in probed_hosts for each in probed.controls.known.kept.values()]
    known = {each.mailbox for each in chain(*kept)}
    domains = {mailbox.rpartition("@")[2] for mailbox in known}
    return known | {f"postmaster@{domain}" for domain in domains}


@asynccontextmanager
async def open_engine_in(
    scenario: Scenario, seed: int
) -> AsyncIterator[tuple[Engine, FakeNetwork, Tap, list[MailHost]]]:
    async with open_fake_network(seed=seed) as network:
        hosts = scenario.build(network)
        tap = Tap(network)
        async with open_engine(
            scenario.settings, transport=network.transport, dial=tap.dial, rng=random.Random(0)
        ) as engine:
            if scenario.asked_before:
                await verify_and_check(engine, "known0@shop.test", account="before")
                await trio.sleep(scenario.idle_s)
            yield engine, network, tap, hosts
        assert tap.open == 0


async def leave_after(steps: int, scenario: Scenario, *, cancelled: bool) -> bool:
    """Run the scenario with one asker who leaves after so many steps; False if it was done."""
    async with open_engine_in(scenario, steps) as (engine, _, tap, hosts):
        inner, outer = trio.CancelScope(), trio.CancelScope()
        cutter = Cutter(steps, outer if cancelled else inner)
        async with trio.open_nursery() as nursery:
            if scenario.neighbour:
                nursery.start_soon(
                    lambda: verify_and_check(engine, *NEIGHBOURS, account="neighbour")
                )
            trio.lowlevel.add_instrument(cutter)
            with outer:
                async with open_answers(
                    engine, scenario.texts, account="she", deferred_start=scenario.deferred_start
                ) as answers:
                    with inner:
                        async for _ in answers:
                            pass
            trio.lowlevel.remove_instrument(cutter)
            written, said_still = len(tap.written), may_be_said_still(engine)
            received = sum((host.record.recipients for host in hosts), Counter())
        await trio.sleep(scenario.pause_s)
        await verify_and_check(engine, *NEXT, account="he")
        await trio.sleep(30)
        assert_whole(engine)
        late = b"".join(tap.written[written:]).decode(errors="replace")
        asked_late = {text for text in scenario.texts if f"<{text}>" in late}
        if any(host.offers("STARTTLS") for host in hosts):  # nothing can be read on the way
            received_late = sum((host.record.recipients for host in hosts), Counter()) - received
            asked_late |= set(scenario.texts) & set(received_late)
        assert asked_late <= said_still | may_be_control(engine), "asked after the asker had left"
        for host in hosts:
            assert host.record.mistakes == []
            assert host.record.connections_now == 0
    return cutter.left <= 0


async def close_after(steps: int, scenario: Scenario, *, politely: bool) -> bool:
    """Run the scenario in an engine that is closed after so many steps; False if it was done."""
    inner, outer = trio.CancelScope(), trio.CancelScope()
    cutter = Cutter(steps, inner if politely else outer)
    async with open_fake_network(seed=steps) as network:
        hosts = scenario.build(network)
        tap = Tap(network)
        with outer:
            async with open_engine(
                scenario.settings, transport=network.transport, dial=tap.dial, rng=random.Random(0)
            ) as engine:
                if scenario.asked_before:
                    await verify_and_check(engine, "known0@shop.test", account="before")
                    await trio.sleep(scenario.idle_s)
                trio.lowlevel.add_instrument(cutter)
                with inner:
                    await read_all(engine, scenario)
                left_at = trio.current_time()
        trio.lowlevel.remove_instrument(cutter)
        if politely:
            assert trio.current_time() - left_at <= 1.05
        [egress] = engine.probing.egresses
        assert tap.open == 0
        assert not egress.permits.in_use
        assert egress.tasks.count == 0
        assert not any(
            probed.staffing.connections.now or probed.staffing.sessions.open
            for probed in egress.hosts.values()
        )
        async with open_engine(
            scenario.settings, transport=network.transport, dial=tap.dial
        ) as another:
            await verify_and_check(another, *NEXT, account="he")
            await trio.sleep(30)
            assert_whole(another)
        for host in hosts:
            assert host.record.mistakes == []
    return cutter.left <= 0


async def read_all(engine: Engine, scenario: Scenario) -> None:
    async with open_answers(
        engine, scenario.texts, account="she", deferred_start=scenario.deferred_start
    ) as answers:
        async for _ in answers:
            pass


async def at_every_step(
    scenario: Scenario, cut_after: Callable[[int, Scenario], Awaitable[bool]], first: int
) -> None:
    """Cut the scenario after ever more steps, until it ends by itself."""
    for steps in range(first, STEPS_MAX, stride(scenario.stride)):
        try:
            cut = await cut_after(steps, scenario)
        except BaseException as error:
            error.add_note(f"cut after {steps} steps")
            raise
        if not cut:
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("cancelled", [False, True], ids=["leaves", "is cancelled"])
async def test_an_account_goes_at_any_step(autojump_clock, name, cancelled):
    """Nobody else notices, nothing more is asked for her, and the engine is whole."""
    scenario = SCENARIOS[name]
    await at_every_step(scenario, partial(leave_after, cancelled=cancelled), 1 + cancelled)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("politely", [False, True], ids=["is cancelled", "is left"])
async def test_the_engine_is_closed_at_any_step(autojump_clock, name, politely):
    """No connection is left open, and a new engine gets its answers from the same host."""
    scenario = SCENARIOS[name]
    await at_every_step(scenario, partial(close_after, politely=politely), 1 + politely)
