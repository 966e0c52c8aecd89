"""A process that is a holder of leases: it prints its name and lives."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mailprobe.storage.base.lease_holders import new_holder
from tests.warm_process import WarmProcess

ROOT = Path(__file__).parents[2]


class OtherProcess:
    """Another process; `holder` is a name of it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        assert process.stdout is not None
        self.holder = process.stdout.readline().strip()

    def kill(self) -> None:
        """Send SIGKILL, and wait until it has ended; it stays to be reaped."""
        self._process.kill()
        assert self._process.stdout is not None
        assert self._process.stdout.read() == ""

    def reap(self) -> None:
        self._process.wait()


@contextmanager
def other_process() -> Iterator[OtherProcess]:
    pipe = subprocess.PIPE
    with WarmProcess([__name__], cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield OtherProcess(process)
        finally:
            process.kill()


def main(words: list[str]) -> None:
    print(new_holder(), flush=True)
    sys.stdin.read()
