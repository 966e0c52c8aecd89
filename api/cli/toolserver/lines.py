"""Lines on standard input and output, one message each.

Both descriptors are read and written in threads: they may be files or terminals, which cannot
be waited for, and non-blocking mode would change them for other programs too. A read or a write
that does not end keeps no cancel waiting.
"""

import os
from collections.abc import AsyncIterator

import trio

from ...errors import CommandError
from ...schema import BODY_OCTETS_MAX

LINE_OCTETS_MAX = BODY_OCTETS_MAX  # as large as a message of the tool server over HTTP
READ_OCTETS = 1 << 16


async def read_lines(descriptor: int) -> AsyncIterator[bytes]:
    """Lines without their ends, the last one even if it has no end. Raises CommandError.

    Of a line that is too long one octet too many is kept, so that its reader knows.
    """
    line = bytearray()
    while octets := await trio.to_thread.run_sync(_read, descriptor, abandon_on_cancel=True):
        rest, *others = octets.split(b"\n")
        line += rest[: LINE_OCTETS_MAX + 1 - len(line)]
        for piece in others:
            yield bytes(line)
            line[:] = piece
    yield bytes(line)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, READ_OCTETS)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise CommandError(f"standard input cannot be read: {reason}") from error


async def write_line(descriptor: int, line: bytes) -> None:
    """Write a line and its end. A cancel leaves it to be written, or not."""
    await trio.to_thread.run_sync(_write, descriptor, line + b"\n", abandon_on_cancel=True)


def _write(descriptor: int, octets: bytes) -> None:
    while octets:
        octets = octets[os.write(descriptor, octets) :]


def claim_standard_streams() -> tuple[int, int]:
    """Take both streams for messages alone; the descriptors to read and to write.

    Whatever else writes to standard output from now on writes to standard error, and whatever
    reads standard input, child processes too, finds its end.
    """
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, sink
