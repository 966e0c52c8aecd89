"""Answers that need no network: bad syntax, disposable domains, and cached routes.

They take the same steps as in the stream, so both give the same verdicts.
"""

from collections.abc import Mapping, Sequence

import msgspec
import trio

from ..observer import Observer
from ..smtp.operators import OTHERS
from ..smtp.probe import ProbeNotes
from .answers import Answer
from .engine import Engine
from .pipeline import (
    NO_BOUNCES,
    Verification,
    read_pauses,
    read_route,
    read_text,
)


class KnownAnswers(msgspec.Struct, frozen=True):
    """Answers that were known at once. They are reported only when `notify` is called."""

    answers: list[Answer]
    verifications: list[Verification]

    def notify(self, observer: Observer) -> None:
        """Report these answers to the observer as the stream would have done."""
        for verification in self.verifications:
            assert verification.outcome is not None
            observer.text_read(verification.began)
            if verification.needs_route:
                observer.recalled("mx")
                observer.route_read(verification.began)
            observer.answer_emitted(verification.outcome, verification.rule, 1, OTHERS)


def known_answers(
    engine: Engine,
    texts: Sequence[str],
    *,
    explain: bool = False,
    asks_hosts: bool = True,
    bounced: Mapping[str, str] = NO_BOUNCES,
) -> KnownAnswers | None:
    """Return the answers to all these texts, in their order, if none needs a query or a probe.

    Stops at the first text that would have to wait, and returns None. Without `asks_hosts`,
    a cached route is enough. `bounced`: see open_answers().
    """
    now = trio.current_time()
    asks_hosts = asks_hosts and engine.settings.asks_hosts
    answers: list[Answer] = []
    verifications: list[Verification] = []
    for position, text in enumerate(texts):
        verification = Verification(text, position, now)
        if explain:
            verification.notes = ProbeNotes()
        read_text(verification, engine.lists, bounced)
        if verification.needs_route:
            _read_cached_route(verification, engine, asks_hosts)
        if verification.outcome is None:
            return None
        verifications.append(verification)
    reported_at = trio.current_time()
    for verification in verifications:
        verdict = verification.verdict(verification.text, reported_at)
        answers.append(
            Answer(verification.position, verdict, verification.evidence(), verification.cause)
        )
    return KnownAnswers(answers, verifications)


def _read_cached_route(verification: Verification, engine: Engine, asks_hosts: bool) -> None:
    assert verification.address is not None
    route = engine.routes.cached_route(verification.address.domain)
    if route is not None:
        if verification.notes is not None:
            verification.notes.cached.append("mx")
        read_route(verification, route, engine.lists, asks_hosts=asks_hosts)
        read_pauses(verification, engine.pauses)
