"""Limit checks: never one unit too many, and waiting for Retry-After is always enough."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.api.error_table import headers_of
from mailprobe.api.quota.limits import check_limits
from mailprobe.api.quota.plans import PLANS, PricingPlan
from mailprobe.api.refusals import HardCapReached, NeverFits, QuotaExhausted, RateLimited
from mailprobe.storage.records import Ledger

NOW = datetime(2026, 3, 14, 9, 26, 53, 250_000, tzinfo=UTC)
APRIL = datetime(2026, 4, 1, tzinfo=UTC)
FREE, BUILDER, SCALE = PLANS["free"], PLANS["builder"], PLANS["scale"]


def ledger(*ages_and_units: tuple[float, int], **more: object) -> Ledger:
    window = tuple((NOW - timedelta(seconds=age), units) for age, units in ages_and_units)
    fields = {
        "asked_at": NOW, "window": window, "month_units": 0, "month_billable": 0,
        "period_start": datetime(2026, 3, 1, tzinfo=UTC), "period_end": APRIL,
        "period_billable": 0, "reserved": 0,
    }  # fmt: skip
    return Ledger(**{**fields, **more})  # type: ignore[arg-type]


def retry_after(refusal: RateLimited | QuotaExhausted) -> int:
    return int(headers_of(refusal)["Retry-After"])


# -- the sliding window -----------------------------------------------------------------------


@pytest.mark.parametrize(("plan", "limit"), [(FREE, 10), (BUILDER, 100), (SCALE, 1000)])
def test_the_limit_itself_passes_and_one_more_does_not(plan: PricingPlan, limit: int) -> None:
    assert check_limits(plan, ledger((30, limit - 1)), 1) is None
    refusal = check_limits(plan, ledger((30, limit)), 1)
    assert isinstance(refusal, RateLimited)
    assert (refusal.limit, refusal.window) == (limit, "1m")


def test_it_passes_again_when_the_oldest_units_are_60_seconds_old() -> None:
    refusal = check_limits(FREE, ledger((50, 4), (20, 3), (1, 3)), 5)
    assert isinstance(refusal, RateLimited)
    assert refusal.reset_at == NOW + timedelta(seconds=40)
    assert retry_after(refusal) == 40


def test_units_of_exactly_60_seconds_ago_weigh_no_more() -> None:
    assert check_limits(FREE, ledger((60, 10)), 10) is None
    assert check_limits(FREE, ledger((59.999, 10)), 1) is not None


def test_retry_after_is_rounded_up() -> None:
    refusal = check_limits(FREE, ledger((59.999, 10)), 1)
    assert isinstance(refusal, RateLimited)
    assert retry_after(refusal) == 1
    refusal = check_limits(FREE, ledger((29.5, 10)), 1)
    assert isinstance(refusal, RateLimited)
    assert retry_after(refusal) == 31


def test_more_than_the_limit_never_fits_and_must_be_split() -> None:
    refusal = check_limits(FREE, ledger(), 11)
    assert isinstance(refusal, NeverFits)
    assert refusal.reset_at == NOW + timedelta(seconds=60)
    assert retry_after(refusal) == 60


windows = st.lists(
    st.tuples(st.floats(0, 70, allow_nan=False), st.integers(1, 12)), max_size=30
).map(lambda pairs: sorted(pairs, reverse=True))


@given(windows, st.integers(1, 10))
def test_waiting_retry_after_is_always_enough(window: list[tuple[float, int]], units: int) -> None:
    then = ledger(*window)
    refusal = check_limits(FREE, then, units)
    if refusal is None:
        return
    assert isinstance(refusal, RateLimited)
    later = NOW + timedelta(seconds=retry_after(refusal))
    assert check_limits(FREE, replace(then, asked_at=later), units) is None


@given(windows, st.integers(1, 10))
def test_reset_at_is_the_earliest_instant_that_passes(
    window: list[tuple[float, int]], units: int
) -> None:
    then = ledger(*window)
    refusal = check_limits(FREE, then, units)
    if refusal is None:
        return
    assert isinstance(refusal, RateLimited)
    assert check_limits(FREE, replace(then, asked_at=refusal.reset_at), units) is None
    just_before = refusal.reset_at - timedelta(microseconds=1)
    assert check_limits(FREE, replace(then, asked_at=just_before), units) is not None


@given(st.lists(st.tuples(st.floats(0.001, 30), st.integers(1, 10)), max_size=60))
def test_no_60_seconds_ever_hold_one_unit_too_many(asked: list[tuple[float, int]]) -> None:
    """For any requests at any times: sum the window that ends at each grant."""
    granted: list[tuple[datetime, int]] = []
    for at_s, units in zip(
        accumulate(pause for pause, _ in asked), (n for _, n in asked), strict=True
    ):
        at = NOW + timedelta(seconds=at_s)
        if check_limits(FREE, replace(ledger(), asked_at=at, window=tuple(granted)), units) is None:
            granted.append((at, units))
            last_minute = [n for then, n in granted if then > at - timedelta(seconds=60)]
            assert sum(last_minute) <= FREE.rate_limit_per_min


# -- the month --------------------------------------------------------------------------------


def test_the_free_quota_itself_passes_and_one_more_does_not() -> None:
    assert check_limits(FREE, ledger(month_units=499), 1) is None
    assert check_limits(FREE, ledger(month_units=490), 10) is None
    refusal = check_limits(FREE, ledger(month_units=491), 10)
    assert isinstance(refusal, QuotaExhausted)
    assert (refusal.limit, refusal.used, refusal.reset_at) == (500, 491, APRIL)


@pytest.mark.parametrize("plan", [BUILDER, SCALE])
def test_paid_tiers_have_no_quota(plan: PricingPlan) -> None:
    assert check_limits(plan, ledger(month_units=10**7, period_billable=10**7), 50) is None


@given(st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1)))
def test_the_quotas_reset_is_the_start_of_the_next_utc_month(at: datetime) -> None:
    refusal = check_limits(FREE, ledger(asked_at=at.replace(tzinfo=UTC), month_units=500), 1)
    assert isinstance(refusal, QuotaExhausted)
    reset = refusal.reset_at
    assert (reset.day, reset.hour, reset.minute, reset.second, reset.microsecond) == (1, 0, 0, 0, 0)
    assert (reset - timedelta(microseconds=1)).month == at.month


@given(st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1)))
def test_waiting_for_the_quota_is_enough_too(at: datetime) -> None:
    asked_at = at.replace(tzinfo=UTC)
    refusal = check_limits(FREE, ledger(asked_at=asked_at, month_units=500), 1)
    assert isinstance(refusal, QuotaExhausted)
    assert asked_at + timedelta(seconds=retry_after(refusal)) >= refusal.reset_at


def test_a_limit_tells_that_the_quota_stands_in_the_way_as_well() -> None:
    refusal = check_limits(FREE, ledger((30, 10), month_units=500), 1)
    assert isinstance(refusal, RateLimited)
    assert "month" in refusal.also


# -- the hard cap -----------------------------------------------------------------------------


def test_equal_to_the_cap_passes_and_a_cent_more_does_not() -> None:
    """2,500 calls beyond the included 5,000, at 0.004 EUR, are 10.00 EUR."""
    cap = 10_000_000
    assert check_limits(BUILDER, ledger(period_billable=7_499), 1, hard_cap_micros=cap) is None
    refusal = check_limits(BUILDER, ledger(period_billable=7_500), 1, hard_cap_micros=cap)
    assert isinstance(refusal, HardCapReached)
    assert (refusal.hard_cap_eur, refusal.current_overage_eur) == (10.0, 10.0)


def test_reserved_units_count_as_billable() -> None:
    then = ledger(period_billable=7_400, reserved=100)
    assert isinstance(check_limits(BUILDER, then, 1, hard_cap_micros=10_000_000), HardCapReached)


def test_the_projection_is_rounded_up_to_the_cent() -> None:
    """One call beyond is 0.4 cents, shown and checked as one cent."""
    assert check_limits(BUILDER, ledger(period_billable=5_000), 1, hard_cap_micros=10_000) is None
    assert (
        check_limits(BUILDER, ledger(period_billable=5_000), 1, hard_cap_micros=9_999) is not None
    )


def test_a_cap_of_nothing_still_lets_the_included_volume_through() -> None:
    assert check_limits(BUILDER, ledger(period_billable=4_950), 50, hard_cap_micros=0) is None
    assert check_limits(BUILDER, ledger(period_billable=4_951), 50, hard_cap_micros=0) is not None


def test_the_current_overage_leaves_this_request_out() -> None:
    refusal = check_limits(BUILDER, ledger(period_billable=7_490), 50, hard_cap_micros=10_000_000)
    assert isinstance(refusal, HardCapReached)
    assert refusal.current_overage_eur == 9.96


def test_a_malformed_request_costs_nothing_and_meets_no_cap() -> None:
    then = ledger(period_billable=10**6)
    assert check_limits(BUILDER, then, 1, hard_cap_micros=0, billable=False) is None


@given(st.lists(st.integers(1, 50), max_size=200), st.integers(0, 3_000_000))
def test_no_grant_ever_takes_the_overage_above_the_cap(asked: list[int], cap: int) -> None:
    used = 4_900
    for units in asked:
        if check_limits(BUILDER, ledger(period_billable=used), units, hard_cap_micros=cap) is None:
            used += units
    assert (used - 5_000) * 4_000 <= cap


def test_the_order_is_cap_limit_quota() -> None:
    worst = ledger((30, 100), month_units=500, period_billable=10**6)
    assert isinstance(check_limits(BUILDER, worst, 1, hard_cap_micros=0), HardCapReached)
    assert isinstance(check_limits(FREE, worst, 1), RateLimited)
    assert isinstance(check_limits(FREE, ledger(month_units=500), 1), QuotaExhausted)
