"""Fixtures of the service tests. Each test names `autojump_clock` itself, as the runner needs."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

from tests.api.service_fixture import Shop, open_shop

# Hypothesis' deadline of 0.2 s an example would test the machine, not this code.
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
