"""The answers of the last day by minute, for the operator's page.

Each worker counts in shared rows: a ring of minutes, whose cells are used again a day later. Any
worker adds them up. They begin with the service and end with it.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil

from msgspec import Struct

from .shared_rows import Cells, SharedRows, added, open_shared_rows

Clock = Callable[[], float]  # seconds since 1970

MINUTE_S = 60
MINUTES = 24 * 60 + 1  # kept, with the one that has not ended: 380 KB for a worker, after a day
# Of the times of probes. Bounds of a quarter to a half more than the one below them tell a median
# within some 15 %; the last ones are those of patient probes of lists.
BOUNDS_S = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2),
    *(0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.05, 5.0, 10.0, 20.0, 60.0),
)
MINUTE, ANSWERS, REPLIES, REFUSED, TIMES = range(5)  # the cells of a minute
WIDTH = TIMES + len(BOUNDS_S) + 1


class Counted(Struct, frozen=True):
    """What was counted in some minutes."""

    answers: int  # addresses
    replies: int  # of these, those that a mail host has decided
    refused: int  # of these, those that blame this machine
    times: Sequence[float]  # how many probes took how long, by BOUNDS_S, and beyond them

    def time_s(self, share: float) -> float | None:
        """The time within which this share of the probes ended, roughly; None without any."""
        wanted, before, lower_s = share * sum(self.times), 0.0, 0.0
        for count, upper_s in zip(self.times, (*BOUNDS_S, BOUNDS_S[-1]), strict=True):
            if count and before + count >= wanted:
                return lower_s + (upper_s - lower_s) * (wanted - before) / count
            before, lower_s = before + count, upper_s
        return None


def summed(counted: Sequence[Counted]) -> Counted:
    """The sum of these."""
    if not counted:
        return NOTHING
    return Counted(
        sum(each.answers for each in counted), sum(each.replies for each in counted),
        sum(each.refused for each in counted), added([each.times for each in counted]),
    )  # fmt: skip


NOTHING = Counted(0, 0, 0, (0.0,) * (len(BOUNDS_S) + 1))


class MinuteCounter:
    """What one worker counts, in its own row."""

    __slots__ = ("_cells", "_clock", "_minute", "_start")

    def __init__(self, cells: Cells, clock: Clock) -> None:
        self._cells = cells
        self._clock = clock
        self._minute = -1.0  # the one that counts now, and its first cell
        self._start = 0

    def answered(self, addresses: int, *, replies: int, refused: int) -> None:
        """So many addresses were answered."""
        if self._clock() // MINUTE_S != self._minute:
            self._turn()
        cells, start = self._cells, self._start
        cells[start + ANSWERS] += addresses
        cells[start + REPLIES] += replies
        if refused:
            cells[start + REFUSED] += refused

    def probed(self, seconds: float) -> None:
        """A probe took so long."""
        if self._clock() // MINUTE_S != self._minute:
            self._turn()
        self._cells[self._start + TIMES + bisect_left(BOUNDS_S, seconds)] += 1.0

    def _turn(self) -> None:
        """Begin this minute, whose cells have what was counted a day ago.

        The worker before this one may have begun it.
        """
        self._minute = self._clock() // MINUTE_S
        self._start = start = int(self._minute % MINUTES) * WIDTH
        if self._cells[start] == self._minute:
            return
        self._cells[start] = 0.0  # until it is empty, no reader takes it
        for place in range(start + ANSWERS, start + WIDTH):
            self._cells[place] = 0.0
        self._cells[start] = self._minute


class Throughput:
    """The counted minutes of all workers; made by open_throughput()."""

    def __init__(self, rows: SharedRows, clock: Clock) -> None:
        self._rows = rows
        self._clock = clock
        self.started_at = clock()

    def attach(self) -> MinuteCounter:
        """Take a row until this process ends. Raises RuntimeError if all rows are taken."""
        return MinuteCounter(self._rows.attach(), self._clock)

    def minutes(self, first: int, last: int) -> list[Counted]:
        """Return these minutes since 1970, `last` too; of those of more than a day ago nothing is known."""
        rows = self._rows.rows()
        return [_of_minute(rows, minute) for minute in range(first, last + 1)]

    @property
    def first_minute(self) -> int:
        """The first whole minute of the service, since 1970."""
        return ceil(self.started_at / MINUTE_S)


def _of_minute(rows: Sequence[Cells], minute: int) -> Counted:
    """What all workers have counted in it."""
    start = minute % MINUTES * WIDTH
    of_workers = [row[start : start + WIDTH].tolist() for row in rows if row[start] == minute]
    if not of_workers:
        return NOTHING
    _, answers, replies, refused, *times = added(of_workers)
    return Counted(int(answers), int(replies), int(refused), times)


@contextmanager
def open_throughput(workers: int, clock: Clock = time.time) -> Iterator[Throughput]:
    """Open the minutes of so many workers; call it before they are forked."""
    with open_shared_rows(workers, MINUTES * WIDTH) as rows:
        yield Throughput(rows, clock)
