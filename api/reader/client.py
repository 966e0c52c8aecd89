"""Starts a reader process, and reports how it ended.

A fork server (`fork_server`) forks the readers of the service within milliseconds; `clean` needs
only one, and starts it itself. A reader gets open files and a socket to its starter: no file
names, no settings, no secrets of the environment. Any failure of a reader is a BadList of its file.
"""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import trio

from mailprobe.api.errors import CommandError
from mailprobe.api.listfile.survey import BadList
from mailprobe.api.reader.bounds import Bounds, end_of
from mailprobe.api.reader.frames import (
    END,
    FRAME_OCTETS_MAX,
    ORDER,
    RECEIVE_OCTETS,
    BadFrame,
    Broken,
    Command,
    Failed,
    FrameBuffer,
    Refused,
    Report,
    TooManyRows,
    decode_report,
    frame_of,
)

PROGRAM = "from mailprobe.api.reader.process import main; main()"
FORK_SERVER = "from mailprobe.api.reader.fork_server import main; main()"
# What Python needs to find its modules, and temporary files a place.
ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "TMPDIR")


class ReaderFault(BadList):
    """A bug in a reader, or a report of it that cannot be read; for the log."""

    def __init__(self, name: str, traceback: str) -> None:
        super().__init__(f"{name} {end_of(None)}")
        self.traceback = traceback


class Process(Protocol):
    """A reader process, of which its end matters."""

    def kill(self) -> None: ...

    def wait(self) -> int | None:
        """Its exit code; None if that is not known."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """A reader process, and our end of the socket to it."""

    process: Process
    connection: socket.socket


def spawn(bounds: Bounds, files: Sequence[int]) -> Spawned:
    """Start a reader that has these open files. It ends with the thread that starts it."""
    return start(PROGRAM, [bounds.cpu_s, bounds.wall_s or 0, os.getpid()], files)


def start(program: str, arguments: Sequence[int], files: Sequence[int] = ()) -> Spawned:
    """Start a process with these open files and a socket to us, and nothing else of this process.

    Raises OSError.
    """
    ours, theirs = socket.socketpair()
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", program, *map(str, arguments)],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={**kept, "LC_ALL": "C.UTF-8"}, pass_fds=files,
                process_group=0,  # a Ctrl-C is for its starter
            )  # fmt: skip
    except BaseException:
        ours.close()
        raise
    return Spawned(process, ours)


def checked(body: bytes | None, name: str, process: Process) -> Report:
    """The report in a body. Raises CommandError for the file's fault, and OSError.

    None for the body means that the process has ended.
    """
    if body is None:
        raise BadList(f"{name} {end_of(process.wait())}")
    try:
        report = decode_report(body)
    except BadFrame as error:
        raise ReaderFault(name, str(error)) from None
    match report:
        case Refused(message=message, fix=str()):
            raise TooManyRows(message)
        case Refused(message=message, is_misuse=is_misuse):
            raise BadList(message) if is_misuse else CommandError(message)
        case Failed(errno=number):
            raise OSError(number, os.strerror(number))
        case Broken(traceback=traceback):
            raise ReaderFault(name, traceback)
    return report


class ReaderTask:
    """A reader process for a task of trio."""

    def __init__(self, name: str, process: Process, stream: trio.SocketStream) -> None:
        self._name = name
        self._process = process
        self._stream = stream
        self._buffer = FrameBuffer(FRAME_OCTETS_MAX)

    async def send(self, command: Command) -> None:
        """Send a command; a reader that has ended says so in its next report."""
        try:
            await self._stream.send_all(frame_of(command))
        except trio.BrokenResourceError:
            return

    async def receive(self) -> Report:
        """The next report. Raises CommandError, OSError."""
        try:
            while (body := self._buffer.next_body()) is None:
                octets = await self._received()
                if not octets:
                    break
                self._buffer.feed(octets)
        except BadFrame as error:
            raise ReaderFault(self._name, str(error)) from None
        if body is None:
            await trio.to_thread.run_sync(self._process.wait)
        return checked(body, self._name, self._process)

    async def _received(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(RECEIVE_OCTETS))
        except trio.BrokenResourceError:
            return b""


class Forked:
    """A reader that the fork server has forked."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._returncode: int | None = None

    def kill(self) -> None:
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_WR)

    def wait(self) -> int | None:
        """Its exit code; None if the fork server has died, and the reader with it."""
        with self._end:
            if self._end.fileno() >= 0 and (octets := self._end.recv(END.size)):
                (self._returncode,) = END.unpack(octets)
        return self._returncode


class Forks:
    """Forks readers by a server of this process, which is started when it is not there."""

    def __init__(self) -> None:
        self._server: Spawned | None = None

    def fork(self, bounds: Bounds, file: int) -> Spawned:
        """Fork a reader that has this open file. Raises OSError."""
        ours, theirs = socket.socketpair()
        end, reported = socket.socketpair()
        order = ORDER.pack(bounds.cpu_s, bounds.wall_s or 0, file)
        try:
            with theirs, reported:
                self._send(order, [theirs.fileno(), reported.fileno(), file])
        except BaseException:
            ours.close()
            end.close()
            raise
        return Spawned(Forked(end), ours)

    def _send(self, order: bytes, files: Sequence[int]) -> None:
        if self._server is not None:
            with suppress(ConnectionError):
                socket.send_fds(self._server.connection, [order], files)
                return
            self.close()  # it has died
        self._server = start(FORK_SERVER, [os.getpid()])
        socket.send_fds(self._server.connection, [order], files)

    def close(self) -> None:
        """End the server, and its readers with it."""
        if self._server is not None:
            self._server.connection.close()
            self._server.process.kill()
            self._server.process.wait()
            self._server = None


forks = Forks()  # of this process


@asynccontextmanager
async def open_reader(name: str, bounds: Bounds, file: int) -> AsyncIterator[ReaderTask]:
    """Fork a reader of an open file; it is killed at the end of the block."""
    spawned = forks.fork(bounds, file)
    try:
        async with trio.SocketStream(trio.socket.from_stdlib_socket(spawned.connection)) as stream:
            yield ReaderTask(name, spawned.process, stream)
    finally:
        spawned.process.kill()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(spawned.process.wait)
