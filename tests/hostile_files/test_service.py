"""Hostile files harm a real service as little as `mailprobe clean`: it answers, and others do not wait."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path

import pytest

from mailprobe.bench.lab import Lab
from mailprobe.bench.lab.hostile_files import HostileFile, files
from mailprobe.bench.suites.serving.file_attack import (
    MadeFile,
    accounts_for,
    database_octets,
    made,
    send_file,
    send_files,
    watching,
)
from tests.api.service_process import PATIENCE_S, POLL_S, Place, Running, make_place, running
from tests.warm_lab import start_lab

PLANS = "[scale]\nrate_limit_per_min = 1_000_000\nmonthly_calls = 1_000_000\n"
ERROR_FIELDS = {"error", "message", "action", "docs"}
MESSAGE_CHARACTERS_MAX = 300
GROWN_MIB_MAX = 200
STORED_TIMES_MAX = 20  # of what was uploaded
STORED_OCTETS_MIN = 4 << 20  # and the log that SQLite keeps
WAIT_MS_MAX = 5_000  # the bench promises 100 on a quiet machine
SLOWEST = "2 GiB of zeros"  # half a minute on a busy machine: only for the test that ends it
EVERY = 12  # of the others, which cost a reader's start each
COSTLY = {  # of time, memory or disk, as measured
    "72 MiB of shared strings",
    "white space of 32 MiB between rows",
    "fifty thousand lists of fills",
    "a hundred thousand attributes",
    "30,000 parts",
    "1,900 sheets",
    "a line of 8 Mi characters",
    "a million columns in quotes",
    "a long shared string in 50 rows",
    "the last of 1,000 fields in 500 lines",
}
STOP_S = 10.0
READING_TICKS = 5  # of a hundredth of a second: far more than a reader that waits has had


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, lab: Lab) -> Place:
    """A place whose database is SQLite's; freed memory is returned, so that it is not counted."""
    place = make_place(tmp_path_factory.mktemp("hostile") / "place", lab, PLANS)
    env = {**place.env, "MALLOC_MMAP_THRESHOLD_": "16384"}
    return replace(place, env={**env, "MAILPROBE_DATABASE": str(place.path / "mailprobe.db")})


@pytest.fixture(scope="module")
def hostile() -> list[MadeFile]:
    """Some files, and those that cost most; `mailprobe bench files` sends them all."""
    some = [
        each
        for place, each in enumerate(files())
        if (place % EVERY == 0 or each.name in COSTLY) and each.name != SLOWEST
    ]
    assert len(some) >= 20
    return made(some)


@pytest.fixture(scope="module")
def keys(place: Place, hostile: list[MadeFile]) -> list[str]:
    """Of a neighbour, then of those that send files."""
    accounts = place.make_accounts("scale", 1 + accounts_for(hostile))
    return [account.key for account in accounts]


@pytest.fixture(scope="module")
def service(place: Place, keys: list[str]) -> Iterator[Running]:
    """One service for both tests: the last one ends it."""
    with running(place) as service:
        yield service


def test_hostile_files_are_accepted_or_refused_and_others_do_not_wait(
    place: Place, service: Running, keys: list[str], hostile: list[MadeFile]
) -> None:
    """What is accepted is downloaded as well."""
    database, at = Path(place.database), ("127.0.0.1", service.port)
    before = database_octets(database)
    with watching(at, keys[0], service.process.pid) as watched:
        sent = send_files(at, keys[1:], hostile)
    grown = database_octets(database) - before
    uploaded = sum(each.octets for each in sent)
    print(
        f"neighbour: p50 {watched.wait_ms:.1f} ms, max {watched.wait_ms_max:.1f} ms;"
        f" memory +{watched.grown_mib:.0f} MiB; database +{grown / uploaded:.1f} times"
    )
    assert [
        (each.hostile.name, each.status, each.body, each.downloads)
        for each in sent
        if not each.is_as_expected
    ] == []
    for each in sent:
        if each.status == 400:
            assert set(each.body) >= ERROR_FIELDS
            assert 0 < len(each.body["message"]) <= MESSAGE_CHARACTERS_MAX, each.body
            assert each.body["message"].isprintable(), each.body
    assert watched.failures == []
    assert watched.wait_ms_max < WAIT_MS_MAX
    assert watched.grown_mib < GROWN_MIB_MAX
    assert grown < STORED_TIMES_MAX * uploaded + STORED_OCTETS_MIN


def test_a_service_ends_while_it_reads_a_hostile_file(service: Running, keys: list[str]) -> None:
    slowest = next(each for each in files() if each.name == SLOWEST)
    at = ("127.0.0.1", service.port)
    upload = threading.Thread(target=send_and_forget, args=(at, keys[-1], slowest))
    upload.start()
    deadline = time.monotonic() + PATIENCE_S
    while not is_reading(service.process.pid):
        assert time.monotonic() < deadline
        time.sleep(POLL_S)
    began = time.monotonic()
    service.stop()
    assert time.monotonic() - began < STOP_S
    upload.join()


def is_reading(service: int) -> bool:
    """Whether a reader computes: a child of the fork server that is not waiting for a file."""
    for server in children_of(service):
        for reader in children_of(server):
            with suppress(OSError):
                ticks = Path(f"/proc/{reader}/stat").read_text().rpartition(") ")[2].split()
                if int(ticks[11]) + int(ticks[12]) > READING_TICKS:
                    return True
    return False


def children_of(process: int) -> list[int]:
    with suppress(OSError):
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
        return [int(child) for child in text.split()]
    return []


def send_and_forget(at: tuple[str, int], key: str, hostile: HostileFile) -> None:
    with suppress(OSError, HTTPException, ValueError):  # the service ends meanwhile
        send_file(at, key, (hostile, hostile.make()))
