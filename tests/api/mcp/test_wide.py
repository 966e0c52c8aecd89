"""/mcp/all: the wider set of tools, whose failed calls are results that say why and what to do."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import jsonschema
import pytest
import trio
from msgspec import structs

from mailprobe.api.operations.list_jobs import PAGE_OCTETS_MAX, page_of
from mailprobe.api.operations.list_uploads import LIST_EMAILS_MAX
from mailprobe.api.operations.table import OPERATIONS
from tests.api.lists.test_lists import ended, open_list_shop
from tests.api.mcp.test_calls import Jobs
from tests.api.mcp.tool_server import NAMES, Listener, code_of, listener_of, result_of, structured
from tests.api.service_fixture import HttpAnswer, RunningService

WIDE = "/mcp/all"


def failure(got: HttpAnswer) -> str:
    """The text of a failed call."""
    result = result_of(got)
    (text,) = result["content"]
    assert (text["type"], result["isError"]) == ("text", True)
    assert "structuredContent" not in result
    return text["text"]  # type: ignore[no-any-return]


async def test_the_wider_set_has_the_eight_tools_and_more(autojump_clock, shop: RunningService):
    narrow, wide = listener_of(shop), listener_of(shop, WIDE)
    assert [each["name"] for each in result_of(await narrow.rpc("tools/list"))["tools"]] == NAMES
    listed = {each["name"]: each for each in result_of(await wide.rpc("tools/list"))["tools"]}
    assert set(listed) == {*NAMES, *(each.name for each in OPERATIONS if each.wide)}
    for name, tool in listed.items():
        jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
        jsonschema.Draft202012Validator.check_schema(tool["outputSchema"])
        for argument, known in tool["inputSchema"]["properties"].items():
            assert known["description"], (name, argument)
    begun = result_of(await wide.rpc("initialize", {"protocolVersion": "2025-06-18"}))
    assert "verify_batch" in begun["instructions"]


async def test_a_verification_says_why_on_request(autojump_clock, shop: RunningService):
    listener = listener_of(shop, WIDE)
    listed = {each["name"]: each for each in result_of(await listener.rpc("tools/list"))["tools"]}
    one = structured(
        await listener.call("verify_email", {"email": "ann@friendly.test", "evidence": True})
    )
    assert one["evidence"]["conversation"]
    jsonschema.validate(one, listed["verify_email"]["outputSchema"])
    advised = structured(
        await listener.call("verify_email", {"email": "ann@friendly.test", "advice": True})
    )
    assert (advised["light"], "evidence" in advised) == ("GREEN_LIGHT", False)
    jsonschema.validate(advised, listed["verify_email"]["outputSchema"])
    emails = ["no@friendly.test", "ann@friendly.test"]
    for evidence in (True, False):
        got = structured(
            await listener.call("verify_batch", {"emails": emails, "evidence": evidence})
        )
        assert [each["email"] for each in got["results"]] == emails
        assert ["evidence" in each for each in got["results"]] == [evidence, evidence]
        jsonschema.validate(got, listed["verify_batch"]["outputSchema"])


async def test_a_background_verification_is_fetched(autojump_clock, shop: RunningService):
    listener = listener_of(replace(shop, service=structs.replace(shop.service, jobs=Jobs())), WIDE)
    job = structured(
        await listener.call("verify_email", {"email": "ann@friendly.test", "async": True})
    )
    assert structured(await listener.call("get_job", {"id": job["job_id"]}))["status"] == "pending"


async def test_a_list_is_sent_read_in_pages_and_deleted(autojump_clock: trio.testing.MockClock):
    emails = [f"known{n}@friendly.test" for n in range(60)] + ["no@friendly.test", "nobody"]
    async with open_list_shop() as shop:
        listener = listener_of(shop, WIDE)
        made = structured(await listener.call("create_list", {"emails": emails, "name": "spring"}))
        assert (made["name"], made["rows"]) == ("spring", len(emails))
        list_id = {"id": made["list_id"]}
        assert structured(await listener.call("list_lists"))["lists"][0]["list_id"] == list_id["id"]
        await ended(shop, list_id["id"])
        assert structured(await listener.call("get_list", list_id))["status"] == "done"
        summary = structured(await listener.call("get_list_summary", list_id))
        assert summary["lights"] == {"GREEN_LIGHT": 60, "YELLOW_LIGHT": 0, "RED_LIGHT": 2}
        rows: list[Any] = []
        offset: int | None = 0
        while offset is not None:
            page = structured(
                await listener.call("get_list_results", {**list_id, "offset": offset})
            )
            rows += page["rows"]
            offset = page["next_offset"]
        assert [row["email"] for row in rows] == emails
        assert rows[60]["status"] == "undeliverable"
        red = await listener.call("get_list_results", {**list_id, "only": "red"})
        assert [row["email"] for row in structured(red)["rows"]] == emails[60:]
        assert structured(await listener.call("cancel_list", list_id))["status"] == "done"
        gone = structured(await listener.call("delete_list", list_id))
        assert gone == {"deleted": True, "id": list_id["id"]}
        assert "no list with this id" in failure(await listener.call("get_list", list_id))


FAILURES: dict[str, tuple[str, Any, str]] = {
    "an argument of a wrong type": ("verify_batch", {"emails": 5}, "The field emails is a number"),
    "an argument that is missing": ("get_list", {}, "field id"),
    "a wrong value": (
        "get_list_results",
        {"id": str(uuid4()), "only": "blue"},
        "list with this id",
    ),
    "too many addresses": ("create_list", {"emails": ["a"] * (LIST_EMAILS_MAX + 1)}, "emails"),
    "no background jobs": ("create_list", {"emails": ["a@friendly.test"]}, "no background jobs"),
    "another tool": ("verify", {}, "Name one of verify_email, verify_batch"),
    "no list": ("pause_list", {"id": "x"}, "GET https://api.test/v1/lists"),
    "no customer": ("create_billing_portal", {}, "no_billing_account"),
}


@pytest.mark.parametrize("case", FAILURES)
async def test_a_failed_call_is_a_result_that_says_why(autojump_clock, shop: RunningService, case):
    tool, arguments, words = FAILURES[case]
    assert words in failure(await listener_of(shop, WIDE).call(tool, arguments))


async def test_a_refusal_says_how_long_to_wait(autojump_clock, shop: RunningService):
    listener, fifty = listener_of(shop, WIDE), {"emails": ["ann@friendly.test"] * 50}
    for _ in range(2):
        structured(await listener.call("verify_batch", fifty))
    text = failure(await listener.call("verify_batch", fifty))
    assert "429 rate_limit_exceeded, reset_at 2026-" in text
    assert "Retry-After 60 seconds" in text


async def test_a_management_tool_says_that_it_needs_the_other_key(
    autojump_clock, shop: RunningService
):
    listener = listener_of(shop, WIDE)
    text = failure(await listener.call("get_usage_summary", provisioning=None))
    assert "The tool needs the header X-Service-Provisioning-Key" in text
    text = failure(await listener.call("get_usage_summary", provisioning=shop.key))
    assert "is a standard key" in text


async def test_without_a_key_nothing_is_called(autojump_clock, listener: Listener):
    wide = replace(listener, path=WIDE)
    got = await wide.rpc("tools/list", key="sk_live_unknown")
    assert (got.status, code_of(got)) == (401, -32001)
    assert code_of(await wide.post(b"{")) == -32700
    assert (await listener.inside.request("GET", WIDE)).status == 405


async def test_wrong_arguments_cost_what_they_cost_in_the_api(autojump_clock, shop: RunningService):
    listener = listener_of(shop, WIDE)
    for arguments, units in (({"email": 5}, 1), ({"email": "ann@friendly.test", "evidence": 5}, 0)):
        before = len(await shop.rows())
        failure(await listener.call("verify_email", arguments))
        assert len(await shop.rows()) - before == units


async def test_a_page_is_bounded_in_rows_and_octets():
    async def parts(row: bytes, count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield row[:2]
            yield row[2:] + b"\n"

    assert await page_of(parts(b'{"a":1}', 3), 1, 1) == b'{"rows":[{"a":1}],"next_offset":2}'
    assert await page_of(parts(b'{"a":1}', 3), 2, 1) == b'{"rows":[{"a":1}],"next_offset":null}'
    assert await page_of(parts(b'{"a":1}', 3), 9, 1) == b'{"rows":[],"next_offset":null}'
    large = b'"' + b"x" * PAGE_OCTETS_MAX + b'"'
    page = await page_of(parts(large, 2), 0, 9)
    assert page == b'{"rows":[' + large + b'],"next_offset":1}'
