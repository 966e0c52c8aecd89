"""What is known of a domain at a mail host: whether it accepts any address there.

Asked with an address that nobody can have, once per domain, host and six
hours, one test at a time; both answers are kept. What one exchange said is
never used for another: a backup that accepts everything says nothing of a
primary that does not. A test that told nothing is forgotten soon, so that a
short trouble does not colour a whole list.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum

from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.throttle import NEVER, NO_SILENCE, Silence
from mailprobe.engine.verdict import Outcome

INCONCLUSIVE_S = 60.0  # long enough for a list to pass, short enough to be asked again
DOMAINS_MAX = 100_000


class Acceptance(Enum):
    """How a domain treated the random address; its value is the verdict of an accepted one."""

    ALL = Outcome.CATCH_ALL
    SOME = Outcome.DELIVERABLE
    UNTOLD = Outcome.DELIVERABLE_UNTESTED

    outcome: Outcome

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome  # as `value`, which is looked up by Python code


_ALL = Acceptance.ALL  # to look it up takes 0.12 µs in Python 3.11


def deciding_rule(acceptance: Acceptance, accepted_by: str) -> str:
    """The rule that decided an accepted address: its own, unless the domain accepts all."""
    return "catch-all.random-accepted" if acceptance is _ALL else accepted_by


@dataclass(slots=True, eq=False)
class DomainAcceptance:
    """What is known of one domain at one host."""

    name: str
    acceptance: Acceptance | None = None
    known_until: float = 0.0  # trio's clock
    testing: bool = False
    awaiting: list[Probe] = field(default_factory=list)  # accepted, until the test is answered
    cold: int = 0  # recipients in a row that were refused because of us
    unanswered_sessions: int = 0  # sessions in a row that got no answer for its recipients,
    silence: Silence = NO_SILENCE
    answered: bool = False  # a recipient, since answered_at was set
    answered_at: float = NEVER
    backoff_until: float = 0.0
    backoff_cause: Cause | None = None

    def known(self, now: float) -> Acceptance | None:
        return self.acceptance if now < self.known_until else None

    def needs_test(self, now: float) -> bool:
        return not self.testing and self.known(now) is None


class Domains:
    """Every domain that is remembered: bounded, the longest unused goes first."""

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
        """Keep the test's answer; gives the questions that waited for it."""
        domain.testing = False
        domain.acceptance = acceptance
        domain.known_until = now + (
            INCONCLUSIVE_S if acceptance is Acceptance.UNTOLD else self._keep_s
        )
        awaiting, domain.awaiting = domain.awaiting, []
        return awaiting

    def random_mailbox(self, domain: DomainAcceptance) -> str:
        """A local part that can't be guessed, so nobody can have made a mailbox of it."""
        return f"{self._mint()}@{domain.name}"


def random_local() -> str:
    """20 letters and digits that begin with a letter: about 100 random bits."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    system = random.SystemRandom()
    return system.choice(letters) + "".join(system.choices(letters + "0123456789", k=19))
