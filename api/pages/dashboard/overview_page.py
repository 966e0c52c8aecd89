"""The overview: this month, the results of some days by light, what runs now, and what is wrong now."""

from datetime import date, timedelta

from msgspec import Struct
from quart import Blueprint, Response, request

from mailprobe.storage.records import DayCount

from ...lists.stages import UNDER_WAY
from ...operations.list_jobs import ListsResponse
from ...operations.usage import USAGE_DAYS
from ...quota.plans import eur_up
from ...results.advice import ANSWERS_BY_COLOUR
from ..icons import KINDS, ChartDay, stacked_days
from .frame import HOME, Frame, caller, is_operator
from .health import trouble_of, was_tested
from .limits_page import euros_of
from .start_page import steps_of
from .work.work_pages import shown_lists

LISTS_SHOWN = 10
SPANS = (7, USAGE_DAYS)  # days to choose from
CHART = "Results of each day by answer: the table below has the numbers"
JOBS_COUNTED = 100  # more are shown as this and a plus sign


class DayResults(Struct, frozen=True):
    """The results of a day by light; `other` are of a version that did not count lights."""

    day: date
    green: int = 0
    yellow: int = 0
    red: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        return self.green + self.yellow + self.red + self.other


def results_by_day(counted: list[DayCount], first: date) -> list[DayResults]:
    """USAGE_DAYS days from `first` on, those without a result too."""
    known = {each.day: each for each in counted}
    days = []
    for number in range(USAGE_DAYS):
        day = first + timedelta(days=number)
        each = known.get(day, DayCount(day, 0))
        other = max(0, each.calls - each.green - each.yellow - each.red)
        days.append(DayResults(day, each.green, each.yellow, each.red, other))
    return days


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""

    @pages.get(HOME)
    @frame.signed_in
    async def overview() -> Response:
        usage, days = await _month(frame), await _days(frame)
        return await frame.page(
            "overview.html", "Overview", **usage, **days, **await _now(frame),
            steps=None if days["has_any"] else await steps_of(frame),
            takes_test_keys=frame.service.takes_test_keys,
        )  # fmt: skip

    @pages.get(f"{HOME}/now")
    @frame.signed_in
    async def now() -> Response:
        """What runs and what is wrong; the overview fetches it again and again."""
        return await frame.page("now.html", "Now", **await _now(frame))


async def _month(frame: Frame) -> dict[str, object]:
    """The use of this month, and what it may come to."""
    account = caller().account
    plan = frame.service.plans[account.tier]
    usage = await frame.month()
    start, end, used = usage.period.start, usage.period.end, usage.calls_used
    passed_s = max(1.0, (frame.service.now() - start).total_seconds())
    projected = round(used * max(1.0, (end - start).total_seconds() / passed_s))
    return {
        "plan": plan,
        "usage": usage,
        "share": min(100, round(100 * used / max(1, usage.calls_included))),
        "projected": projected,
        "projected_eur": eur_up(plan.overage_micros(projected)),
        "soft_cap": euros_of(account.soft_cap_micros),
        "hard_cap": euros_of(account.hard_cap_micros),
    }


async def _days(frame: Frame) -> dict[str, object]:
    """The results of the days that were chosen, and their chart."""
    today = frame.service.now().date()
    first = today - timedelta(days=USAGE_DAYS - 1)
    counted = await frame.service.store.days(caller().account.id, first, today)
    span = SPANS[0] if request.args.get("days") == str(SPANS[0]) else USAGE_DAYS
    every_day = results_by_day(counted, first)
    days = every_day[-span:]
    total, has_other = sum(each.total for each in days), any(each.other for each in days)
    charted = [ChartDay(each.day, (each.green, each.yellow, each.red, each.other)) for each in days]
    return {
        "span": span,
        "spans": SPANS,
        "has_any": any(each.total for each in every_day),
        "days": days if total else [],
        "has_other": has_other,
        "total": total,
        "a_day": round(total / len(days)),
        "sums": [
            (answer, sum(getattr(each, colour) for each in days))
            for colour, answer in ANSWERS_BY_COLOUR.items()
        ],
        "chart": stacked_days(charted, CHART, (*KINDS, "other")),
    }


async def _now(frame: Frame) -> dict[str, object]:
    """What runs now, and what is wrong."""
    account_id = caller().account.id
    lists = (await frame.result_of(ListsResponse, "list_lists")).lists
    jobs = await frame.service.store.jobs(
        account_id=account_id, state="pending", limit=JOBS_COUNTED + 1
    )
    trouble = await trouble_of(frame.service, account_id, lists, for_operator=is_operator())
    return {
        "running": await shown_lists(
            frame, [each for each in lists if each.status in UNDER_WAY][:LISTS_SHOWN]
        ),
        "jobs": len(jobs),
        "jobs_max": JOBS_COUNTED,
        "trouble": trouble,
        "is_well": not trouble and was_tested(frame.service),
    }
