"""A server for each module, and a new database for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from mailprobe.bench.load.private_postgres import PrivatePostgres, private_postgres
from mailprobe.storage import open_store
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import SECRET, Clock


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    with private_postgres() as server:
        yield server


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
