"""Worlds of fixed seeds in which the probing core is compared with what it did before.

A world is its hosts, the lists and requests that are sent there, and when their accounts leave.
Its kind says how it is built: BUILDERS. It runs on virtual time, alike each time. In every second
one the answers are explained.
"""

import random
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from math import inf

import pytest
import trio
import trio.testing
from msgspec import Struct, field
from msgspec.structs import replace

from mailprobe.bench.lab.internet import SENDER
from mailprobe.bench.lab.sequences import KINDS, SequenceKind, build_site
from mailprobe.bench.world.defended_hosts import DEFENDED_HOSTS, defended_host
from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.host_behaviours import Turning
from mailprobe.bench.world.host_defences import Defence
from mailprobe.bench.world.host_profiles import NO_PIPELINING, limited_host, new_host
from mailprobe.bench.world.mail_host import EHLO_LINES, MailHost
from mailprobe.bench.world.zone import ZoneMode
from mailprobe.engine import Answer, Engine, EngineSettings, open_answers
from tests.engine.engine_runs import open_test_engine
from tests.engine.invariants import assert_whole
from tests.simulation import test_calm, test_out_of_step
from tests.simulation.lists_with_patience import ask_in_passes
from tests.simulation.test_sequences import (
    BATCH,
    BATCHES_EVERY_S,
    SINGLES_EVERY_S,
    open_changing_engine,
)
from tests.simulation.test_sequences import add as add_site

ACCOUNTS = 3
TEXTS_MAX = 24  # of one account
SETTLED_S = 30.0
LIMITS = (
    "452 4.5.3 Error: too many recipients",
    "550 5.7.1 Maximum recipients per connection exceeded",
    "550 5.1.1 Recipient rejected, one message at a time",
    "421 4.7.0 Too many recipients, closing",
)
TERMS = (
    *("starttls demanded", "starttls demanded at rcpt", "starttls refused", "no null sender"),
    *("no null sender at rcpt", "no named sender", "one transaction", "stale", "greylisting"),
)
DEAD = (ZoneMode.HANG, ZoneMode.SERVFAIL, ZoneMode.UNREACHABLE)
FAILING = (
    *("refused", "unanswered", "silent at mail", "silent at rcpt", "late", "garbage at rcpt"),
    *("closing at rcpt", "resetting at rcpt", "shutting down at mail", "421 at rcpt", "banned"),
)

WAYS = ("list", "batches", "singly")  # in which a site of a sequence is asked

HostMaker = Callable[[random.Random], MailHost]


def _slow_host(rng: random.Random) -> MailHost:
    return new_host(
        rng.choice(("tarpit", "tarpit in step", "silent for some", "silent for some, in step")),
        latency_s=rng.choice((0.0, 0.02, 0.1)),
        unknown_delay_s=rng.choice((0.0, 0.5, 1.2, 5.0)),
        slow_s={"known.silent": rng.choice((0.9, 2.0, inf))},
    )


def _turning_host(rng: random.Random) -> MailHost:
    return MailHost(
        latency_s=rng.choice((0.0, 0.02, 0.1)),
        ehlo_lines=rng.choice((EHLO_LINES, NO_PIPELINING)),
        turn=Turning(
            refusals=rng.choice((3, 5, 8)),
            reply=rng.choice((None, "550 5.1.1 User unknown")),
            each_connection=rng.random() < 0.5,
            rest_s=rng.choice((None, 60.0)),
        ),
    )


def _limited_host(rng: random.Random) -> MailHost:
    per_connection = rng.choice((None, 1, 3, 10))
    return limited_host(
        rng.choice(LIMITS),
        per_transaction=rng.choice((1, 2, 5)) if per_connection is None else None,
        per_connection=per_connection,
        latency_s=rng.choice((0.0, 0.02, 0.1)),
        ehlo_lines=rng.choice((EHLO_LINES, NO_PIPELINING)),
        connections_max=rng.choice((None, 1, 2)),
        counts_accepted_only=rng.random() < 0.5,
    )


def _host_with_terms(rng: random.Random) -> MailHost:
    return new_host(rng.choice(TERMS), latency_s=rng.choice((0.0, 0.02)))


def _failing_host(rng: random.Random) -> MailHost:
    return new_host(rng.choice(FAILING), troubled_sessions=rng.choice((None, 1, 3)))


# The hosts of a kind of world; the first one stands in each of its worlds.
HOSTS: dict[str, tuple[HostMaker, ...]] = {
    "calm": (test_calm.make_host,),
    "neighbours": (_slow_host, test_calm.make_host),
    "turning": (_turning_host,),
    "doubled": (lambda rng: test_out_of_step.make_odd(rng).host,),
    "tarpits": (_slow_host,),
    "limits": (_limited_host,),
    "terms": (_host_with_terms, _failing_host),
    "cancellations": (test_calm.make_host, _slow_host, _failing_host),
}
SEEDS = 12  # recorded worlds of each of these kinds


class Account(Struct):
    """What one account was answered, by address; it leaves after `leaves_after` answers.

    `comes_back`: it asks again for what its hosts do not take now, as a list job does.
    """

    name: str
    texts: list[str]
    deferred_start: bool = False
    patient: bool = False
    start_s: float = 0.0
    leaves_after: int | None = None
    comes_back: bool = False
    answers: dict[str, Answer] = field(default_factory=dict)

    async def ask(self, engine: Engine, explain: bool) -> None:
        await trio.sleep(self.start_s)
        if self.comes_back:
            found = await ask_in_passes(engine, self.texts, self.name, explain=explain)
            self.answers = {answer.verdict.email: answer for answer in found}
            return
        async with open_answers(
            engine,
            self.texts,
            account=self.name,
            deferred_start=self.deferred_start,
            patient=self.patient,
            explain=explain,
        ) as answers:
            async for answer in answers:
                self.answers[self.texts[answer.position]] = answer
                if len(self.answers) == self.leaves_after:
                    return


Build = Callable[[FakeNetwork, random.Random, int], list[Account]]  # by a seed


class WorldEnd(Struct, frozen=True):
    """What the accounts know at the end, and the hosts with what they have seen."""

    accounts: list[Account]
    hosts: list[MailHost]


class _InOrder(random.Random):
    """In place of trio's chance, which reverses the order of the tasks that are ready."""

    def random(self) -> float:
        return 0.0


@contextmanager
def scheduled_in_order() -> Iterator[None]:
    """Tasks run in the order in which they become ready, so a world runs alike each time.

    Deadlines of the same moment end in the order in which they were set; trio compares the
    addresses of their scopes in memory.
    """
    run, numbers = sys.modules["trio._core._run"], count()
    with pytest.MonkeyPatch.context() as patch:
        # Private: trio has an order of its own for tests that are to run the same, but no other.
        patch.setattr(run, "_r", _InOrder())
        patch.setattr(run, "_ALLOW_DETERMINISTIC_SCHEDULING", False)
        patch.setattr(run, "id", lambda scope: next(numbers), raising=False)
        yield


@contextmanager
def seeded_names(rng: random.Random) -> Iterator[None]:
    """Random names are made of this chance."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "randbits", rng.getrandbits)
        yield


def is_explained(seed: int) -> bool:
    """Whether a world's answers are, unless its player says otherwise: in every second one."""
    return seed % 2 == 1


def run_world(kind: str, seed: int, *, explain: bool | None = None) -> WorldEnd:
    explain = is_explained(seed) if explain is None else explain
    with scheduled_in_order(), seeded_names(random.Random(f"names/{kind}/{seed}")):
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(_run, kind, seed, explain, clock=clock)


async def _run(kind: str, seed: int, explain: bool) -> WorldEnd:
    rng = random.Random(f"{kind}/{seed}")
    settings = EngineSettings(
        host_connections=rng.choice((1, 2, 4)), mail_from=rng.choice(("", SENDER))
    )
    open_it = open_changing_engine if kind.endswith(BY_THREE) else open_test_engine
    async with open_fake_network(seed=rng.randrange(1 << 30)) as network:
        accounts = BUILDERS[kind](network, rng, seed)
        async with open_it(network, settings, rng=rng) as engine:
            async with trio.open_nursery() as nursery:
                for account in accounts:
                    nursery.start_soon(account.ask, engine, explain)
            await trio.sleep(SETTLED_S)
            assert_whole(engine)
        return WorldEnd(accounts, list(network.hosts.values()))


# -- hosts of many kinds ---------------------------------------------------------------------


def _build_hosts(kind: str, network: FakeNetwork, rng: random.Random, seed: int) -> list[Account]:
    domains = _build(network, kind, rng)
    return [_account(number, kind, rng, domains) for number in range(ACCOUNTS)]


def _build(network: FakeNetwork, kind: str, rng: random.Random) -> list[str]:
    """Add the hosts of this world, each with a few domains; return the domains."""
    makers = HOSTS[kind]
    domains = []
    for number in range(max(len(makers), rng.randint(1, 3))):
        host = makers[number % len(makers)](rng)
        for part in range(rng.randint(1, 3)):
            domains.append(f"d{number}-{part}.test")
            network.add(domains[-1], host, mx=f"mx{number}.test")
            if kind == "cancellations" and rng.random() < 0.5:
                network.add(domains[-1], host, mx=f"backup{number}.test", preference=20)
    if kind == "neighbours":
        for number in range(5):
            domains.append(f"dead{number}.test")
            network.zone.mode(domains[-1], rng.choice(DEAD))
    return domains


def _account(number: int, kind: str, rng: random.Random, domains: list[str]) -> Account:
    locals_ = partial(rng.choice, ("known", "known", "known.silent", "nobody"))
    size = rng.randint(1, TEXTS_MAX)
    texts = {f"{locals_()}{rng.randrange(40)}@{rng.choice(domains)}": None for _ in range(size)}
    leaves = kind == "cancellations" and rng.random() < 0.7
    return Account(
        f"account{number}",
        list(texts),
        deferred_start=rng.random() < 0.5,
        patient=kind in ("tarpits", "doubled") and rng.random() < 0.3,
        start_s=rng.choice((0.0, 0.0, 0.3, 1.0, 4.0)),
        leaves_after=rng.randrange(1, 8) if leaves else None,
    )


# -- sequences of events -----------------------------------------------------------------------


def _build_sequence(
    kind: SequenceKind, network: FakeNetwork, rng: random.Random, seed: int
) -> list[Account]:
    """One site, asked as a list, by batches of two accounts, or singly."""
    site, known = build_site(kind, rng, seed % kind.sites)
    add_site(network, site, late_connect=rng.random() < 0.5)
    texts = [address.text for address in known]
    if rng.random() < 0.7:
        rng.shuffle(texts)
    return _in_way(WAYS[seed % len(WAYS)], texts)


def _in_way(way: str, texts: list[str]) -> list[Account]:
    if way == "list":
        return [Account("account0", texts, deferred_start=True, comes_back=True)]
    size, every_s, accounts = (
        (BATCH, BATCHES_EVERY_S, 2) if way == "batches" else (1, SINGLES_EVERY_S, 3)
    )
    return [
        Account(
            f"account{number % accounts}", texts[place : place + size], start_s=number * every_s
        )
        for number, place in enumerate(range(0, len(texts), size))
    ]


# -- hosts that nobody knows, and their defences -----------------------------------------------


def _neutral_host(rng: random.Random) -> MailHost:
    """A host that no row of the operators' table recognises."""
    ban = Defence(hour_refusals_max=rng.choice((4, 9, 30)), ban_s=rng.choice((500.0, 3600.0)))
    jail = Defence(jail_refusals_max=4, ban_s=600.0, ban_delay_s=3.0, ban_reply="")
    return MailHost(
        banner="220 {name} ESMTP ready",
        default_unknown="550 5.1.1 <{rcpt}>: no such mailbox here",
        mailboxes=frozenset(rng.choice((("postmaster",), ()))),
        latency_s=rng.choice((0.002, 0.02, 0.1)),
        ehlo_lines=rng.choice((EHLO_LINES, NO_PIPELINING)),
        catch_all=rng.random() < 0.15,
        defence=rng.choice(
            (
                *(None, None, jail, ban),
                replace(ban, ban_reply="421 4.7.0 Try again later"),
                replace(ban, bans_recipients=True),
            )
        ),
    )


def _defended_host(rng: random.Random) -> MailHost:
    return defended_host(
        rng.choice(list(DEFENDED_HOSTS)),
        "mx.defended.test",
        latency_s=rng.choice((0.002, 0.02, 0.1)),
    )


def _build_defended(
    make: HostMaker, network: FakeNetwork, rng: random.Random, seed: int
) -> list[Account]:
    """One or two hosts with a few domains, and lists and requests of which many may be refused."""
    domains = []
    for number in range(rng.randint(1, 2)):
        host = make(rng)
        own = f"own{number}.test"
        network.add(own, host, mx=f"mx.{own}")
        domains.append(own)
        for part in range(rng.choice((0, 0, 1, 8))):
            domains.append(f"shared{number}-{part}.test")
            network.add(domains[-1], host, mx=f"mx.{own}")
    accounts = []
    for number in range(ACCOUNTS):
        bad = rng.choice((0.05, 0.3, 0.6, 1.0))
        texts = [
            f"{'gone.x' if rng.random() < bad else 'known'}{each}@{rng.choice(domains)}"
            for each in range(rng.choice((3, 12, 60)))
        ]
        start_s = rng.choice((0.0, 0.0, 1.0, 700.0))
        if rng.random() < 0.5:
            accounts.append(
                Account(
                    f"account{number}", texts, deferred_start=True, comes_back=True, start_s=start_s
                )
            )
        else:
            accounts.append(Account(f"account{number}", texts, start_s=start_s))
    return accounts


BY_THREE = " by three egresses"
BUILDERS: dict[str, Build] = {
    **{kind: partial(_build_hosts, kind) for kind in HOSTS},
    "neutral": partial(_build_defended, _neutral_host),
    "defended": partial(_build_defended, _defended_host),
    **{kind.name: partial(_build_sequence, kind) for kind in KINDS},
    **{kind.name + BY_THREE: partial(_build_sequence, kind) for kind in KINDS},
}
