"""One resolver: its queue of queries, its connections, and whether it works.

Each event only marks the endpoint. In its next turn it plans once: the queue decides which
queries are sent and which give way, and those to send are assigned to connections that have
room, or to one that is opened for them. Connections are opened as queries come, and closed
when idle.

A name whose name servers hang and a resolver that hangs look alike: no answer
comes. So while a list waits, a canary query is sent that any working resolver answers
at once.
"""

import time
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

import trio
from msgspec import Struct

from ..background import contained, log_fault
from .connection import CLOSED, FAULT, ConnectionEnd
from .deadlines import NEVER, DeadlineClock, Timer
from .messages import ROOT_QUESTION, is_success
from .pacing import QueryPace, read_refusal
from .query_queue import (
    LATE_S,
    REVIEW_S,
    Priority,
    Query,
    QueryPlan,
    QueryQueue,
)
from .response import (
    DNS_MESSAGE,
    DohResponse,
    HttpResponse,
    NotProcessed,
    Outcome,
    QueryRefused,
    StreamRefused,
    TransportFailed,
)

LOOKUP_S = 1.5  # all endpoints together, from the first query on
LOOKUPS_MAX = 200  # at an endpoint; names not in its cache take 100 ms: so 2,000 a second
TRY_S = 2.0  # a list's query waits this long at an endpoint that does not work; 15 s in all tries
CHECK_S = 0.25  # between two checks whether it works
GAP_S = 0.6  # between prompt answers; in a longer gap the resolver may have hung
TRIES_MAX = 3  # a resolver that often ends its connections can fail one query twice
CONNECTIONS_MAX = 32  # of HTTP/1.1 to one endpoint; each carries one query at a time
EARLY_CLOSES_MAX = 8  # connections in a row that the endpoint closed soon, without an answer
EARLY_CLOSES_BACKOFF_S = 1.0  # then it is not connected to for this long
QUOTA_MAX = 1_000  # an endpoint that answers more on one connection may have all of them
QUEUED_MIN = 16  # queries at a time to an endpoint that takes few on one connection
RETIRE_S = 1.0  # between two connections that are replaced for their resets


class Carrier(Protocol):
    """What an endpoint needs of a connection; see connection.DohConnection."""

    @property
    def room(self) -> int: ...
    @property
    def capacity(self) -> int | None: ...
    @property
    def leaving(self) -> bool: ...
    @property
    def worn(self) -> bool: ...
    def send(self, query: Query, now: float) -> None: ...
    def cancel(self, query: Query) -> None: ...
    def retire(self) -> None: ...
    def fail(self) -> None: ...
    async def run(self) -> None: ...


# Makes a connection of this endpoint, which takes so many queries until it is open, and so many
# in all.
OpenCarrier = Callable[["Endpoint", int, float], Carrier]


class ResolverState(Struct, frozen=True):
    """A resolver, for the operator."""

    url: str
    is_failing: bool  # it does not answer
    is_paused: bool  # it refuses all queries for a while
    queries_wait: bool
    answered_s: float | None  # since its last answer; None: there was none


class ResolverHealth:
    """Whether a resolver works. `failing` is set from a silence until its next answer."""

    def __init__(self, clock: DeadlineClock) -> None:
        self._clock = clock
        self.failing = False
        self.pace = QueryPace()
        self.answered_at = float("-inf")
        self.prompt_at = float("-inf")  # the time of its last prompt answer
        self.certain_at = float("-inf")  # the time of its last answer that was not a failure
        self.working_s = 0.0  # total time in which it answered promptly
        self._lost_s = 0.0  # what the clock had lost by its last prompt answer

    def after_answer(self, sent_at: float, now: float, *, certain: bool) -> None:
        """The resolver answered; `certain` is false for a failure, such as SERVFAIL."""
        self.failing, self.answered_at = False, now
        self.pace.after_answer(sent_at, now)
        if certain:
            self.certain_at = now
        if now < sent_at + LATE_S:
            lost_s, self._lost_s = self._clock.lost_s - self._lost_s, self._clock.lost_s
            gap_s = now - self.prompt_at
            self.working_s += max(0.0, gap_s - lost_s) if gap_s < GAP_S else now - sent_at
            self.prompt_at = now

    def after_failure(self, sent_at: float, now: float, failure: TransportFailed) -> None:
        """No DNS message came: it is failing, limits us, or did not get the query."""
        if isinstance(failure, QueryRefused):
            self.pace.after_refusal(sent_at, now, failure.retry_after_s)
        elif not isinstance(failure, NotProcessed):
            self.after_silence(sent_at)

    def after_silence(self, since: float) -> None:
        self.failing = self.failing or self.answered_at < since


class _Limits:
    """What is known of the connections that the endpoint allows. Pure: times are passed."""

    def __init__(self, *, is_http1: bool) -> None:
        self.is_http1 = is_http1
        self._streams = CONNECTIONS_MAX  # queries that a connection carries at a time
        self._quota = float("inf")  # queries that one HTTP/2 connection takes in all
        self._early_closes = 0  # in a row
        self._early_close_at = float("-inf")
        self._replaced_at = float("-inf")

    @property
    def capacity(self) -> int:
        """How many queries may be under way."""
        if self.is_http1:
            return CONNECTIONS_MAX
        capacity = max(1, min(self._streams, LOOKUPS_MAX))
        if self._quota < capacity:  # one connection carries them, the next one is opened
            capacity = min(capacity, max(QUEUED_MIN, 2 * int(self._quota)))
        return capacity

    @property
    def new_connection(self) -> tuple[int, float]:
        """How many queries a new connection takes until it is open, and in all."""
        if self.is_http1:
            return 1, float("inf")
        return int(min(self.capacity, self._quota)), self._quota

    def may_connect(self, now: float) -> bool:
        """False for a while after many connections that the endpoint closed at once."""
        since_s = now - self._early_close_at
        return self._early_closes < EARLY_CLOSES_MAX or since_s >= EARLY_CLOSES_BACKOFF_S

    def may_replace(self, now: float) -> bool:
        """Whether a connection with many resets may be replaced now; if so, it is."""
        if now - self._replaced_at < RETIRE_S:
            return False
        self._replaced_at = now
        return True

    def learn(self, *, is_http1: bool) -> None:
        """A new connection speaks this version."""
        self.is_http1 = is_http1

    def learn_streams(self, streams: int) -> None:
        """A connection carries so many queries at a time."""
        self._streams = streams

    def learn_quota(self, taken: float) -> None:
        """The endpoint has taken only so many queries on one connection: send no more on others."""
        self._quota = taken if taken <= QUOTA_MAX else float("inf")

    def after_end(self, end: ConnectionEnd, now: float) -> None:
        """A connection has ended."""
        if end.answers:
            self._early_closes = 0
        elif end.closed_early:
            self._early_closes += 1
            self._early_close_at = now
        if end.taken and end.left:
            self.learn_quota(end.taken)
        elif end.taken and end.filled:
            self.learn_quota(max(self._quota, 2 * end.filled))  # it might have taken more


class Endpoint:
    """A resolver with its queue and connections."""

    def __init__(
        self,
        url: str,
        clock: DeadlineClock,
        nursery: trio.Nursery,
        open_carrier: OpenCarrier,
    ) -> None:
        self.url = url
        parts = urlsplit(url)
        self.name = parts.netloc
        self.health = ResolverHealth(clock)
        self._clock = clock
        self._nursery = nursery
        self._open_carrier = open_carrier
        self.queue = QueryQueue(self.health.pace)
        self._limits = _Limits(is_http1=parts.scheme == "http")
        self._connections: dict[Carrier, None] = {}
        self._carriers: dict[Query, Carrier] = {}  # of the queries under way
        self._canary = _Canary(self, clock)
        self._review_timer = Timer(clock, self._review)

    def state(self, now: float) -> ResolverState:
        """Its state for the operator."""
        health = self.health
        answered_s = now - health.answered_at if health.answered_at > float("-inf") else None
        is_paused = health.pace.paused(now)
        return ResolverState(self.url, health.failing, is_paused, self.queue.waiting, answered_s)

    # -- what look-ups call ---------------------------------------------------------------------

    def submit(self, query: Query) -> None:
        """Let the query wait for its turn; none is sent before the endpoint's next turn."""
        self.queue.submit(query)
        self.mark()

    def cancel(self, query: Query) -> None:
        """Free what the query holds. None of its methods is called any more."""
        self.queue.remove(query)
        if (carrier := self._carriers.pop(query, None)) is not None:
            carrier.cancel(query)
        self.mark()

    def watch_work(self, now: float) -> None:
        """A list's query was sent: check whether the endpoint works meanwhile."""
        self._canary.watch_until(now + TRY_S, now)

    def limited_until(self, now: float) -> float:
        """When its pace allows one query more; not after `now` if one may be sent now."""
        if not self.health.pace.limited:
            return now
        ready_at = self.health.pace.ready_at(now)
        return max(ready_at, now + REVIEW_S) if self.queue.waiting else ready_at

    def close(self) -> None:
        """Fail all queries."""
        for query in self.queue.all():
            self.fail(query, CLOSED)

    # -- its turn -------------------------------------------------------------------------------

    def mark(self) -> None:
        """Something has happened: plan in the next turn."""
        self._clock.mark(self)

    def plan(self, now: float) -> None:
        """Send what may be sent now."""
        try:
            if self.queue.waiting:
                self._carry_out(self.queue.plan, now)
        finally:
            if self.queue.waiting:
                self._review_timer.start(now + REVIEW_S)

    def _review(self, now: float) -> float:
        """Let late queries give way to those that wait."""
        if self.queue.waiting:
            self._carry_out(self.queue.review, now)
        return now + REVIEW_S if self.queue.waiting else NEVER

    def _free_slots(self, now: float) -> int:
        """How many queries can be sent now."""
        limits, connections = self._limits, self._connections
        for connection in connections:
            if connection.worn and limits.may_replace(now):
                connection.retire()
            if (streams := connection.capacity) is not None and not connection.leaving:
                limits.learn_streams(streams)
        room = sum(connection.room for connection in connections)
        room += self._connections_free * limits.new_connection[0]
        return min(room, limits.capacity - self.queue.under_way)

    @property
    def _connections_free(self) -> int:
        """How many connections may be opened."""
        if self._limits.is_http1:
            return CONNECTIONS_MAX - len(self._connections)
        return int(all(connection.leaving for connection in self._connections))

    def _carry_out(self, decide: Callable[[float, int], QueryPlan], now: float) -> None:
        plan = decide(now, self._free_slots(now))
        try:
            for query in plan.stop:
                self._carriers.pop(query).cancel(query)
            unsent = self._assign(plan.send, now)
            for query in plan.stop:
                query.gave_way()
            for query in plan.send:
                query.sent(now)
            self._hold(unsent)
        except Exception:
            log_fault(self._carry_out)
            for query in plan.send:
                if query not in self._carriers:  # no connection has it
                    self.fail(query, FAULT)

    def _assign(self, queries: list[Query], now: float) -> list[Query]:
        """Hand the queries to connections; return those that none has room for."""
        with_room = (connection for connection in list(self._connections) if connection.room)
        carrier = next(with_room, None)
        for place, query in enumerate(queries):
            if carrier is None or not carrier.room:
                carrier = next(with_room, None) or self._open(now)
            if carrier is None:
                return queries[place:]
            try:
                carrier.send(query, now)
            except BaseException:
                carrier.fail()
                raise
            self._carriers[query] = carrier
        return []

    def _open(self, now: float) -> Carrier | None:
        """Open a connection, if that is allowed."""
        if self._connections_free <= 0 or not self._limits.may_connect(now):
            return None
        connection = self._open_carrier(self, *self._limits.new_connection)
        self._connections[connection] = None
        self._nursery.start_soon(contained, connection.run)
        return connection

    def _hold(self, unsent: list[Query]) -> None:
        """Let queries wait that no connection takes; fail them if none may be opened."""
        for query in unsent:
            if self._connections_free > 0:
                self.fail(query, "the endpoint ends its connections")
            elif self.queue.holds(query):
                self.queue.put_back(query)
                query.gave_way()

    # -- what connections call ------------------------------------------------------------------

    def opened(self, *, is_http1: bool) -> None:
        """A connection is open, and speaks this version of HTTP."""
        self._limits.learn(is_http1=is_http1)
        self.mark()

    def receive(self, query: Query, outcome: Outcome, taken: int | None) -> None:
        """A query has this outcome; the endpoint has taken so many on its connection, if known."""
        if isinstance(outcome, StreamRefused):
            if taken:  # given back by an endpoint that has answered others
                self._limits.learn_quota(taken)
            self.send_again([query], "it takes no more questions", counted=not taken)
        elif isinstance(outcome, HttpResponse):
            self._settle(query, _read_response(outcome))
        else:
            self._settle(query, outcome)

    def fail(self, query: Query, why: str) -> None:
        self._settle(query, TransportFailed(why))

    def send_again(self, queries: list[Query], why: str, *, counted: bool) -> None:
        """Send again what a connection has not done, on another one and before those that wait.

        A query fails with `why` after TRIES_MAX tries; a try is not counted where the
        connection has answered others.
        """
        for query in queries:
            if counted:
                query.count_try()
            if query.tries >= TRIES_MAX:
                self.fail(query, why)
        left = [query for query in queries if self.queue.holds(query)]
        self._hold(self._assign(left, trio.current_time()))
        self.mark()

    def closed(self, connection: Carrier, end: ConnectionEnd) -> None:
        """A connection has ended: send again what it left, where that may help."""
        self._connections.pop(connection, None)
        self._limits.after_end(end, trio.current_time())
        is_alone = all(other.leaving for other in self._connections)
        if end.is_fault or (not end.opened and is_alone):
            for query in end.left:
                self.fail(query, end.why)
        else:
            self.send_again(end.left, end.why, counted=not end.taken)
        self.mark()

    def _settle(self, query: Query, result: DohResponse | TransportFailed) -> None:
        if not self.queue.remove(query):
            return  # its caller has cancelled it, perhaps a moment ago
        self._carriers.pop(query, None)
        try:
            query.received(result)
        except Exception:  # a bug of the caller's: the connection has other queries
            log_fault(query.received)


class _Canary(Query):
    """A query that any working resolver answers at once; sent while no other answer comes."""

    __slots__ = ("_clock", "_endpoint", "_submitted", "_timer", "_until")

    def __init__(self, endpoint: Endpoint, clock: DeadlineClock) -> None:
        super().__init__(".", ROOT_QUESTION, {"canary": Priority.PROBE})
        self._endpoint = endpoint
        self._clock = clock
        self._timer = Timer(clock, self._check)
        self._until = NEVER
        self._submitted = False  # under way, or in the queue

    def watch_until(self, until: float, now: float) -> None:
        self._until = until
        self._timer.start(now + CHECK_S)

    def _check(self, now: float) -> float:
        is_late = self.sent_at is not None and now >= self.sent_at + LOOKUP_S
        if self._submitted and (now >= self._until or is_late):
            self._endpoint.cancel(self)
            self._submitted = False
        if now >= self._until:
            return NEVER
        health = self._endpoint.health
        is_idle = not self._submitted and now >= health.prompt_at + CHECK_S
        if is_idle and not health.pace.limited:
            self._submitted = True
            self.sent_at, self.preempted, self.tries = None, False, 0
            self._endpoint.submit(self)
        return now + CHECK_S

    def received(self, result: DohResponse | TransportFailed) -> None:
        self._submitted = False
        now, sent_at = self._clock.now(), self.sent_at
        assert sent_at is not None
        if isinstance(result, DohResponse):
            self._endpoint.health.after_answer(sent_at, now, certain=is_success(result.octets))
        elif isinstance(result, QueryRefused):
            self._endpoint.health.after_failure(sent_at, now, result)


def _read_response(response: HttpResponse) -> DohResponse | TransportFailed:
    """The DNS message in this response, or why there is none."""
    if response.status != 200:
        return read_refusal(response, time.time())
    if response.kind != b"application/dns-message":
        kind = response.kind.decode("latin-1").partition(";")[0].strip().lower()
        if kind != DNS_MESSAGE:
            return TransportFailed(f"an answer of type {kind[:40] or 'unknown'}, not DNS")
    return DohResponse(response.body, response.date.decode("latin-1") or None)
