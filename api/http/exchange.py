"""What the HTTP stack must not do to an application or its callers: the repairs, one by one.

Two pieces. `StrictBuffer` stands before h11 and lets only requests through that
every proxy reads alike. `Exchange` stands between hypercorn and the application
for one request: it brings the body in, sends the answer out, ends the work when
the caller is gone, and gives the answer itself where the application cannot.
Deadlines and sockets are the connection's (`api/http/server.py`).

Each repair has a test in tests/api/http/test_exchange.py that fails on the stack as it
comes, so that it can go when upstream has it.
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
Scope = Any  # a Message too, which frameworks know by names of their own
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
WHOLE_BODY = "mailprobe.whole_body"  # of `extensions`: the body, where it was there with the head
ErrorBody = Callable[[str], bytes]  # a code of REFUSALS -> a whole ApiError as JSON


@dataclass(frozen=True, slots=True)
class RawRefusal:
    """How an answer is given that no application gives."""

    status: int
    closes: bool = False  # the connection, because what follows on it cannot be told apart
    headers: tuple[tuple[bytes, bytes], ...] = ()


REFUSALS = {
    "invalid_request": RawRefusal(400, closes=True),
    "request_timeout": RawRefusal(408, closes=True),
    "payload_too_large": RawRefusal(413, closes=True),
    "internal_error": RawRefusal(500),
    "overloaded": RawRefusal(503, headers=((b"retry-after", b"1"),)),
}


class ExchangeConnection(Protocol):
    """What an exchange needs of its connection."""

    @property
    def must_close(self) -> bool:
        """Must the connection end with this answer?"""

    async def settle(self) -> None:
        """Give the body's rest a moment to come before an early answer."""

    async def flush(self) -> None:
        """Hand what has been written to the kernel, or end the connection trying."""

    def abort(self) -> None:
        """End the connection so that what was sent cannot be taken for a whole answer."""


class Exchange:
    """One request and its answer.

    The application is cancelled when its caller hangs up or the request is refused,
    and for no other reason. Its body is `needed` once it asks for it. It is told `http.disconnect` only after its last message
    is out, because frameworks end their work at that word, the last send included.
    A crash is logged and answered; nothing that an application raises but
    Cancelled, KeyboardInterrupt and SystemExit travels further than this.
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
        self.disconnected = False  # the caller
        self.needed = trio.Event()  # the body, or the rest of it
        self.begun = False  # the answer
        self.ended = False  # its last message is on its way
        self._delivered = False  # and is out
        self._application = application
        self._scope = scope
        self._forward = forward
        self._wire = wire
        self._error_body = error_body
        self._work = trio.CancelScope()
        self._refusal: str | None = None
        self._start: Message | None = None  # held until the body's first message
        self._messages: deque[Message] = deque()  # bounded: the connection counts octets
        self._news = trio.Event()

    # what the connection says

    async def push(self, message: Any) -> None:
        """Take a message for the application; never waits."""
        if message["type"] != "http.disconnect":
            self._messages.append(message)
            self._news.set()
        elif not self.ended:
            self.hang_up()

    def hang_up(self) -> None:
        """The caller is gone: end the work."""
        self.disconnected = True
        self._work.cancel()
        self._news.set()

    def refuse(self, code: str) -> None:
        """End the work; answer with this code if no answer has begun, else cut it off."""
        if not self.ended:
            self._refusal = code
            self._work.cancel()

    # what the application sees

    async def receive(self) -> Message:
        while not self._messages:
            self.needed.set()
            if self._delivered or self.disconnected:
                return {"type": "http.disconnect"}
            self._news = trio.Event()
            await self._news.wait()
        return self._messages.popleft()

    async def send(self, message: Message) -> None:
        """Send one message out at once; a head alone waits if its body is known to follow."""
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
            self._news.set()

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
        if b"content-length" not in names:  # a stream: who asked may want to know it is open
            await self._forward_start()
            await self._wire.flush()

    async def _forward_start(self) -> None:
        start, self._start = self._start, None
        await self._forward(start)
        self.begun = True

    # the whole

    async def run(self) -> None:
        """Run the application to its end; afterwards the caller has an answer or is cut off."""
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
        """Answer in the application's stead."""
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
    return [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
    ]


def new_request_id() -> str:
    """Nobody's secret: without the trip to the kernel that a uuid takes."""
    return f"{random.getrandbits(128):032x}"


def request_id_of(scope: Scope) -> str:
    """The one that the server gave, so that its log and the application's say the same."""
    state: dict[str, str] = scope.setdefault("state", {})
    return state.get("request_id") or state.setdefault("request_id", new_request_id())


def headers_of_scope(scope: Scope) -> dict[str, str]:
    """By their names in lower case; of one that comes twice all values, with commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def contain(error: BaseException, what: str) -> BaseException | None:
    """Log what is a crash; return what must travel on, if anything."""
    fatal, crash = separate(error)
    if crash is not None:
        logger.error(what, exc_info=crash)
    return fatal
