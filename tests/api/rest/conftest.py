"""Fixtures of the tests of the specification."""

from collections.abc import AsyncIterator

import pytest

from tests.api.jobs.test_worker import open_working_shop
from tests.api.mcp.tool_server import (
    Listener,
    listener_of,
)
from tests.api.rest.specification import Working
from tests.api.service_fixture import RunningService


@pytest.fixture
async def working() -> AsyncIterator[Working]:
    """A service that performs jobs, and the receiver of its callbacks."""
    async with open_working_shop() as working:
        yield working


@pytest.fixture
async def listener(shop: RunningService) -> Listener:
    """The tool server of the service."""
    return listener_of(shop)
