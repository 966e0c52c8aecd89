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


@pytest.fixture(scope="module", autouse=True)
def readers_in_threads() -> Iterator[pytest.MonkeyPatch]:
    """Lists are read in threads, which virtual time does not overtake; `real_readers` undoes it."""
    with pytest.MonkeyPatch.context() as patch:
        read_in_threads(patch)
        yield patch


@pytest.fixture
def real_readers(readers_in_threads: pytest.MonkeyPatch) -> Iterator[None]:
    """Lists are read by processes of their own."""
    client.forks.close()
    readers_in_threads.undo()
    yield
    client.forks.close()
    read_in_threads(readers_in_threads)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    client.forks.close()  # kept readers have open sockets
