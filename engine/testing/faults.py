"""How a mail host can go wrong in the middle of a reply.

A trouble takes the place of the plain sending of one reply. It says whether the
session goes on after it. None of them knows SMTP; the host says when it happens.
Every pause is trio's, so that virtual time moves them.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Protocol, runtime_checkable

import trio

ENDLESS_OCTETS_MAX = 8 * 1024 * 1024  # a reader that goes on so far has no bound at all
ENDLESS_PAUSE_S = 0.001  # so that virtual time moves, and a real reader gets its turn


@runtime_checkable
class CanReset(Protocol):
    """A stream of ours that can break instead of ending."""

    def reset(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ReplyWriter:
    """The host's end of the stream, which may fall into pieces at random.

    `kept_back` are replies that leave behind the next one (see Swap).
    """

    stream: trio.abc.Stream
    rng: Random
    splits: bool = False
    kept_back: bytearray = field(default_factory=bytearray)

    async def send(self, octets: bytes) -> None:
        """Send these octets; where the host splits, in up to eight pieces 1 ms apart."""
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
        """Let the close that follows reach the client as a reset, not as an end."""
        reset_at_close(self.stream)


def reset_at_close(stream: trio.abc.Stream) -> None:
    """Let the stream break when it is closed, instead of ending."""
    if isinstance(stream, trio.SocketStream):
        # l_onoff 1, l_linger 0: close() sends RST (socket(7))
        linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
        stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, linger)
    elif isinstance(stream, CanReset):
        stream.reset()


class Fault(Protocol):
    """One way not to send a reply as one should."""

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        """Send (or not) this reply; say whether the session goes on."""
        ...


@dataclass(frozen=True, slots=True)
class Silence:
    """Never speak again, and keep the connection."""

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        await trio.sleep_forever()
        return False


@dataclass(frozen=True, slots=True)
class Close:
    """Hang up instead of answering."""

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class ResetConnection:
    """Break the connection (RST) instead of answering."""

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        reply_writer.reset()
        return False


@dataclass(frozen=True, slots=True)
class SendLine:
    """Another reply than the right one, lines separated by newlines; perhaps the last one."""

    text: str
    close: bool = False

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        await reply_writer.send(as_octets(self.text))
        return not self.close


@dataclass(frozen=True, slots=True)
class Late:
    """The right reply, but so many seconds later; what waits behind it waits too."""

    by_s: float = 1.5

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        await trio.sleep(self.by_s)
        await reply_writer.send(octets)
        return True


@dataclass(frozen=True, slots=True)
class Drip:
    """The right reply, one octet at a time."""

    every_s: float = 0.2

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        for octet in octets:
            await reply_writer.stream.send_all(bytes([octet]))
            await trio.sleep(self.every_s)
        return True


@dataclass(frozen=True, slots=True)
class Endless:
    """A reply of many lines that never comes to its last one; `line_octets` long each."""

    line_octets: int = 60

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        code = octets[:3] if octets[:3].isdigit() else b"250"
        lines = (code + b"-" + b"x" * self.line_octets + b"\r\n") * 20
        for _ in range(ENDLESS_OCTETS_MAX // len(lines)):
            await reply_writer.send(lines)
            await trio.sleep(ENDLESS_PAUSE_S)
        return False


@dataclass(frozen=True, slots=True)
class Garbage:
    """Octets that are no SMTP, in the place of the reply."""

    octets: bytes = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<html>\xff\x00\r\n"

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        await reply_writer.send(self.octets)
        return True


@dataclass(frozen=True, slots=True)
class Half:
    """The first half of the reply, then hang up; or, stalling, never another octet."""

    stall: bool = False

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        await reply_writer.send(octets[: max(1, len(octets) // 2)])
        if self.stall:
            await trio.sleep_forever()
        return False


@dataclass(frozen=True, slots=True)
class Twice:
    """The right reply, two times, `gap_s` apart: one answer more than was asked for."""

    gap_s: float = 0.0

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        if not self.gap_s:
            await reply_writer.send(octets + octets)
            return True
        await reply_writer.send(octets)
        await trio.sleep(self.gap_s)
        await reply_writer.send(octets)
        return True


@dataclass(frozen=True, slots=True)
class Drop:
    """No reply, and the session goes on: one answer less than was asked for."""

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Swap:
    """The right reply, but behind the next one. A client that waits for it sees no reply."""

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        reply_writer.kept_back.extend(octets)
        return True


@dataclass(frozen=True, slots=True)
class Sometimes:
    """Another trouble with this chance, drawn anew for each reply; else the right reply."""

    chance: float
    fault: Fault

    async def answer(self, reply_writer: ReplyWriter, octets: bytes) -> bool:
        if reply_writer.rng.random() < self.chance:
            return await self.fault.answer(reply_writer, octets)
        await reply_writer.send(octets)
        return True


SHUTTING_DOWN = SendLine(
    "421 4.3.2 Service shutting down and closing transmission channel", close=True
)


def as_octets(text: str, encoding: str = "utf-8") -> bytes:
    """Reply lines as they go on the wire."""
    return ("\r\n".join(text.split("\n")) + "\r\n").encode(encoding, "replace")
