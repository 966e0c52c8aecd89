"""Upstream lists -> the list files of `engine/data/`. Pure: lists in, texts and reasons out.

The same inputs give the same bytes. Errors of the upstreams are corrected here, so that
look-ups stay simple (see engine/lists/lists.py):

- no public suffix, parent of one, academic or official domain is disposable;
- no provider, relay or domain of the allow list is, nor anything below one;
- no top site, bank or university is, unless the deny list names it;
- a domain of a list that collects from others is only with a second, independent list;
- disposable domains, typos and companies are removed from the free providers.

Each decision is a Ruling, which a build prints.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from typing import NamedTuple

import idna
from msgspec import Struct, field
from publicsuffixlist import PublicSuffixList

from dev.lists.upstreams import BadUpstream, Role, Upstream
from mailprobe.engine.lists.typos import Typos, TypoTable

DISPOSABLE_MIN = 50_000  # fewer than this means that an upstream is broken

ACADEMIC = re.compile(r"(?:^|\.)(?:edu|(?:edu|ac)\.[a-z]{2})$")
OFFICIAL = re.compile(r"\.(?:gov|mil|int)$")  # only authorities and treaty bodies register there
OLD_ENDINGS = ("com", "net", "org", "info", "biz")


class Curated(Struct, frozen=True):
    """The lists kept by hand, which the made ones must agree with."""

    allow: frozenset[str]
    relays: frozenset[str]
    free_core: frozenset[str]
    not_free: frozenset[str]
    smtp_blocked: frozenset[str]
    typos: TypoTable
    deny: Mapping[str, str] = field(default_factory=dict)  # with the reason of each


class Ruling(NamedTuple):
    """Why a domain is in a list or not: the rule, and what it saw."""

    rule: str
    seen: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.seen}" if self.seen else self.rule


ONE_CURATED = "in one curated list"
GONE = Ruling("in no upstream any more")
NOT_IN_ALL = Ruling("not in every list of free providers")


class Made(Struct, frozen=True):
    """The made lists by file name, and the ruling on each domain, by file name too."""

    files: Mapping[str, tuple[str, ...]]
    kept: Mapping[str, Mapping[str, Ruling]]
    refused: Mapping[str, Mapping[str, Ruling]]

    def why(self, file: str, domain: str) -> Ruling:
        """Why the domain is in this list, or not."""
        for rulings in (self.kept, self.refused):
            if (found := rulings.get(file, {}).get(domain)) is not None:
                return found
        return NOT_IN_ALL if file == "free_providers.txt" else GONE

    def counts(self, file: str) -> tuple[Counter[str], Counter[str]]:
        """How many domains each rule let in and kept out; with the list where one is enough."""
        return (
            Counter(
                str(ruling) if ruling.rule == ONE_CURATED else ruling.rule
                for ruling in self.kept[file].values()
            ),
            Counter(ruling.rule for ruling in self.refused[file].values()),
        )


class Vetoes:
    """Domains of real organisations and top sites, which single lists get wrong."""

    def __init__(self, upstreams: Iterable[Upstream], claimed: Set[str]) -> None:
        """Only what concerns the `claimed` domains is kept."""
        self._popular: dict[str, str] = {}
        self._organisations: dict[str, str] = {}
        parents = {name for domain in claimed for name in _with_parents(domain)}
        for upstream in sorted(upstreams, key=lambda upstream: upstream.source.title):
            title = upstream.source.part or upstream.source.package
            if upstream.source.role is Role.POPULAR:  # a site's host says that its domain is used
                for domain in upstream.domains:
                    for name in _with_parents(domain):
                        if name in claimed:
                            self._popular.setdefault(name, title)
            else:
                for domain in upstream.domains & parents:
                    self._organisations.setdefault(domain, title)

    def organisation(self, domain: str) -> Ruling | None:
        """The ruling on a bank or university, or on a domain below one."""
        for name in _with_parents(domain):
            if (title := self._organisations.get(name)) is not None:
                return Ruling("bank or university", title)
        return None

    def top_site(self, domain: str) -> Ruling | None:
        """The ruling on a top site. What is below one may be a stranger's, as at a hosting firm."""
        title = self._popular.get(domain)
        return None if title is None else Ruling("top site", title)


def make_lists(
    throwaways: Iterable[Upstream],
    vetoes: Iterable[Upstream],
    free: frozenset[str],
    curated: Curated,
    suffix_list: str,
    out_of_reach: frozenset[str] = frozenset(),
) -> Made:
    """Merge the upstreams.

    `free` is what all upstreams of free providers have, or the present list where one is out
    of reach; `suffix_list` is the text of the public suffix list. `out_of_reach` is the
    present list of throwaways where one of their upstreams is: its domains stay.
    """
    rules = _rules(suffix_list)
    tlds = frozenset(rule.rpartition(".")[2] for rule in rules)  # of `za` only `co.za` is a rule
    typos = Typos(curated.typos, tlds)
    claims = _claims(throwaways)
    kept, refused = _throwaways(
        claims, Vetoes(vetoes, claims.keys() | out_of_reach), curated, typos, suffix_list,
        out_of_reach,
    )  # fmt: skip
    free_kept, free_refused = _free_providers(free, claims, curated, typos, suffix_list, kept)
    return Made(
        files={
            "disposable.txt": tuple(sorted(kept)),
            "free_providers.txt": tuple(sorted(free_kept)),
            "tlds.txt": tuple(sorted(tlds)),
        },
        kept={"disposable.txt": kept, "free_providers.txt": free_kept},
        refused={"disposable.txt": refused, "free_providers.txt": free_refused},
    )


def check(made: Made) -> None:
    """Raise BadUpstream for lists that can only come from a broken upstream."""
    count = len(made.files["disposable.txt"])
    if count <= DISPOSABLE_MIN:
        raise BadUpstream(
            f"only {count:,} throwaway domains were found, at least {DISPOSABLE_MIN:,} were expected"
        )


def _claims(throwaways: Iterable[Upstream]) -> dict[str, Ruling | None]:
    """What the upstreams say of each domain; None if no rule lets it in.

    A curated list is believed alone. Two lists are needed otherwise, of different families.
    """
    listed: dict[str, list[Upstream]] = {}
    for upstream in sorted(throwaways, key=lambda upstream: upstream.source.title):
        for domain in upstream.domains:
            listed.setdefault(domain, []).append(upstream)
    rulings: dict[tuple[str, ...], Ruling | None] = {}
    claims = {}
    for domain, upstreams in listed.items():
        titles = tuple(upstream.source.title for upstream in upstreams)
        if titles not in rulings:
            rulings[titles] = _ruling(upstreams)
        claims[domain] = rulings[titles]
    return claims


def _ruling(upstreams: list[Upstream]) -> Ruling | None:
    families = {upstream.source.family or upstream.source.package for upstream in upstreams}
    seen = ", ".join(upstream.source.title for upstream in upstreams)
    if len(families) > 1:
        return Ruling("in independent lists", seen)
    if any(upstream.source.role is Role.CURATED for upstream in upstreams):
        return Ruling(ONE_CURATED, seen)
    return None


def _throwaways(
    claims: Mapping[str, Ruling | None],
    vetoes: Vetoes,
    curated: Curated,
    typos: Typos,
    suffix_list: str,
    out_of_reach: frozenset[str],
) -> tuple[dict[str, Ruling], dict[str, Ruling]]:
    """The rulings on disposable domains: those to keep, and those refused.

    Both sections of the suffix list count: a dynamic-DNS service has as many unrelated
    users below it as a country.
    """
    suffixes = _suffixes(suffix_list)
    above = _above_suffixes(suffix_list)
    spared = curated.allow | curated.relays | curated.free_core | curated.smtp_blocked
    spared |= typos.targets
    kept: dict[str, Ruling] = {}
    refused: dict[str, Ruling] = {}
    for domain in claims.keys() | curated.deny.keys() | out_of_reach:
        believed = claims.get(domain)
        if believed is None and domain in out_of_reach:
            believed = Ruling("kept while an upstream is out of reach")
        if domain in above or suffixes.is_public(domain):
            refused[domain] = Ruling("public suffix")
        elif ACADEMIC.search(domain):
            refused[domain] = Ruling("academic")
        elif OFFICIAL.search(domain):
            refused[domain] = Ruling("official")
        elif not spared.isdisjoint(_with_parents(domain)):
            refused[domain] = Ruling("provider, relay or allowed")
        elif domain in curated.deny:
            kept[domain] = Ruling("deny list", curated.deny[domain])
        elif believed is None:
            refused[domain] = Ruling("in one list only, which collects from others")
        elif (veto := vetoes.organisation(domain)) is not None:
            refused[domain] = veto
        elif (veto := vetoes.top_site(domain)) is not None and typos.correct(domain) is None:
            refused[domain] = veto  # a typo is visited because it is a typo
        else:
            kept[domain] = believed
    return kept, refused


def _free_providers(
    free: frozenset[str],
    claims: Mapping[str, Ruling | None],
    curated: Curated,
    typos: Typos,
    suffix_list: str,
    throwaways: Mapping[str, Ruling],
) -> tuple[dict[str, Ruling], dict[str, Ruling]]:
    """The rulings on free providers. A claim of any list that it is a throwaway is enough."""
    icann = _suffixes(suffix_list, only_icann=True)
    kept = dict.fromkeys(
        curated.free_core - curated.not_free - curated.relays - throwaways.keys(),
        Ruling("kept by hand"),
    )
    refused: dict[str, Ruling] = {}
    for domain in free - kept.keys():
        if domain in curated.not_free or domain in curated.relays:
            refused[domain] = Ruling("relay or no free provider")
        elif domain in claims or domain in throwaways:
            refused[domain] = Ruling("a list of throwaways has it")
        elif not _plausible_provider(domain, icann):
            refused[domain] = Ruling("below another's domain, under a new ending, or academic")
        elif typos.correct(domain) is not None:
            refused[domain] = Ruling("typo of a provider")
        else:
            kept[domain] = Ruling("in the lists of free providers")
    return kept, refused


def _plausible_provider(domain: str, icann: PublicSuffixList) -> bool:
    """Whether this may be a provider: upstream lists subdomains and short-lived names too."""
    ending = domain.rpartition(".")[2]
    return (
        icann.privatesuffix(domain) == domain
        and (ending in OLD_ENDINGS or len(ending) == 2)
        and not ACADEMIC.search(domain)
    )


@cache
def _suffixes(suffix_list: str, *, only_icann: bool = False) -> PublicSuffixList:
    """The parsed list, for however many builds of a process."""
    return PublicSuffixList(suffix_list, only_icann=only_icann)


@cache
def _rules(suffix_list: str) -> frozenset[str]:
    """The rules of the public suffix list, in A-labels, exceptions left out."""
    rules = set()
    for line in suffix_list.splitlines():
        rule = line.split(" ")[0].strip().lower()
        if rule and not rule.startswith(("//", "!")):
            rules.add(rule if rule.isascii() else _a_labels(rule))
    return frozenset(rules)


def _a_labels(rule: str) -> str:
    star, name = ("*.", rule[2:]) if rule.startswith("*.") else ("", rule)
    return star + idna.encode(name, uts46=True).decode("ascii")


@cache
def _above_suffixes(suffix_list: str) -> frozenset[str]:
    """Every parent of a public suffix: if it were listed, unrelated domains would match."""
    return frozenset(
        name for rule in _rules(suffix_list) for name in _with_parents(rule.partition(".")[2])
    )


def _with_parents(domain: str) -> Iterator[str]:
    while domain:
        yield domain
        domain = domain.partition(".")[2]
