"""Lines on standard input and output, one message each.

Both descriptors are read and written in threads: they may be files or terminals, which cannot
be waited for, and non-blocking mode would change them for other programs too.
"""

import os
from collections import deque
from dataclasses import dataclass, field

import trio

from mailprobe.api.errors import CommandError
from mailprobe.api.schema import BODY_OCTETS_MAX

LINE_OCTETS_MAX = BODY_OCTETS_MAX  # as large as a message of the tool server over HTTP
READ_OCTETS = 1 << 16


@dataclass(slots=True)
class LineSplitter:
    """Splits octets into lines without their ends; a line that is too long is cut off.

    The part that is kept is one octet too long, so that its reader knows.
    """

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, octets: bytes) -> list[bytes]:
        """Take octets; return the lines that are complete."""
        first, *others = octets.split(b"\n")
        self._extend(first)
        lines = []
        for piece in others:
            lines.append(bytes(self._rest))
            self._rest.clear()
            self._extend(piece)
        return lines

    def end(self) -> bytes:
        """The last line, which has no end; empty if there is none."""
        return bytes(self._rest)

    def _extend(self, octets: bytes) -> None:
        self._rest += octets[: LINE_OCTETS_MAX + 1 - len(self._rest)]


@dataclass(slots=True)
class LineReader:
    """Reads lines from a descriptor."""

    descriptor: int
    _lines: deque[bytes] = field(default_factory=deque)
    _splitter: LineSplitter = field(default_factory=LineSplitter)
    _ended: bool = False

    async def receive(self) -> bytes | None:
        """The next line; None at the end of the input. Raises CommandError."""
        while not self._lines and not self._ended:
            octets = await trio.to_thread.run_sync(self._read, abandon_on_cancel=True)
            if octets:
                self._lines.extend(self._splitter.feed(octets))
            else:
                self._ended = True
                self._lines.append(self._splitter.end())
        return self._lines.popleft() if self._lines else None

    def _read(self) -> bytes:
        try:
            return os.read(self.descriptor, READ_OCTETS)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise CommandError(f"standard input cannot be read: {reason}") from error


@dataclass(frozen=True, slots=True)
class LineWriter:
    """Writes lines to a descriptor, for one task at a time."""

    descriptor: int

    async def send(self, line: bytes) -> None:
        """Write a line and its end. A cancel leaves it to be written, or not."""
        await trio.to_thread.run_sync(self._write, line + b"\n", abandon_on_cancel=True)

    def _write(self, octets: bytes) -> None:
        while octets:
            octets = octets[os.write(self.descriptor, octets) :]


def claim_standard_streams() -> tuple[LineReader, LineWriter]:
    """Take both streams for messages alone.

    Whatever else writes to standard output from now on writes to standard error, and whatever
    reads standard input, child processes too, finds its end.
    """
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return LineReader(source), LineWriter(sink)
