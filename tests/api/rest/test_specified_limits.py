"""The specification: limits, quota, billing, spend caps, alerts and versioning.

Each test is named after the row of the specification that it checks.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.api.jobs import worker
from mailprobe.api.jobs.delivery import Delivered
from mailprobe.api.quota.plans import PLANS
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import EngineSettings, Verdict
from mailprobe.engine.lists.lists import DATA, load_lists, read_names
from mailprobe.engine.verdict import light_of
from tests.api.alerts.test_thresholds import kinds
from tests.api.jobs.test_worker import HOOK, open_working_shop, promise
from tests.api.rest.specification import Working, result
from tests.api.service_fixture import BATCH, STREAM, VERIFY, RunningService, open_shop

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
async def test_limit_1_to_50_emails(autojump_clock, shop: RunningService, path):
    for count, status in ((0, 400), (1, 200), (50, 200), (51, 400)):
        assert (await shop.request("POST", path, {"emails": ["x"] * count})).status == status


async def test_limit_payload_2_mb(autojump_clock, shop: RunningService):
    for length, status in ((2_097_152, 400), (2_097_153, 413)):
        headers = {"content-length": str(length)}
        got = await shop.request("POST", VERIFY, octets=b"{}", headers=headers)
        assert got.status == status


async def test_limit_webhook_url_2048_characters(autojump_clock, working: Working):
    shop, _ = working
    for characters, status in ((2_048, 202), (2_049, 400)):
        assert (await promise(shop, hook=HOOK.ljust(characters, "x"))).status == status


async def test_limit_free_500_units_a_month(autojump_clock, free_shop: RunningService):
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
    """Rows are deleted, counts stay."""
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


async def test_limit_smtp_timeouts_in_an_answer(autojump_clock, shop: RunningService):
    shop.world.add("mute.test", MailHost(latency_s=5))
    shop.world.add("slow3.test", MailHost(latency_s=0.95, ehlo_lines=()))
    assert (await shop.verify("known@mute.test")).body["latency_ms"] == pytest.approx(1000, abs=50)
    assert (await shop.verify("known@slow3.test")).body["latency_ms"] == pytest.approx(3000, abs=50)


async def test_limit_mx_cache_6_hours(autojump_clock, shop: RunningService):
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
async def test_the_limit_of_keys_is_the_same_in_the_account_and_the_list_of_keys(
    autojump_clock, tier
):
    async with open_shop(tier) as shop:
        account = (await shop.manage("GET", "/account")).body
        listed = (await shop.manage("GET", "/keys")).body
        assert account["limits"]["max_keys"] == listed["max"] == PLANS[tier].max_keys


# == Free-tier quota rules ====================================================================


async def test_quota_rule_1_the_window_is_the_utc_month(autojump_clock, free_shop: RunningService):
    free_shop.clock.set(datetime(2026, 3, 31, 23, 59, 59, tzinfo=UTC))
    await free_shop.use_up(500)
    assert (await free_shop.verify()).error == "monthly_quota_exceeded"
    await trio.sleep(1)
    assert (await free_shop.verify()).status == 200


async def test_quota_rule_2_429s_do_not_count(autojump_clock, free_shop: RunningService):
    await free_shop.batch(*["x"] * 10)
    for _ in range(5):
        assert (await free_shop.verify()).status == 429
    assert (await free_shop.manage("GET", "/account")).body["usage_this_month"] == 10


async def test_quota_rule_3_a_single_verify_is_one_unit_also_as_a_400(autojump_clock, free_shop):
    await free_shop.verify("x")
    await free_shop.verify(None)
    await free_shop.request("POST", VERIFY, octets=b"no json")
    assert (await free_shop.manage("GET", "/account")).body["usage_this_month"] == 2


async def test_quota_rule_4_a_batch_is_one_unit_an_email_if_it_validates(autojump_clock, free_shop):
    await free_shop.batch("x", "y", "x")
    await free_shop.stream("x", "y")
    await free_shop.batch("x", 5)
    assert (await free_shop.manage("GET", "/account")).body["usage_this_month"] == 5


async def test_quota_rule_5_a_syntax_failure_logs_a_row_and_counts(
    autojump_clock, free_shop: RunningService
):
    await free_shop.verify("bad")
    (row,) = await free_shop.rows()
    assert (row.failed_check, row.units, row.billable) == ("syntax", 1, False)


async def test_quota_rule_6_units_that_would_exceed_the_cap_are_refused_whole(
    autojump_clock, free_shop: RunningService
):
    await free_shop.use_up(495)
    assert (await free_shop.batch(*["x"] * 6)).error == "monthly_quota_exceeded"
    assert (await free_shop.batch(*["x"] * 5)).status == 200


# == Paid-tier billing rules ==================================================================


async def billable(shop: RunningService) -> int:
    calls: int = (await shop.manage("GET", "/usage")).body["days"][-1]["calls"]
    return calls


async def test_billing_rule_1_a_result_after_layer_1_is_billable(
    autojump_clock, shop: RunningService
):
    for emails, calls in (
        (["ann@mailinator.com"], 1), (["ann@nowhere.test"], 2), (["no@friendly.test"], 3),
        (["known@friendly.test"], 4),
    ):  # fmt: skip
        await shop.verify(emails[0])
        assert await billable(shop) == calls


async def test_billing_rule_2_syntax_and_400_are_not_billable(autojump_clock, shop: RunningService):
    await shop.verify("bad")
    await shop.verify(5)
    await shop.batch()
    assert await billable(shop) == 0


async def test_billing_rule_3_batch_and_stream_bill_per_email(autojump_clock, shop: RunningService):
    await shop.batch("known@friendly.test", "no@friendly.test", "bad")
    await shop.stream("known@friendly.test", "known@friendly.test", "bad")
    assert await billable(shop) == 4


@pytest.fixture
def polled_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "POLL_S", 900.0)  # else four days are 140,000 polls


async def test_async_mode_bills_when_the_verification_completes(
    autojump_clock, polled_seldom: None, working: Working
):
    shop, receiver = working
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


async def test_billing_rule_5_overage_is_rounded_up_to_whole_cents(
    autojump_clock, shop: RunningService
):
    for extra, eur in ((5_001, 0.01), (1, 0.01), (1, 0.02)):
        await shop.use_up(extra)
        got = (await shop.manage("GET", "/usage/summary")).body
        assert got["estimated_cost_eur"] == eur


@pytest.mark.parametrize(("tier", "counts"), [("free", []), ("builder", [2]), ("scale", [2])])
async def test_the_free_tier_is_never_metered(autojump_clock, tier, counts):
    """Each kind of request; the store counts what it is told to."""
    async with open_shop(tier, reports_usage=True) as shop:
        await shop.batch("known@friendly.test", "other@friendly.test", "bad")
        assert [message.count for message in await shop.store.messages("meter", limit=10)] == counts


@pytest.mark.parametrize(("tier", "counts"), [("free", []), ("builder", [1])])
async def test_async_is_metered_when_it_completes(autojump_clock, tier, counts):
    async with open_working_shop(tier, reports_usage=True) as (shop, _):
        await promise(shop, "known@slow.test")
        await trio.sleep(1)
        assert await shop.store.messages("meter", limit=10) == []
        await trio.sleep(4)
        assert [message.count for message in await shop.store.messages("meter", limit=10)] == counts


async def test_overage_is_counted_by_the_subscriptions_period(autojump_clock, shop: RunningService):
    await shop.use_up(5_000)
    start = shop.clock() + timedelta(days=1)
    await shop.change(
        hard_cap_micros=0, current_period_start=start, current_period_end=start + timedelta(days=31)
    )
    shop.clock.set(start + timedelta(hours=1))
    assert (await shop.verify()).status == 200


# == Spend caps ===============================================================================


async def test_the_soft_cap_never_blocks(autojump_clock, shop: RunningService):
    await shop.change(soft_cap_micros=0)
    await shop.use_up(6_000)
    assert (await shop.verify()).status == 200


async def test_a_cap_is_effective_from_the_next_request(autojump_clock, shop: RunningService):
    await shop.use_up(6_000)
    assert (await shop.verify()).status == 200
    await shop.change(hard_cap_micros=1_000_000)
    assert (await shop.verify()).status == 402
    await shop.change(hard_cap_micros=None)
    assert (await shop.verify()).status == 200


async def test_management_goes_on_under_a_hard_cap(autojump_clock, shop: RunningService):
    await shop.use_up(6_000)
    await shop.change(hard_cap_micros=0)
    assert (await shop.manage("GET", "/account")).status == 200


async def test_a_tier_is_effective_from_the_next_request(autojump_clock, free_shop: RunningService):
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


async def test_the_clients_lights_follow_the_results(autojump_clock, shop: RunningService):
    lights = {
        "ann@gmial.com": "YELLOW_LIGHT", "ann@mailinator.com": "RED_LIGHT", "bad": "RED_LIGHT",
        "no@friendly.test": "RED_LIGHT", "a@catchall.test": "YELLOW_LIGHT",
        "known@friendly.test": "GREEN_LIGHT",
    }  # fmt: skip
    for email, expected in lights.items():
        assert light_of(Verdict(**await result(shop, email))) == expected


async def test_every_route_but_health_and_the_description_is_under_v1(
    autojump_clock, shop: RunningService
):
    paths = (await shop.request("GET", "/openapi.json")).body["paths"]
    outside = [path for path in paths if not path.startswith("/v1/")]
    assert outside == ["/health", "/openapi.json"]
