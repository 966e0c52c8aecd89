"""A reader in a thread of the tests' own process: it starts at once, and has no bounds."""

import select
import socket
import threading
from math import inf

import pytest
import trio

from mailprobe.api.lists import results, upload
from mailprobe.api.reader import cleaning, client, process, rows, starting
from mailprobe.api.reader.bounds import Bounds
from mailprobe.api.reader.forks import Fork
from mailprobe.api.reader.frames import END
from mailprobe.api.reader.process import serve, serve_orders

WAITED_S = 5.0  # for a report; a reader may wait for what other tasks of its starter send


class ReaderThread:
    """Stands for a process; it ends once its socket is closed."""

    def __init__(self, connection: socket.socket, file: int) -> None:
        self._connection = connection
        self._file = file
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._connection:
            serve(self._connection.fileno(), self._file)

    def kill(self) -> None:
        pass

    def wait(self) -> int:
        self._thread.join()
        return 0


def spawn_thread(bounds: Bounds, file: int) -> starting.Spawned[ReaderThread]:
    """See `starting.spawn`."""
    ours, theirs = socket.socketpair()
    return starting.Spawned(ReaderThread(theirs, file), ours)


class ForkInThread(Fork):
    """A reader in a thread. The event loop waits for its reports, and virtual time with it.

    Else hours of virtual time would pass while the thread works, and all that is done at
    intervals would be done for each of them.
    """

    def __init__(self, connection: socket.socket, end: socket.socket) -> None:
        super().__init__(connection, end)
        self.connection = connection

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        select.select([self.connection], [], [], WAITED_S)
        return await super().receive()


def fork_thread() -> Fork:
    """See `Forks.fork`. It has ended for its starter as soon as it is killed."""
    ours, theirs = socket.socketpair()
    end, reported = socket.socketpair()
    reported.sendall(END.pack(0, 0.0))

    def run() -> None:
        with theirs, reported:
            serve_orders(theirs)

    threading.Thread(target=run, daemon=True).start()
    return ForkInThread(ours, end)


def read_in_threads(patch: pytest.MonkeyPatch) -> None:
    """Have all readers of this process run in threads."""
    patch.setattr(starting, "spawn", spawn_thread)
    patch.setattr(client.forks, "fork", fork_thread)
    # Virtual time passes at once while a thread works.
    patch.setattr(client, "SLICE_S", inf)
    patch.setattr(upload, "UPLOAD", Bounds(60))
    patch.setattr(results, "workbook_bounds", lambda rows: Bounds(60))
    for module in (
        cleaning,
        process,
        rows,
    ):  # or the limit is that of the process which runs the tests
        patch.setattr(module, "allow_cpu", lambda seconds: None)
