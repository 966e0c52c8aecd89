"""Direct access to the database of a store under test."""

from typing import Any

import psycopg

from mailprobe.storage import open_store
from mailprobe.storage.postgres.driver.server import SCHEMA
from tests.storage.fixed_clock import SECRET

DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


def query(url: str, statement: str) -> list[Any]:
    """Run a statement in a transaction of its own. Returns its rows, if it has any."""
    with psycopg.connect(url, options=f"-c search_path={SCHEMA}", autocommit=True) as db:
        cursor = db.execute(statement)
        return cursor.fetchall() if cursor.description else []


def assert_no_deadlock(url: str) -> None:
    assert query(url, DEADLOCKS) == [(0,)]


async def open_once(url: str, secret_key: bytes | None = SECRET) -> None:
    """Open the store and close it again: it is made, or it fails as it should."""
    async with open_store(url, secret_key=secret_key):
        pass
