"""A list of the command line, read and written by a reader process. Its calls block."""

import os
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ..errors import telling_open_files
from ..listfile.opening import ListFile, ReadOptions, open_file
from ..listfile.survey import BadList
from . import starting
from .bounds import end_of, own_file_bounds
from .client import ReaderFault, checked
from .frames import (
    FRAME_OCTETS_MAX,
    BadFrame,
    Channel,
    ListedRows,
    ListRead,
    OutputWritten,
    ReadAddresses,
    ReadRows,
    Ready,
    Report,
    RowAddresses,
    WriteRows,
)
from .starting import Process


class OwnList:
    """A list at its reader; `found` is known once its addresses were read."""

    def __init__(self, name: str, process: Process, connection: socket.socket) -> None:
        self.name = name
        self.found = ListRead(0, "", [])
        self._process = process
        self._connection = connection
        self._channel = Channel(connection.fileno(), FRAME_OCTETS_MAX)

    def read(self, order: ReadAddresses) -> Iterator[RowAddresses]:
        """The addresses of the rows. Raises BadList, OSError."""
        self._send(order)
        while True:
            match self._received():
                case RowAddresses() as rows:
                    yield rows
                case ListRead() as found:
                    self.found = found
                    return

    def read_rows(self, order: ReadRows) -> Iterator[ListedRows]:
        """The rows with all their cells. Raises BadList, OSError."""
        self._send(order)
        while isinstance(rows := self._received(), ListedRows):
            yield rows

    def begin_writing(
        self, command: WriteRows, output: BinaryIO, journal: int, offsets: BinaryIO
    ) -> None:
        """Write the rows into `output`; `finish_writing` waits for their end."""
        output.flush()
        self._send(command)
        if isinstance(self._received(), Ready):
            files = [output.fileno(), journal, offsets.fileno()]
            socket.send_fds(self._connection, [b"f"], files)

    def finish_writing(self) -> int:
        """The rows that were written. Raises CommandError, OSError."""
        written = self._received()
        return written.rows if isinstance(written, OutputWritten) else 0

    def _send(self, command: ReadAddresses | ReadRows | WriteRows) -> None:
        with suppress(ConnectionError):  # its end is the next report
            self._channel.send(command)

    def _received(self) -> Report:
        try:
            body = self._channel.receive()
        except BadFrame as error:
            raise ReaderFault(f"{self.name} {end_of(None)}", str(error)) from None
        if body is None:
            raise BadList(f"{self.name} {end_of(self._process.wait())}")
        return checked(body, self.name)


@contextmanager
def open_own_list(
    path: Path | None, reading: ReadOptions, output: Path | None, *, each: bool = False
) -> Iterator[tuple[OwnList, ReadAddresses]]:
    """Open a list at a reader of its own, with the command that reads it. Raises BadList."""
    named = None if output is None else str(output)
    with _opened(path) as (opened, own):
        yield own, ReadAddresses(opened.name, opened.ending, reading, named, each)


def rows_of(path: Path | None, reading: ReadOptions) -> Generator[ListedRows, None, None]:
    """The rows of a list, read by a reader of its own; close it early. Raises BadList, OSError."""
    with _opened(path) as (opened, own):
        yield from own.read_rows(ReadRows(opened.name, opened.ending, reading))


@contextmanager
def _opened(path: Path | None) -> Iterator[tuple[ListFile, OwnList]]:
    with open_file(path) as opened:
        descriptor = opened.file.fileno()
        bounds = own_file_bounds(os.fstat(descriptor).st_size)
        with telling_open_files():
            spawned = starting.spawn(bounds, descriptor)
        try:
            with spawned.connection:
                yield opened, OwnList(opened.name, spawned.process, spawned.connection)
        finally:
            spawned.process.kill()
            spawned.process.wait()
