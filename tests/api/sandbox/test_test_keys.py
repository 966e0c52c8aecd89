"""Test keys through every door: no packet, no unit, no trace in the account's usage."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.api.sandbox.addresses import ANSWERS, REFUSALS
from mailprobe.api.serve import create_app
from mailprobe.engine.verdict import LADDER
from tests.api.mcp.tool_server import listener_of, upstream
from tests.api.service_fixture import HttpAnswer, RunningService, open_shop

Send = Callable[..., Awaitable[HttpAnswer]]
STATUS = {
    "rate_limited": (429, "rate_limit_exceeded"),
    "quota": (429, "monthly_quota_exceeded"),
    "payment_required": (402, "payment_required"),
    "unavailable": (503, "quota_check_failed"),
    "overloaded": (503, "overloaded"),
}


@pytest.fixture
async def test_key(shop: RunningService) -> str:
    return await shop.new_key("sk_test_")


def address(name: str) -> str:
    return f"{name}@sandbox.test"


async def assert_untouched(shop: RunningService) -> None:
    """Nothing was asked of the network, and the account has used and reserved nothing."""
    now = await shop.store.ledger(await shop.caller())
    assert (now.reserved, now.month_units, now.month_billable, now.window_units) == (0, 0, 0, 0)
    assert await shop.rows() == []
    assert shop.service.capacity.addresses == 0
    assert not shop.world.dialled
    assert not shop.world.transport.exchanged


async def test_single_batch_and_stream_answer_by_the_table(
    autojump_clock, shop: RunningService, test_key
):
    wanted = {address(name): LADDER[row.outcome].status for name, row in ANSWERS.items()}
    single = {text: (await shop.verify(text, key=test_key)).body["status"] for text in wanted}
    batch = await shop.batch(*wanted, key=test_key)
    stream = await shop.stream(*wanted, key=test_key)
    assert single == wanted
    assert [result["email"] for result in batch.body["results"]] == list(wanted)
    assert {result["email"]: result["status"] for result in batch.body["results"]} == wanted
    assert {result["email"]: result["status"] for result in stream.lines} == wanted
    await assert_untouched(shop)


async def test_any_address_is_answered_without_a_packet(
    autojump_clock, shop: RunningService, test_key
):
    got = await shop.batch("known@friendly.test", "x@nowhere.test", "@", key=test_key)
    statuses = [result["status"] for result in got.body["results"]]
    assert statuses == ["deliverable", "deliverable", "invalid"]
    await assert_untouched(shop)


@pytest.mark.parametrize("name", REFUSALS)
async def test_an_address_asks_for_a_refusal(autojump_clock, shop: RunningService, test_key, name):
    sends: list[Send] = [shop.verify, shop.batch, shop.stream]
    for send in sends:
        got = await send(address(f"{name}+7"), key=test_key)
        assert (got.status, got.error) == STATUS[name]
        assert got.headers["ratelimit"]
        assert got.body["docs"]
        if got.status == 429:
            assert int(got.headers["retry-after"]) > 0
    await assert_untouched(shop)


async def test_tools_take_test_keys(autojump_clock, shop: RunningService, test_key):
    tools = listener_of(shop)
    got = await tools.call("verify_email", {"email": address("full")}, key=test_key)
    assert got.body["result"]["structuredContent"]["status"] == "unknown"
    refused = await tools.call("verify_email", {"email": address("quota")}, key=test_key)
    assert upstream(refused)["error"] == "monthly_quota_exceeded"
    await assert_untouched(shop)


async def test_the_minute_of_a_test_key_is_its_own(autojump_clock, free_shop: RunningService):
    key = await free_shop.new_key("sk_test_")
    texts = [address("full")] * 10
    spent = await free_shop.batch(*texts, key=key)
    assert spent.headers["ratelimit-policy"] == '"minute";q=10;w=60'
    assert spent.headers["ratelimit"].startswith('"minute";r=0;')
    refused = await free_shop.verify(address("full"), key=key)
    assert (refused.status, refused.error) == (429, "rate_limit_exceeded")
    live = await free_shop.verify("known@friendly.test")
    assert live.status == 200
    assert live.headers["ratelimit"].startswith('"minute";r=9;')
    await trio.sleep(60)
    assert (await free_shop.batch(*texts, key=key)).status == 200


async def test_a_month_that_is_used_up_stops_no_test(autojump_clock, free_shop: RunningService):
    await free_shop.use_up(500)
    key = await free_shop.new_key("sk_test_")
    assert (await free_shop.verify(key=key)).status == 200
    assert (await free_shop.verify()).error == "monthly_quota_exceeded"


async def test_a_hard_cap_stops_no_test(autojump_clock, shop: RunningService, test_key):
    await shop.use_up(5_000)
    await shop.change(hard_cap_micros=0)
    assert (await shop.verify(key=test_key)).status == 200
    assert (await shop.verify()).status == 402


async def test_slow_addresses_take_no_capacity_of_others(autojump_clock):
    async with open_shop("scale", addresses_max=1) as shop, trio.open_nursery() as nursery:
        key = await shop.new_key("sk_test_")
        for _ in range(5):
            nursery.start_soon(lambda: shop.verify(address("slow-3000"), key=key))
        await trio.sleep(1)
        assert (await shop.verify("known@friendly.test")).status == 200


async def test_a_slow_address_is_slow_and_streams_in_order_of_completion(
    autojump_clock, shop: RunningService, test_key
):
    got = await shop.stream(address("slow-2000"), address("full"), key=test_key)
    assert [line["email"] for line in got.lines] == [address("full"), address("slow-2000")]
    first, second = (at for at, _ in got.chunks)
    assert second - first == pytest.approx(2)


@pytest.mark.parametrize("steps", range(0, 30, 3))
async def test_a_client_that_hangs_up_leaves_nothing(autojump_clock, shop: RunningService, steps):
    key = await shop.new_key("sk_test_")
    await shop.stream(address("slow-2000"), address("full"), key=key, hang_up_steps=steps)
    await trio.sleep(5)
    await assert_untouched(shop)


async def test_malformed_requests_count_in_the_minute_alone(
    autojump_clock, shop: RunningService, test_key
):
    for octets in (b"{", b'{"email": 7}', b"[]"):
        got = await shop.request("POST", "/v1/email/verify", octets=octets, key=test_key)
        assert (got.status, got.error) == (400, "invalid_request")
    got = await shop.verify(address("full"), key=test_key)
    assert got.headers["ratelimit"].startswith('"minute";r=97;')
    await assert_untouched(shop)


async def test_an_idempotent_request_is_repeated(autojump_clock, shop: RunningService, test_key):
    sent: dict[str, Any] = {"key": test_key, "headers": {"idempotency-key": "signup-1"}}
    first = await shop.verify(address("typo"), **sent)
    again = await shop.verify(address("typo"), **sent)
    assert again.octets == first.octets
    assert again.headers["idempotency-replayed"] == "true"
    assert (await shop.verify(address("full"), **sent)).error == "idempotency_key_reused"


async def test_a_live_request_never_gets_the_answer_of_a_test(
    autojump_clock, shop: RunningService, test_key
):
    for name in ("signup-1", "sk_test_ signup-1"):
        sent = {"idempotency-key": "signup-1"}
        tested = await shop.verify("no@friendly.test", key=test_key, headers=sent)
        assert tested.body["status"] == "deliverable"
        live = await shop.verify("no@friendly.test", headers={"idempotency-key": name})
        assert live.status in (200, 409, 422)
        assert live.status != 200 or live.body["status"] == "undeliverable"


async def test_a_store_that_is_away_gives_no_answer(autojump_clock, shop: RunningService, test_key):
    assert (await shop.verify(key=test_key)).status == 200
    shop.store.away = {"reserve"}
    assert (await shop.verify(key=test_key)).error == "quota_check_failed"


async def test_evidence_is_the_sandbox_own(autojump_clock, shop: RunningService, test_key):
    got = await shop.request(
        "POST", "/v1/email/verify?evidence=1", {"email": address("full")}, key=test_key
    )
    assert got.body["evidence"]["rule"] == "sandbox"


async def test_production_takes_no_test_keys(autojump_clock, shop: RunningService, test_key):
    shop.app = create_app(replace(shop.service, takes_test_keys=False))
    got = await shop.verify(key=test_key)
    assert (got.status, got.error) == (401, "invalid_api_key")
    assert "production" in got.body["message"]
    made = await shop.manage("POST", "/keys", {"test": True})
    assert (made.status, made.error) == (400, "invalid_request")
    assert (await shop.verify()).status == 200


async def test_a_test_key_manages_nothing(autojump_clock, shop: RunningService, test_key):
    assert (await shop.manage("GET", "/account", key=test_key)).status == 403


async def test_test_keys_are_made_listed_and_revoked(autojump_clock, free_shop: RunningService):
    """They have a limit of their own, as large as that of live keys."""
    made = [await free_shop.manage("POST", "/keys", {"test": True}) for _ in range(3)]
    assert [one.status for one in made] == [201, 201, 429]
    assert made[0].body["key"].startswith("sk_test_")
    listed = (await free_shop.manage("GET", "/keys")).body
    assert [key["prefix"][:8] for key in listed["keys"]] == ["sk_live_", "sk_test_", "sk_test_"]
    assert (listed["count"], listed["max"]) == (1, 2)
    live = await free_shop.manage("POST", "/keys", {})
    assert live.body["key"].startswith("sk_live_")
    gone = await free_shop.manage("DELETE", f"/keys/{made[0].body['id']}")
    assert gone.status == 204
    assert (await free_shop.verify(key=made[0].body["key"])).status == 401
