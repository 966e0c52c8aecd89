"""DNS over HTTPS as octets: one question to one endpoint (RFC 8484).

The transport knows nothing of DNS but its content type. Each endpoint has one HTTP/2
connection where TLS agrees on it, and some HTTP/1.1 ones where not. A question that is
given up frees its place at once: its stream is reset, its HTTP/1.1 connection closed.
Servers end connections with too many resets, so a connection that has used up
RESETS_MAX is replaced first. Questions that are put at one time share a write, and one
read settles all that it answers: there is no task for a question. Endpoints are named
by address, for the system's resolver is never asked.

A bug in the code of a connection fails the questions under way there, as a resolver's
failure, and ends that connection. The others, and those who wait, do not notice.
"""

import select
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import urlsplit

import trio

from mailprobe.engine.background import contained, log_fault, separate, supervised
from mailprobe.engine.dns import http1
from mailprobe.engine.dns.messages import MESSAGE_OCTETS_MAX
from mailprobe.engine.dns.response import HttpResponse, NotHttp, TooLong
from mailprobe.engine.net.dialer import numeric

if TYPE_CHECKING:
    import ssl

    from mailprobe.engine.dns import http2

EXCHANGE_S = 5.0  # a body that drips; long after its asker has gone
HANDSHAKE_S = 0.7  # of these for TCP, and as much for TLS
SILENCE_S = 1.2  # with a question under way; found out within a look-up's 1.5 s
PING_S = 0.6  # silent for so long, an HTTP/2 connection is made to say something
TICK_S = 0.1  # how often the clocks of connections are looked at
TRIES_MAX = 3  # a resolver that ends its connections often can meet one question twice
CONNECTIONS_MAX = 32  # of HTTP/1.1 to one endpoint: each bears one question at a time
IDLE_S = 30.0
BARREN_MAX = 8  # connections in a row that the endpoint ended soon, without one answer
BARREN_LIFE_S = 0.25  # soon after the handshake
BARREN_S = 1.0  # then it is not connected to for so long
RESETS_MAX = 200  # on one connection: servers that count them hang up after 500 to 1,000
RETIRE_S = 1.0  # between two connections replaced for that
READ_OCTETS = 64 * 1024


class TransportFailed(OSError):
    """No DNS message came back: not reached, not HTTP 200, no DNS, too long."""


class DohTransport(Protocol):
    """Carries one question to one endpoint; the time limit is the caller's."""

    async def exchange(self, url: str, query: bytes) -> bytes:
        """The answer's octets, or TransportFailed."""
        ...


def check_doh_url(url: str) -> str:
    """The endpoint's URL as it will be asked, or ValueError in words for the operator.

    `localhost` becomes 127.0.0.1; any other name would need the resolver that this
    endpoint is.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(f"{error}; it takes https://address/path") from None
    if not (url.isascii() and url.isprintable() and " " not in url):
        raise ValueError("a URL has no spaces, control characters or letters beyond ASCII")
    if parts.scheme not in ("https", "http") or not host:
        raise ValueError("it takes https://address/path, such as https://9.9.9.9/dns-query")
    if parts.username is not None or parts.fragment:
        raise ValueError("it takes neither a user nor a fragment")
    try:
        address = numeric(host)
    except ValueError:
        raise ValueError(
            f"name the endpoint by its address, not as {host}: no other resolver is asked"
        ) from None
    # Python 3.13 calls ::ffff:127.0.0.1 loopback too; nobody writes that and means well.
    mapped = getattr(address, "ipv4_mapped", None) is not None
    if parts.scheme == "http" and (mapped or not address.is_loopback):
        raise ValueError("http:// is taken for loopback addresses alone; use https://")
    where = f"[{address}]" if address.version == 6 else str(address)
    where += f":{port}" if port is not None else ""
    return f"{parts.scheme}://{where}{parts.path}" + (f"?{parts.query}" if parts.query else "")


@dataclass(frozen=True, slots=True)
class DohResponse:
    """What an endpoint sent: the DNS message, and its Date header."""

    octets: bytes
    date: str | None


Settle = Callable[["DohResponse | TransportFailed"], None]


class _Request:
    """A question and whom to tell; once told, or given up, it tells nobody."""

    __slots__ = ("body", "connection", "sent_at", "settle", "stream", "tries")

    def __init__(self, body: bytes, settle: Settle) -> None:
        self.body = body
        self.settle: Settle | None = settle
        self.sent_at = trio.current_time()
        self.tries = 0
        self.connection: _HttpConnection | None = None  # the connection it was written to
        self.stream = 0  # of that, where it is HTTP/2

    def complete(self, reported: "DohResponse | TransportFailed") -> None:
        self.connection = None
        if (settle := self.settle) is not None:
            self.settle = None
            try:
                settle(reported)
            except Exception:  # of its asker's: the connection has others to serve
                log_fault(settle)

    def cancel(self) -> None:
        """Free what it holds: nobody wants the answer."""
        if self.settle is not None:
            self.settle = None
            if (line := self.connection) is not None:
                self.connection = None
                line.drop(self)


_DNS_MESSAGE = "application/dns-message"
_SLOW = "the answer was too slow"
_CLOSED = "the transport is closed"
_FAULT = "the transport failed by a fault of ours"


def _answer(reply: HttpResponse) -> DohResponse | TransportFailed:
    """The DNS message in this response, or why there is none."""
    if reply.status != 200:
        return TransportFailed(f"HTTP status {reply.status}")
    if reply.kind != b"application/dns-message":
        kind = reply.kind.decode("latin-1").partition(";")[0].strip().lower()
        if kind != _DNS_MESSAGE:
            return TransportFailed(f"an answer of type {kind[:40] or 'unknown'}, not DNS")
    return DohResponse(reply.body, reply.date.decode("latin-1") or None)


def _overlong() -> TransportFailed:
    return TransportFailed(f"an answer of more than {MESSAGE_OCTETS_MAX} octets")


class _HttpConnection(ABC):
    """One connection of an endpoint, and its clock."""

    def __init__(self, endpoint: "_Endpoint", stream: trio.abc.Stream) -> None:
        self._endpoint = endpoint
        self._stream = stream
        self._scope = trio.CancelScope()
        self._received_at = trio.current_time()
        self._ended = ""  # why, for those whose questions it still had
        self.answered = False  # any question
        self._opened_at = self._received_at
        self.barren = False  # the endpoint ended it soon and without an answer
        self.faulty = False  # our own code has failed

    async def run(self) -> None:
        """Carry questions until the connection ends; then those left are asked elsewhere.

        Where our own code fails they have failed: asked again, they might fail it again.
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
        """End it for a fault of ours."""
        self.faulty = True
        self._end(_FAULT)

    @property
    def leaving(self) -> bool:
        """It takes no more questions."""
        return bool(self._ended)

    @abstractmethod
    async def _carry(self) -> None:
        """Write questions and read answers until the connection ends."""

    @abstractmethod
    def _release(self) -> None:
        """Settle what is left: it is asked elsewhere, or has failed."""

    @abstractmethod
    def drop(self, question: _Request) -> None:
        """Nobody wants the answer to this question: free its place."""

    @abstractmethod
    def tick(self, now: float) -> None:
        """Look at the clocks."""

    def _end(self, why: str, *, by_us: bool = True) -> None:
        if not (by_us or self._ended or self.answered):
            # Later it may be for a question that hangs, and says nothing of the endpoint.
            self.barren = trio.current_time() - self._opened_at < BARREN_LIFE_S
        self._ended = self._ended or why
        self._scope.cancel()


class _Http2Connection(_HttpConnection):
    """An HTTP/2 connection: a task that reads, and one that writes what has gathered."""

    def __init__(self, endpoint: "_Endpoint", stream: trio.abc.Stream) -> None:
        from mailprobe.engine.dns import http2  # here, not above: hpack takes its time to come in

        super().__init__(endpoint, stream)
        self._http: http2.Http2Connection[_Request] = http2.Http2Connection(
            self._settle, body_octets_max=MESSAGE_OCTETS_MAX
        )
        self._two = http2
        self._writer: trio.lowlevel.Task | None = None  # while it waits for something to write
        self._pinged = False
        self._unheard = False  # something was asked since the server last spoke
        self._busy_at = trio.current_time()  # a question was under way, or put
        self._resets = 0
        self._dropped: set[_Request] = set()  # not reset: their streams are still open

    @property
    def room(self) -> bool:
        return self._http.room and not self._ended

    @property
    def free_streams(self) -> int:
        """How many questions it carries at a time."""
        return self._http.streams_max - len(self._dropped)

    @property
    def leaving(self) -> bool:
        return self._http.leaving or bool(self._ended)

    def send(self, question: _Request) -> None:
        http = self._http
        if not http.under_way and not self._unheard:  # else the silence has begun already
            self._busy_at = trio.current_time()
        self._unheard = True
        question.connection = self
        question.stream = http.send_request(
            question, self._endpoint.fields(question), question.body
        )
        self._flush()

    def drop(self, question: _Request) -> None:
        """Reset its stream; with RESETS_MAX used up, leave it open until the line retires."""
        if self._resets < RESETS_MAX:
            self._resets += 1
            self._http.cancel_request(question.stream)
            self._flush()
        else:
            self._dropped.add(question)
            self._endpoint.replace(self)
        self._endpoint.send_waiting()

    def retire(self) -> None:
        """Take no more questions, and end when those under way are answered."""
        for question in self._dropped:
            self._http.forget(question.stream)
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
                self._pinged = self._unheard = False
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

    def _settle(self, question: _Request, reported: "http2.Outcome") -> None:
        try:
            self._receive(question, reported)
        except BaseException:  # it is no longer among those that the connection gives back
            question.complete(TransportFailed(_FAULT))
            raise

    def _receive(self, question: _Request, reported: "http2.Outcome") -> None:
        two = self._two
        if self._dropped:
            self._dropped.discard(question)
        if isinstance(reported, HttpResponse):
            self.answered = True
            question.complete(_answer(reported))
        elif isinstance(reported, two.StreamRefused):
            self._endpoint.resubmit(question, "it takes no more questions")
        elif isinstance(reported, two.Overlong):
            question.complete(_overlong())
        else:
            question.complete(TransportFailed(f"the endpoint gave the question up ({reported})"))

    def tick(self, now: float) -> None:
        http = self._http
        if http.spent:
            self._end("retired")
            return
        if self._dropped:
            self._endpoint.replace(self)
        if not http.under_way and not self._unheard:
            if now - self._busy_at > IDLE_S:
                self._end("idle")
            return
        for question in http.requests():
            if now - question.sent_at < EXCHANGE_S:
                break  # they lie in the order they were asked, or nearly
            http.cancel_request(question.stream)
            question.complete(TransportFailed(_SLOW))
        silent_s = now - self._busy_at
        if silent_s > SILENCE_S:
            self._end("the connection went silent")
        elif silent_s > PING_S and not self._pinged:
            self._pinged = True
            http.ping()
        if http.out:
            self._flush()

    def _release(self) -> None:
        self._endpoint.withdraw(self, self._http.take_back(), self._ended)


class _Http1Connection(_HttpConnection):
    """An HTTP/1.1 connection: one question after the other."""

    def __init__(self, endpoint: "_Endpoint", stream: trio.abc.Stream) -> None:
        super().__init__(endpoint, stream)
        self._request: _Request | None = None
        self._sent_at = self._received_at
        self._task: trio.lowlevel.Task | None = None  # while it waits for a question

    @property
    def idle(self) -> bool:
        return self._request is None and not self._ended

    def assign(self, question: _Request) -> None:
        """Ask this next; the connection must be idle."""
        self._request, self._sent_at = question, trio.current_time()
        question.connection = self
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def drop(self, question: _Request) -> None:
        """The connection has to go: its next octets would be this question's answer."""
        if self._request is question:
            self._request = None
        self._end("given up")

    async def _carry(self) -> None:
        used = False
        while True:
            if self._request is None and (waiting := self._endpoint.next_waiting()) is not None:
                self.assign(waiting)
            if self._request is None:
                await self._wait()
            question = self._request
            assert question is not None  # nobody wakes us without
            if used and self._has_ended():
                self._request = question.connection = None
                self._endpoint.waiting.appendleft(question)
                return
            used = True
            try:
                last = await self._send(question)
            except TooLong:
                question.complete(_overlong())
                last = True
            except NotHttp as error:
                question.complete(TransportFailed(f"it sends {error}"))
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
        """Anything that comes while nothing is asked is the end, or as good as that."""
        stream = self._stream
        if isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        poll = select.poll()
        poll.register(cast(trio.SocketStream, stream).socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    async def _send(self, question: _Request) -> bool:
        """Tell the answer; say whether the connection is of no more use."""
        answer = http1.ResponseReader(MESSAGE_OCTETS_MAX)
        await self._stream.send_all(self._endpoint.request(question))
        while True:
            octets = await self._stream.receive_some(READ_OCTETS)
            self._received_at = trio.current_time()
            reply = answer.receive_data(bytes(octets)) if octets else answer.receive_end()
            if reply is not None:
                self.answered = True
                question.complete(_answer(reply))
                return answer.last
            if not octets:
                words = "closed the connection in mid-answer" if answer.begun else "disconnected"
                self._end(f"the endpoint {words}", by_us=False)
                await trio.lowlevel.checkpoint()  # which is cancelled

    def tick(self, now: float) -> None:
        question = self._request
        if question is None:
            if now - self._received_at > IDLE_S:
                self._end("idle")
        elif now - self._sent_at > EXCHANGE_S:
            question.complete(TransportFailed(_SLOW))
            self._end(_SLOW)
        elif now - max(self._received_at, self._sent_at) > SILENCE_S:
            self._end("the connection went silent")

    def _release(self) -> None:
        left = [self._request] if self._request is not None else []
        self._endpoint.withdraw(self, left, self._ended)


class _Endpoint:
    """A resolver: its connections, and the questions that wait for one."""

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
        self._fields: dict[int, bytes] = {}  # length of the body -> header block
        self.waiting: deque[_Request] = deque()
        self._connections: set[_HttpConnection] = set()
        self._current: _Http2Connection | None = None  # that takes questions
        self._one = not self._secure  # it speaks HTTP/1.1
        self._opening = 0
        self._watched = False
        self._closed = False
        self._replaced_at = float("-inf")
        self._barren = 0  # connections in a row that it ended without an answer
        self._barren_at = float("-inf")
        self._free_streams = CONNECTIONS_MAX  # until it is known what the endpoint speaks
        self._notify_capacity: Callable[[int], None] = _nothing

    # -- capacity -----------------------------------------------------------------------------

    def subscribe_capacity(self, tell: Callable[[int], None]) -> None:
        self._notify_capacity = tell
        tell(self._free_streams)

    def check_capacity(self) -> None:
        """Notify the listener when the endpoint takes more questions at a time, or fewer."""
        places = self._free_streams
        if self._one:
            places = CONNECTIONS_MAX
        elif self._current is not None:
            places = self._current.free_streams
        if places != self._free_streams:
            self._free_streams = places
            self._notify_capacity(places)

    def replace(self, line: _Http2Connection) -> None:
        """Let a connection retire, unless another one did a moment ago."""
        now = trio.current_time()
        if line is self._current and now - self._replaced_at >= RETIRE_S:
            self._replaced_at = now
            self._current = None
            line.retire()
        self.check_capacity()

    # -- questions ----------------------------------------------------------------------------

    def submit(self, question: _Request) -> None:
        current = self._current
        if current is not None and not self.waiting and current.room:
            current.send(question)
            return
        if self._closed:
            question.complete(TransportFailed(_CLOSED))
            return
        self.waiting.append(question)
        self.send_waiting()

    def resubmit(self, question: _Request, why: str) -> None:
        """A question whose connection ended, or that was refused: within its tries, at the front."""
        question.tries += 1
        question.connection = None
        if question.settle is None:
            return
        if question.tries >= TRIES_MAX or self._closed:
            question.complete(TransportFailed(why))
            return
        self.waiting.appendleft(question)

    def next_waiting(self) -> _Request | None:
        while self.waiting:
            question = self.waiting.popleft()
            if question.settle is not None:
                return question
        return None

    def send_waiting(self) -> None:
        """Give the waiting questions to connections, and open one where it takes one."""
        current = self._current
        if current is not None and current.leaving:
            self._current = current = None  # it ends when all it has is answered
        if current is not None:
            while self.waiting and current.room:
                if (question := self.next_waiting()) is not None:
                    question.sent_at = trio.current_time()
                    current.send(question)
            if not self.waiting or current.room:
                return
        if not self.waiting:
            return
        if self._one:
            self._send_one()
        elif current is None and not self._opening:
            self._open()

    def _send_one(self) -> None:
        for line in self._connections:
            if isinstance(line, _Http1Connection) and line.idle:
                if (question := self.next_waiting()) is None:
                    return
                line.assign(question)
        connections = len(self._connections) + self._opening
        for _ in range(min(len(self.waiting) - self._opening, CONNECTIONS_MAX - connections)):
            self._open()

    def fields(self, question: _Request) -> bytes:
        """The header block of this question over HTTP/2."""
        length = len(question.body)
        if (block := self._fields.get(length)) is None:
            from mailprobe.engine.dns import http2

            block = http2.request_fields(self._authority, self._target, _DNS_MESSAGE, length)
            self._fields[length] = block
        return block

    def request(self, question: _Request) -> bytes:
        """This question over HTTP/1.1."""
        return http1.request(self._authority, self._target, _DNS_MESSAGE, question.body)

    # -- connections --------------------------------------------------------------------------

    def _open(self) -> None:
        if self._barren >= BARREN_MAX and trio.current_time() - self._barren_at < BARREN_S:
            self._fail_waiting("the endpoint ends its connections")
            return
        self._opening += 1
        self._nursery.start_soon(contained, self._run_connection)
        if not self._watched:
            self._watched = True
            self._nursery.start_soon(supervised, self._watch)

    async def _run_connection(self) -> None:
        """Connect, and carry questions as long as the connection holds."""
        trouble = _FAULT
        stream: trio.abc.Stream | None = None
        line: _HttpConnection | None = None
        try:
            try:
                stream = await self._connect()
                line = self._connection_closed(stream)
            except (OSError, trio.BrokenResourceError) as error:
                trouble = _reason(error)
            except trio.Cancelled:
                trouble = _CLOSED
                raise
            finally:
                self._opening -= 1
                if line is None and all(other.leaving for other in self._connections):
                    self._fail_waiting(trouble)
            if line is not None:
                await line.run()
        finally:
            if line in self._connections:  # it could not even leave
                self._remove(line)
            if stream is not None:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(stream)

    def _remove(self, line: _HttpConnection) -> None:
        self._connections.discard(line)
        if self._current is line:
            self._current = None

    def _connection_closed(self, stream: trio.abc.Stream) -> _HttpConnection:
        line: _HttpConnection
        agreed = stream.selected_alpn_protocol() if isinstance(stream, trio.SSLStream) else None
        self._one = agreed != "h2"
        if self._one:
            line = _Http1Connection(self, stream)
        else:
            line = self._current = _Http2Connection(self, stream)
        self._connections.add(line)
        return line

    async def _connect(self) -> trio.abc.Stream:
        """A connection that has shaken hands, or OSError; what is half made is closed."""
        tcp: trio.SocketStream | None = None
        with trio.move_on_after(HANDSHAKE_S):
            tcp = await _connect_tcp(self._host, self._port)
        if tcp is None:
            raise TransportFailed("the connection was too slow")
        if not self._secure:
            return tcp
        try:
            tls = trio.SSLStream(
                tcp, self._tls(), server_hostname=self._host, https_compatible=True
            )
            with trio.move_on_after(HANDSHAKE_S):
                await tls.do_handshake()
                return tls
            raise TransportFailed("the TLS handshake was too slow")
        except BaseException:
            tcp.socket.close()
            raise

    def withdraw(self, line: _HttpConnection, left: list[_Request], why: str) -> None:
        """A connection has ended: what it left unanswered is asked again."""
        self._remove(line)
        if line.answered:
            self._barren = 0
        elif line.barren:
            self._barren += 1
            self._barren_at = trio.current_time()
        for question in reversed(left):
            if line.faulty:
                question.complete(TransportFailed(why))
            else:
                self.resubmit(question, why or _CLOSED)
        if self._closed:
            self._fail_waiting(_CLOSED)
        else:
            self.send_waiting()

    def _fail_waiting(self, why: str) -> None:
        waiting, self.waiting = self.waiting, deque()
        for question in waiting:
            question.complete(TransportFailed(why))

    async def _watch(self) -> None:
        """Look at all clocks as long as there is a connection."""
        while self._connections or self._opening:
            await trio.sleep(TICK_S)
            now = trio.current_time()
            for line in list(self._connections):
                try:
                    line.tick(now)
                except Exception:
                    log_fault(line.tick)
                    line.fail()
            while self.waiting and now - self.waiting[0].sent_at > EXCHANGE_S:
                self.waiting.popleft().complete(TransportFailed(_SLOW))
        self._watched = False

    def close(self) -> None:
        self._closed = True
        self._fail_waiting(_CLOSED)


def _nothing(_: object) -> None:
    """Nobody listens."""


async def _connect_tcp(host: str, port: int) -> trio.SocketStream:
    family = trio.socket.AF_INET6 if ":" in host else trio.socket.AF_INET
    connection = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    try:
        await connection.connect((host, port))
    except BaseException:
        connection.close()
        raise
    return trio.SocketStream(connection)


class Transport:
    """DNS over HTTPS on real sockets: no redirect, no cookie, no proxy from the environment."""

    def __init__(self, nursery: trio.Nursery, ca_file: str | None) -> None:
        self._nursery = nursery
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None
        self._endpoints: dict[str, _Endpoint] = {}

    async def exchange(self, url: str, query: bytes) -> bytes:
        return (await self.enqueue_message(url, query)).octets

    async def enqueue_message(self, url: str, query: bytes) -> DohResponse:
        """Ask; again where the connection ended under the question (GOAWAY), TRIES_MAX times in all.

        Raises TransportFailed, or ValueError for a URL that check_doh_url refuses.
        """
        task = trio.lowlevel.current_task()
        reported: list[DohResponse | TransportFailed] = []
        waiting = False

        def settle(answer: DohResponse | TransportFailed) -> None:
            reported.append(answer)
            if waiting:
                trio.lowlevel.reschedule(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            give_up()
            return trio.lowlevel.Abort.SUCCEEDED

        give_up = self.begin(url, query, settle)
        if reported:
            await trio.lowlevel.checkpoint()
        else:
            waiting = True
            await trio.lowlevel.wait_task_rescheduled(abort)
        [answer] = reported
        if isinstance(answer, TransportFailed):
            raise answer
        return answer

    def begin(self, url: str, query: bytes, settle: Settle) -> Callable[[], None]:
        """Ask, and have `settle` told what `enqueue_message` would give or raise; it may be told at once.

        What is given back gives the question up: then `settle` is told nothing. Raises
        ValueError for a URL that check_doh_url refuses.
        """
        endpoint = self._endpoint(url)
        question = _Request(query, settle)
        endpoint.submit(question)
        return question.cancel

    def subscribe_capacity(self, url: str, tell: Callable[[int], None]) -> None:
        """Have `tell` called with the number of questions that the endpoint takes at a time.

        It is called now, and when the number changes. Raises ValueError as `begin` does.
        """
        self._endpoint(url).subscribe_capacity(tell)

    def _endpoint(self, url: str) -> _Endpoint:
        endpoint = self._endpoints.get(url)
        if endpoint is None:
            checked = check_doh_url(url)
            endpoint = self._endpoints.get(checked)
            if endpoint is None:
                endpoint = _Endpoint(checked, self._nursery, self._context)
            self._endpoints[url] = self._endpoints[checked] = endpoint
        return endpoint

    def _context(self) -> "ssl.SSLContext":
        if self._tls is None:
            self._tls = tls_context(self._ca_file)
            self._tls.set_alpn_protocols(["h2", "http/1.1"])
        return self._tls

    def close(self) -> None:
        for endpoint in self._endpoints.values():
            endpoint.close()


def _reason(error: BaseException) -> str:
    """The first cause in words: an untrusted certificate comes wrapped in other errors."""
    words = type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        refused = getattr(cause, "verify_message", None)  # of an ssl.SSLCertVerificationError
        if refused:
            return f"certificate not accepted: {refused}"
        words = getattr(cause, "strerror", None) or str(cause) or words
        cause = cause.__cause__ or cause.__context__
    return words


@asynccontextmanager
async def open_transport(ca_file: str | None = None) -> AsyncIterator[Transport]:
    """A transport to real endpoints; its connections end with the block.

    Endpoints must show a certificate for their address by an authority of `ca_file`,
    or else of the system; these are read when the first connection wants them.
    """
    async with trio.open_nursery() as nursery:
        transport = Transport(nursery, ca_file)
        try:
            yield transport
        finally:
            transport.close()
            nursery.cancel_scope.cancel()


def tls_context(ca_file: str | None) -> "ssl.SSLContext":
    """How a client checks certificates: by the authorities of this file alone, or the system's."""
    import ssl

    context = ssl.create_default_context(cafile=ca_file)
    context.hostname_checks_common_name = False  # RFC 9525 6.3: by its names alone
    known = ssl.get_default_verify_paths()
    if ca_file is None and known.cafile is None and known.capath is None:
        import certifi  # a container without the system's authorities

        context.load_verify_locations(certifi.where())
    return context
