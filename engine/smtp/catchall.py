"""Remembers whether a domain accepts any address at a mail host (catch-all).

The test sends RCPT for a random address that can't exist. Each domain is tested once
per host and six hours, one test at a time, and either result is kept. A result of one
exchange is never used for another: a backup that accepts everything says nothing about
a primary that does not. An inconclusive result expires soon, so that a short failure
does not affect a whole list.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum

from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.throttle import NEVER, NO_SILENCE, Silence
from mailprobe.engine.verdict import Outcome

INCONCLUSIVE_S = 60.0  # long enough for one list, short enough to test again soon
DOMAINS_MAX = 100_000


class Acceptance(Enum):
    """How a domain treated the random address. The value is an accepted recipient's outcome."""

    ALL = Outcome.CATCH_ALL
    SOME = Outcome.DELIVERABLE
    UNTOLD = Outcome.DELIVERABLE_UNTESTED

    outcome: Outcome

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome  # same as `value`, which is slow in Python 3.11


_ALL = Acceptance.ALL  # Acceptance.ALL takes 0.12 µs in Python 3.11


def deciding_rule(acceptance: Acceptance, accepted_by: str) -> str:
    """Return the rule that decided an accepted address; a catch-all has one of its own."""
    return "catch-all.random-accepted" if acceptance is _ALL else accepted_by


@dataclass(slots=True, eq=False)
class DomainAcceptance:
    """What is known of one domain at one host."""

    name: str
    acceptance: Acceptance | None = None
    known_until: float = 0.0  # trio's clock
    testing: bool = False
    awaiting: list[Probe] = field(default_factory=list)  # accepted; they wait for the result
    cold: int = 0  # recipients in a row that were refused because of us
    unanswered_sessions: int = 0  # sessions in a row without a reply to its recipients
    silence: Silence = NO_SILENCE
    answered: bool = False  # a recipient was answered since answered_at was set
    answered_at: float = NEVER
    backoff_until: float = 0.0
    backoff_cause: Cause | None = None

    def known(self, now: float) -> Acceptance | None:
        return self.acceptance if now < self.known_until else None

    def needs_test(self, now: float) -> bool:
        return not self.testing and self.known(now) is None


class Domains:
    """The acceptance of each host's domains. Bounded; the longest unused is removed first."""

    def __init__(self, keep_s: float, mint: Callable[[], str]) -> None:
        self._keep_s = keep_s
        self._mint = mint
        self._domains: OrderedDict[tuple[Hashable, str], DomainAcceptance] = OrderedDict()

    def find(self, host: Hashable, name: str) -> DomainAcceptance:
        key = (host, name)
        domain = self._domains.get(key)
        if domain is None:
            domain = self._domains[key] = DomainAcceptance(name)
        else:
            self._domains.move_to_end(key)
        if len(self._domains) > DOMAINS_MAX:
            self._forget_oldest()
        return domain

    def _forget_oldest(self) -> None:
        for key, domain in self._domains.items():
            if not domain.testing:
                del self._domains[key]
                return

    def learn(self, domain: DomainAcceptance, acceptance: Acceptance, now: float) -> list[Probe]:
        """Store the test's result; return the probes that waited for it."""
        domain.testing = False
        domain.acceptance = acceptance
        domain.known_until = now + (
            INCONCLUSIVE_S if acceptance is Acceptance.UNTOLD else self._keep_s
        )
        awaiting, domain.awaiting = domain.awaiting, []
        return awaiting

    def random_mailbox(self, domain: DomainAcceptance) -> str:
        """Return an address that can't be guessed, so that no such mailbox exists."""
        return f"{self._mint()}@{domain.name}"


def random_local() -> str:
    """Return 20 letters and digits, a letter first: about 100 random bits."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    system = random.SystemRandom()
    return system.choice(letters) + "".join(system.choices(letters + "0123456789", k=19))
