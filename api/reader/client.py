"""Asks a reader to read a file or to make a workbook, and reports how it ended.

A reader gets open files and a socket to its starter: no file names, no settings, no secrets of
the environment. A failure of a reader is a BadList of its file, unless somebody else has ended or
stopped the reader: one that was ended is begun again once, then it is a ReaderLost.
"""

import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import inf

import trio
from msgspec import Struct

from ..admission.turns import SLICE_S, FairTurn
from ..errors import CommandError
from ..listfile.survey import BadList
from .bounds import (
    AT_WORK_SHARE,
    ENDS,
    OTHERS_ENDS,
    TOO_LONG,
    UNREADABLE,
    Bounds,
    end_of,
)
from .forks import Forks, ReaderEnd
from .frames import (
    FRAME_OCTETS_MAX,
    BadFrame,
    Broken,
    Command,
    Failed,
    FrameBuffer,
    Loaded,
    Refused,
    Report,
    TooManyRows,
    decode_report,
    frame_of,
)

log = logging.getLogger("mailprobe.reader")

END_S = 10.0  # from SIGKILL to the end: the kernel frees some 100 MiB


class ReaderFault(BadList):
    """A bug in a reader, or a report of it that cannot be read; for the log."""

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback


class ReaderLost(OSError):
    """A reader has ended or stands still, and its file is not to blame.

    The fork server has died, for instance, or an operator has ended the reader.
    """


def checked(body: bytes, name: str, otherwise: str = UNREADABLE) -> Report:
    """The report in a body. Raises CommandError for the file's fault, and OSError.

    `otherwise` says of `name` what a bug makes of it.
    """
    try:
        report = decode_report(body)
    except BadFrame as error:
        raise ReaderFault(f"{name} {otherwise}", str(error)) from None
    match report:
        case Refused(message=message, fix=str()):
            raise TooManyRows(message)
        case Refused(message=message, is_misuse=True, hint=hint, parameter=parameter):
            raise BadList(message, hint, parameter)
        case Refused(message=message):
            raise CommandError(message)
        case Failed(errno=number):
            raise OSError(number, os.strerror(number))
        case Broken(traceback=traceback):
            raise ReaderFault(f"{name} {otherwise}", traceback)
    return report


forks = Forks()  # of this process


class ReaderTask:
    """A reader of one file, for a task of trio."""

    def __init__(
        self, work: "ReaderOrder", turn: FairTurn | None = None, *, is_short_text: bool = False
    ) -> None:
        self._work = work
        self._turn = turn
        self._is_short_text = is_short_text
        self._reader = forks.acquire(is_short_text=is_short_text)
        self._buffer = FrameBuffer(FRAME_OCTETS_MAX)
        self._left_s = work.bounds.wall_s
        self._received = 0  # reports
        self._may_begin_again = True
        self._has_loaded = False

    async def begin(self) -> None:
        """Give the file with its first command."""
        work, is_last = self._work, not self._is_short_text
        await self._reader.begin(work.bounds, work.file, frame_of(work.command), is_last=is_last)

    async def send(self, command: Command) -> None:
        """Send a further command; a reader that has ended says so in its next report.

        Raises CommandError, OSError if it takes too long.
        """
        self._may_begin_again = False
        await self._make_way()
        with self._timed() as limit:
            await self._reader.send(frame_of(command))
        if limit.cancelled_caught:
            raise await self._late()

    async def receive(self) -> Report:
        """The next report. Raises CommandError, OSError."""
        try:
            body = await self._next_body()
        except ReaderLost:
            if not self._may_begin_again:
                raise
            body = await self._begun_again()
        self._received += 1
        report = checked(body, self._work.name, self._work.otherwise)
        self._has_loaded = isinstance(report, Loaded)
        return report

    async def _begun_again(self) -> bytes:
        """The next body, of another reader: of the same file it reports the same."""
        self._may_begin_again = False
        self._reader.close()
        self._reader = forks.fork()
        self._buffer = FrameBuffer(FRAME_OCTETS_MAX)
        await self.begin()
        for _ in range(self._received):
            await self._next_body()
        return await self._next_body()

    async def _next_body(self) -> bytes:
        await self._make_way()
        try:
            while (body := self._buffer.next_body()) is None:
                octets = await self._octets()
                if not octets:
                    raise await self._end()
                self._buffer.feed(octets)
        except BadFrame as error:
            raise ReaderFault(self._work.failed(None), str(error)) from None
        return body

    async def _octets(self) -> bytes:
        """The next octets; none once it has ended. Raises CommandError, OSError."""
        while self._left_s > 0:
            with self._timed(SLICE_S):
                return await self._reader.receive()
            await self._make_way()
        raise await self._late()

    @contextmanager
    def _timed(self, most_s: float = inf) -> Iterator[trio.CancelScope]:
        """Wait for the reader, for `most_s` and as long as it may take: only this time counts."""
        began_at = trio.current_time()
        try:
            with trio.move_on_after(min(self._left_s, most_s)) as limit:
                yield limit
        finally:
            self._left_s -= trio.current_time() - began_at

    async def _make_way(self) -> None:
        if self._turn is not None:
            await self._turn.make_way(self._reader.pause, self._reader.go_on)

    async def _late(self) -> BadList | ReaderLost:
        """End it at its deadline, and return why it was late. It gets no more time."""
        self._may_begin_again = False
        self._reader.kill()
        ended = await self._ended()
        wall_s = self._work.bounds.wall_s
        if ended is None or ended.cpu_s < AT_WORK_SHARE * wall_s:
            return ReaderLost(f"a reader stood still for {wall_s:g} s")
        return BadList(f"{self._work.name} {TOO_LONG}")

    async def _end(self) -> BadList | ReaderLost:
        """Why it has ended."""
        ended = await self._ended()
        if ended is None:
            return ReaderLost("the fork server has died")
        if -ended.code in OTHERS_ENDS:
            return ReaderLost(f"a reader was ended by signal {-ended.code}")
        # A kept reader may have ended before it had this file, unless it met a limit.
        if self._reader.reads > 1 and not self._received and -ended.code not in ENDS:
            return ReaderLost("a kept reader has ended")
        return BadList(self._work.failed(ended.code))

    async def _ended(self) -> ReaderEnd | None:
        """How it has ended, once it was killed or has closed its socket; None if nothing says it.

        A fork server that does not say it stands still: another takes its place.
        """
        with trio.move_on_after(END_S, shield=True):
            return await self._reader.ended()
        log.error("reader did not end: waited_s=%g", END_S)
        forks.close()
        return None

    async def close(self) -> None:
        """Keep the reader if it may read another file; else kill it, and wait for its end."""
        if self._is_short_text and self._has_loaded and not self._buffer.is_begun:
            forks.hand_back(self._reader)
        else:
            self._reader.kill()
            await self._ended()
            self._reader.close()
        forks.released()
        forks.prepare()


class ReaderOrder(Struct, frozen=True):
    """What a reader is for: an open file, what to do with it, and its name for messages."""

    name: str
    bounds: Bounds
    file: int
    command: Command
    otherwise: str = UNREADABLE  # of the name, if it fails

    def failed(self, code: int | None) -> str:
        """What its owner reads if the reader has ended, with this exit code."""
        return f"{self.name} {end_of(code, self.otherwise)}"


@asynccontextmanager
async def open_reader(
    work: ReaderOrder, turn: FairTurn | None = None, *, is_short_text: bool = False
) -> AsyncIterator[ReaderTask]:
    """A reader that works on a file; after the block it does nothing more with it.

    It is paused where its turn makes way. See `forks` for what is a short text. Raises OSError.
    """
    reader = ReaderTask(work, turn, is_short_text=is_short_text)
    try:
        await reader.begin()
        yield reader
    finally:
        await reader.close()
