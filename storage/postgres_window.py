"""Keys' sliding windows, as SQL: what one holds costs three look-ups, however much that is.

Each row knows the key's units up to itself, so that a minute's sum is the difference
of its last row and its first. The instants themselves are read only where somebody
looks, and only as far: whoever is refused wants the first few.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from storage.postgres_server import Session, Writes
from storage.records import Window
from storage.rows import instant
from storage.store import WINDOW

WINDOW_MICROS = WINDOW // timedelta(microseconds=1)
STALE_MICROS = 1_000_000  # rows past their minute go together, once a second
READ_TOGETHER = 100  # instants, when somebody looks

# Of the key `asked.key` at the instant `now`.
COLUMNS = "earliest.at, oldest.at, oldest.units, oldest.total, newest.at, newest.total"
_OF_KEY = "SELECT at, units, total FROM windows WHERE windows.key = asked.key"


def joins(now: str) -> str:
    """To a statement that has `asked`; `now` is the instant as SQL."""
    return (
        f" LEFT JOIN LATERAL ({_OF_KEY} ORDER BY at LIMIT 1) AS earliest ON true"
        f" LEFT JOIN LATERAL ({_OF_KEY} AND at > {now} - {WINDOW_MICROS} ORDER BY at LIMIT 1)"
        " AS oldest ON true"
        f" LEFT JOIN LATERAL ({_OF_KEY} ORDER BY at DESC LIMIT 1) AS newest ON true"
    )


INSTANTS = "SELECT at, units FROM windows WHERE key = %s AND at > %s ORDER BY at LIMIT %s"
ALL = (
    "SELECT coalesce(string_agg(at::text, ',' ORDER BY at), ''),"
    " coalesce(string_agg(units::text, ',' ORDER BY at), ''), coalesce(sum(units), 0)::bigint"
    " FROM windows WHERE key = %s AND at > %s"
)
FORGET = "DELETE FROM windows WHERE key = ANY(%s) AND at <= %s"
GRANT = (
    "INSERT INTO windows (key, at, units, total)"
    " SELECT key, %s, units, total FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[])"
    " AS granted (key, units, total) ON CONFLICT (key, at) DO UPDATE"
    " SET units = windows.units + excluded.units, total = windows.total + excluded.units"
)
# The clock was set back: those that seem to come later have these units before them.
BEFORE_OTHERS = (
    "INSERT INTO windows (key, at, units, total) SELECT %(key)s, %(at)s, 0, total - units"
    " FROM windows WHERE key = %(key)s AND at > %(at)s ORDER BY at LIMIT 1 ON CONFLICT DO NOTHING",
    "UPDATE windows SET units = units + %(units)s WHERE key = %(key)s AND at = %(at)s",
    "UPDATE windows SET total = total + %(units)s WHERE key = %(key)s AND at >= %(at)s",
)

Read = Callable[[int], Sequence[tuple[int, int]]]  # the next few rows after an instant


@dataclass(slots=True)
class Held:
    """What a key's rows say of its window, and what was granted since they were read."""

    earliest_at: int | None  # of all the key's rows, those past their minute too
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


class OpenWindow(Window):
    """A window whose instants are read little by little, while it is weighed."""

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
        """The transaction goes on without whoever weighed."""
        self._read = None


def reader(db: Session, key: int) -> Read:
    return lambda after: db.all(INSTANTS, [key, after, READ_TOGETHER])


def window_of(db: Session, key: int, now: int) -> Window:
    """All of it, to be looked at when the transaction has ended."""
    return Window(*db.one(ALL, [key, now - WINDOW_MICROS]))


def add(db: Session, writes: Writes, now: int, those: dict[int, Held]) -> None:
    """What was granted to these keys; their accounts are held."""
    granted = {key: held for key, held in those.items() if held.granted}
    stale = now - WINDOW_MICROS - STALE_MICROS
    old = [key for key, held in granted.items() if (held.earliest_at or now) <= stale]
    if old:
        writes.add(FORGET, old, now - WINDOW_MICROS)
    new = {key: held for key, held in granted.items() if (held.newest_at or 0) <= now}
    if new:
        units = [held.granted for held in new.values()]
        totals = [(held.newest_total or 0) + held.granted for held in new.values()]
        writes.add(GRANT, now, list(new), units, totals)
    for key in granted.keys() - new.keys():
        for statement in BEFORE_OTHERS:
            db.execute(statement, {"key": key, "at": now, "units": granted[key].granted})
