"""The tiers, as a table, and the price of their units; an operator's plans file may replace cells of it.

Prices are whole micro-euros, rounded up to cents at the end. Money is never held as a binary
fraction; euros appear only in answers. An operator's own account has the tier `own`: no limit, no price. Clients of the
specification know three tiers, so answers call it `scale`, with the largest limits that a
32-bit client can read.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import replace

from mailprobe.storage.records import SoldTier, Tier

from ..settings import WrongSetting, wrong_file
from ..settings_files import Unreadable, read_toml

UNLIMITED = 2**31 - 1  # of an own account: the largest integer of 32 bits
COUNT_MAX = 1_000_000_000  # far above any plan, far below a database's largest integer
DAYS_MAX = 3650
LISTS_MIB_MAX = 1 << 20  # a TiB: more than a database of lists should hold
PRICE_MICROS_MAX = 1_000_000_000  # 1,000 EUR for one address: surely a mistake

MICROS_PER_EUR = 1_000_000
MICROS_PER_CENT = 10_000
BILLABLE_CHECKS = frozenset({"disposable", "no_mx", "smtp", "smtp_timeout", None})
# Everybody may use a publishable key, so it stops before its account's month is used up, or its hard
# cap: the rest is kept for secret keys.
PUBLISHABLE_SHARE = Fraction(3, 4)


def sold_tier(tier: Tier) -> SoldTier:
    """The tier as answers name it."""
    return "scale" if tier == "own" else tier


def is_reported(tier: Tier) -> bool:
    """Whether billable units of this tier go to the billing provider's meter."""
    return tier not in ("free", "own")


def is_billable(failed_check: str | None) -> bool:
    """Is a returned result billable? Yes, if layer 1 (syntax) passed."""
    return failed_check in BILLABLE_CHECKS


def cents_up(micros: int) -> int:
    """Whole cents; any part of one counts as one."""
    return -(-micros // MICROS_PER_CENT)


def eur_up(micros: int) -> float:
    """Euros for an answer, rounded up to whole cents."""
    return cents_up(micros) / 100


def micros_of(text: str, decimals: int = 2) -> int:
    """Micro-euros of euros, such as 25 or 12.50; never by way of a binary fraction. Raises ValueError."""
    if not re.fullmatch(rf"[0-9]{{1,9}}(\.[0-9]{{1,{decimals}}})?", text):
        raise ValueError(text)
    euros, _, fraction = text.partition(".")
    return int(euros) * MICROS_PER_EUR + int(fraction.ljust(6, "0"))


class PricingPlan(Struct, frozen=True):
    """What a tier allows, and the price of what goes beyond."""

    tier: Tier
    rate_limit_per_min: int
    monthly_calls: int  # free: the hard quota in units; paid: the included billable volume
    max_keys: int  # standard keys; provisioning keys are not counted
    price_micros_per_call: int  # of overage; 0 on free, which has none
    retention_days: int  # of usage rows
    lists_mib: int  # of rows and results that all lists of the account may take

    @property
    def monthly_quota(self) -> int | None:
        """The most units in a month; None where more are sold."""
        return self.monthly_calls if self.tier == "free" else None

    @property
    def has_price(self) -> bool:
        """Whether a verification may cost something; else no money is shown."""
        return self.monthly_quota is None and self.price_micros_per_call > 0

    def overage_calls(self, calls: int) -> int:
        """How many of the billable calls exceed what the plan includes."""
        return max(0, calls - self.monthly_calls)

    def overage_micros(self, calls: int) -> int:
        """The price in micro-euros of the calls beyond what the plan includes, not rounded."""
        if self.monthly_quota is not None:
            return 0  # a plan with a quota sells no overage
        return self.overage_calls(calls) * self.price_micros_per_call

    def for_own_accounts(self) -> "PricingPlan":
        """Return this plan without limits and price; retention and room for lists stay."""
        return replace(
            self,
            tier="own",
            rate_limit_per_min=UNLIMITED,
            monthly_calls=UNLIMITED,
            max_keys=UNLIMITED,
            price_micros_per_call=0,
        )

    def for_publishable_keys(self, rate_per_min: int) -> "PricingPlan":
        """Return what a publishable key has of this plan.

        That is a minute of its own, which is not part of the secret keys', and a share of a month
        that has a quota.
        """
        rate, quota = min(self.rate_limit_per_min, rate_per_min), self.monthly_quota
        calls = self.monthly_calls if quota is None else ceil(quota * PUBLISHABLE_SHARE)
        return replace(self, rate_limit_per_min=rate, monthly_calls=calls, max_keys=COUNT_MAX)

    def publishable_calls_max(self, hard_cap_micros: int) -> int | None:
        """The calls of a period after which a publishable key stops, under this cap.

        None without a price: the cap is never reached then.
        """
        if not self.has_price:
            return None
        calls = self.monthly_calls + hard_cap_micros // self.price_micros_per_call
        return ceil(calls * PUBLISHABLE_SHARE)

    def for_test_keys(self) -> "PricingPlan":
        """Return what a test key has of this plan: its own limit per minute, and no other."""
        return replace(self, tier="scale", price_micros_per_call=0, max_keys=COUNT_MAX)


Plans = Mapping[Tier, PricingPlan]

SOLD: Plans = {
    # The longest list of a tier, at some 300 octets a row and 200 a result, fits ten times.
    #                        per minute  a month   keys   price  days  MiB of lists
    "free": PricingPlan("free", 10, 500, 2, 0, 7, 64),
    "builder": PricingPlan("builder", 100, 5_000, 10, 4_000, 90, 1024),
    "scale": PricingPlan("scale", 1_000, 100_000, 50, 2_000, 90, 8192),
}


def _with_own(sold: Plans) -> Plans:
    return {**sold, "own": sold["scale"].for_own_accounts()}


PLANS: Plans = _with_own(SOLD)


def _whole(low: int, high: int) -> tuple[Callable[[object], int], str]:
    def read(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError
        return value

    return read, f"a whole number, {low} to {high}"


def _price(value: object) -> int:
    """Euros as a string -> whole micro-euros."""
    if not isinstance(value, str) or (micros := micros_of(value, decimals=6)) > PRICE_MICROS_MAX:
        raise ValueError
    return micros


# key of the file -> the plan's field, how it is read, what it takes
KEYS: dict[str, tuple[str, Callable[[object], int], str]] = {
    "rate_limit_per_min": ("rate_limit_per_min", *_whole(1, COUNT_MAX)),
    "monthly_calls": ("monthly_calls", *_whole(0, COUNT_MAX)),
    "max_keys": ("max_keys", *_whole(0, COUNT_MAX)),
    "price_eur_per_call": (
        "price_micros_per_call",
        _price,
        'euros as a string with at most six decimals, such as "0.004"',
    ),
    "retention_days": ("retention_days", *_whole(1, DAYS_MAX)),
    "lists_mib": ("lists_mib", *_whole(1, LISTS_MIB_MAX)),
}


def read_plans(path: Path | None) -> Plans:
    """Return the plans, with the file's values in place of the built-in ones.

    Raises WrongSetting: one line that names the setting or file, the key, its value and the
    values that it takes.
    """
    if path is None:
        return PLANS
    try:
        tables = read_toml(path)
    except Unreadable as error:
        raise wrong_file("PLANS_FILE", path, error) from None
    plans = dict(SOLD)
    tier: SoldTier
    for tier in get_args(SoldTier):
        plans[tier] = _changed(plans[tier], tables.pop(tier, {}), path)
    if tables:
        tiers = ", ".join(f"[{tier}]" for tier in plans)
        raise WrongSetting(f"{path} has {next(iter(tables))!r}; it takes the tables {tiers}")
    return _with_own(plans)


def _changed(plan: PricingPlan, table: object, path: Path) -> PricingPlan:
    if not isinstance(table, dict):
        raise WrongSetting(f"{plan.tier} in {path} is not a table; write [{plan.tier}]")
    for key, value in table.items():
        if key not in KEYS:
            keys = ", ".join(KEYS)
            raise WrongSetting(f"{path} has {key!r} in [{plan.tier}]; it takes {keys}")
        field, read, takes = KEYS[key]
        try:
            changes: dict[str, Any] = {field: read(value)}
        except ValueError:
            shown = repr(value)[:80]
            raise WrongSetting(
                f"{key} in [{plan.tier}] of {path} is {shown}: it takes {takes}"
            ) from None
        plan = replace(plan, **changes)
    return plan
