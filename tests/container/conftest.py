"""The image, built by podman, and containers of it."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.files import ROOT, steps
from tests.packaging.conftest import COMMIT

BUILD_S = 900.0
COMMAND_S = 120.0
START_S = 60.0
POLL_S = 0.2
IMAGE = "mailprobe-test"
PODMAN = ("podman", "--runtime", "runc", "--log-level", "fatal")
NOFILE_MAX = 16384
NPROC_MAX = 4096


def limits() -> list[str]:
    """podman's own limits may be above this machine's, and then nothing starts."""
    wanted = {
        "nofile": (NOFILE_MAX, resource.RLIMIT_NOFILE),
        "nproc": (NPROC_MAX, resource.RLIMIT_NPROC),
    }
    words = []
    for name, (number, kind) in wanted.items():
        hard = resource.getrlimit(kind)[1]
        number = number if hard == resource.RLIM_INFINITY else min(number, hard)
        words += ["--ulimit", f"{name}={number}:{number}"]
    return words


def podman(*words: str | Path, timeout_s: float = COMMAND_S) -> str:
    """Run podman; return what it printed, or fail with it."""
    done = subprocess.run(
        [*PODMAN, *map(str, words)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}"
    return done.stdout


def python_for(base: str) -> str:
    """A Python for the stand-in: of the image's version if there is one, else the tests' own."""
    version = base.partition(":")[2].partition("-")[0]
    for each in os.environ.get("OTHERS", "").split():
        if Path(each).name == f"python{version}":
            return each
    return sys.executable


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    """The image, built as docs/deployment.md says; without its own base, on a stand-in."""
    base = steps("FROM")[-1]
    made = subprocess.run(["tests/container/base", base, python_for(base)], cwd=ROOT)
    assert made.returncode == 0
    # Without kept layers nothing is left of the first stage.
    words = ("--format", "docker", "--pull=never", "--layers=false", "--network", "host", *limits())
    commit = ("--build-arg", f"SOURCE_COMMIT={COMMIT}")
    podman("build", *words, *commit, "--tag", IMAGE, ".", timeout_s=BUILD_S)
    yield IMAGE
    podman("image", "rm", "--force", IMAGE)


@dataclass(frozen=True)
class Container:
    """A container that serves, and the port of this machine that leads to it."""

    name: str
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def execute(self, *words: str) -> str:
        return podman("exec", self.name, *words)

    def logs(self) -> str:
        return podman("logs", self.name)

    def wait_until_healthy(self) -> None:
        """Ask as the image's own health check does, until it says yes."""
        deadline = time.monotonic() + START_S
        command = [*PODMAN, "healthcheck", "run", self.name]
        while subprocess.run(command, capture_output=True).returncode:
            assert time.monotonic() < deadline, self.logs()
            time.sleep(POLL_S)

    def stop(self) -> int:
        """Stop it as an engine does, by the image's signal; return the exit code."""
        podman("stop", "--time", "15", self.name)
        return int(podman("inspect", "--format", "{{.State.ExitCode}}", self.name))


@contextmanager
def started(name: str, port: int, *words: str) -> Iterator[Container]:
    """Run the image with these options; at the end the container and its volumes are removed."""
    podman("run", "--detach", "--name", name, *limits(), *words, IMAGE)
    try:
        yield Container(name, port)
    finally:
        podman("rm", "--force", "--volumes", name)
