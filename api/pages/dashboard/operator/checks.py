"""The checks of `mailprobe doctor` on the operator's page."""

from quart import Blueprint, Response
from werkzeug.exceptions import NotFound

from ..frame import Frame, away, is_part
from ..roles import OPERATOR

CHECKS = f"{OPERATOR}/checks"


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""

    @pages.get(CHECKS)
    @frame.for_operators
    async def checks() -> Response:
        """The table; without script it is a page of its own."""
        return await shown(anew=False)

    @pages.post(CHECKS)
    @frame.for_operators
    async def check_again() -> Response:
        made = await shown(anew=True)
        return made if is_part() else away(CHECKS)

    async def shown(*, anew: bool) -> Response:
        deployment = frame.service.deployment
        if deployment is None or deployment.checks is None:
            raise NotFound
        checked = await deployment.checks.latest(frame.service.now, anew=anew)
        template = "checks.html" if is_part() else "checks_page.html"
        return await frame.page(template, "Checks", checked=checked)
