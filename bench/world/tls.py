"""The server's side of STARTTLS: real TLS with a certificate of an unknown authority.

A host's stream stays in plain text until `start_tls`. From STARTTLS until its reply is
sent, the client's octets are kept for the handshake; a disconnect is still noticed.
"""

import ssl
from functools import cache

import trio

from .faults import reset_at_close

NAME = "mx.host.test"


@cache
def server_context() -> ssl.SSLContext:
    """One certificate for all hosts of this process, signed by a new authority."""
    import trustme  # slow to import (0.2 s), and few hosts use TLS

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(NAME).configure_cert(context)
    return context


class _Plain(trio.abc.Stream):
    """A stream of which some octets have been read already."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.read = bytearray()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self.read:
            await trio.lowlevel.checkpoint()
            octets, self.read = self.read, bytearray()
            return octets
        return await self.stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self.stream.aclose()


class UpgradableStream(trio.abc.Stream):
    """A stream that can change to TLS. One task reads it, another writes."""

    def __init__(self, plain: trio.abc.Stream, context: ssl.SSLContext | None = None) -> None:
        self.plain = plain
        self._context = context
        self._stream: trio.abc.Stream = _Plain(plain)
        self._may_read = trio.Event()
        self._may_read.set()
        self._keeping: trio.CancelScope | None = None  # the reader, while it is held
        self._kept = trio.Event()

    def hold(self) -> None:
        """Until release() or start_tls(), the reader gets nothing but the end."""
        self._may_read = trio.Event()

    def release(self) -> None:
        """Continue in plain text."""
        self._may_read.set()
        if self._keeping is not None:
            self._keeping.cancel()

    async def start_tls(self) -> None:
        """Do the handshake. Raises trio.BrokenResourceError if the client does not."""
        if self._keeping is not None:
            self._keeping.cancel()
            await self._kept.wait()
        secure = trio.SSLStream(
            self._stream, self._context or server_context(), server_side=True, https_compatible=True
        )
        self._keeping = trio.CancelScope()  # a reader that comes only now must not keep anything
        self._keeping.cancel()
        await secure.do_handshake()
        self._stream = secure

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if not self._may_read.is_set():
            if self._keeping is None and await self._keep():
                return b""
            await self._may_read.wait()
        return await self._stream.receive_some(max_bytes)

    async def _keep(self) -> bool:
        """Read for the handshake until it begins; return True if the client disconnects before."""
        assert isinstance(self._stream, _Plain)
        try:
            with trio.CancelScope() as self._keeping:
                while octets := await self.plain.receive_some():
                    self._stream.read += octets
                return True
        finally:
            self._kept.set()
        return False

    def reset(self) -> None:
        reset_at_close(self.plain)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()
