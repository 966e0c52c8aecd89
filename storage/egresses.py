"""Egresses of a fleet by name: their rests, their probes of the day, and replies of mail hosts.

Also the reputation of the service with mail hosts, by day. The store knows no limits: processes
bring them. Rows are always locked in the order of their keys.
"""

from collections.abc import Mapping, Sequence, Set
from datetime import date, datetime, timedelta
from typing import NamedTuple

from msgspec import Struct, field

from . import audit
from .audit import Act, ActKind
from .base.columns import instant, micros
from .database import Database, StorePart, read, write
from .records import SERVICE, Actor

TRIAL_EVERY = timedelta(minutes=5)  # one address of a quarantined egress, over the fleet
# Days and replies of an egress: so long is a month of warm-up seen, and who refused it.
EGRESS_KEPT = timedelta(days=60)
REPUTATION_KEPT = timedelta(days=400)


class EgressRest(Struct, frozen=True):
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


class EgressBoard(Struct, frozen=True):
    """All that rest, and the use of one day, each by the egress' name."""

    rests: Mapping[str, EgressRest] = field(default_factory=dict)
    uses: Mapping[str, DayUse] = field(default_factory=dict)


class EgressReport(Struct, frozen=True):
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


class EgressGrant(Struct, frozen=True):
    """What a process may do, and the board after its report."""

    board: EgressBoard
    blocks: Mapping[str, int] = field(default_factory=dict)  # what it got; below 0: gave back
    trials: Set[str] = frozenset()  # that it may try with one address each


class ReputationDay(Struct, frozen=True):
    """What one operator's mail hosts answered on one UTC day, by number of addresses."""

    day: date
    operator: str  # empty: of a version that did not tell them apart
    answers: int
    refused: int  # of them: the host refused because of this machine


CLOCKS_APART = timedelta(minutes=3)  # of the machines of a fleet, at most

COUNT = (
    "INSERT INTO egress_days (day, egress, reserved, asked) VALUES (:day, :egress, 0, :asked)"
    " ON CONFLICT (day, egress) DO UPDATE SET asked = egress_days.asked + excluded.asked"
)
COUNT_REPLY = (
    "INSERT INTO egress_replies (egress, operator, reason, day, times, last_at)"
    " VALUES (:egress, :operator, :reason, :day, :times, :now)"
    " ON CONFLICT (egress, operator, reason) DO UPDATE SET last_at = excluded.last_at,"
    " day = CASE WHEN excluded.day > egress_replies.day THEN excluded.day ELSE egress_replies.day"
    " END, times = CASE WHEN excluded.day > egress_replies.day THEN excluded.times"
    " WHEN excluded.day < egress_replies.day THEN egress_replies.times"
    " ELSE egress_replies.times + excluded.times END"
)
QUARANTINE = (
    "INSERT INTO egress_rests (egress, quarantined_at, why, trial_at)"
    " VALUES (:egress, :now, :why, :trial)"
    " ON CONFLICT (egress) DO UPDATE SET why = excluded.why, trial_at = excluded.trial_at,"
    " quarantined_at = coalesce(egress_rests.quarantined_at, excluded.quarantined_at)"
)
RELEASE = (
    "UPDATE egress_rests SET quarantined_at = NULL, why = NULL, trial_at = NULL"
    " WHERE egress = :egress"
)
# An instant far ahead was written by a clock that was.
TRY = (
    "UPDATE egress_rests SET trial_at = :trial WHERE egress = :egress AND paused_at IS NULL"
    " AND quarantined_at IS NOT NULL AND (trial_at <= :now OR trial_at > :ahead)"
)
PAUSE = (
    "INSERT INTO egress_rests (egress, paused_at) VALUES (:egress, :now) ON CONFLICT (egress)"
    " DO UPDATE SET paused_at = excluded.paused_at WHERE egress_rests.paused_at IS NULL"
)


def report_egresses(db: Database, report: EgressReport) -> EgressGrant:
    """Add what a process counted, and grant the blocks and the trials that it wants.

    All blocks of a day together never exceed the limit that they were wanted with. Of a
    quarantined egress one process gets a trial each TRIAL_EVERY.
    """
    blocks = _count(db, report)
    now = db.now()
    db.change_each(
        COUNT_REPLY,
        [
            {**each._asdict(), "day": each.day.isoformat(), "now": micros(now)}
            for each in sorted(report.replies)
        ],
    )
    _rest(db, report, now)
    return EgressGrant(egress_board(db, report.day), blocks, _tried(db, report.trials, now))


def _count(db: Database, report: EgressReport) -> Mapping[str, int]:
    """Add what was asked, and grant blocks: return what each egress got."""
    asked = {(each.day, each.egress): each.asked for each in report.counts}
    asked |= {
        (report.day, each.egress): asked.get((report.day, each.egress), 0) for each in report.blocks
    }
    rows = [
        {"day": day.isoformat(), "egress": egress, "asked": asked[day, egress]}
        for day, egress in sorted(asked)
    ]
    db.change_each(COUNT, rows)  # from here on no other transaction has these rows
    wanted = sorted(report.blocks)
    keys = [{"day": report.day.isoformat(), "egress": each.egress} for each in wanted]
    found = db.all_each(
        "SELECT reserved FROM egress_days WHERE day = :day AND egress = :egress", keys
    )
    blocks: dict[str, int] = {}
    for each, ((reserved,),) in zip(wanted, found, strict=True):
        free = max(0, each.limit - reserved)
        blocks[each.egress] = max(-reserved, min(each.wanted, free))
    db.change_each(
        "UPDATE egress_days SET reserved = reserved + :block WHERE day = :day AND egress = :egress",
        [{**key, "block": blocks[key["egress"]]} for key in keys],
    )
    return blocks


def _rest(db: Database, report: EgressReport, now: datetime) -> None:
    """Write who is quarantined from now on, and who no longer."""
    db.change_each(
        QUARANTINE,
        [
            {
                "egress": egress,
                "why": report.quarantined[egress],
                "now": micros(now),
                "trial": micros(now + TRIAL_EVERY),
            }
            for egress in sorted(report.quarantined)
        ],
    )
    db.change_each(RELEASE, [{"egress": egress} for egress in sorted(report.released)])
    if report.released:
        _drop_rested(db)


def _tried(db: Database, trials: Set[str], now: datetime) -> Set[str]:
    """The egresses among these that this process may try now."""
    values = {
        "now": micros(now),
        "trial": micros(now + TRIAL_EVERY),
        "ahead": micros(now + TRIAL_EVERY + CLOCKS_APART),
    }
    return {each for each in sorted(trials) if db.change(TRY, {**values, "egress": each})}


def egress_board(db: Database, day: date) -> EgressBoard:
    """Return those that rest, and what each was used for on this day."""
    rests = db.all("SELECT egress, paused_at, quarantined_at, why, trial_at FROM egress_rests", {})
    uses = db.all(
        "SELECT egress, reserved, asked FROM egress_days WHERE day = :day", {"day": day.isoformat()}
    )
    return EgressBoard(
        {
            egress: EgressRest(_instant(paused), _instant(quarantined), why, _instant(trial))
            for egress, paused, quarantined, why, trial in rests
        },
        {egress: DayUse(reserved, asked) for egress, reserved, asked in uses},
    )


def _instant(value: int | None) -> datetime | None:
    return None if value is None else instant(value)


def latest_replies(db: Database) -> list[LatestReply]:
    """Return the replies of every egress within EGRESS_KEPT, by operator and reason."""
    rows = db.all(
        "SELECT egress, operator, reason, day, times, last_at FROM egress_replies"
        " ORDER BY egress, operator, reason",
        {},
    )
    return [
        LatestReply(egress, operator, reason, date.fromisoformat(day), times, instant(last_at))
        for egress, operator, reason, day, times, last_at in rows
    ]


def pause_egress(
    db: Database, egress: str, *, account_id: str | None = None, by: Actor = SERVICE
) -> bool:
    """Let it rest until it is resumed; False if it is paused. The account's audit log has it."""
    is_new = bool(db.change(PAUSE, {"egress": egress, "now": micros(db.now())}))
    if is_new:
        _record(db, egress, "egress_paused", account_id, by)
    return is_new


def resume_egress(
    db: Database, egress: str, *, account_id: str | None = None, by: Actor = SERVICE
) -> bool:
    """End its pause and its quarantine; False if it has neither. The audit log has it."""
    has_rested = bool(
        db.change("DELETE FROM egress_rests WHERE egress = :egress", {"egress": egress})
    )
    if has_rested:
        _record(db, egress, "egress_resumed", account_id, by)
    return has_rested


def _record(db: Database, egress: str, kind: ActKind, account_id: str | None, by: Actor) -> None:
    if account_id is not None:
        audit.add_to(db, account_id, by, Act(kind, subject=egress, name=egress))


def _drop_rested(db: Database) -> None:
    nothing: dict[str, object] = {}
    db.change(
        "DELETE FROM egress_rests WHERE paused_at IS NULL AND quarantined_at IS NULL", nothing
    )


def count_reputation(db: Database, counted: Sequence[ReputationDay]) -> None:
    """Add to the counts of days; forget what is older than REPUTATION_KEPT."""
    db.change_each(
        "INSERT INTO reputation (day, operator, answers, refused)"
        " VALUES (:day, :operator, :answers, :refused)"
        " ON CONFLICT (day, operator) DO UPDATE SET answers = reputation.answers + excluded.answers,"
        " refused = reputation.refused + excluded.refused",
        [
            {
                "day": each.day.isoformat(),
                "operator": each.operator,
                "answers": each.answers,
                "refused": each.refused,
            }
            for each in counted
        ],
    )
    for day in {each.day for each in counted}:
        oldest = day - REPUTATION_KEPT
        db.change("DELETE FROM reputation WHERE day < :oldest", {"oldest": oldest.isoformat()})


def reputation(db: Database, first: date) -> list[ReputationDay]:
    """Return the days with answers from `first` on, in order, each by operator."""
    rows = db.all(
        "SELECT day, operator, answers, refused FROM reputation WHERE day >= :first"
        " ORDER BY day, operator",
        {"first": first.isoformat()},
    )
    return [ReputationDay(date.fromisoformat(day), *rest) for day, *rest in rows]


class EgressStore(StorePart):
    """The part of the store that processes share about their egresses."""

    report_egresses = write(report_egresses)
    egresses = read(egress_board)
    egress_replies = read(latest_replies)
    pause_egress = write(pause_egress)
    resume_egress = write(resume_egress)
    count_reputation = write(count_reputation)
    reputation = read(reputation)
