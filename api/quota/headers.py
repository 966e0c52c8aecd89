"""Response headers that tell a caller what is left of its limits."""

from datetime import timedelta
from math import ceil

from mailprobe.api.quota.plans import PricingPlan
from mailprobe.api.quota.policy import (
    WINDOW,
    limit_of_account,
    next_month,
    units_in,
    used_last_minute,
)
from mailprobe.storage.records import Ledger


def limit_headers(plan: PricingPlan, ledger: Ledger, granted: int = 0) -> dict[str, str]:
    """Return RateLimit and RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-10).

    `r` is what is left after the units just granted, `t` the seconds until more is free.
    """
    limit = plan.rate_limit_per_min
    left = max(0, limit - used_last_minute(ledger) - granted)
    if (all_keys := limit_of_account(plan, ledger)) is not None:
        left = min(left, max(0, all_keys - units_in(ledger, ledger.account_window) - granted))
    oldest = next((at for at, _ in ledger.window if at > ledger.asked_at - WINDOW), ledger.asked_at)
    more_s = ceil((oldest + WINDOW - ledger.asked_at).total_seconds())
    policies = [f'"minute";q={limit};w=60']
    limits = [f'"minute";r={left};t={more_s}']
    if plan.monthly_quota is not None:
        month_left = max(0, plan.monthly_quota - ledger.month_units - granted)
        month_ends = next_month(ledger.asked_at)
        days = (month_ends - timedelta(days=1)).day
        more_s = ceil((month_ends - ledger.asked_at).total_seconds())
        policies.append(f'"month";q={plan.monthly_quota};w={days * 86_400}')
        limits.append(f'"month";r={month_left};t={more_s}')
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(limits)}
