"""The released hypercorn, started by its own command on `mailprobe.asgi:app`."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.api.service_process import PATIENCE_S, POLL_S, Place, Running

COMMAND = str(Path(sys.prefix) / "bin/hypercorn")
APP = "mailprobe.asgi:app"
TRIO = ("--worker-class", "trio")


def start(place: Place, *words: str) -> "subprocess.Popen[bytes]":
    """Start it in a session of its own; what it says goes to the place's log."""
    with place.log.open("ab") as log:
        return subprocess.Popen(
            [COMMAND, *words, APP],
            cwd=place.path,
            env=place.env,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


@contextmanager
def hypercorn(place: Place, *words: str, workers: int = 1) -> Iterator[Running]:
    """Serve the place until the end of the block; kill what is left of it then."""
    options = [*TRIO, "--bind", "127.0.0.1:0", "--workers", str(workers)]
    process = start(place, *options, *words)
    try:
        yield Running(place, process, _listening(process, place.log, workers))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)


def _listening(process: "subprocess.Popen[bytes]", log: Path, workers: int) -> str:
    """Wait until every worker has said where it listens; return the URL."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        ended = process.poll() is not None
        said = log.read_text()
        found = re.findall(r"Running on (http://\S+) \(CTRL", said)
        if len(found) == workers:
            return str(found[0])
        assert not ended, said
        assert time.monotonic() < deadline, said
        time.sleep(POLL_S)


def interrupt(service: Running) -> str:
    """Do what Ctrl-C in a terminal does, expect a clean end, and return the log."""
    os.killpg(service.process.pid, signal.SIGINT)
    service.wait()
    said = service.place.log.read_text()
    assert service.process.returncode == 0, said
    return said
