"""Fixtures of the service tests. Each test names `autojump_clock` itself, as the runner needs."""

from collections.abc import AsyncIterator, Iterator

import pytest

from mailprobe.api.reader import client
from tests.api.reader_in_thread import read_in_threads
from tests.api.service_fixture import RunningService, open_shop


@pytest.fixture
async def shop() -> AsyncIterator[RunningService]:
    """A service with one account of the builder tier."""
    async with open_shop("builder") as shop:
        yield shop


@pytest.fixture
async def free_shop() -> AsyncIterator[RunningService]:
    """The same with an account of the free tier."""
    async with open_shop("free") as shop:
        yield shop


@pytest.fixture(autouse=True)
def readers_in_threads(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Lists are read in threads, which virtual time does not overtake; `real_readers` undoes it."""
    if "real_readers" not in request.fixturenames:
        read_in_threads(monkeypatch)
    yield
    client.forks.close()  # kept readers have open sockets


@pytest.fixture
def real_readers() -> None:
    """Lists are read by processes of their own."""
