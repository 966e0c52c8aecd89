"""The certain answers to MX look-ups as facts for other engines, and theirs for this one.

Failures of a resolver are never shared. Engines that ask other resolvers see another DNS, so
the key of a fact names the resolvers.
"""

import sys
from collections.abc import Callable, Sequence
from hashlib import sha256

import msgspec

from ..shared_cache import Fact, SharedCache
from .messages import (
    EXCHANGES_MAX,
    MailExchange,
    NoMail,
    Route,
    RouteAnswer,
    encode_query,
)

REASON_OCTETS_MAX = 200


class _SharedRoute(msgspec.Struct, omit_defaults=True):
    exchanges: list[tuple[int, str]] = []
    no_mail: str = ""  # the reason


class _PositionalRoute(msgspec.Struct, array_like=True):
    """A route as engines of earlier versions share it. It never changes."""

    exchanges: list[tuple[int, str]]
    no_mail: str = ""


def _decoded(value: str) -> _SharedRoute:
    if not value.startswith("["):
        return msgspec.json.decode(value, type=_SharedRoute)
    route = msgspec.json.decode(value, type=_PositionalRoute)
    return _SharedRoute(route.exchanges, route.no_mail)


class SharedRoutes:
    """Shares what this engine looks up; `keep` caches what another one did."""

    def __init__(
        self,
        exchange: SharedCache,
        resolvers: Sequence[str],
        keep: Callable[[str, Route | NoMail, float], bool],
    ) -> None:
        self._exchange = exchange
        self._asked = sha256(" ".join(resolvers).encode()).hexdigest()[:8]
        self._keep = keep
        exchange.listen(("route",), self._absorb)

    def found(self, domain: str, answer: RouteAnswer, kept_s: float) -> None:
        """This engine's own look-up is done."""
        if isinstance(answer, Route) and answer.exchanges:
            shared = _SharedRoute([(each.preference, each.name) for each in answer.exchanges])
        elif isinstance(answer, NoMail):
            shared = _SharedRoute([], answer.reason[:REASON_OCTETS_MAX] or "no mail")
        else:
            return
        value = msgspec.json.encode(shared).decode()
        self._exchange.share(Fact("route", f"{self._asked} {domain}", value, kept_s))

    def _absorb(self, fact: Fact) -> bool:
        asked, domain = fact.key.split(" ")
        if asked != self._asked or domain != domain.lower():
            return False
        encode_query(domain, "MX")  # raises ValueError
        shared = _decoded(fact.value)
        if bool(shared.exchanges) == bool(shared.no_mail) or len(shared.exchanges) > EXCHANGES_MAX:
            return False
        if shared.no_mail:
            return self._keep(domain, NoMail(shared.no_mail), fact.kept_s)
        for preference, name in shared.exchanges:
            encode_query(name, "A")  # raises ValueError
            if not 0 <= preference <= 0xFFFF or name != name.lower().rstrip("."):
                return False
        exchanges = tuple(
            MailExchange(sys.intern(name), at) for at, name in sorted(shared.exchanges)
        )
        return self._keep(domain, Route(domain, exchanges, exchanges[0].name), fact.kept_s)
