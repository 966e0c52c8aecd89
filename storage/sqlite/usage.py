"""Transactions of usage and limits, in SQL. Each runs in the writer's or the reader's transaction."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import TypeVar

from ..base.columns import day_of, instant, micros, usage_values
from ..commands import Extend, LogRefusal, ReadLedger, Reserve, Settle, Spend
from ..contract import REFUSALS_SINGLE_MAX, WINDOW
from ..database import Row
from ..list_jobs import list_results
from ..records import (
    DAY_LIGHTS,
    Account,
    Caller,
    Ledger,
    Reservation,
    UsageRow,
    Window,
    units_of,
)
from ..usage import month_of, period_bounds, period_start_of
from . import idempotency as idempotency_records
from . import rate_window
from .database import SqliteDatabase
from .outbox import raise_meter
from .rate_window import SqliteWindow, Sum

R = TypeVar("R")

WINDOW_MICROS = WINDOW // timedelta(microseconds=1)
LIGHT_PLACES = {light: place for place, light in enumerate(DAY_LIGHTS, 2)}  # in _count()


# One statement for all that a limit check needs. Each further statement would cost as much again,
# and releases the GIL, which a busy event loop is slow to give back.
# `:since` is the start of the window, `:key` the key's id.
STANDING = (
    "SELECT accounts.number, keys.number, tier, current_period_start, current_period_end,"
    " months.units, months.billable,"
    " (SELECT sum(units) FROM reservations WHERE account = accounts.number AND lease_until > :now),"
    " EXISTS (SELECT 1 FROM reservations WHERE account = accounts.number AND lease_until <= :now),"
    " (SELECT pending FROM job_backlogs WHERE account = accounts.number),"
    " (SELECT undelivered FROM job_backlogs WHERE account = accounts.number),"
    " (SELECT sum(billable) FROM periods"
    " WHERE account = accounts.number AND start >= current_period_start),"
    f" {rate_window.COUNT_OF_ACCOUNT}, {rate_window.EARLIEST}, {rate_window.COLUMNS}"
    " FROM keys JOIN accounts ON accounts.number = keys.account"
    " LEFT JOIN months ON months.account = accounts.number AND month = :month"
    f"{rate_window.JOINS} WHERE keys.id = :key"
)


@dataclass(frozen=True, slots=True)
class CallerRow:
    """The caller's row numbers, and its account with the current tier and billing period."""

    account: Account
    account_number: int
    key_number: int


@dataclass(frozen=True, slots=True)
class Standing:
    """A caller's rows: everything in the ledger except the window's instants."""

    caller: CallerRow
    held: Sum
    month_units: int
    month_billable: int
    period_billable: int
    reserved: int
    undelivered: int
    keys: int
    any_ended: bool  # whether ended reservations of the account are still stored

    def ledger(
        self, now: datetime, window: Window, account_window: Sequence[tuple[datetime, int]]
    ) -> Ledger:
        start, end = period_bounds(self.caller.account, now)
        return Ledger(
            asked_at=now,
            window=window,
            month_units=self.month_units + self.reserved,
            month_billable=self.month_billable,
            period_start=start,
            period_end=end,
            period_billable=self.period_billable,
            reserved=self.reserved,
            undelivered=self.undelivered,
            keys=self.keys,
            account_window=account_window,
        )


def _caller(db: sqlite3.Connection, caller: Caller) -> CallerRow:
    row = db.execute(
        "SELECT accounts.number, keys.number, tier, current_period_start, current_period_end"
        " FROM keys JOIN accounts ON accounts.number = keys.account WHERE keys.id = ?",
        (caller.key.id,),
    ).fetchone()
    if row is None:
        raise KeyError(caller.key.id)
    return _caller_of(row, caller)


def _caller_of(row: Row, caller: Caller) -> CallerRow:
    account_number, key_number, tier, start, end = row
    start, end = start and instant(start), end and instant(end)
    account = caller.account
    before = (account.tier, account.current_period_start, account.current_period_end)
    if (tier, start, end) != before:
        account = replace(account, tier=tier, current_period_start=start, current_period_end=end)
    return CallerRow(account, account_number, key_number)


def _standing(db: sqlite3.Connection, now: datetime, caller: Caller) -> Standing:
    at = micros(now)
    since = at - WINDOW_MICROS
    given = {"now": at, "since": since, "month": str(month_of(now)), "key": caller.key.id}
    row = db.execute(STANDING, given).fetchone()
    if row is None:
        raise KeyError(caller.key.id)
    current = _caller_of(row[:5], caller)
    units, billable, reserved, any_ended, jobs, undelivered, of_period, keys, *held = row[5:]
    in_period = current.account.current_period_start and current.account.current_period_end
    return Standing(
        caller=current,
        held=rate_window.sum_of(current.key_number, since, held),
        month_units=units or 0,
        month_billable=billable or 0,
        # this period, and the next one if it began before the provider reported it
        period_billable=(of_period if in_period else billable) or 0,
        reserved=(reserved or 0) + (jobs or 0),
        undelivered=undelivered or 0,
        keys=keys,
        any_ended=bool(any_ended),
    )


def reserve(db: sqlite3.Connection, now: datetime, command: Reserve[R]) -> Reservation | R:
    """Check the limits and insert a reservation; returns it, or the refusal."""
    standing = grant(db, now, command.caller, command.units, command.check_limits)
    if not isinstance(standing, Standing):
        return standing
    account = standing.caller.account_number
    if standing.any_ended:
        db.execute(
            "DELETE FROM reservations WHERE account = ? AND lease_until <= ?",
            (account, micros(now)),
        )
    number = db.execute(
        "INSERT INTO reservations (account, units, lease_until) VALUES (?, ?, ?)",
        (account, command.units, micros(now + timedelta(seconds=command.lease_s))),
    ).lastrowid
    return Reservation(str(number), command.caller, command.units)


def grant(
    db: sqlite3.Connection,
    now: datetime,
    caller: Caller,
    units: int,
    check_limits: Callable[[Ledger], R | None],
) -> Standing | R:
    """Check the limits; granted units are in the window from now on. The caller reserves them."""
    standing = _standing(db, now, caller)
    if (standing.held.newest_at or 0) > micros(now):
        rate_window.reclaim(db, standing.caller.key_number, micros(now))
        standing = _standing(db, now, caller)
    window, account_window = SqliteWindow(db, standing.held), _account_window(db, now, standing)
    refusal = check_limits(standing.ledger(now, window, account_window))
    window.close()
    account_window.close()
    if refusal is not None:
        return refusal
    rate_window.add(db, standing.held, micros(now), units)
    return standing


def spend(db: sqlite3.Connection, now: datetime, command: Spend[R]) -> R | None:
    """Check the limits, then log and count at once, without a reservation."""
    idempotency_records.check_runs(db, command.first.idempotency if command.first else None)
    standing = grant(db, now, command.caller, units_of(command.rows), command.check_limits)
    if not isinstance(standing, Standing):
        return standing
    _use(db, now, standing.caller, command.rows, command.emit_meter_event)
    idempotency_records.keep(db, command.first)
    return None


def extend(db: sqlite3.Connection, now: datetime, command: Extend) -> None:
    """Let the lease end `lease_s` from now, if it has not ended."""
    db.execute(
        "UPDATE reservations SET lease_until = ? WHERE number = ? AND lease_until > ?",
        (
            micros(now + timedelta(seconds=command.lease_s)),
            int(command.reservation.id),
            micros(now),
        ),
    )


def settle(db: sqlite3.Connection, now: datetime, command: Settle) -> None:
    """Log and count one part of a reservation, once."""
    number = int(command.reservation.id)
    new = db.execute(
        "INSERT INTO settlements (reservation, part, at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        (number, command.part, micros(now)),
    )
    if not new.rowcount:
        return
    idempotency_records.check_runs(db, command.first.idempotency if command.first else None)
    idempotency_records.keep(db, command.first)
    rows = command.rows
    if command.chunk is not None:
        (stored,) = list_results.record_all(SqliteDatabase(db, now), now, [command.chunk])
        rows = rows if stored else ()
    if command.ends:
        db.execute("DELETE FROM reservations WHERE number = ?", (number,))
    else:
        db.execute(
            "UPDATE reservations SET units = max(0, units - ?) WHERE number = ?",
            (units_of(command.rows), number),
        )
    if rows:
        use(db, now, command.reservation.caller, rows, command.emit_meter_event)


def use(
    db: sqlite3.Connection,
    now: datetime,
    caller: Caller,
    rows: Sequence[UsageRow],
    emit_meter_event: bool,
) -> None:
    """Log and count rows; the caller gives back what was reserved for them."""
    _use(db, now, _caller(db, caller), rows, emit_meter_event)


def _use(
    db: sqlite3.Connection,
    now: datetime,
    owner: CallerRow,
    rows: Sequence[UsageRow],
    emit_meter_event: bool,
) -> None:
    _log(db, owner, rows)
    _count(db, owner, rows)
    billable = sum(row.billable for row in rows)
    if emit_meter_event and billable:
        raise_meter(db, now, owner.account_number, billable)


def _log(db: sqlite3.Connection, owner: CallerRow, rows: Sequence[UsageRow]) -> None:
    """Insert one row each."""
    db.executemany(
        "INSERT INTO usage (account, key, at, operation, status, failed_check, units, billable,"
        " latency_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(owner.account_number, owner.key_number, *usage_values(row)) for row in rows],
    )


def _count(db: sqlite3.Connection, owner: CallerRow, rows: Sequence[UsageRow]) -> None:
    """Raise the counters that outlive the rows, once per day, month and period."""
    account = owner.account_number
    counted: dict[datetime, list[int]] = {}  # units, billable, and one for each light
    for row in rows:
        # Rows settled together mostly have the same instant.
        sums = counted.setdefault(row.at, [0, 0, 0, 0, 0])
        sums[0] += row.units
        sums[1] += row.billable
        if row.light is not None:
            sums[LIGHT_PLACES[row.light]] += 1
    months: dict[date, list[int]] = {}
    days: dict[date, list[int]] = {}
    periods: dict[datetime, int] = {}
    for at, (units, billable, *lights) in counted.items():
        day = day_of(at)
        if billable or any(lights):
            of_day = days.setdefault(day, [0, 0, 0, 0])
            for place, number in enumerate((billable, *lights)):
                of_day[place] += number
        sums = months.setdefault(day.replace(day=1), [0, 0])
        sums[0] += units
        sums[1] += billable
        if billable:
            start = period_start_of(owner.account, at)
            if start:
                periods[start] = periods.get(start, 0) + billable
    for month, (units, billable) in months.items():
        db.execute(
            "INSERT INTO months (account, month, units, billable) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (account, month) DO UPDATE"
            " SET units = units + excluded.units, billable = billable + excluded.billable",
            (account, str(month), units, billable),
        )
    for day, counts in days.items():
        db.execute(
            "INSERT INTO days (account, day, billable, green, yellow, red) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (account, day) DO UPDATE SET billable = billable + excluded.billable,"
            " green = green + excluded.green, yellow = yellow + excluded.yellow,"
            " red = red + excluded.red",
            (account, str(day), *counts),
        )
    for start, billable in periods.items():
        db.execute(
            "INSERT INTO periods (account, start, billable) VALUES (?, ?, ?)"
            " ON CONFLICT (account, start) DO UPDATE"
            " SET billable = billable + excluded.billable",
            (account, micros(start), billable),
        )


def log_refusal(db: sqlite3.Connection, now: datetime, command: LogRefusal) -> None:
    """Insert the refusal into the minute's next free slot; the last slot is shared by all others."""
    owner = _caller(db, command.caller)
    minute = micros(now.replace(second=0, microsecond=0))
    place = (owner.account_number, minute, owner.key_number, command.row.failed_check or "")
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
            micros(command.row.at),
            command.row.operation,
            command.row.status,
            command.row.units,
            command.row.billable,
            command.row.latency_ms,
            command.row.times,
        ),
    )


def read_ledger(db: sqlite3.Connection, now: datetime, command: ReadLedger) -> Ledger:
    """Return the caller's ledger, with windows readable after the transaction."""
    standing = _standing(db, now, command.caller)
    window = rate_window.window_of(db, standing.held, micros(now))
    return standing.ledger(now, window, tuple(_account_window(db, now, standing)))


def _account_window(
    db: sqlite3.Connection, now: datetime, standing: Standing
) -> rate_window.SqliteAccountWindow:
    at = micros(now)
    return rate_window.SqliteAccountWindow(
        db, standing.caller.account_number, at - WINDOW_MICROS, at
    )
