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
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import urlsplit

import trio

from engine.background import contained, log_fault
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
from engine.doh import (
    ENDPOINT_S,
    DohResponse,
    DohTransport,
    Transport,
    TransportFailed,
    check_doh_url,
    open_transport,
)
from engine.egress import is_public
from engine.settings import EngineSettings
from engine.watcher import NOBODY, Watcher

HEDGE_S = 0.3  # a cached answer takes 20 ms, one that must be found about 100
LOOKUP_S = 3.0  # all endpoints together
LINE_S = 15.0  # waiting for one of LOOKUPS_MAX to end; 2,000 domains at once take 1 to 2
LOOKUPS_MAX = 200  # names not in the resolver's cache take it 100 ms: so 2,000 of them a second
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
            self._nursery.start_soon(contained, self._fly, name, flight)
        await flight.done.wait()
        assert flight.answer is not None  # else the look-up crashed, and each that waits for it
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


Read = Callable[[bytes], Answer | LookupFailed]
# A URL, a question, and whom to tell: gives back what gives it up (Transport.begin).
Begin = Callable[[str, bytes, Callable[[DohResponse | TransportFailed], None]], Callable[[], None]]
_NOBODY_WAITS = LookupFailed("nobody waits for the answer")


class _Attempt(Generic[Answer]):
    """One endpoint that has been asked, and has neither answered nor been given up."""

    __slots__ = ("began", "endpoint", "give_up", "race")

    def __init__(self, race: "_Race[Answer]", endpoint: _Endpoint, began: float) -> None:
        self.race = race
        self.endpoint = endpoint
        self.began = began
        self.give_up: Callable[[], None] | None = None

    def settle(self, told: DohResponse | TransportFailed) -> None:
        self.race.heard(self, told)


class _Race(Generic[Answer]):
    """One question: endpoints are asked in order until one gives a certain answer.

    The next one is asked at once after a failure, or when the last asked is slow.
    Those still asked when one has answered are let go on until their limit: what they
    say then is worth knowing of them. Nothing here waits; a clock calls `tick`.
    """

    __slots__ = (
        *("_answer", "_begin", "_ends", "_hedge_at", "_question", "_read", "_reasons"),
        *("_task", "_under_way", "_waiting"),
    )

    def __init__(
        self,
        begin: Begin,
        question: bytes,
        read: Read[Answer],
        endpoints: list[_Endpoint],
        now: float,
    ) -> None:
        self._begin = begin
        self._question = question
        self._waiting = endpoints[::-1]
        self._read = read
        self._ends = now + LOOKUP_S
        self._hedge_at = now
        self._under_way: list[_Attempt[Answer]] = []
        self._reasons: list[str] = []
        self._answer: Answer | LookupFailed | None = None
        self._task: trio.lowlevel.Task | None = None
        self._ask_next(now)

    @property
    def over(self) -> bool:
        """No clock is wanted any more."""
        return self._answer is not None and not self._under_way

    @property
    def due(self) -> float:
        """When `tick` has something to do."""
        due = float("inf")
        if self._answer is None:
            due = min(self._ends, self._hedge_at) if self._waiting else self._ends
        if self._under_way:
            due = min(due, self._under_way[0].began + ENDPOINT_S)
        return due

    async def answer(self) -> Answer | LookupFailed:
        if self._answer is None:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        else:
            await trio.lowlevel.checkpoint()
        assert self._answer is not None
        return self._answer

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task, self._answer = None, _NOBODY_WAITS
        return trio.lowlevel.Abort.SUCCEEDED

    def tick(self, now: float) -> None:
        if self._answer is None and now >= self._ends:
            self._finish(LookupFailed(f"no answer within {LOOKUP_S:g} s"))
        while self._under_way and now >= self._under_way[0].began + ENDPOINT_S:
            late = self._under_way[0]
            if late.give_up is not None:
                late.give_up()
            self.heard(late, TransportFailed(f"no answer within {ENDPOINT_S:g} s"))
        if self._answer is None and self._waiting and now >= self._hedge_at:
            self._ask_next(now)

    def heard(self, attempt: "_Attempt[Answer]", told: DohResponse | TransportFailed) -> None:
        if attempt not in self._under_way:
            return
        self._under_way.remove(attempt)
        endpoint = attempt.endpoint
        if isinstance(told, TransportFailed):
            endpoint.after_silence(attempt.began)
            reason = str(told) or type(told).__name__
        else:
            endpoint.after_answer()
            if self._answer is not None:
                return  # another one was first
            answer = self._read(told.octets)
            if not isinstance(answer, LookupFailed):
                return self._finish(answer)
            reason = answer.reason
        if self._answer is not None:
            return
        self._reasons.append(f"{urlsplit(endpoint.url).netloc}: {reason}")
        if self._waiting:
            self._ask_next(trio.current_time())
        elif not self._under_way:
            self._finish(LookupFailed("; ".join(self._reasons)))

    def _ask_next(self, now: float) -> None:
        """Ask the next endpoint, and with one that is failing the one after it as well."""
        while self._waiting and self._answer is None:
            endpoint = self._waiting.pop()
            attempt = _Attempt(self, endpoint, now)
            self._under_way.append(attempt)
            attempt.give_up = self._begin(endpoint.url, self._question, attempt.settle)
            if not endpoint.failing:
                break
        self._hedge_at = now + HEDGE_S

    def _finish(self, answer: Answer | LookupFailed) -> None:
        self._answer = answer
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None


class _Clock:
    """Calls each race's `tick` when it is due; those that are over are forgotten unasked.

    Nearly all are over long before: the clock wakes for them a few times a second.
    """

    def __init__(self) -> None:
        self._due: list[tuple[float, int, _Race[Any]]] = []  # a heap
        self._numbers = count()  # of equal instants the first comes first
        self._sleep = trio.CancelScope()
        self._wakes_at = float("-inf")

    def watch(self, race: "_Race[Any]") -> None:
        if race.over:
            return
        due = race.due
        heappush(self._due, (due, next(self._numbers), race))
        if due < self._wakes_at:
            self._wakes_at = due
            self._sleep.deadline = due

    async def run(self) -> None:
        """Never ends."""
        while True:
            self._tick(trio.current_time())
            self._wakes_at = self._due[0][0] if self._due else float("inf")
            with trio.CancelScope(deadline=self._wakes_at) as self._sleep:
                await trio.sleep_forever()

    def _tick(self, now: float) -> None:
        while self._due and (self._due[0][2].over or self._due[0][0] <= now):
            race = heappop(self._due)[2]
            if race.over:
                continue
            try:
                if race.due <= now:
                    race.tick(now)
            except Exception:  # its askers' own clocks end it; the other races go on
                log_fault(race.tick)
                continue
            self.watch(race)


class _ByTask:
    """Puts questions to a transport that can only be awaited: each in a task of its own."""

    def __init__(self, transport: DohTransport, nursery: trio.Nursery) -> None:
        self._transport = transport
        self._nursery = nursery

    def begin(
        self, url: str, query: bytes, settle: Callable[[DohResponse | TransportFailed], None]
    ) -> Callable[[], None]:
        scope = trio.CancelScope()

        async def carry() -> None:
            told: DohResponse | TransportFailed
            with scope:
                try:
                    told = DohResponse(await self._transport.exchange(url, query), None)
                except OSError as error:  # TransportFailed is one
                    told = TransportFailed(str(error) or type(error).__name__)
                except Exception:
                    log_fault(carry)
                    told = TransportFailed("the transport failed by a fault of ours")
                settle(told)

        self._nursery.start_soon(contained, carry)
        return scope.cancel


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
        carrier = transport if isinstance(transport, Transport) else _ByTask(transport, nursery)
        self._begin: Begin = carrier.begin
        self._watcher = watcher
        self._seats = trio.Semaphore(LOOKUPS_MAX)
        self._clock = _Clock()
        nursery.start_soon(self._clock.run)

    async def ask(self, question: bytes, read: Read[Answer]) -> Answer | LookupFailed:
        """A certain answer, or LookupFailed with what each endpoint did."""
        began = trio.current_time()
        answer = await self._ask(question, read)
        self._watcher.looked_up(began, certain=not isinstance(answer, LookupFailed))
        return answer

    async def _ask(self, question: bytes, read: Read[Answer]) -> Answer | LookupFailed:
        try:
            self._seats.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(LINE_S) as line:
                await self._seats.acquire()
            if line.cancelled_caught:
                return LookupFailed("too many look-ups under way")
        try:
            race = _Race(self._begin, question, read, self._endpoints, trio.current_time())
            self._clock.watch(race)
            return await race.answer()
        finally:
            self._seats.release()


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
