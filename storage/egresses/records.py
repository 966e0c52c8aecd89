"""Egresses as the store keeps them, by name. The store knows no limits: processes bring them."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import NamedTuple

TRIAL_EVERY = timedelta(minutes=5)  # one address of a quarantined egress, over the fleet
# Days and replies of an egress: so long is a month of warm-up seen, and who refused it.
EGRESS_KEPT = timedelta(days=60)


@dataclass(frozen=True, slots=True)
class EgressRest:
    """An egress that is not used; each field is None where that is not the cause."""

    paused_at: datetime | None = None  # by the operator
    quarantined_at: datetime | None = None
    why: str | None = None  # it was quarantined
    trial_at: datetime | None = None  # when it may be tried again


class DayUse(NamedTuple):
    """Addresses of an egress on one day, over all processes."""

    reserved: int = 0  # asked or set aside by processes; only of an egress with a limit
    asked: int = 0


class EgressCount(NamedTuple):
    """What a process asked by an egress on a day."""

    egress: str
    day: date
    asked: int


class BlockRequest(NamedTuple):
    """A process wants so many more addresses of today; below 0 it gives back."""

    egress: str
    wanted: int
    limit: int  # of the day


class ReplyCount(NamedTuple):
    """How often mail hosts of an operator replied so to an egress on a day."""

    egress: str
    operator: str
    reason: str
    day: date
    times: int


class LatestReply(NamedTuple):
    """Replies of one kind: how many there were on the last day that had any, and the last one."""

    egress: str
    operator: str
    reason: str
    day: date
    times: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class EgressBoard:
    """All that rest, and the use of one day, each by the egress' name."""

    rests: Mapping[str, EgressRest] = field(default_factory=dict)
    uses: Mapping[str, DayUse] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EgressReport:
    """What a process reports and wants, in one transaction."""

    day: date  # of the blocks, and of the board that it gets
    counts: Sequence[EgressCount] = ()
    blocks: Sequence[BlockRequest] = ()
    replies: Sequence[ReplyCount] = ()
    quarantined: Mapping[str, str] = field(default_factory=dict)  # with the reason
    released: Set[str] = frozenset()
    trials: Set[str] = frozenset()  # that it would like to try

    def __bool__(self) -> bool:
        return any(
            (self.counts, self.blocks, self.replies, self.quarantined, self.released, self.trials)
        )


@dataclass(frozen=True, slots=True)
class EgressGrant:
    """What a process may do, and the board after its report."""

    board: EgressBoard
    blocks: Mapping[str, int] = field(default_factory=dict)  # what it got; below 0: gave back
    trials: Set[str] = frozenset()  # that it may try with one address each
