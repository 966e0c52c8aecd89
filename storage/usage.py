"""Usage: what is reserved, settled, counted and logged, and the ledger of it.

To reserve and to settle is each database's own.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import TypeVar

from msgspec import Struct

from .base.columns import day_of, instant, micros, midnight, usage_row_of, usage_values
from .commands import (
    Extend,
    LogRefusal,
    ReadLedger,
    Reserve,
    Settle,
    Spend,
)
from .contract import REFUSALS_SINGLE_MAX, USAGE_ROWS_MAX, WINDOW, at_most
from .database import Database, Row, RowInsert, RowWriter, StorePart, read
from .idempotency import encrypted_first
from .list_records import ChunkPart
from .records import (
    DAY_LIGHTS,
    Account,
    Caller,
    DayCount,
    FirstAnswer,
    Ledger,
    Reservation,
    UsageRow,
    Window,
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


# the ledger


class CallerRow(Struct, frozen=True):
    """The row numbers of a key and its account, and the account's current tier and period."""

    key_number: int
    account_number: int
    account: Account


class AccountCounts(Struct):
    """An account's counts, including what was granted or used since they were read."""

    month_units: int
    month_billable: int
    reserved: int
    period_billable: int  # this period's, and the next one's if it began before it was reported
    undelivered: int
    keys: int
    any_ended: bool  # whether ended reservations still have rows

    def reserve(self, units: int) -> None:
        """Add to the reserved units; negative if some were given back."""
        self.reserved += units

    def use(self, now: datetime, account: Account, rows: Iterable[UsageRow]) -> None:
        """Count each row in the month and the billing period of its own instant."""
        for row in rows:
            if month_of(row.at) == month_of(now):
                self.month_units += row.units
                self.month_billable += row.billable
            if period_start_of(account, row.at):
                self.period_billable += row.billable

    def ledger(
        self,
        now: datetime,
        account: Account,
        window: Window,
        account_window: Iterable[tuple[datetime, int]],
    ) -> Ledger:
        start, end = period_bounds(account, now)
        has_period = account.current_period_start and account.current_period_end
        return Ledger(
            asked_at=now,
            window=window,
            month_units=self.month_units + self.reserved,
            month_billable=self.month_billable,
            period_start=start,
            period_end=end,
            period_billable=self.period_billable if has_period else self.month_billable,
            reserved=self.reserved,
            undelivered=self.undelivered,
            keys=self.keys,
            account_window=account_window,
        )


# A key's sliding window. Each row has the running total of the key's units, so a minute's sum is the
# difference of its last row and its first: it costs three look-ups, however long the window is. The
# instants themselves are read only when a window is iterated, and only as far: a refusal needs the
# first few.

WINDOW_MICROS = WINDOW // timedelta(microseconds=1)
STALE_MICROS = 1_000_000  # rows older than the window are deleted together, once a second
READ_FIRST = 10  # instants; each further read takes twice as many as the one before
GRANT = RowInsert(
    "rate_windows",
    "key bigint, at bigint, units bigint, total bigint",
    " ON CONFLICT (key, at) DO UPDATE SET units = rate_windows.units + excluded.units,"
    " total = rate_windows.total + excluded.units",
)
# A grant that seems later than now was made by a clock that was ahead, and counts as of now.
SUMS = (
    "SELECT CASE WHEN at < :now THEN at ELSE :now END AS granted, CAST(sum(units) AS bigint)"
    " FROM {} at > :since GROUP BY 1 ORDER BY 1"
)
# the standard keys of an account that were active within the window
OURS = (
    "WITH ours AS (SELECT number FROM keys WHERE account = :account AND kind = 'standard'"
    " AND revoked_at IS NULL UNION ALL SELECT number FROM keys"
    " WHERE account = :account AND kind = 'standard' AND revoked_at > :since) "
)
SUMS_OF_ACCOUNT = OURS + SUMS.format("ours JOIN rate_windows ON key = ours.number AND")
OF_KEY = "FROM rate_windows WHERE key = ours.number"
UNITS_OF_ACCOUNT = (
    f"{OURS} SELECT CAST(coalesce(sum(newest - before), 0) AS bigint) FROM (SELECT"
    f" (SELECT total {OF_KEY} ORDER BY at DESC LIMIT 1) AS newest,"
    f" (SELECT total - units {OF_KEY} AND at > :since ORDER BY at LIMIT 1) AS before"
    " FROM ours) AS sums WHERE before IS NOT NULL"
)


def count_of_keys(account: str, since: str) -> str:
    """SQL that counts an account's standard keys that were active since this instant."""
    ours = f"SELECT count(*) FROM keys AS one WHERE one.account = {account}"
    return (
        f"(({ours} AND one.kind = 'standard' AND one.revoked_at IS NULL)"
        f" + ({ours} AND one.kind = 'standard' AND one.revoked_at > {since}))"
    )


class HeldWindow(Struct):
    """A key's window as its first and last rows show it, plus what was granted since."""

    key: int
    earliest_at: int | None  # of all the key's rows, also those older than the window
    oldest_at: int | None  # in the window
    oldest_units: int | None
    oldest_total: int | None
    newest_at: int | None  # of all
    newest_total: int | None
    granted: int = 0

    @property
    def units(self) -> int:
        """The units granted within the window."""
        before = (self.oldest_total or 0) - (self.oldest_units or 0)
        held = 0 if self.oldest_at is None else (self.newest_total or 0) - before
        return held + self.granted

    def grant(self, units: int) -> None:
        """Count units that are granted now, and not written yet."""
        self.granted += units

    def is_stale(self, now: int) -> bool:
        """Whether rows are to be deleted."""
        oldest = now - WINDOW_MICROS - STALE_MICROS
        return self.earliest_at is not None and self.earliest_at <= oldest


class ReadWindow(Window):
    """A window that is read on demand, only while the limits are checked."""

    __slots__ = ("_open",)

    def __init__(self, db: Database) -> None:
        self._open: Database | None = db

    @property
    def _db(self) -> Database:
        if self._open is None:
            raise RuntimeError("a window can be read only while its limits are checked")
        return self._open

    def close(self) -> None:
        """Forbid further reads: the transaction continues after the limit check."""
        self._open = None


class KeyWindow(ReadWindow):
    """A window whose instants are read in small steps."""

    __slots__ = ("_at", "_held")

    def __init__(self, db: Database, held: HeldWindow, at: int) -> None:
        super().__init__(db)
        self.units = held.units
        self._held = held
        self._at = at

    def __iter__(self) -> Iterator[tuple[datetime, int]]:
        granted = self._held.granted
        for at, units in self._rows():
            if granted and at >= self._at:
                same = at == self._at
                yield instant(self._at), granted + (units if same else 0)
                granted = 0
                if same:
                    continue
            yield instant(at), units
        if granted:
            yield instant(self._at), granted

    def _rows(self) -> Iterator[tuple[int, int]]:
        at, units = self._held.oldest_at, self._held.oldest_units
        if at is None or units is None:
            return
        yield at, units
        most = READ_FIRST
        while True:
            rows = self._db.all(
                "SELECT at, units FROM rate_windows WHERE key = :key AND at > :after"
                " ORDER BY at LIMIT :most",
                {"key": self._held.key, "after": at, "most": most},
            )
            for at, units in rows:
                yield at, units
            if len(rows) < most:
                return
            most *= 2


class AccountWindow(ReadWindow):
    """The window of all keys of an account."""

    __slots__ = ("_granted", "_units", "_values")

    def __init__(self, db: Database, account: int, now: int, granted: int = 0) -> None:
        """`granted` are units granted to its keys and not yet written; `now` is in microseconds."""
        super().__init__(db)
        self._values = {"account": account, "since": now - WINDOW_MICROS, "now": now}
        self._granted = granted
        self._units: int | None = None

    @property
    def units(self) -> int:  # type: ignore[override]  # computed on demand
        """The units granted to all keys within the window."""
        if self._units is None:
            ((self._units,),) = self._db.all(UNITS_OF_ACCOUNT, self._values)
        return int(self._units or 0) + self._granted

    def __iter__(self) -> Iterator[tuple[datetime, int]]:
        for at, units in self._db.all(SUMS_OF_ACCOUNT, self._values):
            yield instant(at), units
        if self._granted:
            yield instant(self._values["now"]), self._granted


def window_of(db: Database, held: HeldWindow, now: int) -> Window:
    """Return the whole window, readable after the transaction."""
    rows = db.all(
        SUMS.format("rate_windows WHERE key = :key AND"),
        {"key": held.key, "now": now, "since": now - WINDOW_MICROS},
    )
    instants, counts = (
        ",".join(map(str, each)) for each in (zip(*rows, strict=True) if rows else ("", ""))
    )
    return Window(instants, counts, sum(units for _, units in rows))


def write_grants(db: RowWriter, now: int, those: Iterable[HeldWindow]) -> None:
    """Add what was granted now; no row is later: see `reclaim_window`."""
    db.insert(
        GRANT,
        [
            (each.key, now, each.granted, (each.newest_total or 0) + each.granted)
            for each in those
            if each.granted
        ],
    )


def reclaim_window(db: Database, key: int, now: int) -> None:
    """Count as granted now what a clock granted that was ahead: it expires a minute from now."""
    later = db.all(
        "DELETE FROM rate_windows WHERE key = :key AND at > :now RETURNING units, total",
        {"key": key, "now": now},
    )
    if later:
        units, totals = zip(*later, strict=True)
        db.change(
            "INSERT INTO rate_windows (key, at, units, total) VALUES (:key, :now, :units, :total)"
            " ON CONFLICT (key, at) DO UPDATE"
            " SET units = rate_windows.units + excluded.units, total = excluded.total",
            {"key": key, "now": now, "units": sum(units), "total": max(totals)},
        )


# what was used


LOG = RowInsert(
    "usage",
    "account bigint, key bigint, at bigint, operation text, status text, failed_check text,"
    " units bigint, billable boolean, latency_ms bigint",
)
# Counters that outlive the rows.
MONTHS = RowInsert(
    "months",
    "account bigint, month text, units bigint, billable bigint",
    " ON CONFLICT (account, month) DO UPDATE"
    " SET units = months.units + excluded.units, billable = months.billable + excluded.billable",
)
DAYS = RowInsert(
    "days",
    "account bigint, day text, billable bigint, green bigint, yellow bigint, red bigint",
    " ON CONFLICT (account, day) DO UPDATE SET billable = days.billable + excluded.billable,"
    " green = days.green + excluded.green, yellow = days.yellow + excluded.yellow,"
    " red = days.red + excluded.red",
)
PERIODS = RowInsert(
    "periods",
    "account bigint, start bigint, billable bigint",
    " ON CONFLICT (account, start) DO UPDATE SET billable = periods.billable + excluded.billable",
)
LIGHT_PLACES = {light: place for place, light in enumerate(DAY_LIGHTS, 2)}  # in log()


def log(db: RowWriter, used: Sequence[tuple[CallerRow, Sequence[UsageRow]]]) -> None:
    """Log each row, and add to the counters once per day, month and billing period."""
    db.insert(
        LOG,
        [
            (who.account_number, who.key_number, *usage_values(row))
            for who, rows in used
            for row in rows
        ],
    )
    accounts: dict[int, Account] = {}
    counted: dict[tuple[int, datetime], list[int]] = {}  # units, billable, and one for each light
    for who, rows in used:
        accounts[who.account_number] = who.account
        for row in rows:
            # Rows settled together mostly have the same instant.
            sums = counted.setdefault((who.account_number, row.at), [0, 0, 0, 0, 0])
            sums[0] += row.units
            sums[1] += row.billable
            if row.light is not None:
                sums[LIGHT_PLACES[row.light]] += 1
    months: dict[tuple[int, str], list[int]] = {}
    days: dict[tuple[int, str], list[int]] = {}
    periods: Counter[tuple[int, int]] = Counter()
    for (account, at), (units, *counts) in counted.items():
        day = day_of(at).isoformat()
        of_month = months.setdefault((account, f"{day[:-2]}01"), [0, 0])
        of_month[0] += units
        of_month[1] += counts[0]
        if any(counts):
            of_day = days.setdefault((account, day), [0, 0, 0, 0])
            for place, count in enumerate(counts):
                of_day[place] += count
        if counts[0] and (start := period_start_of(accounts[account], at)):
            periods[account, micros(start)] += counts[0]
    db.insert(MONTHS, [(*which, *sums) for which, sums in months.items()])
    db.insert(DAYS, [(*which, *sums) for which, sums in days.items()])
    db.insert(PERIODS, [(*which, count) for which, count in periods.items()])


# what was refused


REFUSED = RowInsert(
    "refusals",
    "minute bigint, account bigint, key bigint, failed_check text, place bigint, at bigint,"
    " operation text, status text, units bigint, billable boolean, latency_ms bigint, times bigint",
    " ON CONFLICT (account, minute, key, failed_check, place)"
    " DO UPDATE SET times = refusals.times + excluded.times",
)


def log_refusals(
    db: Database, now: datetime, those: Sequence[tuple[LogRefusal, CallerRow]]
) -> None:
    """Insert refusals into the minute's next free slots; the last slot is shared by all others."""
    if not those:
        return
    minute = micros(now.replace(second=0, microsecond=0))
    reasons = sorted(
        {
            (who.account_number, who.key_number, command.row.failed_check or "")
            for command, who in those
        }
    )
    found = db.all_each(
        "SELECT max(place) FROM refusals WHERE account = :account AND minute = :minute"
        " AND key = :key AND failed_check = :why",
        [
            {"account": account, "minute": minute, "key": key, "why": why}
            for account, key, why in reasons
        ],
    )
    last: dict[tuple[int, str], int] = {
        (key, why): -1 if place is None else place
        for (_, key, why), ((place,),) in zip(reasons, found, strict=True)
    }
    rows: dict[tuple[int, str, int], Row] = {}
    times: Counter[tuple[int, str, int]] = Counter()
    for command, who in those:
        row, why = command.row, command.row.failed_check or ""
        place = min(last[who.key_number, why] + 1, REFUSALS_SINGLE_MAX)
        last[who.key_number, why] = place
        slot = who.key_number, why, place
        times[slot] += row.times
        columns = (
            minute, who.account_number, *slot, micros(row.at), row.operation, row.status, row.units,
            row.billable, row.latency_ms,
        )  # fmt: skip
        rows.setdefault(slot, columns)
    db.insert(REFUSED, [(*columns, times[slot]) for slot, columns in rows.items()])


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
        answer = None if first is None else encrypted_first(self._cipher, first)
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
        answer = None if first is None else encrypted_first(self._cipher, first)
        return await self._execute(Spend(caller, rows, check_limits, emit_meter_event, answer))

    async def log_refusal(self, caller: Caller, row: UsageRow) -> None:
        """Log a refused request: one row each while they are few, then one row per minute.

        It counts towards no limit, whatever the row's `units` say.
        """
        await self._execute(LogRefusal(caller, row))

    async def ledger(self, caller: Caller) -> Ledger:
        """Return the caller's ledger for display; nothing is changed."""
        return await self._execute(ReadLedger(caller))
