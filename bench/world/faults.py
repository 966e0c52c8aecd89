"""Faults of a mail host in the middle of a reply.

A fault replaces the sending of one reply, and returns whether the session goes on. It
knows nothing of SMTP; the host decides when it happens. All pauses are trio's, so they
work with virtual time.
"""

from random import Random
from typing import Protocol, runtime_checkable

import trio
from msgspec import Struct, field

ENDLESS_OCTETS_MAX = 8 * 1024 * 1024  # a client that reads this far has no limit
ENDLESS_PAUSE_S = 0.001  # so that virtual time advances, and a real reader can run


@runtime_checkable
class CanReset(Protocol):
    """A stream that can break instead of ending."""

    def reset(self) -> None: ...


class ReplyWriter(Struct, frozen=True):
    """Writes the host's replies, in random pieces if `splits`.

    `kept_back` holds replies that are sent after the next one (see Swap).
    """

    stream: trio.abc.Stream
    rng: Random
    splits: bool = False
    kept_back: bytearray = field(default_factory=bytearray)

    async def send(self, octets: bytes) -> None:
        """Send these octets; with `splits` in up to eight pieces, 1 ms apart."""
        octets += self.kept_back
        self.kept_back.clear()
        if not self.splits or len(octets) < 2:
            await self.stream.send_all(octets)
            return
        cuts = sorted(self.rng.sample(range(1, len(octets)), min(7, len(octets) - 1)))
        for start, end in zip([0, *cuts], [*cuts, len(octets)], strict=True):
            await self.stream.send_all(octets[start:end])
            await trio.sleep(0.001)

    def reset(self) -> None:
        """Make the close that follows a reset for the client."""
        reset_at_close(self.stream)


def reset_at_close(stream: trio.abc.Stream) -> None:
    """Make the stream send a reset when it is closed."""
    if isinstance(stream, trio.SocketStream):
        # l_onoff 1, l_linger 0: close() sends RST (socket(7))
        linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
        stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, linger)
    elif isinstance(stream, CanReset):
        stream.reset()


class ReplyFault(Protocol):
    """One way of sending a reply wrongly."""

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        """Send this reply or not; return whether the session goes on."""
        ...


class StaySilent(Struct, frozen=True):
    """Send nothing any more, and keep the connection open."""

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        await trio.sleep_forever()
        return False


class Close(Struct, frozen=True):
    """Hang up instead of answering."""

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        return False


class ResetConnection(Struct, frozen=True):
    """Break the connection (RST) instead of answering."""

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        reply_writer.reset()
        return False


class SendLine(Struct, frozen=True):
    """Send another reply, its lines separated by newlines; with `close` hang up after it."""

    text: str
    close: bool = False

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        await reply_writer.send(as_octets(self.text))
        return not self.close


class Late(Struct, frozen=True):
    """The right reply, `by_s` later. Replies behind it are late too."""

    by_s: float = 1.5

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        await trio.sleep(self.by_s)
        await reply_writer.send(octets)
        return True


class Drip(Struct, frozen=True):
    """The right reply, one octet at a time."""

    every_s: float = 0.2

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        for octet in octets:
            await reply_writer.stream.send_all(bytes([octet]))
            await trio.sleep(self.every_s)
        return True


class Endless(Struct, frozen=True):
    """A reply of many lines without a last one, each with `line_octets` octets."""

    line_octets: int = 60

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        code = octets[:3] if octets[:3].isdigit() else b"250"
        lines = (code + b"-" + b"x" * self.line_octets + b"\r\n") * 20
        for _ in range(ENDLESS_OCTETS_MAX // len(lines)):
            await reply_writer.send(lines)
            await trio.sleep(ENDLESS_PAUSE_S)
        return False


class Garbage(Struct, frozen=True):
    """Octets that are not SMTP, instead of the reply."""

    octets: bytes = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<html>\xff\x00\r\n"

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        await reply_writer.send(self.octets)
        return True


class Half(Struct, frozen=True):
    """The first half of the reply, then hang up; with `stall` send nothing more."""

    stall: bool = False

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        await reply_writer.send(octets[: max(1, len(octets) // 2)])
        if self.stall:
            await trio.sleep_forever()
        return False


class Twice(Struct, frozen=True):
    """The right reply twice, `gap_s` apart: one reply too many."""

    gap_s: float = 0.0

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        if not self.gap_s:
            await reply_writer.send(octets + octets)
            return True
        await reply_writer.send(octets)
        await trio.sleep(self.gap_s)
        await reply_writer.send(octets)
        return True


class Drop(Struct, frozen=True):
    """No reply, and the session goes on: one reply too few."""

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        return True


class Swap(Struct, frozen=True):
    """The right reply, after the next one. A client that waits for it gets no reply."""

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        reply_writer.kept_back.extend(octets)
        return True


class Sometimes(Struct, frozen=True):
    """Another fault with this probability for each reply; else the right reply."""

    chance: float
    fault: ReplyFault

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        if reply_writer.rng.random() < self.chance:
            return await self.fault.answer(reply_writer, octets)
        await reply_writer.send(octets)
        return True


SHUTTING_DOWN = SendLine(
    "421 4.3.2 Service shutting down and closing transmission channel", close=True
)


def as_octets(text: str, encoding: str = "utf-8") -> bytes:
    """Encode reply lines with CRLF."""
    return ("\r\n".join(text.split("\n")) + "\r\n").encode(encoding, "replace")
