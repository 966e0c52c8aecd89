"""The tool server of a test service: a client for it, and readers of its answers."""

import json
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from mailprobe.api.mcp.app import create_tools_app
from mailprobe.api.mcp.tools import PROVISIONING_HEADER
from tests.api.service_fixture import HttpAnswer, RunningService

TOOLS_URL = "https://tools.test"
DOCS = "https://docs.test/api#tools"
NAMES = [
    "verify_email", "create_api_key", "list_api_keys", "revoke_api_key",
    "get_usage_summary", "get_account", "get_usage", "create_billing_portal",
]  # fmt: skip
MANAGEMENT = NAMES[1:]
READING = {"list_api_keys", "get_usage_summary", "get_account", "get_usage"}
ARGUMENTS = {
    "verify_email": {"email": "known@friendly.test"},
    "revoke_api_key": {"id": str(uuid4())},
}
META = "io.modelcontextprotocol/"


@dataclass
class Listener:
    """The tool server of a test service, and how a client calls it."""

    shop: RunningService
    inside: RunningService  # the same service, with the tool server as its application
    path: str = "/mcp"

    async def post(self, octets: bytes, **more: Any) -> HttpAnswer:
        return await self.inside.request("POST", self.path, octets=octets, **more)

    async def rpc(
        self, method: Any, params: Any = None, *, id_: Any = 1, **more: Any
    ) -> HttpAnswer:
        message = {"jsonrpc": "2.0", "id": id_, "method": method}
        if params is not None:
            message["params"] = params
        return await self.post(json.dumps(message).encode(), **more)

    async def call(
        self, tool: str, arguments: Any = None, *, provisioning: str | None = "",
        headers: Any = None, **more: Any,
    ) -> HttpAnswer:  # fmt: skip
        """Call a tool with the account's keys; `provisioning` None sends none of that kind."""
        provisioning = self.shop.provisioning if provisioning == "" else provisioning
        sent = {PROVISIONING_HEADER: provisioning, **(headers or {})}
        params = {
            "name": tool,
            "arguments": ARGUMENTS.get(tool, {}) if arguments is None else arguments,
        }
        return await self.rpc("tools/call", params, headers=sent, **more)

    async def call_2026(self, method: str, params: Any = None, **changes: Any) -> HttpAnswer:
        """Send as a client of protocol 2026-07-28 does; `changes` replaces headers or `_meta`."""
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
        if "name" in (params or {}):
            headers["mcp-name"] = params["name"]
        meta = {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {}}
        headers |= changes.get("headers", {})
        meta = meta | changes.get("meta", {})
        meta = {name: value for name, value in meta.items() if value is not None}
        return await self.rpc(method, {"_meta": meta, **(params or {})}, headers=headers)


def listener_of(shop: RunningService, path: str = "/mcp") -> Listener:
    app = create_tools_app(shop.service, TOOLS_URL, "https://docs.test/api")
    return Listener(shop, replace(shop, app=app), path)


def error_of(got: HttpAnswer) -> Any:
    assert set(got.body) == {"jsonrpc", "id", "error"}
    assert got.body["jsonrpc"] == "2.0"
    assert set(got.body["error"]) == {"code", "message", "data"}
    assert got.headers["content-type"] == "application/json"
    return got.body["error"]


def code_of(got: HttpAnswer) -> int:
    """The error's code. Asserts that reason, action and docs are present."""
    error = error_of(got)
    assert {"reason", "action", "docs"} <= set(error["data"])
    code: int = error["code"]
    return code


def result_of(got: HttpAnswer) -> Any:
    assert got.status == 200, got.octets
    assert set(got.body) == {"jsonrpc", "id", "result"}
    return got.body["result"]


def structured(got: HttpAnswer) -> Any:
    """A tool's result, which is sent twice: as an object and as text."""
    result = result_of(got)
    (text,) = result["content"]
    assert (text["type"], result["isError"]) == ("text", False)
    assert json.loads(text["text"]) == result["structuredContent"]
    return result["structuredContent"]


def upstream(got: HttpAnswer) -> Any:
    error = error_of(got)
    assert (error["code"], error["message"]) == (-32002, "Upstream request failed")
    data = error["data"]
    assert set(data) == {"status", "body", "action", "docs"}
    assert data["status"] == got.status
    assert (data["action"], data["docs"]) == (data["body"]["action"], data["body"]["docs"])
    return data["body"]
