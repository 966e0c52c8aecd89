"""Sliding windows of keys, in SQL: a sum costs three look-ups, however long the window is.

Each row has the running total of the key's units, so a minute's sum is the difference
of its last row and its first. The instants themselves are read only when the window is
iterated, and only as far: a refusal needs the first few.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..base.columns import instant
from ..contract import WINDOW
from ..records import Window
from .driver.server import TransactionConnection, Writes

WINDOW_MICROS = WINDOW // timedelta(microseconds=1)
STALE_MICROS = 1_000_000  # rows older than the window are deleted together, once a second
READ_TOGETHER = 100  # instants per read

# Of the key `asked.key` at the instant `now`.
COLUMNS = "earliest.at, oldest.at, oldest.units, oldest.total, newest.at, newest.total"
_OF_KEY = "SELECT at, units, total FROM rate_windows WHERE rate_windows.key = asked.key"


def joins(now: str) -> str:
    """Return the joins for a statement that has `asked`; `now` is SQL for microseconds since 1970."""
    return (
        f" LEFT JOIN LATERAL ({_OF_KEY} ORDER BY at LIMIT 1) AS earliest ON true"
        f" LEFT JOIN LATERAL ({_OF_KEY} AND at > {now} - {WINDOW_MICROS} ORDER BY at LIMIT 1)"
        " AS oldest ON true"
        f" LEFT JOIN LATERAL ({_OF_KEY} ORDER BY at DESC LIMIT 1) AS newest ON true"
    )


INSTANTS = "SELECT at, units FROM rate_windows WHERE key = %s AND at > %s ORDER BY at LIMIT %s"
ALL = (
    "SELECT coalesce(string_agg(at::text, ',' ORDER BY at), ''),"
    " coalesce(string_agg(units::text, ',' ORDER BY at), ''), coalesce(sum(units), 0)::bigint"
    " FROM (SELECT least(at, %s) AS at, sum(units)::bigint AS units FROM rate_windows"
    " WHERE key = %s AND at > %s GROUP BY 1) AS granted"
)
FORGET = "DELETE FROM rate_windows WHERE key = ANY(%s) AND at <= %s"
GRANT = (
    "INSERT INTO rate_windows (key, at, units, total)"
    " SELECT key, %s, units, total FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[])"
    " AS granted (key, units, total) ON CONFLICT (key, at) DO UPDATE"
    " SET units = rate_windows.units + excluded.units, total = rate_windows.total + excluded.units"
)
# Grants dated in the future by a clock that was ahead are dated now: they expire in a minute.
_RECLAIM = (
    " RETURNING key, units, total) INSERT INTO rate_windows (key, at, units, total)"
    " SELECT key, %(now)s, sum(units)::bigint, max(total) FROM later GROUP BY key"
    " ON CONFLICT (key, at) DO UPDATE"
    " SET units = rate_windows.units + excluded.units, total = excluded.total"
)
RECLAIM = (
    "WITH later AS (DELETE FROM rate_windows WHERE key = ANY(%(keys)s) AND at > %(now)s" + _RECLAIM
)
# The same for every key with an instant far in the future: some keys are never used again.
RECLAIM_ALL = (
    "WITH later AS (DELETE FROM rate_windows WHERE at > %(now)s"
    " AND key IN (SELECT key FROM rate_windows WHERE at > %(soon)s)" + _RECLAIM
)
# the standard keys of an account that were active within the window
_OF_ACCOUNT = (
    "SELECT number FROM keys WHERE account = %(account)s AND kind = 'standard'"
    " AND revoked_at IS NULL UNION ALL SELECT number FROM keys WHERE account = %(account)s"
    " AND kind = 'standard' AND revoked_at > %(since)s"
)
UNITS_OF_ACCOUNT = (
    f"WITH ours AS ({_OF_ACCOUNT})"
    " SELECT coalesce(sum(newest.total - oldest.total + oldest.units), 0)::bigint FROM ours"
    " CROSS JOIN LATERAL (SELECT total, units FROM rate_windows WHERE key = ours.number"
    "  AND at > %(since)s ORDER BY at LIMIT 1) AS oldest"
    " CROSS JOIN LATERAL (SELECT total FROM rate_windows WHERE key = ours.number"
    "  ORDER BY at DESC LIMIT 1) AS newest"
)
INSTANTS_OF_ACCOUNT = (
    f"WITH ours AS ({_OF_ACCOUNT}) SELECT least(at, %(now)s) AS granted, sum(units)::bigint"
    " FROM ours JOIN rate_windows ON key = ours.number AND at > %(since)s GROUP BY 1 ORDER BY 1"
)


def count_of_account(now: str) -> str:
    """Return SQL that counts the standard keys of `asked.account` active within the window."""
    ours = "SELECT count(*) FROM keys AS one WHERE one.account = asked.account"
    return (
        f"(({ours} AND one.kind = 'standard' AND one.revoked_at IS NULL)"
        f" + ({ours} AND one.kind = 'standard' AND one.revoked_at > {now} - {WINDOW_MICROS}))"
    )


Read = Callable[[int], Sequence[tuple[int, int]]]  # the next few rows after an instant


@dataclass(slots=True)
class Held:
    """A key's window as its first and last rows show it, plus what was granted since."""

    earliest_at: int | None  # of all the key's rows, also those older than the window
    oldest_at: int | None  # in the window
    oldest_units: int | None
    oldest_total: int | None
    newest_at: int | None  # of all
    newest_total: int | None
    granted: int = 0

    @property
    def units(self) -> int:
        before = (self.oldest_total or 0) - (self.oldest_units or 0)
        held = 0 if self.oldest_at is None else (self.newest_total or 0) - before
        return held + self.granted


class PostgresWindow(Window):
    """A window whose instants are read in small steps, only while the limits are checked."""

    __slots__ = ("_at", "_granted", "_oldest", "_read")

    def __init__(self, held: Held, at: int, read: Read) -> None:
        super().__init__("", "", held.units)
        self._oldest = held.oldest_at, held.oldest_units
        self._at = at
        self._granted = held.granted
        self._read: Read | None = read

    def __iter__(self) -> Iterator[tuple[datetime, int]]:
        granted = self._granted
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
        at, units = self._oldest
        if at is None or units is None:
            return
        yield at, units
        while True:
            if self._read is None:
                raise RuntimeError("a window is looked at while it is weighed, and not later")
            rows = self._read(at)
            yield from rows
            if len(rows) < READ_TOGETHER:
                return
            at = rows[-1][0]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def close(self) -> None:
        """End the reading: later iteration raises RuntimeError."""
        self._read = None


def reader(db: TransactionConnection, key: int) -> Read:
    return lambda after: db.all(INSTANTS, [key, after, READ_TOGETHER])


def window_of(db: TransactionConnection, key: int, now: int) -> Window:
    """Return the whole window, readable after the transaction; `now` is in microseconds since 1970."""
    return Window(*db.one(ALL, [now, key, now - WINDOW_MICROS]))


def add(writes: Writes, now: int, those: dict[int, Held]) -> None:
    """Write what was granted to these keys; the caller has locked their accounts."""
    granted = {key: held for key, held in those.items() if held.granted}
    stale = now - WINDOW_MICROS - STALE_MICROS
    old = [key for key, held in granted.items() if (held.earliest_at or now) <= stale]
    if old:
        writes.add(FORGET, old, now - WINDOW_MICROS)
    if granted:  # no row is later than now: see reclaim()
        units = [held.granted for held in granted.values()]
        totals = [(held.newest_total or 0) + held.granted for held in granted.values()]
        writes.add(GRANT, now, list(granted), units, totals)


def reclaim(db: TransactionConnection, keys: Sequence[int], now: int) -> None:
    db.execute(RECLAIM, {"keys": list(keys), "now": now})


class PostgresAccountWindow(Window):
    """The window of all keys of an account, read on demand, only while the limits are checked."""

    __slots__ = ("_db", "_granted", "_released", "_units")

    def __init__(self, db: TransactionConnection, account: int, now: int, granted: int) -> None:
        """`granted` are units granted to its keys and not yet written; `now` is in microseconds."""
        self._db: TransactionConnection | None = db
        self._released = {"account": account, "since": now - WINDOW_MICROS, "now": now}
        self._granted = granted
        self._units: int | None = None

    @property
    def units(self) -> int:  # type: ignore[override]  # computed on demand
        if self._units is None:
            ((self._units,),) = self._rows(UNITS_OF_ACCOUNT)
        return int(self._units or 0) + self._granted

    def __iter__(self) -> Iterator[tuple[datetime, int]]:
        for at, units in self._rows(INSTANTS_OF_ACCOUNT):
            yield instant(at), units
        if self._granted:
            yield instant(self._released["now"]), self._granted

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _rows(self, statement: str) -> Sequence[tuple[int, ...]]:
        if self._db is None:
            raise RuntimeError("a window is looked at while it is weighed, and not later")
        return self._db.all(statement, self._released)

    def close(self) -> None:
        """End the reading: later iteration raises RuntimeError."""
        self._db = None
