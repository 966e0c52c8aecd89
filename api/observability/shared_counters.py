"""Shared counters: numbers that each worker writes and any worker can add up.

There is a row for each worker (see `shared_rows`) and in it a cell for each number. Counting adds
to a cell of the worker's own row, in some 0.1 us. Counts outlive their worker, and its replacement
continues in the same row, so counters never decrease. A worker's gauges end with it.

All series are fixed before the fork, so that a label from outside cannot add one. What fits
none of them is counted as "other".

prometheus_client's multiprocess mode would do it with files. Compared with it on 2 cores: counting
costs a sixth (0.16 us and 0.28 us for 1.0 us and 2.1 us), which is 4 % of a cached address; a page for
4 workers takes 16 ms and not 42 ms; it does not get slower with each worker that died (430 ms after
46); the start is 70 ms shorter; no folder has to be writable; and a worker that hangs shows no gauges.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

from msgspec import Struct

from .shared_rows import Cells, SharedRows, added, open_shared_rows

# `shared`: the store's, alike in all workers.
Kind = Literal["counter", "gauge", "shared", "histogram"]
Labels = tuple[str, ...]

SEEN_AT, STARTED = 0, 1  # the first cells of a row: its last heartbeat; workers so far
SILENT_S = 5.0  # a worker without a heartbeat for so long is gone, or hangs
OTHER = "other"


class Family(Struct, frozen=True):
    """One metric with all its series."""

    kind: Kind
    name: str  # without a counter's `_total`
    help: str
    labels: Labels = ()
    series: tuple[Labels, ...] = ((),)
    bounds: tuple[float, ...] = ()  # of a histogram's buckets, in seconds
    sparse: bool = False  # a series is shown only after it has counted something

    @property
    def other(self) -> Labels:
        """The series for all that fits no other; shown only after it has counted something."""
        return (OTHER,) * len(self.labels)

    @property
    def cells(self) -> int:
        """Cells of one series; for a histogram its buckets, the unbounded one, and the sum."""
        return len(self.bounds) + 2 if self.kind == "histogram" else 1


class SeriesTotal(Struct, frozen=True):
    """One series, added up over all workers."""

    labels: Labels
    cells: Sequence[float]


def _laid_out(families: Sequence[Family]) -> tuple[dict[str, dict[Labels, int]], int]:
    """The first cell of each series by its family and labels, and the width of a row."""
    slots: dict[str, dict[Labels, int]] = {}
    width = STARTED + 1
    for family in families:
        slots[family.name] = {}
        for labels in dict.fromkeys((*family.series, family.other)):
            slots[family.name][labels] = width
            width += family.cells
    return slots, width


class SharedCounters:
    """The rows of all workers; made by open_shared_counters()."""

    def __init__(
        self,
        families: Sequence[Family],
        slots: Mapping[str, Mapping[Labels, int]],
        rows: SharedRows,
    ) -> None:
        self.families = tuple(families)
        self.started_at = time.time()
        self._slots = slots
        self._rows = rows

    def attach(self) -> "CounterRow":
        """Take a row until this process ends. Raises RuntimeError if all rows are taken."""
        return CounterRow(self._rows.attach(), self.families, self._slots)

    def read(self) -> Iterator[tuple[Family, list[SeriesTotal]]]:
        """Yield every family with its present totals. May run in any thread."""
        rows = [row.tolist() for row in self._rows.rows()]
        alive = [row for row in rows if time.monotonic() - row[SEEN_AT] < SILENT_S]
        ever = added(rows)
        now = added(alive) or [0.0] * len(ever)
        most = [max(column) for column in zip(*alive, strict=True)] if alive else now
        of_kind = {"counter": ever, "histogram": ever, "gauge": now, "shared": most}
        for family in self.families:
            yield family, list(self._readings(family, of_kind[family.kind]))

    def _readings(self, family: Family, cells: Sequence[float]) -> Iterator[SeriesTotal]:
        for labels, slot in self._slots[family.name].items():
            values = cells[slot : slot + family.cells]
            if any(values) or not (family.sparse or (family.labels and labels == family.other)):
                yield SeriesTotal(labels, values)

    @property
    def workers_so_far(self) -> int:
        """Workers started since the service began, including replacements."""
        return sum(int(row[STARTED]) for row in self._rows.rows())

    @property
    def workers_alive(self) -> int:
        """Workers with a heartbeat within SILENT_S."""
        now = time.monotonic()
        return sum(now - row[SEEN_AT] < SILENT_S for row in self._rows.rows())


@contextmanager
def open_shared_counters(families: Sequence[Family], workers: int) -> Iterator[SharedCounters]:
    """Open counters for so many workers; call it before they are forked."""
    slots, width = _laid_out(families)
    with open_shared_rows(workers, width) as rows:
        yield SharedCounters(families, slots, rows)


class CounterRow:
    """The counters of one worker."""

    def __init__(
        self,
        cells: Cells,
        families: Sequence[Family],
        slots: Mapping[str, Mapping[Labels, int]],
    ) -> None:
        self._cells = cells
        self.families = {family.name: family for family in families}
        self._slots = slots
        self.detach()  # the row's last worker may have ended without doing so
        cells[STARTED] += 1

    def heartbeat(self) -> None:
        """This worker is alive, and its gauges are set."""
        self._cells[SEEN_AT] = time.monotonic()

    def detach(self) -> None:
        """No worker is alive in this row: reset its gauges."""
        self._clear_gauges()
        self._cells[SEEN_AT] = -SILENT_S

    def _clear_gauges(self) -> None:
        for family in self.families.values():
            if family.kind in ("gauge", "shared"):
                for slot in self._slots[family.name].values():
                    self._cells[slot] = 0.0

    def numbers(self, name: str) -> "Numbers":
        """The cells of the family of this name."""
        family = self.families[name]
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
        """Add to a counter or a gauge."""
        self._cells[self._slots.get(labels, self._other)] += amount

    def put(self, amount: float, labels: Labels = ()) -> None:
        """Set a gauge."""
        self._cells[self._slots.get(labels, self._other)] = amount

    def observe(self, seconds: float, labels: Labels = ()) -> None:
        """Add to a histogram; a bucket counts values up to and including its bound."""
        slot, bounds = self._slots.get(labels, self._other), self._bounds
        self._cells[slot + bisect_left(bounds, seconds)] += 1.0
        self._cells[slot + len(bounds) + 1] += seconds
