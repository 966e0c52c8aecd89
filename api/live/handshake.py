"""The part of a live socket in the server below it: a handshake to answer, then messages.

Our own server hands a whole connection over, of which the WebSocket library makes both. Another
ASGI server keeps the connection: `api/asgi/live_socket.py` has its handshake.
"""

from collections.abc import Mapping
from typing import Protocol

from trio_websocket import WebSocketConnection, WebSocketRequest

from .stream import UpgradedStream


class LiveSocket(Protocol):
    """An open WebSocket. All but `aclose` raise ConnectionClosed once the client is gone."""

    async def send_message(self, message: str) -> None:
        """Send one message of text."""

    async def get_message(self) -> str | bytes:
        """Wait for the client's next message."""

    async def ping(self) -> None:
        """Return when the client has answered; at once where the server below pings by itself."""

    async def aclose(self, code: int) -> None:
        """Close with this code (RFC 6455 7.4)."""


class LiveHandshake(Protocol):
    """A request for a WebSocket, to be accepted or rejected once."""

    async def accept(self) -> LiveSocket:
        """Open the WebSocket."""

    async def reject(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Answer with this HTTP response instead."""


class UpgradedSocket:
    """The library's WebSocket, on a connection of our own server."""

    def __init__(self, socket: WebSocketConnection, stream: UpgradedStream) -> None:
        self._socket = socket
        self._stream = stream

    async def send_message(self, message: str) -> None:
        await self._socket.send_message(message)

    async def get_message(self) -> str | bytes:
        message: str | bytes = await self._socket.get_message()
        self._stream.message_received()
        return message

    async def ping(self) -> None:
        await self._socket.ping()

    async def aclose(self, code: int) -> None:
        await self._socket.aclose(code)


class UpgradedHandshake:
    """The library's request, on a connection of our own server."""

    def __init__(self, request: WebSocketRequest, stream: UpgradedStream) -> None:
        self._request = request
        self._stream = stream

    async def accept(self) -> UpgradedSocket:
        return UpgradedSocket(await self._request.accept(), self._stream)

    async def reject(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        fields = {**headers, "Connection": "close"}
        await self._request.reject(
            status,
            extra_headers=[(name.encode(), value.encode()) for name, value in fields.items()],
            body=body,
        )
