"""One request and its answer, between hypercorn's protocol and the ASGI application.

An `Exchange` passes the body in and the answer out, cancels the application when the client
hangs up, and answers itself when the application fails. Deadlines and sockets belong to the
connection (`api/http/connection.py`).

It repairs faults of the stock stack. Each repair has a test in
tests/api/http/test_exchange.py that fails with unmodified hypercorn, so that the repair can
be removed once upstream has fixed the fault.
"""

import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

import trio

from mailprobe.engine.background import separate

logger = logging.getLogger("mailprobe.http")

Message = MutableMapping[str, Any]
Scope = Any  # a Message too; frameworks have their own types for it
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
WHOLE_BODY = "mailprobe.whole_body"  # in `extensions`: the body, if it came with the head
ErrorBody = Callable[[str], bytes]  # a code of REFUSALS -> a complete JSON error body


@dataclass(frozen=True, slots=True)
class RawRefusal:
    """A refusal that the HTTP server sends itself."""

    status: int
    closes: bool = False  # the connection: where the next request begins is unknown
    headers: tuple[tuple[bytes, bytes], ...] = ()


REFUSALS = {
    "invalid_request": RawRefusal(400, closes=True),
    "request_timeout": RawRefusal(408, closes=True),
    "payload_too_large": RawRefusal(413, closes=True),
    "internal_error": RawRefusal(500),
    "overloaded": RawRefusal(503, headers=((b"retry-after", b"1"),)),
}


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
        forward: Callable[[Any], Awaitable[None]],
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

    # called by the connection

    async def push(self, message: Any) -> None:
        """Queue a message for the application; never waits."""
        if message["type"] != "http.disconnect":
            self._messages.append(message)
            self._has_message.set()
        elif not self.ended:
            self.hang_up()

    def hang_up(self) -> None:
        """The client is gone: cancel the application."""
        self.disconnected = True
        self._work.cancel()
        self._has_message.set()

    def refuse(self, code: str) -> None:
        """Cancel the application; answer with this code, or cut off an answer that has begun."""
        if not self.ended:
            self._refusal = code
            self._work.cancel()

    # called by the application

    async def receive(self) -> Message:
        """ASGI receive."""
        while not self._messages:
            self.needed.set()
            if self._delivered or self.disconnected:
                return {"type": "http.disconnect"}
            self._has_message = trio.Event()
            await self._has_message.wait()
        return self._messages.popleft()

    async def send(self, message: Message) -> None:
        """ASGI send: each message leaves at once; a head with content-length waits for its body."""
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
        await self._forward(start)
        self.begun = True

    # lifetime

    async def run(self) -> None:
        """Run the application; afterwards the client has an answer or is cut off."""
        self._scope.setdefault("state", {})["request_id"] = self.request_id
        try:
            with self._work:
                await self._application(self._scope, self.receive, self.send)
        except BaseException as error:
            fatal = contain(error, f"request {self.request_id} crashed")
            if fatal is not None:
                raise fatal from None
        else:
            if not (self._delivered or self.disconnected or self._refusal):
                logger.error("request %s got no whole answer", self.request_id)
        self.needed.set()
        if self._delivered or self.disconnected:
            return
        if self.begun:
            self._wire.abort()
        else:
            await self.answer(self._refusal or "internal_error")

    async def answer(self, code: str) -> None:
        """Answer in place of the application."""
        refused, body = REFUSALS[code], self._error_body(code)
        self._start = None
        headers = [*refused.headers, *refusal_headers(body, self.request_id)]
        if refused.closes:
            headers.append((b"connection", b"close"))
        await self.send(
            {"type": "http.response.start", "status": refused.status, "headers": headers}
        )
        await self.send({"type": "http.response.body", "body": body})


def refusal_headers(body: bytes, request_id: str) -> list[tuple[bytes, bytes]]:
    """The headers of a refusal with this JSON body."""
    return [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
    ]


def new_request_id() -> str:
    """Return a random id. It need not be secret, so it saves the system call of a uuid."""
    return f"{random.getrandbits(128):032x}"


def request_id_of(scope: Scope) -> str:
    """The id that the server gave the request, the same in all logs."""
    state: dict[str, str] = scope.setdefault("state", {})
    return state.get("request_id") or state.setdefault("request_id", new_request_id())


def headers_of_scope(scope: Scope) -> dict[str, str]:
    """The headers by lower-case name; repeated ones joined with commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def contain(error: BaseException, what: str) -> BaseException | None:
    """Log a crash; return what the caller must raise, if anything."""
    fatal, crash = separate(error)
    if crash is not None:
        logger.error(what, exc_info=crash)
    return fatal
