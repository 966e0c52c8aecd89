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

from storage.records import Window
from storage.rows import instant

DB = sqlite3.Connection
STALE_MICROS = 1_000_000  # rows past their minute go together, once a second

# Of the key `keys.number`, at the instant `:now`, those after `:since` being in the window.
COLUMNS = "oldest.at, oldest.units, oldest.total, newest.at, newest.total"
JOINS = (
    " LEFT JOIN windows AS oldest ON oldest.key = keys.number AND oldest.at ="
    " (SELECT at FROM windows WHERE key = keys.number AND at > :since ORDER BY at LIMIT 1)"
    " LEFT JOIN windows AS newest ON newest.key = keys.number AND newest.at ="
    " (SELECT at FROM windows WHERE key = keys.number ORDER BY at DESC LIMIT 1)"
)
EARLIEST = "(SELECT at FROM windows WHERE key = keys.number ORDER BY at LIMIT 1)"


@dataclass(frozen=True, slots=True)
class Row:
    at: int
    units: int
    total: int  # with all that came before it


@dataclass(frozen=True, slots=True)
class Sum:
    """What a key's rows say of its window."""

    key: int
    since: int  # rows after this instant are in it
    earliest_at: int | None  # of all the key's rows, those past their minute too
    oldest: Row | None  # in the window
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
        oldest = Row(at, units, total)
    return Sum(key, since, earliest_at, oldest, newest_at, newest_total or 0)


class OpenWindow(Window):
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
            "SELECT at, units FROM windows WHERE key = ? AND at > ? ORDER BY at",
            (self._sum.key, oldest.at),
        ):
            yield instant(at), units

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def close(self) -> None:
        """The transaction goes on without whoever weighed."""
        self._db = None


def window_of(db: DB, held: Sum) -> Window:
    """All of it, to be looked at when the transaction has ended."""
    instants, counts = db.execute(
        "SELECT coalesce(group_concat(at), ''), coalesce(group_concat(units), '')"
        " FROM (SELECT at, units FROM windows WHERE key = ? AND at > ? ORDER BY at)",
        (held.key, held.since),
    ).fetchone()
    return Window(instants, counts, held.units)


def add(db: DB, held: Sum, at: int, units: int) -> None:
    """So many units were granted now; `held` was read in this transaction."""
    if held.newest_at is None or at > held.newest_at:
        db.execute(
            "INSERT INTO windows (key, at, units, total) VALUES (?, ?, ?, ?)",
            (held.key, at, units, held.total + units),
        )
    elif at == held.newest_at:
        db.execute(
            "UPDATE windows SET units = units + ?, total = total + ? WHERE key = ? AND at = ?",
            (units, units, held.key, at),
        )
    else:
        _add_before_others(db, held.key, at, units)
    if held.earliest_at is not None and held.earliest_at <= held.since - STALE_MICROS:
        db.execute("DELETE FROM windows WHERE key = ? AND at <= ?", (held.key, held.since))


def _add_before_others(db: DB, key: int, at: int, units: int) -> None:
    """The clock was set back: those that seem to come later have these units before them."""
    place = {"key": key, "at": at, "units": units}
    db.execute(
        "INSERT INTO windows (key, at, units, total) VALUES (:key, :at, 0, (SELECT total - units"
        " FROM windows WHERE key = :key AND at > :at ORDER BY at LIMIT 1)) ON CONFLICT DO NOTHING",
        place,
    )
    db.execute("UPDATE windows SET units = units + :units WHERE key = :key AND at = :at", place)
    db.execute("UPDATE windows SET total = total + :units WHERE key = :key AND at >= :at", place)
