"""A service that starts beside another writer of its database."""

import sqlite3
import threading
import time
from pathlib import Path

import httpx

from tests.api.service_process import PATIENCE_S, make_place, running
from tests.warm_lab import start_lab

BUSY = "the database is busy"


def test_a_service_waits_for_a_database_that_is_busy_at_its_start(tmp_path: Path) -> None:
    """A backup or another worker writes: every first call of the store finds it locked."""
    with start_lab() as lab:
        database = tmp_path / "place" / "data" / "mailprobe.db"
        place = make_place(tmp_path / "place", lab, "", database=str(database))
        place.make_account("scale")
        writer = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
        writer.execute("BEGIN IMMEDIATE")

        def end_once_it_is_waited_for() -> None:
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until:
                if place.log.exists() and BUSY in place.log.read_text():
                    break
                time.sleep(0.05)
            writer.rollback()

        waiting = threading.Thread(target=end_once_it_is_waited_for)
        waiting.start()
        try:
            with running(place, workers=2) as service:
                assert BUSY in place.log.read_text()
                assert httpx.get(f"{service.url}/health", trust_env=False).status_code == 200
                service.stop()
        finally:
            waiting.join()
            writer.close()
