"""Retention, in SQL: whole days of usage at once, everything else in small batches.

Rows that another transaction is changing are left for the next run, so that only the
deletion of a day waits for a lock, and no request waits long.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from functools import partial
from typing import Any, get_args
from uuid import UUID

from psycopg import sql

from mailprobe.storage.columns import micros
from mailprobe.storage.contract import (
    IDEMPOTENCY_KEPT_MAX,
    LEASES_MAX,
    MESSAGES_KEPT_MAX,
    RECEIVERS_KEPT,
    WAITS_MAX,
    WINDOW,
)
from mailprobe.storage.periods import day_of, kept_since
from mailprobe.storage.postgres import rate_window
from mailprobe.storage.postgres.driver.partitions import Partitions, listed, table_of
from mailprobe.storage.postgres.driver.server import UPKEEP_MS, TransactionSession
from mailprobe.storage.postgres.session import PostgresDatabase
from mailprobe.storage.records import Tier
from mailprobe.storage.sql import lists

TIDIED_MAX = 1000  # rows in one transaction
JOBS_TIDIED_MAX = 100  # with a payload and some attempts each
Drop = Callable[[TransactionSession], bool]
FIRST = UUID(int=0), -1  # before every settlement


def _some(table: str, which: str, more: str = "") -> str:
    return (
        f"DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT {table}.ctid FROM {table} {more}"
        f" WHERE {which} LIMIT %(most)s FOR UPDATE OF {table} SKIP LOCKED))"
    )


OF_TIER = "JOIN accounts ON accounts.number = account"
WINDOWS = _some("rate_windows", "at <= %(at)s")
ENDED = (
    _some("reservations", "lease_until <= %(at)s"),
    _some("idempotency_records", "keep_until <= %(at)s"),
    _some("idempotency_records", "answer IS NULL AND lease_until <= %(at)s"),
    _some("ended_sessions", "until <= %(at)s"),
)
OUTBOX_RETENTION = _some("outbox", "kind = %(kind)s AND due_at IS NULL AND made_at <= %(at)s")
KEYS = _some(
    "keys",
    "tier = %(tier)s AND revoked_at < %(at)s"
    " AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.key = keys.number)"
    " AND NOT EXISTS (SELECT 1 FROM lists WHERE lists.key = keys.number)",
    OF_TIER,
)
RECEIVERS = _some("receivers", "tried_at <= %(at)s")
REFUSALS = _some("refusals", "tier = %(tier)s AND minute < %(at)s", OF_TIER)


def drops(now: datetime, retention_days: Mapping[Tier, int]) -> list[Drop]:
    """Return the deletions: each removes at most TIDIED_MAX rows, and returns whether more may remain."""
    at = micros(now)
    acts: list[Drop] = [partial(_drop, statement=statement, at=at) for statement in ENDED]
    acts.append(lambda db: lists.drop_unloaded(PostgresDatabase(db)))
    acts.append(partial(_drop, statement=WINDOWS, at=micros(now - WINDOW)))
    acts.append(partial(_drop, statement=RECEIVERS, at=micros(now - RECEIVERS_KEPT)))
    for tier, days in retention_days.items():
        since = micros(kept_since(now, days))
        acts.append(partial(_drop, statement=REFUSALS, at=since, tier=tier))
        acts.append(partial(_drop_jobs, tier=tier, since=since))
        acts.append(partial(_drop_lists, tier=tier, since=since))
        acts.append(partial(_drop, statement=KEYS, at=since, tier=tier))
    for kind, kept in MESSAGES_KEPT_MAX.items():
        acts.append(partial(_drop, statement=OUTBOX_RETENTION, at=micros(now - kept), kind=kind))
    return acts


def _drop(db: TransactionSession, *, statement: str, **values: Any) -> bool:
    return db.execute(statement, {**values, "most": TIDIED_MAX}).rowcount == TIDIED_MAX


def _drop_lists(db: TransactionSession, *, tier: Tier, since: int) -> bool:
    return lists.drop_ended(PostgresDatabase(db), tier, since)


def _drop_jobs(db: TransactionSession, *, tier: Tier, since: int) -> bool:
    """Delete some of the tier's ended jobs with their attempts; returns whether more may remain."""
    rows = db.all(
        f"SELECT jobs.number FROM jobs {OF_TIER} WHERE tier = %s AND ended_at < %s LIMIT %s"
        " FOR UPDATE OF jobs SKIP LOCKED",
        [tier, since, JOBS_TIDIED_MAX],
    )
    numbers = [number for (number,) in rows]
    db.execute("DELETE FROM job_attempts WHERE job = ANY(%s)", [numbers])
    db.execute("DELETE FROM jobs WHERE number = ANY(%s)", [numbers])
    return len(numbers) == JOBS_TIDIED_MAX


RECLAIMED = (
    "UPDATE reservations SET lease_until = %(lease)s WHERE lease_until > %(lease)s",
    "UPDATE outbox SET lease_until = %(lease)s WHERE due_at IS NOT NULL AND lease_until > %(lease)s",
    "UPDATE outbox SET due_at = %(wait)s WHERE due_at > %(wait)s",
    "UPDATE connection_leases SET until = %(lease)s WHERE until > %(lease)s",
    "UPDATE list_chunks SET lease_until = %(lease)s WHERE lease_until > %(lease)s",
    "UPDATE list_chunks SET due_at = %(wait)s WHERE due_at > %(wait)s",
    "UPDATE jobs SET lease_until = %(lease)s WHERE lease_until > %(lease)s",
    "UPDATE jobs SET due_at = %(now)s WHERE due_at > %(now)s AND tries = 0",
    "UPDATE jobs SET due_at = %(wait)s WHERE due_at > %(wait)s",
    "UPDATE idempotency_records SET keep_until = %(keep)s WHERE keep_until > %(keep)s",
    "UPDATE keys SET revoked_at = %(now)s WHERE revoked_at > %(soon)s",
    rate_window.RECLAIM_ALL,
)


def reclaim(db: TransactionSession, statement: str, now: datetime) -> None:
    """Correct the instants written by a clock that was ahead."""
    db.execute(
        statement,
        {
            "now": micros(now),
            "lease": micros(now + LEASES_MAX),
            "wait": micros(now + WAITS_MAX),
            "soon": micros(now + WINDOW),
            "keep": micros(now + IDEMPOTENCY_KEPT_MAX),
        },
    )


def drop_settled(
    db: TransactionSession, after: tuple[UUID, int], until: datetime
) -> tuple[UUID, int] | None:
    """Delete some old settlements; returns the part to continue after, or None if none was old."""
    parts = db.all(
        "SELECT reservation, part, at FROM settlements WHERE (reservation, part) > (%s, %s)"
        " ORDER BY reservation, part LIMIT %s",
        [*after, TIDIED_MAX],
    )
    old = [(id, part) for id, part, at in parts if at <= micros(until)]
    if not old:
        return None
    db.execute(
        "DELETE FROM settlements WHERE (reservation, part) IN"
        " (SELECT * FROM unnest(%s::uuid[], %s::bigint[]))",
        [list(column) for column in zip(*old, strict=True)],
    )
    id, part, _ = parts[-1]
    return id, part


# usage


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
