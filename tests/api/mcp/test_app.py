"""The tool server: its definitions, JSON-RPC over HTTP, and tools that are the API's operations."""

import json
import logging
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import jsonschema
import pytest
import trio

from mailprobe.api.mcp.app import create_tools_app, origin_of
from mailprobe.api.mcp.jsonrpc import VERSIONS, error_body
from mailprobe.api.mcp.tools import PROVISIONING_HEADER, TELLINGS
from mailprobe.api.rest.errors import BEFORE_ROUTING, row_of
from mailprobe.api.rest.examples import BODIES, example_of
from mailprobe.api.rest.operations import OPERATIONS
from mailprobe.api.rest.schema import (
    AsyncVerifyResponse,
    BillingPortalRequest,
    CreateKeyRequest,
    VerifyRequest,
)
from mailprobe.engine.verdict import FIELDS
from mailprobe.storage.records import Tier
from tests.api.service_fixture import PLACES, Got, Shop, open_shop

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
    """The tool server of a shop."""

    shop: Shop
    inside: Shop  # the same shop, entered by this door

    async def post(self, octets: bytes, **more: Any) -> Got:
        return await self.inside.ask("POST", "/mcp", octets=octets, **more)

    async def rpc(self, method: Any, params: Any = None, *, id_: Any = 1, **more: Any) -> Got:
        message = {"jsonrpc": "2.0", "id": id_, "method": method}
        if params is not None:
            message["params"] = params
        return await self.post(json.dumps(message).encode(), **more)

    async def call(
        self, tool: str, arguments: Any = None, *, provisioning: str | None = "",
        headers: Any = None, **more: Any,
    ) -> Got:  # fmt: skip
        """Call a tool with the account's keys; `provisioning` None sends none of that kind."""
        provisioning = self.shop.provisioning if provisioning == "" else provisioning
        sent = {PROVISIONING_HEADER: provisioning, **(headers or {})}
        params = {
            "name": tool,
            "arguments": ARGUMENTS.get(tool, {}) if arguments is None else arguments,
        }
        return await self.rpc("tools/call", params, headers=sent, **more)

    async def call_2026(self, method: str, params: Any = None, **changes: Any) -> Got:
        """The same as a client of 2026-07-28 does it, but for the changes: headers or `_meta`."""
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
        if "name" in (params or {}):
            headers["mcp-name"] = params["name"]
        meta = {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {}}
        headers |= changes.get("headers", {})
        meta = meta | changes.get("meta", {})
        meta = {name: value for name, value in meta.items() if value is not None}
        return await self.rpc(method, {"_meta": meta, **(params or {})}, headers=headers)


def listener_of(shop: Shop) -> Listener:
    app = create_tools_app(shop.service, TOOLS_URL, "https://docs.test/api")
    return Listener(shop, replace(shop, app=app))


@pytest.fixture
async def listener(shop: Shop) -> Listener:
    return listener_of(shop)


def error_of(got: Got) -> Any:
    assert set(got.body) == {"jsonrpc", "id", "error"}
    assert got.body["jsonrpc"] == "2.0"
    assert set(got.body["error"]) == {"code", "message", "data"}
    assert got.headers["content-type"] == "application/json"
    return got.body["error"]


def code_of(got: Got) -> int:
    """The error's code; reason, action and docs are there."""
    error = error_of(got)
    assert {"reason", "action", "docs"} <= set(error["data"])
    return error["code"]


def result_of(got: Got) -> Any:
    assert got.status == 200, got.octets
    assert set(got.body) == {"jsonrpc", "id", "result"}
    return got.body["result"]


def structured(got: Got) -> Any:
    """What a tool gave: twice the same, as an object and as text."""
    result = result_of(got)
    (text,) = result["content"]
    assert (text["type"], result["isError"]) == ("text", False)
    assert json.loads(text["text"]) == result["structuredContent"]
    return result["structuredContent"]


# -- definitions ------------------------------------------------------------------------------


@pytest.fixture
async def tools(listener: Listener) -> dict[str, Any]:
    return {tool["name"]: tool for tool in result_of(await listener.rpc("tools/list"))["tools"]}


async def test_the_eight_tools_are_listed_in_their_order(autojump_clock, listener: Listener):
    listed = result_of(await listener.rpc("tools/list"))["tools"]
    assert [tool["name"] for tool in listed] == NAMES
    assert set(TELLINGS) == set(NAMES) == {each.name for each in OPERATIONS if each.tool}


async def test_the_definitions_are_for_everybody(autojump_clock, listener: Listener):
    listed = result_of(await listener.rpc("tools/list"))["tools"]
    got = await listener.inside.ask("GET", "/openapi.json", key=None)
    assert (got.status, got.headers["content-type"]) == (200, "application/json")
    assert got.body == {"tools": listed}
    head = await listener.inside.ask("HEAD", "/openapi.json", key=None)
    assert (head.status, head.octets) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]


async def test_the_inputs_are_the_specifications(autojump_clock, tools):
    inputs = {name: tool["inputSchema"] for name, tool in tools.items()}
    verify = inputs["verify_email"]
    assert set(verify["properties"]) == {"email", "webhook", "webhook_secret"}
    assert verify["required"] == ["email"]
    assert verify["properties"]["webhook"]["format"] == "uri"
    assert verify["properties"]["webhook_secret"]["minLength"] == 8
    assert set(inputs["create_api_key"]["properties"]) == {"label"}
    assert inputs["revoke_api_key"]["required"] == ["id"]
    assert set(inputs["create_billing_portal"]["properties"]) == {"return_url"}
    for name in READING:
        assert inputs[name] == {"type": "object", "properties": {}}
    for schema in inputs.values():
        for argument in schema["properties"].values():
            assert argument["type"] == "string"
            assert argument["description"]


async def test_every_schema_is_whole_and_of_an_object(autojump_clock, tools):
    """Models' hosts follow no reference and look for the type at the root."""
    for tool in tools.values():
        for schema in (tool["inputSchema"], tool["outputSchema"]):
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
            assert "$ref" not in json.dumps(schema)
            assert "(?!" not in json.dumps(schema)  # nor look-ahead


@pytest.mark.parametrize(
    ("tool", "kind"),
    [("verify_email", VerifyRequest), ("create_api_key", CreateKeyRequest),
     ("create_billing_portal", BillingPortalRequest)],
)  # fmt: skip
async def test_the_examples_are_arguments(autojump_clock, tools, tool, kind):
    example = {k: v for k, v in example_of(kind).items() if v is not None}
    jsonschema.validate(example, tools[tool]["inputSchema"])


async def test_the_outputs_are_those_of_the_operations(autojump_clock, tools):
    for operation in OPERATIONS:
        for kind in (operation.gives, operation.promises):
            if operation.tool and kind is not None:
                assert any(type(body) is kind for body in BODIES)
                jsonschema.validate(example_of(kind), tools[operation.name]["outputSchema"])


async def test_a_verification_ends_in_a_result_or_in_a_job(autojump_clock, tools):
    schema = tools["verify_email"]["outputSchema"]
    result, job = (set(kind["properties"]) for kind in schema["anyOf"])
    assert result == set(FIELDS)
    assert job == {"job_id", "status"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({}, schema)


async def test_the_hints_are_true(autojump_clock, tools):
    hints = {name: tool["annotations"] for name, tool in tools.items()}

    def those(hint: str) -> set[str]:
        return {name for name in NAMES if hints[name][hint]}

    assert those("readOnlyHint") == READING
    assert those("destructiveHint") == {"revoke_api_key"}
    assert those("idempotentHint") == {*READING, "revoke_api_key"}
    assert those("openWorldHint") == {"verify_email", "create_billing_portal"}
    for tool in tools.values():
        assert tool["title"] == tool["annotations"]["title"]
        assert (PROVISIONING_HEADER in tool["description"]) == (tool["name"] != "verify_email")


# -- HTTP -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"])
async def test_other_methods_of_mcp_are_405_without_a_body(
    autojump_clock, listener: Listener, method
):
    """Clients learn so that there is neither a stream nor a session."""
    got = await listener.inside.ask(method, "/mcp", key=None)
    assert (got.status, got.headers["allow"], got.octets) == (405, "POST", b"")
    assert got.headers["content-length"] == "0"
    assert "content-type" not in got.headers


async def test_other_methods_of_the_definitions_are_405(autojump_clock, listener: Listener):
    got = await listener.inside.ask("POST", "/openapi.json", {})
    assert (got.status, got.error, got.headers["allow"]) == (405, "method_not_allowed", "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/mcp/", "//mcp", "/MCP", "/sse", "/v1/email/verify"])
async def test_another_path_is_404_in_the_words_of_the_api(
    autojump_clock, listener: Listener, path
):
    for method in ("GET", "POST"):
        got = await listener.inside.ask(method, path, key=None)
        assert (got.status, got.error) == (404, "not_found")
        assert set(got.body) == {"error", "message", "action", "docs"}
        assert f"{TOOLS_URL}/mcp" in got.body["action"]
        assert got.body["docs"] == DOCS


async def test_every_answer_has_a_request_id_of_its_own(autojump_clock, listener: Listener):
    answers = [
        await listener.rpc("ping"), await listener.rpc("ping", key=None), await listener.call("get_account"),
        await listener.inside.ask("GET", "/mcp"), await listener.inside.ask("GET", "/nope"),
        await listener.inside.ask("GET", "/openapi.json"),
    ]  # fmt: skip
    assert len({got.headers["x-request-id"] for got in answers}) == len(answers)
    assert all(got.headers["cache-control"] == "no-store" for got in answers)
    assert all("mcp-session-id" not in got.headers for got in answers)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200), (TOOLS_URL, 200), ("HTTPS://Tools.Test", 200), ("https://evil.test", 403),
        ("null", 403), ("", 403), ("http://tools.test", 403), (f"{TOOLS_URL}:8443", 403),
        (f"{TOOLS_URL}.evil.test", 403), (f"{TOOLS_URL}/", 403),
    ],
)  # fmt: skip
async def test_no_foreign_page_may_post(autojump_clock, listener: Listener, origin, status):
    got = await listener.rpc("ping", headers={"origin": origin})
    assert got.status == status
    if status == 403:
        assert code_of(got) == -32600
        assert (await listener.rpc("ping", headers={"origin": origin}, key=None)).status == 403


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://tools.test", "https://tools.test"),
        ("https://Tools.Test:443/mcp", "https://tools.test"),
        ("http://127.0.0.1:8081", "http://127.0.0.1:8081"),
        ("http://[::1]:80", "http://[::1]"),
        ("http://tools.test:443", "http://tools.test:443"),
    ],
)
def test_the_origin_of_an_address(url, origin):
    assert origin_of(url) == origin


async def test_a_length_that_is_too_large_is_413_without_reading(
    autojump_clock, listener: Listener
):
    never = [(1000.0, b"{")]
    headers = {"content-length": "2097153"}
    got = await listener.inside.ask("POST", "/mcp", pieces=never, headers=headers)
    assert (got.status, code_of(got), got.body["id"]) == (413, -32600, None)
    assert got.headers["connection"] == "close"
    got = await listener.inside.ask("POST", "/mcp", pieces=never, headers=headers, key=None)
    assert (got.status, code_of(got), got.body["id"]) == (401, -32001, None)
    assert trio.current_time() < 1


@pytest.mark.parametrize(("octets_over", "status"), [(0, 200), (1, 413)])
async def test_a_body_without_a_length_is_read_up_to_2_mb(octets_over, status):
    """No virtual time: a body of this size is parsed in a thread."""
    async with open_shop() as shop:
        body = b'{"jsonrpc":"2.0","id":1,"method":"ping","x":"'
        body += b"x" * (2 * 1024 * 1024 - len(body) - 2 + octets_over) + b'"}'
        pieces = [(0.0, body[at : at + 65_536]) for at in range(0, len(body), 65_536)]
        got = await listener_of(shop).inside.ask("POST", "/mcp", pieces=pieces)
        assert got.status == status


async def test_a_slow_body_is_408_ten_seconds_after_its_head(autojump_clock, listener: Listener):
    got = await listener.inside.ask("POST", "/mcp", pieces=[(1.0, b" ")] * 60)
    assert (got.status, code_of(got)) == (408, -32600)
    assert got.headers["connection"] == "close"
    assert trio.current_time() == pytest.approx(10, abs=0.01)


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_bug(
    autojump_clock, listener: Listener, caplog
):
    pieces = [(0.0, b"{"), (5.0, b"}")]
    got = await listener.inside.ask("POST", "/mcp", pieces=pieces, hang_up_at=1.0)
    assert got.status == 0
    assert not caplog.records


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "text/event-stream", "x"])
async def test_whatever_is_accepted_the_answer_is_json(autojump_clock, listener: Listener, accept):
    assert result_of(await listener.rpc("ping", headers={"accept": accept})) == {}


async def test_a_body_that_says_it_is_no_json_is_refused(autojump_clock, listener: Listener):
    got = await listener.rpc("ping", headers={"content-type": "application/x-www-form-urlencoded"})
    assert (got.status, code_of(got), got.body["id"]) == (400, -32600, 1)
    assert result_of(await listener.rpc("ping", headers={"content-type": None})) == {}


@pytest.mark.parametrize("code", BEFORE_ROUTING)
def test_what_the_http_server_refuses_is_told_in_json_rpc(code):
    body = json.loads(error_body(code, PLACES))
    ours = row_of(BEFORE_ROUTING[code]).status >= 500
    assert (body["jsonrpc"], body["id"]) == ("2.0", None)
    assert body["error"]["code"] == (-32603 if ours else -32600)
    assert set(body["error"]["data"]) == {"reason", "action", "docs"}


# -- JSON-RPC ---------------------------------------------------------------------------------

DEEP = b"[" * 100_000

MALFORMED = {
    "nothing": (b"", -32700, None),
    "words": (b"hello", -32700, None),
    "half": (b'{"jsonrpc":"2.0","id":1,"method":"ping"', -32700, None),
    "more behind it": (b'{"jsonrpc":"2.0","id":1,"method":"ping"} {}', -32700, None),
    "NaN": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}', -32700, None),
    "Latin-1": (b'{"jsonrpc":"2.0","id":1,"method":"ping","x":"\xe9"}', -32700, None),
    "UTF-16": ('{"jsonrpc":"2.0","id":1,"method":"ping"}'.encode("utf-16"), -32700, None),
    "a byte order mark": (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}', -32700, None),
    "a lone surrogate": (b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}', -32700, None),
    "depth": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + DEEP, -32700, None),
    "depth, whole": (
        b'{"jsonrpc":"2.0","id":1,"method":"ping","x":' + DEEP + b"]" * 100_000 + b"}", -32700, None),
    "the id twice": (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', -32700, 2),
    "the method twice": (b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"x"}', -32700, 1),
    "the name twice": (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}', -32700, 1),
    "an argument twice": (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"verify_email",'
        b'"arguments":{"email":"a","\\u0065mail":"b"}}}', -32700, 1),
    "a batch": (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600, None),
    "an empty batch": (b"[]", -32600, None),
    "a string": (b'"ping"', -32600, None),
    "null": (b"null", -32600, None),
    "no version": (b'{"id":1,"method":"ping"}', -32600, 1),
    "version 1": (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, 1),
    "version 2 as a number": (b'{"jsonrpc":2.0,"id":1,"method":"ping"}', -32600, 1),
    "no method": (b'{"jsonrpc":"2.0","id":1}', -32600, 1),
    "a method that is a number": (b'{"jsonrpc":"2.0","id":1,"method":1}', -32600, 1),
    "an answer": (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600, 1),
    "id true": (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
    "id an array": (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', -32600, None),
    "id an object": (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600, None),
    "params a string": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}', -32600, 1),
    "params a number": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":1}', -32600, 1),
    "a notification of no kind": (b'{"jsonrpc":"2.0"}', -32600, None),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
async def test_what_is_no_message_is_400_and_counts_nothing(
    autojump_clock, listener: Listener, case
):
    octets, code, id_ = MALFORMED[case]
    got = await listener.post(octets)
    assert (got.status, code_of(got), got.body["id"]) == (400, code, id_)
    assert await listener.shop.rows() == []


@pytest.mark.parametrize(
    "id_", ["1", "-7", "1.50", "1e3", "9" * 40, '"a"', '""', '"\\u00e9"', "null"]
)
async def test_the_id_is_given_back_as_it_was_written(autojump_clock, listener: Listener, id_):
    """`null` too is an id, by JSON-RPC: it asks for an answer."""
    for method in ("ping", "nope"):
        octets = b'{"jsonrpc":"2.0","id":%b,"method":"%b"}' % (id_.encode(), method.encode())
        assert b'"id":%b,' % id_.encode() in (await listener.post(octets)).octets


async def test_members_that_nobody_reads_are_passed_over(autojump_clock, listener: Listener):
    octets = b' {"x":{"x":1e999},"x":[],"method":"ping","id":1,"jsonrpc":"2.0","params":null}\n'
    assert result_of(await listener.post(octets)) == {}


@pytest.mark.parametrize(
    "method", ["notifications/initialized", "notifications/cancelled", "tools/call", "x"]
)
async def test_a_notification_is_taken_and_nothing_is_done(
    autojump_clock, listener: Listener, method
):
    """A verification whose result nobody sees would only cost money."""
    params = {"name": "verify_email", "arguments": {"email": "known@friendly.test"}}
    octets = json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()
    got = await listener.post(octets)
    assert (got.status, got.octets, got.headers["content-length"]) == (202, b"", "0")
    assert await listener.shop.rows() == []
    assert (await listener.post(octets, key=None)).status == 401


@pytest.mark.parametrize(
    "method", ["", "tools/List", "resources/list", "prompts/get", "logging/setLevel"]
)
async def test_another_method_is_not_found(autojump_clock, listener: Listener, method):
    """With 200: older clients of MCP take 404 for the end of their connection."""
    got = await listener.rpc(method)
    assert (got.status, code_of(got)) == (200, -32601)
    assert error_of(got)["message"] == "Method not found"


# -- keys -------------------------------------------------------------------------------------

WITHOUT_A_KEY = {
    "none": None, "empty": "", "no scheme": "sk", "basic": "Basic YTpi",
    "short": "Bearer sk_live_short", "twice": "Bearer a, Bearer b",
}  # fmt: skip


@pytest.mark.parametrize("case", WITHOUT_A_KEY)
@pytest.mark.parametrize("method", ["initialize", "ping", "tools/list", "server/discover", "x"])
async def test_every_message_needs_a_standard_key(autojump_clock, listener: Listener, case, method):
    headers = {"authorization": WITHOUT_A_KEY[case]}
    got = await listener.rpc(method, id_="a", key=None, headers=headers)
    assert (got.status, code_of(got), got.body["id"]) == (401, -32001, "a")
    error = error_of(got)
    assert (error["message"], set(error["data"])) == ("Unauthorized", {"reason", "action", "docs"})
    assert error["data"]["docs"] == "https://docs.test/api#authentication"
    assert got.headers["www-authenticate"] == "Bearer"


async def test_a_provisioning_key_is_no_standard_key(autojump_clock, listener: Listener):
    for method in ("ping", "tools/list"):
        got = await listener.rpc(method, key=listener.shop.provisioning)
        assert (got.status, code_of(got)) == (401, -32001)


async def test_the_key_is_looked_at_before_the_message(autojump_clock, listener: Listener):
    for octets in (b"", b"[]", b'{"id":7,"id":7}', DEEP):
        got = await listener.post(octets, key=None)
        assert (got.status, code_of(got)) == (401, -32001)


async def test_a_revoked_key_opens_nothing(autojump_clock, listener: Listener):
    own = (await listener.shop.caller()).key.id
    assert structured(await listener.call("revoke_api_key", {"id": own}))["revoked"] is True
    got = await listener.call("get_account")
    assert (got.status, code_of(got)) == (401, -32001)


@pytest.mark.parametrize("tool", MANAGEMENT)
async def test_a_management_tool_needs_a_provisioning_key_too(
    autojump_clock, listener: Listener, tool
):
    other = await listener.shop.store.create_account("bob@example.org", "scale")
    theirs = await listener.shop.new_key("sk_mgmt_", other.id)
    wrong = {
        "needs the header": [None, " "],
        "is not known": ["x", f"Bearer {listener.shop.provisioning}", theirs[:-1] + "?"],
        "is a standard key": [listener.shop.key],
        "two accounts": [theirs],
    }
    for reason, keys in wrong.items():
        for key in keys:
            got = await listener.call(tool, provisioning=key)
            assert (got.status, code_of(got)) == (401, -32001)
            assert reason in error_of(got)["data"]["reason"]
            assert PROVISIONING_HEADER in error_of(got)["data"]["action"]
            assert got.headers["www-authenticate"] == "Bearer"
    assert (await listener.shop.manage("GET", "/keys")).body["count"] == 1


async def test_verifying_needs_no_provisioning_key(autojump_clock, listener: Listener):
    for key in (None, "nonsense"):
        assert structured(await listener.call("verify_email", provisioning=key))["valid"] is True


async def test_a_key_that_is_revoked_between_two_looks_is_unauthorized(
    autojump_clock, listener: Listener
):
    look = listener.shop.store.store.caller
    looks = 0

    async def caller(sha256: str) -> Any:
        nonlocal looks
        looks += 1
        return None if looks == 3 else await look(sha256)

    listener.shop.store.store.caller = caller
    got = await listener.call("get_account")
    assert (got.status, code_of(got)) == (401, -32001)
    assert got.headers["www-authenticate"] == "Bearer"


# -- calls ------------------------------------------------------------------------------------


async def test_a_verification_is_that_of_the_api(autojump_clock, listener: Listener):
    for email in (
        "known@friendly.test",
        "no@friendly.test",
        "",
        "日本@friendly.test",
        "a@gmial.com",
    ):
        there, here = (
            await listener.shop.verify(email),
            await listener.call("verify_email", {"email": email}),
        )
        assert {**structured(here), "latency_ms": 0} == {**there.body, "latency_ms": 0}
        assert tuple(structured(here)) == FIELDS


@pytest.mark.parametrize(
    ("tool", "path"),
    [("list_api_keys", "/keys"), ("get_usage_summary", "/usage/summary"),
     ("get_account", "/account"), ("get_usage", "/usage")],
)  # fmt: skip
async def test_what_only_reads_is_the_same_as_by_the_api(
    autojump_clock, listener: Listener, tool, path
):
    await listener.shop.verify()
    for arguments in ({}, None, {"x": 1}):
        got = await listener.call(tool, arguments)
        assert structured(got) == (await listener.shop.manage("GET", path)).body
    params = {"name": tool}  # without any arguments
    got = await listener.rpc(
        "tools/call", params, headers={PROVISIONING_HEADER: listener.shop.provisioning}
    )
    assert structured(got) == (await listener.shop.manage("GET", path)).body


async def test_a_key_is_made_used_and_revoked(autojump_clock, listener: Listener, tools):
    made = structured(await listener.call("create_api_key", {"label": "checkout"}))
    assert (made["label"], bool(made["warning"])) == ("checkout", True)
    assert (await listener.shop.verify(key=made["key"])).status == 200
    gone = structured(await listener.call("revoke_api_key", {"id": made["id"].upper()}))
    assert gone == {"revoked": True, "id": made["id"]}
    jsonschema.validate(gone, tools["revoke_api_key"]["outputSchema"])
    assert (await listener.shop.verify(key=made["key"])).status == 401
    again = await listener.call("revoke_api_key", {"id": made["id"]})
    assert (again.status, error_of(again)["data"]["body"]["error"]) == (404, "key_not_found")


class Provider:
    """A billing provider with a portal for every account."""

    async def portal_url(self, account: Any, return_url: str | None) -> str:
        await trio.lowlevel.checkpoint()
        return f"https://bills.test/{account.id}?{return_url}"


async def test_the_billing_portal_is_opened(autojump_clock):
    async with open_shop(payments=Provider()) as shop:
        got = await listener_of(shop).call(
            "create_billing_portal", {"return_url": "https://a.test"}
        )
        assert structured(got)["url"] == f"https://bills.test/{shop.account.id}?https://a.test"


@dataclass
class Jobs:
    """Promises without anybody to keep them."""

    quota: Any

    async def submit(self, caller: Any, order: Any, headers: Any, first: Any = None) -> Any:
        return await self.quota.reserve_job(caller, order, headers, first)


async def test_with_a_webhook_a_job_is_promised(autojump_clock, shop: Shop):
    listener = listener_of(
        replace(shop, service=replace(shop.service, jobs=Jobs(shop.service.quota)))
    )
    arguments = {"email": "known@friendly.test", "webhook": "https://a.test/hook"}
    got = await listener.call("verify_email", {**arguments, "webhook_secret": "8 letters"})
    job = structured(got)
    assert (got.status, job["status"]) == (200, "pending")
    listed = result_of(await listener.rpc("tools/list"))["tools"]
    jsonschema.validate(job, listed[0]["outputSchema"])
    assert set(job) == set(example_of(AsyncVerifyResponse))


# -- what the arguments must be ---------------------------------------------------------------

WRONG = {
    "no email": ("verify_email", {}, "email is missing"),
    "email null": ("verify_email", {"email": None}, "email is null"),
    "email a number": ("verify_email", {"email": 5}, "email is a number"),
    "webhook a number": ("verify_email", {"email": "a", "webhook": 1}, "webhook is a number"),
    "a short secret": ("verify_email", {"email": "a", "webhook_secret": "7777777"}, "at least 8"),
    "an array": ("verify_email", ["a"], "arguments is an array"),
    "a string": ("verify_email", "a", "arguments is a string"),
    "label a number": ("create_api_key", {"label": 5}, "label is a number"),
    "label empty": ("create_api_key", {"label": ""}, "at least 1"),
    "no id": ("revoke_api_key", {}, "id is missing"),
    "id a number": ("revoke_api_key", {"id": 5}, "id is a number"),
    "a url of no kind": ("create_billing_portal", {"return_url": "x"}, "wrong form"),
    "an array for nothing": ("get_account", [], "arguments is an array"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_wrong_arguments_are_invalid_params(autojump_clock, listener: Listener, case):
    """With 200, or 400 for who speaks 2026-07-28; counted as the API counts a malformed request."""
    tool, arguments, reason = WRONG[case]
    got = await listener.call(tool, arguments)
    assert (got.status, code_of(got), got.body["id"]) == (200, -32602, 1)
    error = error_of(got)
    assert (error["message"], set(error["data"])) == (
        "Invalid params",
        {"reason", "action", "docs"},
    )
    assert reason in error["data"]["reason"]
    assert error["data"]["docs"] == DOCS
    rows = [(row.failed_check, row.units, row.billable) for row in await listener.shop.rows()]
    assert rows == ([("invalid_request", 1, False)] if tool == "verify_email" else [])
    assert ("ratelimit" in got.headers) == (tool == "verify_email")


@pytest.mark.parametrize(
    "params",
    [None, {}, [], ["verify_email"], {"name": None}, {"name": ""}, {"name": "verify_batch"},
     {"name": "health"}, {"name": "Verify_Email"}, {"name": 5}, {"name": "x" * 10_000},
     {"name": "verify_email", "_meta": 5}],
)  # fmt: skip
async def test_what_names_no_tool_is_invalid_params(autojump_clock, listener: Listener, params):
    got = await listener.rpc("tools/call", params)
    assert (got.status, code_of(got)) == (200, -32602)
    assert len(got.octets) < 1000
    assert await listener.shop.rows() == []


async def test_the_keys_are_looked_at_before_the_arguments(autojump_clock, listener: Listener):
    got = await listener.call("create_api_key", {"label": 5}, provisioning=None)
    assert (got.status, code_of(got)) == (401, -32001)


# -- what the operation refuses ------------------------------------------------------------------


def upstream(got: Got) -> Any:
    error = error_of(got)
    assert (error["code"], error["message"]) == (-32002, "Upstream request failed")
    data = error["data"]
    assert set(data) == {"status", "body", "action", "docs"}
    assert data["status"] == got.status
    assert (data["action"], data["docs"]) == (data["body"]["action"], data["body"]["docs"])
    return data["body"]


async def test_a_refusal_has_the_status_the_body_and_the_headers_of_the_api(autojump_clock):
    async with open_shop("free") as one, open_shop("free") as other:
        listener = listener_of(other)
        for _ in range(10):
            await one.verify()
            await listener.call("verify_email")
        there, here = await one.verify(), await listener.call("verify_email")
        assert (here.status, upstream(here)) == (429, there.body)
        for name in ("retry-after", "ratelimit", "ratelimit-policy"):
            assert here.headers[name] == there.headers[name]


async def test_a_hard_cap_is_402(autojump_clock, listener: Listener):
    await listener.shop.change(hard_cap_micros=0)
    await listener.shop.use_up(5_000, units=0)
    got = await listener.call("verify_email")
    assert (got.status, upstream(got)["error"]) == (402, "payment_required")
    assert upstream(got)["hard_cap_eur"] == 0.0


async def test_what_only_the_operation_can_tell_is_wrong_is_its_400(
    autojump_clock, listener: Listener
):
    """The arguments are of their types, so the params are valid, and the request is not."""
    got = await listener.call("verify_email", {"email": "a", "webhook": "http://a.test"})
    assert (got.status, upstream(got)["error"]) == (400, "invalid_request")


async def test_without_a_provider_the_portal_is_402(autojump_clock, listener: Listener):
    got = await listener.call("create_billing_portal")
    assert (got.status, upstream(got)["error"]) == (402, "no_billing_account")


@pytest.mark.parametrize("away", [True, {"reserve"}], ids=["all", "reserve"])
async def test_a_store_that_is_away_is_503(autojump_clock, listener: Listener, away):
    listener.shop.store.away = away
    got = await listener.call("verify_email", id_="a")
    assert (got.status, upstream(got)["error"]) == (503, "quota_check_failed")
    assert (got.headers["retry-after"], got.body["id"]) == ("1", "a")


async def test_a_bug_of_an_operation_is_its_500(autojump_clock, listener: Listener, caplog):
    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError("ours")

    listener.shop.store.store.ledger = broken
    got = await listener.call("get_account")
    assert (got.status, upstream(got)["error"]) == (500, "internal_error")
    assert "ZeroDivisionError" in caplog.text


async def test_a_bug_of_the_tool_server_is_an_internal_error(
    autojump_clock, listener: Listener, caplog
):
    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError("ours")

    listener.shop.store.store.caller = broken
    with caplog.at_level(logging.ERROR):
        got = await listener.rpc("ping")
    assert (got.status, code_of(got)) == (500, -32603)
    assert got.headers["x-request-id"] in error_of(got)["data"]["action"]
    assert "ZeroDivisionError" in caplog.text
    assert listener.shop.key not in caplog.text


# -- the same as by the API ---------------------------------------------------------------------

EMAILS: list[Any] = ["known@friendly.test", 5, "no@friendly.test", "bad", None, "a@mailinator.com"]


LIMITS = ("ratelimit", "ratelimit-policy", "retry-after")


async def told_and_kept(tier: Tier, *, by_the_tool: bool) -> tuple[Any, ...]:
    """What a new shop tells of the limits, request by request; the rows and the ledger it keeps."""
    async with open_shop(tier) as shop:
        listener, reported = listener_of(shop), []
        for email in EMAILS * 3:
            if by_the_tool:
                got = await listener.call("verify_email", {"email": email})
            else:
                got = await shop.verify(email)
            reported.append([got.headers.get(name) for name in LIMITS])
        return reported, await shop.rows(), await shop.store.ledger(await shop.caller())


@pytest.mark.parametrize("tier", ["free", "builder"])
async def test_limits_quota_and_rows_are_the_same_by_either_door(autojump_clock, tier):
    """To the microsecond, and in their order.

    The shops are open one after the other, each from the same instant on. Were they open
    at once and asked in turns, each would stand still while the other verifies: then the
    instants of the grants, and the order of rows of one instant, tell whose turn it was.
    """
    there = await told_and_kept(tier, by_the_tool=False)
    here = await told_and_kept(tier, by_the_tool=True)
    assert len(there[1]) == 3 * len(EMAILS)
    assert here == there


async def test_both_doors_share_one_limit(autojump_clock):
    async with open_shop("free") as shop:
        listener = listener_of(shop)
        for _ in range(5):
            assert (
                (await shop.verify()).status == (await listener.call("verify_email")).status == 200
            )
        assert (await shop.verify()).status == (await listener.call("verify_email")).status == 429


async def test_a_call_is_repeated_by_its_idempotency_key(autojump_clock, listener: Listener):
    headers = {"idempotency-key": "once"}
    first = structured(await listener.call("create_api_key", {"label": "x"}, headers=headers))
    again = await listener.call("create_api_key", {"label": "x"}, headers=headers)
    assert structured(again) == first
    assert again.headers["idempotency-replayed"] == "true"
    other = await listener.call("create_api_key", {"label": "y"}, headers=headers)
    assert (other.status, upstream(other)["error"]) == (422, "idempotency_key_reused")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize(
    ("email", "billable"), [("known@friendly.test", 1), ("a@mailinator.com", 1), ("bad", 0), (5, 0)]
)
async def test_a_repeated_verification_is_the_first_answer_and_billed_once(
    autojump_clock, kind, email, billable
):
    """Whatever it is: asked of a host, known, wrong, malformed."""
    idempotency = {"idempotency-key": "once"}
    async with open_shop(kind=kind) as shop:
        listener = listener_of(shop)
        first, *others = [
            await listener.call("verify_email", {"email": email}, headers=idempotency)
            for _ in range(3)
        ]
        for again in others:
            assert (again.status, again.octets) == (first.status, first.octets)
            assert again.headers["idempotency-replayed"] == "true"
        rows = await shop.rows()
        assert [(row.units, row.billable) for row in rows] == [(1, bool(billable))]
        ledger = await shop.store.ledger(await shop.caller())
        assert (ledger.month_units, ledger.month_billable) == (1, billable)
        assert sum(units for _, units in ledger.window) == 1
        other = await listener.call("verify_email", {"email": "other"}, headers=idempotency)
        assert (other.status, upstream(other)["error"]) == (422, "idempotency_key_reused")
        assert await shop.rows() == rows


async def test_a_repeat_by_the_other_door_is_the_same_request(autojump_clock, listener: Listener):
    """Where its octets are: one key, one answer, one unit."""
    headers = {"idempotency-key": "once"}
    octets = json.dumps({"email": "known@friendly.test"}).encode()
    there = await listener.shop.ask("POST", "/v1/email/verify", octets=octets, headers=headers)
    here = await listener.call("verify_email", json.loads(octets), headers=headers)
    assert structured(here) == there.body
    assert here.headers["idempotency-replayed"] == "true"
    assert len(await listener.shop.rows()) == 1


@pytest.mark.parametrize("away", [{"begin_idempotent"}, {"spend"}])
async def test_malformed_arguments_that_could_not_be_counted_are_told_so(
    autojump_clock, listener: Listener, away
):
    """They were told that they are malformed, uncounted; the API says 503, 409 or 422 too."""
    headers = {"idempotency-key": "once"}
    listener.shop.store.away = away
    got = await listener.call("verify_email", {"email": 5}, headers=headers)
    assert (got.status, upstream(got)["error"]) == (503, "quota_check_failed")
    listener.shop.store.away = False
    assert code_of(await listener.call("verify_email", {"email": 5}, headers=headers)) == -32602
    got = await listener.call("verify_email", {"email": 6}, headers=headers)
    assert (got.status, upstream(got)["error"]) == (422, "idempotency_key_reused")
    assert len(await listener.shop.rows()) == 1


async def test_the_log_tells_the_operation_and_no_key(autojump_clock, listener: Listener, caplog):
    with caplog.at_level(logging.INFO, "mailprobe"):
        await listener.call("get_account")
    (access,) = [record for record in caplog.records if record.name == "mailprobe.access"]
    assert access.status == 200
    assert access.account == listener.shop.account.id
    assert listener.shop.key not in caplog.text
    assert listener.shop.provisioning not in caplog.text


# -- MCP by a handshake ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "given"),
    [(version, version) for version in VERSIONS[1:]]
    + [("2026-07-28", "2025-11-25"), ("1999-01-01", "2025-11-25"), (None, "2025-11-25")],
)
async def test_initialize_settles_the_version(autojump_clock, listener: Listener, asked, given):
    params = {
        "protocolVersion": asked,
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    }
    result = result_of(await listener.rpc("initialize", params))
    assert result["protocolVersion"] == given
    assert "tools" in result["capabilities"]
    assert set(result["serverInfo"]) == {"name", "title", "version"}
    assert result["instructions"]


async def test_initialize_needs_no_params_and_no_version_before_it(
    autojump_clock, listener: Listener
):
    assert result_of(await listener.rpc("initialize"))["protocolVersion"] == "2025-11-25"
    headers = {"mcp-protocol-version": "1999-01-01"}
    assert (await listener.rpc("initialize", headers=headers)).status == 200
    assert code_of(await listener.rpc("initialize", {"protocolVersion": 5})) == -32602


async def test_a_ping_is_answered_with_nothing_at_all(autojump_clock, listener: Listener):
    """Some clients refuse any member in it."""
    assert result_of(await listener.rpc("ping")) == {}


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_after_the_handshake_every_message_names_the_version(
    autojump_clock, listener: Listener, version
):
    headers = {"mcp-protocol-version": version, "mcp-session-id": "none of ours"}
    assert len(result_of(await listener.rpc("tools/list", headers=headers))["tools"]) == 8
    meta = {"_meta": {"progressToken": 1}}
    assert len(result_of(await listener.rpc("tools/list", meta, headers=headers))["tools"]) == 8


@pytest.mark.parametrize(
    "version", ["1999-01-01", "2099-01-01", "", "x" * 1000, "2025-11-25, 2025-11-25"]
)
async def test_a_version_that_is_not_spoken_is_refused(autojump_clock, listener: Listener, version):
    got = await listener.rpc("tools/list", headers={"mcp-protocol-version": version})
    assert (got.status, code_of(got)) == (400, -32022)
    data = error_of(got)["data"]
    assert (data["supported"], data["requested"]) == (list(VERSIONS), version[:80])
    octets = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    got = await listener.post(octets, headers={"mcp-protocol-version": version})
    assert (got.status, got.body["id"]) == (400, None)


# -- MCP of 2026-07-28 ----------------------------------------------------------------------------


async def test_a_server_is_discovered(autojump_clock, listener: Listener):
    by_headers = result_of(await listener.call_2026("server/discover"))
    assert by_headers == result_of(await listener.rpc("server/discover"))
    assert by_headers["supportedVersions"] == list(VERSIONS)
    assert "tools" in by_headers["capabilities"]
    assert by_headers["_meta"][f"{META}serverInfo"]["name"] == "mailprobe"


async def test_results_say_what_they_are_and_lists_how_long_they_hold(
    autojump_clock, listener: Listener
):
    called = await listener.call_2026(
        "tools/call", {"name": "verify_email", "arguments": {"email": "a"}}
    )
    assert result_of(called)["resultType"] == "complete"
    for method in ("server/discover", "tools/list"):
        result = result_of(await listener.call_2026(method))
        assert (result["resultType"], result["cacheScope"]) == ("complete", "public")
        assert result["ttlMs"] > 0


@pytest.mark.parametrize(
    "method", ["ping", "resources/list", "subscriptions/listen", "logging/setLevel"]
)
async def test_what_2026_does_not_have_is_404(autojump_clock, listener: Listener, method):
    got = await listener.call_2026(method)
    assert (got.status, code_of(got)) == (404, -32601)


async def test_invalid_params_are_400_in_2026(autojump_clock, listener: Listener):
    for params in ({"name": "nope"}, {"name": "verify_email", "arguments": {}}):
        got = await listener.call_2026("tools/call", params)
        assert (got.status, code_of(got)) == (400, -32602)


CALL = {"name": "verify_email", "arguments": {"email": "known@friendly.test"}}
CONTRADICTIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "another method": (-32020, {"headers": {"mcp-method": "tools/list"}}),
    "another case": (-32020, {"headers": {"mcp-method": "Tools/Call"}}),
    "no method": (-32020, {"headers": {"mcp-method": None}}),
    "the method twice": (-32020, {"headers": {"mcp-method": "tools/call, tools/call"}}),
    "another name": (-32020, {"headers": {"mcp-name": "get_account"}}),
    "no name": (-32020, {"headers": {"mcp-name": None}}),
    "a name in bad code": (-32020, {"headers": {"mcp-name": "=?base64?dm?="}}),
    "a name in code of no text": (-32020, {"headers": {"mcp-name": "=?base64?/w==?="}}),
    "no version header": (-32020, {"headers": {"mcp-protocol-version": None}}),
    "an older version header": (-32020, {"headers": {"mcp-protocol-version": "2025-11-25"}}),
    "an older version in the body": (-32020, {"meta": {f"{META}protocolVersion": "2025-11-25"}}),
    "no version in the body": (-32602, {"meta": {f"{META}protocolVersion": None}}),
    "no capabilities": (-32602, {"meta": {f"{META}clientCapabilities": None}}),
    "a version of no kind": (-32602, {"meta": {f"{META}protocolVersion": 5}}),
    "capabilities of no kind": (-32602, {"meta": {f"{META}clientCapabilities": []}}),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
async def test_headers_and_body_must_tell_the_same(autojump_clock, listener: Listener, case):
    """What routes by the headers and what reads the body must see one request."""
    code, changes = CONTRADICTIONS[case]
    got = await listener.call_2026("tools/call", CALL, **changes)
    assert (got.status, code_of(got), got.body["id"]) == (400, code, 1)
    assert await listener.shop.rows() == []


async def test_a_name_may_be_coded(autojump_clock, listener: Listener):
    headers = {"mcp-name": "=?base64?dmVyaWZ5X2VtYWls?="}
    assert (await listener.call_2026("tools/call", CALL, headers=headers)).status == 200


async def test_a_notification_of_2026_is_taken(autojump_clock, listener: Listener):
    octets = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'
    got = await listener.post(octets, headers={"mcp-protocol-version": "2026-07-28"})
    assert (got.status, got.octets) == (202, b"")
