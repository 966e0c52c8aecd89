"""A process that forks readers at once: it has imported all that readers need.

It is started by `forks.Forks` at the first file, runs one thread, looks at no file, and ends with
its starter. A starter asks with one octet and two open files: the reader's socket, and a socket
for its end. One octet on the latter pauses the reader, another lets it go on, and closing its
sending side kills it; its exit code comes back there, however it ends.
"""

import gc
import os
import select
import signal
import socket
import sys
from contextlib import suppress

from ..listfile import delimiter, objects, quoting, tables
from ..listfile.workbook import sheets, summary
from . import chunks, workbook
from .bounds import end_with, leave_network, limit_process, lower_priority
from .frames import END, PAUSE
from .process import serve_orders

# What readers import when they use it, so that none has to.
IMPORTED = (chunks, workbook, delimiter, objects, quoting, tables, sheets, summary)


def main() -> None:
    """The process: its argument is who started it."""
    end_with(int(sys.argv[1]))
    leave_network()
    gc.freeze()  # a collection in a reader would copy what it shares
    ForkServer(socket.socket(fileno=os.dup(0))).run()


class ForkServer:
    """Forks readers, kills those that are not wanted any more, and reports their ends."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._process = os.getpid()
        self._ends: dict[int, tuple[socket.socket, int]] = {}  # sockets and readers, by descriptor
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._poll = select.poll()
        self._poll.register(orders, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def run(self) -> None:
        """Serve until the starter is gone."""
        signal.set_wakeup_fd(self._wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._orders.fileno():
                    if not self._receive_order():
                        return
                elif descriptor in self._ends:
                    self._signal(descriptor)
            with suppress(BlockingIOError):
                self._woken.recv(4096)
            self._reap()

    def _receive_order(self) -> bool:
        octets, files, _, _ = socket.recv_fds(self._orders, 1, 2)
        if not octets:
            return False
        end = socket.socket(fileno=files[1])
        try:
            if not (reader := os.fork()):
                self._read(files)
        except OSError:  # no room for another process: the reader ends at once
            end.close()
            return True
        finally:
            os.close(files[0])
        self._ends[end.fileno()] = (end, reader)
        self._poll.register(end, select.POLLIN)
        return True

    def _read(self, files: list[int]) -> None:
        """The reader: it has no files but its own."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            end_with(self._process)
            others = (
                self._orders,
                self._wake,
                self._woken,
                *(end for end, _ in self._ends.values()),
            )
            for other in others:
                other.close()
            os.close(files[1])
            os.dup2(files[0], 0)
            os.close(files[0])
            gc.disable()  # reading makes no cycles that grow
            lower_priority()
            limit_process()
            serve_orders(socket.socket(fileno=0))
            os._exit(0)
        finally:
            os._exit(1)

    def _signal(self, descriptor: int) -> None:
        """Do with a reader what its starter says. It is not reaped, so its number is its own."""
        end, reader = self._ends[descriptor]
        try:
            said = end.recv(1)
        except ConnectionError:
            said = b""
        if said:
            os.kill(reader, signal.SIGSTOP if said == PAUSE else signal.SIGCONT)
            return
        self._poll.unregister(descriptor)
        os.kill(reader, signal.SIGKILL)

    def _reap(self) -> None:
        """Report the ends of readers."""
        with suppress(ChildProcessError):
            while (ended := os.wait4(-1, os.WNOHANG))[0]:
                reader, status, used = ended
                self._report(reader, status, used.ru_utime + used.ru_stime)

    def _report(self, reader: int, status: int, cpu_s: float) -> None:
        descriptor = next(place for place, (_, each) in self._ends.items() if each == reader)
        end, _ = self._ends.pop(descriptor)
        with suppress(KeyError):
            self._poll.unregister(descriptor)
        with end, suppress(OSError):  # its starter may be gone
            end.sendall(END.pack(os.waitstatus_to_exitcode(status), cpu_s))
