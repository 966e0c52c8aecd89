"""Readers of lists that are forked from the process that wants one, which has their modules loaded.

The real ones, which tests/api/reader and tests/api/cli/test_standard_streams.py start, are new
interpreters: 0.1 s of processor time each, most of what a small list costs.
"""

import os
import signal
import socket
import sys
import traceback
from itertools import pairwise

from mailprobe.api.reader import chunks, cleaning, process, rows, starting, workbook
from mailprobe.api.reader.bounds import Bounds

IMPORTED = (chunks, cleaning, rows, workbook)  # so that no reader does it
DESCRIPTORS_MAX = 1 << 20


class ForkedReader:
    """A reader of an open file, and a child of this process."""

    def __init__(self, bounds: Bounds, file: int, connection: socket.socket) -> None:
        parent = os.getpid()
        # A Ctrl-C within a callback of a fork, such as logging has, is ignored.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        self.pid = os.fork()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if self.pid:
            return
        try:
            os.setpgid(0, 0)
            os.dup2(connection.fileno(), 0)
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            for before, after in pairwise((2, file, DESCRIPTORS_MAX)):
                os.closerange(before + 1, after)
            sys.argv[1:] = map(str, (bounds.cpu_s, parent, file))
            process.main()
        except BaseException:
            traceback.print_exc()
        os._exit(1)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def fork_reader(bounds: Bounds, file: int) -> starting.Spawned[ForkedReader]:
    """See `starting.spawn`."""
    ours, theirs = socket.socketpair()
    with theirs:
        return starting.Spawned(ForkedReader(bounds, file, theirs), ours)
