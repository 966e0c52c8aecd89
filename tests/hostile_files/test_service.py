"""Hostile files harm a real service as little as `mailprobe clean`: it answers, and others do not wait."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path

import pytest

from mailprobe.bench.lab import Lab, start_lab
from mailprobe.bench.lab.hostile_files import HostileFile, files
from mailprobe.bench.load.file_attack import (
    accounts_for,
    database_octets,
    made,
    send_file,
    send_files,
    watching,
)
from tests.api.service_process import PATIENCE_S, POLL_S, Place, make_place, running

PLANS = "[scale]\nrate_limit_per_min = 1_000_000\nmonthly_calls = 1_000_000\n"
ERROR_FIELDS = {"error", "message", "action", "docs"}
MESSAGE_CHARACTERS_MAX = 300
GROWN_MIB_MAX = 200
STORED_TIMES_MAX = 20  # of what was uploaded
STORED_OCTETS_MIN = 4 << 20  # and the log that SQLite keeps
WAIT_MS_MAX = 5_000  # the bench promises 100 on a quiet machine
SLOWEST = "2 GiB of zeros"  # half a minute on a busy machine: only for the test that ends it
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


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab() as lab:
        yield lab


@pytest.fixture
def place(tmp_path: Path, lab: Lab) -> Place:
    """A place whose database is SQLite's; freed memory is returned, so that it is not counted."""
    place = make_place(tmp_path / "place", lab, PLANS)
    env = {**place.env, "MALLOC_MMAP_THRESHOLD_": "16384"}
    return replace(place, env={**env, "MAILPROBE_DATABASE": str(place.path / "mailprobe.db")})


def test_every_hostile_file_is_accepted_or_refused_and_others_do_not_wait(place: Place) -> None:
    """Two of five files, and those that cost most; `mailprobe bench files` sends them all."""
    hostile = made(
        [
            each
            for place, each in enumerate(files())
            if (place % 5 < 2 or each.name in COSTLY) and each.name != SLOWEST
        ]
    )
    assert len(hostile) >= 60
    accounts = place.make_accounts("scale", accounts_for(hostile) + 1)
    neighbour, *keys = [account.key for account in accounts]
    database = Path(place.database)
    with running(place) as service:
        before = database_octets(database)
        at = ("127.0.0.1", service.port)
        with watching(at, neighbour, service.process.pid) as watched:
            sent = send_files(at, keys, hostile)
        grown = database_octets(database) - before
        service.stop()
    uploaded = sum(each.octets for each in sent)
    print(
        f"neighbour: p50 {watched.wait_ms:.1f} ms, max {watched.wait_ms_max:.1f} ms;"
        f" memory +{watched.grown_mib:.0f} MiB; database +{grown / uploaded:.1f} times"
    )
    assert [
        (each.hostile.name, each.status, each.body) for each in sent if not each.is_as_expected
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


def test_a_service_ends_while_it_reads_a_hostile_file(place: Place) -> None:
    slowest = next(each for each in files() if each.name == SLOWEST)
    key = place.make_account("scale").key
    with running(place) as service:
        at = ("127.0.0.1", service.port)
        upload = threading.Thread(target=send_and_forget, args=(at, key, slowest))
        upload.start()
        children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
        deadline = time.monotonic() + PATIENCE_S
        while not children.read_text():
            assert time.monotonic() < deadline
            time.sleep(POLL_S)
        began = time.monotonic()
        service.stop()
        assert time.monotonic() - began < STOP_S
        upload.join()


def send_and_forget(at: tuple[str, int], key: str, hostile: HostileFile) -> None:
    with suppress(OSError, HTTPException, ValueError):  # the service ends meanwhile
        send_file(at, key, (hostile, hostile.make()))
