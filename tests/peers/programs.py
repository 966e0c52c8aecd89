"""The real programs, each a child of the tests: started in the private root, ended with its block.

A program has a folder of its own, `.peers/root/peers/NAME`, which it calls
`/peers/NAME`. It runs in the foreground as the leader of a process group that is
killed whole at the end, however the block is left. Its logs stay in its folder
until the next start, and conftest.py shows them with a test that fails.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PEERS = Path(__file__).parents[2] / ".peers"
ROOT = PEERS / "root"
PATIENCE_S = 30.0
STOP_S = 5.0
POLL_S = 0.02
PORTS = range(20_000, 32_000)  # below those that the kernel gives to clients
SHOWN_OCTETS_MAX = 20_000

# Tests that are killed stop nothing: the kernel tells the programs (prctl(2), PR_SET_PDEATHSIG).
AS_LONG_AS_WE_RUN = ("setpriv", "--pdeathsig", "TERM")

RUNNING: list["Program"] = []


@dataclass(eq=False)
class Program:
    """One that runs."""

    name: str
    process: "subprocess.Popen[bytes]"
    folder: Path

    def said(self) -> str:
        """All its logs: what it printed, and the files named *log that it wrote."""
        logs = sorted(self.folder.glob("*log"))
        return "".join(log.read_bytes().decode("utf-8", "replace") for log in logs)

    def wait_for(self, port: int, address: str = "127.0.0.1") -> None:
        """Until it takes connections there; it is wrong to end or to be silent for long."""
        deadline = time.monotonic() + PATIENCE_S
        while not _answers(address, port):
            assert self.process.poll() is None, f"{self.name} has ended:\n{self.said()}"
            assert time.monotonic() < deadline, f"{self.name} is silent:\n{self.said()}"
            time.sleep(POLL_S)

    def wait_to_say(self, words: str) -> None:
        """Until this stands in its logs, which may be written after the answer was sent."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.said():
            assert time.monotonic() < deadline, f"{self.name} never said {words!r}"
            time.sleep(POLL_S)

    def stop(self) -> None:
        """SIGTERM to its leader, then SIGKILL to all that is left; it may have ended already."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def folder_of(name: str) -> Path:
    """This program's folder, empty."""
    folder = ROOT / "peers" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def number_of(user: str) -> int:
    """A user of the private root; its group has the same number."""
    lines = (ROOT / "etc/passwd").read_text().splitlines()
    return next(int(line.split(":")[2]) for line in lines if line.startswith(f"{user}:"))


@contextmanager
def running(name: str, command: Sequence[str], **environ: str) -> Iterator[Program]:
    """Run this command in the private root, in its folder; what it printed before is forgotten."""
    folder = ROOT / "peers" / name
    with (folder / "printed.log").open("wb") as said:
        process = subprocess.Popen(
            [*AS_LONG_AS_WE_RUN, "chroot", str(ROOT), *command],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environ},
            start_new_session=True,
        )
    program = Program(name, process, folder)
    RUNNING.append(program)
    try:
        yield program
    finally:
        program.stop()
        RUNNING.remove(program)


def free_port() -> int:
    """A port that is free at every address of this machine."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("0.0.0.0", port))
            return port
    raise AssertionError("a hundred ports are taken")


def _answers(address: str, port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((address, port)) == 0
