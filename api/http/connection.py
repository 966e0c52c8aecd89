"""One client's connection: reads requests, runs them, and sends the answers.

One task reads, under one cancel scope (`ReadDeadline`). Each request runs in a task of its
own (an `Exchange`, see `api/http/exchange.py`). Sends have deadlines of their own
(`Output`).
"""

import os
import time
from collections.abc import Awaitable, Callable
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
    contain,
    new_request_id,
    refusal_headers,
)
from mailprobe.api.http.fast_parser import FastAnswer, FastRequest, read_fast
from mailprobe.api.http.incoming import IncomingBody, ReadDeadline, declared_octets
from mailprobe.api.http.output import READ_OCTETS, Output, linger, reset_on_close
from mailprobe.api.http.overload import Ticket, set_ticket
from mailprobe.api.http.request_bodies import ArrivingBody, set_arrival
from mailprobe.api.http.request_turn import RequestTurn
from mailprobe.api.http.strict_h11 import admit, strict_connection

if TYPE_CHECKING:
    from mailprobe.api.http.server import HttpServer

HEAD_WHEN_DRAINING_S = 1.0  # for the rest of a head; an idle connection is closed at once
SETTLE_S = 0.02


class HttpConnection(H11Protocol):
    """One client. HTTP/1.0 and 1.1 only; see `admit` for the reasons."""

    connection: h11.Connection  # never a web socket's

    def __init__(self, server: "HttpServer", wire: trio.SocketStream) -> None:
        sock = wire.socket
        super().__init__(
            server.app,  # type: ignore[arg-type]  # only passed back to spawn_app
            server.config,
            server.context,
            self,  # type: ignore[arg-type]  # in place of a task group: only spawn_app is used
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
        self._output = Output(wire, self._limits.send_s, self.abort)
        self.flush = self._output.flush  # not a method: no second call for each send
        self._deadline = ReadDeadline(trio.current_time() + self._limits.head_s)
        self._request: RequestTurn | None = None
        self._is_fast = False  # that request went round h11
        self._answered = trio.Event()
        self._head_begun = False
        self._method = b""
        self._body = IncomingBody(0, self._limits.body_octets_max, inf)
        self._is_evicted = False
        self._ending = False  # we close it
        self._gone = False  # the client has hung up, or the socket is closed

    # -- lifetime

    async def run(self) -> None:
        """Serve until either side closes. Raises only what must end the process."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._server.hang_ups.watch(self._wire.socket.fileno(), self._on_hang_up)
                with self._deadline.scope:
                    await self._read()
                    self._hang_up()
                if self._deadline.is_half_close_over:
                    self._hang_up()
                if not (self._gone or self._ending):
                    await self._refuse_incomplete()
            if not (self._gone or self._is_evicted):
                await self._linger()
        except BaseException as error:
            fatal = contain(error, "a connection failed")
            if fatal is not None:
                raise fatal from None
        finally:
            self._close()

    async def _read(self) -> None:
        """Feed the protocol until the client sends no more and has its last answer."""
        while True:
            try:
                # trio's receive_some tries to read first, which almost always fails here
                await trio.lowlevel.wait_readable(self._wire.socket)
                first = await self._wait_until_readable()
                began_s = time.thread_time()
                octets = self._read_after(first)
            except BlockingIOError:
                continue
            except (trio.ClosedResourceError, OSError):
                return
            if not octets:
                await self._finish_half_closed()
                return
            request = self._parse_fast(octets)
            if request is not None:
                await self._begin_fast(request, began_s)
                continue
            self.connection.receive_data(octets)
            if self._is_fast:  # a pipelined request
                await self._until_answered()
            await self._handle_events()

    async def _until_answered(self) -> None:
        self._answered = trio.Event()
        await self._answered.wait()

    async def _finish_half_closed(self) -> None:
        """The client has half-closed: it still gets the answer to a complete request."""
        self._half_close()
        while self._request is not None and self._body.whole.is_set():
            await self._until_answered()

    async def _wait_until_readable(self) -> bytes:
        """In an overrun, wait before reading a new request that overload control may reject.

        Returns the first octet of the request, which shows its method, or nothing.
        """
        if not self._server.is_overrun or self._request is not None or self._buffer:
            return b""
        first = os.read(self._wire.socket.fileno(), 1)
        if first == b"P":  # of POST; a GET is always read
            await self._server.park(self)
        return first

    def _read_after(self, first: bytes) -> bytes:
        """Return `first` and what has arrived after it. Raises BlockingIOError if both are empty."""
        try:
            return first + os.read(self._wire.socket.fileno(), READ_OCTETS)
        except BlockingIOError:
            if first:
                return first
            raise

    def _parse_fast(self, octets: bytes) -> FastRequest | None:
        """Return the request if the fast path may serve it, else None."""
        if (
            self._request is not None
            or self._buffer
            or self._output.pending
            or self._output.is_sending
            or self._ending
            or self._server.draining
            or self.connection.our_state is not h11.IDLE
        ):
            return None
        return read_fast(octets, self._limits.head_octets_max)

    async def _begin_fast(self, request: FastRequest, began_s: float) -> None:
        server, turn = self._server, self._new_request(request.method, request.target)
        turn.octets = len(request.body)
        if not server.run_request(turn):
            await self._reject_unread(began_s)
            return
        turn.exchange = exchange = Exchange(
            server.app,
            request.scope(self.client, self.server),
            partial(self._send_answer, FastAnswer()),
            self,
            server.error_body,
        )
        server.idle.pop(self, None)
        self._deadline.set(inf)
        self._method = b""  # that request is no HEAD
        self._body.whole.set()
        self.keep_alive_requests += 1
        await exchange.push({"type": "http.request", "body": request.body, "more_body": False})
        self._request, self._is_fast = turn, True
        self._nursery.start_soon(self._work, turn)

    def _new_request(self, method: str, target: bytes) -> RequestTurn:
        queue = self._server.admission_queue
        path = target.partition(b"?")[0]
        is_vital = path in self._server.vital and method in ("GET", "HEAD")
        ticket = Ticket(queue) if queue is not None and method == "POST" else None
        return RequestTurn(is_vital, ticket)

    async def _send_answer(self, answer: FastAnswer, message: Message) -> None:
        """Send one message of the answer to a request of the fast path."""
        ours = self.config.response_headers("h11")
        if self.keep_alive_requests >= self.config.keep_alive_max_requests:
            ours = [*ours, (b"connection", b"close")]
        self._output.pending += answer.octets_of(message, ours)
        if answer.ended:
            if answer.closes or self._server.draining:
                self._end()
            else:
                self._idle()

    async def _reject_unread(self, began_s: float) -> None:
        """Reject a request before anything is done for it, at the lowest possible cost."""
        self._output.pending += self._server.rejection()
        await self.flush()
        self._server.idle.pop(self, None)
        self._idle()
        self._server.charge_rejection(time.thread_time() - began_s)

    def _hang_up(self) -> None:
        self._gone = True
        if self._request is not None:
            self._request.exchange.hang_up()

    def _on_hang_up(self, both_ways: bool) -> None:
        """The kernel reports that the client sends no more, or has closed both ways."""
        if both_ways:
            self._hang_up()
            self._end()
        else:
            self._half_close()

    def _half_close(self) -> None:
        """The client may still read, or may be gone: it gets only an answer that is ready soon."""
        self._deadline.half_close()
        if self._request is not None:
            self._deadline.shorten(inf)

    async def _refuse_incomplete(self) -> None:
        """The read deadline has passed: refuse what is incomplete."""
        if self._request is not None or self._head_begun:
            code = "payload_too_large" if self._body.is_too_large else "request_timeout"
            await self._refuse("overloaded" if self._is_evicted else code)

    def _end(self) -> None:
        """Read no more; close when the answer under way has been sent."""
        self._end_work()
        self._ending = True
        self._server.forget(self)
        self._deadline.scope.cancel()

    def close_idle(self) -> None:
        """Close now if no request has begun."""
        if self._request is None and not self._head_begun:
            self._end()

    def _end_work(self) -> None:
        """Stop counting the request as in flight if its answer is complete."""
        if self._request is not None and self._request.exchange.ended:
            self._server.end_work(self._request)

    def evict_idle(self) -> None:
        """Close now to free capacity; an answer that the client does not read is cut off."""
        if self._output.is_sending:
            self.abort()
        else:
            self.close_idle()

    def evict(self) -> None:
        """Refuse the incomplete request with 503 to free capacity."""
        self._is_evicted = True
        self._server.forget(self)
        self._deadline.scope.cancel()

    def drain(self) -> None:
        self.close_idle()
        if self._request is None and self._head_begun:
            soon = trio.current_time() + HEAD_WHEN_DRAINING_S
            self._deadline.shorten(soon)

    async def _linger(self) -> None:
        """Let the client read our answer before input that it still sends causes a reset."""
        silent = (h11.IDLE, h11.DONE, h11.MUST_CLOSE, h11.CLOSED)
        if self.connection.their_state not in silent or self._buffer:
            await linger(self._wire, self._limits.linger_s)

    # -- input

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
            if event is h11.PAUSED:  # a pipelined request
                await self.can_read.clear()
                await self.can_read.wait()
            elif isinstance(event, h11.Request):
                await self._until_sent()
                self._method = event.method
                await self._begin(event)
            elif self.stream is None:
                return  # the rest of a body whose request was answered
            elif isinstance(event, h11.Data):
                await self._receive(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._deadline.set(inf)
                await self._end_of_body()
                await self.stream.handle(EndBody(stream_id=1))

    async def _until_sent(self) -> None:
        """Wait until the previous answer is in the kernel.

        Else a client that sends requests and reads nothing fills the memory with answers.
        """
        if self._output.is_sending:
            self._deadline.set(inf)  # sends have deadlines of their own
            await self._output.wait_until_sent()

    async def _end_of_body(self) -> None:
        """The request is complete: only now it counts as in flight."""
        self._body.whole.set()
        self._server.slow.pop(self, None)
        turn = self._request
        if turn is None or turn.is_over:
            return
        if turn.arrival is not None:
            turn.arrival.complete()
        if not self._server.run_request(turn):
            self._reject()

    def _reject(self) -> None:
        """Refuse the request under way; the application has not read its body."""
        if self._request is not None:
            self._request.exchange.refuse("overloaded")

    def _watch(self) -> None:
        """Set the deadline for the rest of a head or of a body."""
        if self._request is not None:
            if not self._body.whole.is_set():
                self._deadline.set(self._body.deadline)
        elif self._buffer and not self._head_begun:
            self._head_begun = True
            self._server.wait_for(self)
            self._deadline.set(trio.current_time() + self._limits.head_s)

    async def _begin(self, request: h11.Request) -> None:
        admitted = admit(request)
        if admitted is None:
            await self._refuse("invalid_request")
            return
        self._server.forget(self)
        deadline = trio.current_time() + self._limits.body_s
        self._body = IncomingBody(declared_octets(request), self._limits.body_octets_max, deadline)
        await self._create_stream(admitted)
        if self._body.is_over_declared:
            await self._stop_at_large_body()
        if self._body.is_expected:
            await self._until_needed()
        if self.connection.they_are_waiting_for_100_continue:
            await self._send_h11_event(
                h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            )
            await self.flush()

    async def _until_needed(self) -> None:
        """Read no body before the application asks for it: a request without an API key is
        refused before it costs any memory."""
        assert self._request is not None
        self._server.wait_for(self)
        self._deadline.set(self._body.deadline)
        await self._request.exchange.needed.wait()

    async def _receive(self, octets: bytes) -> None:
        assert self.stream is not None
        is_allowed = self._body.count(len(octets))
        turn = self._request
        if turn is not None and turn.arrival is not None and not self._body.is_discarded:
            turn.arrival.acquire(len(octets))
            if not turn.arrival.is_refused:
                await self.stream.handle(Body(stream_id=1, data=octets))
        if not is_allowed:
            await self._stop_at_large_body()

    async def _stop_at_large_body(self) -> None:
        """Read no more. The application has `refuse_s` to refuse for a reason that it checks
        first (an unknown route, a missing key); then the body is refused with 413."""
        self._body.is_too_large = True
        self._deadline.set(trio.current_time() + self._limits.refuse_s)
        await trio.sleep_forever()

    async def spawn_app(
        self, app: Any, config: Config, scope: Any, send: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Any], Awaitable[None]]:
        """Start a request; hypercorn calls this and sends its messages to the returned function."""
        scope["path"] = scope["raw_path"].decode("ascii")  # an encoded path is another path
        turn = self._new_request(scope["method"], scope["raw_path"])
        turn.exchange = Exchange(self._server.app, scope, send, self, self._server.error_body)
        if self._body.is_expected:
            address = self.client[0] if self.client else ""
            turn.arrival = ArrivingBody(self._server.intake, address, self._reject)
        self._request = turn
        self._nursery.start_soon(self._work, turn)
        return turn.exchange.push

    async def _work(self, turn: RequestTurn) -> None:
        if turn.ticket is not None:
            set_ticket(turn.ticket)
        if turn.arrival is not None:
            set_arrival(turn.arrival)
        try:
            if turn.ticket is not None:
                await turn.ticket.wait_until_active()
            await turn.exchange.run()
        finally:
            self._server.end(turn)

    # -- output

    @property
    def must_close(self) -> bool:
        return self._server.draining or self.connection.their_state is h11.SEND_BODY

    async def settle(self) -> None:
        """Wait up to SETTLE_S for the rest of the body before an early answer.

        Many clients send head and body in two packets. Without this wait, each refusal
        would close the connection and cost a new one.
        """
        self._body.is_discarded = True
        if self._request is not None:
            self._request.exchange.needed.set()
            if self._request.ticket is not None:
                self._request.ticket.leave()  # it has its answer
        if self.connection.their_state is h11.SEND_BODY and not (
            self._body.is_too_large or self._ending
        ):
            with trio.move_on_after(SETTLE_S):
                await self._body.whole.wait()

    async def _refuse(self, code: str) -> None:
        """Answer with this code and close; the request's own task answers if there is one."""
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
        """Called by hypercorn's protocol."""
        if isinstance(event, RawData):
            self._output.pending += event.data
        elif isinstance(event, Updated) and event.idle:
            self._idle()
        elif isinstance(event, Closed):
            self._end()

    def _idle(self) -> None:
        """The answer is complete: wait for the next request."""
        self._end_work()
        self._request = None
        self._is_fast = False
        self._answered.set()
        self._head_begun = False
        self._deadline.set(trio.current_time() + self._limits.keep_alive_s)
        self._server.mark_idle(self)

    def abort(self) -> None:
        """Close the socket now; in HTTP/1.0 by a reset, as a plain close would end the answer well."""
        if not self._gone:
            if self.connection.their_http_version == b"1.0":
                reset_on_close(self._wire)
            self._close()
            self._hang_up()
        self._end()

    def _close(self) -> None:
        number = self._wire.socket.fileno()
        if number >= 0:
            self._server.hang_ups.forget(number)
        self._wire.socket.close()
