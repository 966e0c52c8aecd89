"""Compares what a cleaned list said with the bounces that came. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field

from mailprobe.engine.verdict import Reason

from ...bounces.kinds import Kind
from .bounces import key_of

Z_95 = 1.959964  # of the normal distribution, for 95 %
DOMAINS_MAX = 50_000
LIARS_MAX = 20  # domains shown
BOUNCED: Reason = "bounced"  # of a row that was cleaned with its bounce (--bounces)


class Group(Struct):
    """The addresses of one status, reason or provider, and how many of them bounced."""

    sent: int = 0
    bounced: Counter[Kind] = field(default_factory=Counter)

    @property
    def gone(self) -> int:
        return self.bounced["no_mailbox"]

    def interval(self) -> tuple[float, float]:
        """Between which shares the share without a mailbox is, at 95 % confidence (Wilson)."""
        return wilson(self.gone, self.sent)


def wilson(hits: int, total: int) -> tuple[float, float]:
    """The score interval of a share (E. B. Wilson, 1927), good for few and for no hits too."""
    if not total:
        return 0.0, 1.0
    share, z2 = hits / total, Z_95**2
    middle = share + z2 / (2 * total)
    spread = Z_95 * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2))
    scale = 1 + z2 / total
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


class CleanedRow(Struct, frozen=True):
    """One address of the cleaned list, and what was said of it."""

    address: str
    status: str
    reason: str
    provider: str
    light: str


class Score(Struct):
    """The comparison. `groups` is by kind of group, then by its name."""

    groups: dict[str, dict[str, Group]] = field(
        default_factory=lambda: {"status": {}, "reason": {}, "provider": {}}
    )
    all: Group = field(default_factory=Group)
    liars: dict[str, Group] = field(default_factory=dict)  # domains that accept any mailbox's name
    not_sent: int = 0  # rows of other lights
    bounced_not_sent: int = 0  # of these; so mail was sent to them after all
    bounced_before: int = 0  # bounces that the list was cleaned with, of rows of any light
    foreign: int = 0  # bounces of addresses that the list does not have

    def worst_domains(self) -> list[tuple[str, Group]]:
        """Domains whose hosts accepted an address that bounced as unknown, most bounces first."""
        lied = [(name, group) for name, group in self.liars.items() if group.gone]
        return sorted(lied, key=lambda entry: (-entry[1].gone, entry[0]))[:LIARS_MAX]


def score(rows: Iterable[CleanedRow], bounces: Mapping[str, Kind], lights: frozenset[str]) -> Score:
    """Compare each address once; mail went to those with these lights."""
    made, seen = Score(), set[str]()
    for row in rows:
        key = key_of(row.address)
        if key in seen:
            continue
        seen.add(key)
        kind = bounces.get(key)
        was_known = kind is not None and row.reason == BOUNCED
        made.bounced_before += was_known
        if row.light not in lights:
            made.not_sent += 1
            made.bounced_not_sent += kind is not None and not was_known
            continue
        for group in _groups_of(made, row):
            group.sent += 1
            if kind is not None:
                group.bounced[kind] += 1
    made.foreign = sum(1 for key in bounces if key not in seen)
    return made


def _groups_of(made: Score, row: CleanedRow) -> Iterator[Group]:
    yield made.all
    for by, name in (("status", row.status), ("reason", row.reason), ("provider", row.provider)):
        yield made.groups[by].setdefault(name or "-", Group())
    domain = row.address.rpartition("@")[2].lower()
    if row.status == "deliverable" and (domain in made.liars or len(made.liars) < DOMAINS_MAX):
        yield made.liars.setdefault(domain, Group())
