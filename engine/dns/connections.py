"""The connections to one DoH endpoint: HTTP/2 where TLS agrees on it, else HTTP/1.1.

A request that is cancelled frees its place at once: its HTTP/2 stream is reset, its
HTTP/1.1 connection is closed. Servers end a connection that has had too many resets, so
a connection that has sent RESETS_MAX of them is replaced first. Requests that are
submitted at one time share a write, and one read settles all that it answers: no
request has a task of its own.
"""

import select
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

import trio

from mailprobe.engine.background import log_fault, separate
from mailprobe.engine.dns import http1
from mailprobe.engine.dns.messages import MESSAGE_OCTETS_MAX
from mailprobe.engine.dns.pacing import read_refusal
from mailprobe.engine.dns.response import (
    DNS_MESSAGE,
    DohResponse,
    HttpResponse,
    NotHttp,
    TooLong,
    TransportFailed,
)

if TYPE_CHECKING:
    from mailprobe.engine.dns import http2

EXCHANGE_S = 5.0  # for a body that comes slowly; its caller has long stopped waiting
SILENCE_S = 1.2  # without a byte while a request is under way; below a look-up's 1.5 s
PING_S = 0.6  # after this silence an HTTP/2 connection is sent a PING
IDLE_S = 30.0
EARLY_CLOSE_S = 0.25  # a connection that the endpoint closes sooner and unused is closed early
RESETS_MAX = 200  # on one connection: servers that count them hang up after 500 to 1,000
READ_OCTETS = 64 * 1024

CLOSED = "the transport is closed"
FAULT = "the transport failed by a fault of ours"
SLOW = "the answer was too slow"

Settle = Callable[[DohResponse | TransportFailed], None]


class DohRequest:
    """One DNS query and its callback, which is called at most once, and never after `cancel`."""

    __slots__ = ("body", "connection", "sent_at", "settle", "stream", "tries")

    def __init__(self, body: bytes, settle: Settle) -> None:
        self.body = body
        self.settle: Settle | None = settle
        self.sent_at = trio.current_time()
        self.tries = 0
        self.connection: DohConnection | None = None  # the connection it was written to
        self.stream = 0  # its stream there, with HTTP/2

    def complete(self, result: DohResponse | TransportFailed) -> None:
        self.connection = None
        if (settle := self.settle) is not None:
            self.settle = None
            try:
                settle(result)
            except Exception:  # a bug of the caller's: the connection has other requests
                log_fault(settle)

    def cancel(self) -> None:
        """Free what the request holds. The callback will not be called."""
        if self.settle is not None:
            self.settle = None
            if (connection := self.connection) is not None:
                self.connection = None
                connection.drop(self)


class EndpointQueue(Protocol):
    """What a connection needs of its endpoint."""

    waiting: deque[DohRequest]

    def check_capacity(self) -> None: ...
    def send_waiting(self) -> None: ...
    def next_waiting(self) -> DohRequest | None: ...
    def resubmit(self, request: DohRequest, why: str, *, counted: bool = True) -> None: ...
    def learn_quota(self, taken: int) -> None: ...
    def raise_quota(self, quota: float) -> None: ...
    def replace(self, connection: "DohHttp2Connection") -> None: ...
    def encode_http1(self, request: DohRequest) -> bytes: ...
    def encode_http2(self, request: DohRequest) -> bytes: ...
    def connection_closed(
        self, connection: "DohConnection", left: list[DohRequest], why: str, *, counted: bool = True
    ) -> None: ...


def _read_response(response: HttpResponse) -> DohResponse | TransportFailed:
    """The DNS message in this response, or why there is none."""
    if response.status != 200:
        return read_refusal(response, time.time())
    if response.kind != b"application/dns-message":
        kind = response.kind.decode("latin-1").partition(";")[0].strip().lower()
        if kind != DNS_MESSAGE:
            return TransportFailed(f"an answer of type {kind[:40] or 'unknown'}, not DNS")
    return DohResponse(response.body, response.date.decode("latin-1") or None)


def _overlong() -> TransportFailed:
    return TransportFailed(f"an answer of more than {MESSAGE_OCTETS_MAX} octets")


class DohConnection(ABC):
    """One connection to an endpoint, with its deadlines."""

    def __init__(self, endpoint: EndpointQueue, stream: trio.abc.Stream) -> None:
        self._endpoint = endpoint
        self._stream = stream
        self._scope = trio.CancelScope()
        self._received_at = trio.current_time()
        self._ended = ""  # the reason, for the requests that are left
        self._ended_by_us = False
        self.answered = False  # at least one request
        self._opened_at = self._received_at
        self.closed_early = False  # the endpoint closed it soon and without an answer
        self.faulty = False  # our own code has failed

    async def run(self) -> None:
        """Carry requests until the connection ends; those left are then sent again elsewhere.

        After a bug in our own code they fail instead: sent again, they might cause it again.
        """
        try:
            with self._scope:
                self._endpoint.check_capacity()
                self._endpoint.send_waiting()
                await self._carry()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._end("the endpoint disconnected", by_us=False)
        except BaseException as error:
            fatal, fault = separate(error)
            if fault is not None:
                log_fault(self._carry, fault)
                self.fail()
            if fatal is not None:
                raise fatal from None
        finally:
            self._release()

    def fail(self) -> None:
        """End the connection because of a bug in our own code."""
        self.faulty = True
        self._end(FAULT)

    @property
    def leaving(self) -> bool:
        """Whether it takes no more requests."""
        return bool(self._ended)

    @abstractmethod
    async def _carry(self) -> None:
        """Write requests and read responses until the connection ends."""

    @abstractmethod
    def _release(self) -> None:
        """Hand the requests that are left back to the endpoint."""

    @abstractmethod
    def drop(self, request: DohRequest) -> None:
        """Free the place of a cancelled request."""

    @abstractmethod
    def tick(self, now: float) -> None:
        """Check the deadlines."""

    def forgive(self, lost_s: float, now: float) -> None:
        """This process did not run for so long until now: that was no silence of the endpoint."""
        self._received_at = min(now, self._received_at + lost_s)

    def _end(self, why: str, *, by_us: bool = True) -> None:
        if not (by_us or self._ended or self.answered):
            # A later close may be due to a query that hangs, and proves nothing about the endpoint.
            self.closed_early = trio.current_time() - self._opened_at < EARLY_CLOSE_S
        if not self._ended:
            self._ended, self._ended_by_us = why, by_us
        self._scope.cancel()


class DohHttp2Connection(DohConnection):
    """An HTTP/2 connection: one task reads, another writes what has gathered.

    It takes at most `quota` requests. So a server that ends its connections after a few
    answers is not sent many requests that it would only give back.
    """

    def __init__(
        self, endpoint: EndpointQueue, stream: trio.abc.Stream, quota: float = float("inf")
    ) -> None:
        from mailprobe.engine.dns import http2  # here, not above: hpack is slow to import

        super().__init__(endpoint, stream)
        self._http: http2.Http2Connection[DohRequest] = http2.Http2Connection(
            self._settle, body_octets_max=MESSAGE_OCTETS_MAX
        )
        self._http2 = http2
        self._quota = quota
        self._sent = 0
        self._answers = 0
        self._writer: trio.lowlevel.Task | None = None  # while it waits for something to write
        self._pinged = False
        self._awaiting = False  # a request was sent since the server last sent anything
        self._busy_at = trio.current_time()  # a request was under way, or submitted
        self._resets = 0
        self._dropped: set[DohRequest] = set()  # cancelled, but their streams are still open

    @property
    def room(self) -> bool:
        return self._http.room and not self._ended

    @property
    def free_streams(self) -> int:
        """How many requests it carries at a time."""
        return self._http.streams_max - len(self._dropped)

    @property
    def leaving(self) -> bool:
        return self._http.leaving or bool(self._ended)

    def send(self, request: DohRequest) -> None:
        http = self._http
        if not http.under_way and not self._awaiting:  # else the silence has begun already
            self._busy_at = trio.current_time()
        self._awaiting = True
        self._sent += 1
        request.connection = self
        request.stream = http.send_request(
            request, self._endpoint.encode_http2(request), request.body
        )
        if self._sent >= self._quota:
            http.leaving = True
        self._flush()

    def drop(self, request: DohRequest) -> None:
        """Reset its stream. After RESETS_MAX resets, leave it open and replace the connection."""
        if self._resets < RESETS_MAX:
            self._resets += 1
            self._http.cancel_request(request.stream)
            self._flush()
        else:
            self._dropped.add(request)
            self._endpoint.replace(self)
        self._endpoint.send_waiting()

    def retire(self) -> None:
        """Take no more requests, and end when those under way are answered."""
        for request in self._dropped:
            self._http.forget(request.stream)
        self._dropped.clear()
        self._http.leaving = True

    def _flush(self) -> None:
        if self._writer is not None:
            trio.lowlevel.reschedule(self._writer)
            self._writer = None

    async def _carry(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            await self._read()
            nursery.cancel_scope.cancel()

    async def _read(self) -> None:
        http, endpoint = self._http, self._endpoint
        try:
            while octets := await self._stream.receive_some(READ_OCTETS):
                self._received_at = self._busy_at = trio.current_time()
                self._pinged = self._awaiting = False
                http.receive_data(bytes(octets))
                endpoint.send_waiting()
                endpoint.check_capacity()
                if http.out:
                    self._flush()
                if http.spent:
                    self._end("it takes no more questions", by_us=False)
                    return
            self._end("the endpoint disconnected", by_us=False)
        except trio.BrokenResourceError:
            self._end("the endpoint disconnected", by_us=False)
        except NotHttp as error:
            self._end(f"it sends {error}", by_us=False)

    async def _write(self) -> None:
        http = self._http

        def abort(_: object) -> trio.lowlevel.Abort:
            self._writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            while True:
                if not http.out:
                    self._writer = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(abort)
                octets, http.out = http.out, bytearray()
                await self._stream.send_all(octets)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._end("the endpoint disconnected", by_us=False)

    def _settle(self, request: DohRequest, outcome: "http2.Outcome") -> None:
        try:
            self._receive(request, outcome)
        except BaseException:  # `_http` no longer holds it, so `_release` would not settle it
            request.complete(TransportFailed(FAULT))
            raise

    def _receive(self, request: DohRequest, outcome: "http2.Outcome") -> None:
        http2 = self._http2
        if self._dropped:
            self._dropped.discard(request)
        if isinstance(outcome, HttpResponse):
            self.answered = True
            self._answers += 1
            request.complete(_read_response(outcome))
        elif isinstance(outcome, http2.StreamRefused):
            if taken := self._http.taken:  # given back by a server that has answered others
                self._endpoint.learn_quota(taken)
            self._endpoint.resubmit(request, "it takes no more questions", counted=not taken)
        elif isinstance(outcome, http2.Overlong):
            request.complete(_overlong())
        else:
            request.complete(TransportFailed(f"the endpoint gave the question up ({outcome})"))

    def forgive(self, lost_s: float, now: float) -> None:
        super().forgive(lost_s, now)
        self._busy_at = min(now, self._busy_at + lost_s)

    def tick(self, now: float) -> None:
        http = self._http
        if http.spent:
            self._end("retired")
            return
        if self._dropped:
            self._endpoint.replace(self)
        if not http.under_way and not self._awaiting:
            if now - self._busy_at > IDLE_S:
                self._end("idle")
            return
        for request in http.requests():
            if now - request.sent_at < EXCHANGE_S:
                break  # they are in the order they were sent, or nearly
            http.cancel_request(request.stream)
            request.complete(TransportFailed(SLOW))
        silent_s = now - self._busy_at
        if silent_s > SILENCE_S:
            self._end("the connection went silent")
        elif silent_s > PING_S and not self._pinged:
            self._pinged = True
            http.ping()
        if http.out:
            self._flush()

    def _release(self) -> None:
        left = self._http.withdraw()
        taken = 0 if self._ended_by_us else self._answers
        if taken and left:
            self._endpoint.learn_quota(taken)
        elif taken and self._sent >= self._quota and self._http.taken is None:
            self._endpoint.raise_quota(2 * self._quota)  # it might have taken more
        self._endpoint.connection_closed(self, left, self._ended, counted=not taken)


class DohHttp1Connection(DohConnection):
    """An HTTP/1.1 connection: one request after the other."""

    def __init__(self, endpoint: EndpointQueue, stream: trio.abc.Stream) -> None:
        super().__init__(endpoint, stream)
        self._request: DohRequest | None = None
        self._sent_at = self._received_at
        self._task: trio.lowlevel.Task | None = None  # while it waits for a request

    @property
    def idle(self) -> bool:
        return self._request is None and not self._ended

    def assign(self, request: DohRequest) -> None:
        """Send this request next; the connection must be idle."""
        self._request, self._sent_at = request, trio.current_time()
        request.connection = self
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def drop(self, request: DohRequest) -> None:
        """Close the connection: the next bytes on it would answer the cancelled request."""
        if self._request is request:
            self._request = None
        self._end("given up")

    async def _carry(self) -> None:
        used = False
        while True:
            if self._request is None and (waiting := self._endpoint.next_waiting()) is not None:
                self.assign(waiting)
            if self._request is None:
                await self._wait()
            request = self._request
            if request is None:  # `assign` woke this task, and `drop` came before it ran
                return
            if used and self._has_ended():
                self._request = request.connection = None
                self._endpoint.waiting.appendleft(request)
                return
            used = True
            try:
                last = await self._send(request)
            except TooLong:
                request.complete(_overlong())
                last = True
            except NotHttp as error:
                request.complete(TransportFailed(f"it sends {error}"))
                last = True
            self._request = None
            if last:
                return

    async def _wait(self) -> None:
        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _has_ended(self) -> bool:
        """Whether anything came while no request was under way: the end, or as good as that."""
        stream = self._stream
        if isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        poll = select.poll()
        poll.register(cast(trio.SocketStream, stream).socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    async def _send(self, request: DohRequest) -> bool:
        """Complete the request; return whether the connection can take no other."""
        reader = http1.ResponseReader(MESSAGE_OCTETS_MAX)
        await self._stream.send_all(self._endpoint.encode_http1(request))
        while True:
            octets = await self._stream.receive_some(READ_OCTETS)
            self._received_at = trio.current_time()
            response = reader.receive_data(bytes(octets)) if octets else reader.receive_end()
            if response is not None:
                self.answered = True
                request.complete(_read_response(response))
                return reader.last
            if not octets:
                words = "closed the connection in mid-answer" if reader.begun else "disconnected"
                self._end(f"the endpoint {words}", by_us=False)
                await trio.lowlevel.checkpoint()  # raises Cancelled

    def forgive(self, lost_s: float, now: float) -> None:
        super().forgive(lost_s, now)
        self._sent_at = min(now, self._sent_at + lost_s)

    def tick(self, now: float) -> None:
        request = self._request
        if request is None:
            if now - self._received_at > IDLE_S:
                self._end("idle")
        elif now - self._sent_at > EXCHANGE_S:
            request.complete(TransportFailed(SLOW))
            self._end(SLOW)
        elif now - max(self._received_at, self._sent_at) > SILENCE_S:
            self._end("the connection went silent")

    def _release(self) -> None:
        left = [self._request] if self._request is not None else []
        self._endpoint.connection_closed(self, left, self._ended)
