"""Transactions of usage and limits, in SQL. Each runs in the writer's or the reader's transaction."""

import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from .. import idempotency, outbox, usage
from ..base.columns import instant, micros
from ..commands import Extend, LogRefusal, ReadLedger, Reserve, Settle, Spend
from ..database import Row
from ..list_jobs import list_results
from ..records import Caller, Ledger, Reservation, UsageRow, units_of
from ..usage import WINDOW_MICROS, AccountCounts, AccountWindow, CallerRow, HeldWindow, KeyWindow
from .database import SqliteDatabase

R = TypeVar("R")

METERS = outbox.raise_meters("(SELECT :account AS account, :billable AS count)")
METER = (  # where its slot is open and has a message, as for all but the first of ten seconds
    "UPDATE outbox SET count = count + :billable WHERE kind = 'meter' AND account = :account"
    " AND name = :name AND fence = 0"
)
# One statement for all that a limit check needs. Each further statement would cost as much again,
# and releases the GIL, which a busy event loop is slow to give back.
# `:since` is the start of the window, `:key` the key's id.
STANDING = (
    "SELECT accounts.number, keys.number, tier, current_period_start, current_period_end,"
    " months.units, months.billable,"
    " (SELECT sum(units) FROM reservations WHERE account = accounts.number AND lease_until > :now),"
    " (SELECT pending FROM job_backlogs WHERE account = accounts.number),"
    " (SELECT sum(billable) FROM periods"
    " WHERE account = accounts.number AND start >= current_period_start),"
    " (SELECT undelivered FROM job_backlogs WHERE account = accounts.number),"
    f" {usage.count_of_keys('accounts.number', ':since')},"
    " EXISTS (SELECT 1 FROM reservations WHERE account = accounts.number AND lease_until <= :now),"
    " (SELECT at FROM rate_windows WHERE key = keys.number ORDER BY at LIMIT 1),"
    " oldest.at, oldest.units, oldest.total, newest.at, newest.total"
    " FROM keys JOIN accounts ON accounts.number = keys.account"
    " LEFT JOIN months ON months.account = accounts.number AND month = :month"
    " LEFT JOIN rate_windows AS oldest ON oldest.key = keys.number AND oldest.at ="
    " (SELECT at FROM rate_windows WHERE key = keys.number AND at > :since ORDER BY at LIMIT 1)"
    " LEFT JOIN rate_windows AS newest ON newest.key = keys.number AND newest.at ="
    " (SELECT at FROM rate_windows WHERE key = keys.number ORDER BY at DESC LIMIT 1)"
    " WHERE keys.id = :key"
)


class Standing(Struct, frozen=True):
    """A caller's rows: everything in the ledger except the windows' instants."""

    caller: CallerRow
    counts: AccountCounts
    held: HeldWindow


def caller_row(db: sqlite3.Connection, caller: Caller) -> CallerRow:
    """The caller's rows as they are now. Raises KeyError."""
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
    return CallerRow(key_number, account_number, account)


def _standing(db: sqlite3.Connection, now: datetime, caller: Caller) -> Standing:
    at = micros(now)
    month = str(usage.month_of(now))
    given = {"now": at, "since": at - WINDOW_MICROS, "month": month, "key": caller.key.id}
    row = db.execute(STANDING, given).fetchone()
    if row is None:
        raise KeyError(caller.key.id)
    current = _caller_of(row[:5], caller)
    units, billable, reserved, jobs, of_period, undelivered, keys, any_ended, *held = row[5:]
    counts = AccountCounts(
        units or 0, billable or 0, (reserved or 0) + (jobs or 0), of_period or 0, undelivered or 0,
        keys, bool(any_ended),
    )  # fmt: skip
    return Standing(current, counts, HeldWindow(current.key_number, *held))


def reserve(db: sqlite3.Connection, now: datetime, command: Reserve[R]) -> Reservation | R:
    """Check the limits and insert a reservation; returns it, or the refusal."""
    standing = grant(db, now, command.caller, command.units, command.check_limits)
    if not isinstance(standing, Standing):
        return standing
    account = standing.caller.account_number
    if standing.counts.any_ended:
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
    at, shared = micros(now), SqliteDatabase(db, now)
    standing = _standing(db, now, caller)
    if (standing.held.newest_at or 0) > at:
        usage.reclaim_window(shared, standing.caller.key_number, at)
        standing = _standing(db, now, caller)
    who, held = standing.caller, standing.held
    window = KeyWindow(shared, held, at)
    account_window = AccountWindow(shared, who.account_number, at)
    refusal = check_limits(standing.counts.ledger(now, who.account, window, account_window))
    window.close()
    account_window.close()
    if refusal is not None:
        return refusal
    held.grant(units)
    usage.write_grants(shared, at, [held])
    if held.is_stale(at):
        db.execute(
            "DELETE FROM rate_windows WHERE key = ? AND at <= ?", (held.key, at - WINDOW_MICROS)
        )
    return standing


def spend(db: sqlite3.Connection, now: datetime, command: Spend[R]) -> R | None:
    """Check the limits, then log and count at once, without a reservation."""
    shared = SqliteDatabase(db, now)
    idempotency.check_runs(shared, command.first.idempotency if command.first else None)
    standing = grant(db, now, command.caller, units_of(command.rows), command.check_limits)
    if not isinstance(standing, Standing):
        return standing
    use(db, now, standing.caller, command.rows, command.emit_meter_event)
    idempotency.keep(shared, command.first)
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
    shared = SqliteDatabase(db, now)
    number = int(command.reservation.id)
    new = db.execute(
        "INSERT INTO settlements (reservation, part, at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        (number, command.part, micros(now)),
    )
    if not new.rowcount:
        return
    if command.first is not None:
        idempotency.check_runs(shared, command.first.idempotency)
        idempotency.keep(shared, command.first)
    rows = command.rows
    if command.chunk is not None:
        (stored,) = list_results.record_all(shared, now, [command.chunk])
        rows = rows if stored else ()
    if command.ends:
        db.execute("DELETE FROM reservations WHERE number = ?", (number,))
    else:
        db.execute(
            "UPDATE reservations SET units = max(0, units - ?) WHERE number = ?",
            (units_of(command.rows), number),
        )
    if rows:
        owner = caller_row(db, command.reservation.caller)
        use(db, now, owner, rows, command.emit_meter_event)


def use(
    db: sqlite3.Connection,
    now: datetime,
    owner: CallerRow,
    rows: Sequence[UsageRow],
    emit_meter_event: bool,
) -> None:
    """Log and count rows; the caller gives back what was reserved for them."""
    usage.log(SqliteDatabase(db, now), [(owner, rows)])
    billable = sum(row.billable for row in rows)
    if emit_meter_event and billable:
        metered = {
            **outbox.metering(now), "account": owner.account_number, "billable": billable,
        }  # fmt: skip
        if not db.execute(METER, metered).rowcount:
            db.execute(METERS, metered)


def log_refusal(db: sqlite3.Connection, now: datetime, command: LogRefusal) -> None:
    """Log a refused request."""
    refused = command, caller_row(db, command.caller)
    usage.log_refusals(SqliteDatabase(db, now), now, [refused])


def read_ledger(db: sqlite3.Connection, now: datetime, command: ReadLedger) -> Ledger:
    """Return the caller's ledger, with windows readable after the transaction."""
    at, shared = micros(now), SqliteDatabase(db, now)
    standing = _standing(db, now, command.caller)
    who = standing.caller
    window = usage.window_of(shared, standing.held, at)
    account_window = tuple(AccountWindow(shared, who.account_number, at))
    return standing.counts.ledger(now, who.account, window, account_window)
