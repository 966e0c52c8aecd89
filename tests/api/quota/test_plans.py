"""The tiers, and the file that may change them."""

from pathlib import Path

import pytest

from mailprobe.api.quota.plans import PLANS, read_plans
from mailprobe.api.settings import WrongSetting
from tests.api.unreadable import unreadable_files

CONTRACT = """
[builder]
rate_limit_per_min = 200
monthly_calls = 6000
max_keys = 11
price_eur_per_call = "0.0035"
retention_days = 30
"""


def test_without_a_file_the_built_in_table_stands() -> None:
    assert read_plans(None) is PLANS


def test_a_file_replaces_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "plans.toml"
    path.write_text(CONTRACT)
    plans = read_plans(path)
    builder = plans["builder"]
    assert (builder.rate_limit_per_min, builder.monthly_calls, builder.max_keys) == (200, 6000, 11)
    assert (builder.price_micros_per_call, builder.retention_days) == (3_500, 30)
    assert plans["free"] == PLANS["free"]
    assert plans["scale"] == PLANS["scale"]
    path.write_text("[free]\nmonthly_calls = 1000")
    assert read_plans(path)["free"].monthly_quota == 1000
    assert read_plans(path)["free"].rate_limit_per_min == 10


@pytest.mark.parametrize(
    ("text", "euros_micros"),
    [("0", 0), ("1", 1_000_000), ("0.004", 4_000), ("0.000001", 1), ("12.34", 12_340_000)],
)
def test_a_price_is_read_without_any_binary_fraction(
    tmp_path: Path, text: str, euros_micros: int
) -> None:
    path = tmp_path / "plans.toml"
    path.write_text(f'[scale]\nprice_eur_per_call = "{text}"')
    assert read_plans(path)["scale"].price_micros_per_call == euros_micros


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[gold]\nmax_keys = 1", "'gold'"),
        ("free = 5", "free in "),
        ("[free]\nmax_key = 1", "'max_key' in [free]"),
        ("[free]\nmax_keys = 1.5", "max_keys in [free]"),
        ("[free]\nmax_keys = true", "max_keys in [free]"),
        ("[free]\nmax_keys = -1", "is -1"),
        ("[free]\nrate_limit_per_min = 0", "is 0"),
        ("[free]\nrate_limit_per_min = 99999999999999", "a whole number"),
        ("[scale]\nprice_eur_per_call = 0.004", "euros as a string"),
        ('[scale]\nprice_eur_per_call = "-1"', "euros as a string"),
        ('[scale]\nprice_eur_per_call = "1e3"', "euros as a string"),
        ('[scale]\nprice_eur_per_call = "0.0000001"', "at most six decimals"),
        ('[scale]\nprice_eur_per_call = "5000"', "euros as a string"),
        ("[scale]\nretention_days = 0", "retention_days"),
        ("[free", "is not TOML"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_what_is_wrong(
    tmp_path: Path, toml: str, said: str
) -> None:
    path = tmp_path / "plans.toml"
    path.write_text(toml)
    with pytest.raises(WrongSetting) as wrong:
        read_plans(path)
    assert said in str(wrong.value)
    assert str(path) in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_a_file_that_cannot_be_read_is_named_with_its_setting(tmp_path: Path) -> None:
    for said, path in unreadable_files(tmp_path).items():
        with pytest.raises(WrongSetting, match=rf"^MAILPROBE_PLANS_FILE .*{said}") as wrong:
            read_plans(path)
        assert str(path)[:40] in str(wrong.value)
        assert str(wrong.value).endswith("it takes the path of a TOML file")
        assert str(wrong.value).isprintable()
