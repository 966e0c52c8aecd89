"""A live socket on another server's WebSocket (ASGI's, specification 2.3).

The server below has the connection: it pings, answers pings, and bounds what it sends.
"""

from collections.abc import Mapping
from contextlib import suppress

import trio
from trio_websocket import ConnectionClosed

from ..http.received_request import Message, Receive, Scope, Send
from ..live.messages import MESSAGE_CHARACTERS_MAX
from ..live.server import LiveServer
from .requests import as_ours

TOO_LARGE, POLICY = 1009, 1008  # RFC 6455 7.4.1
RESPONSE = "websocket.http.response"  # the extension that lets a handshake have an HTTP answer
# For the client's half of an end. hypercorn forgets an HTTP/2 stream with the application's end, and
# a frame that still comes for it ends the whole process (hypercorn #329); a client needs a round trip.
END_S = 10.0


async def serve_live(scope: Scope, receive: Receive, send: Send, live: LiveServer) -> None:
    """Serve one live socket until it ends. Raises nothing of the client's making."""
    async with trio.open_nursery() as nursery:
        handshake = AsgiSocket(scope, receive, send)
        nursery.start_soon(handshake.read)
        await live.serve_handshake(as_ours(scope), handshake)
        await handshake.finish()
        nursery.cancel_scope.cancel()


class AsgiSocket:
    """A WebSocket of the server below: its handshake, and then the socket itself.

    `read` must run while the socket is in use.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._can_answer = RESPONSE in scope.get("extensions", {})
        self._is_http2 = not scope["http_version"].startswith("1")
        self._is_closing = False  # by us: nothing may be sent any more
        self._gone = trio.Event()  # the client is
        # As many as the WebSocket library holds for our own server.
        self._read, self._messages = trio.open_memory_channel[str | bytes](1)

    async def read(self) -> None:
        """Read messages until the client is gone."""
        async with self._read:
            while True:
                message = await self._receive()
                if message["type"] == "websocket.disconnect":
                    self._gone.set()
                    return
                if message["type"] == "websocket.receive" and not self._is_closing:
                    await self._put(message)

    async def _put(self, message: Message) -> None:
        text: str | bytes | None = message.get("text")
        read = message.get("bytes", b"") if text is None else text
        if len(read) > MESSAGE_CHARACTERS_MAX:
            await self._close(TOO_LARGE)
            return
        with suppress(trio.BrokenResourceError):  # the client closed it in the meantime
            await self._read.send(read)

    # the handshake

    async def accept(self) -> "AsgiSocket":
        await self._send({"type": "websocket.accept"})
        return self

    async def reject(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self._is_closing = True
        if not self._can_answer:
            await self._send({"type": "websocket.close", "code": POLICY})
            return
        fields = {**headers, "Content-Length": str(len(body))}
        raw = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
        await self._send({"type": f"{RESPONSE}.start", "status": status, "headers": raw})
        await self._send({"type": f"{RESPONSE}.body", "body": body})

    # the socket

    async def send_message(self, message: str) -> None:
        self._check_open()
        await self._send({"type": "websocket.send", "text": message})

    async def get_message(self) -> str | bytes:
        try:
            return await self._messages.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise ConnectionClosed(None) from None

    async def ping(self) -> None:
        self._check_open()

    async def aclose(self, code: int) -> None:
        """Close with this code, and wait until the client has closed its side."""
        await self._close(code)
        await self._gone.wait()

    async def finish(self) -> None:
        """Return when the server below may forget the connection."""
        if self._is_http2:
            with trio.move_on_after(END_S):
                await self._gone.wait()

    def _check_open(self) -> None:
        if self._is_closing or self._gone.is_set():
            raise ConnectionClosed(None)

    async def _close(self, code: int) -> None:
        if not self._is_closing and not self._gone.is_set():
            self._is_closing = True
            self._messages.close()
            await self._send({"type": "websocket.close", "code": code})
