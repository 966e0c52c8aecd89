"""Retention of what only PostgreSQL has: whole days of usage, and instants of jobs and windows."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from typing import get_args
from uuid import UUID

from psycopg import sql

from mailprobe.storage.periods import day_of, kept_since
from mailprobe.storage.postgres import rate_window
from mailprobe.storage.postgres.driver.partitions import Partitions, listed, table_of
from mailprobe.storage.postgres.driver.server import UPKEEP_MS, TransactionSession
from mailprobe.storage.records import Tier
from mailprobe.storage.sql.retention import RECLAIMED as SHARED
from mailprobe.storage.sql.retention import Part

FIRST: Part = UUID(int=0), -1  # before every settlement
RECLAIMED = (
    *SHARED,
    "UPDATE jobs SET lease_until = :lease WHERE lease_until > :lease",
    "UPDATE jobs SET due_at = :now WHERE due_at > :now AND tries = 0",
    "UPDATE jobs SET due_at = :wait WHERE due_at > :wait",
    rate_window.RECLAIM_ALL,
)


def days_past_retention(db: TransactionSession) -> list[date]:
    return sorted(listed(db))


def drop_days(
    db: TransactionSession,
    partitions: Partitions,
    now: datetime,
    retention_days: Mapping[Tier, int],
) -> None:
    """Drop the days that no tier keeps."""
    if retention_days.keys() < set(get_args(Tier)):
        return  # rows of the others are kept for good
    db.execute(f"SET LOCAL statement_timeout = {UPKEEP_MS}")
    partitions.drop_before(db, day_of(kept_since(now, max(retention_days.values()))))


def drop_rows(
    db: TransactionSession, day: date, now: datetime, retention_days: Mapping[Tier, int]
) -> None:
    """Delete a day's rows of the tiers that no longer keep it; blocks no request."""
    last = datetime.combine(day, time(), UTC)
    tiers = [tier for tier, days in retention_days.items() if last < kept_since(now, days)]
    if not tiers:
        return
    db.execute(f"SET LOCAL statement_timeout = {UPKEEP_MS}")
    table = table_of(day)
    db.db.execute(
        sql.SQL(
            "DELETE FROM {} USING accounts WHERE accounts.number = account AND tier = ANY(%s)"
        ).format(table),
        [tiers],
    )
