"""One DoH endpoint: its connections, and the requests that wait for one.

A bug in the code of a connection fails the requests under way on it, as a failure of the
resolver, and ends that connection. Other connections and waiting requests are not affected.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import trio

from mailprobe.engine.background import contained, log_fault, supervised
from mailprobe.engine.dns import http1
from mailprobe.engine.dns.connections import (
    CLOSED,
    EXCHANGE_S,
    FAULT,
    SLOW,
    DohConnection,
    DohHttp1Connection,
    DohHttp2Connection,
    DohRequest,
)
from mailprobe.engine.dns.deadlines import LATE_S_LEAST, catch_up
from mailprobe.engine.dns.response import DNS_MESSAGE, NotProcessed, TransportFailed

if TYPE_CHECKING:
    import ssl

HANDSHAKE_S = 0.7  # for TCP, and as much for TLS
TICK_S = 0.1  # between two checks of the connections' deadlines
TRIES_MAX = 3  # a resolver that often ends its connections can fail one request twice
CONNECTIONS_MAX = 32  # of HTTP/1.1 to one endpoint; each carries one request at a time
EARLY_CLOSES_MAX = 8  # connections in a row that the endpoint closed soon, without an answer
EARLY_CLOSES_BACKOFF_S = 1.0  # then it is not connected to for this long
QUOTA_MAX = 1_000  # an endpoint that answers more on one connection may have all of them
QUEUED_MIN = 16  # requests at a time to an endpoint that takes few on one connection
RETIRE_S = 1.0  # between two connections that are replaced for their resets


class DohEndpoint:
    """One endpoint. Connections are opened as requests come, and closed when idle."""

    def __init__(
        self, url: str, nursery: trio.Nursery, tls: "Callable[[], ssl.SSLContext]"
    ) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._secure = parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._authority = parts.netloc
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._nursery = nursery
        self._tls = tls
        self._fields: dict[int, bytes] = {}  # length of a body -> header block
        self.waiting: deque[DohRequest] = deque()
        self._connections: set[DohConnection] = set()
        self._current: DohHttp2Connection | None = None  # takes requests
        self._http1 = not self._secure  # the endpoint speaks HTTP/1.1
        self._opening = 0
        self._handshakes: dict[trio.CancelScope, float] = {}  # when each is too slow
        self._watched = False
        self._closed = False
        self._replaced_at = float("-inf")
        self._early_closes = 0  # in a row
        self._early_close_at = float("-inf")
        self._quota = float("inf")  # requests that it takes on one HTTP/2 connection
        self._free_streams = CONNECTIONS_MAX  # until the version of HTTP is known
        self._on_capacity: Callable[[int], None] = _nothing

    # -- capacity -----------------------------------------------------------------------------

    def subscribe_capacity(self, on_change: Callable[[int], None]) -> None:
        self._on_capacity = on_change
        on_change(self._free_streams)

    def check_capacity(self) -> None:
        """Notify the listener when the number of requests that are taken at a time changes."""
        capacity = self._free_streams
        if self._http1:
            capacity = CONNECTIONS_MAX
        elif self._current is not None:
            capacity = self._current.free_streams
            if self._quota < capacity:  # one connection carries them, the next one is opened
                capacity = min(capacity, max(QUEUED_MIN, 2 * int(self._quota)))
        if capacity != self._free_streams:
            self._free_streams = capacity
            self._on_capacity(capacity)

    def replace(self, connection: DohHttp2Connection) -> None:
        """Retire a connection, unless another one was retired a moment ago."""
        now = trio.current_time()
        if connection is self._current and now - self._replaced_at >= RETIRE_S:
            self._replaced_at = now
            self._current = None
            connection.retire()
        self.check_capacity()

    # -- requests -----------------------------------------------------------------------------

    def submit(self, request: DohRequest) -> None:
        current = self._current
        if current is not None and not self.waiting and current.room:
            current.send(request)
            return
        if self._closed:
            request.complete(TransportFailed(CLOSED))
            return
        self.waiting.append(request)
        self.send_waiting()

    def learn_quota(self, taken: int) -> None:
        """The endpoint has taken only so many requests on one connection: send no more on others."""
        self._quota = taken if taken <= QUOTA_MAX else float("inf")
        self.check_capacity()

    def raise_quota(self, quota: float) -> None:
        """The endpoint may take so many."""
        if quota > self._quota:
            self._quota = quota if quota <= QUOTA_MAX else float("inf")
            self.check_capacity()

    def resubmit(self, request: DohRequest, why: str, *, counted: bool = True) -> None:
        """Put a request whose connection ended, or that was refused, at the front of the queue.

        It fails with `why` after TRIES_MAX tries; a try is not counted where the connection
        has answered others. If more requests wait then than the endpoint takes at a time, the
        last one fails as not processed.
        """
        request.tries += counted
        request.connection = None
        if request.settle is None:
            return
        if request.tries >= TRIES_MAX or self._closed:
            request.complete(TransportFailed(why))
            return
        self.waiting.appendleft(request)
        if not counted and len(self.waiting) > self._free_streams:
            self.waiting.pop().complete(NotProcessed(why))  # the caller knows whose turn it is

    def next_waiting(self) -> DohRequest | None:
        while self.waiting:
            request = self.waiting.popleft()
            if request.settle is not None:
                return request
        return None

    def send_waiting(self) -> None:
        """Send the waiting requests on connections that have room, and open others as needed."""
        current = self._current
        if current is not None and current.leaving:
            self._current = current = None  # it ends when its requests are answered
        if current is not None:
            while self.waiting and current.room:
                if (request := self.next_waiting()) is not None:
                    request.sent_at = trio.current_time()
                    current.send(request)
            if not self.waiting or current.room:
                return
            if current.leaving:  # that was its last one
                self._current = current = None
        if not self.waiting:
            return
        if self._http1:
            self._send_http1()
        elif current is None and not self._opening:
            self._open()

    def _send_http1(self) -> None:
        for connection in self._connections:
            if isinstance(connection, DohHttp1Connection) and connection.idle:
                if (request := self.next_waiting()) is None:
                    return
                connection.assign(request)
        connections = len(self._connections) + self._opening
        for _ in range(min(len(self.waiting) - self._opening, CONNECTIONS_MAX - connections)):
            self._open()

    def encode_http2(self, request: DohRequest) -> bytes:
        """The header block of this request over HTTP/2."""
        length = len(request.body)
        if (block := self._fields.get(length)) is None:
            from mailprobe.engine.dns import http2

            block = http2.request_fields(self._authority, self._target, DNS_MESSAGE, length)
            self._fields[length] = block
        return block

    def encode_http1(self, request: DohRequest) -> bytes:
        """This request over HTTP/1.1."""
        return http1.request(self._authority, self._target, DNS_MESSAGE, request.body)

    # -- connections --------------------------------------------------------------------------

    def _open(self) -> None:
        if (
            self._early_closes >= EARLY_CLOSES_MAX
            and trio.current_time() - self._early_close_at < EARLY_CLOSES_BACKOFF_S
        ):
            self._fail_waiting("the endpoint ends its connections")
            return
        self._opening += 1
        self._nursery.start_soon(contained, self._run_connection)
        if not self._watched:
            self._watched = True
            self._nursery.start_soon(supervised, self._watch)

    async def _run_connection(self) -> None:
        """Connect, and carry requests as long as the connection lasts."""
        failure = FAULT
        stream: trio.abc.Stream | None = None
        connection: DohConnection | None = None
        try:
            try:
                stream = await self._connect()
                connection = self._add_connection(stream)
            except (OSError, trio.BrokenResourceError) as error:
                failure = _reason(error)
            except trio.Cancelled:
                failure = CLOSED
                raise
            finally:
                self._opening -= 1
                if connection is None and all(other.leaving for other in self._connections):
                    self._fail_waiting(failure)
            if connection is not None:
                await connection.run()
        finally:
            if connection in self._connections:  # its own clean-up failed
                self._remove(connection)
            if stream is not None:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(stream)

    def _remove(self, connection: DohConnection) -> None:
        self._connections.discard(connection)
        if self._current is connection:
            self._current = None

    def _add_connection(self, stream: trio.abc.Stream) -> DohConnection:
        connection: DohConnection
        agreed = stream.selected_alpn_protocol() if isinstance(stream, trio.SSLStream) else None
        self._http1 = agreed != "h2"
        if self._http1:
            connection = DohHttp1Connection(self, stream)
        else:
            connection = self._current = DohHttp2Connection(self, stream, self._quota)
        self._connections.add(connection)
        return connection

    async def _connect(self) -> trio.abc.Stream:
        """Connect, with TLS where the URL says so. Raises OSError, and then leaves nothing open."""
        tcp: trio.SocketStream | None = None
        with self._handshake():
            tcp = await _connect_tcp(self._host, self._port)
        if tcp is None:
            raise TransportFailed("the connection was too slow")
        if not self._secure:
            return tcp
        try:
            tls = trio.SSLStream(
                tcp, self._tls(), server_hostname=self._host, https_compatible=True
            )
            with self._handshake():
                await tls.do_handshake()
                return tls
            raise TransportFailed("the TLS handshake was too slow")
        except BaseException:
            tcp.socket.close()
            raise

    @contextmanager
    def _handshake(self) -> Iterator[None]:
        """End the block quietly after HANDSHAKE_S in which this process ran; `_watch` counts."""
        with trio.CancelScope() as scope:
            self._handshakes[scope] = trio.current_time() + HANDSHAKE_S
            try:
                yield
            finally:
                del self._handshakes[scope]

    def connection_closed(
        self, connection: DohConnection, left: list[DohRequest], why: str, *, counted: bool = True
    ) -> None:
        """A connection has ended: send again what it left unanswered."""
        self._remove(connection)
        if connection.answered:
            self._early_closes = 0
        elif connection.closed_early:
            self._early_closes += 1
            self._early_close_at = trio.current_time()
        for request in reversed(left):
            if connection.faulty:
                request.complete(TransportFailed(why))
            else:
                self.resubmit(request, why or CLOSED, counted=counted)
        if self._closed:
            self._fail_waiting(CLOSED)
        else:
            self.send_waiting()

    def _fail_waiting(self, why: str) -> None:
        waiting, self.waiting = self.waiting, deque()
        for request in waiting:
            request.complete(TransportFailed(why))

    async def _watch(self) -> None:
        """Check all deadlines as long as there is a connection. No time runs while this process did not."""
        while self._connections or self._opening:
            due = trio.current_time() + TICK_S
            await trio.sleep_until(due)
            await catch_up(due)
            now = trio.current_time()
            if (late_s := now - due) > LATE_S_LEAST:
                for scope in self._handshakes:
                    self._handshakes[scope] += late_s
            for scope, ends_at in self._handshakes.items():
                if now >= ends_at:
                    scope.cancel()
            for connection in list(self._connections):
                connection.forgive(late_s, now)
                try:
                    connection.tick(now)
                except Exception:
                    log_fault(connection.tick)
                    connection.fail()
            while self.waiting and now - self.waiting[0].sent_at > EXCHANGE_S:
                self.waiting.popleft().complete(TransportFailed(SLOW))
        self._watched = False

    def close(self) -> None:
        self._closed = True
        self._fail_waiting(CLOSED)


def _nothing(_: object) -> None:
    """The callback of an endpoint without a listener."""


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
