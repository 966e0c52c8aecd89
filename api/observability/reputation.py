"""Counts how mail hosts treat this machine, for the operator's page.

An observer of the engine that passes everything on to another one. What it has counted is
stored once a minute; a killed process loses that minute's counts.
"""

from collections import Counter
from datetime import date
from typing import cast

from mailprobe.engine.observer import Observer
from mailprobe.engine.reasons import verdict_cause
from mailprobe.engine.verdict import Outcome, Reason
from mailprobe.storage.egresses import ReputationDay
from mailprobe.storage.store import Store

# Reasons that a mail host's reply has given.
REPLIED: frozenset[Reason] = frozenset(
    {
        *("accepted", "catch_all", "no_mailbox", "disabled", "full", "greylisted", "temporary"),
        *("rate_limited", "policy", "blocked_us", "unclear"),
    }
)


class ReputationCounter:
    """Counts answers, and those that blame us, by the operator of the mail host."""

    def __init__(self, observer: Observer) -> None:
        self._answers: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._forward = observer.answer_emitted
        for name in vars(Observer):  # looked up once: the engine calls them for each address
            if not name.startswith("_") and name != "answer_emitted":
                vars(self)[name] = getattr(observer, name)

    @property
    def observer(self) -> Observer:
        """This, as the engine takes it."""
        return cast(Observer, self)

    def answer_emitted(self, outcome: Outcome, rule: str, addresses: int, operator: str) -> None:
        """See Observer."""
        cause = verdict_cause(outcome, rule)
        if cause.reason in REPLIED:
            self._answers[operator] += addresses
            if cause.blame == "us":
                self._refused[operator] += addresses
        self._forward(outcome, rule, addresses, operator)

    async def save(self, store: Store, day: date) -> None:
        """Store what was counted since the last time. Raises StoreUnavailable."""
        counted = [
            ReputationDay(day, operator, answers, self._refused[operator])
            for operator, answers in self._answers.items()
            if answers
        ]
        if not counted:
            return
        await store.count_reputation(counted)
        for each in counted:  # more may have been counted meanwhile
            self._answers[each.operator] -= each.answers
            self._refused[each.operator] -= each.refused
