"""Runs a look-up over all endpoints: hedged, fair by account, and bounded in time.

Endpoints are queried in order. The next one is queried as well when the last is silent
for HEDGE_S, or at once when it fails. An endpoint that has failed is queried again after
the pauses of RETRY_AFTER_S; one that has refused the query because there were too many
(429) is not failing, and the query waits until the endpoint's pace allows it. The first
certain answer wins; the look-up fails only when all endpoints have failed each time. Each
endpoint has a queue (query_queue.py) that decides which query is sent. A cancelled query
is reset at once. A query that only lost to another endpoint may be answered until it is
late: the answer shows whether its endpoint works, and saves a reset.

The look-up of a list may take longer: it fails only when an endpoint that answers other
queries answers this one with a failure, or has had FAIR_S for it in which it answered
other queries promptly. When there is a general fault (the endpoint hangs, fails for all
names, its connections end) it waits, and is tried again a few times.

Time in which this process did not run does not count (see deadlines.py), nor do a list's tries
while that is most of the time. The caller of a request stops waiting all the same; if that was
before the look-up had FAIR_S, the failure is ours.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from .deadlines import NEVER, DeadlineClock
from .doh import Transport
from .endpoint import CHECK_S, LOOKUP_S, TRY_S, Endpoint
from .messages import LookupFailed, is_success
from .query_queue import LATE_S, Priority, Query
from .response import DohResponse, NotProcessed, TransportFailed

HEDGE_S = LATE_S
# A list's query may wait for its turn: longer than 15,000 hung names ahead of it take, and
# longer than the longest Retry-After.
QUEUE_S = 90.0
FAIR_S = LOOKUP_S / 2  # at a working endpoint: a fair chance to answer
RETRY_AFTER_S = (0.2, 0.6)  # after an endpoint's failures; a request has 1.5 s in all
FAILURES_MAX = 1 + len(RETRY_AFTER_S)  # of one endpoint in a look-up
AGAIN_AFTER_S = (1.0, 2.0, 4.0)  # a resolver that restarts is back in a few seconds

Answer = TypeVar("Answer")
Read = Callable[[bytes], Answer | LookupFailed]

NOT_SENT = "too many look-ups under way"
LIMITED = "it limits our queries"
NO_ANSWER = f"no answer within {LOOKUP_S:g} s"


class _LookupQuery(Query):
    """A look-up's query to one endpoint, until it is answered or cancelled."""

    __slots__ = ("_worked_before_s", "_worked_s", "endpoint", "lookup")

    def __init__(self, lookup: "Lookup[Answer]", endpoint: Endpoint) -> None:
        super().__init__(lookup.name, lookup.question, lookup.wanted_by)
        self.lookup = lookup
        self.endpoint = endpoint
        # The working time of the endpoint while it was under way, before it was preempted.
        self._worked_s = 0.0
        self._worked_before_s = 0.0  # the same total when it was sent

    def sent(self, now: float) -> None:
        self._worked_before_s = self.endpoint.health.working_s
        if self.lookup.deferred:
            self.endpoint.watch_work(now)
        self.lookup.sent(now)

    def gave_way(self) -> None:
        self._worked_s += self.endpoint.health.working_s - self._worked_before_s
        self.lookup.preempted(self)

    @property
    def had_fair_time(self) -> bool:
        """Whether the endpoint has worked for FAIR_S while this query was under way."""
        worked_s = self._worked_s
        if self.sent_at is not None:
            worked_s += self.endpoint.health.working_s - self._worked_before_s
        return worked_s >= FAIR_S

    def received(self, result: DohResponse | TransportFailed) -> None:
        self.lookup.received(self, result)


class _LookupTime:
    """The time of a look-up. A try ends so long after its first query was sent.

    No time counts while every query waits in a queue, nor while this process did not run.
    """

    __slots__ = ("_clock", "_lost_before", "_sent_at", "_sent_lost_s", "_try_s", "began")

    def __init__(self, clock: DeadlineClock) -> None:
        self._clock = clock
        self.began = clock.now()
        self._lost_before = clock.lost_s
        self._sent_at: float | None = None
        self._sent_lost_s = 0.0  # what the clock had lost at `_sent_at`
        self._try_s = LOOKUP_S  # from the first query of this try on

    @property
    def is_counted(self) -> bool:
        return self._sent_at is not None

    @property
    def ends(self) -> float:
        if self._sent_at is None:
            return self.queue_ends
        return self._sent_at + self._try_s + self._clock.lost_s - self._sent_lost_s

    @property
    def queue_ends(self) -> float:
        """When the look-up ends, whatever it waits for."""
        return self.began + QUEUE_S + self.lost_s

    @property
    def lost_s(self) -> float:
        """The time since the look-up began in which this process did not run."""
        return self._clock.lost_s - self._lost_before

    @property
    def was_enough(self) -> bool:
        """Whether an endpoint has had most of LOOKUP_S for the answer."""
        sent_at = self._sent_at
        return sent_at is not None and self._clock.now() - sent_at > LOOKUP_S - 2 * LATE_S

    @property
    def was_lost(self) -> bool:
        """Whether a request's time is over, while this process had less than FAIR_S for the answer."""
        passed_s = self._clock.now() - self.began
        return passed_s >= LOOKUP_S and passed_s - self.lost_s < FAIR_S

    def start(self, now: float) -> None:
        """The first query is sent."""
        self._sent_at, self._sent_lost_s = now, self._clock.lost_s

    def stop(self) -> None:
        """No query is under way: the time begins anew with the next one."""
        self._sent_at = None
        self._try_s = LOOKUP_S

    def extend(self) -> bool:
        """Let the try last longer; False if it has lasted long enough."""
        if self._try_s >= TRY_S:
            return False
        self._try_s += CHECK_S
        return True


class _EndpointOrder:
    """Which endpoint a look-up queries next, and when: hedged, and again after a failure."""

    __slots__ = ("_endpoints", "_failed", "_hedge_at", "_retries", "_untried")

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = endpoints
        self._untried = endpoints[::-1]
        self._failed: Sequence[Endpoint] = ()  # once for each failure
        self._retries: Sequence[tuple[float, Endpoint]] = ()  # when to query which again
        self._hedge_at = NEVER

    @property
    def due(self) -> float:
        """When to query one, if none is answered before."""
        hedge_at = self._hedge_at if self._untried else NEVER
        return min([hedge_at, *(at for at, _ in self._retries)])

    def begin_hedging(self, now: float) -> bool:
        """Hedge from now on; False if it does so already."""
        if self._hedge_at != NEVER:
            return False
        self._hedge_at = now + HEDGE_S
        return True

    def restart(self) -> None:
        """Another try: all endpoints are to be queried, and none is hedged."""
        self._untried = self._endpoints[::-1]
        self._retries = ()
        self._hedge_at = NEVER

    @property
    def has_untried(self) -> bool:
        return bool(self._untried)

    @property
    def has_retries(self) -> bool:
        return bool(self._retries)

    def is_hedge_due(self, now: float) -> bool:
        return bool(self._untried) and now >= self._hedge_at

    def put_off_hedge(self, now: float) -> None:
        """An endpoint is queried now: hedge it, if the look-up hedges."""
        if self._hedge_at != NEVER:
            self._hedge_at = now + HEDGE_S

    def next(self, now: float) -> Endpoint | None:
        """The next that was not queried; if it limits us, the one that may be queried soonest."""
        if not self._untried:
            return None
        *untried, endpoint = self._untried
        if endpoint.health.pace.limited:
            endpoint = min(reversed(self._untried), key=lambda each: each.limited_until(now))
            untried = [each for each in self._untried if each is not endpoint]
            if endpoint.limited_until(now) > now:
                self._hedge_at = now + HEDGE_S
        self._untried = untried
        return endpoint

    def retry_later(self, endpoint: Endpoint, now: float, *, refused: bool) -> None:
        """Plan the next query to an endpoint that has failed or refused; some failures are enough."""
        place = 0
        if not refused:  # else the endpoint's pace, or its capacity, limits how often it is sent
            place = self._failed.count(endpoint)
            self._failed = (*self._failed, endpoint)
        if place + 1 < FAILURES_MAX:
            self._retries = (*self._retries, (now + RETRY_AFTER_S[place], endpoint))

    def pop_retries(self, now: float) -> list[Endpoint]:
        """The endpoints whose pause is over."""
        if not self._retries:
            return []
        due = [endpoint for at, endpoint in self._retries if at <= now]
        self._retries = [each for each in self._retries if each[0] > now]
        return due


class Lookup(Generic[Answer]):
    """One DNS question to all endpoints. Nothing here blocks; the clock calls `tick`.

    `done` is called once, with the answer or LookupFailed, unless the look-up is
    cancelled before. `wanted_by` is shared with the caller, which calls `claim` for each
    account that it adds and `withdraw` for each that it removes.
    """

    __slots__ = (
        *("_again_at", "_answer", "_clock", "_done", "_judged", "_order", "_queries", "_read"),
        *("_reasons", "_time", "_tries", "deferred", "name", "question", "wanted_by"),
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
        self._clock = resolvers.clock
        self._time = _LookupTime(resolvers.clock)
        self._order = _EndpointOrder(resolvers.endpoints)
        self._queries: list[_LookupQuery] = []
        self._reasons: dict[str, str] = {}  # name of an endpoint -> its last failure
        self._answer: Answer | LookupFailed | None = None
        self.deferred = not self._is_urgent()  # a list waits: a general fault does not fail it
        if not self.deferred:
            self._order.begin_hedging(self._time.began)
        # An endpoint has had its fair time, or has answered this query alone with a failure.
        self._judged = False
        self._tries = 0  # those that ended with a general fault
        self._again_at = NEVER  # the time of the next try; no query is under way before

    def start(self) -> None:
        """Submit the first query."""
        self._query_next(self._time.began)
        self._clock.watch(self)

    def claim(self, account: str, priority: Priority) -> None:
        """Another account wants the answer."""
        now = self._clock.now()
        if priority < Priority.LIST and self._order.begin_hedging(now):
            self._clock.watch(self)
        for query in list(self._queries):
            query.endpoint.queue.claim(query, account, priority)
        if self._again_at != NEVER and priority < Priority.LIST:
            self._retry(now)
            self._clock.watch(self)

    def persist(self) -> None:
        """A list wants the answer as well: from now on a general fault does not fail it."""
        self.deferred = True

    def withdraw(self, account: str) -> None:
        """An account no longer wants the answer."""
        for query in self._queries:
            query.endpoint.queue.withdraw(query, account)

    def cancel(self) -> None:
        """Cancel all queries now; `done` will not be called."""
        if self._answer is None:
            self._answer = LookupFailed("no caller waits for the answer")
        now = self._clock.now()
        for query in list(self._queries):
            self._cancel(query, now)

    @property
    def was_sent(self) -> bool:
        """Whether an endpoint has had most of LOOKUP_S for the answer."""
        return self._time.was_enough

    def failure(self) -> LookupFailed:
        """The failure if the look-up ended now: what each endpoint has done until now."""
        reasons = dict(self._reasons)
        for query in self._queries:
            reason = NO_ANSWER
            if query.sent_at is None:
                reason = LIMITED if query.endpoint.health.pace.limited else NOT_SENT
            reasons.setdefault(query.endpoint.name, reason)
        hasty = not self._had_fair_time and self._tries < len(AGAIN_AFTER_S)
        why = "; ".join(f"{name}: {why}" for name, why in reasons.items())
        return LookupFailed(why, hasty, by_lag=self._time.was_lost and not self._judged)

    @property
    def _had_fair_time(self) -> bool:
        return self._judged or any(query.had_fair_time for query in self._queries)

    @property
    def over(self) -> bool:
        return self._answer is not None and not self._queries

    @property
    def due(self) -> float:
        if self._answer is not None:
            return min((each.sent_at or 0.0) + LATE_S for each in self._queries)
        if self._again_at != NEVER:
            return self._again_at
        return min(self._time.ends, self._order.due)

    def tick(self, now: float) -> None:
        if self._answer is not None:
            for query in list(self._queries):
                if query.sent_at is None or now >= query.sent_at + LATE_S:
                    self._cancel(query, now)
        elif self._again_at != NEVER:
            if now >= self._again_at:
                self._retry(now)
        elif now >= self._time.ends:
            self._end_try(now)
        else:
            if self._order.is_hedge_due(now):
                self._query_next(now)
            for endpoint in self._order.pop_retries(now):
                if self._answer is None:
                    self._query(endpoint)

    # -- events of the queries ------------------------------------------------------------------

    def sent(self, now: float) -> None:
        """A query is sent now. The time limit starts with the first one."""
        if not self._time.is_counted:
            self._time.start(now)
            self._order.begin_hedging(now)
            self._clock.watch(self)

    def preempted(self, query: _LookupQuery) -> None:
        """A query gave way to another. No time counts while none is under way."""
        if self._answer is not None:
            self._queries.remove(query)
        else:
            self._stop_time()

    def _stop_time(self) -> None:
        """No time counts while every query waits in a queue."""
        if all(each.sent_at is None for each in self._queries):
            self._time.stop()

    def received(self, query: _LookupQuery, result: DohResponse | TransportFailed) -> None:
        now = self._clock.now()
        self._queries.remove(query)
        endpoint, health = query.endpoint, query.endpoint.health
        sent_at = now if query.sent_at is None else query.sent_at  # None: the transport closes
        if isinstance(result, TransportFailed):
            health.after_failure(sent_at, now, result)
            self._judged = self._judged or query.had_fair_time
            reason = str(result) or type(result).__name__
        elif self._answer is not None:
            health.after_answer(sent_at, now, certain=is_success(result.octets))
        else:
            answer = self._read(result.octets)
            if not isinstance(answer, LookupFailed):
                health.after_answer(sent_at, now, certain=True)
                self._finish(answer, now)
            else:
                health.after_answer(sent_at, now, certain=False)
                self._judged = self._judged or health.certain_at >= self._time.began
                reason = answer.reason
        if self._answer is not None:
            return
        self._reasons[endpoint.name] = reason
        refused = isinstance(result, NotProcessed)
        self._order.retry_later(endpoint, now, refused=refused)
        if refused or self._queries:
            self._stop_time()
        if self._order.has_untried:
            self._query_next(now)
        elif not self._queries and not self._order.has_retries:
            self._fail(now)
        self._clock.watch(self)

    def _end_try(self, now: float) -> None:
        """The time is up. A list waits longer if no endpoint has worked meanwhile."""
        must_wait = self.deferred and self._time.is_counted and not self._had_fair_time
        if not (must_wait and self._time.extend()):
            self._fail(now)

    def _fail(self, now: float) -> None:
        """This try has failed: the end, or another try for a list after a general fault."""
        failure = self.failure()
        if not self.deferred or not failure.hasty or now >= self._time.queue_ends:
            self._finish(failure, now)
            return
        for query in list(self._queries):
            self._cancel(query, now)
        self._again_at = now + AGAIN_AFTER_S[self._tries]
        # On a machine as busy as this, a handshake fails as well, and a resolver beside us.
        if 2 * self._time.lost_s < now - self._time.began:
            self._tries += 1

    def _retry(self, now: float) -> None:
        self._again_at = NEVER
        self._time.stop()
        self._order.restart()
        if self._is_urgent():
            self._order.begin_hedging(now)
        self._query_next(now)

    def _query_next(self, now: float) -> None:
        """Query the next endpoint; if it is failing, the one after it as well."""
        self._order.put_off_hedge(now)
        while self._answer is None and (endpoint := self._order.next(now)) is not None:
            self._query(endpoint)
            if not endpoint.health.failing:
                break

    def _query(self, endpoint: Endpoint) -> None:
        query = _LookupQuery(self, endpoint)
        self._queries.append(query)
        endpoint.submit(query)

    def _finish(self, answer: Answer | LookupFailed, now: float) -> None:
        """Deliver the answer. Late queries are cancelled; others may still be answered."""
        self._answer = answer
        for query in list(self._queries):
            if query.sent_at is None or now >= query.sent_at + LATE_S:
                self._cancel(query, now)
            else:
                query.endpoint.queue.set_unwanted(query)
        if self._queries:
            self._clock.watch(self)
        done, self._done = self._done, _nothing  # breaks a reference cycle
        done(answer)

    def partial(self) -> None:
        """Return None: one question has no partial answer."""

    def ignore(self) -> None:
        """The answer is not needed any more: end as if another endpoint had given it."""
        if self._answer is None:
            self._done = _nothing
            self._finish(LookupFailed("not needed"), self._clock.now())

    def _cancel(self, query: _LookupQuery, now: float) -> None:
        self._queries.remove(query)
        if query.sent_at is not None and now >= query.sent_at + LATE_S:
            query.endpoint.health.after_silence(query.sent_at)
        query.endpoint.cancel(query)

    def _is_urgent(self) -> bool:
        return min(self.wanted_by.values()) < Priority.LIST


def _nothing(_: object) -> None:
    """Replaces a callback that must not be called again."""


class Resolvers:
    """The endpoints that are queried, in this order, and the clock of the look-ups."""

    def __init__(self, urls: tuple[str, ...], transport: Transport) -> None:
        self.clock = transport.clock
        self.endpoints = [transport.endpoint(url) for url in urls]
