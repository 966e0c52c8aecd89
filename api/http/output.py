"""Writes one connection's octets to its socket, with a deadline for each send.

Sends are never shielded. After a send that failed or was cancelled it is unknown how
much has left, so the connection must end.
"""

import os
import socket
import struct
from collections.abc import Callable

import trio

SEND_OCTETS = 1 << 16  # the client must take this much within `send_s`
READ_OCTETS = 1 << 16
LINGER_OCTETS_MAX = 16 << 20  # read and discarded, so that an early answer is not reset


class Output:
    """The octets that one connection has yet to send; append to `pending`, then `flush()`.

    `abort` is called when a send fails; `send_s` is the limit for each SEND_OCTETS.
    """

    __slots__ = ("_abort", "_lock", "_send_s", "_since_checkpoint", "_wire", "pending")

    def __init__(self, wire: trio.SocketStream, send_s: float, abort: Callable[[], None]) -> None:
        self.pending = bytearray()
        self._wire = wire
        self._send_s = send_s
        self._abort = abort
        self._lock = trio.Lock()
        self._since_checkpoint = 0  # octets sent since the sender last yielded to other tasks

    @property
    def is_sending(self) -> bool:
        """Does a send wait for the client to read?"""
        return self._lock.locked()

    async def wait_until_sent(self) -> None:
        """Wait for the send under way."""
        async with self._lock:
            pass

    async def flush(self) -> None:
        """Send what is pending. A client that does not read it loses its connection."""
        if not self.pending:
            return
        if not self._lock.locked() and self._send_now():
            await trio.lowlevel.checkpoint_if_cancelled()  # the client may be gone
            if self._since_checkpoint >= SEND_OCTETS:  # a steady sender must not starve others
                self._since_checkpoint = 0
                await trio.lowlevel.checkpoint()
            return
        try:
            self._lock.acquire_nowait()  # almost always free: saves a scheduler round trip
        except trio.WouldBlock:
            await self._lock.acquire()
        try:
            await self._send_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._abort()
        except trio.Cancelled:
            self._abort()  # it is unknown how much has left
            raise
        finally:
            self._lock.release()

    def _send_now(self) -> bool:
        """Write to the kernel, which almost always has room for everything; else return False.

        An answer costs half as much to send without the cancel scope and the scheduler
        round trip that waiting takes.
        """
        try:
            sent = os.write(self._wire.socket.fileno(), self.pending)
        except BlockingIOError:
            return False
        except OSError:
            self._abort()
            return True
        del self.pending[:sent]
        self._since_checkpoint += sent
        return not self.pending

    async def _send_all(self) -> None:
        octets, self.pending = self.pending, bytearray()
        for start in range(0, len(octets), SEND_OCTETS):
            with trio.move_on_after(self._send_s) as timeout:
                await self._wire.send_all(memoryview(octets)[start : start + SEND_OCTETS])
            if timeout.cancelled_caught:
                raise trio.BrokenResourceError("the client does not read")


def reset_on_close(wire: trio.SocketStream) -> None:
    """Make the coming close send a reset."""
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def linger(wire: trio.SocketStream, linger_s: float) -> None:
    """Half-close, then discard input for up to `linger_s`.

    Closing while the client still sends would reset the connection, and the client
    might lose an answer that it has not read yet.
    """
    with trio.move_on_after(linger_s):
        try:
            await wire.send_eof()
            for _ in range(LINGER_OCTETS_MAX // READ_OCTETS):
                if not await wire.receive_some(READ_OCTETS):
                    return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
