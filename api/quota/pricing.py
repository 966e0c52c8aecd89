"""What is billable and what it costs: whole micro-euros, rounded up to the cent at the very end.

Pure. No fraction of a binary kind ever holds money; euros appear only in answers.
"""

from mailprobe.api.quota.plans import PricingPlan

MICROS_PER_CENT = 10_000

BILLABLE_CHECKS = frozenset({"disposable", "no_mx", "smtp", "smtp_timeout", None})


def is_billable(failed_check: str | None) -> bool:
    """Is a result that was returned billable? Yes, if layer 1 passed."""
    return failed_check in BILLABLE_CHECKS


def overage_calls(plan: PricingPlan, calls: int) -> int:
    """How many of so many billable calls lie beyond what the plan includes."""
    return max(0, calls - plan.monthly_calls)


def overage_micros(plan: PricingPlan, calls: int) -> int:
    """What so many billable calls cost beyond the plan's own price, not rounded yet."""
    if plan.monthly_quota is not None:
        return 0  # more than the quota is never sold
    return overage_calls(plan, calls) * plan.price_micros_per_call


def cents_up(micros: int) -> int:
    """Whole cents; any part of one counts as one."""
    return -(-micros // MICROS_PER_CENT)


def eur_up(micros: int) -> float:
    """Euros to show, rounded up to the cent: the nearest number to a whole count of cents."""
    return cents_up(micros) / 100
