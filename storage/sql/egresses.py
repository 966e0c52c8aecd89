"""Transactions of egresses. Rows are always locked in the order of their keys."""

from collections.abc import Mapping, Set
from datetime import date, datetime, timedelta

from mailprobe.storage import audit
from mailprobe.storage.audit import Act, ActKind
from mailprobe.storage.columns import instant, micros
from mailprobe.storage.database import Database
from mailprobe.storage.egresses.commands import (
    PauseEgress,
    ReadEgresses,
    ReadReplies,
    ReportEgresses,
    ResumeEgress,
)
from mailprobe.storage.egresses.records import (
    TRIAL_EVERY,
    DayUse,
    EgressBoard,
    EgressGrant,
    EgressReport,
    EgressRest,
    LatestReply,
)

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


def report(db: Database, command: ReportEgresses) -> EgressGrant:
    """See EgressStore.report_egresses."""
    report = command.report
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
    return EgressGrant(_board(db, report.day), blocks, _tried(db, report.trials, now))


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


def read(db: Database, command: ReadEgresses) -> EgressBoard:
    """See EgressStore.egresses."""
    return _board(db, command.day)


def _board(db: Database, day: date) -> EgressBoard:
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


def read_replies(db: Database, _: ReadReplies) -> list[LatestReply]:
    """See EgressStore.egress_replies."""
    rows = db.all(
        "SELECT egress, operator, reason, day, times, last_at FROM egress_replies"
        " ORDER BY egress, operator, reason",
        {},
    )
    return [
        LatestReply(egress, operator, reason, date.fromisoformat(day), times, instant(last_at))
        for egress, operator, reason, day, times, last_at in rows
    ]


def pause(db: Database, command: PauseEgress) -> bool:
    """See EgressStore.pause_egress."""
    values = {"egress": command.egress, "now": micros(db.now())}
    return bool(db.change(PAUSE, values)) and _recorded(db, command, "egress_paused")


def resume(db: Database, command: ResumeEgress) -> bool:
    """See EgressStore.resume_egress."""
    gone = db.change("DELETE FROM egress_rests WHERE egress = :egress", {"egress": command.egress})
    return bool(gone) and _recorded(db, command, "egress_resumed")


def _recorded(db: Database, command: PauseEgress | ResumeEgress, kind: ActKind) -> bool:
    if command.account_id is not None:
        act = Act(kind, subject=command.egress, name=command.egress)
        audit.add_to(db, command.account_id, command.by, act)
    return True


def _drop_rested(db: Database) -> None:
    nothing: dict[str, object] = {}
    db.change(
        "DELETE FROM egress_rests WHERE paused_at IS NULL AND quarantined_at IS NULL", nothing
    )
