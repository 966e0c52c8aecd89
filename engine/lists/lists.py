"""Layers 2 and 5: signals about a domain and a local part, from lists.

Everything is read once from `data/`. A look-up is then a few set memberships, and the
result for a domain is cached because domains repeat. The set of all disposable domains
is built after a few look-ups only: it takes longer than to search the file for the few
domains of one command.

The public suffix list is not needed here: `dev/lists/build_lists.py` keeps public suffixes
and their parents out of `disposable.txt`, so any parent of a domain found there is its
registrable domain or below it.
"""

import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Set
from functools import lru_cache
from pathlib import Path

from msgspec.structs import replace

from ..address import Address
from ..own_lists import NO_OWN_LISTS, OwnLists, with_parents
from ..verdict import Signals
from .typos import Typos, TypoTable

DATA = Path(__file__).parents[1] / "data"
VERSION_FILE = "VERSION"
# Files that are replaced together: those that load_lists() reads, and the sources of the lists.
FILES = (
    *("allow.txt", "disposable.txt", "disposable_hosts.txt", "free_providers.txt", "relays.txt"),
    *("roles.txt", "smtp_blocked.txt", "tlds.txt", "typos.toml", "SOURCES.md", VERSION_FILE),
)

# Most rows of a list are at few domains. This many results take about 6 MB.
DOMAINS_REMEMBERED_MAX = 32_768

SEARCHES_MAX = 16  # each takes some 0.3 ms, the set 20 ms; an address takes two or three

WORD_MARKS = ("-", ".", "_", "")  # customer-service, customer.service, customerservice


class LongList(Set[str]):
    """The names of a list file; their set is built after SEARCHES_MAX look-ups."""

    def __init__(self, text: str) -> None:
        """`text` has one name per line."""
        self._text = f"\n{text.strip()}\n"
        self._names: frozenset[str] | None = None
        self._searches = 0

    def __contains__(self, name: object) -> bool:
        if self._names is not None:
            return name in self._names
        self._searches += 1
        if self._searches > SEARCHES_MAX:
            return name in self.names()
        return f"\n{name}\n" in self._text

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def names(self) -> frozenset[str]:
        """All names as a set, which answers every later look-up."""
        if self._names is None:
            self._names = frozenset(self._text.split())
            self._text = ""
        return self._names

    @classmethod
    def _from_iterable(cls, names: Iterable[str]) -> frozenset[str]:  # type: ignore[override]
        return frozenset(names)  # the result of a set operation is not a list file


class DisposableHosts:
    """The mail hosts of throwaway services: the shipped ones, and the owner's, which may change."""

    def __init__(self, shipped: frozenset[str], own: frozenset[str] = frozenset()) -> None:
        self.shipped = shipped
        self._names = shipped | own

    def has(self, host: str) -> bool:
        """Whether the host or a parent of its name is listed. Called for each address."""
        while host and host not in self._names:
            host = host.partition(".")[2]
        return host != ""

    def replace_own(self, own: frozenset[str]) -> None:
        """From now on, these are the owner's."""
        self._names = self.shipped | own


class Lists:
    """The lists, and the owner's rulings before them, read only. Built by load_lists()."""

    def __init__(
        self,
        *,
        disposable: Set[str],
        allowed: frozenset[str],
        relays: frozenset[str],
        free_providers: frozenset[str],
        smtp_blocked: frozenset[str],
        roles: frozenset[str],
        typos: Typos,
        disposable_hosts: DisposableHosts,
        own: OwnLists = NO_OWN_LISTS,
    ) -> None:
        self.disposable = disposable
        self.allowed = allowed | relays
        self.relays = relays
        self.free_providers = free_providers
        self.smtp_blocked = smtp_blocked
        self.roles = roles
        self.typos = typos
        self.disposable_hosts = disposable_hosts
        self._own = own
        self._rules_on_addresses = own.rule_on_addresses  # as attributes: read for each address
        self._never_ask = own.never_ask or None
        self._known = free_providers | smtp_blocked | self.allowed | own.allow.domains
        self._both = lru_cache(DOMAINS_REMEMBERED_MAX)(self._match_both)

    def signals(self, address: Address) -> Signals:
        """The signals of this address. Never raises, and never uses the network."""
        person, role = self._both(address.domain)
        signals = role if self.is_role(address.local) else person
        if self._rules_on_addresses:
            ruling = self._own.is_disposable(address)
            if ruling is not None and ruling is not signals.disposable:
                return replace(signals, disposable=ruling)
        return signals

    def is_never_asked(self, address: Address) -> bool:
        """Whether an owner wishes that no mail host is asked about this address."""
        return self._never_ask is not None and self._never_ask.has(address)

    def is_disposable_by_host(self, address: Address, mx_host: str) -> bool:
        """Whether the mail host is a throwaway service's. Providers and allowed domains are spared."""
        if not self.disposable_hosts.has(mx_host):
            return False
        names = (*with_parents(mx_host),)
        return (
            self._own.is_disposable(address) is not False
            and self._own.allow.domains.isdisjoint(names)
            and self._known.isdisjoint(with_parents(address.domain))
        )

    def with_own(self, own: OwnLists) -> "Lists":
        """These lists with an owner's rulings before them."""
        return Lists(
            disposable=self.disposable,
            allowed=self.allowed,
            relays=self.relays,
            free_providers=self.free_providers | own.free,
            smtp_blocked=self.smtp_blocked,
            roles=self.roles,
            typos=self.typos,
            disposable_hosts=DisposableHosts(self.disposable_hosts.shipped, own.disposable_hosts),
            own=own,
        )

    def is_role(self, local: str) -> bool:
        """Whether the mailbox belongs to a role, not a person. A `+` and what follows is ignored."""
        if local[:1] == '"':
            local = _unquoted(local)
        if "+" in local:
            local = local.partition("+")[0]
        return (local.lower() if local.isascii() else _folded(local)) in self.roles

    def is_disposable(self, domain: str) -> bool:
        """Whether the domain or a parent of it is disposable: the owner's word, then the allow list."""
        if (ruling := self._own.is_disposable_domain(domain)) is not None:
            return ruling
        name = domain
        while name not in self.disposable:
            name = name.partition(".")[2]
            if not name:
                return False
        return self.allowed.isdisjoint(with_parents(domain))

    def suggestion(self, domain: str) -> str | None:
        """The big provider's domain that was probably meant; None for providers and relays."""
        if domain in self._known:
            return None
        meant = self.typos.correct(domain)
        if meant is None or not self.relays.isdisjoint(with_parents(domain)):
            return None
        return meant

    def _match_both(self, domain: str) -> tuple[Signals, Signals]:
        """The signals for a person's mailbox and for a role mailbox at this domain."""
        return _both(
            self.is_disposable(domain),
            domain in self.free_providers,
            domain in self.smtp_blocked,
            self.suggestion(domain),
        )


@lru_cache(1024)  # most domains share one pair
def _both(
    disposable: bool, free: bool, blocked: bool, suggestion: str | None
) -> tuple[Signals, Signals]:
    return (
        Signals(disposable, False, free, blocked, suggestion),
        Signals(disposable, True, free, blocked, suggestion),
    )


def load_lists(folder: Path = DATA) -> Lists:
    """Read every list. Raises OSError if one is missing."""
    free_providers = read_names(folder / "free_providers.txt")
    return Lists(
        disposable=LongList((folder / "disposable.txt").read_text("ascii")),
        allowed=read_names(folder / "allow.txt"),
        relays=read_names(folder / "relays.txt"),
        free_providers=free_providers,
        smtp_blocked=read_names(folder / "smtp_blocked.txt"),
        roles=read_roles(folder / "roles.txt"),
        typos=Typos(load_typos(folder), read_names(folder / "tlds.txt"), free_providers),
        disposable_hosts=DisposableHosts(read_names(folder / "disposable_hosts.txt")),
    )


def version_of(folder: Path = DATA) -> str:
    """The day of the lists in a folder, YYYY-MM-DD: later versions are greater strings."""
    return (folder / VERSION_FILE).read_text("ascii").strip()


def load_typos(folder: Path = DATA) -> TypoTable:
    """Read what the suggestions need."""
    table = tomllib.loads((folder / "typos.toml").read_text("utf-8"))
    return TypoTable(
        mark=table["mark"],
        brand=table["brand"],
        name=table["name"],
        word=table["word"],
        known=table["known"],
        co=frozenset(table["co"]),
        ordinary=frozenset(table["ordinary"]),
    )


def read_names(path: Path) -> frozenset[str]:
    """Read a list file: one name per line, sorted, in lower case."""
    return frozenset(path.read_text("utf-8").split())


def read_roles(path: Path) -> frozenset[str]:
    """Every spelling of the local parts in a list file.

    A hyphen in the file separates two words: it may also be written as a dot, an
    underscore, or nothing. `sales.ann` stays a person because no row is sales-ann.
    """
    rows = _folded(path.read_text("utf-8")).split()
    return frozenset(row.replace("-", mark) for row in rows for mark in WORD_MARKS)


def _folded(text: str) -> str:
    """In lower case and without accents: `Приёмная`, `secrétariat`."""
    decomposed = unicodedata.normalize("NFKD", text.lower())
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def _unquoted(local: str) -> str:
    """`"sales"` is the mailbox sales (RFC 5321 4.1.2); a backslash escapes the next character."""
    inner = local[1:-1]
    kept = []
    shielded = False
    for char in inner:
        if char == "\\" and not shielded:
            shielded = True
            continue
        kept.append(char)
        shielded = False
    return "".join(kept)
