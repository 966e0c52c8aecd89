"""Partitions of the usage log, one per UTC day: created ahead or on demand, dropped whole.

Retention is in whole days, so an expired day is one table, and dropping it reads none
of its rows.
"""

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta

from psycopg import errors, sql

from mailprobe.storage.columns import micros
from mailprobe.storage.periods import day_of
from mailprobe.storage.postgres.driver.server import TransactionSession

AHEAD_DAYS = 3  # each run of apply_retention() creates them
DDL_LOCK = 0x6D70_6461_7973  # "mpdays": one process at a time creates or drops partitions
PREFIX = "usage_"

LISTED = (
    "SELECT child.relname FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid"
    " WHERE inhparent = 'usage'::regclass"
)


class PartitionsMissing(Exception):
    """Rows cannot be logged until these days have partitions."""

    def __init__(self, days: frozenset[date]) -> None:
        super().__init__(days)
        self.days = days


def is_missing_partition(error: BaseException) -> bool:
    """Return whether an insert found no partition: another process dropped it since our look-up."""
    return isinstance(error, errors.CheckViolation) and not error.diag.constraint_name


class Partitions:
    """The partitions that exist, as far as this process knows."""

    def __init__(self) -> None:
        self.known: set[date] = set()  # replaced, never changed: other threads read it

    def forget(self) -> None:
        self.known = set()

    def make_ahead(self, db: TransactionSession, now: datetime) -> None:
        today = day_of(now)
        self.make(db, [today + timedelta(days=n) for n in range(AHEAD_DAYS + 1)])

    def make(self, db: TransactionSession, days: Iterable[date]) -> None:
        """Create the missing ones in a transaction of its own; attaching a table does not block inserts."""
        if not self.known.issuperset(days):
            self.known = self.known | listed(db)
        missing = sorted(set(days) - self.known)
        if not missing:
            return
        db.begin()
        db.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
        there = listed(db)
        for day in missing:
            if day not in there:
                _make(db, day)
        db.execute("COMMIT")
        self.known = self.known | there | set(missing)

    def drop_before(self, db: TransactionSession, first: date) -> None:
        """Drop the partitions of the days before `first`, in the caller's transaction."""
        db.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
        for day in sorted(listed(db)):
            if day < first:
                db.db.execute(sql.SQL("DROP TABLE {}").format(table_of(day)))
        self.known = {day for day in self.known if day >= first}


def listed(db: TransactionSession) -> set[date]:
    return {date.fromisoformat(name.removeprefix(PREFIX)) for (name,) in db.all(LISTED)}


def table_of(day: date) -> sql.Identifier:
    return sql.Identifier(PREFIX + day.isoformat().replace("-", ""))


def _make(db: TransactionSession, day: date) -> None:
    table = table_of(day)
    begins = micros(datetime.combine(day, time(), UTC))
    bounds = sql.Literal(begins), sql.Literal(begins + 86_400_000_000)
    db.db.execute(sql.SQL("CREATE TABLE {} (LIKE usage INCLUDING DEFAULTS)").format(table))
    db.db.execute(
        sql.SQL("ALTER TABLE usage ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
            table, *bounds
        )
    )
