"""Domains and operators of mail hosts that the operator has paused at run time.

No mail host is asked about a paused address, and no connection is opened for it. It is answered
`paused` after layer 3, so addresses that need no mail host are decided as usual; a list's reader
keeps it for later. A domain stands for everything below it, too.
An operator is known by its exchanges' names (data/operators.toml): a domain with one of them
among its exchanges is paused, so that none is connected to after the others have failed.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct

from .dns.messages import MailExchange
from .egress import StateListeners
from .own_lists import with_parents

PAUSED_RULE = "paused"  # decides what is paused


class Pauses(Struct, frozen=True):
    """Domains in lower case as A-labels, and ids of operators."""

    domains: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()

    def has_domain(self, domain: str) -> bool:
        """Whether the domain or a parent is paused."""
        return bool(self.domains) and not self.domains.isdisjoint(with_parents(domain))

    def may_have(self, domain: str) -> bool:
        """Whether an address of this domain may be paused, whatever its exchanges are."""
        return bool(self.operators) or self.has_domain(domain)

    def __bool__(self) -> bool:
        return bool(self.domains or self.operators)


class CurrentPauses:
    """What is paused now in an engine; changed while streams are under way."""

    def __init__(self, operator_of: Callable[[str], str]) -> None:
        """`operator_of` returns the id of an exchange's operator."""
        self.value = Pauses()
        self.any = False  # is anything paused? Read for each address, so it is plain
        self._operator_of = operator_of
        self._listeners = StateListeners()
        self.notifying = self._listeners.notifying

    def change(self, value: Pauses) -> None:
        """Pause these, and nothing else, from now on."""
        if value == self.value:
            return
        self.value, self.any = value, bool(value)
        self._listeners.notify()

    def has(self, domain: str, exchanges: Iterable[MailExchange]) -> bool:
        """Whether an address of this domain, which has these exchanges, is paused."""
        value = self.value
        if value.has_domain(domain):
            return True
        return bool(value.operators) and any(
            self._operator_of(exchange.name) in value.operators for exchange in exchanges
        )
