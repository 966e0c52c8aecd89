"""A `mailprobe` for scripts that call it: its starts are forks of the process with all modules loaded.

A real start takes 0.4 s of processor time, this one 0.05 s. `folder_of_commands` is put first in PATH. The program there
hands its words, folder, environment and standard streams to this process, passes on the signals
that it gets, and ends as the fork does.
"""

import atexit
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.warm_process import ORDER_MAX, WarmProcess

PROGRAM = """\
#!{python} -IS
import json, os, signal, socket, sys

order = {{"words": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
here = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
here.connect({path!r})
here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, {order_max})
signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
socket.send_fds(here, [json.dumps(order).encode()], [0, 1, 2])
pid = int(here.recv(16))
for number in signals:
    signal.signal(number, lambda number, _: os.kill(pid, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
for stream in (0, 1, 2):
    os.close(stream)
code = int(here.recv(16))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@cache
def folder_of_commands() -> Path:
    """The folder with the program; both end with this process."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "orders"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()
    program = folder / "mailprobe"
    words = {"python": sys.executable, "path": str(path), "order_max": ORDER_MAX}
    program.write_text(PROGRAM.format(**words))
    program.chmod(0o755)
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    return folder


def _accept(listener: socket.socket) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_perform, args=(client,), daemon=True).start()


def _perform(client: socket.socket) -> None:
    """Start what is ordered, and send its process's number and then its exit code."""
    with client:
        octets, fds, *_ = socket.recv_fds(client, ORDER_MAX, 3)
        if not octets:
            return
        order = json.loads(octets)
        try:
            process = WarmProcess(
                ["mailprobe.api.cli", *order["words"]], cwd=order["cwd"], env=order["env"],
                stdin=fds[0], stdout=fds[1], stderr=fds[2],
            )  # fmt: skip
        finally:
            for fd in fds:
                os.close(fd)
        with process, suppress(OSError):
            client.send(b"%d" % process.pid)
            threading.Thread(target=_kill_with, args=(client, process), daemon=True).start()
            client.send(b"%d" % process.wait())


def _kill_with(client: socket.socket, process: WarmProcess) -> None:
    """Kill what was started if the program that it stands for is killed."""
    with suppress(OSError):
        if not client.recv(1) and process.poll() is None:
            process.kill()
