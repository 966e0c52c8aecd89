"""The ledgers of many callers at once, and granting units by them, in SQL.

A grant holds the accounts' rows, locked in the order of their numbers, from before the
clock is read until the commit. So no process grants what another has granted, and
processes cannot deadlock.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TypeVar

from ..base.columns import instant, micros
from ..commands import ReadLedger
from ..database import Row
from ..records import Account, Ledger, Tier, UsageRow
from ..usage import (
    WINDOW_MICROS,
    AccountCounts,
    AccountWindow,
    CallerRow,
    HeldWindow,
    KeyWindow,
    count_of_keys,
    window_of,
    write_grants,
)
from .database import PostgresDatabase
from .driver.server import NOW, TransactionConnection, Writes

R = TypeVar("R")

# The clock is read once all rows are locked: count() has seen them. Later statements of the
# transaction read it from a setting, without another round trip.
MOMENT = "current_setting('mailprobe.moment')::bigint"
LOCK = (
    "WITH held AS MATERIALIZED (SELECT number FROM accounts WHERE number IN ("
    " SELECT account FROM keys WHERE id = ANY(%s)) OR id = ANY(%s)"
    " ORDER BY number FOR NO KEY UPDATE)"
    f" SELECT set_config('mailprobe.moment', ({NOW})::text, true)::bigint, count(*) FROM held"
)
SET_MOMENT = "SELECT set_config('mailprobe.moment', %s, true)"
CALLER = (
    "SELECT keys.id, keys.number AS key, accounts.number AS account, accounts.id AS account_id,"
    " tier, current_period_start AS start, current_period_end"
    " FROM keys JOIN accounts ON accounts.number = keys.account WHERE keys.id = ANY(%(keys)s)"
)
_OF_KEY = "SELECT at, units, total FROM rate_windows WHERE rate_windows.key = asked.key"
STALE = "DELETE FROM rate_windows WHERE key = ANY(%s) AND at <= %s"


def _read(now: str) -> str:
    """Return the query for the callers and their ledgers, without their windows' instants."""
    month = f"to_char(timezone('UTC', to_timestamp({now} / 1000000)), 'YYYY-MM-01')"
    since = f"{now} - {WINDOW_MICROS}"
    return (
        f"WITH asked AS MATERIALIZED ({CALLER}) SELECT asked.*,"
        " coalesce(months.units, 0), coalesce(months.billable, 0),"
        " (SELECT coalesce(sum(units), 0)::bigint FROM reservations"
        f"  WHERE account = asked.account AND lease_until > {now}) + coalesce(pending, 0),"
        " (SELECT coalesce(sum(billable), 0)::bigint FROM periods"
        "  WHERE account = asked.account AND periods.start >= asked.start),"
        f" coalesce(undelivered, 0), {count_of_keys('asked.account', since)},"
        " EXISTS (SELECT 1 FROM reservations"
        f"  WHERE account = asked.account AND lease_until <= {now}),"
        " earliest.at, oldest.at, oldest.units, oldest.total, newest.at, newest.total FROM asked"
        f" LEFT JOIN months ON months.account = asked.account AND month = {month}"
        " LEFT JOIN job_backlogs ON job_backlogs.account = asked.account"
        f" LEFT JOIN LATERAL ({_OF_KEY} ORDER BY at LIMIT 1) AS earliest ON true"
        f" LEFT JOIN LATERAL ({_OF_KEY} AND at > {since} ORDER BY at LIMIT 1) AS oldest ON true"
        f" LEFT JOIN LATERAL ({_OF_KEY} ORDER BY at DESC LIMIT 1) AS newest ON true"
    )


READ = _read(MOMENT)
READ_AT = _read("%(now)s::bigint")
CALLER_COLUMNS = 7


def caller_of(
    key: int, number: int, account_id: str, tier: Tier, start: int | None, end: int | None
) -> CallerRow:
    """Make a CallerRow; `start` and `end` of the period are in microseconds since 1970."""
    account = Account(
        account_id,
        "",
        tier,
        instant(0),
        current_period_start=None if start is None else instant(start),
        current_period_end=None if end is None else instant(end),
    )
    return CallerRow(key, number, account)


class Ledgers:
    """The ledgers of some keys at an instant, as they change while units are granted."""

    def __init__(self, db: TransactionConnection, now: datetime, rows: Iterable[Row]) -> None:
        """`rows` are the result of READ."""
        self._db = PostgresDatabase(db)
        self._now = now
        self.caller: dict[str, CallerRow] = {}  # by the key's id
        self.seen: dict[int, AccountCounts] = {}
        self.held: dict[int, HeldWindow] = {}
        for key_id, *columns in rows:
            who = caller_of(*columns[: CALLER_COLUMNS - 1])
            counts = columns[CALLER_COLUMNS - 1 :]
            self.caller[key_id] = who
            self.seen[who.account_number] = AccountCounts(*counts[:7])
            self.held[who.key_number] = HeldWindow(who.key_number, *counts[7:])

    def check_limits(
        self, who: CallerRow, units: int, check_limits: Callable[[Ledger], R | None]
    ) -> R | None:
        """Return the refusal, or None after adding the units to the key's window for later checks."""
        held = self.held[who.key_number]
        window = KeyWindow(self._db, held, micros(self._now))
        account_window = self.account_window(who)
        counts = self.seen[who.account_number]
        refusal = check_limits(counts.ledger(self._now, who.account, window, account_window))
        window.close()
        account_window.close()
        if refusal is None:
            held.grant(units)
        return refusal

    def account_window(self, who: CallerRow) -> AccountWindow:
        ours = {
            one.key_number
            for one in self.caller.values()
            if one.account_number == who.account_number
        }
        granted = sum(self.held[key].granted for key in ours)
        return AccountWindow(self._db, who.account_number, micros(self._now), granted)

    @property
    def ahead(self) -> list[int]:
        """The keys whose windows have instants in the future, from a clock that was ahead."""
        now = micros(self._now)
        return [key for key, held in self.held.items() if (held.newest_at or 0) > now]

    def reserve(self, account: int, units: int) -> None:
        """Add to the account's reserved units; negative if some were given back."""
        self.seen[account].reserve(units)

    def use(self, who: CallerRow, rows: Iterable[UsageRow]) -> None:
        """Count each row in the month and the billing period of its own instant."""
        self.seen[who.account_number].use(self._now, who.account, rows)

    def write(self, writes: Writes) -> None:
        """Add the granted units to the windows. The caller writes the reservations."""
        now, granted = micros(self._now), [each for each in self.held.values() if each.granted]
        if stale := [each.key for each in granted if each.is_stale(now)]:
            writes.add(STALE, stale, now - WINDOW_MICROS)
        write_grants(writes, now, granted)


def read_ledger(db: TransactionConnection, command: ReadLedger) -> Ledger:
    """Return the ledger for display, without locks. Raises KeyError for an unknown key."""
    now = db.now()
    read = Ledgers(db, now, db.all(READ_AT, {"keys": [command.caller.key.id], "now": micros(now)}))
    who = read.caller[command.caller.key.id]
    window = window_of(PostgresDatabase(db), read.held[who.key_number], micros(now))
    counts = read.seen[who.account_number]
    # of its iterator: for the length of the window itself, tuple() would read it once more
    return counts.ledger(now, who.account, window, tuple(read.account_window(who)))
