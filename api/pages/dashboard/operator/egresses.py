"""The egresses on the operator's page: their table, and the buttons that pause and resume them."""

from quart import Blueprint, Response
from werkzeug.exceptions import NotFound

from ....egress.report import EgressOverview, overviews
from ..frame import Frame, away, caller
from ..roles import OPERATOR

EGRESSES = f"{OPERATOR}/egresses"
SHOWN = f"{OPERATOR}#egresses"


async def egresses_of(frame: Frame) -> list[EgressOverview]:
    """Every egress of the file, as the store has it; none without a file."""
    control, store = frame.service.egress_control, frame.service.store
    if control is None:
        return []
    today = frame.service.now().date()
    return overviews(
        control.egresses, await store.egresses(today), await store.egress_replies(), today
    )


def register(pages: Blueprint, frame: Frame) -> None:
    """Add the routes."""
    store = frame.service.store

    @pages.post(f"{EGRESSES}/<name>/pause")
    @frame.for_operators
    async def pause_egress(name: str) -> Response:
        await store.pause_egress(_known(name), account_id=caller().account.id, by=frame.operator())
        return away(SHOWN)

    @pages.post(f"{EGRESSES}/<name>/resume")
    @frame.for_operators
    async def resume_egress(name: str) -> Response:
        """End its pause and its quarantine."""
        await store.resume_egress(_known(name), account_id=caller().account.id, by=frame.operator())
        return away(SHOWN)

    def _known(name: str) -> str:
        control = frame.service.egress_control
        if control is None or all(row.name != name for row in control.egresses.rows):
            raise NotFound
        return name
