"""Upstream lists -> the list files of `data/`. Pure: archives' bytes in, texts out.

The same inputs give the same bytes. The archives are read, never run: Python sources are
parsed, and only their literals are used. Errors of the upstreams are corrected here, so
that look-ups stay simple (see lists.py):

- no public suffix, parent of one or academic domain is disposable;
- no provider, relay or domain of the allow list is, nor anything below one;
- disposable domains, typos and companies are removed from the free providers.
"""

import ast
import io
import json
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import idna
from publicsuffixlist import PublicSuffixList

from mailprobe.engine.lists.typos import Typos, TypoTable

DISPOSABLE_MIN = 50_000  # fewer than this means that an upstream is broken
MEMBER_OCTETS_MAX = 32 * 1024 * 1024  # the largest member today has one million

LABELS = re.compile(r"(?:(?!-)[a-z0-9-]{1,63}(?<!-)\.)+(?!-)[a-z0-9-]{2,63}(?<!-)")
ACADEMIC = re.compile(r"(?:^|\.)(?:edu|(?:edu|ac)\.[a-z]{2})$")
OLD_ENDINGS = ("com", "net", "org", "info", "biz")


class BadUpstream(Exception):
    """An upstream archive is not as expected; the message says which and how."""


@dataclass(frozen=True, slots=True)
class ListSource:
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

    source: ListSource
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
    typos: TypoTable


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


MAILCHECKER = ListSource(
    "mailchecker", "PyPI", "MIT", "MailChecker.py", _python_literal("blacklist")
)
DISPOSABLE_EMAIL_DOMAINS = ListSource(
    "disposable-email-domains",
    "PyPI",
    "MIT",
    "disposable_email_domains/__init__.py",
    _python_literal("blocklist"),
)
FREE_EMAIL_DOMAINS = ListSource(
    "free-email-domains", "npm", "MIT", "package/domains.json", _json_array
)
DISPOSABLE_SOURCES = (MAILCHECKER, DISPOSABLE_EMAIL_DOMAINS)


# What a damaged or strange archive, and what is in it, makes of the readers of both.
UNREADABLE = (
    *(BadUpstream, ValueError, SyntaxError, LookupError, TypeError, AttributeError, OSError),
    *(EOFError, RuntimeError, MemoryError),  # also of what is packed or nested strangely
)


def read_upstream(source: ListSource, file_name: str, octets: bytes) -> Upstream:
    """Read one downloaded archive. Raises BadUpstream for anything unexpected."""
    version = _version(source, file_name)
    try:
        raw = source.read(_member(file_name, octets, source.member))
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, struct.error) as error:
        raise BadUpstream(f"{file_name} is no archive: {error}") from error
    except UNREADABLE as error:
        raise BadUpstream(f"{file_name} cannot be read: {error}") from error
    domains = frozenset(name for name in map(as_domain, raw) if name is not None)
    if not domains:
        raise BadUpstream(f"{file_name} holds no domains")
    return Upstream(source, version, domains)


def _version(source: ListSource, file_name: str) -> str:
    found = re.match(
        r"\d+(?:\.\w+)*?(?=-|\.tgz$|\.tar\.gz$|\.whl$)", file_name[len(source.archive_stem) :]
    )
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
    disposable: Iterable[Upstream], free: frozenset[str], curated: Curated, suffix_list: str
) -> Made:
    """Merge the upstreams.

    `free` is upstream's list of free providers, or the present list where
    upstream is out of reach; `suffix_list` is the text of the public suffix list.
    """
    rules = _rules(suffix_list)
    tlds = frozenset(rule for rule in rules if "." not in rule)
    typos = Typos(curated.typos, tlds)
    listed = frozenset[str]().union(*(upstream.domains for upstream in disposable))
    throwaways, refused = _throwaways(listed, curated, typos.targets, suffix_list)
    icann = PublicSuffixList(suffix_list, only_icann=True)
    providers = {
        domain
        for domain in free - listed
        if _plausible_provider(domain, icann) and typos.correct(domain) is None
    }
    providers |= curated.free_core
    providers -= curated.not_free | curated.relays | throwaways
    return Made(
        files={
            "disposable.txt": tuple(sorted(throwaways)),
            "free_providers.txt": tuple(sorted(providers)),
            "tlds.txt": tuple(sorted(tlds)),
        },
        refused=refused,
    )


def _throwaways(
    listed: frozenset[str], curated: Curated, targets: frozenset[str], suffix_list: str
) -> tuple[set[str], dict[str, int]]:
    """The disposable domains to keep, and how many are refused, by reason.

    Both sections of the suffix list count: a dynamic-DNS service has as many unrelated
    users below it as a country.
    """
    suffixes = PublicSuffixList(suffix_list)
    above = _above_suffixes(_rules(suffix_list))
    spared = curated.allow | curated.relays | curated.free_core | curated.smtp_blocked | targets
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
    return throwaways, refused


def check(made: Made) -> None:
    """Raise BadUpstream for lists that can only come from a broken upstream."""
    count = len(made.files["disposable.txt"])
    if count <= DISPOSABLE_MIN:
        raise BadUpstream(
            f"only {count:,} throwaway domains were found, at least {DISPOSABLE_MIN:,} were expected"
        )


def _plausible_provider(domain: str, icann: PublicSuffixList) -> bool:
    """Whether this may be a provider: upstream lists subdomains and short-lived names too."""
    ending = domain.rpartition(".")[2]
    return (
        icann.privatesuffix(domain) == domain
        and (ending in OLD_ENDINGS or len(ending) == 2)
        and not ACADEMIC.search(domain)
    )


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


def _above_suffixes(rules: frozenset[str]) -> frozenset[str]:
    """Every parent of a public suffix: if it were listed, unrelated domains would match."""
    return frozenset(name for rule in rules for name in _with_parents(rule.partition(".")[2]))


def _with_parents(domain: str) -> Iterator[str]:
    while domain:
        yield domain
        domain = domain.partition(".")[2]
