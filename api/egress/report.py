"""An egress as its operator sees it: in the command line, and on the operator's page. Pure."""

from collections.abc import Sequence
from datetime import date, datetime

from msgspec import Struct

from mailprobe.engine.egress import DailyLimit, Egress, Egresses, EgressState
from mailprobe.storage.egresses import DayUse, EgressBoard, EgressRest, LatestReply

from .control import states_of
from .ways import way_of

REFUSED = "blocked_us"  # the reason that counts against an egress


class EgressOverview(Struct, frozen=True):
    """One egress of the file, with what all processes know of it."""

    name: str
    way: str  # its address or its proxy, without a password
    state: EgressState
    rest: EgressRest
    asked: int  # addresses today
    reserved: int  # of its limit: asked, or set aside by processes
    limit: int | None
    answers: int  # of mail hosts today
    refused: int  # of them
    last_refused: LatestReply | None
    replies: Sequence[LatestReply]
    row: Egress

    @property
    def share(self) -> float | None:
        """The part of today's answers that refused us; None without an answer."""
        return self.refused / self.answers if self.answers else None

    @property
    def steps(self) -> tuple[DailyLimit, ...]:
        """Its addresses a day by date; empty where there is no limit."""
        return self.row.daily

    def since(self) -> datetime | None:
        """Since when it rests."""
        return self.rest.paused_at or self.rest.quarantined_at


def overviews(
    egresses: Egresses, board: EgressBoard, replies: Sequence[LatestReply], today: date
) -> list[EgressOverview]:
    """Every egress of the file, in its order; what the store has of others is left out."""
    states = states_of(board, egresses)
    return [
        _overview(
            row,
            states[row.name],
            board,
            [reply for reply in replies if reply.egress == row.name],
            today,
        )
        for row in egresses.rows
    ]


def _overview(
    row: Egress,
    state: EgressState,
    board: EgressBoard,
    replies: Sequence[LatestReply],
    today: date,
) -> EgressOverview:
    counted = [reply for reply in replies if reply.day == today]
    refusals = [reply for reply in replies if reply.reason == REFUSED]
    use = board.uses.get(row.name, DayUse())
    return EgressOverview(
        row.name,
        way_of(row),
        state,
        board.rests.get(row.name, EgressRest()),
        use.asked,
        use.reserved,
        row.limit_on(today),
        sum(reply.times for reply in counted),
        sum(reply.times for reply in counted if reply.reason == REFUSED),
        max(refusals, key=lambda reply: reply.last_at, default=None),
        sorted(replies, key=lambda reply: reply.last_at, reverse=True),
        row,
    )
