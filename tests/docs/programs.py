"""Runs the commands of the pages in a directory of their own."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.api.warm_commands import folder_of_commands
from tests.docs.pages import ROOT

RUN_S = 100  # an upper bound: on a busy machine a command took more than 20


def run(
    words: list[str], place: Path, variables: Mapping[str, str], *, seconds: float = RUN_S
) -> tuple[int, str]:
    """Run it to its end; exit code, and all that it output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAILPROBE_")}
    path = os.pathsep.join((str(folder_of_commands()), f"{sys.prefix}/bin", env["PATH"]))
    env |= {"PATH": path, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        words,
        cwd=place,
        env={**env, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output


def bash(script: str, place: Path, variables: Mapping[str, str]) -> tuple[int, str]:
    """Run a script that ends at its first failure; what it left in the background ends with it."""
    ending = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"
    return run(["bash", "-euo", "pipefail", "-c", f"{ending}\n{script}"], place, variables)
