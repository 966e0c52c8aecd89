"""Links that show the report of a list to whoever has one: a small table.

The store keeps the hash of what opens a link, so that a copy of it opens none.
"""

from datetime import datetime, timedelta

from msgspec import Struct

from ..base.columns import instant, micros
from ..database import Database, StorePart, read, write

REPORTS_MAX = 20  # of a list, that have not ended


class TooManyReports(Exception):
    """The list has REPORTS_MAX links."""


class SharedReport(Struct, frozen=True):
    """A link to the report of a list."""

    number: int
    made_at: datetime
    until: datetime


def share_report(db: Database, list_id: str, hash: str, *, for_s: float) -> SharedReport:
    """Keep a link for so long. Raises TooManyReports, KeyError if there is no such list."""
    rows = db.all(f"SELECT number FROM lists WHERE id = :id{db.FOR_UPDATE}", {"id": list_id})
    if not rows:
        raise KeyError(list_id)
    ((number,),) = rows
    if len(shared_reports(db, list_id)) >= REPORTS_MAX:
        raise TooManyReports
    now = db.now()
    until = now + timedelta(seconds=for_s)
    ((made,),) = db.all(
        "INSERT INTO shared_reports (list, hash, made_at, until)"
        " VALUES (:list, :hash, :now, :until) RETURNING number",
        {"list": number, "hash": hash, "now": micros(now), "until": micros(until)},
    )
    return SharedReport(made, now, until)


def shared_reports(db: Database, list_id: str) -> list[SharedReport]:
    """Return the links of a list that have not ended, the newest first."""
    rows = db.all(
        "SELECT shared_reports.number, made_at, until FROM shared_reports"
        " JOIN lists ON lists.number = shared_reports.list"
        " WHERE lists.id = :id AND until > :now ORDER BY shared_reports.number DESC",
        {"id": list_id, "now": micros(db.now())},
    )
    return [SharedReport(number, instant(made), instant(until)) for number, made, until in rows]


def end_report(db: Database, list_id: str, number: int) -> bool:
    """End a link of a list; False if it has no such link."""
    return bool(
        db.change(
            "DELETE FROM shared_reports WHERE number = :number"
            " AND list = (SELECT number FROM lists WHERE id = :id)",
            {"id": list_id, "number": number},
        )
    )


def list_of_report(db: Database, hash: str) -> tuple[str, datetime] | None:
    """Return the id of the list that a link shows, and until when; None if it has ended."""
    rows = db.all(
        "SELECT lists.id, until FROM shared_reports JOIN lists ON lists.number = shared_reports.list"
        " WHERE hash = :hash AND until > :now",
        {"hash": hash, "now": micros(db.now())},
    )
    return (rows[0][0], instant(rows[0][1])) if rows else None


class SharedReportStore(StorePart):
    """The part of the store that keeps links to reports."""

    share_report = write(share_report)
    shared_reports = read(shared_reports)
    end_report = write(end_report)
    list_of_report = read(list_of_report)
