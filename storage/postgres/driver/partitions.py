"""Partitions of the usage log and of lists' lines, one per UTC day: made ahead or on demand, dropped whole.

Retention is in whole days, so an expired day is one table, and dropping it reads none
of its rows.
"""

from collections.abc import Iterable, Set
from datetime import date, datetime, timedelta

from psycopg import errors, sql

from ...base.columns import day_of, micros, midnight
from .server import TransactionConnection

AHEAD_DAYS = 3  # each run of apply_retention() creates them
DDL_LOCK = 0x6D70_6461_7973  # "mpdays": one process at a time creates or drops partitions
USAGE = "usage"  # by the instant of a verification
LINES = "list_lines"  # by the day on which their list was made
Day = tuple[str, date]  # of one of these tables

LISTED = (
    "SELECT parent.relname, child.relname FROM pg_inherits"
    " JOIN pg_class AS parent ON parent.oid = inhparent"
    " JOIN pg_class AS child ON child.oid = inhrelid"
    f" WHERE inhparent IN ('{USAGE}'::regclass, '{LINES}'::regclass)"
)


class PartitionsMissing(Exception):
    """Rows cannot be stored until these days have partitions."""

    def __init__(self, days: frozenset[Day]) -> None:
        super().__init__(days)
        self.days = days


def check_partitions(db: TransactionConnection, days: Set[Day]) -> None:
    """Raise PartitionsMissing for days without a partition, before the transaction does any work."""
    if not days <= db.partitions:
        raise PartitionsMissing(frozenset(days))


def is_missing_partition(error: BaseException) -> bool:
    """Return whether an insert found no partition: another process dropped it since our look-up."""
    return isinstance(error, errors.CheckViolation) and not error.diag.constraint_name


class Partitions:
    """The partitions that exist, as far as this process knows."""

    def __init__(self) -> None:
        self.known: set[Day] = set()  # replaced, never changed: other threads read it

    def forget(self) -> None:
        self.known = set()

    def make_ahead(self, db: TransactionConnection, now: datetime) -> None:
        today = day_of(now)
        ahead = [today + timedelta(days=n) for n in range(AHEAD_DAYS + 1)]
        self.make(db, [(table, day) for table in (USAGE, LINES) for day in ahead])

    def make(self, db: TransactionConnection, days: Iterable[Day]) -> None:
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

    def drop(self, db: TransactionConnection, day: Day) -> None:
        """Drop this partition, if it is there, in the caller's transaction."""
        db.execute("SELECT pg_advisory_xact_lock(%s)", [DDL_LOCK])
        db.db.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table_of(day)))
        self.known = self.known - {day}


def listed(db: TransactionConnection) -> set[Day]:
    return {
        (parent, date.fromisoformat(name.removeprefix(f"{parent}_")))
        for parent, name in db.all(LISTED)
    }


def table_of(day: Day) -> sql.Identifier:
    return sql.Identifier(f"{day[0]}_{day[1]:%Y%m%d}")


def first_instant_of(day: date) -> int:
    return micros(midnight(day))


def _make(db: TransactionConnection, day: Day) -> None:
    parent, table = sql.Identifier(day[0]), table_of(day)
    begins = first_instant_of(day[1])
    bounds = sql.Literal(begins), sql.Literal(begins + 86_400_000_000)
    db.db.execute(sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS)").format(table, parent))
    db.db.execute(
        sql.SQL("ALTER TABLE {} ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})").format(
            parent, table, *bounds
        )
    )
