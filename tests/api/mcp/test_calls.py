"""Tool calls: each is an operation of the API, with its limits, refusals and billing."""

import json
import logging
from dataclasses import dataclass, replace
from typing import Any

import jsonschema
import pytest
import trio
from msgspec import structs

from mailprobe.api.mcp.tools import PROVISIONING_HEADER
from mailprobe.api.operations.verify import AsyncVerifyResponse
from mailprobe.engine.verdict import FIELDS
from mailprobe.storage.records import Tier
from tests.api.mcp.tool_server import (
    DOCS,
    Listener,
    code_of,
    error_of,
    listener_of,
    result_of,
    structured,
    upstream,
)
from tests.api.service_fixture import RunningService, open_shop

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
async def test_reading_tools_return_what_the_api_returns(
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
    """A job service that accepts jobs and never runs them."""

    def wake(self) -> None:
        """Do nothing: no job runs."""

    def stop(self) -> None:
        """Do nothing: no job runs."""


async def test_with_a_webhook_a_job_is_promised(autojump_clock, shop: RunningService):
    listener = listener_of(replace(shop, service=structs.replace(shop.service, jobs=Jobs())))
    arguments = {"email": "known@friendly.test", "webhook": "https://a.test/hook"}
    got = await listener.call("verify_email", {**arguments, "webhook_secret": "8 letters"})
    job = structured(got)
    assert (got.status, job["status"]) == (200, "pending")
    listed = result_of(await listener.rpc("tools/list"))["tools"]
    jsonschema.validate(job, listed[0]["outputSchema"])
    assert set(job) == {*AsyncVerifyResponse.__struct_fields__}


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
    """Answered with 200, and counted as the API counts a malformed request."""
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
async def test_a_call_without_a_known_tool_is_invalid_params(
    autojump_clock, listener: Listener, params
):
    got = await listener.rpc("tools/call", params)
    assert (got.status, code_of(got)) == (200, -32602)
    assert len(got.octets) < 1000
    assert await listener.shop.rows() == []


async def test_the_keys_are_looked_at_before_the_arguments(autojump_clock, listener: Listener):
    got = await listener.call("create_api_key", {"label": 5}, provisioning=None)
    assert (got.status, code_of(got)) == (401, -32001)


# -- what the operation refuses ------------------------------------------------------------------


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


async def test_an_invalid_request_with_valid_params_is_the_operations_400(
    autojump_clock, listener: Listener
):
    """The arguments have the right types: the params are valid, but the request is not."""
    got = await listener.call("verify_email", {"email": "a", "webhook": "http://a.test"})
    assert (got.status, upstream(got)["error"]) == (400, "invalid_request")


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


async def limits_and_records(tier: Tier, *, by_the_tool: bool) -> tuple[Any, ...]:
    """Return the limit headers of each request to a new shop, then its rows and its ledger."""
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
    """Equal to the microsecond, and in the same order.

    The shops run one after the other, each from the same instant. If they ran at once
    and took requests in turns, each would wait while the other verifies, and their
    grant times and row order would differ.
    """
    there = await limits_and_records(tier, by_the_tool=False)
    here = await limits_and_records(tier, by_the_tool=True)
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
    """For addresses that are probed, known at once, wrong or malformed."""
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
    """Requests with the same octets share one key, one answer and one unit."""
    headers = {"idempotency-key": "once"}
    octets = json.dumps({"email": "known@friendly.test"}).encode()
    there = await listener.shop.request("POST", "/v1/email/verify", octets=octets, headers=headers)
    here = await listener.call("verify_email", json.loads(octets), headers=headers)
    assert structured(here) == there.body
    assert here.headers["idempotency-replayed"] == "true"
    assert len(await listener.shop.rows()) == 1


@pytest.mark.parametrize("away", [{"begin_idempotent"}, {"spend"}])
async def test_malformed_arguments_are_an_upstream_error_if_they_cannot_be_counted(
    autojump_clock, listener: Listener, away
):
    """They once got "malformed" without being counted; the API answers 503, 409 or 422 too."""
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
