"""No sequence of events makes a verdict wrong: the hosts of bench/lab/sequences.py, from seeds.

A seed decides how a site of a kind is asked: as a list with the later passes of `clean`, as
batches of two accounts, or singly. Late primaries are late with their greeting or with the
connection itself. Every address is known to exist or not, so a verdict
is right, `unknown`, or wrong; and what can be known is known once a list has ended.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import inf

import pytest
import trio

from mailprobe.api.cli.cleaning.addresses import DistinctAddresses
from mailprobe.api.cli.cleaning.passes import Passes, Recheck
from mailprobe.api.cli.source import OwnEngine
from mailprobe.api.listfile.journal import VERSION, Header, open_journal
from mailprobe.bench.harness.confusion import HONEST
from mailprobe.bench.lab.internet import SENDER
from mailprobe.bench.lab.sequences import (
    KINDS,
    KNOWABLE_LATER,
    KnownAddress,
    SequenceKind,
    Site,
    build_site,
)
from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.faults import Late
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import Engine, EngineSettings, in_order, open_answers
from mailprobe.engine.egress import Egress, Egresses
from mailprobe.engine.settings import DOH_URLS
from mailprobe.engine.smtp.tolerance.budget import SESSION_FIRST
from tests.engine.engine_runs import open_test_engine
from tests.engine.invariants import assert_whole
from tests.engine.smtp.egress.worlds import Control
from tests.seeds import ALL, seeds

SEEDS_TRUE_MIN = seeds(9)
SEEDS_KNOWN = range(9, 11 if ALL else 10)
RECHECK = Recheck(passes=2, after_s=(300.0,), patience_s=4 * 3600.0)  # as a list job has it
THREE = Egresses((Egress("a"), Egress("b"), Egress("c", weight=0.5)))
SETTLED_S = 30.0  # after which nothing of an engine is under way
INTERRUPTED_S = 100.0  # while most hosts are waited for
BATCH = 50
BATCHES_EVERY_S, SINGLES_EVERY_S = 0.3, 0.05

Statuses = dict[str, str]  # by address
Ask = Callable[[Engine, list[str]], Awaitable[Statuses]]


def with_late_connect(host: MailHost) -> MailHost:
    """The same host, its connection late in place of its greeting."""
    match host.faults.get("CONNECT"):
        case Late(by_s=late_s):
            return replace(host, faults={}, connect_s=late_s)
    return host


def add(network: FakeNetwork, site: Site, *, late_connect: bool) -> None:
    hosts = {
        exchange: with_late_connect(host) if late_connect else host
        for exchange, host in site.hosts.items()
    }
    for domain, exchanges in site.exchanges.items():
        for place, exchange in enumerate(exchanges, 1):
            network.add(domain, hosts[exchange], mx=exchange, preference=10 * place)
    for failure in site.failures:
        network.zone.mode(failure.name, failure.mode, failure.record_type, times=failure.times)


async def ask_list(engine: Engine, texts: list[str], within_s: float = inf) -> Statuses:
    """As `clean` asks, and is told if Ctrl-C ends it after `within_s`."""
    addresses = DistinctAddresses()
    for text in texts:
        addresses.add(text)
    with open_journal(None, Header(VERSION, 1, "ab" * 32), resume=False) as journal:
        with trio.move_on_after(within_s):
            await Passes(addresses, journal, RECHECK, now=trio.current_time).run(OwnEngine(engine))
        return {result.email: result.status for _, result in journal.answers()}


async def ask_in_parts(
    engine: Engine, texts: list[str], size: int, every_s: float, accounts: int
) -> Statuses:
    """As requests ask: one part after the other, whether or not those before are answered."""
    statuses: Statuses = {}

    async def ask(number: int) -> None:
        part = texts[number * size : (number + 1) * size]
        async with open_answers(engine, part, account=f"account{number % accounts}") as answers:
            for verdict in await in_order(answers, len(part)):
                assert verdict.latency_ms <= 3050 + 1500
                statuses[verdict.email] = verdict.status

    async with trio.open_nursery() as nursery:
        for number in range(-(-len(texts) // size)):
            nursery.start_soon(ask, number)
            await trio.sleep(every_s)
    return statuses


async def ask_batches(engine: Engine, texts: list[str]) -> Statuses:
    return await ask_in_parts(engine, texts, BATCH, BATCHES_EVERY_S, accounts=2)


async def ask_singly(engine: Engine, texts: list[str]) -> Statuses:
    return await ask_in_parts(engine, texts, 1, SINGLES_EVERY_S, accounts=3)


async def interrupt_list(engine: Engine, texts: list[str]) -> Statuses:
    statuses = await ask_list(engine, texts, within_s=INTERRUPTED_S)
    return {text: statuses.get(text, "unknown") for text in texts}


WAYS: dict[str, Ask] = {"list": ask_list, "batches": ask_batches, "singly": ask_singly}
INTERRUPTED: dict[str, Ask] = {"interrupted": interrupt_list}


@asynccontextmanager
async def open_changing_engine(
    network: FakeNetwork, settings: EngineSettings, rng: random.Random
) -> AsyncIterator[Engine]:
    """An engine of three egresses, which are paused and resumed as the seed has it."""
    control = Control(THREE)
    settings = replace(settings, egresses=THREE)

    async def pause_some() -> None:
        while True:
            await trio.sleep(network.rng.choice([0.3, 2, 20, 200]))
            control.pause(*network.rng.choice([(), ("a",), ("b",), ("a", "c"), ("b", "c")]))

    async with (
        open_test_engine(network, settings, rng=rng, egress_control=control) as engine,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(pause_some)
        yield engine
        nursery.cancel_scope.cancel()


@dataclass(frozen=True)
class Simulated:
    """What was told of each address of a site, and how its hosts behaved."""

    verdicts: list[tuple[KnownAddress, str]]  # with its status
    turned_unseen: bool


def turned_unseen(hosts: Iterable[MailHost], texts: Sequence[str]) -> bool:
    """Did a host turn at a refusal after which requests ask for no further one?

    That is a refused control (a random name, or a name refused before), which shows that the host
    judges; and the last refusal that a session has at a host which nobody knows yet. Only one more
    would show that it has turned, so requests believe what the host accepts then.
    """
    for host in hosts:
        refused = sorted(
            (spoken.at_s, session.number, spoken.line[len("RCPT TO:<") : -1])
            for session in host.record.sessions
            for spoken in session.commands_seen
            if spoken.line.startswith("RCPT") and (spoken.reply or "").startswith("550")
        )
        if not refused:
            continue
        names = [name for _, _, name in refused]
        in_session = sum(number == refused[-1][1] for _, number, _ in refused)
        is_control = names[-1] not in texts or names.count(names[-1]) > 1
        if is_control or in_session >= SESSION_FIRST:
            return True
    return False


async def simulate(
    kind: SequenceKind, way: str, seed: int, *, changes_egress: bool = False
) -> Simulated:
    """Ask about all addresses of a site in this way."""
    open_it = open_changing_engine if changes_egress else open_test_engine
    rng = random.Random(f"{kind.name}/{way}/{seed}")
    settings = EngineSettings(
        host_connections=rng.choice((1, 2, 4)), mail_from=SENDER, doh_urls=DOH_URLS[:1]
    )
    async with open_fake_network(seed=seed) as network:
        site, known = build_site(kind, rng, seed % kind.sites)
        add(network, site, late_connect=rng.random() < 0.5)
        texts = [address.text for address in known]
        if rng.random() < 0.7:
            rng.shuffle(texts)
        async with open_it(network, settings, rng=rng) as engine:
            statuses = await (WAYS | INTERRUPTED)[way](engine, texts)
            await trio.sleep(SETTLED_S)
            assert_whole(engine)
        hosts = list(network.hosts.values())
        assert [host.record.mistakes for host in hosts] == [[]] * len(hosts)
        unseen = turned_unseen(hosts, texts)
    assert statuses.keys() == set(texts)
    return Simulated([(address, statuses[address.text]) for address in known], unseen)


def believed(simulated: Simulated, way: str) -> set[str]:
    """What may be told of everybody in this way."""
    return {"deliverable"} if way != "list" and simulated.turned_unseen else set()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_no_verdict_is_wrong(autojump_clock, kind):
    wrong: Counter[str] = Counter()
    for seed in range(max(SEEDS_TRUE_MIN, kind.sites)):
        way = list(WAYS)[(seed + seed // len(WAYS)) % len(WAYS)]  # not always a site's same one
        simulated = await simulate(kind, way, seed)
        for address, status in simulated.verdicts:
            if status not in HONEST[address.truth] | believed(simulated, way):
                wrong[f"{address.truth.value}, told {status}, {way}"] += 1
    assert not wrong, dict(wrong)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_no_verdict_is_wrong_whichever_egress_asks(autojump_clock, kind):
    """The hosts count what all egresses ask together: they know us by our sender.

    Each egress has controls of its own, so hosts turn at one of them now and then.
    """
    wrong: Counter[str] = Counter()
    for seed, way in enumerate(WAYS):
        if not ALL and (seed + KINDS.index(kind)) % len(WAYS):
            continue  # each kind in one way, each way with a third of the kinds
        simulated = await simulate(kind, way, seed, changes_egress=True)
        for address, status in simulated.verdicts:
            if status not in HONEST[address.truth] | believed(simulated, way):
                wrong[f"{address.truth.value}, told {status}, {way}"] += 1
    assert not wrong, dict(wrong)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_no_verdict_is_wrong_while_a_list_waits(autojump_clock, kind):
    wrong: Counter[str] = Counter()
    seeds_of_sites = range(kind.sites)
    if not ALL and kind.sites > 1:  # every other site
        seeds_of_sites = seeds_of_sites[KINDS.index(kind) % 2 :: 2]
    for seed in seeds_of_sites:
        for address, status in (await simulate(kind, "interrupted", seed)).verdicts:
            if status not in HONEST[address.truth]:
                wrong[f"{address.truth.value}, told {status}"] += 1
    assert not wrong, dict(wrong)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_every_knowable_address_is_known_at_the_end_of_a_list(autojump_clock, kind):
    unknown: Counter[str] = Counter()
    for seed in SEEDS_KNOWN:
        for address, status in (await simulate(kind, "list", seed)).verdicts:
            hidden = address.hidden is not None and address.hidden not in KNOWABLE_LATER
            if status == "unknown" and not hidden:
                unknown[address.truth.value] += 1
    assert not unknown, dict(unknown)
