"""A tool server over the service with one account of the builder tier."""

from typing import Any

import pytest

from tests.api.mcp.tool_server import Listener, listener_of, result_of
from tests.api.service_fixture import RunningService


@pytest.fixture
async def listener(shop: RunningService) -> Listener:
    return listener_of(shop)


@pytest.fixture
async def tools(listener: Listener) -> dict[str, Any]:
    return {tool["name"]: tool for tool in result_of(await listener.rpc("tools/list"))["tools"]}
