"""Starts a process that has open files and a socket to its starter, and nothing else of it."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from .bounds import Bounds

PROGRAM = "from mailprobe.api.reader.process import main; main()"
# What Python needs to find its modules, and temporary files a place.
ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "TMPDIR")


class Process(Protocol):
    """A process, of which its end matters."""

    def kill(self) -> None: ...

    def wait(self) -> int:
        """Its exit code."""


P = TypeVar("P", bound=Process, covariant=True)


class Spawned(Struct, Generic[P], frozen=True):
    """A process, and our end of the socket to it."""

    process: P
    connection: socket.socket


def spawn(bounds: Bounds, file: int) -> Spawned[Process]:
    """Start a reader of an open file. It ends with the thread that starts it."""
    return start(PROGRAM, [bounds.cpu_s, os.getpid(), file], [file])


def start(
    program: str, arguments: Sequence[int], files: Sequence[int] = ()
) -> "Spawned[subprocess.Popen[bytes]]":
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
