"""The server's half of STARTTLS: real TLS with a certificate that nobody vouches for.

A host's stream stays in plain text until `start_tls`. While the client waits for the
reply to STARTTLS the host must read nothing: what comes next belongs to the handshake.
"""

import ssl
from contextlib import suppress
from functools import cache

import trio

from engine.testing.troubles import Mouth, Trouble, reset_at_close

NAME = "mx.host.test"


@cache
def server_context() -> ssl.SSLContext:
    """One certificate for all hosts of this process; an authority of its own signed it."""
    import trustme  # it takes 0.2 s, and few hosts speak TLS

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(NAME).configure_cert(context)
    return context


class UpgradableStream(trio.abc.Stream):
    """A stream that may change to TLS in the middle."""

    def __init__(self, plain: trio.abc.Stream, context: ssl.SSLContext | None = None) -> None:
        self.plain = plain
        self._context = context
        self._stream = plain
        self._may_read = trio.Event()
        self._may_read.set()

    def hold(self) -> None:
        """Read nothing until release()."""
        self._may_read = trio.Event()

    def release(self) -> None:
        self._may_read.set()

    async def start_tls(self) -> None:
        """Shake hands. Raises trio.BrokenResourceError for a client that doesn't."""
        secure = trio.SSLStream(
            self.plain, self._context or server_context(), server_side=True, https_compatible=True
        )
        await secure.do_handshake()
        self._stream = secure

    async def start_badly(self, mouth: Mouth, trouble: Trouble) -> None:
        """Let this trouble take the place of the handshake, until it is over or the client goes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._drain, nursery.cancel_scope)
            await trouble.answer(mouth, b"")
            nursery.cancel_scope.cancel()

    async def _drain(self, gone: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError):
            while await self.plain.receive_some():
                pass
        gone.cancel()

    def reset(self) -> None:
        reset_at_close(self.plain)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        await self._may_read.wait()
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()
