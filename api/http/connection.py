"""One client's connection: reads requests, runs them, and sends the answers.

One task reads, under one cancel scope (`ReadDeadline`). The octets become events by one of
two readers (`api/http/parser.py`), answers become octets by one encoder
(`api/http/encoder.py`). Each request runs in a task of its own (an `Exchange`, see
`api/http/exchange.py`). Sends have deadlines of their own (`Output`).
"""

import os
import time
from functools import partial
from math import inf

import trio
from hypercorn.utils import parse_socket_addr
from msgspec.structs import replace

from ..admission.request_bodies import ArrivingBody
from .encoder import CONTINUE, ResponseEncoder, error_messages
from .exchange import Exchange, RequestTurn, contain
from .incoming import IncomingBody, ReadDeadline
from .output import READ_OCTETS, Output, linger, reset_on_close
from .parser import (
    FastReader,
    MalformedRequest,
    Mark,
    RequestHead,
    RequestReader,
    StrictReader,
)
from .received_request import Admission, Message, new_request_id
from .shared import HttpServer

HEAD_WHEN_DRAINING_S = 1.0  # for the rest of a head; an idle connection is closed at once
SETTLE_S = 0.02


class HttpConnection:
    """One client. HTTP/1.0 and 1.1 only."""

    def __init__(self, server: HttpServer, wire: trio.SocketStream) -> None:
        sock = wire.socket
        self._client = parse_socket_addr(sock.family, sock.getpeername())
        self._own_address = parse_socket_addr(sock.family, sock.getsockname())
        self._server = server
        self._limits = server.limits
        self._wire = wire
        self._fast = FastReader(self._limits.head_octets_max)
        self._strict = StrictReader(self._limits.head_octets_max)
        self._output = Output(wire, self._limits.send_s, self.abort)
        self.flush = self._output.flush  # not a method: no second call for each send
        self._deadline = ReadDeadline(trio.current_time() + self._limits.head_s)
        self._request: RequestTurn | None = None
        self._requests = 0  # so far
        self._encoder: ResponseEncoder | None = None  # of the latest request
        self._answered = trio.Event()
        self._head_begun = False
        self._body = IncomingBody(0, self._limits.body_octets_max, inf)
        self._is_upgraded = False
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
            fatal = contain(error, "connection failed")
            if fatal is not None:
                raise fatal from None
        finally:
            self._close()

    async def _read(self) -> None:
        """Feed a reader until the client sends no more and has its last answer."""
        while True:
            if (
                self._wire.socket.fileno() < 0
            ):  # aborted meanwhile: no selector takes a closed socket
                return
            try:
                # trio's receive_some tries to read first, which almost always fails here
                self._count_awaited()
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
            await self._handle_events(self._reader_of(octets), began_s)
            if self._is_upgraded:
                return

    def _count_awaited(self) -> None:
        """Count a body as awaited if the client is slow, not this process: there is nothing to read."""
        turn, body = self._request, self._body
        if turn is None or turn.arrival is None or body.whole.is_set() or body.is_discarded:
            return
        if not (turn.arrival.is_awaited or self._wire.socket.is_readable()):
            turn.arrival.wait()

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
        if not self._server.is_overrun or self._request is not None or self._strict.has_input:
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
        if self._request is None and not (self._head_begun or self._is_upgraded):
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
        """Close if idle, and soon if a head is incomplete."""
        self.close_idle()
        if self._request is None and self._head_begun:
            self._deadline.shorten(trio.current_time() + HEAD_WHEN_DRAINING_S)

    async def _linger(self) -> None:
        """Let the client read our answer before input that it still sends causes a reset."""
        if self._strict.is_amid_request or self._strict.has_input:
            await linger(self._wire, self._limits.linger_s)

    # -- input

    def _reader_of(self, octets: bytes) -> RequestReader:
        """Give the octets to the reader that can read them, and return it."""
        is_between = not (
            self._request is not None
            or self._strict.has_input
            or self._strict.is_amid_request
            or self._output.pending
            or self._output.is_sending
            or self._ending
        )
        if is_between and self._fast.receive(octets):
            return self._fast
        self._strict.receive(octets)
        return self._strict

    async def _handle_events(self, reader: RequestReader, began_s: float) -> None:
        """Handle all events of what was received; `began_s` is when, in this thread's time."""
        while not self._is_upgraded:
            if self._request is not None and self._body.whole.is_set():
                if not self._strict.has_input:
                    return
                await self._until_answered()  # a pipelined request
                began_s = time.thread_time()
            try:
                event = reader.next_event()
            except MalformedRequest:
                await self._refuse("invalid_request")
                return
            if event is Mark.NEED_DATA:
                self._watch()
                return
            if isinstance(event, RequestHead):
                await self._until_sent()
                await self._begin(event, began_s)
            elif self._request is None:
                return  # the rest of a body whose request was answered
            elif isinstance(event, bytes):
                await self._receive(event)
            else:
                self._deadline.set(inf)
                await self._end_of_body()

    async def _until_sent(self) -> None:
        """Wait until the previous answer is in the kernel.

        Else a client that sends requests and reads nothing fills the memory with answers.
        """
        if self._output.is_sending:
            self._deadline.set(inf)  # sends have deadlines of their own
            await self._output.wait_until_sent()

    def _watch(self) -> None:
        """Set the deadline for the rest of a head or of a body."""
        if self._request is not None:
            if not self._body.whole.is_set():
                self._deadline.set(self._body.deadline)
        elif self._strict.has_input and not self._head_begun:
            self._head_begun = True
            self._server.wait_for(self)
            self._deadline.set(trio.current_time() + self._limits.head_s)

    async def _begin(self, head: RequestHead, began_s: float) -> None:
        server = self._server
        if head.is_websocket and head.path in server.upgrades and not server.draining:
            server.forget(self)
            await self._hand_over(head)
            return
        turn = server.new_turn(head)
        if head.body is not None and len(head.body) > self._body_octets_max(head):
            head = replace(head, octets=len(head.body), body=None)  # refused as a declared one
        if head.body is not None:
            turn.octets = len(head.body)
            if not server.run_request(turn):
                await self._reject_unread(head, began_s)
                return
        server.forget(self)
        self._start_exchange(head, turn)
        if head.body is not None:
            self._deadline.set(inf)
            turn.exchange.push(head.body, more=False)
            return
        if self._body.is_over_declared:
            await self._stop_at_large_body()
        if self._body.is_expected:
            await self._until_needed()
        if head.expects_continue and not self._body.is_discarded:
            self._output.pending += CONTINUE
            await self.flush()

    def _start_exchange(self, head: RequestHead, turn: RequestTurn) -> None:
        server = self._server
        self._requests += 1
        self._encoder = ResponseEncoder(
            is_head=head.method == "HEAD",
            is_http10=head.version == "1.0",
            closes=head.closes or self._requests >= server.limits.requests_per_connection_max,
        )
        turn.exchange = Exchange(
            server.app,
            head.scope(self._client, self._own_address),
            partial(self._send_message, self._encoder),
            self,
            server.error_body,
        )
        if head.body is None:
            self._body = self._body_of(head)
            if self._body.is_expected:
                address = self._client[0] if self._client else ""
                turn.arrival = ArrivingBody(server.intake, address, self._reject)
        else:
            self._body.whole.set()
        self._request = turn
        self._nursery.start_soon(self._work, turn)

    def _body_of(self, head: RequestHead) -> IncomingBody:
        silence_s = self._limits.upload_silence_s if self._is_upload(head) else None
        deadline = trio.current_time() + (silence_s or self._limits.body_s)
        octets_max = self._body_octets_max(head)
        return IncomingBody(head.octets, octets_max, deadline, silence_s=silence_s)

    def _is_upload(self, head: RequestHead) -> bool:
        return head.method == "POST" and head.path in self._limits.uploads

    def _body_octets_max(self, head: RequestHead) -> int:
        limits = self._limits
        return limits.uploads[head.path] if self._is_upload(head) else limits.body_octets_max

    async def _reject_unread(self, head: RequestHead, began_s: float) -> None:
        """Reject a request before anything is done for it, at the lowest possible cost."""
        if head.closes or head.method == "HEAD":
            self._refuse_now("overloaded", is_head=head.method == "HEAD")
        else:
            self._output.pending += self._server.rejection()
        await self.flush()
        self._server.idle.pop(self, None)
        self._answer_ended(closes=head.closes or head.method == "HEAD")
        self._server.charge_rejection(time.thread_time() - began_s)

    async def _until_needed(self) -> None:
        """Read no body before the application asks for it: a request without an API key is
        refused before it costs any memory."""
        assert self._request is not None
        self._server.wait_for(self)
        self._deadline.set(self._body.deadline)
        await self._request.exchange.needed.wait()

    async def _receive(self, octets: bytes) -> None:
        is_allowed = self._body.count(len(octets))
        turn = self._request
        if turn is not None and turn.arrival is not None and not self._body.is_discarded:
            turn.arrival.acquire(len(octets))
            if not turn.arrival.is_refused:
                turn.exchange.push(octets, more=True)
            if self._body.silence_s is not None:
                self._deadline.set(inf)  # the application is slow, not the client
                await turn.exchange.wait_until_taken(self._limits.upload_unread_max)
        if not is_allowed:
            await self._stop_at_large_body()

    async def _stop_at_large_body(self) -> None:
        """Read no more. The application has `refuse_s` to refuse for a reason that it checks
        first (an unknown route, a missing key); then the body is refused with 413."""
        self._body.is_too_large = True
        self._deadline.set(trio.current_time() + self._limits.refuse_s)
        await trio.sleep_forever()

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
        turn.exchange.push(b"", more=False)

    def _reject(self) -> None:
        """Refuse the request under way; the application has not read its body."""
        if self._request is not None:
            self._request.exchange.refuse("overloaded")

    async def _work(self, turn: RequestTurn) -> None:
        try:
            if turn.ticket is not None:
                await turn.ticket.wait_until_active()
            await turn.exchange.run(Admission(turn.ticket, turn.arrival))
        finally:
            self._server.end(turn)

    async def _hand_over(self, head: RequestHead) -> None:
        """Hand the socket over; from here on its owner reads, writes and notices hang-ups."""
        self._is_upgraded, self._head_begun = True, False
        self._server.hang_ups.forget(self._wire.socket.fileno())
        self._deadline.set(inf)
        scope = head.scope(self._client, self._own_address)
        scope["headers"] = [*head.fields, (b"upgrade", head.upgrade)]
        await self._server.upgrades[head.path](scope, self._wire, self._strict.release_input())
        self._end()

    # -- output

    @property
    def must_close(self) -> bool:
        is_unread = self._strict.is_amid_request or self._body.is_too_large
        return self._server.draining or is_unread

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
        if self._strict.is_amid_request and not (self._body.is_too_large or self._ending):
            with trio.move_on_after(SETTLE_S):
                await self._body.whole.wait()

    async def _send_message(self, encoder: ResponseEncoder, message: Message) -> None:
        """Encode one message of an answer; the exchange sends it."""
        self._output.pending += encoder.octets_of(message, self._server.own_fields())
        if encoder.ended:
            self._answer_ended(closes=encoder.closes)

    def _answer_ended(self, *, closes: bool) -> None:
        if closes or self._server.draining:
            self._end()
        else:
            self._idle()

    async def _refuse(self, code: str) -> None:
        """Answer with this code and close; the request's own task answers if there is one."""
        if self._request is not None:
            self._request.exchange.refuse(code)
        elif not self._ending:
            self._refuse_now(code, is_head=self._strict.is_head)
            await self.flush()
        self._end()

    def _refuse_now(self, code: str, *, is_head: bool) -> None:
        """Write an answer that no request's task gives; the connection closes after it."""
        encoder = ResponseEncoder(is_head=is_head, closes=True)
        for message in error_messages(code, self._server.error_body(code), new_request_id()):
            self._output.pending += encoder.octets_of(message, self._server.own_fields())

    def _idle(self) -> None:
        """The answer is complete: wait for the next request."""
        self._end_work()
        self._request = None
        self._answered.set()
        self._head_begun = False
        self._deadline.set(trio.current_time() + self._limits.keep_alive_s)
        self._server.mark_idle(self)

    def abort(self) -> None:
        """Close the socket now; in HTTP/1.0 by a reset, as a plain close would end the answer well."""
        if not self._gone:
            if self._encoder is not None and self._encoder.is_http10:
                reset_on_close(self._wire)
            self._close()
            self._hang_up()
        self._end()

    def _close(self) -> None:
        number = self._wire.socket.fileno()
        if number >= 0:
            self._server.hang_ups.forget(number)
        self._wire.socket.close()
