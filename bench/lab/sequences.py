"""Hosts whose answers depend on when they are asked, how often, and what went before.

A primary that greets late before a backup that knows less, hosts that turn after refusals,
greylisting, hosts that judge the look of a name, limits by position, renamed recipients,
look-ups that fail once. The lab plays them on sockets (`sequences`), tests/simulation on
virtual time; what each address is, is known for all of them.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from random import Random
from typing import Any

from msgspec import Struct

from mailprobe.engine.verdict import Outcome

from ..world.faults import Late
from ..world.host_behaviours import Turning
from ..world.host_profiles import POSTFIX, new_host
from ..world.mail_host import MailHost
from ..world.zone import ZoneMode
from .internet import LIVING, SENDER
from .scenario import Scenario, Truth

QUESTIONS_MAX = 50  # of one connection to the resolver, which then ends it (GOAWAY)
# Hosts forgive and greylists end after this: less than a bench waits between passes.
EACH_S_MAX = 2.0
NAMES = tuple(sorted(name for name in LIVING if not name.startswith("silent.")))


class Hidden(Enum):
    """Why a truth cannot be known within the clocks. The value is the key in the lab's line."""

    GREYLISTED = "greylisted"  # by a request; a list asks again
    HOST_CHANGED = "host changed"


# As dev/judging.md says it.
SENTENCES: Mapping[Hidden, str] = {
    Hidden.GREYLISTED: "A request asks a host that greylists only once, so it cannot know; the "
    "later passes of a list can.",
    Hidden.HOST_CHANGED: "What a host says after it has begun to refuse or accept every recipient "
    "cannot be known until it has rested, and until then looks like an honest answer.",
}
KNOWABLE_LATER = frozenset({Hidden.GREYLISTED})  # by the later passes of a list


class NameFailure(Struct, frozen=True):
    """A name whose first look-ups of a type fail."""

    name: str
    mode: ZoneMode
    record_type: str
    times: int = 1


class Site(Struct, frozen=True):
    """Domains that belong together, with their hosts."""

    exchanges: Mapping[str, list[str]]  # of each domain, by preference
    hosts: Mapping[str, MailHost]  # by exchange
    failures: tuple[NameFailure, ...] = ()


BuildSite = Callable[[Random, str], Site]  # from the site's name, which is its first domain


class SequenceKind(Struct, frozen=True):
    """Sites of one kind, and the people asked about at each domain of a site."""

    name: str
    build: BuildSite
    sites: int = 3
    living: int = 7  # addresses of each domain
    missing: int = 7
    catch_all: bool = False  # then both are accepted, and the truth of both is the domain's
    hidden: Hidden | None = None


class KnownAddress(Struct, frozen=True):
    """An address with its truth, and why nobody can know it, if so."""

    text: str
    truth: Truth
    hidden: Hidden | None


# -- sites -----------------------------------------------------------------------------------


def _settled(rng: Random, name: str, profile: str = "plain", **changes: Any) -> MailHost:
    """A host some milliseconds away that knows everybody of the list who lives."""
    settled = {"latency_s": rng.choice((0.002, 0.01, 0.03)), "mailboxes": LIVING, **changes}
    return new_host(profile, name, **settled)


def _one(*profiles: str, **changes: Any) -> BuildSite:
    """One host of one of these profiles."""

    def build(rng: Random, domain: str) -> Site:
        mx = f"mx1.{domain}"
        return Site({domain: [mx]}, {mx: _settled(rng, mx, rng.choice(profiles), **changes)})

    return build


PRIMARY_ONLY = "451 4.3.0 <{rcpt}>: try the primary"
BACKUPS: Mapping[str, Mapping[str, Any]] = {
    "refuses": {"mailboxes": frozenset()},
    "accepts": {"catch_all": True},
    "denies-relay": {"domains": frozenset()},
    "451": {"default_known": PRIMARY_ONLY, "default_unknown": PRIMARY_ONLY},
}


def _late(late_s: float, backup: str) -> BuildSite:
    """A primary that greets late, and a prompt backup that cannot judge its recipients."""

    def build(rng: Random, domain: str) -> Site:
        first, second = f"mx1.{domain}", f"mx2.{domain}"
        hosts = {
            first: _settled(rng, first, faults={"CONNECT": Late(late_s)}),
            second: _settled(rng, second, **BACKUPS[backup]),
        }
        return Site({domain: [first, second]}, hosts)

    return build


# As servers and gateways say that one transaction has enough recipients.
POSITION_REPLIES = (
    "452 4.5.3 Error: too many recipients",
    "451 4.5.3 Too many recipients",
    "552 Too many recipients",
    "554 5.5.3 <{rcpt}>: Recipient limit exceeded",
    "550 5.5.3 Too many recipients in this transaction",
    "550 5.7.1 This message has more recipients than our policy allows",
    "550 5.7.1 <{rcpt}>: Recipient address rejected: Access denied",
    "550 5.1.1 <{rcpt}>: Recipient rejected, one message at a time please",
    "550 <{rcpt}> refused",
    "450 4.7.1 <{rcpt}>: Recipient address rejected: try the next message",
    "550 Zu viele Empfänger in einer Nachricht",
    "554 Requested action not taken: one recipient at a time",
)


def _limited(rng: Random, domain: str) -> Site:
    """A host that takes a few recipients in a transaction; the words are the site's own."""
    number = int("".join(filter(str.isdigit, domain)) or 0)
    reply = POSITION_REPLIES[number % len(POSITION_REPLIES)]
    return _one("plain", recipients_max=rng.choice((3, 5)), recipients_reply=reply)(rng, domain)


NAMED = {"default_known": "250 2.1.5 <{rcpt}> Ok", "default_unknown": POSTFIX.default_unknown}


def _renamed(*, both: bool) -> BuildSite:
    """A domain whose recipients are called by another one in replies; with `both`, that one too."""

    def build(rng: Random, domain: str) -> Site:
        mx, canonical = f"mx1.{domain}", f"canonical.{domain}"
        known = rng.choice((NAMED, {"default_unknown": POSTFIX.default_unknown}))
        host = _settled(rng, mx, renames={domain: canonical}, **known)
        domains = [domain, canonical] if both else [domain]
        return Site({each: [mx] for each in domains}, {mx: host})

    return build


SHARING = 6  # domains of one exchange


def _failing(mode: ZoneMode, *, exchange: bool) -> BuildSite:
    """Domains of one exchange; its first look-up fails, or the first one of each domain."""

    def build(rng: Random, domain: str) -> Site:
        mx = f"mx1.{domain}"
        domains = [domain, *(f"d{number}.{domain}" for number in range(1, SHARING))]
        failing = (
            [NameFailure(mx, mode, "A")]
            if exchange
            else [NameFailure(each, mode, "MX") for each in domains]
        )
        return Site({each: [mx] for each in domains}, {mx: _settled(rng, mx)}, tuple(failing))

    return build


# -- kinds -----------------------------------------------------------------------------------

LATE_MS = (150, 280, 400, 900)
LATE = tuple(
    SequenceKind(f"late-{late_ms}-backup-{backup}", _late(late_ms / 1000, backup))
    for late_ms in LATE_MS
    for backup in BACKUPS
)

POLICY = "550 5.7.1 <{rcpt}>: Too many invalid recipients, access denied"
TURNS_TO: Mapping[str, str | None] = {"nobody": POSTFIX.default_unknown, "everybody": None}
# refusals -> (sites, living, missing): enough to turn, and after an acceptance most of the time
TURN_SIZES = {3: (6, 20, 4), 10: (2, 14, 16), 30: (1, 24, 40)}
TURNING_AFTER_REFUSALS = tuple(
    SequenceKind(
        f"turns-{refusals}-{'connection' if each else 'client'}-to-{to}",
        _one("plain", turn=Turning(refusals, reply=reply, each_connection=each)),
        *TURN_SIZES[refusals],
        # A session has at most 8 refusals, so the others have no reason to turn.
        hidden=None if each and refusals > 8 else Hidden.HOST_CHANGED,
    )
    for refusals in TURN_SIZES
    for each in (True, False)
    for to, reply in TURNS_TO.items()
)
TURNING = (
    *TURNING_AFTER_REFUSALS,
    *(
        SequenceKind(f"turns-{name}", _one("plain", turn=turn), 2, 14, 16, hidden=Hidden.HOST_CHANGED)
        for name, turn in (
            ("10-client-to-policy", Turning(10, reply=POLICY)),
            ("10-client-to-nobody-rests", Turning(10, reply=POSTFIX.default_unknown, rest_s=EACH_S_MAX)),
            ("10-client-to-everybody-rests", Turning(10, rest_s=EACH_S_MAX)),
        )
    ),
)  # fmt: skip

GREY: Mapping[str, Mapping[str, Any]] = {
    "for-a-time": {"greylist_s": EACH_S_MAX},
    "first-try": {"greylist_tries": 1},
}
GREYLISTING = tuple(
    SequenceKind(
        f"greylisting-{how}-{'all' if everyone else 'exact'}",
        _one("plain", "no pipelining", catch_all=everyone, **changes),
        catch_all=everyone,
        hidden=Hidden.GREYLISTED,
    )
    for how, changes in GREY.items()
    for everyone in (False, True)
)

SUSPICIOUS = "550 5.7.1 <{rcpt}>: suspicious recipient"
SHAPES = {
    "policy": SUSPICIOUS,
    "unknown": POSTFIX.default_unknown,
    "own-words": "550 <{rcpt}>: recipient looks generated",
}
JUDGING_SHAPE = tuple(
    SequenceKind(
        f"shape-{words}-{'all' if everyone else 'exact'}",
        _one("plain", "exim", shape_reply=reply, catch_all=everyone),
        catch_all=everyone,
    )
    for words, reply in SHAPES.items()
    for everyone in (False, True)
)

LIMITED = (SequenceKind("limit-transaction", _limited, len(POSITION_REPLIES)),)

RENAMED = (
    SequenceKind("renamed", _renamed(both=False)),
    SequenceKind("renamed-both", _renamed(both=True)),
)

LOOKUPS = (
    SequenceKind("servfail-exchange", _failing(ZoneMode.SERVFAIL, exchange=True), 2, 4, 4),
    SequenceKind("servfail-domain", _failing(ZoneMode.SERVFAIL, exchange=False), 2, 4, 4),
    SequenceKind("503-exchange", _failing(ZoneMode.HTTP_ERROR, exchange=True), 2, 4, 4),
    SequenceKind("503-domain", _failing(ZoneMode.HTTP_ERROR, exchange=False), 2, 4, 4),
)

KINDS = (*LATE, *TURNING, *GREYLISTING, *JUDGING_SHAPE, *LIMITED, *RENAMED, *LOOKUPS)


# -- playing them ----------------------------------------------------------------------------


def build_site(kind: SequenceKind, rng: Random, number: int) -> tuple[Site, list[KnownAddress]]:
    """One site of this kind, and the addresses to ask about, in the order of its domains."""
    site = kind.build(rng, f"{kind.name}-{number}.test")
    people = list(_people(rng, kind.living, kind.missing))
    return site, [
        KnownAddress(f"{local}@{domain}", _truth(kind, living=living), kind.hidden)
        for domain in site.exchanges
        for local, living in people
    ]


def _truth(kind: SequenceKind, *, living: bool) -> Truth:
    if kind.catch_all:
        return Truth.CATCH_ALL
    return Truth.EXISTS if living else Truth.ABSENT


def _people(rng: Random, living: int, missing: int) -> Iterator[tuple[str, bool]]:
    """Different local parts, and whether they are mailboxes."""
    names = rng.sample(NAMES, living + missing)
    yield from ((name, True) for name in names[:living])
    yield from ((f"{name}{rng.randrange(70, 100)}", False) for name in names[living:])


def sequences(rng: Random) -> Scenario:
    """All kinds; each is a group of the scenario, in the order of its sites."""
    scenario = Scenario(mail_from=SENDER, doh_requests_max=QUESTIONS_MAX)
    for kind in KINDS:
        for number in range(kind.sites):
            site, addresses = build_site(kind, rng, number)
            for exchange, host in site.hosts.items():
                scenario.settle(exchange, host)
            for domain, exchanges in site.exchanges.items():
                scenario.zone.mx(domain, *exchanges)
            for failure in site.failures:
                scenario.zone.mode(
                    failure.name, failure.mode, failure.record_type, times=failure.times
                )
            for address in addresses:
                _report(scenario, kind, address)
    return scenario


OUTCOMES = {
    Truth.EXISTS: Outcome.DELIVERABLE,
    Truth.ABSENT: Outcome.UNDELIVERABLE,
    Truth.CATCH_ALL: Outcome.CATCH_ALL,
}


def _report(scenario: Scenario, kind: SequenceKind, address: KnownAddress) -> None:
    scenario.groups[kind.name].append(address.text)
    scenario.truth[address.truth].append(address.text)
    if address.hidden is None:
        scenario.expect(OUTCOMES[address.truth], address.text)
    else:
        scenario.hidden[address.hidden.value].append(address.text)
