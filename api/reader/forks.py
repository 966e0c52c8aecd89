"""Readers of the service, forked before they are needed and kept where that is safe.

A process for each file costs some milliseconds, most of them to copy the pages that it writes
to. So one fresh reader is always ready, and a reader that has read a short text may read
another, of any account. Such a file meets no parser of archives or XML: only Python's decoders,
`csv` and JSON, with which the service itself reads any client's request. What it can leave behind
is state of Python, and a test compares what readers report afterwards. Any other file gets a
fresh reader, which ends with it.
"""

import os
import socket
import struct
import subprocess
from collections.abc import Sequence
from contextlib import suppress

import trio
from msgspec import Struct

from ..listfile.opening import GZIP
from ..listfile.survey import ZIP
from . import starting
from .bounds import Bounds
from .frames import END, GO_ON, ORDER, PAUSE, RECEIVE_OCTETS
from .starting import Spawned

FORK_SERVER = "from mailprobe.api.reader.fork_server import main; main()"
SHORT_OCTETS_MAX = 1 << 16  # some hundred rows; for more of them a fork is a small part
KEPT_MAX = 2  # as many as read at a time
READS_MAX = 200  # of a reader, whatever Python keeps of what it read


def is_short_text(file: int) -> bool:
    """Whether an open file is short, and neither a ZIP archive nor compressed."""
    if os.fstat(file).st_size > SHORT_OCTETS_MAX:
        return False
    return not os.pread(file, len(ZIP), 0).startswith((ZIP, GZIP))


class ReaderEnd(Struct, frozen=True):
    """How a reader has ended: its exit code (negative: a signal), and for how long it computed."""

    code: int
    cpu_s: float


class Fork:
    """A reader that the fork server forks, and the sockets to it and to its end."""

    def __init__(self, connection: socket.socket, end: socket.socket) -> None:
        self.reads = 0
        self._connection = connection
        self._end = end
        for each in (connection, end):
            each.setblocking(False)

    async def begin(self, bounds: Bounds, file: int, frame: bytes, *, is_last: bool) -> None:
        """Give it a file, and the frame of a command. A reader that has ended ignores them."""
        self.reads += 1
        order = ORDER.pack(bounds.cpu_s, is_last)
        with suppress(ConnectionError):
            sent = socket.send_fds(self._connection, [order + frame], [file])
            await self.send(frame[sent - len(order) :])

    async def send(self, octets: bytes) -> None:
        """Send octets; a reader that has ended ignores them."""
        view = memoryview(octets)
        while view:
            try:
                view = view[self._connection.send(view) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._connection)
            except ConnectionError:
                return

    async def receive(self) -> bytes:
        """The next octets; none once it has ended."""
        await trio.lowlevel.wait_readable(self._connection)
        try:
            return self._connection.recv(RECEIVE_OCTETS)
        except ConnectionError:
            return b""

    def is_waiting(self) -> bool:
        """Whether it lives, and has said nothing unasked."""
        try:
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except ConnectionError:
            pass
        return False

    def pause(self) -> None:
        """Stop it until `go_on`."""
        self._send_word(PAUSE)

    def go_on(self) -> None:
        self._send_word(GO_ON)

    def _send_word(self, word: bytes) -> None:
        with suppress(OSError):  # it has ended
            self._end.send(word)

    def kill(self) -> None:
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_WR)

    async def ended(self) -> ReaderEnd | None:
        """Wait for its end; None if the fork server has died before."""
        await trio.lowlevel.wait_readable(self._end)
        try:
            return ReaderEnd(*END.unpack(self._end.recv(END.size, socket.MSG_PEEK)))
        except (ConnectionError, struct.error):
            return None

    def close(self) -> None:
        """Kill it if it lives."""
        self.kill()
        self._connection.close()
        self._end.close()


class ReaderCounts(Struct, frozen=True):
    """The readers of this process."""

    at_work: int
    ready: int


class Forks:
    """Forks readers by a server of this process, which is started when it is not there."""

    def __init__(self) -> None:
        self.server: Spawned[subprocess.Popen[bytes]] | None = None
        self.fresh: list[Fork] = []  # one at most
        self.kept: list[Fork] = []  # have read short texts
        self._at_work = 0

    def acquire(self, *, is_short_text: bool) -> Fork:
        """A reader for a file: a kept one only for a short text. Raises OSError."""
        reader = self._acquired(is_short_text=is_short_text)
        self._at_work += 1
        return reader

    def _acquired(self, *, is_short_text: bool) -> Fork:
        for ready in (self.kept, self.fresh) if is_short_text else (self.fresh,):
            while ready:
                reader = ready.pop()
                if reader.is_waiting():
                    return reader
                reader.close()
        return self.fork()

    def released(self) -> None:
        """A reader that was acquired works no more."""
        self._at_work -= 1

    def statistics(self) -> ReaderCounts:
        """The processes that there are."""
        return ReaderCounts(self._at_work, len(self.fresh) + len(self.kept))

    def hand_back(self, reader: Fork) -> None:
        """Keep a reader that has read a short text, and nothing else since its fork."""
        if len(self.kept) < KEPT_MAX and reader.reads < READS_MAX and reader.is_waiting():
            self.kept.append(reader)
        else:
            reader.close()

    def prepare(self) -> None:
        """Have a fresh reader ready."""
        if not self.fresh and self.server is not None:
            with suppress(OSError):  # the next file forks its own
                self.fresh.append(self.fork())

    def fork(self) -> Fork:
        """Fork a reader. Raises OSError."""
        ours, theirs = socket.socketpair()
        end, reported = socket.socketpair()
        try:
            with theirs, reported:
                self._send([theirs.fileno(), reported.fileno()])
        except BaseException:
            ours.close()
            end.close()
            raise
        return Fork(ours, end)

    def _send(self, files: Sequence[int]) -> None:
        if self.server is not None:
            # Readers that end after it have its socket until then: an order would be lost there.
            if self.server.process.poll() is None:
                with suppress(ConnectionError, BlockingIOError):  # it does not answer any more
                    socket.send_fds(self.server.connection, [b"f"], files)
                    return
            self.close()
        self.server = starting.start(FORK_SERVER, [os.getpid()])
        self.server.connection.setblocking(False)
        socket.send_fds(self.server.connection, [b"f"], files)

    def close(self) -> None:
        """End the server, and its readers with it."""
        for reader in (*self.fresh, *self.kept):
            reader.close()
        self.fresh.clear()
        self.kept.clear()
        if self.server is not None:
            self.server.connection.close()
            self.server.process.kill()
            self.server.process.wait()
            self.server = None
