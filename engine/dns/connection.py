"""One connection to a DoH endpoint: HTTP/2 where TLS agrees on it, else HTTP/1.1.

The endpoint assigns queries to it, from the moment when it begins to connect. One task reads
and another writes what has gathered, so queries of one turn share a write, and one read
settles all that it answers: no query has a task of its own. A bug in this code fails the
queries under way on this connection, as a failure of the resolver, and ends it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import trio
from msgspec import Struct, field

from ..background import log_fault, separate
from . import http1
from .deadlines import NEVER, DeadlineClock, Timer
from .messages import MESSAGE_OCTETS_MAX
from .query_queue import Query
from .response import (
    DISCONNECTED,
    DNS_MESSAGE,
    HttpResponse,
    NotHttp,
    Outcome,
    StreamRefused,
)

if TYPE_CHECKING:
    import ssl

    from . import http2

HANDSHAKE_S = 0.7  # for TCP, and as much for TLS
EXCHANGE_S = 5.0  # for a body that comes slowly; its caller has long stopped waiting
SILENCE_S = 1.2  # without a byte while a request is under way; below a look-up's 1.5 s
PING_S = 0.6  # after this silence an HTTP/2 connection is sent a PING
IDLE_S = 30.0
TICK_S = 0.1  # between two checks of these deadlines
EARLY_CLOSE_S = 0.25  # a connection that the endpoint closes sooner and unused is closed early
READ_OCTETS = 64 * 1024

CLOSED = "the transport is closed"
FAULT = "the transport failed by a fault of ours"
SLOW = "the answer was too slow"


class Target(Struct, frozen=True):
    """Where an endpoint is, and the heads of the requests to it."""

    host: str
    port: int
    authority: str
    path: str
    tls: "Callable[[], ssl.SSLContext] | None"  # None: without TLS
    _heads: dict[tuple[bool, int], bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, url: str, tls: "Callable[[], ssl.SSLContext]") -> "Target":
        """The target of a URL that check_doh_url has returned."""
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        port = parts.port or (443 if is_secure else 80)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.hostname or "", port, parts.netloc, path, tls if is_secure else None)

    def head(self, length: int, *, http2: bool) -> bytes:
        """The head of a request with a body of this length, over either version of HTTP."""
        if (head := self._heads.get((http2, length))) is None:
            if http2:
                from .http2 import request_fields

                head = request_fields(self.authority, self.path, DNS_MESSAGE, length)
            else:
                head = http1.request_head(self.authority, self.path, DNS_MESSAGE, length)
            self._heads[http2, length] = head
        return head


class ConnectionEnd(Struct, frozen=True):
    """How a connection ended, and what it leaves."""

    why: str
    left: list[Query]  # neither answered nor cancelled
    opened: bool
    answers: bool = False  # the endpoint has answered, if only with a failure
    taken: int = 0  # queries that it has answered, if it has ended the connection
    is_fault: bool = False  # our own code has failed
    closed_early: bool = False  # the endpoint closed it soon and without an answer
    filled: float = 0  # its quota, if it had taken so many and the endpoint did not say GOAWAY


class ConnectionOwner(Protocol):
    """The endpoint, as its connections see it."""

    def opened(self, *, is_http1: bool) -> None: ...
    def receive(self, query: Query, outcome: Outcome, taken: int | None) -> None: ...
    def fail(self, query: Query, why: str) -> None: ...
    def send_again(self, queries: list[Query], why: str, *, counted: bool) -> None: ...
    def closed(self, connection: "DohConnection", end: ConnectionEnd) -> None: ...
    def mark(self) -> None: ...


class _Silence:
    """How long an endpoint has been silent. Time in which this process did not run does not count."""

    __slots__ = ("_clock", "_lost_s", "_since", "is_awaited", "is_pinged")

    def __init__(self, clock: DeadlineClock) -> None:
        self._clock = clock
        self._lost_s = clock.lost_s
        self._since = trio.current_time()
        self.is_awaited = False  # a query was sent since the endpoint last sent anything
        self.is_pinged = False

    def begin(self, now: float) -> None:
        """Something else is expected of it from now on: the silence begins anew."""
        self._since = now

    def query_sent(self, now: float, *, is_only: bool) -> None:
        """A query was sent. The silence began earlier if another query is under way."""
        if is_only and not self.is_awaited:
            self._since = now
        self.is_awaited = True

    def end(self, now: float) -> None:
        """It has sent something."""
        self._since = now
        self.is_awaited = self.is_pinged = False

    def seconds(self, now: float) -> float:
        lost_s, self._lost_s = self._clock.lost_s - self._lost_s, self._clock.lost_s
        self._since = min(now, self._since + lost_s)
        return now - self._since

    def note_ping(self) -> None:
        """A PING was sent."""
        self.is_pinged = True


class DohConnection:
    """A connection with its deadlines. It takes `capacity` queries until it is open."""

    def __init__(
        self,
        target: Target,
        clock: DeadlineClock,
        owner: ConnectionOwner,
        capacity: int,
        quota: float,
    ) -> None:
        self._target = target
        self._clock = clock
        self._owner = owner
        self._capacity = capacity
        self._quota = quota  # queries that it takes in all
        self._scope = trio.CancelScope()
        self._stream: trio.abc.Stream | None = None
        self._http: http1.Http1Connection[Query] | http2.Http2Connection[Query] | None = None
        self._numbers: dict[Query, int] = {}  # of their streams
        self._writer: trio.lowlevel.Task | None = None  # while it waits for something to write
        self._is_http1 = False
        self._silence = _Silence(clock)
        self._phase = "the connection"
        self._opened_at = trio.current_time()
        self._ended = ""  # the reason, for the queries that are left
        self._is_fault = False
        self._by_endpoint = False
        self._answers = 0
        self._useless = True  # the endpoint has answered nothing

    # -- what the endpoint sees -----------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many queries it takes now."""
        if self._ended:
            return 0
        return self._capacity - len(self._numbers) if self._http is None else self._http.room

    @property
    def capacity(self) -> int | None:
        """How many queries it carries at a time; None until that is known."""
        return None if self._http is None else self._http.streams_max

    @property
    def leaving(self) -> bool:
        """Whether it takes no more queries."""
        return bool(self._ended) or (self._http is not None and self._http.leaving)

    @property
    def worn(self) -> bool:
        """Whether cancelled queries keep their places, so that another connection is better."""
        return self._http is not None and self._http.abandoned > 0

    def send(self, query: Query, now: float) -> None:
        """Send the query, as soon as the connection is open; there must be room."""
        http = self._http
        if http is None:
            self._numbers[query] = 0
            return
        self._silence.query_sent(now, is_only=not http.under_way)
        head = self._target.head(len(query.question), http2=not self._is_http1)
        self._numbers[query] = http.send_request(query, head, query.question)
        self._flush()

    def cancel(self, query: Query) -> None:
        """Free its place at once, as far as the protocol allows."""
        number = self._numbers.pop(query, 0)
        if self._http is not None and number:
            self._http.cancel_request(number)
            self._flush()
            if self._http.spent:
                self._end("given up")

    def retire(self) -> None:
        """Take no more queries, and end when those under way are answered."""
        if self._http is not None:
            self._http.retire()

    def fail(self) -> None:
        """End the connection because of a bug in our own code."""
        self._is_fault = True
        self._end(FAULT)

    def check_deadlines(self, now: float) -> float:
        """End the connection, or a query on it, if its time is over. Returns when to check again."""
        http, silence = self._http, self._silence
        silent_s = silence.seconds(now)
        if http is None:
            if silent_s >= HANDSHAKE_S:
                self._end(f"{self._phase} was too slow")
        elif http.spent:
            self._end("retired")
        elif not http.under_way and not silence.is_awaited:
            if silent_s > IDLE_S:
                self._end("idle")
        else:
            self._check_queries(now)
            if silent_s > SILENCE_S:
                self._end("the connection went silent")
            elif silent_s > PING_S and not silence.is_pinged:
                silence.note_ping()
                http.ping()
                self._flush()
        return NEVER if self._ended else _next_check(now)

    def _check_queries(self, now: float) -> None:
        for query in list(self._numbers):
            if query.sent_at is None or now - query.sent_at < EXCHANGE_S:
                break  # they are in the order they were sent, or nearly
            self.cancel(query)
            self._owner.fail(query, SLOW)

    # -- its task -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect, and carry queries until the connection ends."""
        try:
            Timer(self._clock, self.check_deadlines).start(_next_check(self._opened_at))
            with self._scope:
                self._stream = await self._connect()
                self._begin()
                await self._carry()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._end(_reason(error) if self._http is None else DISCONNECTED, by_endpoint=True)
        except BaseException as error:
            fatal, fault = separate(error)
            if fault is not None:
                log_fault(self.run, fault)
                self.fail()
            if fatal is not None:
                raise fatal from None
        finally:
            try:
                self._owner.closed(self, self._result())
            finally:
                if self._stream is not None:
                    with trio.CancelScope(shield=True):
                        await trio.aclose_forcefully(self._stream)

    def _result(self) -> ConnectionEnd:
        http = self._http
        soon = trio.current_time() - self._opened_at < EARLY_CLOSE_S
        return ConnectionEnd(
            self._ended or CLOSED,
            list(self._numbers),
            http is not None,
            not self._useless,
            self._answers if self._by_endpoint else 0,
            self._is_fault,
            self._by_endpoint and self._useless and http is not None and soon,
            self._quota if http is not None and http.full and http.taken is None else 0,
        )

    async def _connect(self) -> trio.abc.Stream:
        """Connect, with TLS where the URL says so. Raises OSError; `_stream` is what to close."""
        target = self._target
        self._stream = tcp = await _connect_tcp(target.host, target.port)
        if target.tls is None:
            return tcp
        self._phase = "the TLS handshake"
        self._silence.begin(trio.current_time())
        tls = trio.SSLStream(tcp, target.tls(), server_hostname=target.host, https_compatible=True)
        await tls.do_handshake()
        return tls

    def _begin(self) -> None:
        """Speak the protocol that TLS has agreed on; send what has room there."""
        stream = self._stream
        agreed = stream.selected_alpn_protocol() if isinstance(stream, trio.SSLStream) else None
        self._is_http1 = agreed != "h2"
        if self._is_http1:
            self._http = http1.Http1Connection(body_octets_max=MESSAGE_OCTETS_MAX)
        else:
            from . import http2  # here, not above: hpack is slow to import

            self._http = http2.Http2Connection(
                body_octets_max=MESSAGE_OCTETS_MAX, quota=self._quota
            )
        self._opened_at = trio.current_time()
        self._silence.begin(self._opened_at)
        self._owner.opened(is_http1=self._is_http1)
        assigned, room = list(self._numbers), self._http.room
        for query in assigned[:room]:
            self.send(query, self._opened_at)
        self._owner.send_again(assigned[room:], "", counted=False)
        for query in assigned[room:]:
            self._numbers.pop(query, None)

    async def _carry(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            await self._read()
            nursery.cancel_scope.cancel()

    async def _read(self) -> None:
        http, stream = self._http, self._stream
        assert http is not None
        assert stream is not None
        why = DISCONNECTED
        try:
            while octets := await stream.receive_some(READ_OCTETS):
                self._silence.end(trio.current_time())
                http.receive_data(bytes(octets))
                self._deliver()
                self._flush()
                if http.spent:
                    self._end("it takes no more questions", by_endpoint=True)
                self._owner.mark()
            why = http.receive_end()
        except trio.BrokenResourceError:
            pass
        except NotHttp as error:
            why = f"it sends {error}"
        self._deliver()  # what came before the end
        self._end(why, by_endpoint=True)

    def _deliver(self) -> None:
        """Hand over what is settled."""
        assert self._http is not None
        for query, outcome in self._http.pop_settled():
            if self._numbers.pop(query, None) is None:
                continue  # cancelled, by the caller of one that was settled before
            self._useless = self._useless and isinstance(outcome, StreamRefused)
            self._answers += isinstance(outcome, HttpResponse)
            try:
                self._owner.receive(query, outcome, self._http.taken)
            except BaseException:  # `_numbers` no longer holds it
                self._owner.fail(query, FAULT)
                raise

    def _flush(self) -> None:
        if self._writer is not None:
            trio.lowlevel.reschedule(self._writer)
            self._writer = None

    async def _write(self) -> None:
        http, stream = self._http, self._stream
        assert http is not None
        assert stream is not None

        def abort(_: object) -> trio.lowlevel.Abort:
            self._writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        try:
            while True:
                if octets := http.pop_out():
                    await stream.send_all(octets)
                else:
                    self._writer = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(abort)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._end(DISCONNECTED, by_endpoint=True)

    def _end(self, why: str, *, by_endpoint: bool = False) -> None:
        if not self._ended:
            self._ended, self._by_endpoint = why, by_endpoint
        self._scope.cancel()


def _next_check(now: float) -> float:
    """When to check deadlines next: at one time with the other connections."""
    return TICK_S * (int(now / TICK_S + 0.5) + 1)


async def _connect_tcp(host: str, port: int) -> trio.SocketStream:
    family = trio.socket.AF_INET6 if ":" in host else trio.socket.AF_INET
    connection = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    try:
        await connection.connect((host, port))
    except BaseException:
        connection.close()
        raise
    return trio.SocketStream(connection)


def _reason(error: BaseException) -> str:
    """The first cause in words. An untrusted certificate comes wrapped in other errors."""
    words = type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        refused = getattr(cause, "verify_message", None)  # of an ssl.SSLCertVerificationError
        if refused:
            return f"certificate not accepted: {refused}"
        words = getattr(cause, "strerror", None) or str(cause) or words
        cause = cause.__cause__ or cause.__context__
    return words
