"""The store as dictionaries: the readable specification of the others.

For virtual time too: nothing here waits, and the clock is handed in. A method is
a transaction because nothing in it awaits after its first line.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4

import trio

from storage.calendar import (
    day_of,
    kept_since,
    month_of,
    period_bounds,
    period_start_of,
)
from storage.records import (
    Account,
    Answered,
    Caller,
    DayCount,
    Key,
    KeyKind,
    Ledger,
    Reservation,
    Tier,
    UsageRow,
)
from storage.store import (
    REFUSALS_SINGLE_MAX,
    SETTLED_KEPT,
    USAGE_ROWS_MAX,
    WINDOW,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    KeyLimitReached,
    check_answer,
    check_changes,
    check_units,
)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Lease:
    account_id: str
    units: int
    until: datetime


@dataclass(frozen=True, slots=True)
class _Once:
    """An idempotency key: begun, and answered or not."""

    body_sha256: str
    lease_until: datetime
    keep_until: datetime
    answer: Answered | None = None

    def stands(self, now: datetime) -> bool:
        if self.answer is None and self.lease_until <= now:
            return False
        return self.keep_until > now


class MemoryStore:
    """Everything that is remembered, until the process ends."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._accounts: dict[str, Account] = {}
        self._keys: dict[str, Key] = {}
        self._key_ids: dict[str, str] = {}  # by the key's SHA-256
        self._windows: dict[str, Counter[datetime]] = {}  # units by key and instant
        self._leases: dict[str, _Lease] = {}  # by reservation
        self._settled: dict[tuple[str, int], datetime] = {}  # by reservation and part
        self._month_units: Counter[tuple[str, date]] = Counter()
        self._month_billable: Counter[tuple[str, date]] = Counter()
        self._day_billable: Counter[tuple[str, date]] = Counter()
        self._period_billable: Counter[tuple[str, datetime]] = Counter()
        self._usage: dict[str, list[UsageRow]] = {}
        self._refusals: dict[str, dict[tuple[Any, ...], UsageRow]] = {}
        self._onces: dict[tuple[str, str], _Once] = {}
        self._reservations_made = 0

    # accounts and keys

    async def create_account(self, email: str, tier: Tier) -> Account:
        await trio.lowlevel.checkpoint()
        account = Account(str(uuid4()), email, tier, self._now())
        self._accounts[account.id] = account
        return account

    async def account(self, account_id: str) -> Account | None:
        await trio.lowlevel.checkpoint()
        return self._accounts.get(account_id)

    async def accounts(self) -> list[Account]:
        await trio.lowlevel.checkpoint()
        return list(self._accounts.values())

    async def change_account(self, account_id: str, **changes: Any) -> Account | None:
        check_changes(changes)
        await trio.lowlevel.checkpoint()
        if account_id not in self._accounts:
            return None
        account = replace(self._accounts[account_id], **changes)
        self._accounts[account_id] = account
        return account

    async def create_key(
        self,
        account_id: str,
        kind: KeyKind,
        label: str | None,
        *,
        sha256: str,
        prefix: str,
        keys_max: int | None,
    ) -> Key:
        await trio.lowlevel.checkpoint()
        account = self._accounts[account_id]
        if kind == "standard" and keys_max is not None:
            active = [key for key in self._active_keys(account.id) if key.kind == "standard"]
            if len(active) >= keys_max:
                raise KeyLimitReached
        if sha256 in self._key_ids:
            raise ValueError("a key with this hash is kept already")
        key = Key(str(uuid4()), account.id, kind, label, prefix, self._now())
        self._keys[key.id] = key
        self._key_ids[sha256] = key.id
        return key

    async def keys(self, account_id: str) -> list[Key]:
        await trio.lowlevel.checkpoint()
        return self._active_keys(account_id)

    async def revoke_key(self, account_id: str | None, key_id: str) -> bool:
        await trio.lowlevel.checkpoint()
        key = self._keys.get(key_id)
        if key is None or key.revoked_at or account_id not in (None, key.account_id):
            return False
        self._keys[key_id] = replace(key, revoked_at=self._now())
        return True

    async def caller(self, sha256: str) -> Caller | None:
        await trio.lowlevel.checkpoint()
        key = self._keys.get(self._key_ids.get(sha256, ""))
        if key is None or key.revoked_at:
            return None
        return Caller(self._accounts[key.account_id], key)

    def _active_keys(self, account_id: str) -> list[Key]:
        return [
            key
            for key in self._keys.values()
            if key.account_id == account_id and not key.revoked_at
        ]

    # metering

    async def reserve(
        self, caller: Caller, units: int, weigh: Callable[[Ledger], R | None], *, lease_s: float
    ) -> Reservation | R:
        check_units(units)
        await trio.lowlevel.checkpoint()
        now = self._now()
        refusal = weigh(self._ledger(caller, now))
        if refusal is not None:
            return refusal
        self._windows.setdefault(caller.key.id, Counter())[now] += units
        self._reservations_made += 1
        reservation = Reservation(str(self._reservations_made), caller, units, now)
        until = now + timedelta(seconds=lease_s)
        self._leases[reservation.id] = _Lease(caller.account.id, units, until)
        return reservation

    async def extend(self, reservation: Reservation, *, lease_s: float) -> None:
        await trio.lowlevel.checkpoint()
        now = self._now()
        lease = self._leases.get(reservation.id)
        if lease and lease.until > now:
            until = now + timedelta(seconds=lease_s)
            self._leases[reservation.id] = replace(lease, until=until)

    async def settle(
        self,
        reservation: Reservation,
        rows: Sequence[UsageRow],
        *,
        part: int = 0,
        ends: bool = True,
    ) -> None:
        await trio.lowlevel.checkpoint()
        if (reservation.id, part) in self._settled:
            return
        self._settled[reservation.id, part] = self._now()
        lease = self._leases.pop(reservation.id, None)
        if lease and not ends:
            left = max(0, lease.units - sum(row.units for row in rows))
            self._leases[reservation.id] = replace(lease, units=left)
        account = self._accounts[reservation.caller.account.id]
        for row in rows:
            self._count(account, row)

    def _count(self, account: Account, row: UsageRow) -> None:
        self._usage.setdefault(account.id, []).append(row)
        self._month_units[account.id, month_of(row.at)] += row.units
        if not row.billable:
            return
        self._month_billable[account.id, month_of(row.at)] += 1
        self._day_billable[account.id, day_of(row.at)] += 1
        start = period_start_of(account, row.at)
        if start:
            self._period_billable[account.id, start] += 1

    async def log_refusal(self, caller: Caller, row: UsageRow) -> None:
        await trio.lowlevel.checkpoint()
        minute = self._now().replace(second=0, microsecond=0)
        refusals = self._refusals.setdefault(caller.account.id, {})
        for place in range(REFUSALS_SINGLE_MAX):
            if (caller.key.id, minute, row.failed_check, place) not in refusals:
                refusals[caller.key.id, minute, row.failed_check, place] = row
                return
        flood = (caller.key.id, minute, row.failed_check, REFUSALS_SINGLE_MAX)
        times = refusals[flood].times if flood in refusals else 0
        refusals[flood] = replace(refusals.get(flood, row), times=times + row.times)

    async def ledger(self, caller: Caller) -> Ledger:
        await trio.lowlevel.checkpoint()
        return self._ledger(caller, self._now())

    def _ledger(self, caller: Caller, now: datetime) -> Ledger:
        account = self._accounts[caller.account.id]
        window = self._windows.get(caller.key.id, Counter())
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
            window=tuple(sorted((at, n) for at, n in window.items() if at > now - WINDOW)),
            month_units=self._month_units[month] + reserved,
            month_billable=self._month_billable[month],
            period_start=start,
            period_end=end,
            period_billable=billable,
            reserved=reserved,
        )

    def _billable_since(self, account_id: str, start: datetime) -> int:
        """Of this period, and of the next where it has begun before the provider said so."""
        return sum(
            count
            for (whose, since), count in self._period_billable.items()
            if whose == account_id and since >= start
        )

    async def days(self, account_id: str, first: date, last: date) -> list[DayCount]:
        await trio.lowlevel.checkpoint()
        return [
            DayCount(day, calls)
            for (whose, day), calls in sorted(self._day_billable.items())
            if whose == account_id and first <= day <= last
        ]

    async def usage(self, account_id: str, *, limit: int) -> list[UsageRow]:
        await trio.lowlevel.checkpoint()
        rows = [*reversed(self._usage.get(account_id, []))]
        rows += self._refusals.get(account_id, {}).values()
        return sorted(rows, key=lambda row: row.at, reverse=True)[: min(limit, USAGE_ROWS_MAX)]

    # idempotency

    async def begin_once(
        self, account_id: str, key: str, body_sha256: str, *, keep_s: float, lease_s: float
    ) -> Answered | None:
        await trio.lowlevel.checkpoint()
        now = self._now()
        once = self._onces.get((self._accounts[account_id].id, key))
        if once is None or not once.stands(now):
            self._onces[account_id, key] = _Once(
                body_sha256, now + timedelta(seconds=lease_s), now + timedelta(seconds=keep_s)
            )
            return None
        if once.body_sha256 != body_sha256:
            raise IdempotencyKeyReused
        if once.answer is None:
            raise IdempotencyInProgress
        return once.answer

    async def finish_once(self, account_id: str, key: str, answer: Answered | None) -> None:
        check_answer(answer)
        await trio.lowlevel.checkpoint()
        once = self._onces.get((account_id, key))
        if once is None or once.answer:
            return
        if answer is None:
            del self._onces[account_id, key]
        else:
            self._onces[account_id, key] = replace(once, answer=answer)

    # upkeep

    async def tidy(self, retention_days: dict[Tier, int]) -> None:
        await trio.lowlevel.checkpoint()
        now = self._now()
        for account in self._accounts.values():
            if account.tier in retention_days:
                self._drop_rows(account.id, kept_since(now, retention_days[account.tier]))
        for window in self._windows.values():
            for at in [at for at in window if at <= now - WINDOW]:
                del window[at]
        self._leases = {id: lease for id, lease in self._leases.items() if lease.until > now}
        self._settled = {part: at for part, at in self._settled.items() if at > now - SETTLED_KEPT}
        self._onces = {key: once for key, once in self._onces.items() if once.stands(now)}

    def _drop_rows(self, account_id: str, since: datetime) -> None:
        usage = self._usage.get(account_id, [])
        self._usage[account_id] = [row for row in usage if row.at >= since]
        refusals = self._refusals.get(account_id, {})
        self._refusals[account_id] = {
            place: row for place, row in refusals.items() if place[1] >= since
        }

    async def check(self) -> datetime:
        await trio.lowlevel.checkpoint()
        return self._now()
