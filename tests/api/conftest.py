"""What the tests of the service share. A test names `autojump_clock` itself: the runner looks there."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

from tests.api.service_fixture import Shop, open_shop

# A fifth of a second for an example judges the machine, and nothing of ours.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    """A service with one account of the builder tier."""
    async with open_shop("builder") as shop:
        yield shop


@pytest.fixture
async def free_shop() -> AsyncIterator[Shop]:
    """The same with an account of the free tier."""
    async with open_shop("free") as shop:
        yield shop
