"""The Dockerfile: its steps, what the image contains, and its health check as a real process."""

import json
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mailprobe.api.cli import COMMANDS
from mailprobe.api.health_check import TIMEOUT_S
from mailprobe.api.settings import Settings
from mailprobe.bench.lab import Lab
from tests.api.service_process import (
    PATIENCE_S,
    POLL_S,
    WARM_COMMAND,
    Place,
    free_bind,
    make_place,
)
from tests.deploy.files import DOCKERFILE, ROOT, STEPS, environment_of_container, steps
from tests.warm_lab import start_lab
from tests.warm_process import WarmProcess

KNOWN = "FROM ARG WORKDIR COPY RUN ENV USER VOLUME EXPOSE STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_the_dockerfile_has_only_known_steps() -> None:
    assert {name for name, _ in STEPS} <= set(KNOWN.split())
    assert steps("FROM") == ["python:3.13-slim AS build", "python:3.13-slim"]


def copied() -> list[str]:
    own = [step.split() for step in steps("COPY") if not step.startswith("--from=")]
    return [name for words in own for name in words[:-1]]


def test_the_image_copies_exactly_the_sources_of_the_wheel() -> None:
    assert [name for name in copied() if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    [package] = [pattern.rstrip("*") for pattern in packages]
    needed = {package, *(path.name for path in (ROOT / package).iterdir() if path.is_symlink())}
    needed |= {"pyproject.toml", "setup.py", project["project"]["readme"], "requirements-mcp.lock"}
    needed |= {name for name in project["project"]["license-files"] if "/" not in name}
    needed |= {"examples/list.csv", "docs"}  # bench/lab and api/pages have links to them
    needed |= {"dev/mailprobe.1"}  # the manual page
    assert set(copied()) == needed


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == set(copied())


# what is in the image


def pips() -> list[list[str]]:
    """The words of each call of pip, in order."""
    parts = [part for step in steps("RUN") for part in step.split(" && ")]
    return [part.split() for part in parts if part.startswith("pip ")]


BUILD = [
    canonicalize_name(Requirement(text).name) for text in PROJECT["optional-dependencies"]["build"]
]


def test_packages_come_from_the_lock_by_their_hashes_and_from_nowhere_else() -> None:
    first, *others = [words for words in pips() if "uninstall" not in words]
    assert {"--require-hashes", "requirements-mcp.lock", "--no-cache-dir"} <= set(first)
    assert len(others) == 3
    for words in others:
        assert {"--no-index", "--no-cache-dir"} <= set(words), words
    assert "requirements-dev" not in DOCKERFILE
    assert "index-url" not in DOCKERFILE
    assert "://" not in DOCKERFILE.replace("postgresql://", "")
    for_the_build, installed = [
        set(words) & {*BUILD, "'mailprobe[mcp]'"} for words in pips() if "install" in words
    ]
    assert for_the_build == set(BUILD)
    assert installed == {"'mailprobe[mcp]'"}
    assert "--python" in next(words for words in pips() if words[-1] == "'mailprobe[mcp]'")


def test_the_build_backend_is_locked() -> None:
    """`--no-build-isolation` finds setuptools among the locked packages."""
    lock = (ROOT / "requirements-mcp.lock").read_text("utf-8")
    assert re.search(r"^setuptools==", lock, re.MULTILINE)


def needed_by(name: str) -> set[str]:
    """This package and all that it needs, without extras that it did not ask for."""
    found: set[tuple[str, frozenset[str]]] = set()
    pending = [Requirement(name)]
    while pending:
        wanted = pending.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in found:
            continue
        found.add(key)
        for text in distribution(wanted.name).requires or ():
            inner = Requirement(text)
            if inner.marker is None or any(
                inner.marker.evaluate({"extra": extra}) for extra in (*wanted.extras, "")
            ):
                pending.append(inner)
    return {package for package, _ in found}


def test_the_image_has_no_tools_of_development() -> None:
    """It has what `mailprobe` needs, with one of its extras, and pip is removed again."""
    extras = {
        canonicalize_name(Requirement(text).name)
        for extra, texts in PROJECT["optional-dependencies"].items()
        for text in texts
        if extra != "mcp"
    } - {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    assert {"setuptools", "pytest", "ruff", "mypy"} <= extras
    removed = {words[-1] for words in pips() if "uninstall" in words and "--python" in words}
    inside = needed_by("mailprobe[mcp]") - removed
    assert {"trio", "quart", "sqlite-utils", "mcp"} <= inside
    assert inside & (extras | {"pip", "wheel"}) == set()


def test_the_base_images_installer_is_removed_from_the_image() -> None:
    """In the last stage, before anything of ours; a later step of the build checks it."""
    last = DOCKERFILE[DOCKERFILE.rindex("FROM ") :]
    assert re.match(
        r"FROM \S+\n(#.*\n)+RUN pip uninstall --yes pip +&& rm -rf \S+/ensurepip ", last
    )
    (check,) = [step for step in steps("RUN") if step.startswith("python -c ")]
    assert last.index("\nENV PATH=/opt/mailprobe/bin:") < last.index("\nRUN python -c")
    here = subprocess.run(
        ["bash", "-c", check.replace("python ", f"{sys.executable} ", 1)], stderr=-1
    )
    assert b"AssertionError" in here.stderr  # as the tests' own environment has an installer


def test_the_container_runs_as_an_unprivileged_user() -> None:
    (user,) = steps("USER")
    (data,) = [step for step in steps("RUN") if step.endswith("/data")]
    uid, gid = user.split(":")
    assert int(uid) >= 1000
    assert f"-o {uid} -g {gid} -m 0700" in data
    assert DOCKERFILE.index("/data\n") < DOCKERFILE.index("\nVOLUME"), "lost after a VOLUME"
    assert steps("STOPSIGNAL") == ["SIGTERM"]


def test_the_container_serves_with_a_database_that_stays() -> None:
    (entry,), (command,) = steps("ENTRYPOINT"), steps("CMD")
    assert json.loads(entry) == ["mailprobe"]
    assert json.loads(command) == ["serve"]
    assert "serve" in COMMANDS
    settings = Settings.read(environment_of_container(), Path("/nowhere"))
    assert Path(*steps("WORKDIR")[-1:], settings.database) == Path("/data/mailprobe.db")
    assert (settings.bind.port, steps("VOLUME")) == (8080, ["/data"])
    assert str(settings.bind.port) in steps("EXPOSE")[0].split()


# the health check


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab() as lab:
        yield lab


@contextmanager
def serving(place: Place, bind: str) -> Iterator[dict[str, str]]:
    """Run the container's command, bound by the environment alone; yields its environment."""
    env = {**place.env, "MAILPROBE_BIND": bind, "MAILPROBE_LOG": "info"}
    with place.log.open("wb") as log:
        process = WarmProcess([WARM_COMMAND, "serve"], cwd=place.path, env=env, stderr=log)
    try:
        wait_until_healthy(process, env, place)
        yield env
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def wait_until_healthy(
    process: "subprocess.Popen[bytes]", env: Mapping[str, str], place: Place
) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while "serving on" not in place.log.read_text():  # each check is an interpreter's start
        assert process.poll() is None, place.log.read_text()
        assert time.monotonic() < deadline
        time.sleep(POLL_S)
    while (found := health_check(env, place.path))[0] != 0:
        assert process.poll() is None, place.log.read_text()
        assert time.monotonic() < deadline, found


def health_check(env: Mapping[str, str], directory: Path) -> tuple[int, str]:
    """Run the command of the HEALTHCHECK in this directory; a proxy that is set is not used."""
    (step,) = steps("HEALTHCHECK")
    python, *words = json.loads(step.partition(" CMD ")[2])
    assert python == "python"
    done = subprocess.run(
        [sys.executable, *words],
        env={**env, "http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"},
        cwd=directory,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "[::1]", "[::]", "localhost"])
def test_the_health_check_follows_the_bind(host: str, lab: Lab, tmp_path: Path) -> None:
    if "[" in host and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    port = free_bind().rpartition(":")[2]
    place = make_place(tmp_path / "place", lab, "")
    with serving(place, f"{host}:{port}") as env:
        pass
    code, line = health_check(env, place.path)  # it has stopped
    assert (code, line.count("\n")) == (1, 1)
    assert f":{port}/health did not answer" in line


def test_the_health_check_leaves_time_for_its_own_message() -> None:
    (step,) = steps("HEALTHCHECK")
    seconds = dict(re.findall(r"--([\w-]+)=(\d+)s", step))
    assert TIMEOUT_S < float(seconds["timeout"]) < float(seconds["interval"])
    assert environment_of_container()["PATH"].startswith("/opt/mailprobe/bin:")  # its python
