"""The specification: states, endpoints, webhooks, tools, authentication and errors.

Each test is named after the row of the specification that it checks.
"""

import hashlib
import hmac
from datetime import UTC, datetime
from uuid import UUID

import pytest
import trio

from mailprobe.api.jobs.delivery import Delivered
from tests.api.jobs.test_worker import HOOK, promise, state_of
from tests.api.mcp.tool_server import (
    NAMES,
    Listener,
    error_of,
    result_of,
    structured,
)
from tests.api.rest.specification import Working, result
from tests.api.service_fixture import BATCH, STREAM, VERIFY, RunningService

# == States ===================================================================================


async def test_state_standard_key_created_then_active(autojump_clock, shop: RunningService):
    made = await shop.manage("POST", "/keys")
    assert made.status == 201
    assert (await shop.verify(key=made.body["key"])).status == 200


async def test_state_standard_key_revoked_is_not_listed_and_fails(
    autojump_clock, shop: RunningService
):
    made = (await shop.manage("POST", "/keys")).body
    assert (await shop.manage("DELETE", f"/keys/{made['id']}")).status == 204
    listed = (await shop.manage("GET", "/keys")).body["keys"]
    assert made["id"] not in [key["id"] for key in listed]
    assert (await shop.verify(key=made["key"])).error == "invalid_api_key"


async def test_state_job_is_pending_at_once_and_runs_in_the_background(
    autojump_clock, working: Working
):
    shop, receiver = working
    assert await shop.store.jobs(limit=1) == []
    began = trio.current_time()
    got = await promise(shop, "known@slow.test")
    assert (got.status, trio.current_time()) == (202, began)
    assert await state_of(shop, got.body["job_id"]) == "pending"
    assert (await shop.rows(), receiver.calls) == ([], [])


async def test_state_job_ends_with_its_bill_and_its_callback(autojump_clock, working: Working):
    shop, receiver = working
    job_id = (await promise(shop, "known@slow.test")).body["job_id"]
    await trio.sleep(5)
    (row,) = await shop.rows()
    assert (row.operation, row.status, row.billable) == ("verify", "deliverable", True)
    (body,) = receiver.bodies()
    assert (body["job_id"], body["status"]) == (job_id, "deliverable")
    assert await state_of(shop, job_id) == "done"


# == Endpoints ================================================================================


async def test_verify_200_is_a_result(autojump_clock, shop: RunningService):
    got = await shop.verify()
    assert (got.status, got.headers["content-type"]) == (200, "application/json")


async def test_verify_202_with_a_webhook(autojump_clock, working: Working):
    shop, _ = working
    got = await promise(shop)
    assert (got.status, got.headers["content-type"]) == (202, "application/json")
    assert (await promise(shop, body={"webhook": None})).status == 200


async def test_batch_rate_limit_cost_is_the_number_of_emails(autojump_clock, shop: RunningService):
    assert (await shop.batch(*["x"] * 50)).status == 200
    assert (await shop.batch(*["x"] * 50)).status == 200
    assert (await shop.verify()).status == 429


async def test_batch_429_comes_before_any_address_is_processed(
    autojump_clock, free_shop: RunningService
):
    got = await free_shop.batch(*["known@friendly.test"] * 11)
    assert (got.status, got.error) == (429, "rate_limit_exceeded")
    assert not free_shop.world.dialled
    assert not free_shop.world.transport.exchanged


async def test_stream_is_ndjson_in_completion_order_without_wrapper(
    autojump_clock, shop: RunningService
):
    got = await shop.stream("known@slow.test", "bad", "known@friendly.test")
    assert (got.status, got.headers["content-type"]) == (200, "application/x-ndjson")
    assert [line["email"] for line in got.lines] == [
        "bad",
        "known@friendly.test",
        "known@slow.test",
    ]
    assert got.octets.count(b"\n") == 3
    assert got.octets.endswith(b"}\n")


async def test_stream_429_writes_no_lines(autojump_clock, free_shop: RunningService):
    got = await free_shop.stream(*["known@friendly.test"] * 11)
    assert (got.status, got.headers["content-type"]) == (429, "application/json")
    assert got.error == "rate_limit_exceeded"
    assert not free_shop.world.dialled


async def test_management_account(autojump_clock, shop: RunningService):
    got = await shop.manage("GET", "/account")
    assert (got.status, got.body["account_id"]) == (200, shop.account.id)


async def test_management_keys_list(autojump_clock, shop: RunningService):
    got = (await shop.manage("GET", "/keys")).body
    assert set(got) == {"keys", "count", "max"}
    assert UUID(got["keys"][0]["id"])


async def test_management_keys_create_is_201_with_prefix_sk_live(
    autojump_clock, shop: RunningService
):
    got = await shop.manage("POST", "/keys", {"label": "a"})
    assert (got.status, got.body["key"][:8], got.body["label"]) == (201, "sk_live_", "a")


async def test_management_keys_delete_is_204_then_404(autojump_clock, shop: RunningService):
    made = (await shop.manage("POST", "/keys")).body
    assert (await shop.manage("DELETE", f"/keys/{made['id']}")).status == 204
    assert (await shop.manage("DELETE", f"/keys/{made['id']}")).status == 404


async def test_management_usage_is_30_days(autojump_clock, shop: RunningService):
    assert len((await shop.manage("GET", "/usage")).body["days"]) == 30


async def test_management_usage_summary_fields(autojump_clock, shop: RunningService):
    assert list((await shop.manage("GET", "/usage/summary")).body) == [
        "period", "calls_used", "calls_included", "calls_remaining", "overage_calls",
        "estimated_cost_eur", "tier",
    ]  # fmt: skip


async def test_openapi_json(autojump_clock, shop: RunningService):
    assert (await shop.request("GET", "/openapi.json", key=None)).body["info"]["version"] == "1.0.0"


# == Webhooks =================================================================================

NO_WEBHOOKS = {
    "http": "http://hooks.shop.test/", "no scheme": "hooks.shop.test/mail", "empty": "",
    "IPv4": "https://192.0.2.7/", "IPv4 with a port": "https://192.0.2.7:8443/mail",
    "IPv4 as a number": "https://2130706433/", "IPv6": "https://[2001:db8::1]/",
    "IPv6 loopback": "https://[::1]:8443/", "username": "https://ann@hooks.shop.test/",
    "username and password": "https://ann:secret@hooks.shop.test/",
    "password": "https://:secret@hooks.shop.test/", "localhost": "https://localhost/",
    "localhost with a port": "https://LOCALHOST:8443/mail", "*.local": "https://printer.local/",
    "*.*.local": "https://a.printer.LOCAL/mail",
}  # fmt: skip


@pytest.mark.parametrize("case", NO_WEBHOOKS)
async def test_webhook_rules_else_400_invalid_request(autojump_clock, working: Working, case):
    shop, receiver = working
    got = await promise(shop, hook=NO_WEBHOOKS[case])
    assert (got.status, got.error) == (400, "invalid_request")
    assert "webhook" in got.body["message"]
    assert got.body["docs"].endswith("#request")
    await trio.sleep(5)
    assert (await shop.store.jobs(limit=1), receiver.calls) == ([], [])


async def test_webhook_secret_signs_the_raw_body(autojump_clock, working: Working):
    shop, receiver = working
    await promise(shop, body={"webhook_secret": "a secret, ä"})
    await trio.sleep(5)
    ((_, _, headers, body),) = receiver.calls
    signature = hmac.new("a secret, ä".encode(), body, hashlib.sha256).hexdigest()
    assert headers["X-Service-Signature"] == f"sha256={signature}"


async def test_without_a_webhook_secret_no_signature_is_sent(autojump_clock, working: Working):
    shop, receiver = working
    await promise(shop)
    await trio.sleep(5)
    ((_, _, headers, _),) = receiver.calls
    assert not [name for name in headers if "signature" in name.lower()]


async def test_webhook_retries_are_automatic(autojump_clock, working: Working):
    shop, receiver = working
    answers = [Delivered(500, None, None, 5), Delivered(None, "silence", None, 5)]
    receiver.answer = lambda host: answers.pop(0) if answers else Delivered(200, None, None, 5)
    job_id = (await promise(shop)).body["job_id"]
    await trio.sleep(3600)
    assert [body["job_id"] for body in receiver.bodies()] == [job_id] * 3
    assert await state_of(shop, job_id) == "done"


async def test_webhook_redirects_are_failures_and_not_followed(autojump_clock, working: Working):
    shop, receiver = working
    receiver.answer = lambda host: Delivered(302, None, None, 5)
    job_id = (await promise(shop)).body["job_id"]
    await trio.sleep(20)
    assert await state_of(shop, job_id) == "delivering"
    assert [host for _, host, *_ in receiver.calls] == ["hooks.shop.test"] * 2


@pytest.mark.parametrize("path", [BATCH, STREAM])
async def test_batch_and_stream_emit_no_webhook_events(autojump_clock, working: Working, path):
    shop, receiver = working
    body = {"emails": ["known@friendly.test"], "webhook": HOOK, "webhook_secret": "a secret"}
    assert (await shop.request("POST", path, body)).status == 200
    await trio.sleep(5)
    assert (await shop.store.jobs(limit=1), receiver.calls) == ([], [])


# == Tool server ==============================================================================


async def test_tools_list_has_the_eight_tools_in_order(autojump_clock, listener: Listener):
    listed = result_of(await listener.rpc("tools/list"))["tools"]
    assert [tool["name"] for tool in listed] == [
        "verify_email", "create_api_key", "list_api_keys", "revoke_api_key",
        "get_usage_summary", "get_account", "get_usage", "create_billing_portal",
    ]  # fmt: skip


async def test_tools_call_gives_what_the_api_gives(autojump_clock, listener: Listener):
    got = structured(await listener.call("verify_email", {"email": "no@friendly.test"}))
    assert got == {
        **await result(listener.shop, "no@friendly.test"),
        "latency_ms": got["latency_ms"],
    }


async def test_tools_without_authorization_are_401_32001(autojump_clock, listener: Listener):
    got = await listener.rpc("tools/list", key=None)
    error = error_of(got)
    assert (got.status, error["code"], error["message"]) == (401, -32001, "Unauthorized")
    assert list(error["data"]) == ["reason", "action", "docs"]


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [("verify_batch", {}, "verify_batch"), ("verify_email", {}, "email")],
    ids=["an unsupported tool", "a missing email"],
)
async def test_tools_invalid_params_32602(
    autojump_clock, listener: Listener, tool, arguments, named
):
    error = error_of(await listener.call(tool, arguments))
    assert (error["code"], error["message"]) == (-32602, "Invalid params")
    assert list(error["data"]) == ["reason", "action", "docs"]
    assert named in error["data"]["reason"]


async def test_tools_upstream_failure_32002_mirrors_the_status(autojump_clock, listener: Listener):
    await listener.shop.change(hard_cap_micros=0)
    await listener.shop.use_up(5_000)
    api = await listener.shop.verify()
    got = await listener.call("verify_email")
    error = error_of(got)
    assert (got.status, error["code"]) == (402, -32002)
    assert error["message"] == "Upstream request failed"
    assert list(error["data"]) == ["status", "body", "action", "docs"]
    assert (error["data"]["status"], error["data"]["body"]) == (402, api.body)


async def test_tools_openapi_json_is_the_tool_definitions(autojump_clock, listener: Listener):
    got = await listener.inside.request("GET", "/openapi.json", key=None)
    assert got.body == {"tools": result_of(await listener.rpc("tools/list"))["tools"]}


async def test_management_tools_need_the_provisioning_key_header(
    autojump_clock, listener: Listener
):
    key = {"X-Service-Provisioning-Key": listener.shop.provisioning}
    assert (await listener.call("get_account", provisioning=None, headers=key)).status == 200
    assert (await listener.call("verify_email", provisioning=None)).status == 200
    for tool in NAMES[1:]:
        got = await listener.call(tool, provisioning=None)
        assert (got.status, error_of(got)["code"]) == (401, -32001)
        assert "X-Service-Provisioning-Key" in error_of(got)["data"]["action"]


# == Authentication ===========================================================================


async def test_auth_2_standard_keys_live_and_test_alike(autojump_clock, shop: RunningService):
    for prefix in ("sk_live_", "sk_test_"):
        assert (await shop.verify(key=await shop.new_key(prefix))).status == 200


# == Errors ===================================================================================


@pytest.mark.parametrize(
    ("path", "bodies", "anchor"),
    [
        (VERIFY, [None, "x", {}], "request"),
        (BATCH, [None, {}, {"emails": []}, {"emails": ["a"] * 51}, {"emails": [5]}], "batch"),
        (STREAM, [None, {}, {"emails": []}, {"emails": ["a"] * 51}, {"emails": "a"}], "streaming"),
    ],
)
async def test_error_400_invalid_request(
    autojump_clock, shop: RunningService, path, bodies, anchor
):
    for body in bodies:
        got = await shop.request("POST", path, body)
        assert (got.status, got.error) == (400, "invalid_request")
        assert got.body["docs"].endswith(f"#{anchor}")
        assert set(got.body) == {"error", "message", "action", "docs"}


async def test_error_402_payment_required(autojump_clock, shop: RunningService):
    """2,500 calls of overage are 10.00 EUR; a batch is checked with all its emails."""
    await shop.change(hard_cap_micros=10_000_000)
    await shop.use_up(7_480)
    assert (await shop.batch(*["known@friendly.test"] * 20)).status == 200
    got = await shop.batch("known@friendly.test")
    assert (got.status, got.error) == (402, "payment_required")
    assert (got.body["hard_cap_eur"], got.body["current_overage_eur"]) == (10.0, 10.0)
    assert set(got.body) == {
        "error", "message", "action", "docs", "hard_cap_eur", "current_overage_eur",
    }  # fmt: skip


async def test_error_404_not_found_lists_the_routes(autojump_clock, shop: RunningService):
    got = await shop.request("GET", "/v1/nothing", key=None)
    assert (got.status, got.error) == (404, "not_found")
    for route in (VERIFY, BATCH, STREAM, "/openapi.json"):
        assert f"https://api.test{route}" in got.body["action"]


async def test_error_429_rate_limit_exceeded(autojump_clock, free_shop: RunningService):
    await free_shop.batch(*["x"] * 10)
    await trio.sleep(12.5)
    got = await free_shop.verify()
    assert (got.status, got.error) == (429, "rate_limit_exceeded")
    assert set(got.body) == {"error", "message", "action", "docs", "limit", "window", "reset_at"}
    assert (got.body["limit"], got.body["window"]) == (10, "1m")
    assert got.body["reset_at"] == "2026-03-14T09:27:53Z"
    assert got.headers["retry-after"] == "48"


async def test_error_429_monthly_quota_exceeded(autojump_clock, free_shop: RunningService):
    await free_shop.use_up(499)
    got = await free_shop.batch("x", "y")
    assert (got.status, got.error) == (429, "monthly_quota_exceeded")
    assert set(got.body) == {"error", "message", "action", "docs", "limit", "used", "reset_at"}
    assert (got.body["limit"], got.body["used"]) == (500, 499)
    assert got.body["reset_at"] == "2026-04-01T00:00:00Z"
    reset_in = datetime(2026, 4, 1, tzinfo=UTC) - free_shop.clock()
    assert int(got.headers["retry-after"]) == reset_in.total_seconds()


async def test_a_failing_layer_is_no_http_error(autojump_clock, shop: RunningService):
    for email in ("bad", "ann@mailinator.com", "ann@nowhere.test", "no@friendly.test"):
        assert (await shop.verify(email)).status == 200
