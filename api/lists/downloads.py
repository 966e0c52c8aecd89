"""Downloads of what may be long: an account has so many at a time, and the work at them is in turns.

Pieces are made in a thread, one at a time for all accounts, and first those of the account that has
used least. So an account with many downloads delays another's by a piece at a time.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from math import inf
from time import thread_time
from typing import TypeVar, TypeVarTuple

import trio

from ..admission.turns import FairTurns
from ..quota.list_limits import ACCOUNT_DOWNLOADS_MAX, WAITING_S_MAX

PIECE_OCTETS_MAX = 64 * 1024  # some milliseconds to encode
PAUSE_S_MAX = 0.1

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

download_turns = FairTurns(inf, account_max=ACCOUNT_DOWNLOADS_MAX, wait_s=WAITING_S_MAX)
_pieces = FairTurns(1)


async def begun(account_id: str, parts: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """The parts, of which the first is made: what cannot begin is refused before an answer has.

    It is one of the account's downloads until its end. Raises Overloaded, and what `parts` raises.
    """
    turn = await download_turns.begin(account_id)
    try:
        first = await anext(parts, b"")
    except BaseException:
        turn.end()
        raise
    return BegunDownload(first, parts, turn.end)


class BegunDownload(AsyncIterator[bytes]):
    """Parts whose first one is there. Not a generator: one that was not begun closes nothing."""

    def __init__(
        self, first: bytes, parts: AsyncGenerator[bytes, None], end: Callable[[], None]
    ) -> None:
        self._first = first
        self._parts = parts
        self._end: Callable[[], None] | None = end

    async def __anext__(self) -> bytes:
        first, self._first = self._first, b""
        return first or await anext(self._parts)

    async def aclose(self) -> None:
        """End the download."""
        end, self._end = self._end, None
        try:
            await self._parts.aclose()
        finally:
            if end is not None:
                end()


async def worked(account_id: str, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """Run a piece of work in a thread, and return its result.

    All downloads together take at most half of a processor: they work one at a time, and each
    pauses as long as it has worked.
    """

    def timed() -> tuple[T, float]:
        began_s = thread_time()
        return function(*arguments), thread_time() - began_s

    turn = await _pieces.begin(account_id)
    try:
        made, took_s = await trio.to_thread.run_sync(timed)
        await trio.sleep(min(took_s, PAUSE_S_MAX))
    finally:
        turn.end()
    return made


async def pieces(account_id: str, lines: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield lines together, in pieces of at most PIECE_OCTETS_MAX."""
    while octets := await worked(account_id, _next_lines, lines):
        for first in range(0, len(octets), PIECE_OCTETS_MAX):
            yield octets[first : first + PIECE_OCTETS_MAX]


def _next_lines(lines: Iterator[bytes]) -> bytes:
    """The next lines, until they have PIECE_OCTETS_MAX or a little more."""
    octets = bytearray()
    for line in lines:
        octets += line
        if len(octets) >= PIECE_OCTETS_MAX:
            break
    return bytes(octets)
