"""Retention, in SQL: every statement deletes a bounded number of rows."""

import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from mailprobe.storage.columns import micros
from mailprobe.storage.contract import (
    IDEMPOTENCY_KEPT_MAX,
    LEASES_MAX,
    MESSAGES_KEPT_MAX,
    RECEIVERS_KEPT,
    SETTLED_KEPT,
    WAITS_MAX,
    WINDOW,
)
from mailprobe.storage.periods import kept_since
from mailprobe.storage.records import Tier
from mailprobe.storage.sql import lists
from mailprobe.storage.sqlite import job_partitions, rate_window
from mailprobe.storage.sqlite.session import SqliteDatabase

DB = sqlite3.Connection
TIDIED_MAX = 1000  # rows in one transaction: some milliseconds, so that no request waits long
JOBS_TIDIED_MAX = 100  # each has a payload and some attempts
Drop = Callable[[DB, datetime], bool]
Call = Callable[[Callable[[DB, datetime], Any]], Awaitable[Any]]

WINDOWS = (
    "DELETE FROM rate_windows WHERE (key, at) IN"
    " (SELECT key, at FROM rate_windows WHERE at <= :at LIMIT :most)"
)
OUTBOX_RETENTION = (
    "DELETE FROM outbox WHERE number IN (SELECT number FROM outbox"
    " WHERE kind = :kind AND due_at IS NULL AND made_at <= :at LIMIT :most)"
)
ENDED = (
    "DELETE FROM reservations WHERE number IN"
    " (SELECT number FROM reservations WHERE lease_until <= :at LIMIT :most)",
    "DELETE FROM idempotency_records WHERE number IN (SELECT number FROM idempotency_records"
    " WHERE keep_until <= :at LIMIT :most)",
    "DELETE FROM idempotency_records WHERE number IN (SELECT number FROM idempotency_records"
    " WHERE answer IS NULL AND lease_until <= :at LIMIT :most)",
    "DELETE FROM ended_sessions WHERE id IN"
    " (SELECT id FROM ended_sessions WHERE until <= :at LIMIT :most)",
    "DELETE FROM connection_leases WHERE (address, holder) IN"
    " (SELECT address, holder FROM connection_leases WHERE until <= :at LIMIT :most)",
)
RECEIVERS = (
    "DELETE FROM receivers WHERE (account, host) IN"
    " (SELECT account, host FROM receivers WHERE tried_at <= :at LIMIT :most)"
)
LOGGED = (
    "DELETE FROM usage WHERE number IN (SELECT usage.number FROM accounts"
    " JOIN usage ON account = accounts.number WHERE tier = :tier AND at < :at"
    " LIMIT :most)",
    "DELETE FROM refusals WHERE (account, minute, key, failed_check, place) IN"
    " (SELECT account, minute, key, failed_check, place FROM accounts"
    " JOIN refusals ON account = accounts.number WHERE tier = :tier AND minute < :at"
    " LIMIT :most)",
)


KEYS = (  # SQLite would reuse the highest number: that key stays
    "DELETE FROM keys WHERE number IN (SELECT keys.number FROM accounts"
    " JOIN keys ON account = accounts.number WHERE tier = :tier AND revoked_at < :at"
    " AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.key = keys.number)"
    " AND NOT EXISTS (SELECT 1 FROM lists WHERE lists.key = keys.number)"
    " AND keys.number < (SELECT max(number) FROM keys) LIMIT :most)"
)


async def apply(write: Call, read: Call, retention_days: Mapping[Tier, int]) -> None:
    """Delete in small transactions, each a call of the writer's connection or the reader's."""
    now = await write(_reclaim)
    if ahead := await read(job_partitions.ahead):
        await write(partial(job_partitions.reclaim, found=ahead))
    for drop in _drops(now, retention_days):
        while await write(drop):
            pass
    after: tuple[int, int] | None = (0, -1)
    while after is not None:
        after = await write(partial(_drop_settled, after=after, until=now - SETTLED_KEPT))


def _drops(now: datetime, retention_days: Mapping[Tier, int]) -> list[Drop]:
    """Return the deletions: each removes at most TIDIED_MAX rows, and returns whether more may remain."""
    at = micros(now)
    acts: list[Drop] = [partial(_drop, statement=statement, at=at) for statement in ENDED]
    acts.append(lambda db, now: lists.drop_unloaded(SqliteDatabase(db, now)))
    acts.append(partial(_drop, statement=WINDOWS, at=micros(now - WINDOW)))
    acts.append(partial(_drop, statement=RECEIVERS, at=micros(now - RECEIVERS_KEPT)))
    for tier, days in retention_days.items():
        since = kept_since(now, days)
        for statement in LOGGED:
            acts.append(partial(_drop, statement=statement, at=micros(since), tier=tier))
        acts.append(partial(_drop_jobs, tier=tier, since=micros(since)))
        acts.append(partial(_drop_lists, tier=tier, since=micros(since)))
        acts.append(partial(_drop, statement=KEYS, at=micros(since), tier=tier))
    for kind, kept in MESSAGES_KEPT_MAX.items():
        acts.append(partial(_drop, statement=OUTBOX_RETENTION, at=micros(now - kept), kind=kind))
    return acts


def _drop(db: DB, _: datetime, *, statement: str, **values: Any) -> bool:
    return db.execute(statement, {**values, "most": TIDIED_MAX}).rowcount == TIDIED_MAX


def _drop_lists(db: DB, now: datetime, *, tier: Tier, since: int) -> bool:
    return lists.drop_ended(SqliteDatabase(db, now), tier, since)


def _drop_jobs(db: DB, _: datetime, *, tier: Tier, since: int) -> bool:
    """Delete ended jobs with their attempts."""
    numbers = db.execute(
        "SELECT jobs.number FROM accounts JOIN jobs ON account = accounts.number"
        " WHERE tier = ? AND ended_at < ? LIMIT ?",
        (tier, since, JOBS_TIDIED_MAX),
    ).fetchall()
    db.executemany("DELETE FROM job_attempts WHERE job = ?", numbers)
    db.executemany("DELETE FROM jobs WHERE number = ?", numbers)
    return len(numbers) == JOBS_TIDIED_MAX


RECLAIMED = (
    "UPDATE reservations SET lease_until = :lease WHERE lease_until > :lease",
    "UPDATE connection_leases SET until = :lease WHERE until > :lease",
    "UPDATE list_chunks SET lease_until = :lease WHERE lease_until > :lease",
    "UPDATE list_chunks SET due_at = :wait WHERE due_at > :wait",
    "UPDATE idempotency_records SET keep_until = :keep WHERE keep_until > :keep",
    "UPDATE keys SET revoked_at = :now WHERE revoked_at > :soon",
)
KEYS_AHEAD = "SELECT DISTINCT key FROM rate_windows WHERE at > :soon"


MESSAGES_RECLAIMED = (
    "UPDATE outbox SET lease_until = :lease"
    " WHERE kind = :kind AND due_at IS NOT NULL AND lease_until > :lease",
    "UPDATE outbox SET due_at = :wait WHERE kind = :kind AND due_at > :wait",
)


def _reclaim(db: DB, now: datetime) -> datetime:
    """Correct the instants that a clock wrote that was ahead. Returns the store's clock."""
    ends = {
        "now": micros(now),
        "soon": micros(now + WINDOW),
        "lease": micros(now + LEASES_MAX),
        "wait": micros(now + WAITS_MAX),
        "keep": micros(now + IDEMPOTENCY_KEPT_MAX),
    }
    for statement in RECLAIMED:
        db.execute(statement, ends)
    for (key,) in db.execute(KEYS_AHEAD, ends).fetchall():
        rate_window.reclaim(db, key, ends["now"])
    for kind in MESSAGES_KEPT_MAX:
        for statement in MESSAGES_RECLAIMED:
            db.execute(statement, {**ends, "kind": kind})
    return now


def _drop_settled(
    db: DB, now: datetime, after: tuple[int, int], until: datetime
) -> tuple[int, int] | None:
    """Delete old settlements, a batch after `after`.

    Returns the reservation and part to continue from; None if the batch had none to change.
    """
    parts = db.execute(
        "SELECT reservation, part, at FROM settlements WHERE (reservation, part) > (?, ?)"
        " ORDER BY reservation, part LIMIT ?",
        (*after, TIDIED_MAX),
    ).fetchall()
    old = [(number, part) for number, part, at in parts if at <= micros(until)]
    ahead = [(micros(now), number, part) for number, part, at in parts if at > micros(now)]
    db.executemany("DELETE FROM settlements WHERE reservation = ? AND part = ?", old)
    db.executemany("UPDATE settlements SET at = ? WHERE reservation = ? AND part = ?", ahead)
    return parts[-1][:2] if old or ahead else None
