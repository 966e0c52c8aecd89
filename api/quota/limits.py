"""Limits of a caller: hard cap, rate limit per minute, monthly quota, and what is left of them.

They are checked in this order. Pure: the ledger was read in the transaction that will reserve
the units, and its `asked_at` is the present. A refusal says when the same request would pass.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from math import ceil

from msgspec import Struct

from mailprobe.storage.contract import WINDOW
from mailprobe.storage.records import Ledger, Window
from mailprobe.storage.usage import month_bounds

from ..refusals import HardCapReached, NeverFits, QuotaExhausted, RateLimited
from .plans import MICROS_PER_CENT, MICROS_PER_EUR, UNLIMITED, PricingPlan, cents_up, eur_up

LimitRefusal = HardCapReached | RateLimited | QuotaExhausted


def check_limits(
    plan: PricingPlan,
    ledger: Ledger,
    units: int,
    *,
    hard_cap_micros: int | None = None,
    calls_max: int | None = None,
    billable: bool = True,
    counts_month: bool = True,
) -> LimitRefusal | None:
    """Return why so many more units are too many, or None if they are not.

    `billable` is False for units that never cost anything (a malformed request): the hard
    cap does not apply to them. `counts_month` is False for units of the minute alone.
    `hard_cap_micros` is in micro-euros; None means no cap. Under a cap a publishable key stops
    after `calls_max` of the account's calls in the billing period.
    """
    if billable and (capped := _check_cap(plan, ledger, units, hard_cap_micros, calls_max)):
        return capped
    quota = _check_quota(plan, ledger, units) if counts_month else None
    return _check_rate(plan, ledger, units, quota) or quota


def _check_cap(
    plan: PricingPlan,
    ledger: Ledger,
    units: int,
    hard_cap_micros: int | None,
    calls_max: int | None,
) -> HardCapReached | None:
    """Treat every reserved or requested unit as billable; a total equal to the cap passes."""
    if hard_cap_micros is None:
        return None
    granted = ledger.period_billable + ledger.reserved
    projected = cents_up(plan.overage_micros(granted + units)) * MICROS_PER_CENT
    if projected <= hard_cap_micros and (calls_max is None or granted + units <= calls_max):
        return None
    return HardCapReached(
        hard_cap_eur=hard_cap_micros / MICROS_PER_EUR,
        current_overage_eur=eur_up(plan.overage_micros(granted)),
    )


def _check_rate(
    plan: PricingPlan, ledger: Ledger, units: int, quota: QuotaExhausted | None
) -> RateLimited | None:
    limit = plan.rate_limit_per_min
    also = f" The month's {quota.limit} are used up too." if quota else ""
    if units > limit:
        return NeverFits(limit, ledger.asked_at, ledger.asked_at + WINDOW, units, also=also)
    if units_in(ledger, ledger.window) + units > limit:
        passes = passes_at(ledger, ledger.window, limit - units)
        return RateLimited(limit, ledger.asked_at, passes, units, also=also)
    all_keys = limit_of_account(plan, ledger)
    if all_keys is None or units_in(ledger, ledger.account_window) + units <= all_keys:
        return None
    passes = passes_at(ledger, ledger.account_window, all_keys - units)
    also = f" That is for all keys of the account, those just revoked too.{also}"
    return RateLimited(all_keys, ledger.asked_at, passes, units, also=also)


def limit_of_account(plan: PricingPlan, ledger: Ledger) -> int | None:
    """Return the limit per minute of all keys together; None if the keys' own limits suffice.

    It keeps an account from getting a fresh minute by replacing a revoked key.
    """
    keys_max = max(1, plan.max_keys)
    return None if ledger.keys <= keys_max else keys_max * plan.rate_limit_per_min


def _check_quota(plan: PricingPlan, ledger: Ledger, units: int) -> QuotaExhausted | None:
    quota = plan.monthly_quota
    if quota is None or ledger.month_units + units <= quota:
        return None
    _, month_ends = month_bounds(ledger.asked_at)
    return QuotaExhausted(quota, ledger.month_units, ledger.asked_at, month_ends, units)


def units_in(ledger: Ledger, window: Iterable[tuple[datetime, int]]) -> int:
    """Units of the window that are younger than 60 seconds."""
    if isinstance(window, Window):
        return window.units  # summed by the store: it may hold thousands
    return sum(units for at, units in window if at > ledger.asked_at - WINDOW)


def passes_at(ledger: Ledger, window: Iterable[tuple[datetime, int]], used_max: int) -> datetime:
    """The earliest time at which no more than `used_max` of the window's units count."""
    used = units_in(ledger, window)
    for at, units in window:
        if used <= used_max:
            break
        if at > ledger.asked_at - WINDOW:
            used -= units
            passes = at + WINDOW
    return passes


class LimitsLeft(Struct, frozen=True):
    """The limits and what is left of them, in units; `_more_s` are seconds until more is free."""

    minute: int
    minute_left: int
    minute_more_s: int
    month: int | None = None  # None: no monthly quota
    month_left: int = 0
    month_more_s: int = 0
    month_days: int = 0

    def headers(self) -> dict[str, str]:
        """Return RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-10).

        An own account has no limit, so it has no policy: a client need not know a number that
        stands for none.
        """
        if self.minute >= UNLIMITED:
            return {}
        policies = f'"minute";q={self.minute};w=60'
        limits = f'"minute";r={self.minute_left};t={self.minute_more_s}'
        if self.month is not None:
            policies += f', "month";q={self.month};w={self.month_days * 86_400}'
            limits += f', "month";r={self.month_left};t={self.month_more_s}'
        return {"RateLimit-Policy": policies, "RateLimit": limits}


def limits_left(
    plan: PricingPlan, ledger: Ledger, granted: int = 0, *, counts_month: bool = True
) -> LimitsLeft:
    """Return what is left after the units just granted. Reads the ledger's window."""
    limit, now = plan.rate_limit_per_min, ledger.asked_at
    left = max(0, limit - units_in(ledger, ledger.window) - granted)
    if (all_keys := limit_of_account(plan, ledger)) is not None:
        left = min(left, max(0, all_keys - units_in(ledger, ledger.account_window) - granted))
    oldest = next((at for at, _ in ledger.window if at > now - WINDOW), now)
    more_s = ceil((oldest + WINDOW - now).total_seconds())
    if plan.monthly_quota is None:
        return LimitsLeft(limit, left, more_s)
    _, month_ends = month_bounds(now)
    return LimitsLeft(
        limit,
        left,
        more_s,
        plan.monthly_quota,
        max(0, plan.monthly_quota - ledger.month_units - (granted if counts_month else 0)),
        ceil((month_ends - now).total_seconds()),
        (month_ends - timedelta(days=1)).day,
    )
