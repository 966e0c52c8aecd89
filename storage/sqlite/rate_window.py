"""A key's sliding window, as SQL: what it holds costs two look-ups, however much that is.

Each row knows the key's units up to itself, so that a minute's sum is the difference
of its last row and its first. Adding it up at each request took 0.3 ms for a thousand
units and 4 ms for ten thousand. The instants themselves are read only where somebody
looks, and only as far: whoever is refused wants the first few.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from mailprobe.storage.columns import instant
from mailprobe.storage.records import Window

DB = sqlite3.Connection
STALE_MICROS = 1_000_000  # rows past their minute go together, once a second

# Of the key `keys.number`, at the instant `:now`, those after `:since` being in the window.
COLUMNS = "oldest.at, oldest.units, oldest.total, newest.at, newest.total"
JOINS = (
    " LEFT JOIN rate_windows AS oldest ON oldest.key = keys.number AND oldest.at ="
    " (SELECT at FROM rate_windows WHERE key = keys.number AND at > :since ORDER BY at LIMIT 1)"
    " LEFT JOIN rate_windows AS newest ON newest.key = keys.number AND newest.at ="
    " (SELECT at FROM rate_windows WHERE key = keys.number ORDER BY at DESC LIMIT 1)"
)
EARLIEST = "(SELECT at FROM rate_windows WHERE key = keys.number ORDER BY at LIMIT 1)"


@dataclass(frozen=True, slots=True)
class WindowRow:
    at: int
    units: int
    total: int  # with all that came before it


@dataclass(frozen=True, slots=True)
class Sum:
    """What a key's rows say of its window."""

    key: int
    since: int  # rows after this instant are in it
    earliest_at: int | None  # of all the key's rows, those past their minute too
    oldest: WindowRow | None  # in the window
    newest_at: int | None  # of all
    total: int  # of the newest

    @property
    def units(self) -> int:
        return self.total - self.oldest.total + self.oldest.units if self.oldest else 0


def sum_of(key: int, since: int, row: Sequence[int | None]) -> Sum:
    """From the columns EARLIEST and COLUMNS."""
    earliest_at, at, units, total, newest_at, newest_total = row
    oldest = None
    if at is not None and units is not None and total is not None:
        oldest = WindowRow(at, units, total)
    return Sum(key, since, earliest_at, oldest, newest_at, newest_total or 0)


class SqliteWindow(Window):
    """A window whose instants are read one by one, within the transaction that reads the ledger."""

    __slots__ = ("_db", "_sum")

    def __init__(self, db: DB, held: Sum) -> None:
        super().__init__("", "", held.units)
        self._db: DB | None = db
        self._sum = held

    def __iter__(self) -> Iterator[tuple[datetime, int]]:
        oldest = self._sum.oldest
        if oldest is None:
            return
        yield instant(oldest.at), oldest.units
        if self._db is None:
            raise RuntimeError("a window is looked at while it is weighed, and not later")
        for at, units in self._db.execute(
            "SELECT at, units FROM rate_windows WHERE key = ? AND at > ? ORDER BY at",
            (self._sum.key, oldest.at),
        ):
            yield instant(at), units

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def close(self) -> None:
        """The transaction goes on without whoever weighed."""
        self._db = None


def window_of(db: DB, held: Sum, now: int) -> Window:
    """All of it, to be looked at when the transaction has ended."""
    instants, counts = db.execute(
        "SELECT coalesce(group_concat(granted), ''), coalesce(group_concat(units), '')"
        " FROM (SELECT min(at, ?) AS granted, sum(units) AS units FROM rate_windows"
        " WHERE key = ? AND at > ? GROUP BY granted ORDER BY granted)",
        (now, held.key, held.since),
    ).fetchone()
    return Window(instants, counts, held.units)


def add(db: DB, held: Sum, at: int, units: int) -> None:
    """So many units were granted now; `held` was read in this transaction, and holds nothing later."""
    if held.newest_at is None or at > held.newest_at:
        db.execute(
            "INSERT INTO rate_windows (key, at, units, total) VALUES (?, ?, ?, ?)",
            (held.key, at, units, held.total + units),
        )
    else:
        db.execute(
            "UPDATE rate_windows SET units = units + ?, total = total + ? WHERE key = ? AND at = ?",
            (units, units, held.key, at),
        )
    if held.earliest_at is not None and held.earliest_at <= held.since - STALE_MICROS:
        db.execute("DELETE FROM rate_windows WHERE key = ? AND at <= ?", (held.key, held.since))


def reclaim(db: DB, key: int, now: int) -> None:
    """What a clock granted that was ahead was granted now: it is forgotten a minute from now."""
    later = {"key": key, "now": now}
    units, total = db.execute(
        "SELECT sum(units), max(total) FROM rate_windows WHERE key = :key AND at > :now", later
    ).fetchone()
    db.execute("DELETE FROM rate_windows WHERE key = :key AND at > :now", later)
    db.execute(
        "INSERT INTO rate_windows (key, at, units, total) VALUES (:key, :now, :units, :total)"
        " ON CONFLICT (key, at) DO UPDATE"
        " SET units = units + excluded.units, total = excluded.total",
        {**later, "units": units, "total": total},
    )


# of all keys of an account

_OF_ACCOUNT = (
    "SELECT number FROM keys WHERE account = :account AND kind = 'standard' AND revoked_at IS NULL"
    " UNION ALL SELECT number FROM keys"
    " WHERE account = :account AND kind = 'standard' AND revoked_at > :since"
)
COUNT_OF_ACCOUNT = (
    "((SELECT count(*) FROM keys AS one WHERE one.account = accounts.number"
    " AND one.kind = 'standard' AND one.revoked_at IS NULL)"
    " + (SELECT count(*) FROM keys AS one WHERE one.account = accounts.number"
    " AND one.kind = 'standard' AND one.revoked_at > :since))"
)
_UNITS = (
    f"WITH ours AS ({_OF_ACCOUNT}) SELECT coalesce(sum(newest.total - oldest.total + oldest.units), 0)"
    " FROM ours JOIN rate_windows AS oldest ON oldest.key = ours.number AND oldest.at ="
    " (SELECT at FROM rate_windows WHERE key = ours.number AND at > :since ORDER BY at LIMIT 1)"
    " JOIN rate_windows AS newest ON newest.key = ours.number AND newest.at ="
    " (SELECT at FROM rate_windows WHERE key = ours.number ORDER BY at DESC LIMIT 1)"
)
_INSTANTS = (
    f"WITH ours AS ({_OF_ACCOUNT}) SELECT min(at, :now) AS granted, sum(units)"
    " FROM ours JOIN rate_windows ON key = ours.number AND at > :since GROUP BY granted ORDER BY granted"
)


class SqliteAccountWindow(Window):
    """The window of all keys of an account, read where somebody looks, while it is weighed."""

    __slots__ = ("_db", "_released", "_units")

    def __init__(self, db: DB, account: int, since: int, now: int) -> None:
        self._db: DB | None = db
        self._released = {"account": account, "since": since, "now": now}
        self._units: int | None = None

    @property
    def units(self) -> int:  # type: ignore[override]  # known only where somebody asks
        if self._units is None:
            (self._units,) = self._rows(_UNITS).fetchone()
        return int(self._units or 0)

    def __iter__(self) -> Iterator[tuple[datetime, int]]:
        for at, units in self._rows(_INSTANTS):
            yield instant(at), units

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _rows(self, statement: str) -> sqlite3.Cursor:
        if self._db is None:
            raise RuntimeError("a window is looked at while it is weighed, and not later")
        return self._db.execute(statement, self._released)

    def close(self) -> None:
        """The transaction goes on without whoever weighed."""
        self._db = None
