"""Verifies one address again and again in a process of its own, and reports the milliseconds of each.

A thread of the process that attacks would count its waits for the interpreter as the service's.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

from ...load.service_process import SINGLE

EVERY_S = 0.02
TIMEOUT_S = 150.0
ROOT = Path(__file__).parents[4]


@contextmanager
def watched_singles(at: tuple[str, int], key: str, waits_ms: list[float]) -> Iterator[None]:
    """Verify an address at the service meanwhile; the waits are there after the block.

    Raises RuntimeError if a request failed.
    """
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "mailprobe.bench.suites.serving.watched_singles",
            at[0],
            str(at[1]),
            key,
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        yield
    finally:
        written, _ = process.communicate()
    if not first or process.returncode:
        raise RuntimeError("the client that verifies single addresses has failed")
    waits_ms += map(float, written.split())


def _watch(host: str, port: int, key: str, ended: threading.Event) -> None:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    body = json.dumps({"email": SINGLE})
    waits_ms: list[float] = []
    with closing(HTTPConnection(host, port, timeout=TIMEOUT_S)) as connection:
        while not ended.is_set():
            began = time.perf_counter()
            connection.request("POST", "/v1/email/verify", body, headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                sys.exit(1)
            waits_ms.append((time.perf_counter() - began) * 1000)
            if len(waits_ms) == 1:
                print("there", flush=True)
            ended.wait(EVERY_S)
    print(*waits_ms[1:])  # without the first, that of its connection


if __name__ == "__main__":
    ended = threading.Event()

    def read_to_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=read_to_end, daemon=True).start()
    _watch(sys.argv[1], int(sys.argv[2]), sys.argv[3], ended)
