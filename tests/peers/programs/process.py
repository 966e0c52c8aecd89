"""Runs a real program in the private root: started by a block, killed at its end.

A program has a folder of its own, `.peers/root/peers/NAME`, which it sees as
`/peers/NAME`. It runs in the foreground as the leader of a process group. The
whole group is killed at the end of the block, also after an error. Its logs stay
in its folder until the next start, and conftest.py shows them with a failed test.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PEERS = Path(__file__).parents[3] / ".peers"
ROOT = PEERS / "root"
WAIT_S_MAX = 30.0
STOP_S = 5.0
POLL_S = 0.02
SHOWN_OCTETS_MAX = 20_000

# If the tests are killed, the kernel ends the programs (prctl(2), PR_SET_PDEATHSIG).
UNTIL_THE_PARENT_ENDS = ("setpriv", "--pdeathsig", "TERM")

RUNNING: list["Program"] = []


@dataclass(eq=False)
class Program:
    """A program that runs."""

    name: str
    process: "subprocess.Popen[bytes]"
    folder: Path

    def logs(self) -> str:
        """Everything that it printed, and the files named *log that it wrote."""
        logs = sorted(self.folder.glob("*log"))
        return "".join(log.read_bytes().decode("utf-8", "replace") for log in logs)

    def wait_for_port(self, port: int, address: str = "127.0.0.1") -> None:
        """Wait until it accepts connections there. Fails if it ends first, or after WAIT_S_MAX."""
        deadline = time.monotonic() + WAIT_S_MAX
        while not accepts(address, port):
            assert self.process.poll() is None, f"{self.name} has ended:\n{self.logs()}"
            assert time.monotonic() < deadline, f"{self.name} does not listen:\n{self.logs()}"
            time.sleep(POLL_S)

    def wait_for_log(self, text: str) -> None:
        """Wait until its logs contain this. A log may be written after the reply was sent."""
        deadline = time.monotonic() + WAIT_S_MAX
        while text not in self.logs():
            assert time.monotonic() < deadline, f"{self.name} never logged {text!r}"
            time.sleep(POLL_S)

    def stop(self) -> None:
        """SIGTERM to its leader, then SIGKILL to the rest of the group. It may have ended already."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def make_folder(name: str) -> Path:
    """Make this program's folder, empty."""
    folder = ROOT / "peers" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def uid_of(user: str) -> int:
    """The number of a user of the private root; its group has the same number."""
    lines = (ROOT / "etc/passwd").read_text().splitlines()
    return next(int(line.split(":")[2]) for line in lines if line.startswith(f"{user}:"))


@contextmanager
def open_program(name: str, command: Sequence[str], **environ: str) -> Iterator[Program]:
    """Run this command in the private root, with an empty log of what it prints."""
    folder = ROOT / "peers" / name
    with (folder / "printed.log").open("wb") as printed:
        process = subprocess.Popen(
            [*UNTIL_THE_PARENT_ENDS, "chroot", str(ROOT), *command],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
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


def accepts(address: str, port: int) -> bool:
    """Whether a connection is accepted there."""
    with socket.socket() as sock:
        return sock.connect_ex((address, port)) == 0
