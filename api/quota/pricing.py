"""Billable units and their price, in whole micro-euros, rounded up to cents at the end.

Pure. Money is never held as a binary fraction; euros appear only in answers.
"""

import re

from mailprobe.storage.records import Tier

from .plans import MICROS_PER_EUR, PricingPlan

MICROS_PER_CENT = 10_000

BILLABLE_CHECKS = frozenset({"disposable", "no_mx", "smtp", "smtp_timeout", None})


def is_billable(failed_check: str | None) -> bool:
    """Is a returned result billable? Yes, if layer 1 (syntax) passed."""
    return failed_check in BILLABLE_CHECKS


def overage_calls(plan: PricingPlan, calls: int) -> int:
    """How many of the billable calls exceed what the plan includes."""
    return max(0, calls - plan.monthly_calls)


def overage_micros(plan: PricingPlan, calls: int) -> int:
    """The price in micro-euros of the calls beyond what the plan includes, not rounded."""
    if plan.monthly_quota is not None:
        return 0  # a plan with a quota sells no overage
    return overage_calls(plan, calls) * plan.price_micros_per_call


def cents_up(micros: int) -> int:
    """Whole cents; any part of one counts as one."""
    return -(-micros // MICROS_PER_CENT)


def eur_up(micros: int) -> float:
    """Euros for an answer, rounded up to whole cents."""
    return cents_up(micros) / 100


def is_reported(tier: Tier) -> bool:
    """Whether billable units of this tier go to the billing provider's meter."""
    return tier not in ("free", "own")


def micros_of(text: str) -> int:
    """Micro-euros of euros and cents, such as 25 or 12.50. Raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,2})?", text, re.ASCII):
        raise ValueError(text)
    euros, _, cents = text.partition(".")
    return int(euros) * MICROS_PER_EUR + int(cents.ljust(2, "0")) * MICROS_PER_CENT
