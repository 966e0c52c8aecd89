"""The socket of an upgraded connection, as the WebSocket library reads and writes it.

The library bounds neither how long a send may take nor what comes between two messages: a
client that reads nothing would hold its results for ever, and empty fragments of a message
that never ends would fill the memory.
"""

import trio

SEND_S = 15.0  # for one send: a few messages
RECEIVED_OCTETS_MAX = 256 * 1024  # between two messages: of frames that are none


class UpgradedStream(trio.abc.Stream):
    """A stream that begins with the octets that were read already."""

    def __init__(self, wire: trio.abc.Stream, read: bytes) -> None:
        self._wire = wire
        self._read = read
        self._received = -len(read)

    def message_received(self) -> None:
        """A message is complete: octets are counted anew."""
        self._received = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Raises BrokenResourceError, also if too much has come without a message."""
        if self._read:
            octets, self._read = self._read[:max_bytes], self._read[max_bytes or len(self._read) :]
        else:
            octets = bytes(await self._wire.receive_some(max_bytes))
        self._received += len(octets)
        if self._received > RECEIVED_OCTETS_MAX:
            raise trio.BrokenResourceError
        # A client that sends without a pause must not keep the loop to itself.
        await trio.lowlevel.checkpoint()
        return octets

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Raises BrokenResourceError, also if the client does not read."""
        with trio.move_on_after(SEND_S) as sending:
            await self._wire.send_all(data)
        if sending.cancelled_caught:
            raise trio.BrokenResourceError

    async def wait_send_all_might_not_block(self) -> None:
        await self._wire.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._wire.aclose()
