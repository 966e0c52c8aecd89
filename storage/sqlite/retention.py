"""Retention: the shared deletions, the log of usage, and what only SQLite has to correct."""

import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from .. import retention as shared
from ..base.columns import kept_since, micros
from ..records import Tier
from . import job_partitions
from .database import SqliteDatabase

DB = sqlite3.Connection
Call = Callable[[Callable[[DB, datetime], Any]], Awaitable[Any]]


async def apply(write: Call, read: Call, retention_days: Mapping[Tier, int]) -> None:
    """Delete in small transactions, each a call of the writer's connection or the reader's."""
    now = await write(_reclaim)
    if ahead := await read(job_partitions.ahead):
        await write(partial(job_partitions.reclaim, found=ahead))
    usage = f"{shared.OF_TIER} AND at < :at"
    drops = shared.drops(now, retention_days) + [
        partial(
            shared.drop, table="usage", which=usage, at=micros(kept_since(now, days)), tier=tier
        )
        for tier, days in retention_days.items()
    ]
    for drop in drops:
        while await write(_run(drop)):
            pass
    after: shared.Part | None = (0, -1)
    while after is not None:
        after = await write(_run(partial(shared.drop_settled, after=after, now=now)))


def _run(drop: Callable[[SqliteDatabase], object]) -> Callable[[DB, datetime], object]:
    return lambda db, now: drop(SqliteDatabase(db, now))


def _reclaim(db: DB, now: datetime) -> datetime:
    """Correct the instants that a clock wrote that was ahead. Returns the store's clock."""
    latest = shared.latest(now)
    for statement in shared.RECLAIMED:
        db.execute(statement, latest)
    shared.reclaim_windows(SqliteDatabase(db, now), latest)
    return now
