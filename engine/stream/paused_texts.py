"""Addresses of a list that wait for the end of a pause: found before their units are counted."""

from collections.abc import Mapping, Sequence

import trio

from ..verdict import Outcome
from .engine import Engine
from .pipeline import Verification, read_pauses, read_route, read_text


async def paused_among(
    engine: Engine, texts: Sequence[str], *, account: str, bounced: Mapping[str, str]
) -> frozenset[int]:
    """Return the positions of texts that open_answers() would answer `paused`.

    It looks up the exchanges of domains that may be paused, patiently, as for a list; where that
    fails, the address is none of them. At most a few hundred texts: they are looked up at once.
    """
    pauses = engine.pauses
    if not pauses.value or not engine.settings.asks_hosts:
        return frozenset()
    waiting: dict[str, list[Verification]] = {}
    for position, text in enumerate(texts):
        verification = Verification(text, position, 0.0)
        read_text(verification, engine.lists, bounced)
        if not verification.needs_route or verification.address is None:
            continue
        domain = verification.address.domain
        if pauses.value.may_have(domain):
            waiting.setdefault(domain, []).append(verification)

    async def look_up(domain: str) -> None:
        answer = await engine.routes.find(domain, account, deferred_start=True)
        for verification in waiting[domain]:
            read_route(verification, answer, engine.lists)
            read_pauses(verification, pauses)

    async with trio.open_nursery() as nursery:
        for domain in waiting:
            nursery.start_soon(look_up, domain)
    return frozenset(
        verification.position
        for several in waiting.values()
        for verification in several
        if verification.outcome is Outcome.PAUSED
    )
