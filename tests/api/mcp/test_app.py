"""The tool server over HTTP: its tool definitions, methods, origins and bodies."""

import json

import jsonschema
import pytest
import trio

from mailprobe.api.error_table import BEFORE_ROUTING, row_of
from mailprobe.api.mcp.app import origin_of
from mailprobe.api.mcp.jsonrpc import error_body
from mailprobe.api.mcp.tools import PROVISIONING_HEADER
from mailprobe.api.operations.billing import BillingPortalRequest
from mailprobe.api.operations.description import examples_of
from mailprobe.api.operations.keys import CreateKeyRequest
from mailprobe.api.operations.table import OPERATIONS
from mailprobe.api.operations.verify import VerifyRequest
from mailprobe.engine.verdict import FIELDS
from tests.api.mcp.tool_server import (
    DOCS,
    NAMES,
    READING,
    TOOLS_URL,
    Listener,
    code_of,
    listener_of,
    result_of,
)
from tests.api.service_fixture import PLACES, open_shop

# -- definitions ------------------------------------------------------------------------------


async def test_the_eight_tools_are_listed_in_their_order(autojump_clock, listener: Listener):
    listed = result_of(await listener.rpc("tools/list"))["tools"]
    assert [tool["name"] for tool in listed] == NAMES
    assert [each.name for each in OPERATIONS if each.tool] == NAMES


async def test_the_definitions_are_for_everybody(autojump_clock, listener: Listener):
    listed = result_of(await listener.rpc("tools/list"))["tools"]
    got = await listener.inside.request("GET", "/openapi.json", key=None)
    assert (got.status, got.headers["content-type"]) == (200, "application/json")
    assert got.body == {"tools": listed}
    head = await listener.inside.request("HEAD", "/openapi.json", key=None)
    assert (head.status, head.octets) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]


async def test_the_inputs_are_the_specifications(autojump_clock, tools):
    inputs = {name: tool["inputSchema"] for name, tool in tools.items()}
    verify = inputs["verify_email"]
    assert set(verify["properties"]) == {"email", "webhook", "webhook_secret"}
    assert verify["required"] == ["email"]
    assert verify["properties"]["webhook"]["format"] == "uri"
    assert verify["properties"]["webhook_secret"]["minLength"] == 8
    assert set(inputs["create_api_key"]["properties"]) == {"label", "test"}
    assert inputs["create_api_key"]["properties"].pop("test")["type"] == "boolean"
    assert inputs["revoke_api_key"]["required"] == ["id"]
    assert set(inputs["create_billing_portal"]["properties"]) == {"return_url"}
    for name in READING:
        assert inputs[name] == {"type": "object", "properties": {}}
    for schema in inputs.values():
        for argument in schema["properties"].values():
            assert argument["type"] == "string"
            assert argument["description"]


async def test_every_schema_is_whole_and_of_an_object(autojump_clock, tools):
    """Hosts of models do not follow references, and expect the type at the root."""
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
    example = {k: v for k, v in examples_of(OPERATIONS)[kind].items() if v is not None}
    jsonschema.validate(example, tools[tool]["inputSchema"])


async def test_the_outputs_are_those_of_the_operations(autojump_clock, tools):
    for operation in OPERATIONS:
        for kind in (operation.gives, operation.promises):
            if operation.tool and kind is not None:
                jsonschema.validate(
                    examples_of(OPERATIONS)[kind], tools[operation.name]["outputSchema"]
                )


async def test_a_verification_ends_in_a_result_or_in_a_job(autojump_clock, tools):
    schema = tools["verify_email"]["outputSchema"]
    result, job = (set(kind["properties"]) for kind in schema["anyOf"])
    assert result == set(FIELDS)
    assert job == {"job_id", "status"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({}, schema)


async def test_the_hints_are_true(autojump_clock, tools):
    hints = {name: tool["annotations"] for name, tool in tools.items()}

    def hinted(hint: str) -> set[str]:
        return {name for name in NAMES if hints[name][hint]}

    assert hinted("readOnlyHint") == READING
    assert hinted("destructiveHint") == {"revoke_api_key"}
    assert hinted("idempotentHint") == {*READING, "revoke_api_key"}
    assert hinted("openWorldHint") == {"verify_email", "create_billing_portal"}
    for tool in tools.values():
        assert tool["title"] == tool["annotations"]["title"]
        assert (PROVISIONING_HEADER in tool["description"]) == (tool["name"] != "verify_email")


# -- HTTP -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"])
async def test_other_methods_of_mcp_are_405_without_a_body(
    autojump_clock, listener: Listener, method
):
    """405 tells clients that there is neither a stream nor a session."""
    got = await listener.inside.request(method, "/mcp", key=None)
    assert (got.status, got.headers["allow"], got.octets) == (405, "POST", b"")
    assert got.headers["content-length"] == "0"
    assert "content-type" not in got.headers


async def test_other_methods_of_the_definitions_are_405(autojump_clock, listener: Listener):
    got = await listener.inside.request("POST", "/openapi.json", {})
    assert (got.status, got.error, got.headers["allow"]) == (405, "method_not_allowed", "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/mcp/", "//mcp", "/MCP", "/sse", "/v1/email/verify"])
async def test_another_path_is_404_in_the_words_of_the_api(
    autojump_clock, listener: Listener, path
):
    for method in ("GET", "POST"):
        got = await listener.inside.request(method, path, key=None)
        assert (got.status, got.error) == (404, "not_found")
        assert set(got.body) == {"error", "message", "action", "docs"}
        assert f"{TOOLS_URL}/mcp" in got.body["action"]
        assert got.body["docs"] == DOCS


async def test_every_answer_has_a_request_id_of_its_own(autojump_clock, listener: Listener):
    answers = [
        await listener.rpc("ping"), await listener.rpc("ping", key=None), await listener.call("get_account"),
        await listener.inside.request("GET", "/mcp"), await listener.inside.request("GET", "/nope"),
        await listener.inside.request("GET", "/openapi.json"),
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
    got = await listener.inside.request("POST", "/mcp", pieces=never, headers=headers)
    assert (got.status, code_of(got), got.body["id"]) == (413, -32600, None)
    assert got.headers["connection"] == "close"
    got = await listener.inside.request("POST", "/mcp", pieces=never, headers=headers, key=None)
    assert (got.status, code_of(got), got.body["id"]) == (401, -32001, None)
    assert trio.current_time() < 1


@pytest.mark.parametrize(("octets_over", "status"), [(0, 200), (1, 413)])
async def test_a_body_without_a_length_is_read_up_to_2_mb(octets_over, status):
    """In real time, because a body of this size is parsed in a thread."""
    async with open_shop() as shop:
        body = b'{"jsonrpc":"2.0","id":1,"method":"ping","x":"'
        body += b"x" * (2 * 1024 * 1024 - len(body) - 2 + octets_over) + b'"}'
        pieces = [(0.0, body[at : at + 65_536]) for at in range(0, len(body), 65_536)]
        got = await listener_of(shop).inside.request("POST", "/mcp", pieces=pieces)
        assert got.status == status


async def test_a_slow_body_is_408_ten_seconds_after_its_head(autojump_clock, listener: Listener):
    got = await listener.inside.request("POST", "/mcp", pieces=[(1.0, b" ")] * 60)
    assert (got.status, code_of(got)) == (408, -32600)
    assert got.headers["connection"] == "close"
    assert trio.current_time() == pytest.approx(10, abs=0.01)


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_bug(
    autojump_clock, listener: Listener, caplog
):
    pieces = [(0.0, b"{"), (5.0, b"}")]
    got = await listener.inside.request("POST", "/mcp", pieces=pieces, hang_up_at=1.0)
    assert got.status == 0
    assert not caplog.records


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "text/event-stream", "x"])
async def test_the_answer_is_json_for_every_accept_header(
    autojump_clock, listener: Listener, accept
):
    assert result_of(await listener.rpc("ping", headers={"accept": accept})) == {}


async def test_a_body_that_says_it_is_no_json_is_refused(autojump_clock, listener: Listener):
    got = await listener.rpc("ping", headers={"content-type": "application/x-www-form-urlencoded"})
    assert (got.status, code_of(got), got.body["id"]) == (400, -32600, 1)
    assert result_of(await listener.rpc("ping", headers={"content-type": None})) == {}


@pytest.mark.parametrize("code", BEFORE_ROUTING)
def test_the_http_servers_refusals_are_json_rpc_errors(code):
    body = json.loads(error_body(code, PLACES))
    ours = row_of(BEFORE_ROUTING[code]).status >= 500
    assert (body["jsonrpc"], body["id"]) == ("2.0", None)
    assert body["error"]["code"] == (-32603 if ours else -32600)
    assert set(body["error"]["data"]) == {"reason", "action", "docs"}
