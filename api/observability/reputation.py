"""Counts how mail hosts treat this machine, for the operator's page.

An observer of the engine that passes everything on to another one. What it has counted is
stored once a minute; a killed process loses that minute's counts.
"""

from datetime import date
from typing import cast

from mailprobe.engine.observer import Observer
from mailprobe.engine.reasons import verdict_cause
from mailprobe.engine.verdict import Outcome, Reason
from mailprobe.storage.reputation import ReputationDay
from mailprobe.storage.store import Store

# Reasons that a mail host's reply has given.
REPLIED: frozenset[Reason] = frozenset(
    {
        *("accepted", "catch_all", "no_mailbox", "disabled", "full", "greylisted", "temporary"),
        *("rate_limited", "policy", "blocked_us", "unclear"),
    }
)


class ReputationCounter:
    """Counts answers, and those that blame us."""

    def __init__(self, observer: Observer) -> None:
        self._answers = 0
        self._refused = 0
        self._forward = observer.answer_emitted
        for name in vars(Observer):  # looked up once: the engine calls them for each address
            if not name.startswith("_") and name != "answer_emitted":
                vars(self)[name] = getattr(observer, name)

    @property
    def observer(self) -> Observer:
        """This, as the engine takes it."""
        return cast(Observer, self)

    def answer_emitted(self, outcome: Outcome, rule: str, addresses: int) -> None:
        """See Observer."""
        cause = verdict_cause(outcome, rule)
        if cause.reason in REPLIED:
            self._answers += addresses
            self._refused += addresses if cause.blame == "us" else 0
        self._forward(outcome, rule, addresses)

    async def save(self, store: Store, day: date) -> None:
        """Store what was counted since the last time. Raises StoreUnavailable."""
        counted = ReputationDay(day, self._answers, self._refused)
        if counted.answers:
            await store.count_reputation(counted)
            self._answers -= counted.answers
            self._refused -= counted.refused
