"""Asks a reader to read a file or to make a workbook, and reports how it ended.

A reader gets open files and a socket to its starter: no file names, no settings, no secrets of
the environment. Any failure of a reader is a BadList of its file, unless its fork server died.
"""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from mailprobe.api.errors import CommandError
from mailprobe.api.listfile.survey import BadList
from mailprobe.api.reader.bounds import ENDS, UNREADABLE, Bounds, end_of
from mailprobe.api.reader.forks import Forks
from mailprobe.api.reader.frames import (
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
    """A reader has ended, and its file is not to blame: the fork server has died, for instance."""


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
        case Refused(message=message, is_misuse=True, hint=hint):
            raise BadList(message, hint)
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

    def __init__(self, work: "ReaderOrder", *, is_short_text: bool) -> None:
        self._work = work
        self._is_short_text = is_short_text
        self._reader = forks.acquire(is_short_text=is_short_text)
        self._buffer = FrameBuffer(FRAME_OCTETS_MAX)
        self._is_under_way = False
        self._has_loaded = False

    async def begin(self) -> None:
        """Give the file with its first command."""
        work, is_last = self._work, not self._is_short_text
        await self._reader.begin(work.bounds, work.file, frame_of(work.command), is_last=is_last)

    async def send(self, command: Command) -> None:
        """Send a further command; a reader that has ended says so in its next report."""
        self._is_under_way = True
        await self._reader.send(frame_of(command))

    async def receive(self) -> Report:
        """The next report. Raises CommandError, OSError."""
        try:
            body = await self._next_body()
        except ReaderLost:
            if self._is_under_way:
                raise
            body = await self._begun_again()
        self._is_under_way = True
        report = checked(body, self._work.name, self._work.otherwise)
        self._has_loaded = isinstance(report, Loaded)
        return report

    async def _begun_again(self) -> bytes:
        """The first body of another reader: nothing has come of the first one."""
        self._reader.close()
        self._reader = forks.fork()
        self._buffer = FrameBuffer(FRAME_OCTETS_MAX)
        await self.begin()
        return await self._next_body()

    async def _next_body(self) -> bytes:
        try:
            while (body := self._buffer.next_body()) is None:
                octets = await self._reader.receive()
                if not octets:
                    raise await self._end()
                self._buffer.feed(octets)
        except BadFrame as error:
            raise ReaderFault(self._work.failed(None), str(error)) from None
        return body

    async def _end(self) -> BadList | ReaderLost:
        """Why it has ended."""
        code = None
        with trio.move_on_after(END_S) as waiting:  # it has closed its socket, so it ends
            code = await self._reader.ended()
        if code is None and not waiting.cancelled_caught:
            return ReaderLost("the fork server has died")
        # A kept reader may have ended before it had this file, unless it met a limit.
        if self._reader.reads > 1 and not self._is_under_way and -(code or 0) not in ENDS:
            return ReaderLost("a kept reader has ended")
        return BadList(self._work.failed(code))

    async def close(self) -> None:
        """Keep the reader if it may read another file; else kill it, and wait for its end."""
        if self._is_short_text and self._has_loaded and not self._buffer.is_begun:
            forks.hand_back(self._reader)
        else:
            self._reader.kill()
            with trio.move_on_after(END_S, shield=True) as waiting:
                await self._reader.ended()
            if waiting.cancelled_caught:
                log.error("reader did not end after SIGKILL: waited_s=%g", END_S)
            self._reader.close()
        forks.released()
        forks.prepare()


@dataclass(frozen=True, slots=True)
class ReaderOrder:
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
    work: ReaderOrder, *, is_short_text: bool = False
) -> AsyncIterator[ReaderTask]:
    """A reader that works on a file; after the block it does nothing more with it.

    See `forks` for what is a short text. Raises OSError.
    """
    reader = ReaderTask(work, is_short_text=is_short_text)
    try:
        await reader.begin()
        yield reader
    finally:
        await reader.close()
