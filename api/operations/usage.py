"""The operations on usage: this month, and the last days. A provisioning key is needed for them."""

from datetime import date, timedelta
from typing import Annotated

from msgspec import Struct

from mailprobe.storage.records import Ledger, SoldTier
from mailprobe.storage.usage import month_bounds

from ..quota.plans import PricingPlan, eur_up, sold_tier
from ..schema import Instant, says
from ..service import Service
from .examples import MONTH, NEXT_MONTH
from .operation import (
    MANAGING,
    Call,
    Operation,
    OperationReply,
    ToolForm,
    ToolText,
    reply,
)

USAGE_DAYS = 30


class UsageDay(Struct, frozen=True):
    """Billable verifications of one UTC day."""

    date: Annotated[date, says("The UTC day.")]
    calls: Annotated[int, says("Billable verifications.")]


class ManagementUsageResponse(Struct, frozen=True):
    """The last 30 days, oldest first, today last."""

    days: Annotated[list[UsageDay], says("The last 30 UTC days, oldest first.")]


class Period(Struct, frozen=True):
    """From `start` up to but not including `end`."""

    start: Annotated[Instant, says("Its beginning.")]
    end: Annotated[Instant, says("Its end, which is not part of it.")]


class ManagementUsageSummaryResponse(Struct, frozen=True):
    """This UTC calendar month. Free counts quota units, the paid tiers billable verifications."""

    period: Annotated[Period, says("The UTC month.")]
    calls_used: Annotated[int, says("Free: units. Paid: billable verifications.")]
    calls_included: Annotated[int, says("Of the tier, in a month.")]
    calls_remaining: Annotated[int, says("What is left of those.")]
    overage_calls: Annotated[int, says("Beyond those.")]
    estimated_cost_eur: Annotated[float, says("What the overage costs until now.")]
    tier: Annotated[SoldTier, says("The tier, which decides limits and price.")]


async def get_usage(service: Service, call: Call) -> OperationReply:
    """Billable verifications of each of the last 30 UTC days."""
    today = service.now().date()
    first = today - timedelta(days=USAGE_DAYS - 1)
    counted = await service.store.days(call.caller.account.id, first, today)
    calls = {count.day: count.calls for count in counted}
    days = [first + timedelta(days=n) for n in range(USAGE_DAYS)]
    return reply(200, ManagementUsageResponse([UsageDay(day, calls.get(day, 0)) for day in days]))


async def get_usage_summary(service: Service, call: Call) -> OperationReply:
    """This month: used, included, left, beyond, and what that costs."""
    plan = service.plans[call.caller.account.tier]
    ledger = await service.store.ledger(call.caller)
    used = used_this_month(plan, ledger)
    start, end = month_bounds(ledger.asked_at)
    return reply(
        200,
        ManagementUsageSummaryResponse(
            period=Period(start, end),
            calls_used=used,
            calls_included=plan.monthly_calls,
            calls_remaining=max(0, plan.monthly_calls - used),
            overage_calls=plan.overage_calls(used),
            estimated_cost_eur=eur_up(plan.overage_micros(used)),
            tier=sold_tier(plan.tier),
        ),
    )


def used_this_month(plan: PricingPlan, ledger: Ledger) -> int:
    """This month's units on the free tier, billable verifications on the paid tiers."""
    return ledger.month_billable if plan.monthly_quota is None else ledger.month_units


SUMMARY = Operation(
    "get_usage_summary", "GET", "/v1/management/usage/summary", "This month's use and its cost",
    get_usage_summary, "provisioning", ManagementUsageSummaryResponse, may=MANAGING,
    tool=ToolForm(
        ToolText(
        "This month's usage",
        "This UTC month: verifications used, included, left and beyond the plan, and the "
        "estimated cost in EUR.",
        only_reads=True, repeats_freely=True,
    )
    ),
    examples=(
        ManagementUsageSummaryResponse(
            Period(MONTH, NEXT_MONTH), 5_100, 5_000, 0, 100, 0.4, "builder"
        ),
    ),
)  # fmt: skip
DAYS = Operation(
    "get_usage", "GET", "/v1/management/usage", "Billable verifications a day, 30 days",
    get_usage, "provisioning", ManagementUsageResponse, may=MANAGING,
    tool=ToolForm(ToolText("Usage by day", only_reads=True, repeats_freely=True)),
    examples=(
        ManagementUsageResponse([UsageDay(date(2026, 3, 13), 310), UsageDay(date(2026, 3, 14), 42)]),
    ),
)  # fmt: skip
