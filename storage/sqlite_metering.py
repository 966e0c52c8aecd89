"""The transactions of metering, as SQL: each runs whole inside the writer's or the reader's."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import TypeVar

from storage import sqlite_lanes as lanes
from storage.calendar import day_of, month_of, period_bounds, period_start_of
from storage.records import (
    Account,
    Caller,
    DayCount,
    Ledger,
    Reservation,
    UsageRow,
    Window,
)
from storage.sqlite_letters import raise_meter
from storage.sqlite_rows import instant, micros, usage_row_of
from storage.store import REFUSALS_SINGLE_MAX, WINDOW

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Who:
    """The caller's numbers, and its account with tier and billing period as they are now."""

    account: Account
    account_number: int
    key_number: int


def _who(db: sqlite3.Connection, caller: Caller) -> Who:
    row = db.execute(
        "SELECT accounts.number, keys.number, tier, current_period_start, current_period_end"
        " FROM keys JOIN accounts ON accounts.number = keys.account WHERE keys.id = ?",
        (caller.key.id,),
    ).fetchone()
    if row is None:
        raise KeyError(caller.key.id)
    account_number, key_number, tier, *period = row
    start, end = (at if at is None else instant(at) for at in period)
    account = caller.account
    before = (account.tier, account.current_period_start, account.current_period_end)
    if (tier, start, end) != before:
        account = replace(account, tier=tier, current_period_start=start, current_period_end=end)
    return Who(account, account_number, key_number)


def reserve(
    db: sqlite3.Connection,
    now: datetime,
    caller: Caller,
    units: int,
    weigh: Callable[[Ledger], R | None],
    lease_s: float,
) -> Reservation | R:
    who = grant(db, now, caller, units, weigh)
    if not isinstance(who, Who):
        return who
    db.execute(
        "DELETE FROM reservations WHERE account = ? AND lease_until <= ?",
        (who.account_number, micros(now)),
    )
    number = db.execute(
        "INSERT INTO reservations (account, units, lease_until) VALUES (?, ?, ?)",
        (who.account_number, units, micros(now + timedelta(seconds=lease_s))),
    ).lastrowid
    return Reservation(str(number), caller, units, now)


def grant(
    db: sqlite3.Connection,
    now: datetime,
    caller: Caller,
    units: int,
    weigh: Callable[[Ledger], R | None],
) -> Who | R:
    """Weigh; what is granted weighs on the window from now on. Reserving it is the caller's."""
    who = _who(db, caller)
    refusal = weigh(_ledger(db, now, who))
    if refusal is not None:
        return refusal
    db.execute(
        "DELETE FROM windows WHERE key = ? AND at <= ?", (who.key_number, micros(now - WINDOW))
    )
    db.execute(
        "INSERT INTO windows (key, at, units) VALUES (?, ?, ?)"
        " ON CONFLICT (key, at) DO UPDATE SET units = units + excluded.units",
        (who.key_number, micros(now), units),
    )
    return who


def extend(db: sqlite3.Connection, now: datetime, reservation: Reservation, lease_s: float) -> None:
    db.execute(
        "UPDATE reservations SET lease_until = ? WHERE number = ? AND lease_until > ?",
        (micros(now + timedelta(seconds=lease_s)), int(reservation.id), micros(now)),
    )


def settle(
    db: sqlite3.Connection,
    now: datetime,
    reservation: Reservation,
    rows: Sequence[UsageRow],
    part: int,
    ends: bool,
    metered: bool,
) -> None:
    number = int(reservation.id)
    first = db.execute(
        "INSERT INTO settlements (reservation, part, at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        (number, part, micros(now)),
    )
    if not first.rowcount:
        return
    if ends:
        db.execute("DELETE FROM reservations WHERE number = ?", (number,))
    else:
        db.execute(
            "UPDATE reservations SET units = max(0, units - ?) WHERE number = ?",
            (sum(row.units for row in rows), number),
        )
    if rows:
        use(db, now, reservation.caller, rows, metered)


def use(
    db: sqlite3.Connection, now: datetime, caller: Caller, rows: Sequence[UsageRow], metered: bool
) -> None:
    """Log and count; what had been reserved for it is the caller's to give back."""
    who = _who(db, caller)
    _log(db, who, rows)
    billable = sum(row.billable for row in rows)
    if metered and billable and who.account.tier != "free":
        raise_meter(db, now, who.account_number, billable)


def _log(db: sqlite3.Connection, who: Who, rows: Sequence[UsageRow]) -> None:
    """A row each, and the counters that outlive the rows."""
    db.executemany(
        "INSERT INTO usage (account, key, at, operation, status, failed_check, units, billable,"
        " latency_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                who.account_number,
                who.key_number,
                micros(row.at),
                row.operation,
                row.status,
                row.failed_check,
                row.units,
                row.billable,
                row.latency_ms,
            )
            for row in rows
        ],
    )
    _count(db, who, rows)


def _count(db: sqlite3.Connection, who: Who, rows: Sequence[UsageRow]) -> None:
    """Raise the counters, once for all the rows that lie in the same day, month or period."""
    units: Counter[date] = Counter()
    days: Counter[date] = Counter()
    months: Counter[date] = Counter()
    periods: Counter[datetime] = Counter()
    for row in rows:
        units[month_of(row.at)] += row.units
        if row.billable:
            days[day_of(row.at)] += 1
            months[month_of(row.at)] += 1
            start = period_start_of(who.account, row.at)
            if start:
                periods[start] += 1
    db.executemany(
        "INSERT INTO months (account, month, units, billable) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (account, month) DO UPDATE"
        " SET units = units + excluded.units, billable = billable + excluded.billable",
        [(who.account_number, str(month), units[month], months[month]) for month in units],
    )
    db.executemany(
        "INSERT INTO days (account, day, billable) VALUES (?, ?, ?)"
        " ON CONFLICT (account, day) DO UPDATE SET billable = billable + excluded.billable",
        [(who.account_number, str(day), count) for day, count in days.items()],
    )
    db.executemany(
        "INSERT INTO periods (account, start, billable) VALUES (?, ?, ?)"
        " ON CONFLICT (account, start) DO UPDATE SET billable = billable + excluded.billable",
        [(who.account_number, micros(start), count) for start, count in periods.items()],
    )


def log_refusal(db: sqlite3.Connection, now: datetime, caller: Caller, row: UsageRow) -> None:
    """The next free place of the minute; the last place is shared by all the others."""
    who = _who(db, caller)
    minute = micros(now.replace(second=0, microsecond=0))
    place = (who.account_number, minute, who.key_number, row.failed_check or "")
    (last,) = db.execute(
        "SELECT max(place) FROM refusals"
        " WHERE account = ? AND minute = ? AND key = ? AND failed_check = ?",
        place,
    ).fetchone()
    db.execute(
        "INSERT INTO refusals (account, minute, key, failed_check, place, at, operation, status,"
        " units, billable, latency_ms, times) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET times = times + excluded.times",
        (
            *place,
            0 if last is None else min(last + 1, REFUSALS_SINGLE_MAX),
            micros(row.at),
            row.operation,
            row.status,
            row.units,
            row.billable,
            row.latency_ms,
            row.times,
        ),
    )


def ledger(db: sqlite3.Connection, now: datetime, caller: Caller) -> Ledger:
    return _ledger(db, now, _who(db, caller))


def _ledger(db: sqlite3.Connection, now: datetime, who: Who) -> Ledger:
    window = db.execute(
        "SELECT coalesce(group_concat(at), ''), coalesce(group_concat(units), ''),"
        " coalesce(sum(units), 0)"
        " FROM (SELECT at, units FROM windows WHERE key = ? AND at > ? ORDER BY at)",
        (who.key_number, micros(now - WINDOW)),
    ).fetchone()
    units, billable = db.execute(
        "SELECT units, billable FROM months WHERE account = ? AND month = ?",
        (who.account_number, str(month_of(now))),
    ).fetchone() or (0, 0)
    (reserved,) = db.execute(
        "SELECT coalesce(sum(units), 0) FROM reservations WHERE account = ? AND lease_until > ?",
        (who.account_number, micros(now)),
    ).fetchone()
    reserved += lanes.pending(db, who.account_number)
    start, end = period_bounds(who.account, now)
    period_billable = billable
    if who.account.current_period_start and who.account.current_period_end:
        period_billable = _billable_since(db, who, start)
    return Ledger(
        asked_at=now,
        window=Window(*window),
        month_units=units + reserved,
        month_billable=billable,
        period_start=start,
        period_end=end,
        period_billable=period_billable,
        reserved=reserved,
    )


def _billable_since(db: sqlite3.Connection, who: Who, start: datetime) -> int:
    """Of this period, and of the next where it has begun before the provider said so."""
    (count,) = db.execute(
        "SELECT coalesce(sum(billable), 0) FROM periods WHERE account = ? AND start >= ?",
        (who.account_number, micros(start)),
    ).fetchone()
    return int(count)


def days(
    db: sqlite3.Connection, now: datetime, account_id: str, first: date, last: date
) -> list[DayCount]:
    rows = db.execute(
        "SELECT day, days.billable FROM days JOIN accounts ON accounts.number = days.account"
        " WHERE accounts.id = ? AND day BETWEEN ? AND ? ORDER BY day",
        (account_id, str(first), str(last)),
    )
    return [DayCount(date.fromisoformat(day), calls) for day, calls in rows]


def usage(db: sqlite3.Connection, now: datetime, account_id: str, limit: int) -> list[UsageRow]:
    found = db.execute("SELECT number FROM accounts WHERE id = ?", (account_id,)).fetchone()
    if found is None:
        return []
    rows = db.execute(
        "SELECT * FROM (SELECT at, operation, status, failed_check, units, billable, latency_ms,"
        " 1 AS times FROM usage WHERE account = :account ORDER BY at DESC, number DESC"
        " LIMIT :limit)"
        " UNION ALL"
        " SELECT * FROM (SELECT at, operation, status, failed_check, units, billable, latency_ms,"
        " times FROM refusals WHERE account = :account ORDER BY at DESC LIMIT :limit)",
        {"account": found[0], "limit": limit},
    ).fetchall()
    rows.sort(key=lambda row: int(row[0]), reverse=True)
    return [usage_row_of(row) for row in rows[:limit]]
