"""kill -9 in the middle of a list: neither connections nor chunks wait for the dead process.

What the dead process leased is made to end minutes later, so that a list that waited for it
would be seen however slow the machine is.
"""

import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import psycopg
import pytest

from mailprobe.bench.lab import Lab
from mailprobe.engine.verdict import LADDER, Outcome
from mailprobe.storage.contract import is_postgres
from mailprobe.storage.postgres.driver.server import SCHEMA
from tests.api.service_process import (
    PATIENCE_S,
    POLL_S,
    Credentials,
    Place,
    Running,
    free_bind,
    make_place,
    running,
)
from tests.warm_lab import start_lab

PLANS = """
[scale]
rate_limit_per_min = 1_000_000
monthly_calls = 1_000_000
"""
ADDRESSES = 400
KILLED_AFTER = 100  # answers
NOT_TAKEN_MAX = ADDRESSES // 10  # where wrong addresses and random ones are more than a host takes
EXTENDED_S = 240  # less than what a clock that was ahead may write
STRETCH = (
    "UPDATE connection_leases SET until = until + {micros} WHERE holder LIKE '{holders}'",
    "UPDATE list_chunks SET lease_until = lease_until + {micros} WHERE holder LIKE '{holders}'",
)
LEFT = (
    "SELECT coalesce(sum(connections), 0) FROM connection_leases WHERE holder LIKE '{holders}'",
    "SELECT count(*) FROM list_chunks WHERE holder LIKE '{holders}'",
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab("internet") as lab:
        yield lab


def run(place: Place, statement: str) -> list[Any]:
    """Run a statement in the database of the place; return its rows."""
    if is_postgres(place.database):
        with psycopg.connect(
            place.database, options=f"-c search_path={SCHEMA}", autocommit=True
        ) as server:
            cursor = server.execute(statement)
            return cursor.fetchall() if cursor.description else []
    with closing(sqlite3.connect(place.database, timeout=PATIENCE_S)) as file, file:
        return file.execute(statement).fetchall()


class Client:
    """One account's list at a service; it survives the service's restart."""

    def __init__(self, who: Credentials, url: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {who.key}"}

    def send(self, texts: list[str]) -> None:
        octets = "\n".join(["email", *texts, ""]).encode()
        answer = httpx.post(
            f"{self._url}/v1/lists?patience_s=0",  # else it waits for mail hosts, not the dead
            content=octets,
            headers={**self._headers, "content-type": "text/csv"},
            timeout=PATIENCE_S,
            trust_env=False,
            verify=False,
        )
        assert answer.is_success, answer.text
        self._path = f"/v1/lists/{answer.json()['list_id']}"

    def get(self, more: str = "") -> httpx.Response:
        return httpx.get(
            f"{self._url}{self._path}{more}",
            headers=self._headers,
            timeout=PATIENCE_S,
            trust_env=False,
            verify=False,
        )

    def wait_until(self, answered: int) -> None:
        end = time.monotonic() + EXTENDED_S / 2
        while True:
            with suppress(httpx.TransportError):  # of a worker that was killed
                if self.get().json()["answered"] >= answered:
                    return
            assert time.monotonic() < end, "it waits for the dead process"
            time.sleep(POLL_S)


def worker_of(place: Place) -> int:
    """A process that holds connections and chunks."""
    held = (
        "SELECT connection_leases.holder, list_chunks.holder FROM connection_leases, list_chunks"
        " WHERE connections > 0 AND list_chunks.holder IS NOT NULL"
    )
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        for leases, chunks in run(place, held):
            process = leases.rpartition("/")[0]
            if process == chunks.rpartition("/")[0]:
                return int(process.rpartition("/")[2].partition("@")[0])
        time.sleep(POLL_S)
    raise AssertionError("no process works")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_list_goes_on_at_once_after_a_kill(tmp_path: Path, lab: Lab, workers: int) -> None:
    """All of the service is killed and started again, or one of its two workers."""
    known = (Outcome.DELIVERABLE, Outcome.UNDELIVERABLE)
    truths = {text: LADDER[each][0] for each in known for text in lab.addresses[each.value]}
    texts = Random(workers).sample(sorted(truths), ADDRESSES)
    place, bind = make_place(tmp_path, lab, PLANS, tools_bind=""), free_bind()
    with ExitStack() as stack:
        service: Running = stack.enter_context(running(place, workers=workers, bind=bind))
        client = Client(place.make_account("scale"), service.url)
        client.send(texts)
        client.wait_until(KILLED_AFTER)
        pid = worker_of(place)
        if workers == 1:
            service.kill()
        else:
            os.kill(pid, signal.SIGKILL)
        words = {"holders": f"%/{pid}@%", "micros": f"{EXTENDED_S}000000"}
        for statement in STRETCH:
            run(place, statement.format_map(words))
        left = [run(place, statement.format_map(words))[0][0] for statement in LEFT]
        if workers == 1:
            assert all(left), "or nothing is tried"
            service = stack.enter_context(running(place, workers=workers, bind=bind))
        client.wait_until(ADDRESSES)
        rows = [json.loads(line) for line in client.get("/results").text.splitlines()]
        service.stop()
    assert len(rows) == ADDRESSES
    assert not [row for row in rows if row["reason"] == "no_connection_free"]
    sure = [row for row in rows if row["status"] != "unknown"]
    assert [row for row in sure if row["status"] != truths[row["email"]]] == []
    late = {row["reason"] for row in rows if row["status"] == "unknown"}
    assert late <= {"timeout", "host_budget"}, "a busy machine may be late for some"
    not_taken = [row for row in rows if row["reason"] == "host_budget"]
    assert len(not_taken) <= NOT_TAKEN_MAX, "hosts take that many, of a list that does not wait"
