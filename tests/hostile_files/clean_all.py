"""Cleans every hostile file in this process, and writes a line of JSON about each.

    python -m tests.hostile_files.clean_all FOLDER

The process has 512 MiB of addresses, so that a file that takes more ends it. Each file has a
reader process with its own limits, which is forked from this process: to start Python for each
would be four fifths of the time.
"""

import json
import os
import resource
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from unittest.mock import patch

from mailprobe.api.cli.cleaning.outputs import Order
from mailprobe.api.errors import CommandError
from mailprobe.api.listfile import ReadOptions
from mailprobe.api.reader import chunks, process, starting, workbook
from mailprobe.api.reader.bounds import Bounds
from mailprobe.bench.lab.hostile_files import HostileFile, files
from tests.api.cli.test_clean import clean

MEMORY_OCTETS_MAX = 512 << 20
UNPACKED_OCTETS_MAX = 16 << 20  # in the place of 1 GiB, which takes long to write
IMPORTED = (chunks, workbook)  # so that no reader does it


class ForkedReader:
    """A reader of an open file, and a child of this process."""

    def __init__(self, bounds: Bounds, file: int, connection: socket.socket) -> None:
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.dup2(connection.fileno(), 0)
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


def cleaned(hostile: HostileFile, folder: Path) -> dict[str, object]:
    path, output = folder / hostile.file, folder / "output"
    path.write_bytes(hostile.make())
    order = Order(
        path,
        output.with_suffix(".xlsx" if path.suffix == ".xlsx" else ".csv"),
        ReadOptions(unpacked_octets_max=UNPACKED_OCTETS_MAX),
        force=True,
    )
    began_s = time.process_time()
    exit_code, message = 0, ""
    try:
        clean(order)
    except CommandError as error:
        exit_code, message = error.exit_code, error.message
    took_s = time.process_time() - began_s
    return {"name": hostile.name, "exit_code": exit_code, "message": message, "took_s": took_s}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_OCTETS_MAX, MEMORY_OCTETS_MAX))
    # fsync is the slowest part, and nothing is killed here
    with patch("os.fsync"), patch.object(starting, "spawn", fork_reader):
        for hostile in files():
            print(json.dumps(cleaned(hostile, Path(sys.argv[1]))), flush=True)


if __name__ == "__main__":
    main()
