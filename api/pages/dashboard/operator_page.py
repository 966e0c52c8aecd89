"""The operator's page: all accounts, the load, and the hosts that are left alone."""

from datetime import timedelta

from quart import Blueprint, Response
from werkzeug.exceptions import NotFound

from mailprobe.api.pages.dashboard.frame import HOME, Frame, caller
from mailprobe.api.pages.dashboard.health import trouble_of

ACCOUNTS_MAX = 500
HOSTS_MAX = 100
REPUTATION_DAYS = 30


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the route."""

    @pages.get(f"{HOME}/operator")
    @frame.signed_in
    async def operator() -> Response:
        if not frame.is_operator(caller()):
            raise NotFound
        service = frame.service
        accounts = await service.store.accounts()
        first = service.now().date() - timedelta(days=REPUTATION_DAYS)
        dispatcher = service.quota.engine.dispatcher
        resting = sorted(
            (name, cause.words, cause.about_us) for name, cause in dispatcher.hosts_backing_off()
        )
        return await frame.page(
            "operator.html", "Operator", accounts=accounts[-ACCOUNTS_MAX:][::-1],
            count=len(accounts), load=dispatcher.statistics(), resting=resting[:HOSTS_MAX],
            capacity=service.capacity, trouble=await trouble_of(service, caller().account.id, names_hosts=True),
            reputation=(await service.store.reputation(first))[::-1],
        )  # fmt: skip
