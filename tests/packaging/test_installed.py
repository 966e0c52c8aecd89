"""The installed program: it works outside of any checkout, and touches no other package."""

import csv
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.packaging.conftest import (
    COMMAND_S,
    COMMIT,
    FOREIGN,
    FOREIGN_CODE,
    PIP,
    ROOT,
    Installed,
    environment,
    run,
)

STOP_S = 15.0  # a stop of the service has ten
POLL_S = 0.05
LIBRARY = '''
"""A program that uses the library."""

from mailprobe import EngineSettings, Verdict, open_answers, open_engine

WANTED = ["bob@mailinator.com"]


async def verify(settings: EngineSettings) -> list[Verdict]:
    async with open_engine(settings) as engine:
        async with open_answers(engine, WANTED, account="me") as answers:
            return [answer.verdict async for answer in answers]
'''


@contextmanager
def started(
    installed: Installed, *words: str, log: IO[str] | None = None, **env: str
) -> Iterator[subprocess.Popen[str]]:
    """`mailprobe` with these arguments, stopped by SIGTERM; it must end with 0.

    `log` takes its standard error.
    """
    process = subprocess.Popen(
        [installed.mailprobe, *words],
        cwd=installed.work,
        env=environment(installed.work) | env,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def lab(installed: Installed) -> Iterator[dict[str, Any]]:
    with started(installed, "lab") as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_nothing_but_mailprobe_and_its_metadata_is_installed(installed: Installed) -> None:
    [metadata] = installed.site_packages.glob("mailprobe-*.dist-info")
    with (metadata / "RECORD").open(encoding="utf-8", newline="") as file:
        names = [row[0] for row in csv.reader(file)]
    tops = {name.partition("/")[0] for name in names if not name.startswith("../")}
    assert tops == {"mailprobe", metadata.name}
    assert sorted(name for name in names if name.startswith("../")) == [
        "../../../bin/mailprobe",
        "../../../share/man/man1/mailprobe.1",
    ]


def test_the_tool_server_says_which_extra_it_needs(installed: Installed) -> None:
    done = subprocess.run(
        [installed.mailprobe, "mcp"], cwd=installed.work, env=environment(installed.work),
        capture_output=True, text=True, timeout=COMMAND_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "the extra mcp" in done.stderr


def test_no_tool_of_development_is_needed(installed: Installed) -> None:
    listed = json.loads(installed.execute(LIST_DISTRIBUTIONS))
    assert "trio" in listed
    assert not {"pytest", "mypy", "ruff", "hypothesis", "matplotlib"} & set(listed)
    run(sys.executable, *PIP, "--python", installed.python, "check", at=installed.work)


LIST_DISTRIBUTIONS = (
    "import json; from importlib.metadata import distributions;"
    "print(json.dumps([each.metadata['Name'].lower() for each in distributions()]))"
)


def test_packages_of_the_same_names_stay_as_they_were(installed: Installed) -> None:
    installed.execute("import mailprobe.engine, mailprobe.api.serve, mailprobe.bench.lab")
    for name in FOREIGN:
        folder = installed.site_packages / name
        assert {path.name for path in folder.iterdir()} <= {"__init__.py", "__pycache__"}
        assert (folder / "__init__.py").read_text() == FOREIGN_CODE
        assert installed.execute(f"import {name}; print({name}.OWNER)") == "somebody else\n"


def test_the_command_says_its_version_and_its_help(installed: Installed) -> None:
    version = installed.execute("import mailprobe; print(mailprobe.__version__)").strip()
    assert installed.run("--version") == f"mailprobe, version {version} (commit {COMMIT})\n"
    for command in ("verify", "clean", "serve", "demo", "lab", "bench", "doctor", "migrate"):
        assert installed.run(command, "--help").startswith("Usage: mailprobe "), command


def test_the_demo_cleans_its_own_list_into_the_working_directory(installed: Installed) -> None:
    installed.run("demo")
    cleaned = rows(installed.work / "list.verified.csv")
    assert len(cleaned) == len(rows(ROOT / "examples/list.csv"))
    assert {row["light"] for row in cleaned} >= {"GREEN_LIGHT", "RED_LIGHT"}
    packaged = installed.site_packages / "mailprobe/bench/lab"
    assert [path.name for path in packaged.glob("*.csv")] == ["list.csv"]


def test_an_address_and_a_list_are_verified(installed: Installed, lab: dict[str, Any]) -> None:
    [address, *_] = lab["addresses"]["deliverable"]
    verdict = json.loads(installed.run("verify", "--json", address, **lab["env"]))
    assert (verdict["email"], verdict["status"]) == (address, "deliverable")
    (installed.work / "two.csv").write_text(f"email\n{address}\nnobody\n")
    installed.run("clean", "two.csv", "--output", "cleaned.csv", **lab["env"])
    lights = [row["light"] for row in rows(installed.work / "cleaned.csv")]
    assert lights == ["GREEN_LIGHT", "RED_LIGHT"]


def test_the_service_starts_answers_and_stops(installed: Installed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        bind = f"127.0.0.1:{free.getsockname()[1]}"
    with started(installed, "serve", "--bind", bind, MAILPROBE_TOOLS_BIND="") as process:
        assert health(f"http://{bind}/health", process)["ok"] is True


def health(url: str, process: subprocess.Popen[str]) -> Any:
    deadline = time.monotonic() + COMMAND_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=COMMAND_S) as response:
                return json.load(response)
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(POLL_S)


def test_the_package_is_the_library(installed: Installed) -> None:
    (installed.work / "program.py").write_text(LIBRARY)
    installed.execute("import program; print(program.verify)")
    assert installed.execute("from mailprobe import *; print(open_engine.__name__)")


def test_a_type_checker_sees_the_library(installed: Installed) -> None:
    """With the marker of PEP 561, in the user's own environment."""
    wrong = LIBRARY.replace("answer.verdict async", "answer.verdict.email async")
    mypy = ("-m", "mypy", "--strict", "--python-executable", installed.python)
    (installed.work / "program.py").write_text(LIBRARY)
    (installed.work / "wrong.py").write_text(wrong)
    run(sys.executable, *mypy, "program.py", at=installed.work)
    with pytest.raises(AssertionError, match="expected List"):
        run(sys.executable, *mypy, "wrong.py", at=installed.work)
