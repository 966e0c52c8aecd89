"""Small requests: POST /v1/email/verify/stream, with at most 50 addresses each.

A run that keeps a record of its requests sends each with an Idempotency-Key that was recorded
before, to POST /v1/email/verify/batch: streams can't be repeated. Whatever interrupts it, a
repeat gets the first answer, and pays for it once.

A domain is in one request at a time and with a few addresses only, because a
request's clocks run from its start and a mail host accepts few connections. As
many requests run at once as the account's rate limit allows: the run counts the
units of the last minute, so that a 429 is the exception. Addresses that a request left
unanswered are sent again. Received lines are never lost, however the request or the
run ends.

An address on which the service always fails is found by halving its requests, and set aside: the
run continues, and that address gets `unknown` at the end.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence

import httpx
import msgspec
import trio

from mailprobe.engine.stream.answers import Answer
from mailprobe.engine.verdict import Outcome, judge

from ...errors import CommandError, print_error
from ...terminal import plain
from ..source import SentRecord
from .http_responses import (
    ANSWER_S,
    RefusedRequest,
    error_of,
    limit_of,
    read_error_body,
    read_lines,
    reason_of,
    retry_after_s,
)
from .open_requests import (
    BATCH_OCTETS_MAX,
    OpenRequest,
    new_request,
    open_requests,
    read_whole,
    results_of,
)
from .request_queue import Allowance, RequestQueue
from .result_lines import ExplainedLine, ResultLine
from .runs import (
    CUSHION_S,
    LIMITED_TIMEOUT_S,
    LISTED_CHARACTERS_MAX,
    PASSING,
    PAUSE_S,
    PAUSE_S_MAX,
    RETRY_AFTER_S_MAX,
    TEXT_CHARACTERS_MAX,
    TIMEOUT_S,
    LimitNotice,
    ServiceFailures,
)
from .service import REQUESTS_MAX, RemoteService

PATH = "/v1/email/verify/stream"
BATCH_PATH = "/v1/email/verify/batch"
QUERY = "?evidence=1"  # for the reason of each result

REQUEST_ADDRESSES_MAX = 50
REQUEST_S = 300.0  # a whole response
FAILURES_ALONE_MAX = 3  # of an address alone in its request, before it is set aside
ASIDE_MAX = 10  # set aside, or a tenth of those answered: more means the service itself fails
GRACE_S = 8.0  # after a Ctrl-C, for answers under way: a verification takes 5 s, plus its queue
RUNNING_S = 1.0  # until a request that the service still runs is repeated

KEYS_USED_UP = {"idempotency_answer_lost", "idempotency_key_reused"}


class StreamRun:
    """See ServiceRun."""

    def __init__(
        self,
        service: RemoteService,
        texts: Sequence[str],
        send: trio.MemorySendChannel[Answer],
        record: SentRecord | None,
        *,
        explain: bool = False,
    ) -> None:
        self.error: CommandError | None = None
        self._client = service.client
        self._url = service.url + (PATH if record is None else BATCH_PATH) + QUERY
        self._fields = {} if service.asks_hosts else {"smtp": False}  # beside the addresses
        self._record = record
        self._repeats: deque[OpenRequest] = deque()  # with the key that they had
        self._under_way: set[trio.CancelScope] = set()
        self._texts = texts
        self._send = send
        self._queue = RequestQueue()
        self._allowance = Allowance()
        self._has_policy = False  # a response has said the limit in its headers
        self._size_max = REQUEST_ADDRESSES_MAX
        self._requests = 0
        self._requests_max = 4  # grows with each success, halves with each failure
        self._not_before = -math.inf
        self._notice = LimitNotice()
        self._failures = ServiceFailures()
        self._refused_since = math.inf  # for the rate limit, since the last request granted
        self._answered = 0
        self._alone: Counter[int] = Counter()  # failures of addresses alone in a request
        self._aside: list[int] = []
        self._changed = trio.Event()
        self._decoder = msgspec.json.Decoder(ExplainedLine if explain else ResultLine)

    async def run(self) -> None:
        """Verify all texts. Once `error` is set, only open requests are finished."""
        async with self._send, trio.open_nursery() as nursery:
            held = self._plan_repeats()
            for position, text in enumerate(self._texts):
                if len(text) > TEXT_CHARACTERS_MAX:  # layer 1 decides without the service
                    self._send.send_nowait(Answer(position, judge(text, Outcome.SYNTAX)))
                elif position not in held:
                    self._queue.add(position, text)
            nursery.start_soon(self._shorten_when_cancelled)
            while self._requests or (self._has_more and not self.error):
                size, wake_at = self._next_size(trio.current_time())
                if size:
                    request = self._next_request(size)
                    self._requests += 1
                    self._allowance.requested += len(request.emails)
                    nursery.start_soon(self._request, request)
                    continue
                self._changed = trio.Event()
                with trio.move_on_at(wake_at):
                    await self._changed.wait()
            nursery.cancel_scope.cancel()
            if not self.error:
                self._abandon_deferred()

    async def close(self, *, is_read: bool) -> None:
        """See ServiceRun. Requests leave nothing at the service."""

    @property
    def _has_more(self) -> bool:
        return bool(self._repeats or self._queue.waiting)

    def _plan_repeats(self) -> set[int]:
        """Repeat what an earlier run sent, if it may have answers; return its positions."""
        requests = [] if self._record is None else open_requests(self._record, self._texts)
        self._repeats.extend(requests)
        return {position for each in requests for position in each.positions()}

    def _next_request(self, size: int) -> OpenRequest:
        """A repeat, else a new request of at most this size, which is recorded."""
        if self._repeats:
            return self._repeats.popleft()
        return new_request(self._record, self._texts, self._queue.pop_batch(size))

    async def _shorten_when_cancelled(self) -> None:
        """After a cancel, requests under way have a moment for their answers."""
        try:
            await trio.sleep_forever()
        finally:
            ends_at = trio.current_time() + GRACE_S
            for scope in self._under_way:
                scope.deadline = min(scope.deadline, ends_at)

    def _next_size(self, now: float) -> tuple[int, float]:
        """The size of the next request; if 0, the time at which to check again."""
        is_idle = not (self._repeats or self._queue.ready)
        if self.error or is_idle or self._requests >= self._requests_max:
            return 0, math.inf
        if now < self._not_before:
            return 0, self._not_before
        room = self._allowance.room(now)
        if room < 1:
            wake_at = self._allowance.opens_at()
            self._notice.print_once(wake_at - now)
            return 0, wake_at
        return int(min(self._size_max, room)), math.inf

    async def _request(self, request: OpenRequest) -> None:
        """Send one request, pass its answers on, and requeue the unanswered addresses."""
        body = msgspec.json.encode({"emails": request.emails, **self._fields})
        headers = {} if request.key is None else {"Idempotency-Key": request.key}
        under_way = count = len(request.emails)  # counted in the allowance
        broke = False  # probably on an address of this request
        clock = trio.CancelScope(
            deadline=trio.current_time() + REQUEST_S, shield=request.key is not None
        )
        self._under_way.add(clock)
        try:
            with clock:
                async with self._client.stream(
                    "POST", self._url, content=body, headers=headers
                ) as response:
                    self._allowance.requested -= under_way
                    under_way = 0
                    if response.status_code == 200:
                        if not request.is_replayed(response):
                            self._learn_limit(response, count)
                        broke = await self._receive_answers(response, request)
                    else:
                        broke = response.status_code == 500
                        self._refused(response, await read_error_body(response), count, request)
            if clock.cancelled_caught:
                request.may_be_done = True
                self._failed(f"did not finish an answer within {REQUEST_S:.0f} s")
        except httpx.RequestError as error:
            request.may_be_done = True
            self._failed(f"cannot be reached ({reason_of(error)})")
        finally:
            self._under_way.discard(clock)
            self._allowance.requested -= under_way
            self._requests -= 1
            self._put_back(request, broke=broke)
            self._changed.set()

    def _put_back(self, request: OpenRequest, *, broke: bool) -> None:
        """Queue what a request left unanswered: as it was, if the service may have its answers."""
        left = set(request.positions())
        is_repeated = bool(left) and request.may_be_done and request.key is not None
        if is_repeated:
            request.may_be_done = False
            self._repeats.append(request)
            left = set()
        elif broke:
            left -= self._blame(left)
        if not is_repeated and self._record is not None:
            request.forget_in(self._record)
        for domain, run in request.taken.items():
            self._queue.requeue(domain, [position for position in run if position in left])
            left.difference_update(run)
        request.taken = {}
        for position in left:  # of a repeat
            self._queue.add(position, self._texts[position])

    # -- addresses on which the service fails

    def _blame(self, left: set[int]) -> set[int]:
        """Halve the next requests of these positions. Returns those that are set aside."""
        for position in left:
            self._queue.size_max[position] = max(1, len(left) // 2)
        if len(left) > 1:
            return set()
        self._alone.update(left)
        (position,) = left
        aside_max = max(ASIDE_MAX, self._answered // 10)
        if self._alone[position] < FAILURES_ALONE_MAX or len(self._aside) >= aside_max:
            return set()
        self._aside.append(position)
        return left

    def _abandon_deferred(self) -> None:
        """Answer `unknown` for addresses set aside; stop with an error if nothing was answered."""
        if not self._aside:
            return
        first = plain(self._texts[self._aside[0]][:LISTED_CHARACTERS_MAX])
        if not self._answered:
            self._stop(f"the service at {self._url} fails on every address, such as {first}")
            return
        others = f" and {len(self._aside) - 1:,} more" if len(self._aside) > 1 else ""
        print_error(f"the service fails on {first}{others} each time; the result there is unknown")
        for position in self._aside:
            verdict = judge(self._texts[position], Outcome.RESOLVER_FAILED)
            self._send.send_nowait(Answer(position, verdict))

    # -- responses

    async def _receive_answers(self, response: httpx.Response, request: OpenRequest) -> bool:
        """Pass the answers on. True if the stream ended cleanly without any answer."""
        if request.key is None:
            return await self._receive_lines(response, request)
        octets = await read_whole(response, BATCH_OCTETS_MAX)
        fault = None
        for result in results_of(octets):
            fault = fault or self._receive(result, request)
        if fault is not None:
            self._stop(fault)
        elif request.unanswered:
            request.may_be_done = True
            self._failed("ended an answer early")
        else:
            self._requests_max = min(REQUESTS_MAX, self._requests_max + 1)
        return False

    async def _receive_lines(self, response: httpx.Response, request: OpenRequest) -> bool:
        """Pass the answers on. True if the stream ended cleanly without any answer.

        Awaits only the response, so that a cancel ends that first.
        """
        fault = None
        before = self._answered
        with trio.CancelScope() as reading:
            reading.deadline = trio.current_time() + ANSWER_S
            async for line in read_lines(response):
                fault = fault or self._receive(line, request)
                if fault is not None:
                    reading.cancel()
                else:
                    reading.deadline = trio.current_time() + ANSWER_S
        if fault is not None:
            self._stop(fault)
        elif reading.cancelled_caught:
            self._failed(f"sent no further answer for {ANSWER_S:.0f} s")
        elif request.unanswered:
            self._failed("ended an answer early")
            return self._answered == before
        else:
            self._requests_max = min(REQUESTS_MAX, self._requests_max + 1)
        return False

    def _receive(self, line: bytes, request: OpenRequest) -> str | None:
        """Pass on the answer of one line. Returns what is wrong with the line, or None."""
        try:
            received = self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return f"the answer of {self._url} is not a result of a mailprobe service"
        self._failures.note_response()
        positions = request.unanswered.get(received.email)
        if not positions:
            if received.email in request.known:
                return None
            text = plain(received.email[:LISTED_CHARACTERS_MAX])
            return f"the service at {self._url} answers about {text}, which was not in the request"
        self._failures.clear()
        self._answered += 1
        evidence = received.evidence if isinstance(received, ExplainedLine) else None
        self._send.send_nowait(received.answer(positions.pop(), evidence))
        if not positions:
            del request.unanswered[received.email]
        return None

    def _refused(
        self, response: httpx.Response, octets: bytes, count: int, request: OpenRequest
    ) -> None:
        self._failures.note_response()
        status, error = response.status_code, error_of(octets)
        wait_s = retry_after_s(response)
        request.may_be_done = status in PASSING and status != 500
        if error.error == "idempotency_in_progress":
            request.may_be_done = True
            self._limited(status, error, wait_s or RUNNING_S, TIMEOUT_S)
        elif error.error in KEYS_USED_UP:
            pass  # asked again, with a new key
        elif status == 429 and error.error == "rate_limit_exceeded":
            self._failures.clear()
            if error.limit is not None:
                self._allowance.limit = max(1, error.limit)
            if error.limit is not None and error.limit <= 0:
                self._limited(status, error, PAUSE_S_MAX if wait_s is None else wait_s, TIMEOUT_S)
            elif error.limit is not None and error.limit < count:
                self._size_max = max(1, error.limit)  # it must be split to pass
            else:
                self._notice.print_once(wait_s or 0.0)
                wait_s = PAUSE_S_MAX if wait_s is None else wait_s
                self._limited(status, error, wait_s, LIMITED_TIMEOUT_S)
        elif status == 429 and error.error == "monthly_quota_exceeded":
            left = (error.limit or 0) - (error.used or 0)
            if 0 < left < count:
                self._size_max = left  # to use the rest of the month
            else:
                self._refuse(status, error)
        elif status == 429:  # from a proxy in between
            self._limited(status, error, PAUSE_S_MAX if wait_s is None else wait_s, TIMEOUT_S)
        elif status in PASSING:
            self._failed(f"is unavailable ({status} {error.error})", wait_s or 0.0)
        else:
            self._refuse(status, error)

    def _learn_limit(self, response: httpx.Response, count: int) -> None:
        self._allowance.granted.append((trio.current_time(), count))
        self._refused_since = math.inf
        limit = limit_of(response)
        if limit is not None:
            self._allowance.limit = limit
            self._has_policy = True
        elif self._has_policy or self._allowance.limit is None:
            # A proxy that removes headers removes them always. So the account has no limit now.
            self._allowance.limit = math.inf
        self._changed.set()

    # -- pauses and the end of the run

    def _limited(self, status: int, error: RefusedRequest, wait_s: float, timeout_s: float) -> None:
        """Wait for the rate limit; stop if it refuses everything for too long."""
        now = trio.current_time()
        self._refused_since = min(self._refused_since, now)
        if now - self._refused_since >= timeout_s:
            self._refuse(status, error)
        else:
            self._wait(max(wait_s, PAUSE_S))

    def _wait(self, seconds: float) -> None:
        until = trio.current_time() + min(seconds, RETRY_AFTER_S_MAX) + CUSHION_S
        self._not_before = max(self._not_before, until)

    def _failed(self, what: str, wait_s: float = 0.0) -> None:
        """Pause, longer each time; stop after too long without a success."""
        if self._failures.last_too_long():
            self._stop(f"the service at {self._url} {what}")
        elif trio.current_time() >= self._not_before:  # else it failed for the same reason
            self._requests_max = max(1, self._requests_max // 2)
            self._wait(max(wait_s, self._failures.next_pause_s()))

    def _refuse(self, status: int, error: RefusedRequest) -> None:
        words = " ".join(f"{error.message} {error.action}".split()).rstrip(".")
        self._stop(f"the service answers {status} {error.error}: {words}".rstrip(": "))

    def _stop(self, line: str) -> None:
        self.error = self.error or CommandError(line)
