"""A server for each module, and a new database for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from mailprobe.bench.load.private_postgres import PrivatePostgres, private_postgres
from mailprobe.storage import open_store
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import SECRET, Clock
from tests.storage.long_timeouts import use_long_timeouts


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    # A server that was stopped reads its files again and syncs each: half a minute on a busy disk.
    # No test is about a machine that loses its power.
    with private_postgres(fsync="off", full_page_writes="off") as server:
        yield server


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `assert_unavailable()` of test_outages.py is about the time that an answer may take."""
    use_long_timeouts(monkeypatch.setattr)


@pytest.fixture
def url(server: PrivatePostgres) -> str:
    return server.new_database()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(url: str, clock: Clock) -> AsyncIterator[Store]:
    async with open_store(url, secret_key=SECRET, now=clock) as opened:
        yield opened
