"""Layer 3: where a domain's mail goes, asked over HTTPS and remembered (RFC 8484).

    async with open_routes(settings, rng=rng) as routes:
        answer = routes.known("example.org") or await routes.find("example.org", "account")

One look-up at a time for each name however many ask. It belongs to all of them: a
caller whose clock runs out, or who leaves, fails alone, and the look-up goes on for the
others; when it was the last one, the look-up ends and frees what it used. Failures of a
queue are not remembered, failures of the resolvers for a few seconds. The system's
resolver is never asked for anything, which is why endpoints are named by address.
"""

import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

import trio

from mailprobe.engine.dns.deadlines import NEVER, DeadlineClock
from mailprobe.engine.dns.doh import DohTransport, check_doh_url, open_transport
from mailprobe.engine.dns.messages import (
    AddressAnswer,
    Addresses,
    LookupFailed,
    MailExchange,
    NoAddress,
    Route,
    RouteAnswer,
    encode_query,
    read_addresses,
    read_pointers,
    read_route,
    reverse_name,
)
from mailprobe.engine.dns.query_queue import Priority
from mailprobe.engine.dns.resolver import LOOKUP_S, Lookup, Read, Resolvers
from mailprobe.engine.net.dialer import is_public
from mailprobe.engine.observer import NO_OBSERVER, Observer
from mailprobe.engine.settings import EngineSettings

DOMAINS_MAX = 100_000  # remembered, of domains and of exchanges each; about 500 octets apiece
FAILURE_KEPT_S = 5.0
ADDRESSES_KEPT_MIN_S = 300.0
ADDRESSES_KEPT_MAX_S = 6 * 3600.0

Answer = TypeVar("Answer")
Part = TypeVar("Part", covariant=True)


class LookupHandle(Protocol[Part]):
    """A look-up that may take one question to the resolvers or two."""

    def start(self) -> None: ...
    def claim(self, account: str, priority: Priority) -> None: ...
    def persist(self) -> None: ...
    def renounce(self, account: str) -> None: ...
    def cancel(self) -> None: ...

    @property
    def was_sent(self) -> bool: ...
    def failure(self) -> LookupFailed: ...

    def partial(self) -> Part | None:
        """An answer that will do where there is no time to wait for the whole one."""
        ...


class Interest(Generic[Answer]):
    """One caller's wish for an answer: `settle` is called at most once, with it or LookupFailed.

    At `late_at` the caller is told by `late` that there is no answer yet; at `deadline`
    the caller has LookupFailed, whatever becomes of the look-up for others.
    """

    __slots__ = ("_lookup", "account", "deadline", "late", "late_at", "priority", "settle")

    def __init__(
        self,
        account: str,
        priority: Priority,
        settle: Callable[[Answer | LookupFailed], None],
        deadline: float = NEVER,
        *,
        late_at: float = NEVER,
        late: Callable[[], None] | None = None,
    ) -> None:
        self.account = account
        self.priority = priority
        self.settle = settle
        self.deadline = deadline
        self.late_at = late_at
        self.late = late
        self._lookup: _InFlightLookup[Answer] | None = None

    def join(self, flight: "_InFlightLookup[Answer]") -> None:
        self._lookup = flight

    def cancel(self) -> None:
        """The answer is not wanted any more; `settle` will not be called."""
        if (flight := self._lookup) is not None:
            self._lookup = None
            flight.unsubscribe(self, by_clock=False)

    def end(self, answer: Answer | LookupFailed) -> None:
        """Called by the flight."""
        self._lookup = None
        settle, self.settle = self.settle, _nothing  # which leaves no cycle to the collector
        settle(answer)

    @property
    def over(self) -> bool:
        return self._lookup is None

    @property
    def due(self) -> float:
        return min(self.deadline, self.late_at)

    def tick(self, now: float) -> None:
        flight = self._lookup
        assert flight is not None
        if now >= self.deadline:
            self._lookup = None
            self.settle(flight.unsubscribe(self, by_clock=True))
        elif now >= self.late_at:
            self.late_at = NEVER
            if self.late is not None:
                self.late()


def _nothing(_: object) -> None:
    """Tell nobody."""


class _InFlightLookup(Generic[Answer]):
    """A look-up under way, and everybody who waits for its answer."""

    __slots__ = ("_began", "_counts", "_interests", "_memory", "_name", "deadline", "lookup")

    def __init__(
        self, name: str, memory: "SingleFlightCache[Answer]", first: Interest[Answer]
    ) -> None:
        self._name = name
        self._memory = memory
        self._began = memory.now()
        self._interests: dict[Interest[Answer], None] = {first: None}
        self._counts = {first.account: 1}
        self.deadline = {first.account: first.priority}
        self.lookup: LookupHandle[Answer] | None = None
        first.join(self)

    def join(self, interest: Interest[Answer]) -> None:
        self._interests[interest] = None
        interest.join(self)
        account, priority = interest.account, interest.priority
        self._counts[account] = self._counts.get(account, 0) + 1
        if account not in self.deadline or priority < self.deadline[account]:
            self.deadline[account] = priority
            assert self.lookup is not None
            self.lookup.claim(account, priority)
        if priority >= Priority.LIST:
            assert self.lookup is not None
            self.lookup.persist()

    def unsubscribe(self, interest: Interest[Answer], *, by_clock: bool) -> Answer | LookupFailed:
        """One caller waits no longer; returns what there is for one whose clock ran out."""
        del self._interests[interest]
        look_up, account = self.lookup, interest.account
        assert look_up is not None
        reported = (by_clock and look_up.partial()) or look_up.failure()
        self._counts[account] -= 1
        if not self._interests:
            kept_s = FAILURE_KEPT_S if by_clock and look_up.was_sent else 0.0
            look_up.cancel()
            self._memory.landed(self._name, cast(Answer, reported), kept_s)
            if by_clock:
                self._report(reported)
        elif not self._counts[account]:
            del self._counts[account]
            look_up.renounce(account)
            del self.deadline[account]
        return reported

    def finish(self, answer: Answer, kept_s: float) -> None:
        """The look-up is done: everybody who waits has the answer."""
        self._memory.landed(self._name, answer, kept_s)
        self._report(answer)
        interests, self._interests = self._interests, {}
        for interest in interests:
            interest.end(answer)

    def _report(self, answer: Answer | LookupFailed) -> None:
        certain = not isinstance(answer, LookupFailed)
        self._memory.observer.lookup_done(self._began, certain=certain)


class SingleFlightCache(Generic[Answer]):
    """Answers by name until they are too old, and one look-up at a time for each name.

    `look_up` makes a look-up for a flight, which it finishes with the answer and for how
    many seconds that may be told again. Beyond `names_max` the one learned first is
    forgotten.
    """

    def __init__(
        self,
        clock: DeadlineClock,
        look_up: "Callable[[str, _InFlightLookup[Answer]], LookupHandle[Answer]]",
        *,
        names_max: int = DOMAINS_MAX,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self.observer = observer
        self.now = clock.now
        self._clock = clock
        self._lookup = look_up
        self._names_max = names_max
        # Until when; oldest first. A plain dict looks for its first key past all that
        # were ever taken from its front.
        self._answers: OrderedDict[str, tuple[float, Answer]] = OrderedDict()
        self._flights: dict[str, _InFlightLookup[Answer]] = {}

    def cached(self, name: str, *, patient: bool = False) -> Answer | None:
        """What is remembered; for who is patient, no failure that a second try might mend."""
        until, answer = self._answers.get(name, _NEVER)
        if self.now() >= until or (patient and isinstance(answer, LookupFailed) and answer.hasty):
            return None
        return answer

    def subscribe(self, name: str, interest: Interest[Answer]) -> None:
        """Have the interest settled by the one look-up that all who ask now share.

        It may be settled before this returns.
        """
        flight = self._flights.get(name)
        if flight is not None:
            flight.join(interest)
        else:
            flight = self._flights[name] = _InFlightLookup(name, self, interest)
            try:
                flight.lookup = self._lookup(name, flight)
                flight.lookup.start()
            except BaseException:
                self._flights.pop(name, None)  # nobody else is to wait for it
                raise
        self._clock.watch(interest)

    async def find(
        self, name: str, account: str = "", priority: Priority = Priority.REQUEST
    ) -> Answer | LookupFailed:
        """The answer, from memory or from the look-up, within LOOKUP_S where it is no list's."""
        if (known := self.cached(name, patient=priority >= Priority.LIST)) is not None:
            await trio.lowlevel.checkpoint()
            return known
        task = _TaskInterest[Answer](account, priority, self.now)
        self.subscribe(name, task)
        return await task.wait()

    def landed(self, name: str, answer: Answer, kept_s: float) -> None:
        """The flight is over; its answer is told again for so long."""
        del self._flights[name]
        if kept_s <= 0:
            return
        answers = self._answers
        answers[name] = (self.now() + kept_s, answer)
        answers.move_to_end(name)
        if len(answers) > self._names_max:
            answers.popitem(last=False)


_NEVER = (float("-inf"), None)


class _TaskInterest(Interest[Answer]):
    """The wish of a task that waits; leaving gives it up."""

    __slots__ = ("_notified", "_task")

    def __init__(self, account: str, priority: Priority, now: Callable[[], float]) -> None:
        deadline = now() + LOOKUP_S if priority < Priority.LIST else NEVER
        super().__init__(account, priority, self._settle, deadline)
        self._task: trio.lowlevel.Task | None = None
        self._notified: Answer | LookupFailed | None = None

    async def wait(self) -> Answer | LookupFailed:
        if self._notified is None:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        else:
            await trio.lowlevel.checkpoint()
        assert self._notified is not None
        return self._notified

    def _settle(self, answer: Answer | LookupFailed) -> None:
        self._notified = answer
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self.cancel()
        return trio.lowlevel.Abort.SUCCEEDED


class _AddressLookup:
    """The look-up of a host's addresses: IPv4, or IPv6 too where no IPv4 one may be used.

    Both are asked together, unless only lists wait for the answer: these have the time
    to ask for IPv6 where it is needed.
    """

    def __init__(
        self,
        name: str,
        flight: "_InFlightLookup[AddressAnswer]",
        usable: Callable[[Addresses], bool],
        resolvers: Resolvers,
    ) -> None:
        self._name = name
        self._in_flight = flight
        self._usable = usable
        self._resolvers = resolvers
        self._four = self._lookup("A", self._on_four)
        self._six: Lookup[AddressAnswer] | None = None
        self._answer4: AddressAnswer | None = None
        self._answer6: AddressAnswer | None = None
        self._over = False

    def start(self) -> None:
        self._four.start()
        if min(self._in_flight.deadline.values()) < Priority.LIST:
            self._query_aaaa()

    def claim(self, account: str, priority: Priority) -> None:
        self._four.claim(account, priority)
        if self._six is not None:
            self._six.claim(account, priority)
        elif priority < Priority.LIST:
            self._query_aaaa()

    def persist(self) -> None:
        for each in self._both():
            each.persist()

    def renounce(self, account: str) -> None:
        for each in self._both():
            each.renounce(account)

    def cancel(self) -> None:
        self._over = True
        for each in self._both():
            each.cancel()

    @property
    def was_sent(self) -> bool:
        return any(each.was_sent for each in self._both())

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
            encode_query(name, kind), name, read, self._in_flight.deadline, done, self._resolvers
        )

    def _on_four(self, answer: AddressAnswer) -> None:
        self._answer4 = answer
        if isinstance(answer, Addresses) and self._usable(answer):
            self._over = True
            if self._six is not None:
                self._six.ignore()
            self._in_flight.finish(answer, _held(answer.ttl_s))
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
    """What is known and can be found of domains and of their exchanges."""

    def __init__(
        self,
        settings: EngineSettings,
        resolvers: Resolvers,
        rng: random.Random,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self._observer = observer
        self._resolvers = resolvers
        self._rng = rng
        self._allow_private = settings.allow_private
        self._mx_kept_s = settings.cache_s
        clock = resolvers.clock
        self._routes: SingleFlightCache[RouteAnswer] = SingleFlightCache(
            clock, self._look_up_route, observer=observer
        )
        self._addresses: SingleFlightCache[AddressAnswer] = SingleFlightCache(
            clock, self._look_up_addresses, observer=observer
        )

    def cached_route(self, domain: str, *, patient: bool = False) -> RouteAnswer | None:
        """What memory holds; None means that `find` will have to ask."""
        return self._routes.cached(domain.lower(), patient=patient)

    async def find(self, domain: str, account: str = "", *, patient: bool = False) -> RouteAnswer:
        """Where this domain's mail goes. Raises ValueError for what is no domain name.

        `account` pays for it with its turns. An answer takes LOOKUP_S at most, with
        `patient` (a list's) from the first query on.
        """
        encode_query(domain, "MX")  # a name that cannot be asked about is its caller's mistake
        return await self._routes.find(domain.lower(), account, _priority(patient))

    def cached_addresses(self, name: str, *, patient: bool = False) -> AddressAnswer | None:
        return self._addresses.cached(name.lower(), patient=patient)

    async def addresses(
        self, name: str, account: str = "", *, patient: bool = False
    ) -> AddressAnswer:
        """An exchange's addresses: IPv4, or IPv6 too where no IPv4 one may be used.

        NoAddress only when the resolver says so of both. They may all be private;
        whoever connects has the guard.
        """
        encode_query(name, "A")
        return await self._addresses.find(name.lower(), account, _priority(patient))

    def subscribe_addresses(self, name: str, interest: Interest[AddressAnswer]) -> None:
        """The same for a caller that does not wait; the interest may be settled at once."""
        self._addresses.subscribe(name.lower(), interest)

    async def addresses_now(self, name: str, account: str = "") -> AddressAnswer:
        """All addresses that a host has now, IPv4 and IPv6, at most 64 of each; public or not.

        Memory neither answers nor learns. An answer that is certain is so of both kinds:
        where one look-up has failed, so has the whole.
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
        """The names that an address's reverse records give; asked each time."""
        name = reverse_name(ip)
        return await self._query_once(
            encode_query(name, "PTR"), name, lambda octets: read_pointers(octets, ip), account
        )

    async def _query_once(
        self, question: bytes, name: str, read: Read[Answer], account: str
    ) -> Answer | LookupFailed:
        """A look-up that is nobody else's and is not remembered."""

        def look_up(name: str, flight: _InFlightLookup[Any]) -> LookupHandle[Any]:
            def done(answer: object) -> None:
                flight.finish(answer, 0)

            return Lookup(question, name, read, flight.deadline, done, self._resolvers)

        memory: SingleFlightCache[Any] = SingleFlightCache(
            self._resolvers.clock, look_up, observer=self._observer
        )
        return cast("Answer | LookupFailed", await memory.find(name, account))

    def in_order(self, route: Route) -> list[MailExchange]:
        """The exchanges in the order to try them now, equal ones shuffled."""
        return route.in_order(self._rng)

    def _look_up_route(
        self, domain: str, flight: _InFlightLookup[RouteAnswer]
    ) -> LookupHandle[RouteAnswer]:
        def done(answer: RouteAnswer) -> None:
            failed = isinstance(answer, LookupFailed)
            flight.finish(answer, FAILURE_KEPT_S if failed else self._mx_kept_s)

        def read(octets: bytes) -> RouteAnswer:
            return read_route(octets, domain)

        question = encode_query(domain, "MX")
        look_up: Lookup[RouteAnswer] = Lookup(
            question, domain, read, flight.deadline, done, self._resolvers
        )
        return look_up

    def _look_up_addresses(
        self, name: str, flight: _InFlightLookup[AddressAnswer]
    ) -> LookupHandle[AddressAnswer]:
        return _AddressLookup(name, flight, self._any_usable, self._resolvers)

    def _any_usable(self, addresses: Addresses) -> bool:
        return self._allow_private or any(map(is_public, addresses.ips))


def _priority(patient: bool) -> Priority:
    return Priority.LIST if patient else Priority.REQUEST


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
    observer: Observer = NO_OBSERVER,
) -> AsyncIterator[Routes]:
    """Routes that live as long as the block; without a transport, over the network.

    Raises ValueError for an endpoint that cannot be asked.
    """
    if transport is None:
        for url in settings.doh_urls:
            check_doh_url(url)
        async with (
            open_transport(settings.doh_ca_file) as opened,
            open_routes(settings, transport=opened, rng=rng, observer=observer) as routes,
        ):
            yield routes
        return
    async with trio.open_nursery() as nursery:
        resolvers = Resolvers(settings.doh_urls, transport, nursery)
        yield Routes(settings, resolvers, rng, observer)
        nursery.cancel_scope.cancel()
