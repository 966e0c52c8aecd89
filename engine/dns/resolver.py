"""A look-up over all endpoints: hedged, fair by account, and bounded in time.

Endpoints are asked in order. The next one is asked as well when the last is silent for
HEDGE_S, or at once when it has failed. The first certain answer wins; only when all
have failed has the look-up failed. Each endpoint has a queue (mailprobe.engine.dns.query_queue) that
says which query may be sent. A query that nobody wants any more is reset at once; one
that has only lost to another may still be answered until it is late, for what it shows
of its endpoint and to spare the endpoint a reset.

A list is in no hurry: its look-up fails only when an endpoint has answered so, or has
had FAIR_S for it in which it answered others promptly. In general trouble (the endpoint
stands still, its connections end, we lag) it waits, and is asked again a few times.
"""

from collections.abc import Callable
from typing import Generic, TypeVar
from urllib.parse import urlsplit

import trio

from mailprobe.engine.background import contained, log_fault, supervised
from mailprobe.engine.dns.deadlines import NEVER, DeadlineClock
from mailprobe.engine.dns.doh import DohResponse, DohTransport, Transport, TransportFailed
from mailprobe.engine.dns.messages import ROOT_QUESTION, LookupFailed
from mailprobe.engine.dns.query_queue import LATE_S, REVIEW_S, Priority, Query, QueryQueue

HEDGE_S = LATE_S
LOOKUP_S = 1.5  # all endpoints together, from the first query on
QUEUE_S = 60.0  # a list's query may wait for its turn; 15,000 hung names ahead of it take so long
LOOKUPS_MAX = 200  # at an endpoint; names not in its cache take 100 ms: so 2,000 a second
FAIR_S = LOOKUP_S / 2  # an endpoint at work has had a fair chance to answer
TRY_S = 2.0  # a list's query waits so long at an endpoint that does not work; 15 s in all tries
CHECK_S = 0.25  # between two looks at whether it does
GAP_S = 0.6  # between prompt answers; a longer one may be a standstill
AGAIN_AFTER_S = (1.0, 2.0, 4.0)  # a resolver that restarts is back in a few seconds

Answer = TypeVar("Answer")
Read = Callable[[bytes], Answer | LookupFailed]
OnAnswer = Callable[[DohResponse | TransportFailed], None]
# A URL, a question, and whom to tell: returns what gives the question up.
Begin = Callable[[str, bytes, OnAnswer], Callable[[], None]]

NOT_SENT = "too many look-ups under way"
NO_ANSWER = f"no answer within {LOOKUP_S:g} s"


class _ResolverEndpoint:
    """A resolver: its queue, and whether it has been silent since it last spoke."""

    def __init__(self, url: str, begin: Begin, clock: DeadlineClock) -> None:
        self.url = url
        self.name = urlsplit(url).netloc
        self.begin = begin
        self.failing = False
        self.queue = QueryQueue(LOOKUPS_MAX)
        self._answered_at = float("-inf")
        self._clock = clock
        self._review_at = NEVER
        self.working_s = 0.0  # for so long it has answered promptly, in all
        self.prompt_at = float("-inf")  # its last prompt answer
        self._canary = _Canary(self, clock)

    def after_answer(self, sent_at: float, now: float) -> None:
        self.failing, self._answered_at = False, now
        if now < sent_at + LATE_S:
            gap_s = now - self.prompt_at
            self.working_s += gap_s if gap_s < GAP_S else now - sent_at
            self.prompt_at = now

    def watch_work(self, now: float) -> None:
        """A list's query was sent: find out whether the endpoint works meanwhile."""
        self._canary.watch_until(now + TRY_S, now)

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


class _Canary(Query):
    """A question that any resolver at work answers at once, asked while it says nothing else.

    Names that hang and an endpoint that stands still look alike without it.
    """

    __slots__ = ("_cancel", "_clock", "_due", "_endpoint", "_under_way", "_until")

    def __init__(self, endpoint: _ResolverEndpoint, clock: DeadlineClock) -> None:
        super().__init__(".", {"canary": Priority.PROBE})
        self._endpoint = endpoint
        self._clock = clock
        self._due = NEVER
        self._until = NEVER
        self._under_way = False  # or waits for its turn
        self._cancel: Callable[[], None] | None = None

    def watch_until(self, until: float, now: float) -> None:
        self._until = until
        if self._due == NEVER:
            self._due = now + CHECK_S
            self._clock.watch(self)

    @property
    def over(self) -> bool:
        return self._due == NEVER

    @property
    def due(self) -> float:
        return self._due

    def tick(self, now: float) -> None:
        if now >= self._until:
            self._due = NEVER
            self._end()
            return
        self._due = now + CHECK_S
        if self.sent_at is not None and now >= self.sent_at + LOOKUP_S:
            self._end()
        if not self._under_way and now >= self._endpoint.prompt_at + CHECK_S:
            self._under_way = True
            self.sent_at, self.preempted = None, False
            self._endpoint.submit(self, now)

    def send(self, now: float) -> None:
        endpoint = self._endpoint
        give_up = endpoint.begin(endpoint.url, ROOT_QUESTION, self._settle)
        self._cancel = give_up if self._under_way else None

    def preempt(self) -> None:
        if (give_up := self._cancel) is not None:
            self._cancel = None
            give_up()

    def _settle(self, reported: DohResponse | TransportFailed) -> None:
        if self._under_way and (sent_at := self.sent_at) is not None:
            self._cancel = None
            if isinstance(reported, DohResponse):
                self._endpoint.after_answer(sent_at, self._clock.now())
            self._end()

    def _end(self) -> None:
        if self._under_way:
            self._under_way = False
            self.preempt()
            self._endpoint.release(self)
            self.sent_at = None


class _Attempt(Query):
    """A look-up's query to one endpoint, until it is answered or given up."""

    __slots__ = ("_cancel", "_worked_before_s", "_worked_s", "endpoint", "lookup", "over")

    def __init__(self, look_up: "Lookup[Answer]", endpoint: _ResolverEndpoint) -> None:
        super().__init__(look_up.name, look_up.deadline)
        self.lookup = look_up
        self.endpoint = endpoint
        self.over = False
        self._worked_s = 0.0  # while it was under way before it gave way
        self._worked_before_s = 0.0  # before it was sent
        self._cancel: Callable[[], None] | None = None

    def send(self, now: float) -> None:
        self._worked_before_s = self.endpoint.working_s
        if self.lookup.deferred:
            self.endpoint.watch_work(now)
        self.lookup.sent(now)
        give_up = self.endpoint.begin(self.endpoint.url, self.lookup.question, self._settle)
        if not self.over:  # else it was answered at once
            self._cancel = give_up

    def preempt(self) -> None:
        self._worked_s += self.endpoint.working_s - self._worked_before_s
        self.stop()
        self.lookup.preempted(self)

    @property
    def had_fair_time(self) -> bool:
        """Has the endpoint worked for FAIR_S while it was asked this?"""
        worked_s = self._worked_s
        if self.sent_at is not None:
            worked_s += self.endpoint.working_s - self._worked_before_s
        return worked_s >= FAIR_S

    def stop(self) -> None:
        """Tell the endpoint that its answer is not wanted."""
        if (give_up := self._cancel) is not None:
            self._cancel = None
            give_up()

    def _settle(self, reported: DohResponse | TransportFailed) -> None:
        if not self.over and self.sent_at is not None:
            self._cancel = None
            self.lookup.received(self, reported)


class Lookup(Generic[Answer]):
    """One question to all endpoints. Nothing here waits; the clock calls `tick`.

    `done` is called once, with the answer or LookupFailed, unless the look-up is
    cancelled before. `wanted_by` is shared with the caller, who announces each account
    that it adds with `claim` and each that it removes with `renounce`.
    """

    __slots__ = (
        *("_again_at", "_answer", "_attempts", "_began", "_clock", "_done", "_endpoints"),
        *("_hedge_at", "_judged", "_now", "_read", "_reasons", "_sent_at", "_started"),
        *("_tries", "_try_s", "_untried", "name", "deferred", "question", "deadline"),
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
        self.deadline = wanted_by
        self._read = read
        self._done = done
        self._endpoints = resolvers.endpoints
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
        self.deferred = not self._hurries()  # a list wants it: general trouble does not fail it
        self._judged = False  # an endpoint has had its fair time for the name, or has answered
        self._tries = 0  # that general trouble ended
        self._try_s = LOOKUP_S  # from the first query of this try on
        self._again_at = NEVER  # asks again then; nothing is under way before

    def start(self) -> None:
        """Ask. It may be done at once."""
        self._query_next(self._began)
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
        if self._again_at != NEVER and priority < Priority.LIST:
            self._retry(now)
            self._clock.watch(self)

    def persist(self) -> None:
        """A list wants the answer as well: from now on general trouble does not fail it."""
        self.deferred = True

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
            self._cancel(attempt, now)

    @property
    def was_sent(self) -> bool:
        """Has an endpoint had most of LOOKUP_S for the answer?"""
        sent_at = self._sent_at
        return sent_at is not None and self._now() - sent_at > LOOKUP_S - 2 * LATE_S

    def failure(self) -> LookupFailed:
        """What each endpoint has done until now."""
        reasons = list(self._reasons)
        for attempt in self._attempts:
            reason = NOT_SENT if attempt.sent_at is None else NO_ANSWER
            reasons.append(f"{attempt.endpoint.name}: {reason}")
        hasty = not self._had_fair_time and self._tries < len(AGAIN_AFTER_S)
        return LookupFailed("; ".join(reasons), hasty)

    @property
    def _had_fair_time(self) -> bool:
        return self._judged or any(attempt.had_fair_time for attempt in self._attempts)

    @property
    def over(self) -> bool:
        return self._answer is not None and not self._attempts

    @property
    def due(self) -> float:
        if self._answer is not None:
            return min((each.sent_at or 0.0) + LATE_S for each in self._attempts)
        if self._again_at != NEVER:
            return self._again_at
        due = self._ends
        if self._untried and self._hedge_at < due:
            due = self._hedge_at
        return due

    @property
    def _ends(self) -> float:
        return self._began + QUEUE_S if self._sent_at is None else self._sent_at + self._try_s

    def tick(self, now: float) -> None:
        if self._answer is not None:
            for attempt in list(self._attempts):
                if attempt.sent_at is None or now >= attempt.sent_at + LATE_S:
                    self._cancel(attempt, now)
        elif self._again_at != NEVER:
            if now >= self._again_at:
                self._retry(now)
        elif now >= self._ends:
            self._end_try(now)
        elif self._untried and now >= self._hedge_at:
            self._query_next(now)

    # -- what becomes of the queries -----------------------------------------------------------

    def sent(self, now: float) -> None:
        """A query is sent now. The clock starts with the first one."""
        if self._sent_at is None:
            self._sent_at = now
            if self._hedge_at == NEVER:
                self._hedge_at = now + HEDGE_S
            if self._started:
                self._clock.watch(self)

    def preempted(self, attempt: _Attempt) -> None:
        """A query gave its place to another. While none is under way no time is counted."""
        if self._answer is not None:
            attempt.over = True
            self._attempts.remove(attempt)
        elif all(each.sent_at is None for each in self._attempts):
            self._sent_at = None
            self._try_s = LOOKUP_S

    def received(self, attempt: _Attempt, reported: DohResponse | TransportFailed) -> None:
        now = self._now()
        self._attempts.remove(attempt)
        attempt.over = True
        endpoint = attempt.endpoint
        sent_at = attempt.sent_at
        assert sent_at is not None
        if isinstance(reported, TransportFailed):
            endpoint.after_silence(sent_at)
            self._judged = self._judged or attempt.had_fair_time
            reason = str(reported) or type(reported).__name__
        else:
            endpoint.after_answer(sent_at, now)
            if self._answer is None:
                answer = self._read(reported.octets)
                if not isinstance(answer, LookupFailed):
                    self._finish(answer, now)
                else:
                    reason = answer.reason
                    self._judged = True
        endpoint.release(attempt)
        if self._answer is not None:
            return
        self._reasons.append(f"{endpoint.name}: {reason}")
        if self._untried:
            self._query_next(now)
        elif not self._attempts:
            self._fail(now)
            self._clock.watch(self)

    def _end_try(self, now: float) -> None:
        """The time is up; where the endpoints did not work meanwhile, a list waits for them."""
        must_wait = self.deferred and self._sent_at is not None and not self._had_fair_time
        if must_wait and self._try_s < TRY_S:
            self._try_s += CHECK_S
        else:
            self._fail(now)

    def _fail(self, now: float) -> None:
        """Nothing came of this try: the end, or for a list in general trouble another try."""
        failure = self.failure()
        if not self.deferred or not failure.hasty or now >= self._began + QUEUE_S:
            self._finish(failure, now)
            return
        self._reasons = [failure.reason]
        for attempt in list(self._attempts):
            self._cancel(attempt, now)
        self._again_at = now + AGAIN_AFTER_S[self._tries]
        self._tries += 1

    def _retry(self, now: float) -> None:
        self._again_at = NEVER
        self._reasons = []
        self._untried = self._endpoints[::-1]
        self._sent_at = None
        self._try_s = LOOKUP_S
        self._hedge_at = now + HEDGE_S if self._hurries() else NEVER
        self._query_next(now)

    def _query_next(self, now: float) -> None:
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
                self._cancel(attempt, now)
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

    def _cancel(self, attempt: _Attempt, now: float) -> None:
        attempt.over = True
        self._attempts.remove(attempt)
        if attempt.sent_at is not None and now >= attempt.sent_at + LATE_S:
            attempt.endpoint.after_silence(attempt.sent_at)
        attempt.stop()
        attempt.endpoint.release(attempt)

    def _hurries(self) -> bool:
        return min(self.deadline.values()) < Priority.LIST


def _nothing(_: object) -> None:
    """Tell nobody."""


class _ByTask:
    """Puts questions to a transport that can only be awaited: each in a task of its own."""

    def __init__(self, transport: DohTransport, nursery: trio.Nursery) -> None:
        self._transport = transport
        self._nursery = nursery

    def begin(self, url: str, query: bytes, settle: OnAnswer) -> Callable[[], None]:
        scope = trio.CancelScope()

        async def carry() -> None:
            reported: DohResponse | TransportFailed
            with scope:
                try:
                    reported = DohResponse(await self._transport.exchange(url, query), None)
                except OSError as error:  # TransportFailed is one
                    reported = TransportFailed(str(error) or type(error).__name__)
                except Exception:
                    log_fault(carry)
                    reported = TransportFailed("the transport failed by a fault of ours")
                settle(reported)

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
        self.clock = DeadlineClock()
        carrier = transport if isinstance(transport, Transport) else _ByTask(transport, nursery)
        self.endpoints = [_ResolverEndpoint(url, carrier.begin, self.clock) for url in urls]
        if isinstance(carrier, Transport):
            for endpoint in self.endpoints:
                carrier.subscribe_capacity(endpoint.url, endpoint.has_capacity)
        nursery.start_soon(supervised, self.clock.run)
