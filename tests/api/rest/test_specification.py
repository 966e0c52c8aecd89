"""The specification, row by row: each test bears the name of the row that it ticks off.

Sections follow the specification's own: resources, states, endpoints, webhooks,
tools, authentication, errors, limits, billing, alerts, versioning. What lies beneath
a row of jobs, callbacks, alerts and tools has its own files.
"""

import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import trio

from mailprobe.api.cli.output.lights import light_of
from mailprobe.api.jobs import worker
from mailprobe.api.jobs.delivery import Delivered
from mailprobe.api.keys import mint
from mailprobe.api.quota.plans import PLANS
from mailprobe.engine import EngineSettings, Verdict
from mailprobe.engine.lists.lists import DATA, load_lists, read_names
from mailprobe.engine.testing.mail_host import MailHost
from mailprobe.engine.testing.zone import ZoneMode
from mailprobe.storage.records import UsageRow
from tests.api.alerts.test_thresholds import kinds
from tests.api.jobs.test_worker import HOOK, Receiver, open_working_shop, promise, state_of
from tests.api.mcp.test_app import (
    NAMES,
    Listener,
    error_of,
    listener_of,
    result_of,
    structured,
)
from tests.api.service_fixture import BATCH, STREAM, VERIFY, Shop, open_shop

Working = tuple[Shop, Receiver]  # a shop that works jobs off, and whom it calls back


@pytest.fixture
async def working() -> AsyncIterator[Working]:
    async with open_working_shop() as working:
        yield working


@pytest.fixture
async def listener(shop: Shop) -> Listener:
    return listener_of(shop)


# == Processing layers ========================================================================


async def test_layer_1_syntax_failure_gives_syntax(autojump_clock, shop: Shop):
    for email in ("plain", "a..b@friendly.test", "x" * 65 + "@friendly.test", "a@", "@b.test", ""):
        assert (await shop.verify(email)).body["failed_check"] == "syntax"


async def test_layer_2_disposable_failure_gives_disposable(autojump_clock, shop: Shop):
    got = (await shop.verify("ann@mailinator.com")).body
    assert (got["failed_check"], got["disposable"], got["status"]) == (
        "disposable",
        True,
        "invalid",
    )


async def test_layer_3_mx_lookup_failure_gives_no_mx(autojump_clock, shop: Shop):
    got = (await shop.verify("ann@nowhere.test")).body
    assert (got["failed_check"], got["mx_found"], got["mx_host"]) == ("no_mx", False, None)


async def test_layer_4_smtp_failure_gives_smtp(autojump_clock, shop: Shop):
    shop.world.add("refusing.test", MailHost(banner="554 go away"))
    assert (await shop.verify("no@friendly.test")).body["failed_check"] == "smtp"
    assert (await shop.verify("ann@refusing.test")).body["failed_check"] == "smtp"


async def test_layer_4_either_timeout_gives_smtp_timeout(autojump_clock, shop: Shop):
    shop.world.add("silent.test", MailHost(latency_s=1.5))
    shop.world.add("slow3.test", MailHost(latency_s=0.95, ehlo_lines=()))
    assert (await shop.verify("known@silent.test")).body["failed_check"] == "smtp_timeout"
    assert (await shop.verify("known@slow3.test")).body["failed_check"] == "smtp_timeout"


async def test_layer_5_signals_never_set_failed_check(autojump_clock, shop: Shop):
    got = (await shop.verify("info@friendly.test")).body
    assert (got["role"], got["failed_check"]) == (True, "smtp")
    shop.world.add("big.test", MailHost(mailboxes=frozenset({"info"})))
    got = (await shop.verify("info@big.test")).body
    assert (got["role"], got["failed_check"], got["status"]) == (True, None, "deliverable")


async def test_the_first_failing_layer_ends_processing(autojump_clock, shop: Shop):
    asked = sum(shop.world.transport.exchanged.values())
    await shop.verify("a..b@friendly.test")
    await shop.verify("ann@mailinator.com")
    assert sum(shop.world.transport.exchanged.values()) == asked


async def test_smtp_blocked_providers_are_unknown_at_0_75(autojump_clock, shop: Shop):
    domain = "yahoo.com"
    shop.world.add(domain, MailHost())
    got = (await shop.verify(f"ann@{domain}")).body
    assert (got["status"], got["valid"], got["confidence"]) == ("unknown", False, 0.75)
    assert (got["smtp_blocked"], got["failed_check"], got["mx_found"]) == (True, None, True)
    assert not shop.world.dialled


# == VerifyEmailResult ========================================================================


async def result(shop: Shop, email: str):
    return (await shop.verify(email)).body


async def test_result_has_exactly_its_fields_in_order(autojump_clock, shop: Shop):
    assert list(await result(shop, "known@friendly.test")) == [
        "email", "valid", "status", "confidence", "failed_check", "disposable", "role",
        "free_provider", "catch_all", "smtp_blocked", "mx_found", "mx_host", "suggestion",
        "latency_ms",
    ]  # fmt: skip


async def test_result_email_is_the_address_that_was_verified(autojump_clock, shop: Shop):
    assert (await result(shop, "Known@Friendly.test"))["email"] == "Known@Friendly.test"


async def test_result_valid_is_deliverable_or_catch_all(autojump_clock, shop: Shop):
    emails = ["known@friendly.test", "a@catchall.test", "no@friendly.test", "bad", "a@none.test"]
    assert [(await result(shop, email))["valid"] for email in emails] == [
        True, True, False, False, False,
    ]  # fmt: skip


async def test_result_status_deliverable_and_confidence_0_97(autojump_clock, shop: Shop):
    got = await result(shop, "known@friendly.test")
    assert (got["status"], got["confidence"], got["failed_check"]) == ("deliverable", 0.97, None)


async def test_result_status_undeliverable_and_confidence_0_02(autojump_clock, shop: Shop):
    got = await result(shop, "no@friendly.test")
    assert (got["status"], got["confidence"], got["failed_check"]) == (
        "undeliverable",
        0.02,
        "smtp",
    )


async def test_result_status_unknown_and_confidence_0_50(autojump_clock, shop: Shop):
    shop.world.add("grey.test", MailHost(greylist_s=300))
    got = await result(shop, "ann@grey.test")
    assert (got["status"], got["confidence"], got["failed_check"]) == ("unknown", 0.5, None)
    assert (got["mx_found"], got["smtp_blocked"]) == (True, False)


async def test_result_status_catch_all_and_confidence_0_65(autojump_clock, shop: Shop):
    got = await result(shop, "ann@catchall.test")
    assert (got["status"], got["confidence"], got["failed_check"]) == ("catch_all", 0.65, None)
    assert (got["catch_all"], got["valid"]) == (True, True)


async def test_result_status_invalid_and_confidence_0(autojump_clock, shop: Shop):
    for email in ("bad", "ann@mailinator.com", "ann@nowhere.test"):
        got = await result(shop, email)
        assert (got["status"], got["confidence"]) == ("invalid", 0)


async def test_result_free_provider(autojump_clock, shop: Shop):
    shop.world.add("gmx.net", MailHost())
    assert (await result(shop, "known@gmx.net"))["free_provider"] is True
    assert (await result(shop, "known@friendly.test"))["free_provider"] is False


async def test_result_mx_host_is_the_primary_exchange(autojump_clock, shop: Shop):
    shop.world.add("two.test", MailHost(), mx="second.two.test", preference=20)
    shop.world.add("two.test", MailHost(), mx="First.two.test", preference=10)
    assert (await result(shop, "known@two.test"))["mx_host"] == "first.two.test"


async def test_result_suggestion_is_the_corrected_domain(autojump_clock, shop: Shop):
    assert (await result(shop, "ann@gmial.com"))["suggestion"] == "gmail.com"
    assert (await result(shop, "known@friendly.test"))["suggestion"] is None


async def test_result_latency_ms_is_end_to_end(autojump_clock, shop: Shop):
    assert (await result(shop, "known@slow.test"))["latency_ms"] == 1200


async def test_result_of_a_syntax_failure_says_nothing_else(autojump_clock, shop: Shop):
    assert await result(shop, "admin@@gmial.com") == {
        "email": "admin@@gmial.com", "valid": False, "status": "invalid", "confidence": 0,
        "failed_check": "syntax", "disposable": False, "role": False, "free_provider": False,
        "catch_all": False, "smtp_blocked": False, "mx_found": False, "mx_host": None,
        "suggestion": None, "latency_ms": 0,
    }  # fmt: skip


async def test_a_failing_resolver_is_unknown_and_never_no_mx(autojump_clock, shop: Shop):
    shop.world.zone.mode("broken.test", ZoneMode.SERVFAIL)
    got = await result(shop, "ann@broken.test")
    assert (got["status"], got["failed_check"], got["mx_found"]) == ("unknown", None, False)


# == BatchVerifyResponse ======================================================================


async def test_batch_results_count_and_latency(autojump_clock, shop: Shop):
    got = (await shop.batch("bad", "known@friendly.test")).body
    assert list(got) == ["results", "count", "latency_ms"]
    assert [result["email"] for result in got["results"]] == ["bad", "known@friendly.test"]
    assert got["count"] == 2
    assert isinstance(got["latency_ms"], int)


# == AsyncVerifyResponse ======================================================================


async def test_async_job_id_is_a_string_and_status_always_pending(autojump_clock, working: Working):
    shop, _ = working
    for email in ("known@friendly.test", "no@friendly.test", "bad"):
        got = (await promise(shop, email)).body
        assert got == {"job_id": got["job_id"], "status": "pending"}
        assert UUID(got["job_id"])


# == Webhook callback payload =================================================================


async def test_callback_has_the_fields_of_a_result_and_job_id(autojump_clock, working: Working):
    shop, receiver = working
    for email in ("known@friendly.test", "ann@mailinator.com", "bad"):
        job_id = (await promise(shop, email)).body["job_id"]
        await trio.sleep(5)
        expected = {**await result(shop, email), "job_id": job_id}
        got = receiver.bodies()[-1]
        assert list(got) == list(expected)
        assert {**got, "latency_ms": 0} == {**expected, "latency_ms": 0}


# == Health ===================================================================================


async def test_health_is_ok_and_ts(autojump_clock, shop: Shop):
    got = await shop.ask("GET", "/health", key=None)
    assert (got.status, got.body) == (200, {"ok": True, "ts": 1_773_480_413_000})
    shop.store.away = True
    await trio.sleep(1)  # the store is looked at once a second
    assert (await shop.ask("GET", "/health", key=None)).body["ok"] is False


# == States ===================================================================================


async def test_state_standard_key_created_then_active(autojump_clock, shop: Shop):
    made = await shop.manage("POST", "/keys")
    assert made.status == 201
    assert (await shop.verify(key=made.body["key"])).status == 200


async def test_state_standard_key_revoked_is_not_listed_and_fails(autojump_clock, shop: Shop):
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


async def test_verify_200_is_a_result(autojump_clock, shop: Shop):
    got = await shop.verify()
    assert (got.status, got.headers["content-type"]) == (200, "application/json")


async def test_verify_202_with_a_webhook(autojump_clock, working: Working):
    shop, _ = working
    got = await promise(shop)
    assert (got.status, got.headers["content-type"]) == (202, "application/json")
    assert (await promise(shop, body={"webhook": None})).status == 200


async def test_batch_rate_limit_cost_is_the_number_of_emails(autojump_clock, shop: Shop):
    assert (await shop.batch(*["x"] * 50)).status == 200
    assert (await shop.batch(*["x"] * 50)).status == 200
    assert (await shop.verify()).status == 429


async def test_batch_429_comes_before_any_address_is_processed(autojump_clock, free_shop: Shop):
    got = await free_shop.batch(*["known@friendly.test"] * 11)
    assert (got.status, got.error) == (429, "rate_limit_exceeded")
    assert not free_shop.world.dialled
    assert not free_shop.world.transport.exchanged


async def test_stream_is_ndjson_in_completion_order_without_wrapper(autojump_clock, shop: Shop):
    got = await shop.stream("known@slow.test", "bad", "known@friendly.test")
    assert (got.status, got.headers["content-type"]) == (200, "application/x-ndjson")
    assert [line["email"] for line in got.lines] == [
        "bad",
        "known@friendly.test",
        "known@slow.test",
    ]
    assert got.octets.count(b"\n") == 3
    assert got.octets.endswith(b"}\n")


async def test_stream_429_writes_no_lines(autojump_clock, free_shop: Shop):
    got = await free_shop.stream(*["known@friendly.test"] * 11)
    assert (got.status, got.headers["content-type"]) == (429, "application/json")
    assert got.error == "rate_limit_exceeded"
    assert not free_shop.world.dialled


async def test_management_account(autojump_clock, shop: Shop):
    got = await shop.manage("GET", "/account")
    assert (got.status, got.body["account_id"]) == (200, shop.account.id)


async def test_management_keys_list(autojump_clock, shop: Shop):
    got = (await shop.manage("GET", "/keys")).body
    assert set(got) == {"keys", "count", "max"}
    assert UUID(got["keys"][0]["id"])


async def test_management_keys_create_is_201_with_prefix_sk_live(autojump_clock, shop: Shop):
    got = await shop.manage("POST", "/keys", {"label": "a"})
    assert (got.status, got.body["key"][:8], got.body["label"]) == (201, "sk_live_", "a")


async def test_management_keys_create_is_429_at_the_limit(autojump_clock, free_shop: Shop):
    await free_shop.manage("POST", "/keys")
    assert (await free_shop.manage("POST", "/keys")).status == 429


async def test_management_keys_delete_is_204_then_404(autojump_clock, shop: Shop):
    made = (await shop.manage("POST", "/keys")).body
    assert (await shop.manage("DELETE", f"/keys/{made['id']}")).status == 204
    assert (await shop.manage("DELETE", f"/keys/{made['id']}")).status == 404


async def test_management_usage_is_30_days(autojump_clock, shop: Shop):
    assert len((await shop.manage("GET", "/usage")).body["days"]) == 30


async def test_management_usage_summary_fields(autojump_clock, shop: Shop):
    assert list((await shop.manage("GET", "/usage/summary")).body) == [
        "period", "calls_used", "calls_included", "calls_remaining", "overage_calls",
        "estimated_cost_eur", "tier",
    ]  # fmt: skip


async def test_management_billing_portal_is_402_without_account(autojump_clock, shop: Shop):
    assert (await shop.manage("POST", "/billing/portal")).status == 402


async def test_openapi_json(autojump_clock, shop: Shop):
    assert (await shop.ask("GET", "/openapi.json", key=None)).body["info"]["version"] == "1.0.0"


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
    assert (await shop.ask("POST", path, body)).status == 200
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
    got = await listener.inside.ask("GET", "/openapi.json", key=None)
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


async def test_auth_1_every_endpoint_but_health_wants_a_key(autojump_clock, shop: Shop):
    for method, path in (("POST", VERIFY), ("POST", BATCH), ("POST", STREAM)):
        assert (await shop.ask(method, path, {}, key=None)).error == "missing_api_key"
    assert (await shop.manage("GET", "/account", key=None)).error == "missing_api_key"


async def test_auth_2_standard_keys_live_and_test_alike(autojump_clock, shop: Shop):
    for prefix in ("sk_live_", "sk_test_"):
        assert (await shop.verify(key=await shop.new_key(prefix))).status == 200


async def test_auth_3_a_key_of_the_wrong_type(autojump_clock, shop: Shop):
    assert (await shop.manage("GET", "/account", key=shop.key)).status == 403
    got = await shop.verify(key=shop.provisioning)
    assert (got.status, got.error) == (401, "invalid_api_key")


async def test_auth_5_missing_and_invalid_keys(autojump_clock, shop: Shop):
    assert (await shop.verify(key=None)).error == "missing_api_key"
    assert (await shop.verify(key=mint("sk_live_"))).error == "invalid_api_key"


# == Errors ===================================================================================


@pytest.mark.parametrize(
    ("path", "bodies", "anchor"),
    [
        (VERIFY, [None, "x", {}], "request"),
        (BATCH, [None, {}, {"emails": []}, {"emails": ["a"] * 51}, {"emails": [5]}], "batch"),
        (STREAM, [None, {}, {"emails": []}, {"emails": ["a"] * 51}, {"emails": "a"}], "streaming"),
    ],
)
async def test_error_400_invalid_request(autojump_clock, shop: Shop, path, bodies, anchor):
    for body in bodies:
        got = await shop.ask("POST", path, body)
        assert (got.status, got.error) == (400, "invalid_request")
        assert got.body["docs"].endswith(f"#{anchor}")
        assert set(got.body) == {"error", "message", "action", "docs"}


async def test_error_402_payment_required(autojump_clock, shop: Shop):
    """2,500 calls of overage are 10.00 EUR; a batch is weighed with all its emails."""
    await shop.change(hard_cap_micros=10_000_000)
    await shop.use_up(7_480)
    assert (await shop.batch(*["known@friendly.test"] * 20)).status == 200
    got = await shop.batch("known@friendly.test")
    assert (got.status, got.error) == (402, "payment_required")
    assert (got.body["hard_cap_eur"], got.body["current_overage_eur"]) == (10.0, 10.0)
    assert set(got.body) == {
        "error", "message", "action", "docs", "hard_cap_eur", "current_overage_eur",
    }  # fmt: skip


async def test_error_404_not_found_lists_the_routes(autojump_clock, shop: Shop):
    got = await shop.ask("GET", "/v1/nothing", key=None)
    assert (got.status, got.error) == (404, "not_found")
    for route in (VERIFY, BATCH, STREAM, "/openapi.json"):
        assert f"https://api.test{route}" in got.body["action"]


async def test_error_413_payload_too_large(autojump_clock, shop: Shop):
    for path in (VERIFY, BATCH, STREAM):
        got = await shop.ask("POST", path, {}, headers={"content-length": str(2 * 1024 * 1024 + 1)})
        assert (got.status, got.error) == (413, "payload_too_large")


async def test_error_429_rate_limit_exceeded(autojump_clock, free_shop: Shop):
    await free_shop.batch(*["x"] * 10)
    await trio.sleep(12.5)
    got = await free_shop.verify()
    assert (got.status, got.error) == (429, "rate_limit_exceeded")
    assert set(got.body) == {"error", "message", "action", "docs", "limit", "window", "reset_at"}
    assert (got.body["limit"], got.body["window"]) == (10, "1m")
    assert got.body["reset_at"] == "2026-03-14T09:27:53Z"
    assert got.headers["retry-after"] == "48"


async def test_error_429_monthly_quota_exceeded(autojump_clock, free_shop: Shop):
    await free_shop.use_up(499)
    got = await free_shop.batch("x", "y")
    assert (got.status, got.error) == (429, "monthly_quota_exceeded")
    assert set(got.body) == {"error", "message", "action", "docs", "limit", "used", "reset_at"}
    assert (got.body["limit"], got.body["used"]) == (500, 499)
    assert got.body["reset_at"] == "2026-04-01T00:00:00Z"
    reset_in = datetime(2026, 4, 1, tzinfo=UTC) - free_shop.clock()
    assert int(got.headers["retry-after"]) == reset_in.total_seconds()


async def test_error_503_quota_check_failed(autojump_clock, shop: Shop):
    shop.store.away = {"reserve"}
    got = await shop.verify()
    assert (got.status, got.error) == (503, "quota_check_failed")


async def test_a_failing_layer_is_no_http_error(autojump_clock, shop: Shop):
    for email in ("bad", "ann@mailinator.com", "ann@nowhere.test", "no@friendly.test"):
        assert (await shop.verify(email)).status == 200


# == Limits ===================================================================================


@pytest.mark.parametrize(("tier", "limit"), [("free", 10), ("builder", 100), ("scale", 1_000)])
async def test_limit_per_minute_sliding_window_per_key(autojump_clock, tier, limit):
    async with open_shop(tier) as shop:
        size = min(50, limit)
        for _ in range(limit // size):
            assert (await shop.batch(*["x"] * size)).status == 200
            await trio.sleep(1)
        assert (await shop.verify("x")).error == "rate_limit_exceeded"
        other = await shop.new_key("sk_live_")
        assert (await shop.verify("x", key=other)).status == 200
        await trio.sleep(60 - limit // size)
        assert (await shop.batch(*["x"] * size)).status == 200
        if limit > size:
            assert (await shop.verify("x")).status == 429


@pytest.mark.parametrize("path", [BATCH, STREAM])
async def test_limit_1_to_50_emails(autojump_clock, shop: Shop, path):
    for count, status in ((0, 400), (1, 200), (50, 200), (51, 400)):
        assert (await shop.ask("POST", path, {"emails": ["x"] * count})).status == status


async def test_limit_payload_2_mb(autojump_clock, shop: Shop):
    for length, status in ((2_097_152, 400), (2_097_153, 413)):
        headers = {"content-length": str(length)}
        got = await shop.ask("POST", VERIFY, octets=b"{}", headers=headers)
        assert got.status == status


async def test_limit_webhook_url_2048_characters(autojump_clock, working: Working):
    shop, _ = working
    for characters, status in ((2_048, 202), (2_049, 400)):
        assert (await promise(shop, hook=HOOK.ljust(characters, "x"))).status == status


async def test_limit_free_500_units_a_month(autojump_clock, free_shop: Shop):
    for _ in range(50):
        assert (await free_shop.batch(*["x"] * 10)).status == 200
        await trio.sleep(60)
    got = await free_shop.verify("x")
    assert (got.error, got.body["limit"], got.body["used"]) == ("monthly_quota_exceeded", 500, 500)


@pytest.mark.parametrize(("tier", "included"), [("builder", 5_000), ("scale", 100_000)])
async def test_limit_included_volume(autojump_clock, tier, included):
    async with open_shop(tier) as shop:
        await shop.change(hard_cap_micros=0)
        await shop.use_up(included - 1)
        assert (await shop.verify()).status == 200
        assert (await shop.verify()).error == "payment_required"
        assert (await shop.manage("GET", "/usage/summary")).body["calls_included"] == included


@pytest.mark.parametrize(("tier", "days"), [("free", 7), ("builder", 90), ("scale", 90)])
async def test_limit_usage_log_retention(autojump_clock, tier, days):
    """Rows go, counts stay."""
    async with open_shop(tier) as shop:
        await shop.verify()
        assert PLANS[tier].retention_days == days
        retention = {plan.tier: plan.retention_days for plan in PLANS.values()}
        shop.clock.set(shop.clock() + timedelta(days=days - 1))  # today is one of them
        await shop.store.apply_retention(retention)
        assert len(await shop.rows()) == 1
        shop.clock.set(shop.clock() + timedelta(days=1))
        await shop.store.apply_retention(retention)
        assert await shop.rows() == []
        if days < 30:
            calls = (await shop.manage("GET", "/usage")).body["days"]
            assert sum(day["calls"] for day in calls) == 1


def test_limit_smtp_timeouts_3000_ms_and_1000_ms():
    assert (EngineSettings().probe_s, EngineSettings().read_s) == (3.0, 1.0)


async def test_limit_smtp_timeouts_in_an_answer(autojump_clock, shop: Shop):
    shop.world.add("mute.test", MailHost(latency_s=5))
    shop.world.add("slow3.test", MailHost(latency_s=0.95, ehlo_lines=()))
    assert (await shop.verify("known@mute.test")).body["latency_ms"] == pytest.approx(1000, abs=50)
    assert (await shop.verify("known@slow3.test")).body["latency_ms"] == pytest.approx(3000, abs=50)


async def test_limit_mx_cache_6_hours(autojump_clock, shop: Shop):
    assert EngineSettings().cache_s == 6 * 3600
    await shop.verify("ann@nowhere.test")
    asked = sum(shop.world.transport.exchanged.values())
    await trio.sleep(6 * 3600 - 10)
    await shop.verify("bob@nowhere.test")
    assert sum(shop.world.transport.exchanged.values()) == asked
    await trio.sleep(20)
    await shop.verify("cid@nowhere.test")
    assert sum(shop.world.transport.exchanged.values()) > asked


def test_limit_disposable_blocklist_of_more_than_50_000():
    names = read_names(DATA / "disposable.txt")
    assert len(names) > 50_000
    assert all(load_lists().is_disposable(name) for name in sorted(names)[:100])


@pytest.mark.parametrize("tier", ["free", "builder", "scale"])
async def test_limit_keys_per_account_are_told_twice(autojump_clock, tier):
    async with open_shop(tier) as shop:
        account = (await shop.manage("GET", "/account")).body
        listed = (await shop.manage("GET", "/keys")).body
        assert account["limits"]["max_keys"] == listed["max"] == PLANS[tier].max_keys


# == Free-tier quota rules ====================================================================


async def test_quota_rule_1_the_window_is_the_utc_month(autojump_clock, free_shop: Shop):
    free_shop.clock.set(datetime(2026, 3, 31, 23, 59, 59, tzinfo=UTC))
    await free_shop.use_up(500)
    assert (await free_shop.verify()).error == "monthly_quota_exceeded"
    await trio.sleep(1)
    assert (await free_shop.verify()).status == 200


async def test_quota_rule_2_429s_do_not_count(autojump_clock, free_shop: Shop):
    await free_shop.batch(*["x"] * 10)
    for _ in range(5):
        assert (await free_shop.verify()).status == 429
    assert (await free_shop.manage("GET", "/account")).body["usage_this_month"] == 10


async def test_quota_rule_3_a_single_verify_is_one_unit_also_as_a_400(autojump_clock, free_shop):
    await free_shop.verify("x")
    await free_shop.verify(None)
    await free_shop.ask("POST", VERIFY, octets=b"no json")
    assert (await free_shop.manage("GET", "/account")).body["usage_this_month"] == 2


async def test_quota_rule_4_a_batch_is_one_unit_an_email_if_it_validates(autojump_clock, free_shop):
    await free_shop.batch("x", "y", "x")
    await free_shop.stream("x", "y")
    await free_shop.batch("x", 5)
    assert (await free_shop.manage("GET", "/account")).body["usage_this_month"] == 5


async def test_quota_rule_5_a_syntax_failure_logs_a_row_and_counts(autojump_clock, free_shop: Shop):
    await free_shop.verify("bad")
    (row,) = await free_shop.rows()
    assert (row.failed_check, row.units, row.billable) == ("syntax", 1, False)


async def test_quota_rule_6_units_that_would_exceed_the_cap_are_refused_whole(
    autojump_clock, free_shop: Shop
):
    await free_shop.use_up(495)
    assert (await free_shop.batch(*["x"] * 6)).error == "monthly_quota_exceeded"
    assert (await free_shop.batch(*["x"] * 5)).status == 200


# == Paid-tier billing rules ==================================================================


async def billable(shop: Shop) -> int:
    return (await shop.manage("GET", "/usage")).body["days"][-1]["calls"]


async def test_billing_rule_1_a_result_after_layer_1_is_billable(autojump_clock, shop: Shop):
    for emails, calls in (
        (["ann@mailinator.com"], 1), (["ann@nowhere.test"], 2), (["no@friendly.test"], 3),
        (["known@friendly.test"], 4),
    ):  # fmt: skip
        await shop.verify(emails[0])
        assert await billable(shop) == calls


async def test_billing_rule_2_syntax_and_400_are_not_billable(autojump_clock, shop: Shop):
    await shop.verify("bad")
    await shop.verify(5)
    await shop.batch()
    assert await billable(shop) == 0


async def test_billing_rule_3_batch_and_stream_bill_per_email(autojump_clock, shop: Shop):
    await shop.batch("known@friendly.test", "no@friendly.test", "bad")
    await shop.stream("known@friendly.test", "known@friendly.test", "bad")
    assert await billable(shop) == 4


async def test_async_mode_bills_when_the_verification_completes(
    autojump_clock, monkeypatch: pytest.MonkeyPatch, working: Working
):
    shop, receiver = working
    monkeypatch.setattr(worker, "POLL_S", 60.0)  # else four days are 140,000 looks at the store
    receiver.answer = lambda host: Delivered(500, None, None, 5)
    await promise(shop, "known@slow.test")
    await promise(shop, "bad")
    await trio.sleep(1)
    assert await billable(shop) == 0
    await trio.sleep(1)
    assert await billable(shop) == 1
    await trio.sleep(4 * 86_400)
    usage = (await shop.manage("GET", "/usage")).body["days"]
    assert sum(day["calls"] for day in usage) == 1  # whatever became of the callback


async def test_billing_rule_5_overage_is_rounded_up_to_whole_cents(autojump_clock, shop: Shop):
    for extra, eur in ((5_001, 0.01), (1, 0.01), (1, 0.02)):
        await shop.use_up(extra)
        got = (await shop.manage("GET", "/usage/summary")).body
        assert got["estimated_cost_eur"] == eur


@pytest.mark.parametrize(("tier", "counts"), [("free", []), ("builder", [2]), ("scale", [2])])
async def test_the_free_tier_is_never_metered(autojump_clock, tier, counts):
    async with open_shop(tier) as shop:
        caller = await shop.caller()
        reservation = await shop.store.reserve(caller, 3, lambda ledger: None, lease_s=10)
        rows = [
            UsageRow(shop.clock(), "batch", "deliverable", None, 1, True, 1),
            UsageRow(shop.clock(), "batch", "deliverable", None, 1, True, 1),
            UsageRow(shop.clock(), "batch", "invalid", "syntax", 1, False, 1),
        ]
        await shop.store.settle(reservation, rows, metered=True)
        assert [message.count for message in await shop.store.messages("meter", limit=10)] == counts


@pytest.mark.parametrize(("tier", "counts"), [("free", []), ("builder", [1])])
async def test_async_is_metered_when_it_completes(autojump_clock, tier, counts):
    async with open_working_shop(tier, metered=True) as (shop, _):
        await promise(shop, "known@slow.test")
        await trio.sleep(1)
        assert await shop.store.messages("meter", limit=10) == []
        await trio.sleep(4)
        assert [message.count for message in await shop.store.messages("meter", limit=10)] == counts


async def test_overage_is_counted_by_the_subscriptions_period(autojump_clock, shop: Shop):
    await shop.use_up(5_000)
    start = shop.clock() + timedelta(days=1)
    await shop.change(
        hard_cap_micros=0, current_period_start=start, current_period_end=start + timedelta(days=31)
    )
    shop.clock.set(start + timedelta(hours=1))
    assert (await shop.verify()).status == 200


# == Spend caps ===============================================================================


async def test_the_soft_cap_never_blocks(autojump_clock, shop: Shop):
    await shop.change(soft_cap_micros=0)
    await shop.use_up(6_000)
    assert (await shop.verify()).status == 200


async def test_a_cap_is_effective_from_the_next_request(autojump_clock, shop: Shop):
    await shop.use_up(6_000)
    assert (await shop.verify()).status == 200
    await shop.change(hard_cap_micros=1_000_000)
    assert (await shop.verify()).status == 402
    await shop.change(hard_cap_micros=None)
    assert (await shop.verify()).status == 200


async def test_management_goes_on_under_a_hard_cap(autojump_clock, shop: Shop):
    await shop.use_up(6_000)
    await shop.change(hard_cap_micros=0)
    assert (await shop.manage("GET", "/account")).status == 200


async def test_a_tier_is_effective_from_the_next_request(autojump_clock, free_shop: Shop):
    assert (await free_shop.batch(*["x"] * 11)).status == 429
    await free_shop.change(tier="builder")
    assert (await free_shop.batch(*["x"] * 11)).status == 200


async def test_the_plans_file_changes_the_limits(autojump_clock):
    plans = {**PLANS, "free": replace(PLANS["free"], rate_limit_per_min=3, monthly_calls=4)}
    async with open_shop("free", plans=plans) as shop:
        assert (await shop.batch("x", "y", "z")).status == 200
        assert (await shop.verify()).error == "rate_limit_exceeded"
        await trio.sleep(60)
        assert (await shop.batch("x", "y")).error == "monthly_quota_exceeded"


# == Alerts ===================================================================================

EUR = 1_000_000  # the builder tier: 5,000 calls, then 0.004 EUR each
SOFT, HARD = (10 * EUR, None), (None, 10 * EUR)

# threshold -> what is used just before it, and at it
FREE_ALERTS: dict[str, Any] = {
    "75": ({"month_units": 374}, {"month_units": 375}),
    "90": ({"month_units": 449}, {"month_units": 450}),
    "100": ({"month_units": 499}, {"month_units": 500}),
}
PAID_ALERTS: dict[str, Any] = {
    "75": ({"period_billable": 3_749}, {"period_billable": 3_750}),
    "90": ({"period_billable": 4_499}, {"period_billable": 4_500}),
    "100": ({"period_billable": 4_999}, {"period_billable": 5_000}),
    "soft_cap": (
        {"period_billable": 7_499, "caps": SOFT},
        {"period_billable": 7_500, "caps": SOFT},
    ),
    "hard_cap": (
        {"period_billable": 7_500, "caps": HARD},
        {"period_billable": 7_500, "caps": HARD, "capped": True},
    ),
}


@pytest.mark.parametrize("threshold", FREE_ALERTS)
def test_alert_of_the_free_months_quota(threshold):
    before, at = FREE_ALERTS[threshold]
    assert threshold not in kinds(PLANS["free"], **before)
    assert kinds(PLANS["free"], **at)[-1] == threshold


@pytest.mark.parametrize("threshold", PAID_ALERTS)
def test_alert_of_a_paid_periods_volume_and_caps(threshold):
    before, at = PAID_ALERTS[threshold]
    assert threshold not in kinds(PLANS["builder"], **before)
    assert kinds(PLANS["builder"], **at)[-1] == threshold


@pytest.mark.parametrize("caps", [SOFT, HARD], ids=["soft_cap", "hard_cap"])
def test_the_free_tier_has_no_alerts_of_caps(caps):
    used = {"month_units": 500, "period_billable": 9_999}
    assert kinds(PLANS["free"], **used, caps=caps, capped=True) == ["75", "90", "100"]


# == Client interpretation, Versioning ========================================================


async def test_the_clients_lights_follow_the_results(autojump_clock, shop: Shop):
    lights = {
        "ann@gmial.com": "YELLOW_LIGHT", "ann@mailinator.com": "RED_LIGHT", "bad": "RED_LIGHT",
        "no@friendly.test": "RED_LIGHT", "a@catchall.test": "YELLOW_LIGHT",
        "known@friendly.test": "GREEN_LIGHT",
    }  # fmt: skip
    for email, expected in lights.items():
        assert light_of(Verdict(**await result(shop, email))) == expected


async def test_every_route_but_health_and_the_description_is_under_v1(autojump_clock, shop: Shop):
    paths = (await shop.ask("GET", "/openapi.json")).body["paths"]
    outside = [path for path in paths if not path.startswith("/v1/")]
    assert outside == ["/health", "/openapi.json"]
