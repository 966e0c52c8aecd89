"""A service as a source: POST /v1/email/verify/stream, in requests of at most 50.

A domain is in one request at a time and with a few addresses only, because a
request's clocks run from its start and a mail host bears few connections. As
many requests run at once as the account's rate limit bears: what was granted in
the last minute is kept count of here, so that a 429 is the exception. What a
request left unanswered is asked again; lines that came are never lost, however
the request or the whole run ends.

A service that misbehaves ends the run: an answer that was not asked for at once, since
asking again would only cost more; a stalled or refusing one by a clock. An address on
which the service fails each time is found by halving the requests that it is in, and
set aside: the others go on, and it gets `unknown` at the end.
"""

import math
import re
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address

import httpx
import msgspec
import trio

from mailprobe.api.cli.cleaning.run import DOMAIN_RUN
from mailprobe.api.cli.errors import CommandError, Misuse, print_error
from mailprobe.api.cli.output.terminal import plain
from mailprobe.api.cli.source import Source
from mailprobe.engine.stream.answers import Answer
from mailprobe.engine.verdict import Outcome, Verdict, judge

PATH = "/v1/email/verify/stream"

REQUEST_ADDRESSES_MAX = 50
REQUESTS_MAX = 16  # at a time: 800 addresses, nearly a minute's worth of the largest tier
TEXT_CHARACTERS_MAX = 5_000  # fifty of them, each character escaped, stay below a body's 2 MB
LINE_OCTETS_MAX = 1 << 20
LISTED_CHARACTERS_MAX = 100  # of an address in a message
UNREAD_MAX = math.inf  # answers that the reader has not taken: fewer than texts, which it holds

WINDOW_S = 60.0
CUSHION_S = 0.25  # after a Retry-After: clocks differ
RETRY_AFTER_S_MAX = 120.0  # no limit of ours makes anybody wait longer
NOTICE_WAIT_S = 5.0  # so long a pause wants a word
PAUSE_S = 0.25  # after a failure, doubling
PAUSE_S_MAX = 15.0
TIMEOUT_S = 120.0  # so long a service may be away in the middle
LIMITED_TIMEOUT_S = 900.0  # and so long refuse us for its rate limit: others may use the key
ANSWER_S = 30.0  # the next line of a stream: a verification takes at most 5 s and its queue
REQUEST_S = 300.0  # all of a response
ERROR_OCTETS_MAX = 1 << 16  # read of an error's body
FAILURES_ALONE_MAX = 3  # of one address in a request of its own, until it is set aside
ASIDE_MAX = 10  # addresses set aside, or a tenth of those answered: more is no single fault
FIRST_TIMEOUT_S = 5.0  # and so long before its first word: the address may be wrong

TIMEOUT = httpx.Timeout(connect=10.0, read=30.0, write=30.0, pool=None)
PASSING = {408, 500, 502, 503, 504}  # ours say 503; proxies in between the others


class RefusedRequest(msgspec.Struct, frozen=True):
    """What we read of an error body."""

    error: str = "an error"
    message: str = ""
    action: str = ""
    limit: int | None = None
    used: int | None = None


@dataclass(slots=True)
class RequestQueue:
    """What is to be asked, by domain. Pure; places are those of the texts."""

    waiting: dict[str, deque[int]] = field(default_factory=dict)
    size_max: dict[int, int] = field(default_factory=dict)  # of a request with this place in it
    ready: deque[str] = field(default_factory=deque)  # domains that wait and are not being asked

    def add(self, position: int, text: str) -> None:
        domain = domain_of(text)
        if domain not in self.waiting:
            self.waiting[domain] = deque()
            self.ready.append(domain)
        self.waiting[domain].append(position)

    def pop_batch(self, count_max: int) -> dict[str, list[int]]:
        """The next request's places by domain; these domains rest until they are put back."""
        taken: dict[str, list[int]] = {}
        count = 0
        while self.ready and count_max:
            domain = self.ready[0]
            positions = self.waiting[domain]
            run: list[int] = []
            while positions and len(run) < min(count_max, DOMAIN_RUN):
                room = self.size_max.get(positions[0], count_max + count) - count
                if room <= len(run):
                    break
                count_max = min(count_max, room)
                run.append(positions.popleft())
            if not run:  # this one fits in no more; it is the first of the next request
                break
            self.ready.popleft()
            taken[domain] = run
            count_max -= len(run)
            count += len(run)
        return taken

    def requeue(self, domain: str, unanswered: Sequence[int]) -> None:
        positions = self.waiting[domain]
        positions.extendleft(reversed(unanswered))
        if positions:
            self.ready.append(domain)
        else:
            del self.waiting[domain]


@dataclass(slots=True)
class Allowance:
    """What the account's rate limit leaves, as far as it can be known from here. Pure."""

    limit: float | None = None  # units in a minute; None until the service has told it
    granted: deque[tuple[float, int]] = field(default_factory=deque)
    requested: int = 0  # by requests that have no answer yet

    def room(self, now: float) -> float:
        while self.granted and self.granted[0][0] + WINDOW_S <= now:
            self.granted.popleft()
        if self.limit is None:
            return 0 if self.requested else math.inf  # one request goes ahead and learns it
        return self.limit - self.requested - sum(units for _, units in self.granted)

    def opens_at(self) -> float:
        return self.granted[0][0] + WINDOW_S if self.granted else math.inf


class HttpSource:
    """A Source; `open_http_source()` opens one."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url

    @asynccontextmanager
    async def open_answers(
        self, texts: Sequence[str], *, explain: bool = False
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Answer]]:
        """See Source. Nothing is explained: a list has no room for it."""
        send, receive = trio.open_memory_channel[Answer](UNREAD_MAX)
        asking = _Run(self._client, self._url, texts, send)
        async with receive, trio.open_nursery() as nursery:
            nursery.start_soon(asking.run)
            yield receive
            nursery.cancel_scope.cancel()
        if asking.error is not None:  # now that every answer has been taken
            raise asking.error


class _Run:
    """One list asked."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        texts: Sequence[str],
        send: trio.MemorySendChannel[Answer],
    ) -> None:
        self.error: CommandError | None = None
        self._client = client
        self._url = url
        self._texts = texts
        self._send = send
        self._queue = RequestQueue()
        self._allowance = Allowance()
        self._size_max = REQUEST_ADDRESSES_MAX
        self._requests = 0
        self._requests_max = 4  # grows with each success, halves with each failure
        self._not_before = -math.inf
        self._received = False
        self._limit_notified = False
        self._failures = 0  # since the last success
        self._failing_since = math.inf
        self._refused_since = math.inf  # for the rate limit, since the last request granted
        self._answered = 0
        self._alone: Counter[int] = Counter()  # failures of addresses asked by themselves
        self._aside: list[int] = []
        self._changed = trio.Event()
        self._decoder = msgspec.json.Decoder(Verdict)

    async def run(self) -> None:
        """Ask for all; end early where `error` is set, after what is under way."""
        async with self._send, trio.open_nursery() as nursery:
            for position, text in enumerate(self._texts):
                if len(text) > TEXT_CHARACTERS_MAX:  # layer 1 needs no service to say no
                    self._send.send_nowait(Answer(position, judge(text, Outcome.SYNTAX)))
                else:
                    self._queue.add(position, text)
            while self._requests or (self._queue.waiting and not self.error):
                now = trio.current_time()
                size, wake_at = self._next_size(now)
                if size:
                    taken = self._queue.pop_batch(size)
                    self._requests += 1
                    self._allowance.requested += sum(map(len, taken.values()))
                    nursery.start_soon(self._request, taken)
                    continue
                self._changed = trio.Event()
                with trio.move_on_at(wake_at):
                    await self._changed.wait()
            if not self.error:
                self._abandon_deferred()

    def _next_size(self, now: float) -> tuple[int, float]:
        """How many addresses may be asked just now; where none may, when to look again."""
        if self.error or not self._queue.ready or self._requests >= self._requests_max:
            return 0, math.inf
        if now < self._not_before:
            return 0, self._not_before
        room = self._allowance.room(now)
        if room < 1:
            wake_at = self._allowance.opens_at()
            self._notify_limit(wake_at - now)
            return 0, wake_at
        return int(min(self._size_max, room)), math.inf

    async def _request(self, taken: dict[str, list[int]]) -> None:
        """One request: its answers go out as they come, the rest goes back to the queue."""
        positions = [position for run in taken.values() for position in run]
        unanswered: dict[str, list[int]] = {}
        for position in positions:
            unanswered.setdefault(self._texts[position], []).append(position)
        body = msgspec.json.encode({"emails": [self._texts[position] for position in positions]})
        under_way = len(positions)  # as the allowance knows it
        broke = False  # on something in this request, as it seems
        try:
            with trio.move_on_after(REQUEST_S) as clock:
                async with self._client.stream("POST", self._url, content=body) as response:
                    self._allowance.requested -= under_way
                    under_way = 0
                    if response.status_code == 200:
                        self._learn_limit(response, len(positions))
                        broke = await self._receive_lines(response, unanswered)
                    else:
                        broke = response.status_code == 500
                        self._refused(response, await _error_body(response), len(positions))
            if clock.cancelled_caught:
                self._failed(f"was not done with an answer after {REQUEST_S:.0f} s")
        except httpx.RequestError as error:
            self._failed(f"cannot be reached ({str(error) or type(error).__name__})")
        finally:
            self._allowance.requested -= under_way
            self._requests -= 1
            left = {position for run in unanswered.values() for position in run}
            if broke:
                left -= self._blame(left)
            for domain, run in taken.items():
                self._queue.requeue(domain, [position for position in run if position in left])
            self._changed.set()

    # -- addresses on which the service fails

    def _blame(self, left: set[int]) -> set[int]:
        """Halve the requests in which these are asked again; give those that are set aside."""
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
        """What nobody knows is `unknown`; unless nothing was answered, then nothing is known."""
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

    # -- what comes back

    async def _receive_lines(
        self, response: httpx.Response, unanswered: dict[str, list[int]]
    ) -> bool:
        """Hand the answers out; True where the stream ended well and gave not one.

        Awaits nothing but the response, so that a cancel ends that first.
        """
        fault = None
        before = self._answered
        with trio.CancelScope() as reading:
            reading.deadline = trio.current_time() + ANSWER_S
            async for line in _lines(response):
                fault = fault or self._receive(line, unanswered)
                if fault is not None:
                    reading.cancel()
                else:
                    reading.deadline = trio.current_time() + ANSWER_S
        if fault is not None:
            self._stop(fault)
        elif reading.cancelled_caught:
            self._failed(f"gave no further answer for {ANSWER_S:.0f} s")
        elif unanswered:
            self._failed("ended an answer early")
            return self._answered == before
        else:
            self._requests_max = min(REQUESTS_MAX, self._requests_max + 1)
        return False

    def _receive(self, line: bytes, unanswered: dict[str, list[int]]) -> str | None:
        """One answer; what is wrong with a line that is none, or about what was not asked."""
        try:
            verdict = self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return f"what {self._url} answers is no result of a mailprobe service"
        self._received = True
        positions = unanswered.get(verdict.email)
        if not positions:
            text = plain(verdict.email[:LISTED_CHARACTERS_MAX])
            return f"the service at {self._url} answers about {text}, which it was not asked"
        self._calm()
        self._answered += 1
        self._send.send_nowait(Answer(positions.pop(), verdict))
        if not positions:
            del unanswered[verdict.email]
        return None

    def _refused(self, response: httpx.Response, octets: bytes, count: int) -> None:
        self._received = True
        status, error = response.status_code, _error_of(octets)
        wait_s = _retry_after_s(response)
        if status == 429 and error.error == "rate_limit_exceeded":
            self._calm()
            if error.limit is not None:
                self._allowance.limit = max(1, error.limit)
            if error.limit is not None and error.limit <= 0:
                self._limited(status, error, PAUSE_S_MAX if wait_s is None else wait_s, TIMEOUT_S)
            elif error.limit is not None and error.limit < count:
                self._size_max = max(1, error.limit)  # it must be split, and may pass then
            else:
                self._notify_limit(wait_s or 0.0)
                wait_s = PAUSE_S_MAX if wait_s is None else wait_s
                self._limited(status, error, wait_s, LIMITED_TIMEOUT_S)
        elif status == 429 and error.error == "monthly_quota_exceeded":
            left = (error.limit or 0) - (error.used or 0)
            if 0 < left < count:
                self._size_max = left  # so that the month's last ones are used
            else:
                self._refuse(status, error)
        elif status == 429:  # of a proxy in between
            self._limited(status, error, PAUSE_S_MAX if wait_s is None else wait_s, TIMEOUT_S)
        elif status in PASSING:
            self._failed(f"cannot answer just now ({status} {error.error})", wait_s or 0.0)
        else:
            self._refuse(status, error)

    def _learn_limit(self, response: httpx.Response, count: int) -> None:
        self._allowance.granted.append((trio.current_time(), count))
        self._refused_since = math.inf
        limit = _limit_of(response)
        if limit is not None:
            self._allowance.limit = limit
        elif self._allowance.limit is None:
            self._allowance.limit = math.inf
        self._changed.set()

    # -- how it goes on

    def _calm(self) -> None:
        """The service is there."""
        self._failures = 0
        self._failing_since = math.inf

    def _notify_limit(self, wait_s: float) -> None:
        """Once, so that nobody takes the first long pause for a standstill."""
        if not self._limit_notified and NOTICE_WAIT_S <= wait_s < math.inf:
            self._limit_notified = True
            print_error(
                f"the account's rate limit is reached; going on in {math.ceil(wait_s)} s, "
                "and after each such pause"
            )

    def _limited(
        self, status: int, error: RefusedRequest, wait_s: float, patience_s: float
    ) -> None:
        """Wait for the rate limit; end where it lets nothing pass for too long."""
        now = trio.current_time()
        self._refused_since = min(self._refused_since, now)
        if now - self._refused_since >= patience_s:
            self._refuse(status, error)
        else:
            self._wait(max(wait_s, PAUSE_S))

    def _wait(self, seconds: float) -> None:
        until = trio.current_time() + min(seconds, RETRY_AFTER_S_MAX) + CUSHION_S
        self._not_before = max(self._not_before, until)

    def _failed(self, what: str, wait_s: float = 0.0) -> None:
        """Pause, longer each time; give up after a while without any success."""
        now = trio.current_time()
        self._failing_since = min(self._failing_since, now)
        if now - self._failing_since >= (TIMEOUT_S if self._received else FIRST_TIMEOUT_S):
            self._stop(f"the service at {self._url} {what}")
            return
        if now >= self._not_before:  # the others of a wave fail for the same reason
            self._requests_max = max(1, self._requests_max // 2)
            self._wait(max(wait_s, min(PAUSE_S_MAX, PAUSE_S * 2**self._failures)))
            self._failures += 1

    def _refuse(self, status: int, error: RefusedRequest) -> None:
        words = " ".join(f"{error.message} {error.action}".split()).rstrip(".")
        self._stop(f"the service says {status} {error.error}: {words}".rstrip(": "))

    def _stop(self, line: str) -> None:
        self.error = self.error or CommandError(line)


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Whole lines; what follows the last line end is torn and left out.

    Not by `aiter_lines()`: that one takes U+2028, which may stand in JSON, for a line end.
    """
    rest = b""
    async for octets in response.aiter_bytes():
        *lines, rest = (rest + octets).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > LINE_OCTETS_MAX:  # no result is so long
            yield rest
            rest = b""


async def _error_body(response: httpx.Response) -> bytes:
    """The beginning of an error's body, as far as it comes in time."""
    octets = b""
    with trio.move_on_after(ANSWER_S) as reading:
        async for piece in response.aiter_bytes():
            octets += piece
            if len(octets) > ERROR_OCTETS_MAX:
                reading.cancel()
    return octets[:ERROR_OCTETS_MAX]


def _error_of(octets: bytes) -> RefusedRequest:
    try:
        return msgspec.json.decode(octets, type=RefusedRequest)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return RefusedRequest()


def _limit_of(response: httpx.Response) -> int | None:
    """The units of a minute: `"minute";q=100;w=60` in RateLimit-Policy."""
    policy = response.headers.get("ratelimit-policy", "")
    found = re.search(r'"minute";\s*q=([0-9]{1,12})', policy)
    return max(1, int(found[1])) if found else None


def _retry_after_s(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return float(text) if re.fullmatch("[0-9]{1,9}", text) else None


def domain_of(text: str) -> str:
    return text.rpartition("@")[2].lower()


def check_server(url: str, key: str) -> str:
    """The address of the stream endpoint; Misuse for what cannot be a service's address or key."""
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        parts = httpx.URL("")
    if parts.scheme not in ("http", "https") or not parts.host or parts.query or parts.fragment:
        raise Misuse("--server takes the address of a service, such as https://mailprobe.example")
    if parts.userinfo:
        raise Misuse("--server takes no user or password; name the key with --key")
    if not (key.isascii() and key.isprintable() and key.strip() == key and key):
        raise Misuse("--key takes an API key, such as sk_live_…")
    return url.rstrip("/") + PATH


@asynccontextmanager
async def open_http_source(server: str, key: str) -> AsyncIterator[Source]:
    """A service for one command. Raises Misuse."""
    url = check_server(server, key)
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "Accept": "application/x-ndjson",
    }
    async with httpx.AsyncClient(
        headers=headers,
        timeout=TIMEOUT,
        limits=httpx.Limits(max_connections=REQUESTS_MAX),
        trust_env=not _on_this_machine(httpx.URL(url).host),  # a proxy cannot reach our loopback
    ) as client:
        yield HttpSource(client, url)


def _on_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
