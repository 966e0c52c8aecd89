"""Usage and limits in dictionaries and counters."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from mailprobe.storage.base.columns import day_of
from mailprobe.storage.commands import (
    Extend,
    LogRefusal,
    ReadLedger,
    Reserve,
    Settle,
    Spend,
)
from mailprobe.storage.contract import (
    REFUSALS_SINGLE_MAX,
    SETTLED_KEPT,
    USAGE_ROWS_MAX,
    WINDOW,
    at_most,
)
from mailprobe.storage.list_records import ChunkPart
from mailprobe.storage.records import (
    DAY_LIGHTS,
    Account,
    Caller,
    DayCount,
    DayLight,
    Key,
    Ledger,
    Reservation,
    UsageRow,
    units_of,
)
from mailprobe.storage.usage import month_of, period_bounds, period_start_of
from tests.storage.ledger.outbox import ModelOutbox

R = TypeVar("R")


class _Lease(Struct, frozen=True):
    account_id: str
    units: int
    until: datetime


class ModelUsage(ModelOutbox):
    """The layer of windows, reservations, counters and rows; billable counts go to the outbox."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(now)
        self._windows: dict[str, Counter[datetime]] = {}  # units by key and instant
        self._leases: dict[str, _Lease] = {}  # by reservation
        self._settled: dict[tuple[str, int], datetime] = {}  # by reservation and part
        self._month_units: Counter[tuple[str, date]] = Counter()
        self._month_billable: Counter[tuple[str, date]] = Counter()
        self._day_billable: Counter[tuple[str, date]] = Counter()
        self._day_lights: Counter[tuple[str, date, DayLight]] = Counter()
        self._period_billable: Counter[tuple[str, datetime]] = Counter()
        self._usage: dict[str, list[UsageRow]] = {}
        self._refusals: dict[str, dict[tuple[Any, ...], UsageRow]] = {}
        self._reservations_made = 0

    def reserve(self, command: Reserve[R]) -> Reservation | R:
        now = self._now()
        self._reclaim(command.caller.key, now)
        refusal = command.check_limits(self._ledger(command.caller, now))
        if refusal is not None:
            return refusal
        return self._reserve(
            command.caller, command.units, now, now + timedelta(seconds=command.lease_s)
        )

    def _reserve(
        self, caller: Caller, units: int, now: datetime, lease_until: datetime
    ) -> Reservation:
        self._windows.setdefault(caller.key.id, Counter())[now] += units
        self._reservations_made += 1
        reservation = Reservation(str(self._reservations_made), caller, units)
        self._leases[reservation.id] = _Lease(caller.account.id, units, lease_until)
        return reservation

    def extend(self, command: Extend) -> None:
        now = self._now()
        lease = self._leases.get(command.reservation.id)
        if lease and lease.until > now:
            until = now + timedelta(seconds=command.lease_s)
            self._leases[command.reservation.id] = replace(lease, until=until)

    def settle(self, command: Settle) -> None:
        if (command.reservation.id, command.part) in self._settled:
            return
        self._check_runs(command.first)
        rows = command.rows
        if command.chunk is not None and not self._record_chunk(command.chunk):
            rows = ()
        self._settle(
            command.reservation, rows, command.part, command.ends, command.emit_meter_event
        )
        self._answer(command.first)

    def _settle(
        self,
        reservation: Reservation,
        rows: Sequence[UsageRow],
        part: int = 0,
        ends: bool = True,
        emit_meter_event: bool = False,
    ) -> None:
        self._settled[reservation.id, part] = self._now()
        lease = self._leases.pop(reservation.id, None)
        if lease and not ends:
            left = max(0, lease.units - sum(row.units for row in rows))
            self._leases[reservation.id] = replace(lease, units=left)
        account = self._accounts[reservation.caller.account.id]
        for row in rows:
            self._count(account, row)
        billable = sum(row.billable for row in rows)
        if emit_meter_event and billable:
            self._meter(account, billable)

    def _count(self, account: Account, row: UsageRow) -> None:
        self._usage.setdefault(account.id, []).append(row)
        self._month_units[account.id, month_of(row.at)] += row.units
        if row.light is not None:
            self._day_lights[account.id, day_of(row.at), row.light] += 1
        if not row.billable:
            return
        self._month_billable[account.id, month_of(row.at)] += 1
        self._day_billable[account.id, day_of(row.at)] += 1
        start = period_start_of(account, row.at)
        if start:
            self._period_billable[account.id, start] += 1

    def spend(self, command: Spend[R]) -> R | None:
        self._check_runs(command.first)
        now = self._now()
        self._reclaim(command.caller.key, now)
        refusal = command.check_limits(self._ledger(command.caller, now))
        if refusal is None:
            granted = self._reserve(command.caller, units_of(command.rows), now, now)
            self._settle(granted, command.rows, emit_meter_event=command.emit_meter_event)
            self._answer(command.first)
        return refusal

    def log_refusal(self, command: LogRefusal) -> None:
        minute = self._now().replace(second=0, microsecond=0)
        refusals = self._refusals.setdefault(command.caller.account.id, {})
        for place in range(REFUSALS_SINGLE_MAX):
            if (command.caller.key.id, minute, command.row.failed_check, place) not in refusals:
                refusals[command.caller.key.id, minute, command.row.failed_check, place] = (
                    command.row
                )
                return
        flood = (command.caller.key.id, minute, command.row.failed_check, REFUSALS_SINGLE_MAX)
        times = refusals[flood].times if flood in refusals else 0
        refusals[flood] = replace(refusals.get(flood, command.row), times=times + command.row.times)

    def ledger(self, command: ReadLedger) -> Ledger:
        return self._ledger(command.caller, self._now())

    def _ledger(self, caller: Caller, now: datetime) -> Ledger:
        account = self._accounts[caller.account.id]
        keys = self._keys_since(account.id, now - WINDOW)
        reserved = sum(
            lease.units
            for lease in self._leases.values()
            if lease.account_id == account.id and lease.until > now
        )
        start, end = period_bounds(account, now)
        month = account.id, month_of(now)
        billable = self._month_billable[month]
        if account.current_period_start and account.current_period_end:
            billable = self._billable_since(account.id, start)
        return Ledger(
            asked_at=now,
            window=self._window([caller.key.id], now),
            keys=len(keys),
            account_window=self._window(keys, now),
            month_units=self._month_units[month] + reserved,
            month_billable=self._month_billable[month],
            period_start=start,
            period_end=end,
            period_billable=billable,
            reserved=reserved,
            undelivered=self._undelivered(account.id),
        )

    def _window(self, keys: Sequence[str], now: datetime) -> tuple[tuple[datetime, int], ...]:
        units: Counter[datetime] = Counter()
        for key_id in keys:
            for at, count in self._windows.get(key_id, Counter()).items():
                if at > now - WINDOW:
                    units[min(at, now)] += count
        return tuple(sorted(units.items()))

    def _reclaim(self, key: Key, now: datetime) -> None:
        """Count as granted now what a clock granted that was ahead."""
        window = self._windows.get(key.id, Counter())
        for at in [at for at in window if at > now]:
            window[now] += window.pop(at)

    def _record_chunk(self, part: ChunkPart) -> bool:
        return False  # overridden in the layer of lists

    def _undelivered(self, account_id: str) -> int:
        return 0  # overridden in the layer of jobs

    def _billable_since(self, account_id: str, start: datetime) -> int:
        """Count this period, and the next one if it began before the provider reported it."""
        return sum(
            count
            for (whose, since), count in self._period_billable.items()
            if whose == account_id and since >= start
        )

    def days(self, account_id: str, first: date, last: date) -> list[DayCount]:
        id = account_id
        counted = {day for whose, day in self._day_billable if whose == id}
        counted |= {day for whose, day, _ in self._day_lights if whose == id}
        return [
            DayCount(
                day,
                self._day_billable[id, day],
                *(self._day_lights[id, day, light] for light in DAY_LIGHTS),
            )
            for day in sorted(counted)
            if first <= day <= last
        ]

    def usage(self, account_id: str, *, limit: int) -> list[UsageRow]:
        rows = [*reversed(self._usage.get(account_id, []))]
        rows += self._refusals.get(account_id, {}).values()
        return sorted(rows, key=lambda row: row.at, reverse=True)[: at_most(USAGE_ROWS_MAX, limit)]

    def _drop_rows(self, account_id: str, since: datetime) -> None:
        usage = self._usage.get(account_id, [])
        self._usage[account_id] = [row for row in usage if row.at >= since]
        refusals = self._refusals.get(account_id, {})
        self._refusals[account_id] = {
            place: row for place, row in refusals.items() if place[1] >= since
        }

    def _drop_ended(self, now: datetime) -> None:
        for window in self._windows.values():
            for at in [at for at in window if at <= now - WINDOW]:
                del window[at]
        self._leases = {id: lease for id, lease in self._leases.items() if lease.until > now}
        self._settled = {part: at for part, at in self._settled.items() if at > now - SETTLED_KEPT}
