"""What weighing needs to know of many callers at once, and granting by it, as SQL.

Whoever grants holds the rows of the accounts, locked in the order of their numbers,
from before the clock is read until the commit. So no process grants what another
has granted, and none waits for another in a circle.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from storage.calendar import month_of, period_bounds, period_start_of
from storage.postgres_server import NOW, Session
from storage.records import Account, Caller, Ledger, UsageRow, Window
from storage.sqlite_rows import instant, micros
from storage.store import WINDOW

R = TypeVar("R")

# The clock is asked once all rows are locked: count() has seen them.
LOCK = (
    "WITH held AS MATERIALIZED (SELECT number FROM accounts WHERE number IN ("
    " SELECT account FROM keys WHERE id = ANY(%s)) OR id = ANY(%s)"
    " ORDER BY number FOR NO KEY UPDATE)"
    f" SELECT {NOW}, count(*) FROM held"
)
WHO = (
    "SELECT keys.id, keys.number, accounts.number, accounts.id, tier, current_period_start,"
    " current_period_end FROM keys JOIN accounts ON accounts.number = keys.account"
    " WHERE keys.id = ANY(%s)"
)
WINDOWS = (
    "SELECT key, string_agg(at::text, ',' ORDER BY at), string_agg(units::text, ',' ORDER BY at),"
    " sum(units)::bigint FROM windows WHERE key = ANY(%s) AND at > %s GROUP BY key"
)
ACCOUNTS = (
    "SELECT asked.number, coalesce(months.units, 0), coalesce(months.billable, 0),"
    " (SELECT coalesce(sum(units), 0)::bigint FROM reservations"
    "  WHERE account = asked.number AND lease_until > %(now)s) + coalesce(jobs, 0),"
    " (SELECT coalesce(sum(billable), 0)::bigint FROM periods"
    "  WHERE account = asked.number AND start >= asked.since)"
    " FROM unnest(%(accounts)s::bigint[], %(since)s::bigint[]) AS asked (number, since)"
    " LEFT JOIN months ON months.account = asked.number AND month = %(month)s"
    " LEFT JOIN promises ON promises.account = asked.number"
)
GRANT = (
    "INSERT INTO windows (key, at, units)"
    " SELECT key, %s, units FROM unnest(%s::bigint[], %s::bigint[]) AS granted (key, units)"
    " ON CONFLICT (key, at) DO UPDATE SET units = windows.units + excluded.units"
)
FORGET = "DELETE FROM windows WHERE key = ANY(%s) AND at <= %s"


@dataclass(frozen=True, slots=True)
class Who:
    """A key's numbers, and what an account is as it is now."""

    key_number: int
    account_number: int
    account: Account


def who(db: Session, key_ids: Iterable[str]) -> dict[str, Who]:
    """Of those keys that there are."""
    rows = db.all(WHO, [list(key_ids)])
    return {row[0]: who_of(*row[1:]) for row in rows}


def who_of(
    key: int, number: int, account_id: str, tier: Any, start: int | None, end: int | None
) -> Who:
    """What weighs of an account: its tier and period, as they are now."""
    account = Account(
        account_id,
        "",
        tier,
        instant(0),
        current_period_start=None if start is None else instant(start),
        current_period_end=None if end is None else instant(end),
    )
    return Who(key, number, account)


@dataclass(slots=True)
class _Seen:
    """Of an account, with what was granted since it was read."""

    month_units: int = 0
    month_billable: int = 0
    reserved: int = 0
    period_billable: int = 0


@dataclass
class Ledgers:
    """The ledgers of some keys at an instant, as they change while units are granted."""

    now: datetime
    seen: dict[int, _Seen]
    windows: dict[int, tuple[str, str, int]]
    granted: dict[int, int] = field(default_factory=dict)  # by key number

    def of(self, who: Who) -> Ledger:
        seen = self.seen[who.account_number]
        start, end = period_bounds(who.account, self.now)
        return Ledger(
            asked_at=self.now,
            window=Window(*self.windows.get(who.key_number, ("", "", 0))),
            month_units=seen.month_units + seen.reserved,
            month_billable=seen.month_billable,
            period_start=start,
            period_end=end,
            period_billable=seen.period_billable if _subscribed(who) else seen.month_billable,
            reserved=seen.reserved,
        )

    def weigh(self, who: Who, units: int, weigh: Callable[[Ledger], R | None]) -> R | None:
        """The refusal; or None, and the units weigh on the window of all who are weighed after."""
        refusal = weigh(self.of(who))
        if refusal is not None:
            return refusal
        self.granted[who.key_number] = self.granted.get(who.key_number, 0) + units
        window = self.windows.get(who.key_number, ("", "", 0))
        self.windows[who.key_number] = _with(window, micros(self.now), units)
        return None

    def reserve(self, who: Who, units: int) -> None:
        """What was granted weighs on the account too."""
        self.seen[who.account_number].reserved += units

    def use(self, who: Who, rows: Sequence[UsageRow]) -> None:
        """Or it is used already, each row where its instant lies."""
        seen = self.seen[who.account_number]
        for row in rows:
            if month_of(row.at) == month_of(self.now):
                seen.month_units += row.units
                seen.month_billable += row.billable
            if period_start_of(who.account, row.at):
                seen.period_billable += row.billable

    def write(self, db: Session) -> None:
        """What was granted weighs on the windows from now on. Reserving it is the caller's."""
        if not self.granted:
            return
        db.execute(FORGET, [list(self.granted), micros(self.now - WINDOW)])
        keys, units = list(self.granted), list(self.granted.values())
        db.execute(GRANT, [micros(self.now), keys, units])


def read(db: Session, now: datetime, those: Sequence[Who]) -> Ledgers:
    """Every account once, every key once."""
    keys = sorted({who.key_number for who in those})
    accounts = {who.account_number: who for who in those}
    since = [_since(who, now) for who in accounts.values()]
    with db.db.pipeline():
        windows = db.execute(WINDOWS, [keys, micros(now - WINDOW)])
        numbers = {
            "accounts": list(accounts),
            "since": since,
            "now": micros(now),
            "month": month_of(now),
        }
        seen = db.execute(ACCOUNTS, numbers)
    return Ledgers(
        now,
        {number: _Seen(*counts) for number, *counts in seen.fetchall()},
        {key: (instants, units, total) for key, instants, units, total in windows.fetchall()},
    )


def _subscribed(who: Who) -> bool:
    return bool(who.account.current_period_start and who.account.current_period_end)


def _since(who: Who, now: datetime) -> int:
    """Of this period, and of the next where it has begun before the provider said so."""
    return micros(period_bounds(who.account, now)[0])


def _with(window: tuple[str, str, int], at: int, units: int) -> tuple[str, str, int]:
    """The window with these units of now: behind all others, or with those of the same instant."""
    instants, counts, total = window
    if not counts:
        return str(at), str(units), units
    if instants.rpartition(",")[2] == str(at):
        before, comma, last = counts.rpartition(",")
        return instants, f"{before}{comma}{int(last) + units}", total + units
    return f"{instants},{at}", f"{counts},{units}", total + units


def ledger(db: Session, caller: Caller) -> Ledger:
    """As it is, to show. Raises KeyError for a key that is not there."""
    now = db.now()
    whose = who(db, [caller.key.id])[caller.key.id]
    return read(db, now, [whose]).of(whose)
