"""Layer 3: looks up a domain's mail exchanges over HTTPS (RFC 8484) and caches them.

    async with open_routes(settings, rng=rng) as routes:
        answer = routes.cached_route("example.org") or await routes.find("example.org", "account")

The system's resolver is never used; that is why endpoints are named by address.
"""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, TypeVar, cast

import trio
from msgspec.structs import replace

from ..net.public_addresses import is_public
from ..observer import NO_OBSERVER, Observer
from ..settings import EngineSettings
from ..shared_cache import SharedCache
from .doh import DohTransport, Transport, check_doh_url, open_transport
from .endpoint import ResolverState
from .messages import (
    AddressAnswer,
    Addresses,
    LookupFailed,
    MailExchange,
    NoAddress,
    NoMail,
    Route,
    RouteAnswer,
    encode_query,
    read_addresses,
    read_pointers,
    read_route,
    reverse_name,
)
from .query_queue import Priority
from .resolver import Lookup, Read, Resolvers
from .shared_routes import SharedRoutes
from .single_flight import (
    FAILURE_KEPT_S,
    InFlightLookup,
    Interest,
    LookupHandle,
    SingleFlightCache,
)

ADDRESSES_KEPT_MIN_S = 300.0
ADDRESSES_KEPT_MAX_S = 6 * 3600.0

Answer = TypeVar("Answer")


class _AddressLookup:
    """The look-up of a host's addresses: IPv4, or IPv6 too where no IPv4 address may be used.

    Both are queried together, unless only lists wait for the answer: those have the time
    to query IPv6 only where it is needed.
    """

    def __init__(
        self,
        name: str,
        in_flight: "InFlightLookup[AddressAnswer]",
        usable: Callable[[Addresses], bool],
        resolvers: Resolvers,
    ) -> None:
        self._name = name
        self._in_flight = in_flight
        self._usable = usable
        self._resolvers = resolvers
        self._four = self._lookup("A", self._on_four)
        self._six: Lookup[AddressAnswer] | None = None
        self._answer4: AddressAnswer | None = None
        self._answer6: AddressAnswer | None = None
        self._over = False

    def start(self) -> None:
        self._four.start()
        if min(self._in_flight.wanted_by.values()) < Priority.LIST:
            self._query_aaaa()

    def claim(self, account: str, priority: Priority) -> None:
        self._four.claim(account, priority)
        if self._six is not None:
            self._six.claim(account, priority)
        elif priority < Priority.LIST:
            self._query_aaaa()

    def persist(self) -> None:
        for lookup in self._both():
            lookup.persist()

    def withdraw(self, account: str) -> None:
        for lookup in self._both():
            lookup.withdraw(account)

    def cancel(self) -> None:
        self._over = True
        for lookup in self._both():
            lookup.cancel()

    @property
    def was_sent(self) -> bool:
        return any(lookup.was_sent for lookup in self._both())

    def failure(self) -> LookupFailed:
        return self._four.failure()

    def partial(self) -> AddressAnswer | None:
        return self._answer6 if isinstance(self._answer6, Addresses) else None

    def _both(self) -> "list[Lookup[AddressAnswer]]":
        return [self._four] if self._six is None else [self._four, self._six]

    def _query_aaaa(self) -> None:
        if self._six is None and not self._over:
            self._six = self._lookup("AAAA", self._on_six)
            if self._four.deferred:
                self._six.persist()
            self._six.start()

    def _lookup(
        self, kind: Literal["A", "AAAA"], done: Callable[[AddressAnswer], None]
    ) -> Lookup[AddressAnswer]:
        name = self._name

        def read(octets: bytes) -> AddressAnswer:
            return read_addresses(octets, name, kind)

        return Lookup(
            encode_query(name, kind), name, read, self._in_flight.wanted_by, done, self._resolvers
        )

    def _on_four(self, answer: AddressAnswer) -> None:
        self._answer4 = answer
        if isinstance(answer, Addresses) and self._usable(answer):
            self._over = True
            if self._six is not None:
                self._six.ignore()
            self._in_flight.finish(answer, _kept_s(answer.ttl_s))
        elif self._answer6 is not None:
            self._finish(answer, self._answer6)
        else:
            self._query_aaaa()

    def _on_six(self, answer: AddressAnswer) -> None:
        self._answer6 = answer
        if self._answer4 is not None:
            self._finish(self._answer4, answer)

    def _finish(self, four: AddressAnswer, six: AddressAnswer) -> None:
        self._over = True
        self._in_flight.finish(*_both(four, six))


class Routes:
    """The routes of domains and the addresses of exchanges, cached."""

    def __init__(
        self,
        settings: EngineSettings,
        resolvers: Resolvers,
        rng: random.Random,
        observer: Observer = NO_OBSERVER,
        exchange: SharedCache | None = None,
    ) -> None:
        self._observer = observer
        self.resolver_set = resolvers
        self._rng = rng
        self._allow_private = settings.allow_private
        self._mx_kept_s = settings.cache_s
        self.clock = resolvers.clock  # layer 4 uses it too
        self._routes: SingleFlightCache[RouteAnswer] = SingleFlightCache(
            self.clock, self._new_route_lookup, observer=observer
        )
        self._addresses: SingleFlightCache[AddressAnswer] = SingleFlightCache(
            self.clock, self._new_address_lookup, failure_kept_s=0.0, observer=observer
        )
        # By the type of their records and the name: of a family that `addresses` did not need.
        self._families: SingleFlightCache[AddressAnswer] = SingleFlightCache(
            self.clock, self._new_family_lookup, observer=observer
        )
        self._shared: SharedRoutes | None = None
        if exchange is not None:
            self._shared = SharedRoutes(exchange, settings.doh_urls, self._keep)

    def resolvers(self) -> list[ResolverState]:
        """Every resolver, in the order in which they are asked."""
        now = self.resolver_set.clock.now()
        return [endpoint.state(now) for endpoint in self.resolver_set.endpoints]

    def failing_resolvers(self) -> list[str]:
        """The URLs of the resolvers that do not answer now, or refuse all queries for a while."""
        return [each.url for each in self.resolvers() if each.is_failing or each.is_paused]

    def cached_route(self, domain: str, *, deferred_start: bool = False) -> RouteAnswer | None:
        """The route in the cache; None means that `find` has to look it up."""
        return self._routes.cached(domain.lower(), deferred_start=deferred_start)

    async def find(
        self, domain: str, account: str = "", *, deferred_start: bool = False
    ) -> RouteAnswer:
        """Return where this domain's mail goes. Raises ValueError for what is not a domain name.

        The look-up uses the turns of `account`. It takes at most LOOKUP_S; with
        `deferred_start` (for a list) that time starts with the first query.
        """
        encode_query(domain, "MX")  # raises ValueError
        return await self._routes.find(domain.lower(), account, _priority(deferred_start))

    def cached_addresses(self, name: str, *, deferred_start: bool = False) -> AddressAnswer | None:
        return self._addresses.cached(name.lower(), deferred_start=deferred_start)

    async def addresses(
        self, name: str, account: str = "", *, deferred_start: bool = False
    ) -> AddressAnswer:
        """Return an exchange's addresses: IPv4, or IPv6 too where no IPv4 one may be used.

        NoAddress only if the resolver says so of both. All addresses may be private; the
        dialer refuses those.
        """
        encode_query(name, "A")
        return await self._addresses.find(name.lower(), account, _priority(deferred_start))

    async def addresses_of_family(
        self, name: str, kind: Literal["A", "AAAA"], account: str
    ) -> AddressAnswer:
        """Return an exchange's addresses of one family alone, cached. It takes at most LOOKUP_S."""
        encode_query(name, kind)
        return await self._families.find(f"{kind} {name.lower()}", account)

    def subscribe_addresses(self, name: str, interest: Interest[AddressAnswer]) -> None:
        """The same without waiting; the interest is settled later."""
        self._addresses.subscribe(name.lower(), interest)

    async def addresses_now(self, name: str, account: str = "") -> AddressAnswer:
        """Return all addresses that a host has now: at most 64 IPv4 and 64 IPv6, public or not.

        The cache is neither read nor written. If either look-up fails, the whole fails.
        """
        four = await self._query_now(name, "A", account)
        if isinstance(four, LookupFailed):
            return four
        six = await self._query_now(name, "AAAA", account)
        if isinstance(six, LookupFailed):
            return six
        return _both(four, six)[0]

    async def _query_now(
        self, name: str, kind: Literal["A", "AAAA"], account: str
    ) -> AddressAnswer:
        return await self._query_once(
            encode_query(name, kind),
            name,
            lambda octets: read_addresses(octets, name, kind),
            account,
        )

    async def pointers(self, ip: str, account: str = "") -> tuple[str, ...] | LookupFailed:
        """Return the names in an address's PTR records; not cached."""
        name = reverse_name(ip)
        return await self._query_once(
            encode_query(name, "PTR"), name, lambda octets: read_pointers(octets, ip), account
        )

    async def _query_once(
        self, question: bytes, name: str, read: Read[Answer], account: str
    ) -> Answer | LookupFailed:
        """A look-up that is neither shared nor cached."""

        def new_lookup(name: str, in_flight: InFlightLookup[Any]) -> LookupHandle[Any]:
            def done(answer: object) -> None:
                in_flight.finish(answer, 0)

            return Lookup(question, name, read, in_flight.wanted_by, done, self.resolver_set)

        cache: SingleFlightCache[Any] = SingleFlightCache(
            self.resolver_set.clock, new_lookup, observer=self._observer
        )
        return cast("Answer | LookupFailed", await cache.find(name, account))

    def in_order(self, route: Route) -> list[MailExchange]:
        """The exchanges in the order to try them now: equal ones shuffled (RFC 5321 5.1)."""
        ordered: list[MailExchange] = []
        for _, equals in groupby(route.exchanges, key=attrgetter("preference")):
            group = list(equals)
            self._rng.shuffle(group)
            ordered += group
        return ordered

    def _new_route_lookup(
        self, domain: str, in_flight: InFlightLookup[RouteAnswer]
    ) -> LookupHandle[RouteAnswer]:
        def done(answer: RouteAnswer) -> None:
            kept_s = self._mx_kept_s
            if isinstance(answer, LookupFailed):
                kept_s = 0.0 if answer.by_lag else FAILURE_KEPT_S
            in_flight.finish(answer, kept_s)
            if self._shared is not None:
                self._shared.found(domain, answer, self._mx_kept_s)

        def read(octets: bytes) -> RouteAnswer:
            return read_route(octets, domain)

        question = encode_query(domain, "MX")
        lookup: Lookup[RouteAnswer] = Lookup(
            question, domain, read, in_flight.wanted_by, done, self.resolver_set
        )
        return lookup

    def _keep(self, domain: str, answer: Route | NoMail, kept_s: float) -> bool:
        """Cache another engine's answer, unless there is a certain one."""
        known = self._routes.cached(domain)
        if known is not None and not isinstance(known, LookupFailed):
            return False
        self._routes.keep(domain, answer, min(kept_s, self._mx_kept_s))
        return True

    def _new_address_lookup(
        self, name: str, in_flight: InFlightLookup[AddressAnswer]
    ) -> LookupHandle[AddressAnswer]:
        return _AddressLookup(name, in_flight, self._any_usable, self.resolver_set)

    def _new_family_lookup(
        self, key: str, in_flight: InFlightLookup[AddressAnswer]
    ) -> LookupHandle[AddressAnswer]:
        kind, _, name = key.partition(" ")
        records: Literal["A", "AAAA"] = "A" if kind == "A" else "AAAA"

        def done(answer: AddressAnswer) -> None:
            if isinstance(answer, LookupFailed):
                in_flight.finish(answer, 0.0 if answer.by_lag else FAILURE_KEPT_S)
            else:
                in_flight.finish(answer, _kept_s(answer.ttl_s))

        def read(octets: bytes) -> AddressAnswer:
            return read_addresses(octets, name, records)

        question = encode_query(name, records)
        lookup: Lookup[AddressAnswer] = Lookup(
            question, name, read, in_flight.wanted_by, done, self.resolver_set
        )
        return lookup

    def _any_usable(self, addresses: Addresses) -> bool:
        return self._allow_private or any(map(is_public, addresses.ips))


def _priority(deferred_start: bool) -> Priority:
    return Priority.LIST if deferred_start else Priority.REQUEST


def _both(four: AddressAnswer, six: AddressAnswer) -> tuple[AddressAnswer, float]:
    """Combine both answers when IPv4 alone does not do; return also how long to keep it, in s."""
    if isinstance(four, LookupFailed):
        if isinstance(six, Addresses):
            return six, FAILURE_KEPT_S  # IPv6 alone does for now; IPv4 is looked up again soon
        return four, 0.0
    if isinstance(six, LookupFailed):
        return six, 0.0
    ttl_s = min(four.ttl_s, six.ttl_s)
    if isinstance(four, NoAddress) and isinstance(six, NoAddress):
        reasons = dict.fromkeys((four.reason, six.reason))
        return NoAddress(", ".join(reasons), ttl_s), _kept_s(ttl_s)
    if isinstance(four, NoAddress):
        return replace(six, ttl_s=ttl_s), _kept_s(ttl_s)
    others = six.ips if isinstance(six, Addresses) else ()
    return Addresses(four.ips + others, ttl_s), _kept_s(ttl_s)


def _kept_s(ttl_s: int) -> float:
    """How long to keep an answer: its time to live within our bounds."""
    return min(max(float(ttl_s), ADDRESSES_KEPT_MIN_S), ADDRESSES_KEPT_MAX_S)


@asynccontextmanager
async def open_routes(
    settings: EngineSettings,
    *,
    transport: DohTransport | None = None,
    rng: random.Random,
    observer: Observer = NO_OBSERVER,
    exchange: SharedCache | None = None,
) -> AsyncIterator[Routes]:
    """Open the routes for the length of the block; without a transport, over the network.

    With an `exchange`, MX answers are shared with other engines.
    Raises ValueError for an endpoint that check_doh_url refuses.
    """
    if transport is None:
        for url in settings.doh_urls:
            check_doh_url(url)
        async with (
            open_transport(settings.doh_ca_file) as opened,
            open_routes(
                settings, transport=opened, rng=rng, observer=observer, exchange=exchange
            ) as routes,
        ):
            yield routes
        return
    async with trio.open_nursery() as nursery:
        if not isinstance(transport, Transport):
            transport = Transport(nursery, exchange=transport)
        resolvers = Resolvers(settings.doh_urls, transport)
        yield Routes(settings, resolvers, rng, observer, exchange)
        nursery.cancel_scope.cancel()
