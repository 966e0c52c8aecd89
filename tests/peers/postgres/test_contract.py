"""The tests of every store and of the service, run on a real server."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailprobe.bench.load.private_postgres import PrivatePostgres, private_postgres
from tests.storage.child_processes import ROOT

OF_THE_STORE = re.compile(r"\b(open_shop|open_test_store|make_place|store_settings)\b|\bshop[:,)]")
# where the service's promises are the store's; elsewhere a store is only there
FOLDERS = ("alerts", "billing", "jobs", "lists", "outbox", "pages", "quota", "rest")
ELSEWHERE = {
    "description",  # about request bodies
    "test_specified_limits.py", "test_specified_requests.py", "test_specified_results.py",
    "test_connection_leases_served.py",  # below, on a server that flushes
}  # fmt: skip
# A thousand of each take a minute here, and the store's part in them is its contract's.
TOO_MANY = (
    "tests/api/jobs/test_worker.py::test_many_jobs_are_as_many_deliveries",
    "tests/api/quota/test_abuse_money.py::test_callbacks_that_hang_delay_no_neighbour",
)


def run_suite(server: PrivatePostgres, *selection: str) -> None:
    """Run tests of other folders on this server."""
    env = {**os.environ, "MAILPROBE_TEST_POSTGRES": server.url, "MAILPROBE_TEST_STORE": "postgres"}
    own = ["-p", "no:cacheprovider", "--dist", "loadfile", "--no-loadscope-reorder"]
    command = [sys.executable, "-m", "pytest", "-n", "3", *own, *selection]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert " passed" in done.stdout


@pytest.fixture
def quick_server() -> Iterator[PrivatePostgres]:
    """A server that need not survive a power cut."""
    with private_postgres(fsync="off", full_page_writes="off") as server:
        yield server


def test_the_contract_of_every_store(quick_server: PrivatePostgres):
    run_suite(quick_server, "tests/storage", "-k", "postgres")


def test_the_service_keeps_its_promises_on_it(quick_server: PrivatePostgres):
    """Including the limits' edges with one process and two, and killed processes."""
    api = ROOT / "tests/api"
    found = [path for each in FOLDERS for path in sorted((api / each).rglob("test_*.py"))]
    files = [path for path in found if uses_a_store(path)] + [api / "test_serve.py"]
    assert {"test_edges.py", "test_killed.py", "test_charge.py"} <= {path.name for path in files}
    run_suite(quick_server, *map(str, files), *(f"--deselect={each}" for each in TOO_MANY))


def uses_a_store(path: Path) -> bool:
    """Whether it uses the store that MAILPROBE_TEST_STORE names, and is worth its time."""
    return ELSEWHERE.isdisjoint(path.parts) and bool(OF_THE_STORE.search(path.read_text("utf-8")))


def test_two_machines_keep_one_limit_at_an_exchange(server: PrivatePostgres):
    run_suite(server, "tests/api/quota/test_connection_leases_served.py")
