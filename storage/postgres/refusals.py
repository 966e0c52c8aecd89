"""Refused requests, many at once, in SQL: a row each while they are few, then one per minute."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..base.columns import micros
from ..commands import LogRefusal
from ..contract import REFUSALS_SINGLE_MAX
from .driver.server import TransactionConnection
from .ledgers import LedgerCaller

SLOTS = (
    "SELECT key, failed_check, max(place) FROM refusals WHERE minute = %s"
    " AND (account, key) IN (SELECT * FROM unnest(%s::bigint[], %s::bigint[]))"
    " GROUP BY key, failed_check"
)
LOG = (
    "INSERT INTO refusals (minute, account, key, failed_check, place, at, operation,"
    " status, units, billable, latency_ms, times)"
    " SELECT %s, * FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::bigint[],"
    " %s::bigint[], %s::text[], %s::text[], %s::bigint[], %s::boolean[], %s::bigint[],"
    " %s::bigint[])"
    " ON CONFLICT (account, minute, key, failed_check, place)"
    " DO UPDATE SET times = refusals.times + excluded.times"
)


def log(
    db: TransactionConnection, now: datetime, those: Sequence[tuple[LogRefusal, LedgerCaller]]
) -> None:
    """Insert refusals into the minute's next free slots; the last slot is shared by all others."""
    if not those:
        return
    minute = micros(now.replace(second=0, microsecond=0))
    accounts, keys = zip(*{(who.account_number, who.key_number) for _, who in those}, strict=True)
    places = db.all(SLOTS, [minute, list(accounts), list(keys)])
    last = {(key, why): place for key, why, place in places}
    rows: dict[tuple[int, str, int], list[Any]] = {}
    for command, who in those:
        row, why = command.row, command.row.failed_check or ""
        place = min(last.get((who.key_number, why), -1) + 1, REFUSALS_SINGLE_MAX)
        last[who.key_number, why] = place
        if same := rows.get((who.key_number, why, place)):
            same[-1] += row.times
            continue
        rows[who.key_number, why, place] = [
            who.account_number, who.key_number, why, place, micros(row.at), row.operation,
            row.status, row.units, row.billable, row.latency_ms, row.times,
        ]  # fmt: skip
    db.execute(LOG, [minute, *map(list, zip(*rows.values(), strict=True))])
