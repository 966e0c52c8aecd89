"""One resolver as look-ups see it: its queue, and whether it works.

A name whose name servers hang and a resolver that hangs look alike: no answer
comes. So while a list waits, a canary query is sent that any working resolver answers
at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import trio

from mailprobe.engine.dns.deadlines import NEVER, DeadlineClock
from mailprobe.engine.dns.messages import ROOT_QUESTION, is_success
from mailprobe.engine.dns.pacing import QueryPace
from mailprobe.engine.dns.query_queue import LATE_S, REVIEW_S, Priority, Query, QueryQueue
from mailprobe.engine.dns.response import DohResponse, NotProcessed, QueryRefused, TransportFailed

LOOKUP_S = 1.5  # all endpoints together, from the first query on
LOOKUPS_MAX = 200  # at an endpoint; names not in its cache take 100 ms: so 2,000 a second
TRY_S = 2.0  # a list's query waits this long at an endpoint that does not work; 15 s in all tries
CHECK_S = 0.25  # between two checks whether it works
GAP_S = 0.6  # between prompt answers; in a longer gap the resolver may have hung

OnAnswer = Callable[[DohResponse | TransportFailed], None]
# Sends a query to a URL, and calls the callback with the result; returns a function that cancels it.
Begin = Callable[[str, bytes, OnAnswer], Callable[[], None]]


@dataclass(frozen=True, slots=True)
class ResolverState:
    """A resolver, for the operator."""

    url: str
    is_failing: bool  # it does not answer
    is_paused: bool  # it refuses all queries for a while
    queries_wait: bool
    answered_s: float | None  # since its last answer; None: there was none


class ResolverEndpoint:
    """A resolver with its queue. `failing` is set from a silence until its next answer."""

    def __init__(self, url: str, begin: Begin, clock: DeadlineClock) -> None:
        self.url = url
        self.name = urlsplit(url).netloc
        self.begin = begin
        self.failing = False
        self.pace = QueryPace()
        self.queue = QueryQueue(LOOKUPS_MAX, self.pace)
        self._answered_at = float("-inf")
        self._clock = clock
        self._review_at = NEVER
        self.working_s = 0.0  # total time in which it answered promptly
        self.prompt_at = float("-inf")  # the time of its last prompt answer
        self._lost_s = 0.0  # what the clock had lost by then
        self.certain_at = float("-inf")  # the time of its last answer that was no failure
        self._canary = _Canary(self, clock)

    def state(self, now: float) -> ResolverState:
        """What the operator sees of it."""
        answered_s = now - self._answered_at if self._answered_at > float("-inf") else None
        is_paused = self.pace.paused(now)
        return ResolverState(self.url, self.failing, is_paused, self.queue.waiting, answered_s)

    def after_answer(self, sent_at: float, now: float, *, certain: bool) -> None:
        """It answered; `certain` is false for a failure, such as SERVFAIL."""
        self.failing, self._answered_at = False, now
        self.pace.after_answer(sent_at, now)
        if certain:
            self.certain_at = now
        if now < sent_at + LATE_S:
            lost_s, self._lost_s = self._clock.lost_s - self._lost_s, self._clock.lost_s
            gap_s = now - self.prompt_at
            self.working_s += max(0.0, gap_s - lost_s) if gap_s < GAP_S else now - sent_at
            self.prompt_at = now

    def watch_work(self, now: float) -> None:
        """A list's query was sent: check whether the endpoint works meanwhile."""
        self._canary.watch_until(now + TRY_S, now)

    def after_failure(self, sent_at: float, now: float, failure: TransportFailed) -> None:
        """It sent no DNS message: it is failing, or it limits us, or has not had the query."""
        if isinstance(failure, QueryRefused):
            self.pace.after_refusal(sent_at, now, failure.retry_after_s)
        elif not isinstance(failure, NotProcessed):
            self.after_silence(sent_at)

    def after_silence(self, since: float) -> None:
        self.failing = self.failing or self._answered_at < since

    def limited_until(self, now: float) -> float:
        """When its pace allows one query more; not after `now` if one may be sent now."""
        if not self.pace.limited:
            return now
        ready_at = self.pace.ready_at(now)
        return max(ready_at, now + REVIEW_S) if self.queue.waiting else ready_at

    def submit(self, query: Query, now: float) -> None:
        self.queue.submit(query, now)
        self._watch(now)

    def release(self, query: Query) -> None:
        """A query is answered or cancelled: send others, but none whose time is over now."""
        self.queue.release(query)
        if self.queue.waiting:
            self._clock.afterwards(self._advance)

    def set_capacity(self, capacity: int) -> None:
        """Set how many queries may be under way at this endpoint."""
        self.queue.capacity = max(1, min(capacity, LOOKUPS_MAX))
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
    """A query that any working resolver answers at once; sent while no other answer comes."""

    __slots__ = ("_cancel", "_clock", "_due", "_endpoint", "_under_way", "_until")

    def __init__(self, endpoint: ResolverEndpoint, clock: DeadlineClock) -> None:
        super().__init__(".", {"canary": Priority.PROBE})
        self._endpoint = endpoint
        self._clock = clock
        self._due = NEVER
        self._until = NEVER
        self._under_way = False  # or in the queue
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
        endpoint = self._endpoint
        idle = not self._under_way and now >= endpoint.prompt_at + CHECK_S
        if idle and not endpoint.pace.limited:
            self._under_way = True
            self.sent_at, self.preempted = None, False
            self._endpoint.submit(self, now)

    def send(self, now: float) -> None:
        endpoint = self._endpoint
        cancel = endpoint.begin(endpoint.url, ROOT_QUESTION, self._settle)
        self._cancel = cancel if self._under_way else None

    def preempt(self) -> None:
        if (cancel := self._cancel) is not None:
            self._cancel = None
            cancel()

    def _settle(self, result: DohResponse | TransportFailed) -> None:
        if self._under_way and (sent_at := self.sent_at) is not None:
            self._cancel = None
            now = self._clock.now()
            if isinstance(result, DohResponse):
                certain = is_success(result.octets)
                self._endpoint.after_answer(sent_at, now, certain=certain)
            elif isinstance(result, QueryRefused):
                self._endpoint.after_failure(sent_at, now, result)
            self._end()

    def _end(self) -> None:
        if self._under_way:
            self._under_way = False
            self.preempt()
            self._endpoint.release(self)
            self.sent_at = None
