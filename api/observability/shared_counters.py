"""Numbers that the workers of a service write and any of them can add up.

A board is memory that is shared by fork: a row for each worker, in it a cell for
each number that there can ever be. Counting is adding to a cell of one's own row:
no lock, no file, no word to anybody, some 0.1 us. What a worker counted outlives
it, however it ends, and its successor counts on in the same row; so counters
never go back. The states that a worker tells of (gauges) go with it.

Which series there are is said before the fork, whole: a label that comes from
outside cannot make one more. What fits none of them is counted as "other".
"""

import fcntl
import mmap
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Literal, TypeAlias

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]
Cells: TypeAlias = "memoryview[float]"

CELL_OCTETS = 8  # a float of the machine, written whole
SEEN_AT, GREETED = 0, 1  # the first cells of a row: when its worker last spoke; workers so far
SILENT_S = 5.0  # who has told nothing for so long is gone, or hangs
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its series are all that there will ever be."""

    kind: Kind
    name: str  # a counter's without its `_total`
    help: str
    labels: Labels = ()
    series: tuple[Labels, ...] = ((),)
    bounds: tuple[float, ...] = ()  # of a histogram's buckets, in seconds
    sparse: bool = False  # a series is shown once it has counted something

    @property
    def other(self) -> Labels:
        """The series of whatever fits none; never shown before it has counted something."""
        return (OTHER,) * len(self.labels)

    @property
    def cells(self) -> int:
        """Of one series. A histogram: its buckets, the one without a bound, the sum."""
        return len(self.bounds) + 2 if self.kind == "histogram" else 1


@dataclass(frozen=True, slots=True)
class SeriesTotal:
    """One series with the numbers of all workers added up."""

    labels: Labels
    cells: Sequence[float]


class SharedCounters:
    """The rows of all workers; see open_board()."""

    def __init__(self, families: Sequence[Family], workers: int, claims: IO[bytes]) -> None:
        self.families = tuple(families)
        self.started_at = time.time()
        self._slots: dict[str, dict[Labels, int]] = {}
        self._width = GREETED + 1
        for family in self.families:
            self._slots[family.name] = self._lay_out(family)
        self._workers = workers
        self._cells = memoryview(mmap.mmap(-1, CELL_OCTETS * self._width * workers)).cast("d")
        self._claims = claims

    def _lay_out(self, family: Family) -> dict[Labels, int]:
        slots = {}
        for labels in dict.fromkeys((*family.series, family.other)):
            slots[labels] = self._width
            self._width += family.cells
        return slots

    def attach(self) -> "CounterRow":
        """A row for this process, until it ends: the first that no living worker has.

        A lock says whose a row is, for it ends with its process (POSIX record
        locks are neither inherited nor left behind).
        """
        for number in range(self._workers):
            try:
                fcntl.lockf(self._claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
            except OSError:
                continue
            return CounterRow(self._row(number), self.families, self._slots)
        raise RuntimeError(f"there are more than {self._workers} workers")

    def _row(self, number: int) -> Cells:
        return self._cells[number * self._width : (number + 1) * self._width]

    def read(self) -> Iterator[tuple[Family, list[SeriesTotal]]]:
        """Every family with its readings, as they are at this moment. May run in any thread."""
        rows = [self._row(number).tolist() for number in range(self._workers)]
        alive = [row for row in rows if time.monotonic() - row[SEEN_AT] < SILENT_S]
        ever = _added(rows, self._width)
        now = _added(alive, self._width)
        for family in self.families:
            cells = now if family.kind == "gauge" else ever
            yield family, list(self._readings(family, cells))

    def _readings(self, family: Family, cells: Sequence[float]) -> Iterator[SeriesTotal]:
        for labels, slot in self._slots[family.name].items():
            values = cells[slot : slot + family.cells]
            if any(values) or not (family.sparse or (family.labels and labels == family.other)):
                yield SeriesTotal(labels, values)

    @property
    def workers_so_far(self) -> int:
        """Those that have begun to serve since the start, each successor counted."""
        return sum(int(self._row(number)[GREETED]) for number in range(self._workers))

    @property
    def workers_alive(self) -> int:
        """Those that have spoken within SILENT_S."""
        now = time.monotonic()
        seen = (self._row(number)[SEEN_AT] for number in range(self._workers))
        return sum(now - at < SILENT_S for at in seen)


@contextmanager
def open_shared_counters(families: Sequence[Family], workers: int) -> Iterator[SharedCounters]:
    """A board for so many workers, to be opened before they are forked.

    Its file has no name and stays empty: only its locks are used.
    """
    with tempfile.TemporaryFile() as claims:
        yield SharedCounters(families, workers, claims)


def _added(rows: Sequence[Sequence[float]], width: int) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)] if rows else [0.0] * width


class CounterRow:
    """What one worker counts."""

    def __init__(
        self,
        cells: Cells,
        families: Sequence[Family],
        slots: Mapping[str, Mapping[Labels, int]],
    ) -> None:
        self._cells = cells
        self._families = {family.name: family for family in families}
        self._slots = slots
        self.detach()  # so did its last worker, if nobody has said so
        cells[GREETED] += 1

    def heartbeat(self) -> None:
        """This worker is alive, and its states are written."""
        self._cells[SEEN_AT] = time.monotonic()

    def detach(self) -> None:
        """Nobody is alive in this row: its states are nobody's any more."""
        self._clear_states()
        self._cells[SEEN_AT] = -SILENT_S

    def _clear_states(self) -> None:
        for family in self._families.values():
            if family.kind == "gauge":
                for slot in self._slots[family.name].values():
                    self._cells[slot] = 0.0

    def numbers(self, name: str) -> "Numbers":
        family = self._families[name]
        slots = self._slots[name]
        return Numbers(self._cells, slots, slots[family.other], family.bounds)


class Numbers:
    """The cells of one family in one row."""

    __slots__ = ("_bounds", "_cells", "_other", "_slots")

    def __init__(
        self,
        cells: Cells,
        slots: Mapping[Labels, int],
        other: int,
        bounds: tuple[float, ...],
    ) -> None:
        self._cells = cells
        self._slots = slots
        self._other = other
        self._bounds = bounds

    def add(self, labels: Labels = (), amount: float = 1.0) -> None:
        """Of a counter or a gauge."""
        self._cells[self._slots.get(labels, self._other)] += amount

    def put(self, amount: float, labels: Labels = ()) -> None:
        """Of a gauge."""
        self._cells[self._slots.get(labels, self._other)] = amount

    def observe(self, seconds: float, labels: Labels = ()) -> None:
        """Of a histogram: a bucket holds what is at most its bound."""
        slot, bounds = self._slots.get(labels, self._other), self._bounds
        self._cells[slot + bisect_left(bounds, seconds)] += 1.0
        self._cells[slot + len(bounds) + 1] += seconds
