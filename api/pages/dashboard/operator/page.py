"""The operator's page: throughput, resting hosts, reputation, tolerances, resolvers, queues, disks."""

from collections import Counter
from datetime import date, timedelta
from typing import get_args

from msgspec import Struct
from quart import Blueprint, Response, request

from mailprobe.storage.egresses import ReputationDay
from mailprobe.storage.list_jobs.queues import COUNTED_MAX, QueueName
from mailprobe.storage.pauses import PauseKind

from ....egress.tolerances import shown_tolerances
from ....service import Service
from ...icons import line_of_shares
from ..frame import Frame, away, form_fields
from ..health import of_checks
from ..roles import OPERATOR
from .egresses import egresses_of
from .machine import machine_of, size_of
from .throughput import throughput_of

HOSTS_MAX = 100
WAITING_HOSTS_MAX = 1_000  # of which the page knows how many addresses wait; the sum is of all
HOSTS_FIRST = 8  # the others are folded
ACCOUNTS_SHOWN = 10
REPUTATION_DAYS = 30
CHART = "Share of refusals that blame us, by day: the table below has the numbers"
QUEUES: dict[QueueName, str] = {
    "jobs": "Single verifications in the background",
    "callbacks": "Callbacks to deliver",
    "lists": "Parts of lists that run",
    "alert": "Mails about limits and lists",
    "meter": "Reports to the billing provider",
}
OPERATORS = {
    "": "Before operators were told apart",
    "other": "All others",
    "outlook-consumer": "Outlook.com",
    "icloud": "iCloud",
    "trendmicro": "Trend Micro",
    "ionos": "IONOS",
}


class ReplyCounts(Struct, frozen=True):
    """How mail hosts answered: those of an operator, or of a day."""

    answers: int
    refused: int
    operator: str = ""
    day: date | None = None

    @property
    def share(self) -> float:
        """Of the answers, the per cent that refused because of us."""
        return 100 * self.refused / max(1, self.answers)


def operator_name(operator: str) -> str:
    return OPERATORS.get(operator, operator.capitalize())


def by_operator(counted: list[ReputationDay]) -> list[ReplyCounts]:
    """The sums of each operator over all days, the most asked first."""
    answers, refused = Counter[str](), Counter[str]()
    for each in counted:
        answers[each.operator] += each.answers
        refused[each.operator] += each.refused
    return [ReplyCounts(number, refused[name], name) for name, number in answers.most_common()]


def by_day(counted: list[ReputationDay], operator: str | None) -> list[ReplyCounts]:
    """The sums of each day over all operators, or this one's; the newest day first."""
    answers, refused = Counter[date](), Counter[date]()
    for each in counted:
        if operator is None or each.operator == operator:
            answers[each.day] += each.answers
            refused[each.day] += each.refused
    return [
        ReplyCounts(answers[day], refused[day], day=day) for day in sorted(answers, reverse=True)
    ]


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""

    @pages.post(f"{OPERATOR}/unpause")
    @frame.for_operators
    async def unpause() -> Response:
        """End a pause that the page shows; one that is over is none any more."""
        form = await form_fields()
        kind = next((each for each in get_args(PauseKind) if each == form.get("kind")), None)
        if kind is not None:
            await frame.service.store.unpause(kind, form.get("name", ""), by=frame.operator())
        return away(f"{OPERATOR}#pauses")

    @pages.get(OPERATOR)
    @frame.for_operators
    async def operator() -> Response:
        service, now = frame.service, frame.service.now()
        engine, deployment = service.quota.engine, service.deployment
        throughput = deployment.throughput if deployment else None
        return await frame.page(
            "operator.html", "Service", trouble=of_checks(service),
            load=engine.probing.overview.statistics(), capacity=service.capacity,
            rate=None if throughput is None else throughput_of(
                throughput, now, request.args.get("hours")
            ),
            **await _refusals(service), **await _hosts(service),
            resolvers=[
                (each, None if each.answered_s is None else now - timedelta(seconds=each.answered_s))
                for each in engine.routes.resolvers()
            ],
            queues=[
                (QUEUES[each.name], each, now - timedelta(seconds=each.oldest_s) if each.due else None)
                for each in await service.store.queues()
            ],
            queued_max=COUNTED_MAX, pauses=await service.store.pauses(),
            egresses=await egresses_of(frame), helo_name=engine.settings.helo_name,
            has_checks=deployment is not None and deployment.checks is not None,
            machine=None if deployment is None else await machine_of(deployment), size=size_of,
            accounts=await service.store.find_accounts(limit=ACCOUNTS_SHOWN),
        )  # fmt: skip


async def _refusals(service: Service) -> dict[str, object]:
    """How operators of mail hosts have treated this service, by operator and by day."""
    first = service.now().date() - timedelta(days=REPUTATION_DAYS - 1)
    counted = await service.store.reputation(first)
    treatments = by_operator(counted)
    wanted = request.args.get("operator")
    chosen = wanted if any(each.operator == wanted for each in treatments) else None
    days = by_day(counted, chosen)
    chart: str = ""
    if len(days) > 1:
        shares = [(each.day, each.share) for each in reversed(days) if each.day]
        chart = line_of_shares(shares, CHART)
    return {
        "treatments": treatments,
        "operator_name": operator_name,
        "chosen": chosen,
        "days": days,
        "chart": chart,
    }


async def _hosts(service: Service) -> dict[str, object]:
    """Mail hosts that are left alone, what they tolerate, and what waits for them."""
    probing, now = service.quota.engine.probing, service.now()
    resting = sorted(
        probing.overview.hosts_backing_off(),
        key=lambda host: (not host.about_us, -host.left_s, host.name),
    )
    waiting = await service.store.waiting_hosts(hosts_max=WAITING_HOSTS_MAX)
    tolerances = shown_tolerances(
        await service.store.host_tolerances(), probing.overview.spent_budgets()
    )
    return {
        "hosts_first": HOSTS_FIRST,
        "resting": [(host, now + timedelta(seconds=host.left_s)) for host in resting[:HOSTS_MAX]],
        "tolerances": [
            (each, now + timedelta(seconds=each.rest_left_s) if each.rest_left_s else None)
            for each in tolerances[:HOSTS_MAX]
        ],
        "waiting": waiting,
        "waiting_at": {each.host: each.addresses for each in waiting.hosts},
    }
