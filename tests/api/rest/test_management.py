"""The management routes: whole answers, and one account never sees another's."""

from datetime import UTC, datetime, timedelta

import pytest
import trio

from mailprobe.api.keys import well_formed
from mailprobe.api.quota.plans import PLANS
from mailprobe.storage.records import Account
from tests.api.service_fixture import RunningService, open_shop


async def test_the_account_has_all_of_its_fields(autojump_clock, shop: RunningService):
    at = datetime(2026, 3, 1, tzinfo=UTC)
    await shop.change(
        subscription_status="active", current_period_start=at,
        current_period_end=at + timedelta(days=31), cancel_at_period_end=False,
        canceled_at=at, cancel_at=at, trial_start=at, trial_end=at, billing_cycle_anchor=at,
    )  # fmt: skip
    got = (await shop.manage("GET", "/account")).body
    assert got["account_id"] == shop.account.id
    assert got["tier"] == "builder"
    assert got["subscription_status"] == "active"
    assert got["current_period_end"] == "2026-04-01T00:00:00Z"
    assert got["cancel_at_period_end"] is False
    for name in ("canceled_at", "cancel_at", "trial_start", "trial_end", "billing_cycle_anchor"):
        assert got[name] == "2026-03-01T00:00:00Z"
    assert got["limits"] == {"monthly_calls": 5000, "rate_limit_per_min": 100, "max_keys": 10}
    assert got["usage_this_month"] == 0
    assert "email" not in got


# -- keys ---------------------------------------------------------------------------------------


async def test_a_key_is_made_shown_once_used_and_revoked(autojump_clock, shop: RunningService):
    made = await shop.manage("POST", "/keys", {"label": "checkout"})
    assert made.status == 201
    key = made.body["key"]
    assert key.startswith("sk_live_")
    assert well_formed(key)
    assert made.body["label"] == "checkout"
    assert made.body["warning"]
    listed = (await shop.manage("GET", "/keys")).body
    assert (listed["count"], listed["max"]) == (2, 10)
    (ours,) = [known for known in listed["keys"] if known["id"] == made.body["id"]]
    assert set(ours) == {"id", "label", "prefix", "created_at", "kind", "last_used_at", "made_by"}
    assert (ours["kind"], ours["last_used_at"], ours["made_by"]) == ("live", None, "key")
    assert ours["prefix"] == key[:12]
    assert ours["created_at"] == made.body["created_at"]
    assert (await shop.verify(key=key)).status == 200
    await shop.service.key_uses.save(shop.store.note_key_uses)
    used = [known["last_used_at"] for known in (await shop.manage("GET", "/keys")).body["keys"]]
    assert used == [None, shop.clock().isoformat().replace("+00:00", "Z")]
    gone = await shop.manage("DELETE", f"/keys/{made.body['id']}")
    assert (gone.status, gone.octets) == (204, b"")
    assert "content-type" not in gone.headers
    assert (await shop.manage("GET", "/keys")).body["count"] == 1
    got = await shop.verify(key=key)
    assert (got.status, got.error) == (401, "invalid_api_key")
    got = await shop.manage("DELETE", f"/keys/{made.body['id']}")
    assert (got.status, got.error) == (404, "key_not_found")


async def test_the_secret_comes_from_the_injected_source(autojump_clock):
    async with open_shop(draw=lambda below: 10) as shop:
        key = (await shop.manage("POST", "/keys")).body["key"]
        assert key.startswith("sk_live_" + "A" * 43)


async def test_only_standard_keys_are_listed_and_revoked(autojump_clock, shop: RunningService):
    listed = (await shop.manage("GET", "/keys")).body["keys"]
    assert [key["prefix"] for key in listed] == [shop.key[:12]]
    provisioning = (await shop.caller(shop.provisioning)).key
    got = await shop.manage("DELETE", f"/keys/{provisioning.id}")
    assert (got.status, got.error) == (404, "key_not_found")
    assert (await shop.manage("GET", "/account")).status == 200


@pytest.mark.parametrize("tier", ["free", "builder", "scale"])
async def test_there_are_no_more_keys_than_the_tier_allows(autojump_clock, tier):
    async with open_shop(tier) as shop:
        keys_max = PLANS[tier].max_keys
        for _ in range(keys_max - 1):
            assert (await shop.manage("POST", "/keys")).status == 201
            await trio.sleep(4)  # no more than 20 a minute
        got = await shop.manage("POST", "/keys")
        assert (got.status, got.error) == (429, "key_limit_reached")
        assert "retry-after" not in got.headers
        assert set(got.body) == {"error", "message", "action", "docs"}
        listed = (await shop.manage("GET", "/keys")).body
        assert (listed["count"], listed["max"]) == (keys_max, keys_max)


@pytest.mark.parametrize(
    ("octets", "status"),
    [
        (b"", 201), (b"{}", 201), (b'{"label":null}', 201), (b'{"label":"x"}', 201),
        ('{"label":"Büro 日本"}'.encode(), 201), (b'{"label":"' + b"x" * 100 + b'"}', 201),
        (b'{"label":"' + b"x" * 101 + b'"}', 400), (b'{"label":""}', 400),
        (b'{"label":"a\\n"}', 400), (b'{"label":"a\\nb"}', 400), (b'{"label":5}', 400),
        (b'{"label":"a\\u0000"}', 400), (b"[]", 400), (b"null", 400), (b"{", 400),
        (b'{"label":"a","label":"b"}', 400),
    ],
)  # fmt: skip
async def test_a_label_is_optional_and_readable(
    autojump_clock, shop: RunningService, octets, status
):
    got = await shop.request("POST", "/v1/management/keys", octets=octets)
    assert got.status == status
    if status == 400:
        assert got.error == "invalid_request"
        assert got.body["docs"].endswith("#management")
        assert await shop.rows() == []


async def test_an_id_that_is_none_is_404(autojump_clock, shop: RunningService):
    own = (await shop.caller()).key.id
    for wrong in ("x", own + "0", "{" + own + "}", own.replace("-", ""), "%00", "é"):
        got = await shop.manage("DELETE", f"/keys/{wrong}")
        assert (got.status, got.error) == (404, "key_not_found")
    assert (await shop.manage("DELETE", f"/keys/{own.upper()}")).status == 204


async def test_one_account_never_sees_anothers(autojump_clock, shop: RunningService):
    other = await shop.store.create_account("bob@example.org", "scale")
    theirs = await shop.new_key("sk_live_", other.id)
    their_provisioning = await shop.new_key("sk_mgmt_", other.id)
    await shop.verify()
    their_key = (await shop.caller(theirs)).key
    assert (await shop.manage("DELETE", f"/keys/{their_key.id}")).status == 404
    assert (await shop.verify(key=theirs)).status == 200
    listed = (await shop.manage("GET", "/keys")).body["keys"]
    assert their_key.id not in [key["id"] for key in listed]
    account = (await shop.manage("GET", "/account", key=their_provisioning)).body
    assert (account["account_id"], account["tier"]) == (other.id, "scale")
    assert account["usage_this_month"] == 1
    days = (await shop.manage("GET", "/usage", key=their_provisioning)).body["days"]
    assert sum(day["calls"] for day in days) == 1


# -- usage --------------------------------------------------------------------------------------


async def test_30_days_oldest_first_zeros_too(autojump_clock, shop: RunningService):
    await shop.batch("known@friendly.test", "bad")
    shop.clock.set(shop.clock() + timedelta(days=29))
    await shop.verify()
    days = (await shop.manage("GET", "/usage")).body["days"]
    assert len(days) == 30
    assert days[0] == {"date": "2026-03-14", "calls": 1}
    assert days[-1] == {"date": "2026-04-12", "calls": 1}
    assert [day["calls"] for day in days[1:-1]] == [0] * 28
    assert days == sorted(days, key=lambda day: day["date"])
    shop.clock.set(shop.clock() + timedelta(days=1))
    assert (await shop.manage("GET", "/usage")).body["days"][0]["calls"] == 0


async def test_the_summary_of_a_paid_tier_counts_what_is_billable(
    autojump_clock, shop: RunningService
):
    await shop.batch("known@friendly.test", "bad")
    await shop.verify(5)
    got = (await shop.manage("GET", "/usage/summary")).body
    assert got == {
        "period": {"start": "2026-03-01T00:00:00Z", "end": "2026-04-01T00:00:00Z"},
        "calls_used": 1, "calls_included": 5000, "calls_remaining": 4999,
        "overage_calls": 0, "estimated_cost_eur": 0.0, "tier": "builder",
    }  # fmt: skip
    await shop.use_up(5_005)
    got = (await shop.manage("GET", "/usage/summary")).body
    assert (got["calls_used"], got["calls_remaining"], got["overage_calls"]) == (5006, 0, 6)
    assert got["estimated_cost_eur"] == 0.03


async def test_the_summary_of_the_free_tier_counts_the_quota(
    autojump_clock, free_shop: RunningService
):
    await free_shop.batch("known@friendly.test", "bad")
    await free_shop.verify(5)
    got = (await free_shop.manage("GET", "/usage/summary")).body
    assert (got["calls_used"], got["calls_included"], got["calls_remaining"]) == (3, 500, 497)
    assert (got["overage_calls"], got["estimated_cost_eur"]) == (0, 0.0)
    account = (await free_shop.manage("GET", "/account")).body
    assert account["usage_this_month"] == 3
    days = (await free_shop.manage("GET", "/usage")).body["days"]
    assert days[-1]["calls"] == 1


# -- the billing portal ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["", "shop.test", "javascript:alert(1)", "https://", "http://a b", 5, "https://a.test\n"]
)
async def test_a_return_url_is_http_or_https(autojump_clock, shop: RunningService, url):
    got = await shop.manage("POST", "/billing/portal", {"return_url": url})
    assert (got.status, got.error) == (400, "invalid_request")
    assert "return_url" in got.body["message"]


async def test_a_provider_gives_the_url(autojump_clock):
    class Provider:
        async def portal_url(self, account: Account, return_url: str | None) -> str | None:
            await trio.lowlevel.checkpoint()
            return f"https://bills.test/{account.id}?{return_url}" if return_url else None

    async with open_shop(payments=Provider()) as shop:
        got = await shop.manage("POST", "/billing/portal", {"return_url": "https://shop.test"})
        assert (got.status, got.body) == (
            200, {"url": f"https://bills.test/{shop.account.id}?https://shop.test"},
        )  # fmt: skip
        assert (await shop.manage("POST", "/billing/portal")).status == 402
