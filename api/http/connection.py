"""One client's connection: it reads requests, has them worked on, and sends the answers.

A task reads, under one cancel scope whose deadline says what the client may take its
time for, and a task works on each request (an `Exchange`, see `api/http/exchange.py`). Sends
have a deadline of their own and are never shielded: a send that is cut off ends its
connection.
"""

import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from mailprobe.api.http.exchange import (
    REFUSALS,
    Exchange,
    Message,
    admit,
    contain,
    new_request_id,
    refusal_headers,
    strict_connection,
)
from mailprobe.api.http.fast_parser import FastAnswer, FastRequest, read_fast
from mailprobe.api.http.overload import Ticket, wait_at
from mailprobe.api.http.request_bodies import ArrivingBody, arriving

if TYPE_CHECKING:
    from mailprobe.api.http.server import HttpServer

READ_OCTETS = 1 << 16
SEND_OCTETS = 1 << 16  # what a client must take within `send_s`
LINGER_OCTETS_MAX = 16 << 20  # read and thrown away, so that an early answer is not reset
PIECES_MAX = 4096  # of a body: a chunk costs some 20 us to parse, however small it is
HEAD_WHEN_DRAINING_S = 1.0  # for a head that has begun to come; a request without one is none
SETTLE_S = 0.02
HALF_CLOSED_S = 0.1  # for an answer that waits for nobody, to a client that sends no more


@dataclass(slots=True, eq=False)
class RequestTurn:
    """A request, and what it holds of the server until it is over."""

    is_vital: bool  # it is served whatever else there is to do
    exchange: Exchange = field(init=False)
    ticket: Ticket | None = None  # in the anteroom, of a POST
    arrival: ArrivingBody | None = None  # of a body that did not come with the head
    octets: int = 0  # of a body that did
    is_held: bool = False  # those octets are counted by the intake
    at_work: bool = False  # counted among those in flight
    is_over: bool = False


class HttpConnection(H11Protocol):
    """One client. HTTP/1.1 alone: see `admit` for why.

    `_timeout` is the scope the reading runs under. Its deadline is moved as the
    conversation goes on, so that one scope watches everything a client may be slow at:

        the head      `head_s`         408 if it has begun
        the body      `body_s`         408, or 413 where it is too large
        the answer    none             the application's own affair
        idling        `keep_alive_s`   closed without a word
    """

    connection: h11.Connection  # never a web socket's

    def __init__(self, server: "HttpServer", wire: trio.SocketStream) -> None:
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
        self._timeout = trio.CancelScope(deadline=trio.current_time() + self._limits.head_s)
        self._request: RequestTurn | None = None  # of the request under way
        self._is_fast = False  # h11 knows nothing of that request
        self._answered = trio.Event()
        self._head_begun = False
        self._method = b""
        self._body_octets = 0
        self._body_pieces = 0
        self._body_whole = trio.Event()
        self._expects_body = False
        self._discards = False  # the body: the request has its answer
        self._body_deadline = inf
        self._half_closed_at = inf  # the client sends no more
        self._too_large = False
        self._is_evicted = False
        self._ending = False  # by us
        self._gone = False  # the client, or the socket

    # -- its life

    async def run(self) -> None:
        """Talk until either side ends it. Raises nothing but what must end the process."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._server.hang_ups.watch(self._wire.socket.fileno(), self._on_hang_up)
                with self._timeout:
                    await self._read()
                    self._hang_up()
                if trio.current_time() >= self._half_closed_at + HALF_CLOSED_S:
                    self._hang_up()
                if not (self._gone or self._ending):
                    await self._abandon_waiting()
            if not (self._gone or self._is_evicted):
                await self._linger()
        except BaseException as error:
            fatal = contain(error, "a connection failed")
            if fatal is not None:
                raise fatal from None
        finally:
            self._close()

    async def _read(self) -> None:
        """Feed the protocol until the client sends no more, and has its last answer."""
        while True:
            try:
                # trio's own would ask the kernel first, who says that nothing is there yet
                await trio.lowlevel.wait_readable(self._wire.socket)
                first = await self._until_it_is_its_turn()
                began_s = time.thread_time()
                octets = self._read_after(first)
            except BlockingIOError:
                continue
            except (trio.ClosedResourceError, OSError):
                return
            if not octets:
                await self._answer_the_last()
                return
            plain = self._parse_fast(octets)
            if plain is not None:
                await self._begin_fast(plain, began_s)
                continue
            self.connection.receive_data(octets)
            if self._is_fast:  # sent before its turn
                await self._until_answered()
            await self._handle_events()

    async def _until_answered(self) -> None:
        self._answered = trio.Event()
        await self._answered.wait()

    async def _answer_the_last(self) -> None:
        """The client sends no more. Where its request is whole it may still have its answer."""
        self._half_close()
        while self._request is not None and self._body_whole.is_set():
            await self._until_answered()

    async def _until_it_is_its_turn(self) -> bytes:
        """In an overrun, leave a new request unread that could be rejected.

        Returns what had to be read to see that it is one: its first octet.
        """
        if not self._server.overrun or self._request is not None or self._buffer:
            return b""
        first = os.read(self._wire.socket.fileno(), 1)
        if first == b"P":  # of POST; a GET is always read
            await self._server.park(self)
        return first

    def _read_after(self, first: bytes) -> bytes:
        """What has come, these octets before it. Raises BlockingIOError where there is nothing."""
        try:
            return first + os.read(self._wire.socket.fileno(), READ_OCTETS)
        except BlockingIOError:
            if first:
                return first
            raise

    def _parse_fast(self, octets: bytes) -> FastRequest | None:
        """The request that these are, if it may go the short way."""
        if (
            self._request is not None
            or self._buffer
            or self._out
            or self._sending.locked()
            or self._ending
            or self._server.draining
            or self.connection.our_state is not h11.IDLE
        ):
            return None
        return read_fast(octets, self._limits.head_octets_max)

    async def _begin_fast(self, plain: FastRequest, began_s: float) -> None:
        server, turn = self._server, self._new_request(plain.method, plain.target)
        turn.octets = len(plain.body)
        if not server.run_request(turn):
            await self._shed(began_s)
            return
        turn.exchange = exchange = Exchange(
            server.app,
            plain.scope(self.client, self.server),
            partial(self._send_answer, FastAnswer()),
            self,
            server.error_body,
        )
        server.idle.pop(self, None)
        self._set_deadline(inf)
        self._method = b""  # no HEAD any more
        self._body_whole.set()
        self.keep_alive_requests += 1
        await exchange.push({"type": "http.request", "body": plain.body, "more_body": False})
        self._request, self._is_fast = turn, True
        self._nursery.start_soon(self._work, turn)

    def _new_request(self, method: str, target: bytes) -> RequestTurn:
        room = self._server.admission_queue
        path = target.partition(b"?")[0]
        is_vital = path in self._server.vital and method in ("GET", "HEAD")
        return RequestTurn(
            is_vital, Ticket(room) if room is not None and method == "POST" else None
        )

    async def _send_answer(self, answer: FastAnswer, message: Message) -> None:
        """Write this message of the answer to a plain request."""
        ours = self.config.response_headers("h11")
        if self.keep_alive_requests >= self.config.keep_alive_max_requests:
            ours = [*ours, (b"connection", b"close")]
        self._out += answer.octets_of(message, ours)
        if answer.ended:
            if answer.closes or self._server.draining:
                self._end()
            else:
                self._idle()

    async def _shed(self, began_s: float) -> None:
        """Reject a request unread: so cheaply that the rest is served as if it had not come."""
        self._out += self._server.rejection()
        await self.flush()
        self._server.idle.pop(self, None)
        self._idle()
        self._server.has_rejected(time.thread_time() - began_s)

    def _hang_up(self) -> None:
        self._gone = True
        if self._request is not None:
            self._request.exchange.hang_up()

    def _on_hang_up(self, both_ways: bool) -> None:
        """The kernel says that the client sends no more, or has gone."""
        if both_ways:
            self._hang_up()
            self._end()
        else:
            self._half_close()

    def _half_close(self) -> None:
        """It may still read: but only what waits for nobody, as who has gone looks the same."""
        self._half_closed_at = min(self._half_closed_at, trio.current_time())
        if self._request is not None:
            self._set_deadline(self._timeout.deadline)

    def _set_deadline(self, deadline: float) -> None:
        self._timeout.deadline = min(deadline, self._half_closed_at + HALF_CLOSED_S)

    async def _abandon_waiting(self) -> None:
        """The client has used up its time."""
        if self._request is not None or self._head_begun:
            code = "payload_too_large" if self._too_large else "request_timeout"
            await self._refuse("overloaded" if self._is_evicted else code)

    def _end(self) -> None:
        """Read no further; the connection closes when what is under way has been sent."""
        self._end_work()
        self._ending = True
        self._server.forget(self)
        self._timeout.cancel()

    def close_idle(self) -> None:
        """Close it now if it waits for a request of which nothing has come."""
        if self._request is None and not self._head_begun:
            self._end()

    def _end_work(self) -> None:
        """The request under way is no work any more once its answer is whole."""
        if self._request is not None and self._request.exchange.ended:
            self._server.end_work(self._request)

    def evict_idle(self) -> None:
        """Make room for another now: an answer that is not read is given up."""
        if self._sending.locked():
            self.abort()
        else:
            self.close_idle()

    def evict(self) -> None:
        """Make room for another: this one has been waited for the longest."""
        self._is_evicted = True
        self._server.forget(self)
        self._timeout.cancel()

    def drain(self) -> None:
        self.close_idle()
        if self._request is None and self._head_begun:
            soon = trio.current_time() + HEAD_WHEN_DRAINING_S
            self._set_deadline(min(self._timeout.deadline, soon))

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
                await self._until_sent()
                self._method = event.method
                await self._begin(event)
            elif self.stream is None:
                return  # the rest of a body whose request has its answer
            elif isinstance(event, h11.Data):
                await self._receive(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._set_deadline(inf)
                await self._end_of_body()
                await self.stream.handle(EndBody(stream_id=1))

    async def _until_sent(self) -> None:
        """Wait until the kernel has taken the answer before this request.

        A client that sends requests and reads nothing would fill the memory with answers.
        """
        if self._sending.locked():
            self._set_deadline(inf)  # the sending has a deadline of its own
            async with self._sending:
                pass

    async def _end_of_body(self) -> None:
        """The request is whole: only now it is work."""
        self._body_whole.set()
        self._server.slow.pop(self, None)
        turn = self._request
        if turn is None or turn.is_over:
            return
        if turn.arrival is not None:
            turn.arrival.complete()
        if not self._server.run_request(turn):
            self._reject()

    def _reject(self) -> None:
        """Refuse the request under way. Nothing was begun: its body has not been read."""
        if self._request is not None:
            self._request.exchange.refuse("overloaded")

    def _watch(self) -> None:
        """More must come: of a head that has begun, or of a body."""
        if self._request is not None:
            if not self._body_whole.is_set():
                self._set_deadline(self._body_deadline)
        elif self._buffer and not self._head_begun:
            self._head_begun = True
            self._server.wait_for(self)
            self._set_deadline(trio.current_time() + self._limits.head_s)

    async def _begin(self, request: h11.Request) -> None:
        admitted = admit(request)
        if admitted is None:
            await self._refuse("invalid_request")
            return
        self._server.forget(self)
        self._body_deadline = trio.current_time() + self._limits.body_s
        self._body_octets = 0
        self._body_pieces = 0
        self._body_whole = trio.Event()
        self._discards = False
        declared = _declared_octets(request)
        self._expects_body = declared is None or 0 < declared <= self._limits.body_octets_max
        await self._create_stream(admitted)
        if declared is not None and declared > self._limits.body_octets_max:
            await self._stop_at_large_body()
        if self._expects_body:
            await self._until_needed()
        if self.connection.they_are_waiting_for_100_continue:
            await self._send_h11_event(
                h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            )
            await self.flush()

    async def _until_needed(self) -> None:
        """Read no body before the application asks for it: a request without a key has its
        answer before it has cost any memory."""
        assert self._request is not None
        self._server.wait_for(self)
        self._set_deadline(self._body_deadline)
        await self._request.exchange.needed.wait()

    async def _receive(self, octets: bytes) -> None:
        assert self.stream is not None
        self._body_octets += len(octets)
        self._body_pieces += 1
        turn = self._request
        if turn is not None and turn.arrival is not None and not self._discards:
            turn.arrival.acquire(len(octets))
            if not turn.arrival.is_refused:
                await self.stream.handle(Body(stream_id=1, data=octets))
        if self._body_octets > self._limits.body_octets_max or self._body_pieces > PIECES_MAX:
            await self._stop_at_large_body()

    async def _stop_at_large_body(self) -> None:
        """Read no further. The application has a moment to refuse in its own order of checks
        (an unknown route, a missing key); then it is refused here."""
        self._too_large = True
        self._set_deadline(trio.current_time() + self._limits.refuse_s)
        await trio.sleep_forever()

    async def spawn_app(
        self, app: Any, config: Config, scope: Any, send: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Any], Awaitable[None]]:
        """Begin a request; called by hypercorn, which puts its messages into what this gives."""
        scope["path"] = scope["raw_path"].decode("ascii")  # an encoded path is another path
        turn = self._new_request(scope["method"], scope["raw_path"])
        turn.exchange = Exchange(self._server.app, scope, send, self, self._server.error_body)
        if self._expects_body:
            address = self.client[0] if self.client else ""
            turn.arrival = ArrivingBody(self._server.intake, address, self._reject)
        self._request = turn
        self._nursery.start_soon(self._work, turn)
        return turn.exchange.push

    async def _work(self, turn: RequestTurn) -> None:
        if turn.ticket is not None:
            wait_at(turn.ticket)
        if turn.arrival is not None:
            arriving(turn.arrival)
        try:
            if turn.ticket is not None:
                await turn.ticket.turn()
            await turn.exchange.run()
        finally:
            self._server.end(turn)

    # -- what goes out

    @property
    def must_close(self) -> bool:
        return self._server.draining or self.connection.their_state is h11.SEND_BODY

    async def settle(self) -> None:
        """Wait a moment for a body's rest before an early answer, so that the connection may live on.

        Many clients send head and body in two packets; closing on each refusal of
        theirs would make every refusal cost a new connection.
        """
        self._discards = True
        if self._request is not None:
            self._request.exchange.needed.set()
            if self._request.ticket is not None:
                self._request.ticket.leave()  # it has its answer
        if self.connection.their_state is h11.SEND_BODY and not (self._too_large or self._ending):
            with trio.move_on_after(SETTLE_S):
                await self._body_whole.wait()

    async def _refuse(self, code: str) -> None:
        """Answer so, once and for all: by the request's own task if there is one."""
        if self._request is not None and not self._request.exchange.ended:
            self._request.exchange.refuse(code)
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
            self._idle()
        elif isinstance(event, Closed):
            self._end()

    def _idle(self) -> None:
        """The answer is written: wait for the next request."""
        self._end_work()
        self._request = None
        self._is_fast = False
        self._answered.set()
        self._head_begun = False
        self._set_deadline(trio.current_time() + self._limits.keep_alive_s)
        self._server.mark_idle(self)

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
            self._close()
            self._hang_up()
        self._end()

    def _close(self) -> None:
        number = self._wire.socket.fileno()
        if number >= 0:
            self._server.hang_ups.forget(number)
        self._wire.socket.close()


def _declared_octets(request: h11.Request) -> int | None:
    """As many as the body has; None where its end is told by chunks."""
    for name, value in request.headers:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return None
    return 0
