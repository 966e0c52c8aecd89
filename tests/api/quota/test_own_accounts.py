"""An operator's own account: no limit, no quota, no price; answers call it `scale`."""

import pytest
from msgspec.structs import replace

from mailprobe.api.alerts.thresholds import crossed
from mailprobe.api.quota.limits import check_limits
from mailprobe.api.quota.plans import PLANS, is_reported, read_plans
from tests.api.service_fixture import RunningService, open_shop

OWN = PLANS["own"]


def test_no_number_of_units_is_too_many_or_costs_anything():
    assert OWN.overage_micros(10**12) == 0
    assert not is_reported("own")
    assert not OWN.has_price


def test_a_plans_file_changes_what_an_own_account_keeps_and_not_its_limits(tmp_path):
    path = tmp_path / "plans.toml"
    path.write_text('[scale]\nrate_limit_per_min = 5\nprice_eur_per_call = "1"\nlists_mib = 3\n')
    assert read_plans(path)["own"] == replace(OWN, lists_mib=3)


async def test_an_own_account_is_never_limited_capped_or_reported(autojump_clock):
    """Caps of an earlier life as a customer's account change nothing."""
    async with open_shop() as shop:
        await shop.change(tier="own", hard_cap_micros=0, soft_cap_micros=0)
        await shop.use_up(120_000)  # more than scale includes
        for _ in range(30):  # 1,500 units, more than a minute of scale
            got = await shop.batch(*["x"] * 50)
            assert got.status == 200
        assert not {"ratelimit", "ratelimit-policy"} & got.headers.keys()
        caller = await shop.caller()
        ledger = await shop.store.ledger(caller)
        assert not replace(shop.service.quota, reports_usage=True).reports_usage_of(caller)
        assert check_limits(OWN, ledger, 10**6, hard_cap_micros=0) is None
        assert crossed(OWN, ledger, caller.account, capped=True) == []


async def test_answers_call_it_scale_with_the_largest_limits(autojump_clock, shop: RunningService):
    await shop.change(tier="own")
    account = (await shop.manage("GET", "/account")).body
    assert account["tier"] == "scale"
    names = ("monthly_calls", "rate_limit_per_min", "max_keys")
    assert account["limits"] == dict.fromkeys(names, 2_147_483_647)
    summary = (await shop.manage("GET", "/usage/summary")).body
    assert (summary["tier"], summary["calls_included"]) == ("scale", 2_147_483_647)
    assert (summary["overage_calls"], summary["estimated_cost_eur"]) == (0, 0)
    assert (await shop.manage("GET", "/keys")).body["max"] == 2_147_483_647
    assert (await shop.manage("POST", "/keys", {"label": "more"})).status == 201


@pytest.mark.parametrize("tier", ["free", "own"])
async def test_there_is_no_portal_for_what_is_not_sold(autojump_clock, shop: RunningService, tier):
    await shop.change(tier=tier)
    got = await shop.manage("POST", "/billing/portal")
    assert (got.status, got.error) == (402, "no_billing_account")
