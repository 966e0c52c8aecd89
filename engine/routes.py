"""Layer 3: where a domain's mail goes, asked over HTTPS and remembered (RFC 8484).

    async with open_routes(settings, rng=rng) as routes:
        answer = routes.known("example.org") or await routes.find("example.org")

One look-up at a time for each name however many ask; it belongs to the block, not
to an asker, so one who gives up takes nothing from the others. Endpoints are asked
in order, the next one as well when the first is slow, and only when all have failed
has the look-up failed. The system's resolver is never asked for anything, which is
why endpoints are named by address.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar
from urllib.parse import urlsplit

import trio

from engine.dns import (
    AddressAnswer,
    Addresses,
    LookupFailed,
    MailExchange,
    NoAddress,
    Route,
    RouteAnswer,
    ask,
    read_addresses,
    read_pointers,
    read_route,
    reverse_name,
)
from engine.doh import ENDPOINT_S, DohTransport, check_doh_url, open_transport
from engine.egress import is_public
from engine.settings import EngineSettings
from engine.watcher import NOBODY, Watcher

HEDGE_S = 0.3  # a cached answer takes 20 ms, one that must be found about 100
LOOKUP_S = 3.0  # all endpoints together
LINE_S = 15.0  # waiting for one of LOOKUPS_MAX to end; 2,000 domains at once take 3 to 8
LOOKUPS_MAX = 50  # the processor bears about 500 a second: more would only make each slower
DOMAINS_MAX = 100_000  # remembered, of domains and of exchanges each; about 500 octets apiece
FAILURE_KEPT_S = 5.0
ADDRESSES_KEPT_MIN_S = 300.0
ADDRESSES_KEPT_MAX_S = 6 * 3600.0


Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Flight(Generic[Answer]):
    """A look-up under way, and those who wait for it."""

    done: trio.Event = field(default_factory=trio.Event)
    answer: Answer | None = None


class Remembered(Generic[Answer]):
    """Answers by name until they are too old, and one look-up at a time for each name.

    A look-up gives its answer and for how many seconds that may be told again.
    Beyond `names_max` the one learned first is forgotten.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        look_up: Callable[[str], Awaitable[tuple[Answer, float]]],
        *,
        names_max: int = DOMAINS_MAX,
    ) -> None:
        self._nursery = nursery
        self._look_up = look_up
        self._names_max = names_max
        self._answers: dict[str, tuple[float, Answer]] = {}  # until when; oldest first
        self._flights: dict[str, _Flight[Answer]] = {}

    def known(self, name: str) -> Answer | None:
        until, answer = self._answers.get(name, _NEVER)
        return answer if trio.current_time() < until else None

    async def find(self, name: str) -> Answer:
        """The answer, from memory or from the one look-up that all who ask now share."""
        if (answer := self.known(name)) is not None:
            await trio.lowlevel.checkpoint()
            return answer
        flight = self._flights.get(name)
        if flight is None:
            flight = self._flights[name] = _Flight()
            self._nursery.start_soon(self._fly, name, flight)
        await flight.done.wait()
        assert flight.answer is not None  # else the look-up crashed, and we with it
        return flight.answer

    async def _fly(self, name: str, flight: _Flight[Answer]) -> None:
        try:
            flight.answer, kept_s = await self._look_up(name)
            self._keep(name, flight.answer, kept_s)
        finally:
            del self._flights[name]
            flight.done.set()

    def _keep(self, name: str, answer: Answer, kept_s: float) -> None:
        self._answers.pop(name, None)  # so that it goes to the end
        self._answers[name] = (trio.current_time() + kept_s, answer)
        if len(self._answers) > self._names_max:
            del self._answers[next(iter(self._answers))]


_NEVER = (float("-inf"), None)


@dataclass(slots=True)
class _Endpoint:
    """A resolver's URL, and whether it has been silent since it last spoke."""

    url: str
    failing: bool = False
    answered_at: float = float("-inf")

    def after_answer(self) -> None:
        self.failing, self.answered_at = False, trio.current_time()

    def after_silence(self, since: float) -> None:
        self.failing = self.failing or self.answered_at < since


# What came of asking one endpoint, and whom.
_Outcome = tuple[_Endpoint, Answer | LookupFailed]


class Resolvers:
    """All endpoints as one: the first certain answer wins."""

    def __init__(
        self,
        urls: tuple[str, ...],
        transport: DohTransport,
        nursery: trio.Nursery,
        watcher: Watcher = NOBODY,
    ) -> None:
        self._endpoints = [_Endpoint(url) for url in urls]
        self._transport = transport
        self._nursery = nursery
        self._watcher = watcher
        self._seats = trio.Semaphore(LOOKUPS_MAX)

    async def ask(
        self, question: bytes, read: Callable[[bytes], Answer | LookupFailed]
    ) -> Answer | LookupFailed:
        """A certain answer, or LookupFailed with what each endpoint did."""
        began = trio.current_time()
        answer = await self._ask(question, read)
        self._watcher.looked_up(began, certain=not isinstance(answer, LookupFailed))
        return answer

    async def _ask(
        self, question: bytes, read: Callable[[bytes], Answer | LookupFailed]
    ) -> Answer | LookupFailed:
        with trio.move_on_after(LINE_S) as line:
            await self._seats.acquire()
        if line.cancelled_caught:
            return LookupFailed("too many look-ups under way")
        try:
            with trio.move_on_after(LOOKUP_S):
                return await self._race(question, read)
            return LookupFailed(f"no answer within {LOOKUP_S:g} s")
        finally:
            self._seats.release()

    async def _race(
        self, question: bytes, read: Callable[[bytes], Answer | LookupFailed]
    ) -> Answer | LookupFailed:
        """Ask in order; the next at once after a failure, or when the last asked is slow.

        Those still asked when one has answered are let go on until their limit: a
        connection half made serves the next question.
        """
        waiting = list(reversed(self._endpoints))
        reasons: list[str] = []
        send, outcomes = trio.open_memory_channel[_Outcome[Answer]](len(waiting))
        with send, outcomes:
            under_way = 0
            while waiting or under_way:
                patience = float("inf")
                if waiting:
                    endpoint = waiting.pop()
                    under_way += 1
                    self._nursery.start_soon(self._attempt, endpoint, question, read, send.clone())
                    if waiting:
                        patience = 0.0 if endpoint.failing else HEDGE_S
                with trio.move_on_after(patience):
                    asked, answer = await outcomes.receive()
                    under_way -= 1
                    if not isinstance(answer, LookupFailed):
                        return answer
                    reasons.append(f"{urlsplit(asked.url).netloc}: {answer.reason}")
        return LookupFailed("; ".join(reasons))

    async def _attempt(
        self,
        endpoint: _Endpoint,
        question: bytes,
        read: Callable[[bytes], Answer | LookupFailed],
        send: "trio.MemorySendChannel[_Outcome[Answer]]",
    ) -> None:
        answer: Answer | LookupFailed = LookupFailed(f"no answer within {ENDPOINT_S:g} s")
        began = trio.current_time()
        answered = False
        with send:
            with trio.move_on_after(ENDPOINT_S):
                try:
                    octets = await self._transport.exchange(endpoint.url, question)
                except OSError as error:  # TransportFailed is one
                    answer = LookupFailed(str(error) or type(error).__name__)
                else:
                    answered, answer = True, read(octets)
            if answered:
                endpoint.after_answer()
            else:
                endpoint.after_silence(began)
            with suppress(trio.BrokenResourceError):  # another one was first
                send.send_nowait((endpoint, answer))


class Routes:
    """What is known and can be found of domains and of their exchanges."""

    def __init__(
        self,
        settings: EngineSettings,
        resolvers: Resolvers,
        nursery: trio.Nursery,
        rng: random.Random,
    ) -> None:
        self._resolvers = resolvers
        self._rng = rng
        self._allow_private = settings.allow_private
        self._mx_kept_s = settings.cache_s
        self._routes = Remembered(nursery, self._look_up_route)
        self._addresses = Remembered(nursery, self._look_up_addresses)

    def known(self, domain: str) -> RouteAnswer | None:
        """What memory holds; None means that `find` will have to ask."""
        return self._routes.known(domain.lower())

    async def find(self, domain: str) -> RouteAnswer:
        """Where this domain's mail goes. Raises ValueError for what is no domain name."""
        ask(domain, "MX")  # a name that cannot be asked about is its caller's mistake
        return await self._routes.find(domain.lower())

    def known_addresses(self, name: str) -> AddressAnswer | None:
        return self._addresses.known(name.lower())

    async def addresses(self, name: str) -> AddressAnswer:
        """An exchange's addresses: IPv4, or IPv6 too where no IPv4 one may be used.

        NoAddress only when the resolver says so of both. They may all be private;
        whoever connects has the guard.
        """
        ask(name, "A")
        return await self._addresses.find(name.lower())

    async def addresses_now(self, name: str) -> AddressAnswer:
        """All addresses that a host has now, IPv4 and IPv6, at most 64 of each; public or not.

        Memory neither answers nor learns. An answer that is certain is so of both kinds:
        where one look-up has failed, so has the whole.
        """
        four = await self._ask_addresses(name, "A")
        if isinstance(four, LookupFailed):
            return four
        six = await self._ask_addresses(name, "AAAA")
        if isinstance(six, LookupFailed):
            return six
        return _both(four, six)[0]

    async def pointers(self, ip: str) -> tuple[str, ...] | LookupFailed:
        """The names that an address's reverse records give; asked each time."""
        return await self._resolvers.ask(
            ask(reverse_name(ip), "PTR"), lambda octets: read_pointers(octets, ip)
        )

    def in_order(self, route: Route) -> list[MailExchange]:
        """The exchanges in the order to try them now, equal ones shuffled."""
        return route.in_order(self._rng)

    async def _look_up_route(self, domain: str) -> tuple[RouteAnswer, float]:
        answer: RouteAnswer = await self._resolvers.ask(
            ask(domain, "MX"), lambda octets: read_route(octets, domain)
        )
        failed = isinstance(answer, LookupFailed)
        return answer, FAILURE_KEPT_S if failed else self._mx_kept_s

    async def _look_up_addresses(self, name: str) -> tuple[AddressAnswer, float]:
        four = await self._ask_addresses(name, "A")
        if isinstance(four, Addresses) and self._any_usable(four):
            return four, _held(four.ttl_s)
        return _both(four, await self._ask_addresses(name, "AAAA"))

    def _any_usable(self, addresses: Addresses) -> bool:
        return self._allow_private or any(map(is_public, addresses.ips))

    async def _ask_addresses(self, name: str, kind: Literal["A", "AAAA"]) -> AddressAnswer:
        return await self._resolvers.ask(
            ask(name, kind), lambda octets: read_addresses(octets, name, kind)
        )


def _both(four: AddressAnswer, six: AddressAnswer) -> tuple[AddressAnswer, float]:
    """One answer of two, where the first alone was no help; and how long to keep it."""
    if isinstance(four, LookupFailed):
        # IPv6 alone will do for now; the other half is asked again soon.
        return (six if isinstance(six, Addresses) else four), FAILURE_KEPT_S
    if isinstance(six, LookupFailed):
        return six, FAILURE_KEPT_S
    ttl_s = min(four.ttl_s, six.ttl_s)
    if isinstance(four, NoAddress) and isinstance(six, NoAddress):
        reasons = dict.fromkeys((four.reason, six.reason))
        return NoAddress(", ".join(reasons), ttl_s), _held(ttl_s)
    if isinstance(four, NoAddress):
        return replace(six, ttl_s=ttl_s), _held(ttl_s)
    others = six.ips if isinstance(six, Addresses) else ()
    return Addresses(four.ips + others, ttl_s), _held(ttl_s)


def _held(ttl_s: int) -> float:
    """A time to live, held to what is worth remembering and still true."""
    return min(max(float(ttl_s), ADDRESSES_KEPT_MIN_S), ADDRESSES_KEPT_MAX_S)


@asynccontextmanager
async def open_routes(
    settings: EngineSettings,
    *,
    transport: DohTransport | None = None,
    rng: random.Random,
    watcher: Watcher = NOBODY,
) -> AsyncIterator[Routes]:
    """Routes that live as long as the block; without a transport, over the network.

    Raises ValueError for an endpoint that cannot be asked.
    """
    if transport is None:
        for url in settings.doh_urls:
            check_doh_url(url)
        async with (
            open_transport(settings.doh_ca_file) as opened,
            open_routes(settings, transport=opened, rng=rng, watcher=watcher) as routes,
        ):
            yield routes
        return
    async with trio.open_nursery() as nursery:
        resolvers = Resolvers(settings.doh_urls, transport, nursery, watcher)
        yield Routes(settings, resolvers, nursery, rng)
        nursery.cancel_scope.cancel()
