"""One request and its answer, between the connection and the ASGI application.

An `Exchange` passes the body in and the answer out, cancels the application when the client
hangs up, and answers itself when the application fails. Deadlines and sockets belong to the
connection (`api/http/connection.py`).

Faults of the stock stack that it does not have are named by the tests in
tests/api/http/test_exchange.py, which fail with unmodified hypercorn.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

import trio

from mailprobe.engine.background import separate

from ..admission.overload import Ticket
from ..admission.request_bodies import ArrivingBody
from .encoder import ErrorBody, error_messages
from .received_request import (
    NO_ADMISSION,
    Admission,
    Application,
    Message,
    Scope,
    hand_over,
    new_request_id,
)

logger = logging.getLogger("mailprobe.http")

# The request, its socket, and the octets that came behind its head; runs as long as the connection.
UpgradeHandler = Callable[[Scope, trio.SocketStream, bytes], Awaitable[None]]


class ExchangeConnection(Protocol):
    """The part of a connection that an exchange uses."""

    @property
    def must_close(self) -> bool:
        """Must the connection close after this answer?"""

    async def settle(self) -> None:
        """Before an early answer, wait a moment for the rest of the body."""

    async def flush(self) -> None:
        """Send what is pending, or end the connection."""

    def abort(self) -> None:
        """End the connection so that what was sent cannot pass for a complete answer."""


class Exchange:
    """One request and its answer.

    The application is cancelled only when its client hangs up or the request is refused.
    `needed` is set once it asks for the body. It receives `http.disconnect` only after its
    last message was sent, because frameworks cancel their work at that event, even the last
    send. A crash is logged and answered with 500. Only Cancelled, KeyboardInterrupt and
    SystemExit pass beyond this class.
    """

    def __init__(
        self,
        application: Application,
        scope: Message,
        forward: Callable[[Message], Awaitable[None]],
        wire: ExchangeConnection,
        error_body: ErrorBody,
    ) -> None:
        self.request_id = new_request_id()
        self.disconnected = False  # the client
        self.needed = trio.Event()  # the application wants (the rest of) the body
        self.begun = False  # the answer
        self.ended = False  # the application has sent its last message
        self._delivered = False  # that message has left
        self._application = application
        self._scope = scope
        self._forward = forward
        self._wire = wire
        self._error_body = error_body
        self._work = trio.CancelScope()
        self._refusal: str | None = None
        self._start: Message | None = None  # held until the body's first message
        self._messages: deque[Message] = deque()  # bounded: the connection counts octets
        self._has_message = trio.Event()
        self._taken = trio.Event()  # a part of the body

    # called by the connection

    def push(self, octets: bytes, *, more: bool) -> None:
        """Queue a part of the body for the application."""
        self._messages.append({"type": "http.request", "body": octets, "more_body": more})
        self._has_message.set()

    async def wait_until_taken(self, unread_max: int) -> None:
        """Wait until the application has taken all but so many octets of the body."""
        while sum(len(m["body"]) for m in self._messages) > unread_max:
            self._taken = trio.Event()
            await self._taken.wait()

    def hang_up(self) -> None:
        """The client is gone: cancel the application."""
        self.disconnected = True
        self._work.cancel()
        self._has_message.set()
        self._taken.set()

    def refuse(self, code: str) -> None:
        """Cancel the application; answer with this code, or cut off an answer that has begun."""
        if not self.ended:
            self._refusal = code
            self._work.cancel()

    # called by the application

    async def receive(self) -> Message:
        """ASGI receive."""
        await self._stop_if_refused()
        while not self._messages:
            self.needed.set()
            if self._delivered or self.disconnected:
                return {"type": "http.disconnect"}
            self._has_message = trio.Event()
            await self._has_message.wait()
        self._taken.set()
        return self._messages.popleft()

    async def send(self, message: Message) -> None:
        """ASGI send: each message leaves at once; a head with content-length waits for its body."""
        await self._stop_if_refused()
        if message["type"] == "http.response.start":
            await self._send_start(message)
            return
        if self._start is not None:
            await self._forward_start()
        self.ended = not message.get("more_body", False)
        await self._forward(message)
        await self._wire.flush()
        if self.ended:
            self._delivered = True
            self._has_message.set()

    async def _stop_if_refused(self) -> None:
        """An application whose body is all there may reach no other checkpoint before its answer."""
        if self._refusal is not None:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def _send_start(self, message: Message) -> None:
        if self._start is not None:
            raise RuntimeError("http.response.start was sent twice")
        await self._wire.settle()
        headers = list(message.get("headers", ()))
        names = {name.lower() for name, _ in headers}
        if b"x-request-id" not in names:
            headers.append((b"x-request-id", self.request_id.encode()))
        if self._wire.must_close and b"connection" not in names:
            headers.append((b"connection", b"close"))
        self._start = {**message, "headers": headers}
        if b"content-length" not in names:  # a stream: the client learns at once that it is open
            await self._forward_start()
            await self._wire.flush()

    async def _forward_start(self) -> None:
        start, self._start = self._start, None
        assert start is not None
        await self._forward(start)
        self.begun = True

    # lifetime

    async def run(self, admission: Admission = NO_ADMISSION) -> None:
        """Run the application; afterwards the client has an answer or is cut off.

        The application gets at `admission` with `admission_of(scope)`.
        """
        hand_over(self._scope, self.request_id, admission)
        try:
            with self._work:
                await self._application(self._scope, self.receive, self.send)
        except BaseException as error:
            fatal = contain(error, f"request crashed: request={self.request_id}")
            if fatal is not None:
                raise fatal from None
        else:
            if not (self._delivered or self.disconnected or self._refusal):
                logger.error("response incomplete: request=%s", self.request_id)
        self.needed.set()
        self._messages.clear()
        self._taken.set()
        if self._delivered or self.disconnected:
            return
        if self.begun:
            self._wire.abort()
        else:
            await self.answer(self._refusal or "internal_error")

    async def answer(self, code: str) -> None:
        """Answer in place of the application."""
        self._start = None
        for message in error_messages(code, self._error_body(code), self.request_id):
            await self.send(message)


@dataclass(slots=True, eq=False)
class RequestTurn:
    """A request under way, and what it holds of the server.

    `HttpServer.run_request` admits it, `HttpServer.end` frees all that it holds.
    """

    is_vital: bool  # it is served under any load
    exchange: Exchange = field(init=False)
    ticket: Ticket | None = None  # in the admission queue, of a POST
    arrival: ArrivingBody | None = None  # of a body that came after the head
    octets: int = 0  # of a body that came with the head
    is_held: bool = False  # `octets` are counted in the body budget
    at_work: bool = False  # counted in `in_flight`
    is_over: bool = False


def contain(error: BaseException, what: str) -> BaseException | None:
    """Log a crash; return what the caller must raise, if anything."""
    fatal, crash = separate(error)
    if crash is not None:
        logger.error(what, exc_info=crash)
    return fatal
