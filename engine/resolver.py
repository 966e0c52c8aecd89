"""A look-up over all endpoints: hedged, fair by account, and bounded in time.

Endpoints are asked in order. The next one is asked as well when the last is silent for
HEDGE_S, or at once when it has failed. The first certain answer wins; only when all
have failed has the look-up failed. Each endpoint has a queue (engine.query_queue) that
says which query may be sent. A query that nobody wants any more is reset at once; one
that has only lost to another may still be answered until it is late, for what it shows
of its endpoint and to spare the endpoint a reset.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import trio

from engine.background import contained, log_fault
from engine.dns import LookupFailed
from engine.doh import DohResponse, DohTransport, Transport, TransportFailed
from engine.query_queue import LATE_S, REVIEW_S, Priority, Query, QueryQueue

HEDGE_S = LATE_S
LOOKUP_S = 1.5  # all endpoints together, from the first query on
LINE_S = 60.0  # a list's query may wait for its turn; 15,000 hung names ahead of it take so long
LOOKUPS_MAX = 200  # at an endpoint; names not in its cache take 100 ms: so 2,000 a second
STALL_S = 0.1  # the clock wakes so late only where the process did not run
STALL_GRACE_S = 0.02
NEVER = float("inf")

Answer = TypeVar("Answer")
Read = Callable[[bytes], Answer | LookupFailed]
Told = Callable[[DohResponse | TransportFailed], None]
# A URL, a question, and whom to tell: returns what gives the question up.
Begin = Callable[[str, bytes, Told], Callable[[], None]]

NO_TURN = "too many look-ups under way"
NO_ANSWER = f"no answer within {LOOKUP_S:g} s"


class Timed(Protocol):
    """What has a deadline that the clock keeps."""

    @property
    def over(self) -> bool:
        """No clock is wanted any more."""
        ...

    @property
    def due(self) -> float:
        """When `tick` has something to do."""
        ...

    def tick(self, now: float) -> None: ...


class Clock:
    """Calls `tick` of each timed object when it is due; those that are over are dropped.

    Nearly all are over long before: the clock wakes for them a few times a second.
    """

    def __init__(self) -> None:
        self.now = trio.lowlevel.current_clock().current_time
        self._due: list[tuple[float, int, Timed]] = []  # a heap
        self._numbers = count()  # of equal instants the first comes first
        self._sleep = trio.CancelScope()
        self._wakes_at = float("-inf")
        self._ticking = False
        self._afterwards: dict[Callable[[], None], None] = {}

    def watch(self, timed: Timed) -> None:
        if timed.over or (due := timed.due) == NEVER:
            return
        heappush(self._due, (due, next(self._numbers), timed))
        if due < self._wakes_at:
            self._wakes_at = due
            self._sleep.deadline = due

    def afterwards(self, act: Callable[[], None]) -> None:
        """Call it when all that is due now had its tick: now, unless one has it just now."""
        if self._ticking:
            self._afterwards[act] = None
        else:
            act()

    async def run(self) -> None:
        """Never ends."""
        while True:
            self._ticking = True
            self._tick(trio.current_time())
            self._ticking = False
            acts, self._afterwards = self._afterwards, {}
            for act in acts:
                try:
                    act()
                except Exception:
                    log_fault(act)
            self._wakes_at = self._due[0][0] if self._due else NEVER
            with trio.CancelScope(deadline=self._wakes_at) as self._sleep:
                await trio.sleep_forever()
            if self.now() > self._sleep.deadline + STALL_S:
                # The whole process stood still: first read the answers that have come.
                await trio.sleep(STALL_GRACE_S)

    def _tick(self, now: float) -> None:
        while self._due and (self._due[0][2].over or self._due[0][0] <= now):
            timed = heappop(self._due)[2]
            if timed.over:
                continue
            try:
                if timed.due <= now:
                    timed.tick(now)
            except Exception:  # its callers' own clocks end it; the others go on
                log_fault(timed.tick)
                continue
            self.watch(timed)


class _Endpoint:
    """A resolver: its queue, and whether it has been silent since it last spoke."""

    def __init__(self, url: str, begin: Begin, clock: Clock) -> None:
        self.url = url
        self.name = urlsplit(url).netloc
        self.begin = begin
        self.failing = False
        self.queue = QueryQueue(LOOKUPS_MAX)
        self._answered_at = float("-inf")
        self._clock = clock
        self._review_at = NEVER

    def after_answer(self, now: float) -> None:
        self.failing, self._answered_at = False, now

    def after_silence(self, since: float) -> None:
        self.failing = self.failing or self._answered_at < since

    def submit(self, query: Query, now: float) -> None:
        self.queue.submit(query, now)
        self._watch(now)

    def release(self, query: Query) -> None:
        """It is answered or given up: let others be sent, but none whose clock ends now."""
        self.queue.release(query)
        if self.queue.waiting:
            self._clock.afterwards(self._advance)

    def has_capacity(self, places: int) -> None:
        """So many queries may be under way there now."""
        self.queue.capacity = max(1, min(places, LOOKUPS_MAX))
        self._advance()

    def _advance(self) -> None:
        now = trio.current_time()
        self.queue.advance(now)
        self._watch(now)

    def _watch(self, now: float) -> None:
        if self._review_at == NEVER and self.queue.waiting:
            self._review_at = now + REVIEW_S
            self._clock.watch(self)

    @property
    def over(self) -> bool:
        return self._review_at == NEVER

    @property
    def due(self) -> float:
        return self._review_at

    def tick(self, now: float) -> None:
        self.queue.review(now)
        self._review_at = now + REVIEW_S if self.queue.waiting else NEVER


class _Attempt(Query):
    """A look-up's query to one endpoint, until it is answered or given up."""

    __slots__ = ("_give_up", "endpoint", "look_up", "over")

    def __init__(self, look_up: "LookUp[Answer]", endpoint: _Endpoint) -> None:
        super().__init__(look_up.name, look_up.wanted_by)
        self.look_up = look_up
        self.endpoint = endpoint
        self.over = False
        self._give_up: Callable[[], None] | None = None

    def send(self, now: float) -> None:
        self.look_up.sent(now)
        give_up = self.endpoint.begin(self.endpoint.url, self.look_up.question, self._settle)
        if not self.over:  # else it was answered at once
            self._give_up = give_up

    def recall(self) -> None:
        self.stop()
        self.look_up.gave_way(self)

    def stop(self) -> None:
        """Tell the endpoint that its answer is not wanted."""
        if (give_up := self._give_up) is not None:
            self._give_up = None
            give_up()

    def _settle(self, told: DohResponse | TransportFailed) -> None:
        if not self.over and self.sent_at is not None:
            self._give_up = None
            self.look_up.heard(self, told)


class LookUp(Generic[Answer]):
    """One question to all endpoints. Nothing here waits; the clock calls `tick`.

    `done` is called once, with the answer or LookupFailed, unless the look-up is
    cancelled before. `wanted_by` is shared with the caller, who announces each account
    that it adds with `claim` and each that it removes with `renounce`.
    """

    __slots__ = (
        *("_answer", "_attempts", "_began", "_clock", "_done", "_hedge_at", "_now", "_read"),
        *("_reasons",),
        *("_sent_at", "_started", "_untried", "name", "question", "wanted_by"),
    )

    def __init__(
        self,
        question: bytes,
        name: str,
        read: Read[Answer],
        wanted_by: dict[str, Priority],
        done: Callable[[Answer | LookupFailed], None],
        resolvers: "Resolvers",
    ) -> None:
        self.question = question
        self.name = name
        self.wanted_by = wanted_by
        self._read = read
        self._done = done
        self._untried = resolvers.endpoints[::-1]
        self._clock = resolvers.clock
        self._now = resolvers.clock.now
        self._attempts: list[_Attempt] = []
        self._reasons: list[str] = []
        self._answer: Answer | LookupFailed | None = None
        self._began = self._now()
        self._sent_at: float | None = None
        self._started = False
        self._hedge_at = self._began + HEDGE_S if self._hurries() else NEVER

    def start(self) -> None:
        """Ask. It may be done at once."""
        self._ask_next(self._began)
        self._started = True
        self._clock.watch(self)

    def claim(self, account: str, priority: Priority) -> None:
        """One more account wants the answer."""
        now = self._now()
        if self._hedge_at == NEVER and priority < Priority.LIST:
            self._hedge_at = now + HEDGE_S
            self._clock.watch(self)
        for attempt in list(self._attempts):
            attempt.endpoint.queue.claim(attempt, account, priority)

    def renounce(self, account: str) -> None:
        """An account no longer wants the answer."""
        for attempt in self._attempts:
            attempt.endpoint.queue.renounce(attempt, account)

    def cancel(self) -> None:
        """Nobody wants the answer: every query is given up now."""
        if self._answer is None:
            self._answer = LookupFailed("nobody waits for the answer")
        now = self._now()
        for attempt in list(self._attempts):
            self._give_up(attempt, now)

    @property
    def was_asked(self) -> bool:
        """Has an endpoint had most of LOOKUP_S for the answer?"""
        sent_at = self._sent_at
        return sent_at is not None and self._now() - sent_at > LOOKUP_S - 2 * LATE_S

    def failure(self) -> LookupFailed:
        """What each endpoint has done until now."""
        reasons = list(self._reasons)
        for attempt in self._attempts:
            reason = NO_TURN if attempt.sent_at is None else NO_ANSWER
            reasons.append(f"{attempt.endpoint.name}: {reason}")
        return LookupFailed("; ".join(reasons))

    @property
    def over(self) -> bool:
        return self._answer is not None and not self._attempts

    @property
    def due(self) -> float:
        if self._answer is not None:
            return min((each.sent_at or 0.0) + LATE_S for each in self._attempts)
        due = self._ends
        if self._untried and self._hedge_at < due:
            due = self._hedge_at
        return due

    @property
    def _ends(self) -> float:
        line_ends = self._began + LINE_S
        return line_ends if self._sent_at is None else min(self._sent_at + LOOKUP_S, line_ends)

    def tick(self, now: float) -> None:
        if self._answer is not None:
            for attempt in list(self._attempts):
                if attempt.sent_at is None or now >= attempt.sent_at + LATE_S:
                    self._give_up(attempt, now)
        elif now >= self._ends:
            self._finish(self.failure(), now)
        elif self._untried and now >= self._hedge_at:
            self._ask_next(now)

    # -- what becomes of the queries -----------------------------------------------------------

    def sent(self, now: float) -> None:
        """A query is sent now. The clock starts with the first one."""
        if self._sent_at is None:
            self._sent_at = now
            if self._hedge_at == NEVER:
                self._hedge_at = now + HEDGE_S
            if self._started:
                self._clock.watch(self)

    def gave_way(self, attempt: _Attempt) -> None:
        """A query gave its place to another. While none is under way no time is counted."""
        if self._answer is not None:
            attempt.over = True
            self._attempts.remove(attempt)
        elif all(each.sent_at is None for each in self._attempts):
            self._sent_at = None

    def heard(self, attempt: _Attempt, told: DohResponse | TransportFailed) -> None:
        now = self._now()
        self._attempts.remove(attempt)
        attempt.over = True
        endpoint = attempt.endpoint
        sent_at = attempt.sent_at
        if isinstance(told, TransportFailed):
            assert sent_at is not None
            endpoint.after_silence(sent_at)
            reason = str(told) or type(told).__name__
        else:
            endpoint.after_answer(now)
            if self._answer is None:
                answer = self._read(told.octets)
                if not isinstance(answer, LookupFailed):
                    self._finish(answer, now)
                else:
                    reason = answer.reason
        endpoint.release(attempt)
        if self._answer is not None:
            return
        self._reasons.append(f"{endpoint.name}: {reason}")
        if self._untried:
            self._ask_next(now)
        elif not self._attempts:
            self._finish(self.failure(), now)

    def _ask_next(self, now: float) -> None:
        """Ask the next endpoint, and with one that is failing the one after it as well."""
        if self._hedge_at != NEVER:
            self._hedge_at = now + HEDGE_S
        while self._untried and self._answer is None:
            endpoint = self._untried.pop()
            attempt = _Attempt(self, endpoint)
            self._attempts.append(attempt)
            endpoint.submit(attempt, now)
            if not endpoint.failing:
                break

    def _finish(self, answer: Answer | LookupFailed, now: float) -> None:
        """Tell the answer; queries that are late are given up, others may still be answered."""
        self._answer = answer
        for attempt in list(self._attempts):
            if attempt.sent_at is None or now >= attempt.sent_at + LATE_S:
                self._give_up(attempt, now)
            else:
                attempt.endpoint.queue.set_unwanted(attempt)
        if self._attempts:
            self._clock.watch(self)
        done, self._done = self._done, _nothing  # which leaves no cycle to the collector
        done(answer)

    def partial(self) -> None:
        """There is no part of an answer."""

    def ignore(self) -> None:
        """The answer is of no use any more: as if another endpoint had given it."""
        if self._answer is None:
            self._done = _nothing
            self._finish(LookupFailed("not needed"), self._now())

    def _give_up(self, attempt: _Attempt, now: float) -> None:
        attempt.over = True
        self._attempts.remove(attempt)
        if attempt.sent_at is not None and now >= attempt.sent_at + LATE_S:
            attempt.endpoint.after_silence(attempt.sent_at)
        attempt.stop()
        attempt.endpoint.release(attempt)

    def _hurries(self) -> bool:
        return min(self.wanted_by.values()) < Priority.LIST


def _nothing(_: object) -> None:
    """Tell nobody."""


class _ByTask:
    """Puts questions to a transport that can only be awaited: each in a task of its own."""

    def __init__(self, transport: DohTransport, nursery: trio.Nursery) -> None:
        self._transport = transport
        self._nursery = nursery

    def begin(self, url: str, query: bytes, settle: Told) -> Callable[[], None]:
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
    ) -> None:
        self.clock = Clock()
        carrier = transport if isinstance(transport, Transport) else _ByTask(transport, nursery)
        self.endpoints = [_Endpoint(url, carrier.begin, self.clock) for url in urls]
        if isinstance(carrier, Transport):
            for endpoint in self.endpoints:
                carrier.listen_for_capacity(endpoint.url, endpoint.has_capacity)
        nursery.start_soon(self.clock.run)
