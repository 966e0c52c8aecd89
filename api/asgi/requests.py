"""One HTTP request of another ASGI server: what our own server does for the application.

Like there, the application runs in an `Exchange`: a client that hangs up cancels it, a crash is
answered, every answer has its request id. On top of that comes what hypercorn leaves to the
application:

- Over HTTP/2 an answer ends only after the request's body. hypercorn forgets the stream with
  the answer's end, and DATA that still comes for it ends the whole process (hypercorn #329).
- Over HTTP/1.1 an early answer waits a moment for the body, because hypercorn closes the
  connection at the answer's end, and unread octets would make the kernel drop the answer.
- HTTP/2 splits cookies into several fields, which are one again (RFC 9113 8.2.3), and has no
  `connection` (8.2.2).
- Paths are not percent-decoded: an encoded path is another path, as on our own server.
"""

from collections.abc import Sequence

import trio

from ..http.encoder import ErrorBody
from ..http.exchange import Exchange
from ..http.received_request import Application, Message, Receive, Scope, Send

UNREAD_MAX = 1 << 20  # octets of a body that the application has not taken
SETTLE_S = 1.0  # for the rest of a body, before an early answer over HTTP/1.1

Fields = Sequence[tuple[bytes, bytes]]


async def serve_request(
    app: Application, scope: Scope, receive: Receive, send: Send, error_body: ErrorBody
) -> None:
    """Serve one request with the application. Raises what `send` raises."""
    below = ServerBelow(send, is_http2=not scope["http_version"].startswith("1"))
    exchange = Exchange(app, as_ours(scope), below.forward, below, error_body)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(below.feed, exchange, receive)
        await exchange.run()
        await below.finish()
        nursery.cancel_scope.cancel()


class ServerBelow:
    """The other server's side of an exchange; an `ExchangeConnection`."""

    must_close = False  # the server below knows

    def __init__(self, send: Send, *, is_http2: bool) -> None:
        self._whole = trio.Event()  # the body has come, or no more of it will
        self._discards = False  # the rest of the body
        self._pause = trio.CancelScope()  # in which the body waits for the application
        self._send = send
        self._is_http2 = is_http2
        self._owes_end = False  # of the answer, whose body has left

    async def feed(self, exchange: Exchange, receive: Receive) -> None:
        """Pass the body on, then the client's hang-up."""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self._whole.set()
                # hypercorn says it at the end of every answer, while its last message is being sent
                if not exchange.ended:
                    exchange.hang_up()
                return
            more: bool = message.get("more_body", False)
            if not self._discards:
                exchange.push(message.get("body", b""), more=more)
            if not more:
                self._whole.set()
            with trio.CancelScope() as self._pause:
                await exchange.wait_until_taken(UNREAD_MAX)

    async def settle(self) -> None:
        self._discards = True
        self._pause.cancel()
        if not self._is_http2:
            with trio.move_on_after(SETTLE_S):
                await self._whole.wait()

    async def flush(self) -> None:
        """The server below sends at once."""

    def abort(self) -> None:
        """An answer that the application does not end is cut off by the server below."""

    async def forward(self, message: Message) -> None:
        """Send a message of the application's."""
        if self._is_http2 and message["type"] == "http.response.start":
            kept = [each for each in message["headers"] if each[0].lower() != b"connection"]
            message = {**message, "headers": kept}
        is_last = message["type"] == "http.response.body" and not message.get("more_body")
        if self._is_http2 and is_last and not self._whole.is_set():
            self._owes_end = True
            message = {**message, "more_body": True}
        await self._send(message)

    async def finish(self) -> None:
        """Send what is left of the answer; return when the server below may forget the request."""
        if self._is_http2:
            await self._whole.wait()
        if self._owes_end:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def as_ours(scope: Scope) -> Scope:
    """The scope as our own server makes it. Not every server has `raw_path`."""
    path: bytes | None = scope.get("raw_path")
    return {
        **scope,
        "path": scope["path"] if path is None else path.decode("latin-1"),
        "headers": with_one_cookie(scope["headers"]),
    }


def with_one_cookie(fields: Fields) -> Fields:
    """The same header fields, with all cookies in one."""
    cookies = [value for name, value in fields if name.lower() == b"cookie"]
    if len(cookies) < 2:
        return fields
    others = [field for field in fields if field[0].lower() != b"cookie"]
    return [*others, (b"cookie", b"; ".join(cookies))]
