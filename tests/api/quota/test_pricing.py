"""Money: whole micro-euros, rounded up at the very end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.api.quota.plans import (
    PLANS,
    cents_up,
    eur_up,
    is_billable,
)


@pytest.mark.parametrize(
    ("failed_check", "billable"),
    [
        (None, True), ("disposable", True), ("no_mx", True), ("smtp", True), ("smtp_timeout", True),
        ("syntax", False), ("invalid_request", False), ("rate_limit_exceeded", False),
    ],
)  # fmt: skip
def test_a_result_is_billable_if_layer_1_passed(failed_check: str | None, billable: bool) -> None:
    assert is_billable(failed_check) is billable


@pytest.mark.parametrize(
    ("tier", "calls", "micros"),
    [
        ("builder", 0, 0),
        ("builder", 5_000, 0),
        ("builder", 5_001, 4_000),
        ("builder", 7_500, 10_000_000),
        ("scale", 100_000, 0),
        ("scale", 100_001, 2_000),
        ("free", 10_000, 0),
    ],
)
def test_overage_is_what_lies_beyond_the_included_volume(
    tier: str, calls: int, micros: int
) -> None:
    assert PLANS[tier].overage_micros(calls) == micros  # type: ignore[index]


@pytest.mark.parametrize(
    ("micros", "cents"), [(0, 0), (1, 1), (4_000, 1), (9_999, 1), (10_000, 1), (10_001, 2)]
)
def test_any_part_of_a_cent_is_one(micros: int, cents: int) -> None:
    assert cents_up(micros) == cents
    assert eur_up(micros) == cents / 100


@given(st.integers(0, 10**15))
def test_rounding_up_never_takes_less_nor_a_whole_cent_more(micros: int) -> None:
    assert 0 <= cents_up(micros) * 10_000 - micros < 10_000


@given(st.integers(0, 10**12))
def test_euros_to_show_have_two_decimals(micros: int) -> None:
    whole, _, decimals = repr(eur_up(micros)).partition(".")
    assert len(decimals) <= 2
    assert whole.isdigit()


@given(st.integers(0, 10**9))
def test_overage_calls_are_never_below_nothing(calls: int) -> None:
    assert PLANS["builder"].overage_calls(calls) == max(0, calls - 5_000)
