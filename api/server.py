"""The service's sockets: connections with their deadlines, limits, and the end of it all.

`serve_app` runs an ASGI application on given listeners until it is told to drain.
One `Connection` is one client: a task that reads, under one cancel scope whose
deadline says what the client may take its time for, and a task for each request
(an `Exchange`, see `api/asgi.py`). Sends have a deadline of their own and are
never shielded: a send that is cut off ends its connection.
"""

import errno
import logging
import os
import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from api.asgi import (
    REFUSALS,
    Application,
    ErrorBody,
    Exchange,
    Message,
    admit,
    contain,
    new_request_id,
    refusal_headers,
    strict_connection,
)
from api.plain import Plain, PlainAnswer, head_of, read_plain
from api.shedding import Anteroom, Place, wait_at

logger = logging.getLogger("mailprobe.http")

READ_OCTETS = 1 << 16
SEND_OCTETS = 1 << 16  # what a client must take within `send_s`
LINGER_OCTETS_MAX = 16 << 20  # read and thrown away, so that an early answer is not reset
PIECES_MAX = 4096  # of a body: a chunk costs some 20 us to parse, however small it is
HEAD_WHEN_DRAINING_S = 1.0  # for a head that has begun to come; a request without one is none
SETTLE_S = 0.02
BACKLOG = 1024
ACCEPTED_MAX = 32  # in one turn of the loop
USER_TIMEOUT_MS = 20_000  # sent and not acknowledged for so long: the kernel gives the client up


@dataclass(frozen=True, slots=True)
class Limits:
    """What one serving process bears. Counts are of a process, times of one connection."""

    connections_max: int = 2000
    in_flight_max: int = 1000  # requests at work; one more is told 503 at once
    requests_per_connection_max: int = 100_000
    head_octets_max: int = 16 * 1024
    body_octets_max: int = 2 * 1024 * 1024
    head_s: float = 10.0  # from the connection, or the head's first octet, to its last
    body_s: float = 10.0  # from the head to the body's last octet
    refuse_s: float = 1.0  # for the application to refuse a body that is too large in its order
    keep_alive_s: float = 75.0
    send_s: float = 15.0  # for each SEND_OCTETS
    linger_s: float = 2.0
    drain_s: float = 6.0  # open requests, once draining; a stop has 10 s in all


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for this address; to be made once, before any fork.

    A host name may have several addresses: with port 0 all get the port that the
    first was given, and one that this machine lacks (::1 where there is no IPv6) is
    left out. Raises OSError where none, or one in use, can be bound.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    lacking: OSError | None = None
    for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
        taken = sockets[0].getsockname()[1] if sockets else port
        try:
            sockets.append(_listening(family, (address[0], taken, *address[2:])))
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                for sock in sockets:
                    sock.close()
                raise
            lacking = error
    if lacking is not None and not sockets:
        raise lacking
    return sockets


def _listening(family: int, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # inherited by what is accepted
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def listeners_on(sockets: Iterable[socket.socket]) -> list[trio.SocketListener]:
    """trio's listeners on these sockets, which are theirs from now on."""
    return [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in sockets]


async def drain_on_signals(
    drain: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Set `drain` at SIGTERM or SIGINT. Runs until cancelled; more signals change nothing."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            drain.set()


async def serve_app(
    app: Application,
    listeners: Sequence[trio.SocketListener],
    *,
    drain: trio.Event,
    error_body: ErrorBody,
    limits: Limits | None = None,
    anteroom: Anteroom | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the application on these listeners; return when `drain` is set and all is done.

    A POST waits in the `anteroom` from its last octet on, until the application lets
    it in or answers; where that is full, it is told 503. Without one all are let in.

    Draining closes the listeners and what idles at once, lets open requests end for
    `limits.drain_s`, then cancels them. What a client sends or an application raises
    ends a connection at most; only a failure of accepting is raised. The ASGI
    lifespan is not spoken: the caller nests what the application needs around this.
    """
    server = _Server(app, error_body, limits or Limits(), anteroom)
    async with trio.open_nursery() as connections:
        try:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(server.accept, listener, connections)
                task_status.started()
                await drain.wait()
                accepting.cancel_scope.cancel()
        finally:
            for listener in listeners:
                listener.socket.close()
        await server.drain()
        connections.cancel_scope.deadline = trio.current_time() + server.limits.drain_s
    if connections.cancel_scope.cancelled_caught:
        logger.warning("requests were cut off %g s after the drain began", server.limits.drain_s)


class _Server:
    """What the connections of one `serve_app` share."""

    def __init__(
        self,
        app: Application,
        error_body: ErrorBody,
        limits: Limits,
        anteroom: Anteroom | None = None,
    ) -> None:
        self.app = app
        self.anteroom = anteroom
        self.error_body = error_body
        self.limits = limits
        self.config = _config(limits)
        self.context = WorkerContext(None)
        self.in_flight = 0
        self.connections: set[Connection] = set()
        self.idle: dict[Connection, None] = {}  # whoever has idled longest comes first
        self._room = trio.Semaphore(limits.connections_max)

    async def accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        """Accept for ever; a newcomer for whom there is no room waits, and the next one with him.

        Whoever has idled longest makes room for him, or the first to idle.
        """
        while True:
            await self._admit(await _accept(listener), nursery)
            for _ in range(ACCEPTED_MAX):
                wire = _accept_now(listener) if self._room.value else None
                if wire is None:
                    break
                await self._admit(wire, nursery)

    async def _admit(self, wire: trio.SocketStream, nursery: trio.Nursery) -> None:
        try:
            if self._room.value == 0 and self.idle:
                next(iter(self.idle)).close_idle()
            await self._enter()
        except trio.Cancelled:
            wire.socket.close()
            raise
        nursery.start_soon(self._hold, wire)

    async def _enter(self) -> None:
        try:
            self._room.acquire_nowait()  # almost always: no trip round the scheduler
        except trio.WouldBlock:
            await self._room.acquire()

    def rest(self, connection: "Connection") -> None:
        """This one idles from now on."""
        self.idle[connection] = None
        if self._room.value == 0 and self._room.statistics().tasks_waiting:
            connection.close_idle()

    async def _hold(self, wire: trio.SocketStream) -> None:
        try:
            connection = Connection(self, wire)
        except OSError:  # gone already
            wire.socket.close()
            self._room.release()
            return
        self.connections.add(connection)
        self.idle[connection] = None
        if self.draining:  # accepted just before
            connection.drain()
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            self.idle.pop(connection, None)
            self._room.release()

    @property
    def draining(self) -> bool:
        return self.context.terminated.is_set()

    async def drain(self) -> None:
        await self.context.terminated.set()
        for connection in list(self.connections):
            connection.drain()


class _Config(Config):
    """hypercorn's, with one date a second and not one an answer."""

    _dated: tuple[int, list[tuple[bytes, bytes]]] = (0, [])

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:
        second = int(time.time())
        if self._dated[0] != second:
            self._dated = second, super().response_headers(protocol)
        return self._dated[1]


def _config(limits: Limits) -> Config:
    """hypercorn's settings: only what its protocol reads is left to say."""
    config = _Config()
    config.accesslog = config.errorlog = None
    config.include_server_header = False
    config.keep_alive_max_requests = limits.requests_per_connection_max
    return config


_FULL = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


async def _accept(listener: trio.SocketListener) -> trio.SocketStream:
    while True:
        try:
            return await listener.accept()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            logger.error("no connection can be accepted: %s", error)
            await trio.sleep(0.1)  # as trio.serve_listeners does


def _accept_now(listener: trio.SocketListener) -> trio.SocketStream | None:
    """One who has come already, if there is one.

    trio's own goes round the scheduler for each: where a turn of the loop is long,
    newcomers would wait for as many turns as there are before them.
    """
    try:
        with socket.socket(fileno=os.dup(listener.socket.fileno())) as listening:
            accepted, _ = listening.accept()
    except OSError:  # nobody; or what the next turn is told
        return None
    accepted.setblocking(False)
    return trio.SocketStream(trio.socket.from_stdlib_socket(accepted))


class Connection(H11Protocol):
    """One client. HTTP/1.1 alone: see `admit` for why.

    `_patience` is the scope the reading runs under. Its deadline is moved as the
    conversation goes on, so that one scope watches everything a client may be slow at:

        the head      `head_s`         408 if it has begun
        the body      `body_s`         408, or 413 where it is too large
        the answer    none             the application's own affair
        idling        `keep_alive_s`   closed without a word
    """

    connection: h11.Connection  # never a web socket's

    def __init__(self, server: _Server, wire: trio.SocketStream) -> None:
        sock = wire.socket
        super().__init__(
            server.app,  # type: ignore[arg-type]  # only handed back to spawn_app
            server.config,
            server.context,
            self,  # type: ignore[arg-type]  # of a task group, spawn_app alone is used
            ConnectionState({}),
            False,
            parse_socket_addr(sock.family, sock.getpeername()),
            parse_socket_addr(sock.family, sock.getsockname()),
            self._on_event,
        )
        self.connection, self._buffer = strict_connection(server.limits.head_octets_max)
        self._server = server
        self._limits = server.limits
        self._wire = wire
        self._sending = trio.Lock()
        self._out = bytearray()
        self._hurried = 0  # octets sent since the sender last let others run
        self._patience = trio.CancelScope(deadline=trio.current_time() + self._limits.head_s)
        self._exchange: Exchange | None = None
        self._is_plain = False  # that exchange: h11 knows nothing of it
        self._answered = trio.Event()
        self._place: Place | None = None  # of a POST
        self._head_begun = False
        self._method = b""
        self._body_octets = 0
        self._body_pieces = 0
        self._body_whole = trio.Event()
        self._body_deadline = inf
        self._too_large = False
        self._ending = False  # by us
        self._gone = False  # the client, or the socket

    # -- its life

    async def run(self) -> None:
        """Talk until either side ends it. Raises nothing but what must end the process."""
        try:
            async with trio.open_nursery() as self._nursery:
                with self._patience:
                    await self._read()
                    self._hang_up()
                if not (self._gone or self._ending):
                    await self._give_up_waiting()
            if not self._gone:
                await self._linger()
        except BaseException as error:
            fatal = contain(error, "a connection failed")
            if fatal is not None:
                raise fatal from None
        finally:
            self._wire.socket.close()

    async def _read(self) -> None:
        """Feed the protocol until the client is gone."""
        while True:
            try:
                # trio's own would ask the kernel first, who says that nothing is there yet
                await trio.lowlevel.wait_readable(self._wire.socket)
                octets = os.read(self._wire.socket.fileno(), READ_OCTETS)
            except BlockingIOError:
                continue
            except (trio.ClosedResourceError, OSError):
                return
            if not octets:
                return
            plain = self._plain_in(octets)
            if plain is not None:
                await self._begin_plain(plain)
                continue
            self.connection.receive_data(octets)
            if self._is_plain:  # sent before its turn
                self._answered = trio.Event()
                await self._answered.wait()
            await self._handle_events()

    def _plain_in(self, octets: bytes) -> Plain | None:
        """The request that these are, if it may go the short way."""
        if (
            self._exchange is not None
            or self._buffer
            or self._out
            or self._ending
            or self._server.draining
            or self.connection.our_state is not h11.IDLE
        ):
            return None
        return read_plain(octets, self._limits.head_octets_max)

    async def _begin_plain(self, plain: Plain) -> None:
        server, place = self._server, None
        if server.anteroom is not None and plain.method == "POST":
            place = Place(server.anteroom)
            if not place.take():
                await self._shed()
                return
        server.idle.pop(self, None)
        self._patience.deadline = inf
        self._method = b""  # no HEAD any more
        self.keep_alive_requests += 1
        exchange = Exchange(
            server.app,
            plain.scope(self.client, self.server),
            partial(self._say, PlainAnswer()),
            self,
            server.error_body,
        )
        await exchange.put({"type": "http.request", "body": plain.body, "more_body": False})
        self._exchange, self._is_plain, self._place = exchange, True, place
        self._nursery.start_soon(self._work, exchange, place)

    async def _say(self, answer: PlainAnswer, message: Message) -> None:
        """Write this message of the answer to a plain request."""
        ours = self.config.response_headers("h11")
        if self.keep_alive_requests >= self.config.keep_alive_max_requests:
            ours = [*ours, (b"connection", b"close")]
        self._out += answer.octets_of(message, ours)
        if answer.ended:
            if answer.closes or self._server.draining:
                self._end()
            else:
                self._rest()

    async def _shed(self) -> None:
        """Refuse a request unread: so cheaply that the rest is served as if it had not come."""
        body = self._server.error_body("overloaded")
        headers = [
            *REFUSALS["overloaded"].headers,
            *refusal_headers(body, new_request_id()),
            *self.config.response_headers("h11"),
        ]
        self._out += head_of(REFUSALS["overloaded"].status, headers) + body
        await self.flush()
        self._server.idle.pop(self, None)
        self._rest()

    def _hang_up(self) -> None:
        self._gone = True
        if self._exchange is not None:
            self._exchange.hang_up()

    async def _give_up_waiting(self) -> None:
        """The client has used up its time."""
        if self._exchange is not None:
            await self._refuse("payload_too_large" if self._too_large else "request_timeout")
        elif self._head_begun:
            await self._refuse("request_timeout")

    def _end(self) -> None:
        """Read no further; the connection closes when what is under way has been sent."""
        self._ending = True
        self._server.idle.pop(self, None)
        self._patience.cancel()

    def close_idle(self) -> None:
        """Close it now if it waits for a request of which nothing has come."""
        if self._exchange is None and not self._head_begun:
            self._end()

    def drain(self) -> None:
        self.close_idle()
        if self._exchange is None and self._head_begun:
            soon = trio.current_time() + HEAD_WHEN_DRAINING_S
            self._patience.deadline = min(self._patience.deadline, soon)

    async def _linger(self) -> None:
        """Let the client read our answer before what it still sends resets the connection."""
        silent = (h11.IDLE, h11.DONE, h11.MUST_CLOSE, h11.CLOSED)
        if self.connection.their_state in silent and not self._buffer:
            return
        with trio.move_on_after(self._limits.linger_s):
            try:
                await self._wire.send_eof()
                for _ in range(LINGER_OCTETS_MAX // READ_OCTETS):
                    if not await self._wire.receive_some(READ_OCTETS):
                        return
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    # -- what comes in

    async def _handle_events(self) -> None:
        while True:
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError:
                await self._refuse("invalid_request")
                return
            if event is h11.NEED_DATA:
                self._watch()
                return
            if event is h11.PAUSED:  # a request that was sent before the last one's answer
                await self.can_read.clear()
                await self.can_read.wait()
            elif isinstance(event, h11.Request):
                self._method = event.method
                await self._begin(event)
            elif self.stream is None:
                return  # the rest of a body whose request has its answer
            elif isinstance(event, h11.Data):
                await self._take(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._patience.deadline = inf
                self._body_whole.set()
                if self._place is not None and not self._place.take():
                    self._turn_away()
                await self.stream.handle(EndBody(stream_id=1))

    def _turn_away(self) -> None:
        """Refuse the request that is whole now. Nothing was begun: its body has not been read."""
        if self._exchange is not None:
            self._exchange.refuse("overloaded")

    def _watch(self) -> None:
        """More must come: of a head that has begun, or of a body."""
        if self._exchange is not None:
            if not self._body_whole.is_set():
                self._patience.deadline = self._body_deadline
        elif self._buffer and not self._head_begun:
            self._head_begun = True
            self._server.idle.pop(self, None)
            self._patience.deadline = trio.current_time() + self._limits.head_s

    async def _begin(self, request: h11.Request) -> None:
        admitted = admit(request)
        if admitted is None:
            await self._refuse("invalid_request")
            return
        self._server.idle.pop(self, None)
        self._body_deadline = trio.current_time() + self._limits.body_s
        self._body_octets = 0
        self._body_pieces = 0
        self._body_whole = trio.Event()
        await self._create_stream(admitted)
        if _declared_octets(request) > self._limits.body_octets_max:
            await self._stop_at_large_body()
        if self.connection.they_are_waiting_for_100_continue:
            await self._send_h11_event(
                h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            )
            await self.flush()

    async def _take(self, octets: bytes) -> None:
        assert self.stream is not None
        self._body_octets += len(octets)
        self._body_pieces += 1
        await self.stream.handle(Body(stream_id=1, data=octets))
        if self._body_octets > self._limits.body_octets_max or self._body_pieces > PIECES_MAX:
            await self._stop_at_large_body()

    async def _stop_at_large_body(self) -> None:
        """Read no further. The application has a moment to refuse in its own order of checks
        (an unknown route, a missing key); then it is refused here."""
        self._too_large = True
        self._patience.deadline = trio.current_time() + self._limits.refuse_s
        await trio.sleep_forever()

    async def spawn_app(
        self, app: Any, config: Config, scope: Any, send: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Any], Awaitable[None]]:
        """Begin a request; called by hypercorn, which puts its messages into what this gives."""
        exchange = Exchange(self._server.app, scope, send, self, self._server.error_body)
        self._exchange = exchange
        anteroom = self._server.anteroom
        self._place = Place(anteroom) if anteroom is not None and self._method == b"POST" else None
        self._nursery.start_soon(self._work, exchange, self._place)
        return exchange.put

    async def _work(self, exchange: Exchange, place: Place | None) -> None:
        if place is None:
            await self._work_within_bounds(exchange)
            return
        wait_at(place)
        try:
            await self._work_within_bounds(exchange)
        finally:
            place.leave()

    async def _work_within_bounds(self, exchange: Exchange) -> None:
        server = self._server
        if server.in_flight >= self._limits.in_flight_max:
            await exchange.answer("overloaded")
            return
        server.in_flight += 1
        try:
            await exchange.run()
        finally:
            server.in_flight -= 1

    # -- what goes out

    @property
    def must_close(self) -> bool:
        return self._server.draining or self.connection.their_state is h11.SEND_BODY

    async def settle(self) -> None:
        """Wait a moment for a body's rest before an early answer, so that the connection may live on.

        Many clients send head and body in two packets; closing on each refusal of
        theirs would make every refusal cost a new connection.
        """
        if self.connection.their_state is h11.SEND_BODY and not (self._too_large or self._ending):
            with trio.move_on_after(SETTLE_S):
                await self._body_whole.wait()

    async def _refuse(self, code: str) -> None:
        """Answer so, once and for all: by the request's own task if there is one."""
        if self._exchange is not None and not self._exchange.ended:
            self._exchange.refuse(code)
        elif self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = self._server.error_body(code)
            headers = [*refusal_headers(body, new_request_id()), (b"connection", b"close")]
            headers += self.config.response_headers("h11")
            status = REFUSALS[code].status
            await self._send_h11_event(h11.Response(status_code=status, headers=headers))
            if self._method != b"HEAD":
                await self._send_h11_event(h11.Data(data=body))
            await self._send_h11_event(h11.EndOfMessage())
            await self.flush()
        self._end()

    async def _on_event(self, event: Event) -> None:
        """What the protocol says to its connection."""
        if isinstance(event, RawData):
            self._out += event.data
        elif isinstance(event, Updated) and event.idle:
            self._rest()
        elif isinstance(event, Closed):
            self._end()

    def _rest(self) -> None:
        """The answer is written: wait for the next request."""
        self._exchange = None
        self._is_plain = False
        self._answered.set()
        self._head_begun = False
        self._patience.deadline = trio.current_time() + self._limits.keep_alive_s
        self._server.rest(self)

    async def flush(self) -> None:
        """Send what is written. A client that does not take it loses its connection."""
        if not self._out:
            return
        if not self._sending.locked() and self._send_now():
            await trio.lowlevel.checkpoint_if_cancelled()  # the client may be gone
            if self._hurried >= SEND_OCTETS:  # whoever sends without a pause lets others in
                self._hurried = 0
                await trio.lowlevel.checkpoint()
            return
        try:
            self._sending.acquire_nowait()  # almost always free: no trip round the scheduler
        except trio.WouldBlock:
            await self._sending.acquire()
        try:
            await self._send_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.abort()
        except trio.Cancelled:
            self.abort()  # nobody knows how much of it is out
            raise
        finally:
            self._sending.release()

    def _send_now(self) -> bool:
        """Hand it to the kernel, which almost always has room for all of it; else False.

        Without the scope and the trip round the scheduler that waiting takes, an answer
        costs half as much to send.
        """
        try:
            sent = os.write(self._wire.socket.fileno(), self._out)
        except BlockingIOError:
            return False
        except OSError:
            self.abort()
            return True
        del self._out[:sent]
        self._hurried += sent
        return not self._out

    async def _send_all(self) -> None:
        octets, self._out = self._out, bytearray()
        for start in range(0, len(octets), SEND_OCTETS):
            with trio.move_on_after(self._limits.send_s) as patience:
                await self._wire.send_all(memoryview(octets)[start : start + SEND_OCTETS])
            if patience.cancelled_caught:
                raise trio.BrokenResourceError("the client does not read")

    def abort(self) -> None:
        """Close the socket now. By a reset in HTTP/1.0, where a close would mean a whole answer."""
        if not self._gone:
            if self.connection.their_http_version == b"1.0":
                reset = struct.pack("ii", 1, 0)
                self._wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            self._wire.socket.close()
            self._hang_up()
        self._end()


def _declared_octets(request: h11.Request) -> int:
    for name, value in request.headers:
        if name == b"content-length":
            return int(value)
    return 0
