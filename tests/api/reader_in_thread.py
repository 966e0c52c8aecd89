"""A reader in a thread of the tests' own process: it starts at once, and has no bounds."""

import socket
import threading
from collections.abc import Sequence

import pytest

from mailprobe.api.reader import cleaning, client
from mailprobe.api.reader.bounds import Bounds
from mailprobe.api.reader.process import serve


class ReaderThread:
    """Stands for a process; it ends once its socket is closed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._connection:
            serve(self._connection.fileno())

    def kill(self) -> None:
        pass

    def wait(self) -> int:
        self._thread.join()
        return 0


def spawn_thread(bounds: Bounds, files: Sequence[int]) -> client.Spawned:
    """See `client.spawn`."""
    ours, theirs = socket.socketpair()
    return client.Spawned(ReaderThread(theirs), ours)


def read_in_threads(patch: pytest.MonkeyPatch) -> None:
    """Have all readers of this process run in threads."""
    patch.setattr(client, "spawn", spawn_thread)
    patch.setattr(client.forks, "fork", lambda bounds, file: spawn_thread(bounds, [file]))
    patch.setattr(cleaning, "allow_cpu", lambda seconds: None)
