"""The own lists of this installation's owner: rulings on domains and addresses. Pure.

They go before the lists of `data/`. `lists/own_list_files.py` reads them.
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from .address import Address


class OwnNames(Struct, frozen=True):
    """Domains, each with everything below it, and addresses, whatever the case of their letters."""

    domains: frozenset[str] = frozenset()
    addresses: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.domains or self.addresses)

    def has(self, address: Address) -> bool:
        return address_key(address) in self.addresses or not self.domains.isdisjoint(
            with_parents(address.domain)
        )


class OwnLists(Struct, frozen=True):
    """What an owner rules on. Read by read_own_lists()."""

    disposable: OwnNames = OwnNames()
    allow: OwnNames = OwnNames()  # never disposable
    never_ask: OwnNames = OwnNames()  # no look-up and no connection
    free: frozenset[str] = frozenset()  # domains of free providers, without those below them
    disposable_hosts: frozenset[str] = frozenset()  # mail hosts of throwaway services
    folder: Path | None = None  # where they were read from

    @property
    def rule_on_addresses(self) -> bool:
        """Whether any address, not only domains, is called disposable or not."""
        return bool(self.disposable.addresses or self.allow.addresses)

    def is_disposable(self, address: Address) -> bool | None:
        """The owner's ruling; None where there is none. An address goes before a domain."""
        key = address_key(address)
        if key in self.allow.addresses:
            return False
        if key in self.disposable.addresses:
            return True
        return self.is_disposable_domain(address.domain)

    def is_disposable_domain(self, domain: str) -> bool | None:
        """The ruling on the nearest of the domain and its parents; there `allow` wins."""
        for name in with_parents(domain):
            if name in self.allow.domains:
                return False
            if name in self.disposable.domains:
                return True
        return None


NO_OWN_LISTS = OwnLists()


def with_parents(domain: str) -> Iterator[str]:
    """The domain and every parent that has a dot."""
    while "." in domain:
        yield domain
        domain = domain.partition(".")[2]


def address_key(address: Address) -> str:
    """What own lists compare: a person's wish does not depend on the case of the letters."""
    return f"{address.local.lower()}@{address.domain}"
