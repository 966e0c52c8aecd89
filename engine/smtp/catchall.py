"""Whether a domain accepts any address, asked with one that nobody can have.

Once per domain and six hours, one test at a time; both answers are kept. A
test that told nothing is forgotten soon, so that a short trouble does not
colour a whole list.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from engine.smtp.question import Question
from engine.verdict import Outcome

INCONCLUSIVE_S = 60.0  # long enough for a list to pass, short enough to be asked again
DOMAINS_MAX = 100_000


class Acceptance(Enum):
    """How a domain treated the random address; its value is the verdict of an accepted one."""

    ALL = Outcome.CATCH_ALL
    SOME = Outcome.DELIVERABLE
    UNTOLD = Outcome.DELIVERABLE_UNTESTED


def deciding_rule(acceptance: Acceptance, accepted_by: str) -> str:
    """The rule that decided an accepted address: its own, unless the domain accepts all."""
    return "catch-all.random-accepted" if acceptance is Acceptance.ALL else accepted_by


@dataclass(slots=True, eq=False)
class Domain:
    """What is known of one domain's acceptance."""

    name: str
    acceptance: Acceptance | None = None
    known_until: float = 0.0  # trio's clock
    testing: bool = False
    awaiting: list[Question] = field(default_factory=list)  # accepted, until the test is answered

    def known(self, now: float) -> Acceptance | None:
        return self.acceptance if now < self.known_until else None

    def wants_test(self, now: float) -> bool:
        return not self.testing and self.known(now) is None


class Domains:
    """Every domain that is remembered: bounded, the longest unused goes first."""

    def __init__(self, keep_s: float, mint: Callable[[], str]) -> None:
        self._keep_s = keep_s
        self._mint = mint
        self._domains: dict[str, Domain] = {}

    def find(self, name: str) -> Domain:
        domain = self._domains.pop(name, None) or Domain(name)
        self._domains[name] = domain  # to the end: most recently used
        if len(self._domains) > DOMAINS_MAX:
            self._forget_oldest()
        return domain

    def _forget_oldest(self) -> None:
        for name, domain in self._domains.items():
            if not domain.testing:
                del self._domains[name]
                return

    def learn(self, domain: Domain, acceptance: Acceptance, now: float) -> list[Question]:
        """Keep the test's answer; gives the questions that waited for it."""
        domain.testing = False
        domain.acceptance = acceptance
        domain.known_until = now + (
            INCONCLUSIVE_S if acceptance is Acceptance.UNTOLD else self._keep_s
        )
        awaiting, domain.awaiting = domain.awaiting, []
        return awaiting

    def random_mailbox(self, domain: Domain) -> str:
        """A local part that can't be guessed, so nobody can have made a mailbox of it."""
        return f"{self._mint()}@{domain.name}"
