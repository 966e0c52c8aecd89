"""The tool server: JSON-RPC messages, keys, and the versions of the protocol."""

import json
from typing import Any

import pytest

from mailprobe.api.mcp.jsonrpc import VERSIONS
from mailprobe.api.mcp.tools import PROVISIONING_HEADER
from tests.api.mcp.tool_server import (
    MANAGEMENT,
    META,
    Listener,
    code_of,
    error_of,
    result_of,
    structured,
)

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
async def test_an_invalid_message_is_400_and_counts_nothing(
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
    """In JSON-RPC `null` is an id too, and requires an answer."""
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
    """A verification without a visible result would only cost money."""
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
    wrong: dict[str, list[str | None]] = {
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
async def test_methods_that_2026_does_not_have_are_404(autojump_clock, listener: Listener, method):
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
    """A proxy that routes by headers and the server that reads the body must see one request."""
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
