"""The log of usage and the counters that outlive it, in SQL; the caller has locked the account."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import Any

from ..base.columns import day_of, micros, usage_values
from ..records import DAY_LIGHTS, DayLight, UsageRow
from ..usage import month_of, period_start_of
from .driver.partitions import USAGE, check_partitions
from .driver.server import TransactionConnection, Writes
from .ledgers import LedgerCaller

LOG = (
    "INSERT INTO usage (account, key, at, operation, status, failed_check, units, billable,"
    " latency_ms) SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::text[],"
    " %s::text[], %s::text[], %s::bigint[], %s::boolean[], %s::bigint[])"
)
MONTHS = (
    "INSERT INTO months (account, month, units, billable)"
    " SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::bigint[])"
    " ON CONFLICT (account, month) DO UPDATE SET"
    " units = months.units + excluded.units, billable = months.billable + excluded.billable"
)
DAYS = (
    "INSERT INTO days (account, day, billable, green, yellow, red)"
    " SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[],"
    " %s::bigint[])"
    " ON CONFLICT (account, day) DO UPDATE SET billable = days.billable + excluded.billable,"
    " green = days.green + excluded.green, yellow = days.yellow + excluded.yellow,"
    " red = days.red + excluded.red"
)
PERIODS = (
    "INSERT INTO periods (account, start, billable)"
    " SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[])"
    " ON CONFLICT (account, start) DO UPDATE SET billable = periods.billable + excluded.billable"
)

Used = tuple[LedgerCaller, Sequence[UsageRow]]


def check_days(db: TransactionConnection, rows: Iterable[UsageRow]) -> None:
    """Raise PartitionsMissing for days without a partition, before the batch does any work."""
    check_partitions(db, {(USAGE, day_of(row.at)) for row in rows})


def log(writes: Writes, those: Sequence[Used]) -> None:
    """Log each row, and add to the counters once per day, month and billing period."""
    logged = [
        (who.account_number, who.key_number, *usage_values(row))
        for who, rows in those
        for row in rows
    ]
    if not logged:
        return
    writes.add(LOG, *(list(column) for column in zip(*logged, strict=True)))
    _count(writes, those)


def _count(writes: Writes, those: Sequence[Used]) -> None:
    units: Counter[tuple[int, date]] = Counter()
    days: Counter[tuple[int, date]] = Counter()  # with a row that is billable or has a light
    billable: Counter[tuple[int, date]] = Counter()
    lights: dict[DayLight, Counter[tuple[int, date]]] = {light: Counter() for light in DAY_LIGHTS}
    months: Counter[tuple[int, date]] = Counter()
    periods: Counter[tuple[int, datetime]] = Counter()
    for who, rows in those:
        number = who.account_number
        for row in rows:
            units[number, month_of(row.at)] += row.units
            place = number, day_of(row.at)
            if row.light is not None:
                lights[row.light][place] += 1
                days[place] += 1
            if row.billable:
                billable[place] += 1
                days[place] += 1
                months[number, month_of(row.at)] += 1
                start = period_start_of(who.account, row.at)
                if start:
                    periods[number, start] += 1
    accounts, firsts = _columns(units)
    writes.add(MONTHS, accounts, firsts, list(units.values()), [months[at] for at in units])
    if days:
        counts = [[each[place] for place in days] for each in (billable, *lights.values())]
        writes.add(DAYS, *_columns(days), *counts)
    if periods:
        accounts, starts = _columns(periods)
        writes.add(PERIODS, accounts, [micros(at) for at in starts], list(periods.values()))


def _columns(counts: Counter[tuple[int, date]] | Counter[tuple[int, datetime]]) -> list[list[Any]]:
    return [list(column) for column in zip(*counts, strict=True)]
