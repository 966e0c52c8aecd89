"""The README's list through the service: its 300 rows, by the account that its path makes."""

import csv
import subprocess
import tempfile
import time
from pathlib import Path

from ...harness.figures import RESULTS, Figure
from ...lab import start_lab
from ...load.service_process import (
    MAILPROBE,
    OWN,
    ServiceFailed,
    ServiceProcess,
    start_service,
)

EXAMPLE = Path(__file__).parents[2] / "lab/list.csv"
CLEAN_S_MAX = 300.0
COMMAND = ("clean", "list.csv", "-o", "out.csv", "--recheck", "0")  # the first pass


def run() -> list[Figure]:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="readme-", dir=RESULTS) as folder,
        start_lab() as lab,
        start_service(lab.env, Path(folder), tier=OWN) as service,
    ):
        return [cleaned(service)]


def cleaned(service: ServiceProcess) -> Figure:
    """From the command to its end, with the process's start."""
    (service.folder / "list.csv").write_bytes(EXAMPLE.read_bytes())
    words = [*MAILPROBE, *COMMAND, "--server", service.url, "--key", service.key]
    cpu_s, began = service.cpu_s(), time.perf_counter()
    done = subprocess.run(
        words, cwd=service.folder, env=service.env, capture_output=True, timeout=CLEAN_S_MAX
    )
    took_s = time.perf_counter() - began
    if done.returncode:
        raise ServiceFailed(done.stderr.decode())
    with (service.folder / "out.csv").open(encoding="utf-8", newline="") as output:
        rows = sum(1 for _ in csv.DictReader(output))
    cpu_us = (service.cpu_s() - cpu_s) / rows * 1e6
    return Figure(f"the README's {rows} rows through the service", took_s, "s", cpu_us=cpu_us)
