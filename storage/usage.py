"""Usage: what is reserved, settled, counted and logged. Writing it is each database's own."""

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import TypeVar

from .base.columns import day_of, midnight, usage_row_of
from .commands import (
    Extend,
    LogRefusal,
    ReadLedger,
    Reserve,
    Settle,
    Spend,
)
from .contract import USAGE_ROWS_MAX, at_most
from .database import Database, Row, StorePart, read
from .idempotency import encrypted_first
from .list_records import ChunkPart
from .records import (
    Account,
    Caller,
    DayCount,
    FirstAnswer,
    Ledger,
    Reservation,
    UsageRow,
    units_of,
)

R = TypeVar("R")
SHOWN = "at, operation, status, failed_check, units, billable, latency_ms"


# the month and the billing period of an instant, in UTC; pure


def month_of(at: datetime) -> date:
    """Return the first day of the instant's UTC month."""
    return day_of(at).replace(day=1)


def month_bounds(at: datetime) -> tuple[datetime, datetime]:
    """Return the first instant of the month, and the first one after it."""
    return _bounds(month_of(at))


@lru_cache(64)  # needed at each request
def _bounds(first: date) -> tuple[datetime, datetime]:
    after = (first + timedelta(days=31)).replace(day=1)
    return midnight(first), midnight(after)


def period_bounds(account: Account, at: datetime) -> tuple[datetime, datetime]:
    """Return the subscription's period as the account has it, else the UTC month: (start, end).

    The billing provider starts the next period: a period that is over stays until the
    account changes.
    """
    if account.current_period_start and account.current_period_end:
        return account.current_period_start, account.current_period_end
    return month_bounds(at)


def period_start_of(account: Account, at: datetime) -> datetime | None:
    """Return the start of the subscription's period that a verification at this instant belongs to.

    A verification after the period's end belongs to the next period, which begins there
    even if the provider's event has not arrived yet. None if there is no subscription, or
    the instant is before the known period.
    """
    start, end = account.current_period_start, account.current_period_end
    if start is None or end is None or at < start:
        return None
    return start if at < end else end


# the methods of the store


def count_days(db: Database, account_id: str, first: date, last: date) -> list[DayCount]:
    """Return the verifications per UTC day from `first` to `last`, both included.

    Oldest first; days without any are left out.
    """
    rows = db.all(
        "SELECT day, days.billable, green, yellow, red FROM days JOIN accounts ON accounts.number = days.account"
        " WHERE accounts.id = :id AND day BETWEEN :first AND :last ORDER BY day",
        {"id": account_id, "first": str(first), "last": str(last)},
    )
    return [DayCount(date.fromisoformat(day), *counts) for day, *counts in rows]


def list_usage(db: Database, account_id: str, *, limit: int) -> list[UsageRow]:
    """Return the rows still within retention, newest first; of one instant the last logged first.

    Refusals are included. At most USAGE_ROWS_MAX rows, however large `limit` is.
    """
    limit = at_most(USAGE_ROWS_MAX, limit)
    found = db.all("SELECT number FROM accounts WHERE id = :id", {"id": account_id})
    if not found:
        return []
    values = {"account": found[0][0], "limit": limit}
    logged: list[Row] = []
    for first, end in db.usage_spans():
        if len(logged) < limit:
            logged += db.all(
                f"SELECT {SHOWN}, 1 FROM usage WHERE account = :account"
                f" AND at >= {first:d} AND at < {end:d}"
                " ORDER BY at DESC, number DESC LIMIT :limit",
                {**values, "limit": limit - len(logged)},
            )
    refused = db.all(
        f"SELECT {SHOWN}, times FROM refusals WHERE account = :account"
        " ORDER BY at DESC, minute DESC, place DESC LIMIT :limit",
        values,
    )
    rows = sorted([*logged, *refused], key=lambda row: int(row[0]), reverse=True)
    return [usage_row_of(row) for row in rows[:limit]]


def _check_units(units: int) -> None:
    """Raise ValueError if fewer than one unit is to be reserved."""
    if units < 1:
        raise ValueError(f"{units} units cannot be reserved")


class UsageStore(StorePart):
    """The part of the store that counts."""

    days = read(count_days)
    usage = read(list_usage)

    async def reserve(
        self,
        caller: Caller,
        units: int,
        check_limits: Callable[[Ledger], R | None],
        *,
        lease_s: float,
    ) -> Reservation | R:
        """Read the ledger, check the limits, and reserve the units, in one transaction.

        Returns the reservation, or the refusal that `check_limits` returned. `check_limits`
        may run in another thread while the lock is held: it must be pure and quick, and may
        read the ledger's window only until it returns. If it raises, this raises the same
        and nothing is reserved. A reservation that is neither settled nor extended within
        `lease_s` is given back: its units leave the quota and `reserved`. The sliding
        window keeps what was granted, used or not. Raises ValueError for less than one unit.
        """
        _check_units(units)
        return await self._execute(Reserve(caller, units, check_limits, lease_s))

    async def extend(self, reservation: Reservation, *, lease_s: float) -> None:
        """Let the lease end `lease_s` from now; does nothing if it has ended or was settled."""
        await self._execute(Extend(reservation, lease_s))

    async def settle(
        self,
        reservation: Reservation,
        rows: Sequence[UsageRow],
        *,
        part: int = 0,
        ends: bool = True,
        emit_meter_event: bool = False,
        first: FirstAnswer | None = None,
        chunk: ChunkPart | None = None,
    ) -> None:
        """Log what was used, whole or in parts; the part with `ends` gives back the unused units.

        Each numbered part of a reservation is logged once: a second call with the same part
        changes nothing, and parts may come in any order. The units that a part uses are no
        longer reserved. Rows are still counted if the lease has ended. Each row counts at
        its own instant: in its UTC day and month and its billing period. With
        `emit_meter_event`, the billable rows are added to the account's message to the
        billing meter in the same transaction.

        `first` is the answer to a request with an idempotency key, stored in the same
        transaction. Raises IdempotencyInProgress, and changes nothing, if the lease of its
        idempotency record has ended and another request has begun since.

        `chunk` has results of a list, stored in the same transaction. If another claim has
        followed that of its chunk, neither they nor the rows are stored or counted.

        A meter's message is named after the slot that it counts: the Unix time in seconds
        at which the slot of METER_SLOT_S begins that contains the instant of settlement. It
        is due METER_REST_S after the end of its slot. A claimed message is closed: what a
        clock that was set back adds later goes to the account's next open slot.
        """
        answer = encrypted_first(self._cipher, first)
        await self._execute(Settle(reservation, rows, part, ends, emit_meter_event, answer, chunk))

    async def spend(
        self,
        caller: Caller,
        rows: Sequence[UsageRow],
        check_limits: Callable[[Ledger], R | None],
        *,
        emit_meter_event: bool = False,
        first: FirstAnswer | None = None,
    ) -> R | None:
        """Reserve the rows' units and settle them in one transaction; returns the refusal or None.

        For results that are known before the limits are checked: no reservation can be left
        behind, and it costs half as much as the two calls. `first` as in `settle`, stored
        only if the units are granted. Raises ValueError for rows of less than one unit.
        """
        _check_units(units_of(rows))
        answer = encrypted_first(self._cipher, first)
        return await self._execute(Spend(caller, rows, check_limits, emit_meter_event, answer))

    async def log_refusal(self, caller: Caller, row: UsageRow) -> None:
        """Log a refused request: one row each while they are few, then one row per minute.

        It counts towards no limit, whatever the row's `units` say.
        """
        await self._execute(LogRefusal(caller, row))

    async def ledger(self, caller: Caller) -> Ledger:
        """Return the caller's ledger for display; nothing is changed."""
        return await self._execute(ReadLedger(caller))
