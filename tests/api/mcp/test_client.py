"""The official MCP client calls the tool server over real sockets, with both protocol versions.

The client itself checks every result against the negotiated revision, and every
tool's output against the tool's schema.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import pytest
import trio

from mailprobe.api.mcp.app import create_tools_app
from mailprobe.api.mcp.tools import PROVISIONING_HEADER
from tests.api.raw_http import serving
from tests.api.service_fixture import RunningService, open_shop

# `mcp` is imported where it is used: 0.6 s, which every process would take to collect this file.
if TYPE_CHECKING:
    from mcp.client import Client

# Loads the backend now: pytest rewrites it, which CPython 3.11 may fail at deep in a stack.
anyio.run(anyio.sleep, 0, backend="trio")

# by the handshake; by asking the server; without a question
MODES = {"legacy": "2025-11-25", "auto": "2026-07-28", "2026-07-28": "2026-07-28"}
NAMES = [
    "verify_email", "create_api_key", "list_api_keys", "revoke_api_key",
    "get_usage_summary", "get_account", "get_usage", "create_billing_portal",
]  # fmt: skip


class Provider:
    """A billing provider with a portal for every account."""

    async def portal_url(self, account: Any, return_url: str | None) -> str:
        await trio.lowlevel.checkpoint()
        return f"https://bills.test/{account.id}"


class Waiting:
    """A billing provider that never answers, and knows whether a caller still waits."""

    def __init__(self) -> None:
        self.begun, self.ended = trio.Event(), trio.Event()

    async def portal_url(self, account: Any, return_url: str | None) -> str:
        self.begun.set()
        try:
            await trio.sleep_forever()
        finally:
            self.ended.set()


@asynccontextmanager
async def connected(
    shop: RunningService,
    mode: str,
    *,
    key: str | None = None,
    provisioning: str | None = None,
    path: str = "/mcp",
) -> AsyncIterator["Client"]:
    from mcp.client import Client
    from mcp.client.streamable_http import streamable_http_client

    app = create_tools_app(shop.service, "https://tools.test", "https://docs.test/api")
    headers = {
        "Authorization": f"Bearer {key or shop.key}",
        PROVISIONING_HEADER: provisioning or shop.provisioning,
    }
    async with serving(app) as server, httpx2.AsyncClient(headers=headers) as http:
        transport = streamable_http_client(
            f"http://127.0.0.1:{server.port}{path}", http_client=http
        )
        async with Client(transport, mode=mode) as client:
            yield client


async def given(client: "Client", tool: str, arguments: Any = None) -> Any:
    """Return the tool's output, after the client has checked it against the tool's schema."""
    from mcp_types import CallToolResult

    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert not result.is_error
    return result.structured_content


async def refused(client: "Client", tool: str, arguments: Any = None) -> Any:
    from mcp.shared.exceptions import MCPError

    with pytest.raises(MCPError) as caught:
        await client.call_tool(tool, arguments)
    return caught.value.error


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_lists_and_calls_all_eight_tools(mode: str):
    async with open_shop(payments=Provider()) as shop, connected(shop, mode) as client:
        assert client.session.protocol_version == MODES[mode]
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == NAMES
        assert all(tool.output_schema and tool.annotations for tool in listed)
        found = await given(client, "verify_email", {"email": "known@friendly.test"})
        assert found["status"] == "deliverable"
        made = await given(client, "create_api_key", {"label": "made by a tool"})
        keys = await given(client, "list_api_keys")
        assert made["id"] in [key["id"] for key in keys["keys"]]
        gone = await given(client, "revoke_api_key", {"id": made["id"]})
        assert gone == {"revoked": True, "id": made["id"]}
        assert (await given(client, "get_usage_summary"))["calls_used"] == 1
        assert (await given(client, "get_account"))["account_id"] == shop.account.id
        assert len((await given(client, "get_usage"))["days"]) == 30
        portal = await given(client, "create_billing_portal", {"return_url": "https://a.test"})
        assert portal["url"] == f"https://bills.test/{shop.account.id}"


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_gets_errors_with_their_reasons_and_goes_on(mode: str):
    async with open_shop() as shop, connected(shop, mode) as client:
        error = await refused(client, "create_billing_portal")
        assert (error.code, error.message) == (-32002, "Upstream request failed")
        assert (error.data["status"], error.data["body"]["error"]) == (402, "no_billing_account")
        error = await refused(client, "verify_email", {"email": 5})
        assert (error.code, error.message) == (-32602, "Invalid params")
        assert error.data["reason"] == "The field email is a number; it must be a string."
        assert (await refused(client, "verify_batch", {})).code == -32602
        assert (await refused(client, "revoke_api_key", {"id": "x"})).data["status"] == 404
        assert (await given(client, "get_account"))["tier"] == "builder"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_without_a_good_key_does_not_get_in(mode: str):
    from mcp.shared.exceptions import MCPError

    async with open_shop() as shop:
        with pytest.raises((MCPError, BaseExceptionGroup)) as caught:
            async with connected(shop, mode, key=shop.provisioning):
                pass
        error: Any = caught.value
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        assert (error.error.code, error.error.message) == (-32001, "Unauthorized")


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_without_a_provisioning_key_can_verify(mode: str):
    async with open_shop() as shop, connected(shop, mode, provisioning="none") as client:
        error = await refused(client, "get_account")
        assert (error.code, set(error.data)) == (-32001, {"reason", "action", "docs"})
        found = await given(client, "verify_email", {"email": "no@friendly.test"})
        assert found["status"] == "undeliverable"


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_of_the_wider_set_sees_failures_as_results(mode: str):
    from mcp_types import CallToolResult

    async with open_shop() as shop, connected(shop, mode, path="/mcp/all") as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        assert set(NAMES) < set(listed)
        found = await given(
            client, "verify_email", {"email": "ann@friendly.test", "evidence": True}
        )
        assert found["evidence"]["exchanges"]
        result = await client.call_tool("get_list", {"id": "x"})
        assert isinstance(result, CallToolResult)
        assert result.is_error


async def test_a_client_of_the_handshake_may_ping():
    async with open_shop() as shop, connected(shop, "legacy") as client:
        await client.session.send_ping()


@pytest.mark.parametrize("mode", ["auto", "2026-07-28"])
async def test_a_call_that_is_given_up_ends_its_work(mode: str):
    """From protocol 2026-07-28 on, closing the request cancels it."""
    provider = Waiting()
    async with open_shop(payments=provider) as shop, connected(shop, mode) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "create_billing_portal")
            await provider.begun.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(5):
            await provider.ended.wait()


async def test_many_calls_at_once_each_get_their_own_answer():
    async with open_shop() as shop, connected(shop, "2026-07-28") as client:
        found: dict[str, str] = {}

        async def verify(email: str) -> None:
            found[email] = (await given(client, "verify_email", {"email": email}))["email"]

        emails = [f"known{n}@friendly.test" for n in range(20)]
        async with trio.open_nursery() as nursery:
            for email in emails:
                nursery.start_soon(verify, email)
        assert found == {email: email for email in emails}
