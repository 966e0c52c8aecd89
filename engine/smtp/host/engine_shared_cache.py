"""Facts of other engines of a fleet about mail hosts and domains: one table for all egresses here.

It listens once, and passes a fact about an egress to that one alone: facts about egresses of
other machines are ignored unread. What a domain accepts holds for all egresses; it is kept here
until one of them meets the domain.

If others report different results of a domain, the latest report counts. Results and withdrawals
are kept equally long, so the one that expires last is the latest, in whatever order they arrive.
"""

from collections import OrderedDict
from typing import NamedTuple, Protocol

import trio

from ...shared_cache import Fact, SharedCache
from ..catchall import DOMAINS_MAX, Acceptance

VALUES = {Acceptance.ALL: "all", Acceptance.SOME: "some"}
ACCEPTANCES = {value: acceptance for acceptance, value in VALUES.items()}
NOT = "not "  # before a result that is withdrawn


class KnownAcceptance(NamedTuple):
    """What a domain accepts at an exchange, or no longer accepts. `until` is on trio's clock."""

    acceptance: Acceptance
    until: float
    holds: bool
    by: str = ""  # the egress that found so


class EgressSharedCache(Protocol):
    """Takes the facts about one egress; implemented by host_shared_cache.HostSharedCache."""

    def absorb(self, fact: Fact, subject: str) -> bool:
        """Take a fact about this egress; `subject`: its key without the egress. True if of use."""

    def absorb_acceptance(self, name: str, domain: str, known: KnownAcceptance) -> bool:
        """Take what a domain accepts at the exchange of this name. True if it was new."""


class EngineSharedCache:
    """The listener of one engine, and what it keeps for hosts that are not known here yet."""

    def __init__(self, exchange: SharedCache) -> None:
        self.exchange = exchange
        self._now = trio.lowlevel.current_clock().current_time
        self._egresses: dict[str, EgressSharedCache] = {}  # of this engine, by the name in keys
        self._accepted: OrderedDict[tuple[str, str], KnownAcceptance] = OrderedDict()
        exchange.listen(("backoff", "strike", "acceptance"), self._absorb)

    def add(self, egress: str, facts: EgressSharedCache) -> None:
        """Pass on what is about this egress from now on."""
        self._egresses[egress] = facts

    def accepted(self, name: str, domain: str) -> KnownAcceptance | None:
        """What others have found of the domain at the exchange of this name, while it is valid."""
        known = self._accepted.get((name, domain))
        return known if known is not None and known.holds else None

    def _absorb(self, fact: Fact) -> bool:
        if fact.kind == "acceptance":
            return self._absorb_acceptance(fact)
        egress, _, subject = fact.key.partition(" ")
        facts = self._egresses.get(egress)
        return facts is not None and facts.absorb(fact, subject)

    def _absorb_acceptance(self, fact: Fact) -> bool:
        name, domain = fact.key.split(" ")
        value, _, by = fact.value.removeprefix(NOT).partition(" ")
        holds = not fact.value.startswith(NOT)
        known = KnownAcceptance(ACCEPTANCES[value], self._now() + fact.kept_s, holds, by)
        if not self.keep_acceptance((name, domain), known):
            return False
        used = [each.absorb_acceptance(name, domain, known) for each in self._egresses.values()]
        return holds or any(used)

    def keep_acceptance(self, key: tuple[str, str], known: KnownAcceptance) -> bool:
        """Keep it, unless something later is known; return whether it was kept."""
        before = self._accepted.get(key)
        if before is not None and before.until > known.until:
            return False
        self._accepted[key] = known
        self._accepted.move_to_end(key)
        if len(self._accepted) > DOMAINS_MAX:
            self._accepted.popitem(last=False)
        return True
