"""The operator's page: all accounts, the load, and the hosts that are left alone."""

from collections import defaultdict
from datetime import date, timedelta

from quart import Blueprint, Response

from mailprobe.api.pages.dashboard.frame import Frame
from mailprobe.api.pages.dashboard.health import OPERATOR_PAGE
from mailprobe.storage.oversight import ReputationDay

ACCOUNTS_MAX = 500
HOSTS_MAX = 100
REPUTATION_DAYS = 30


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the route."""

    @pages.get(OPERATOR_PAGE)
    @frame.for_operators
    async def operator() -> Response:
        service = frame.service
        accounts = await service.store.accounts()
        first = service.now().date() - timedelta(days=REPUTATION_DAYS)
        dispatcher = service.quota.engine.dispatcher
        return await frame.page(
            "operator.html", "Operator", accounts=accounts[-ACCOUNTS_MAX:][::-1],
            count=len(accounts), load=dispatcher.statistics(),
            resting=sorted(dispatcher.hosts_backing_off(), key=lambda host: host.name)[:HOSTS_MAX],
            capacity=service.capacity,
            reputation=by_day(await service.store.reputation(first))[::-1],
        )  # fmt: skip


def by_day(counted: list[ReputationDay]) -> list[ReputationDay]:
    """The days with the sums over all operators."""
    sums: defaultdict[date, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for each in counted:
        answers, refused = sums[each.day]
        sums[each.day] = answers + each.answers, refused + each.refused
    return [ReputationDay(day, "", *of_day) for day, of_day in sums.items()]
