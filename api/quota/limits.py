"""The rest of a caller's limits, and the response headers that report it."""

from dataclasses import dataclass
from datetime import timedelta
from math import ceil

from mailprobe.storage.records import Ledger
from mailprobe.storage.usage import month_bounds

from .plans import UNLIMITED, PricingPlan
from .policy import (
    WINDOW,
    limit_of_account,
    units_in,
    used_last_minute,
)


@dataclass(frozen=True, slots=True)
class LimitsLeft:
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


def limits_left(plan: PricingPlan, ledger: Ledger, granted: int = 0) -> LimitsLeft:
    """Return what is left after the units just granted. Reads the ledger's window."""
    limit, now = plan.rate_limit_per_min, ledger.asked_at
    left = max(0, limit - used_last_minute(ledger) - granted)
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
        max(0, plan.monthly_quota - ledger.month_units - granted),
        ceil((month_ends - now).total_seconds()),
        (month_ends - timedelta(days=1)).day,
    )
