"""The egress that asks about each domain, chosen by weighted rendezvous hashing.

Every process makes the same choice, so a domain's catch-all test is made by one egress. An
egress that is left out gives its domains to all others in proportion to their weights, and no
other domain moves. A domain stays with its egress as long as that may and can ask its host.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from math import log as ln
from typing import NamedTuple

import trio
from msgspec import Struct, field

from ...dns.messages import MailExchange
from ...egress import Egress, EgressControl
from ..host.host import Host
from ..operators import MailOperators
from ..probe import Probe
from .hosts import EgressHosts
from .standing import EgressStanding

log = logging.getLogger("mailprobe.egress")

SPENT_S = 0.1  # between two looks whether an egress has addresses of the day again
UNSUITED_S = 24 * 3600.0  # an egress whose recipients a host does not judge does not ask it again
UNSUITED_MAX = 10_000  # hosts and egresses remembered so; the oldest are removed first

_MASK = (1 << 64) - 1


def seed_of(name: str) -> int:
    """A number for a name; the same in every process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def score(domain: int, egress: int, weight: float) -> float:
    """How well the egress of this seed fits the domain of that seed; the highest is chosen."""
    mixed = domain ^ egress  # then the last steps of SplitMix64: each bit depends on all
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return -weight / ln(((mixed ^ mixed >> 31) + 0.5) / 2**64)


class EgressTask(NamedTuple):
    """What the choice depends on."""

    domain: str
    exchanges: Sequence[MailExchange]
    tried: tuple[str, ...] = ()  # egresses


class Way(Struct, eq=False):
    """One of several egresses: its row, the mail hosts by it, and how it fares."""

    name: str
    seed: int  # of its name
    row: Egress
    hosts: EgressHosts
    standing: EgressStanding = field(default_factory=EgressStanding)
    spent_until: float = float("-inf")  # its addresses of the day are used up

    def may_ask(self, operators: Iterable[str]) -> bool:
        return all(map(self.row.may_ask, operators))


class EgressChoice:
    """Chooses among the egresses, and counts their addresses of the day."""

    def __init__(
        self, ways: Iterable[Way], operators: MailOperators, control: EgressControl
    ) -> None:
        self.ways = tuple(ways)
        self.operators = operators
        self.control = control
        self._now = trio.lowlevel.current_clock().current_time
        self.by_name = {way.name: way for way in self.ways}
        # Until when an egress does not ask an exchange that does not judge its recipients.
        self._unsuited: OrderedDict[tuple[str, str], float] = OrderedDict()

    def hosts_for_list(self, domain: str, exchanges: Sequence[MailExchange]) -> EgressHosts | None:
        """The hosts by the egress that asks about a list's domain; None without one.

        Where all are refused, a list waits at one of them, as it does at a host in back-off.
        """
        task = EgressTask(domain, exchanges)
        way = (
            self.best(task)
            or self.best(task, awaited=True)
            or next(iter(self._by_fitness(task)), None)
        )
        return None if way is None else way.hosts

    def is_withdrawn(self, host: Host, domain: str) -> bool:
        """Is another egress to ask about the domain, rather than that of this host?"""
        way = self.by_name[host.egress.name]
        suited = self._is_suited(way, host.identity.name)
        return not (suited and self.is_usable(way)) or way.hosts.is_refused(host, domain)

    def is_usable(self, way: Way) -> bool:
        return self._is_able(way) and way.spent_until <= self._now()

    def _is_able(self, way: Way) -> bool:
        return not way.standing.has_failed and self.control.state(way.name) == "active"

    def awaits_addresses(self, way: Way) -> bool:
        """Could it ask, but for its addresses of the day, and may it get more in a moment?"""
        return (
            way.spent_until > self._now()
            and self._is_able(way)
            and self.control.awaits_more(way.name)
        )

    def is_awaited(self, task: EgressTask) -> bool:
        """Is there an egress that may ask in a moment?"""
        return self.best(task, awaited=True) is not None

    def best(self, task: EgressTask, *, awaited: bool = False) -> Way | None:
        """The egress that fits best of those that may and can ask, or that are awaited."""
        exchange = task.exchanges[0]
        for way in self._by_fitness(task, awaited=awaited):
            if self._is_suited(way, exchange.name) and not way.hosts.is_refused_at(
                exchange, task.domain
            ):
                return way
        return None

    def _by_fitness(self, task: EgressTask, *, awaited: bool = False) -> list[Way]:
        """Those that may ask, or that are awaited; the best one first."""
        is_candidate = self.awaits_addresses if awaited else self.is_usable
        operators = {self.operators.id_of(exchange.name) for exchange in task.exchanges}
        # By the host, so that it hears from one egress as long as that may ask.
        best = min(task.exchanges, key=lambda each: (each.preference, each.name))
        seed = seed_of(best.name)
        return sorted(
            (
                way
                for way in self.ways
                if way.name not in task.tried
                and is_candidate(way)
                and way.may_ask(operators)
                and any(map(way.hosts.reaches, task.exchanges))
            ),
            key=lambda way: (
                way.hosts.reaches(task.exchanges[0]),
                score(seed, way.seed, way.row.weight),
            ),
            reverse=True,
        )

    def reserve(self, task: EgressTask) -> Way | None:
        """Choose, and count one address of today.

        Where all egresses are refused at the first exchange, the first of them goes on to the next.
        """
        while (way := self.best(task)) is not None:
            if self.count(way, 1):
                return way
        if task.tried or self.is_awaited(task):
            return None
        way = next(iter(self._by_fitness(task)), None)
        return way if way is not None and self.count(way, 1) else None

    def count(self, way: Way, count: int) -> int:
        """Count addresses of today; if they are not granted, the egress is left out for a while."""
        granted = self.control.reserve(way.name, count)
        if granted < count:
            way.spent_until = self._now() + SPENT_S
        return granted

    def _is_suited(self, way: Way, exchange: str) -> bool:
        return self._unsuited.get((way.name, exchange), float("-inf")) <= self._now()

    def judge_doubt(self, probe: Probe) -> None:
        """Another egress had an address accepted: the host does not judge those by the doubted one."""
        key = probe.target.doubted, probe.target.exchange.name
        self._unsuited[key] = self._now() + UNSUITED_S
        self._unsuited.move_to_end(key)
        if len(self._unsuited) > UNSUITED_MAX:
            self._unsuited.popitem(last=False)
        log.warning("egress not judged: egress=%s host=%s", *key)
