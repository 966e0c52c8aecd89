"""Facts about mail hosts that this engine shares with the other engines of a fleet, and takes from them.

Shared are back-offs after a host's own words, the refusal before one, and what a domain accepts.
Back-offs are about a host and the egress that it saw, so they have the egress in their key; what
a domain accepts is not.

Silence and unreachable hosts are not shared: an engine whose own network is gone would stop all
others. Nor are inconclusive tests, which expire within a minute. A fact is never believed
against what this engine has found, and has no effect on what is under way.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from random import Random
from socket import gethostname
from typing import TYPE_CHECKING

import msgspec
import trio

from ...dns.messages import Route
from ...dns.routes import Routes
from ...settings import EngineSettings
from ...shared_cache import KEPT_S_MAX, Fact
from ...verdict import LADDER, Outcome
from ..backoff import HostBackoff
from ..catchall import Acceptance, DomainAcceptance, Domains
from ..host_memory import NAMES_OF_HOST_MAX, HostMemory
from ..probe import Cause
from .engine_shared_cache import (
    NOT,
    VALUES,
    EngineSharedCache,
    KnownAcceptance,
)

if TYPE_CHECKING:
    from .host import Host
    from .hosts import Hosts

STRUCK_S = 600.0  # within this time of one refusal, another one in the fleet counts as its second
# An engine that was not refused itself waits longer: so one of the fleet tries the host first,
# and the others have heard what came of it.
LATER_S = 2.5  # a fact arrives within two seconds
APART_SHARE = 0.1  # of the back-off, over which the others are spread,
APART_S_MIN = 10.0  # and at least: so one of 29 comes each 0.3 s
FAILURES_MAX = 20  # the back-off stops doubling before
WORDS = "it refused another engine of this fleet"  # the host's own may name a mailbox


class _SharedBackoff(msgspec.Struct):
    outcome: str
    rule: str
    failures: int


def _backoff_of(value: str) -> _SharedBackoff:
    """Decode a back-off; engines of earlier versions share the values alone, in an array."""
    if value.startswith("["):
        return _SharedBackoff(*msgspec.json.decode(value, type=tuple[str, str, int]))
    return msgspec.json.decode(value, type=_SharedBackoff)


def resting_elsewhere(facts: Iterable[Fact], egress: str) -> list[tuple[str, str, float]]:
    """Read shared back-offs of this egress: exchange name, rule, seconds left; the longest first.

    What cannot be read is left out.
    """
    resting: list[tuple[str, str, float]] = []
    for fact in facts:
        its, _, subject = fact.key.partition(" ")
        if its != egress or not fact.is_sound or fact.kind != "backoff":
            continue
        where, _, what = subject.partition(" ")
        if where != "name":
            continue
        with suppress(msgspec.MsgspecError):
            resting.append((what, _backoff_of(fact.value).rule, fact.kept_s))
    return sorted(resting, key=lambda each: (-each[2], each[0]))


class HostSharedCache:
    """Shares what is learned by one egress; the listener of its domains."""

    def __init__(
        self,
        fleet: EngineSharedCache,
        egress: str,
        kept_s: float,
        routes: Routes,
        domains: Domains,
        memory: HostMemory,
        hosts: "Sequence[Hosts]",
    ) -> None:
        """`kept_s`: for so long a test's result is kept.

        `hosts`: the egress's ordinary ones, and the patient ones.
        """
        self._fleet = fleet
        self._egress = egress
        self._kept_s = min(kept_s, KEPT_S_MAX["acceptance"])
        self._engine = secrets.token_hex(4)
        self._routes = routes
        self._domains = domains
        self._memory = memory
        self._hosts = hosts
        self._now = trio.lowlevel.current_clock().current_time
        fleet.add(egress, self)
        domains.listen(self)

    def absorb(self, fact: Fact, subject: str) -> bool:
        """See engine_shared_cache.EgressSharedCache."""
        if fact.kind == "backoff":
            return self._absorb_backoff(fact, subject)
        self._strike(subject, self._now() + fact.kept_s)
        return True

    def _named(self, name: str) -> "Iterator[Host]":
        return (host for hosts in self._hosts if (host := hosts.named(name)) is not None)

    # -- back-offs -----------------------------------------------------------------------------

    def refused_once(self, names: Iterable[str], cause: Cause) -> None:
        """The host has refused us once: there is no back-off yet."""
        if _is_shared(cause):
            for name in list(names)[:NAMES_OF_HOST_MAX]:
                self._fleet.exchange.share(Fact("strike", f"{self._egress} {name}", "", STRUCK_S))

    def backed_off(
        self, names: Iterable[str], backoff: HostBackoff, addresses: Iterable[str], cause: Cause
    ) -> None:
        if not _is_shared(cause):
            return
        for address in addresses:
            self._share_backoff(f"address {address}", backoff, cause)
        for name in list(names)[:NAMES_OF_HOST_MAX]:
            self._share_backoff(f"name {name}", self._memory.backoff_of(name), cause)

    def _share_backoff(self, where: str, backoff: HostBackoff, cause: Cause) -> None:
        shared = _SharedBackoff(cause.outcome.name, cause.rule, min(backoff.failures, FAILURES_MAX))
        value = msgspec.json.encode(shared).decode()
        left_s = backoff.until - self._now()
        self._fleet.exchange.share(Fact("backoff", f"{self._egress} {where}", value, left_s))

    def _absorb_backoff(self, fact: Fact, subject: str) -> bool:
        kind, where = subject.split(" ")
        shared = _backoff_of(fact.value)
        cause = Cause(Outcome[shared.outcome], shared.rule, WORDS, about_us=True)
        if not _is_shared(cause):
            return False
        now = self._now()
        failures = max(1, min(shared.failures, FAILURES_MAX))
        until = now + fact.kept_s + self._later_s(where, fact.kept_s)
        backoff = HostBackoff(failures, until, now)
        if kind == "address":
            serves_us = any(
                host.staffing.sessions.is_at(where)
                for host in self._hosts[0].at_address.get(where, ())
            )
            return not serves_us and self._memory.back_off_address(where, backoff, cause)
        self._strike(where, backoff.until + STRUCK_S)
        if not self._memory.back_off_name(where, backoff, cause):
            return False
        for host in self._named(where):
            host.backed_off_elsewhere(backoff.until)
        return True

    def _later_s(self, where: str, kept_s: float) -> float:
        """How much longer this engine waits than the one that was refused; differs between hosts."""
        place = Random(f"{self._engine} {where}").random()
        return LATER_S + place * max(APART_S_MIN, APART_SHARE * kept_s)

    def _strike(self, name: str, until: float) -> None:
        self._memory.strike_elsewhere(name, until)
        for host in self._named(name):
            host.rest.struck_elsewhere()

    # -- what a domain accepts -----------------------------------------------------------------

    def learned(self, domain: DomainAcceptance, kept_s: float) -> None:
        if domain.acceptance in VALUES:
            value = VALUES[domain.acceptance]
            if domain.acceptance is Acceptance.SOME:  # this egress was refused a recipient
                value = f"{value} {self._egress}"
            self._share_acceptance(domain, value, kept_s)

    def forgotten(self, domain: DomainAcceptance, acceptance: Acceptance) -> None:
        """The domain's result is withdrawn, whichever engine found it."""
        if acceptance in VALUES:
            value = NOT + VALUES[acceptance]
            known = KnownAcceptance(acceptance, self._now() + self._kept_s, holds=False)
            for name in self._share_acceptance(domain, value, self._kept_s):
                self._fleet.keep_acceptance((name, domain.key), known)

    def recall(self, domain: DomainAcceptance) -> None:
        for host, name in self._exchanges_of(domain):
            if (known := self._fleet.accepted(name, domain.key)) is not None:
                self._believe(domain, host, known)

    def _share_acceptance(self, domain: DomainAcceptance, value: str, kept_s: float) -> list[str]:
        names = [name for _, name in self._exchanges_of(domain)]
        for name in names:
            self._fleet.exchange.share(Fact("acceptance", f"{name} {domain.key}", value, kept_s))
        return names

    def _exchanges_of(self, domain: DomainAcceptance) -> "list[tuple[Host, str]]":
        """The exchanges of the domain that are this host: elsewhere it may have another key."""
        route = self._routes.cached_route(domain.name)
        if not isinstance(route, Route):
            return []
        return [
            (host, exchange.name)
            for exchange in route.exchanges
            if (host := self._hosts[0].named(exchange.name)) is not None
            and host.identity.key == domain.host
        ]

    def absorb_acceptance(self, name: str, domain: str, known: KnownAcceptance) -> bool:
        """See engine_shared_cache.EgressSharedCache."""
        host = self._hosts[0].named(name)
        here = None if host is None else self._domains.known(host.identity.key, domain)
        if host is None or here is None:
            return False
        if known.holds:
            return self._believe(here, host, known)
        if here.acceptance is not known.acceptance or here.known_until > known.until:
            return False
        here.drop_test()
        return True

    def _believe(self, domain: DomainAcceptance, host: "Host", known: KnownAcceptance) -> bool:
        """Set what another engine has found, unless this one knows or is finding out itself.

        A refusal of another egress' random address counts only if the host refuses this one's, too.
        """
        now, acceptance = self._now(), known.acceptance
        refuses_us = known.by == self._egress or self._domains.judges(host.identity.key, now)
        if acceptance is Acceptance.SOME and not refuses_us:
            return False
        knows = (
            now >= known.until or domain.known(now) in VALUES or domain.testing or domain.awaiting
        )
        contradicts = acceptance is Acceptance.ALL and (
            domain.accepts_most or domain.at.unknown_mailbox
        )
        if knows or contradicts or host.controls.has_changed(now):
            return False
        domain.believe(acceptance, known.until)
        host.controls.note_learned(domain)
        return True


def egress_of(settings: EngineSettings) -> str:
    """The client that hosts see: engines with one EHLO name. A local name is each machine's own."""
    name = settings.helo_name.lower()
    return f"{name}@{gethostname()}" if settings.helo_is_local else name


def _is_shared(cause: Cause) -> bool:
    """Has the host refused us in its own words? Silence may be another engine's own fault."""
    spoke = cause.outcome is not Outcome.TIMED_OUT
    return cause.about_us and spoke and LADDER[cause.outcome].status == "unknown"
