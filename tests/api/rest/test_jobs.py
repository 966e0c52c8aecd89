"""Jobs over the API: results that are fetched, test keys, and who may see what."""

import json
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import trio
from standardwebhooks import Webhook, WebhookVerificationError

from mailprobe.api.jobs.delivery import Delivered
from mailprobe.api.jobs.rules import callback_headers
from mailprobe.api.sandbox.addresses import REFUSALS
from tests.api.jobs.test_worker import open_working_shop, promise
from tests.api.service_fixture import VERIFY, RunningService

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


async def job(shop: RunningService, job_id: str, **more):
    return await shop.request("GET", f"/v1/jobs/{job_id}", **more)


async def submit(shop: RunningService, email: str = "known@friendly.test", **more):
    got = await shop.request("POST", VERIFY, {"email": email, "async": True}, **more)
    assert got.status == 202, got.body
    return got.body["job_id"]


async def test_a_result_is_fetched_where_there_is_no_url(autojump_clock):
    async with open_working_shop() as (shop, receiver):
        job_id = await submit(shop, "known@slow.test")
        pending = (await job(shop, job_id)).body
        assert (pending["status"], pending["result"], pending["attempts"]) == ("pending", None, [])
        await trio.sleep(5)
        done = (await job(shop, job_id)).body
        assert (done["status"], done["result"]["status"]) == ("done", "deliverable")
        assert "job_id" not in done["result"]
        assert done["ended_at"]
        assert receiver.calls == []
        ledger = await shop.store.ledger(await shop.caller())
        assert (ledger.month_units, ledger.month_billable, ledger.undelivered) == (1, 1, 0)


async def test_a_fetch_counts_nothing_and_says_how_a_callback_fares(autojump_clock):
    async with open_working_shop() as (shop, receiver):
        receiver.answer = lambda host: Delivered(503, None, None, 5)
        job_id = (await promise(shop)).body["job_id"]
        await trio.sleep(2)
        failing = (await job(shop, job_id)).body
        assert failing["status"] == "delivering"
        assert failing["result"]["email"] == "known@friendly.test"
        assert [attempt["status"] for attempt in failing["attempts"]] == [503]
        assert failing["next_attempt_at"]
        receiver.answer = lambda host: Delivered(200, None, None, 5)
        await trio.sleep(20)
        done = (await job(shop, job_id)).body
        assert [attempt["number"] for attempt in done["attempts"]] == [1, 2]
        assert (done["status"], done["next_attempt_at"]) == ("done", None)
        assert len(await shop.rows()) == 1


async def test_a_job_is_its_accounts_alone(autojump_clock):
    async with open_working_shop() as (shop, _):
        job_id = await submit(shop)
        other = await shop.store.create_account("eve@example.org", "free")
        stranger = await shop.new_key("sk_live_", other.id)
        assert (await job(shop, job_id, key=await shop.new_key("sk_live_"))).status == 200
        for got in (
            await job(shop, job_id, key=stranger),
            await job(shop, str(uuid4())),
            await job(shop, "1"),
            await job(shop, "%00"),
            await job(shop, "x" * 5_000),
            await job(shop, job_id + "%0a"),
        ):
            assert (got.status, got.error) == (404, "job_not_found")
        assert (await job(shop, job_id, key=None)).status == 401
        assert (await job(shop, job_id, key=shop.provisioning)).status == 401


async def test_a_job_is_forgotten_with_the_usage_rows_of_its_tier(autojump_clock):
    async with open_working_shop("free") as (shop, _):
        job_id = await submit(shop)
        await trio.sleep(1)
        shop.clock.set(shop.clock() + timedelta(days=9))
        await shop.store.apply_retention({"free": 7})
        assert (await job(shop, job_id)).error == "job_not_found"


@pytest.mark.parametrize("value", ["yes", 1, None, [], {}])
async def test_async_is_true_or_false(autojump_clock, value):
    async with open_working_shop() as (shop, _):
        got = await shop.request("POST", VERIFY, {"email": "a@b.test", "async": value})
        assert (got.status, got.error) == (400, "invalid_request")


async def test_neither_evidence_nor_advice_is_kept_for_a_job(autojump_clock):
    async with open_working_shop() as (shop, _):
        body = {"email": "known@friendly.test", "async": True}
        for name in ("evidence", "advice"):
            got = await shop.request("POST", f"{VERIFY}?{name}=1", body)
            assert (got.status, got.error) == (400, "invalid_request")
            assert f"parameter {name} cannot be 1" in got.body["message"]
        assert (await shop.request("POST", VERIFY, {**body, "async": False})).status == 200


async def test_a_repeated_submission_is_one_job(autojump_clock):
    async with open_working_shop() as (shop, _):
        headers = {"idempotency-key": "order-7"}
        first = await submit(shop, headers=headers)
        assert await submit(shop, headers=headers) == first
        await trio.sleep(1)
        assert len(await shop.rows()) == 1


# test keys


async def test_a_test_key_is_called_back_really_and_signed(autojump_clock):
    async with open_working_shop() as (shop, receiver):
        key = await shop.new_key("sk_test_")
        body = {"webhook_secret": SECRET}
        got = await promise(shop, "full@sandbox.test", key=key, body=body)
        assert got.status == 202
        await trio.sleep(1)
        ((_, _, headers, payload),) = receiver.calls
        assert headers["webhook-id"] == got.body["job_id"]
        assert headers["webhook-signature"].startswith("v1,")
        assert json.loads(payload)["status"] == "unknown"
        assert json.loads(payload)["email"] == "full@sandbox.test"
        done = (await job(shop, got.body["job_id"], key=key)).body
        assert (done["status"], done["result"]["status"]) == ("done", "unknown")


async def test_the_job_of_a_test_key_costs_nothing(autojump_clock):
    async with open_working_shop("free") as (shop, _):
        key = await shop.new_key("sk_test_")
        job_id = await submit(shop, "role@sandbox.test", key=key)
        assert (await job(shop, job_id, key=key)).body["result"]["role"] is True
        await promise(shop, "full@sandbox.test", key=key)
        await trio.sleep(2)
        ledger = await shop.store.ledger(await shop.caller())
        assert (ledger.reserved, ledger.month_units, ledger.window_units) == (0, 0, 0)
        assert await shop.rows() == []
        assert not shop.world.dialled
        assert not shop.world.transport.exchanged
        statuses = [(await promise(shop, key=key)).status for _ in range(9)]
        assert statuses == [202] * 8 + [429]


@pytest.mark.parametrize("name", REFUSALS)
async def test_an_address_refuses_the_submission(autojump_clock, name):
    async with open_working_shop() as (shop, receiver):
        key = await shop.new_key("sk_test_")
        got = await promise(shop, f"{name}@sandbox.test", key=key)
        assert got.status >= 400
        await trio.sleep(1)
        assert receiver.calls == []
        assert await shop.store.jobs(limit=10) == []


# the official package for receivers


def test_the_official_package_accepts_our_signature() -> None:
    payload = '{"email":"ä@x.test","job_id":"1"}'.encode()
    headers = callback_headers("1", payload, SECRET, datetime.now(UTC))
    assert Webhook(SECRET).verify(payload, headers) == json.loads(payload)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(payload + b" ", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + "A" * 32).verify(payload, headers)
