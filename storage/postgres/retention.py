"""Retention of what only PostgreSQL has: whole days of usage and of lists' lines, and instants."""

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import get_args
from uuid import UUID

from msgspec import Struct

from ..base.columns import day_of, kept_since, micros
from ..records import Tier
from ..retention import RECLAIMED as SHARED
from ..retention import Part
from .driver.partitions import (
    LINES,
    USAGE,
    Day,
    Partitions,
    first_instant_of,
    listed,
)
from .driver.server import UPKEEP_MS, TransactionConnection

FIRST: Part = UUID(int=0), -1  # before every settlement
# All requests wait as long, each minute of a backup in which a day is past. Without a reader the
# lock is free at once.
DROP_LOCK_MS = 50
RECLAIMED = (
    *SHARED,
    "UPDATE jobs SET lease_until = :lease WHERE lease_until > :lease",
    "UPDATE jobs SET due_at = :now WHERE due_at > :now AND tries = 0",
    "UPDATE jobs SET due_at = :wait WHERE due_at > :wait",
)


# The days without a list that has not ended, or that its tier keeps. Of each day it looks for one
# such list: NOT EXISTS would be planned as a join with all lists.
PAST_LIST_DAYS = (
    "SELECT day FROM unnest(%s::bigint[]) AS past (day) WHERE"
    " (SELECT 1 FROM lists JOIN accounts ON accounts.number = lists.account"
    " WHERE lists.day = past.day"
    " AND NOT coalesce(ended_at < (CAST(%s AS json) ->> tier)::bigint, false) LIMIT 1) IS NULL"
)
CLOCKS_APART = timedelta(days=1)  # a clock that was behind has made the lists of today


def past_days(
    db: TransactionConnection, now: datetime, retention_days: Mapping[Tier, int]
) -> list[Day]:
    """Return the days of usage that no tier keeps, and those whose lists are all past their
    retention: these lists follow in steps. Lists may still be made of today and yesterday.
    """
    days = listed(db)
    first = day_of(now - CLOCKS_APART)
    of_lists = sorted(day for table, day in days if table == LINES and day < first)
    past: list[Day] = [(LINES, day) for day in _past_list_days(db, of_lists, now, retention_days)]
    if retention_days.keys() >= set(get_args(Tier)):  # rows of a tier without one are kept for good
        first = day_of(kept_since(now, max(retention_days.values())))
        past += sorted((table, day) for table, day in days if table == USAGE and day < first)
    return past


def _past_list_days(
    db: TransactionConnection,
    days: Sequence[date],
    now: datetime,
    retention_days: Mapping[Tier, int],
) -> list[date]:
    since = {tier: micros(kept_since(now, kept)) for tier, kept in retention_days.items()}
    by_instant = {first_instant_of(day): day for day in days}
    rows = db.all(PAST_LIST_DAYS, [list(by_instant), json.dumps(since)])
    return [by_instant[instant] for (instant,) in rows]


def drop_day(
    db: TransactionConnection,
    partitions: Partitions,
    day: Day,
    now: datetime,
    retention_days: Mapping[Tier, int],
) -> None:
    """Drop one of the past days, unless a list of it has changed meanwhile.

    All use of the table waits behind it while it waits for a reader, such as a backup: so it
    waits briefly.
    """
    db.execute(f"SET LOCAL lock_timeout = {DROP_LOCK_MS}")
    db.execute(f"SET LOCAL statement_timeout = {UPKEEP_MS}")
    table, date = day
    if table == USAGE or _past_list_days(db, [date], now, retention_days):
        partitions.drop(db, day)


class RowsToDrop(Struct, frozen=True):
    """The rows of some tiers among a day's, to be deleted on the day `on`.

    All rows of the day are read, so it is done once a day: others come only from accounts that
    change to such a tier.
    """

    on: date
    day: date
    tiers: frozenset[Tier]


def rows_to_drop(
    db: TransactionConnection, now: datetime, retention_days: Mapping[Tier, int]
) -> list[RowsToDrop]:
    """Return the days of usage that some tiers no longer keep, with these, but no past day."""
    found = []
    for day in sorted(day for table, day in listed(db) if table == USAGE):
        tiers = frozenset(
            tier for tier, days in retention_days.items() if day < day_of(kept_since(now, days))
        )
        if 0 < len(tiers) < len(get_args(Tier)):
            found.append(RowsToDrop(day_of(now), day, tiers))
    return found


def drop_rows(db: TransactionConnection, rows: RowsToDrop) -> None:
    """Delete a day's rows of some tiers; blocks no request."""
    db.execute(f"SET LOCAL statement_timeout = {UPKEEP_MS}")
    first, end = first_instant_of(rows.day), first_instant_of(rows.day + timedelta(days=1))
    db.execute(
        "DELETE FROM usage USING accounts WHERE accounts.number = account AND tier = ANY(%s)"
        f" AND at >= {first:d} AND at < {end:d}",
        [sorted(rows.tiers)],
    )
