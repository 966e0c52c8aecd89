"""Counts answers and how mail hosts treat this machine, for the operator's page.

An observer of the engine that passes everything on to another one. What it has counted of mail
hosts is stored once a minute; a killed process loses that minute's counts.
"""

from collections import Counter
from datetime import date
from typing import cast

import trio

from mailprobe.engine.observer import Observer
from mailprobe.engine.reasons import verdict_cause
from mailprobe.engine.verdict import Outcome, Reason
from mailprobe.storage.egresses import ReputationDay
from mailprobe.storage.store import Store

from .throughput import MinuteCounter

# Reasons that a mail host's reply has given.
REPLIED: frozenset[Reason] = frozenset(
    {
        *("accepted", "catch_all", "no_mailbox", "disabled", "full", "greylisted", "temporary"),
        *("rate_limited", "policy", "blocked_us", "unclear"),
    }
)


class ReputationCounter:
    """Counts answers, and those that blame us, by the operator of the mail host and by minute."""

    def __init__(self, observer: Observer, minutes: MinuteCounter | None = None) -> None:
        self._answers: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._minutes = minutes
        self._forward_probe, self._forward = observer.probe_settled, observer.answer_emitted
        for name in vars(Observer):  # looked up once: the engine calls them for each address
            if not name.startswith("_") and not hasattr(self, name):
                vars(self)[name] = getattr(observer, name)

    @property
    def observer(self) -> Observer:
        """This, as the engine takes it."""
        return cast(Observer, self)

    def probe_settled(self, began: float) -> None:
        """See Observer."""
        if self._minutes is not None:
            self._minutes.probed(trio.current_time() - began)
        self._forward_probe(began)

    def answer_emitted(self, outcome: Outcome, rule: str, addresses: int, operator: str) -> None:
        """See Observer."""
        cause = verdict_cause(outcome, rule)
        replies = addresses if cause.reason in REPLIED else 0
        refused = replies if cause.blame == "us" else 0
        if replies:
            self._answers[operator] += replies
            self._refused[operator] += refused
        if self._minutes is not None:
            self._minutes.answered(addresses, replies=replies, refused=refused)
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
