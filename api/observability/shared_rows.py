"""Rows of numbers in memory that workers share by fork: each writes its own row, any reads them all.

Writing needs no lock, no file and no message. A row outlives its worker, and the worker that
replaces it continues there.
"""

import fcntl
import mmap
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TypeAlias

Cells: TypeAlias = "memoryview[float]"

CELL_OCTETS = 8  # a native float, written in one piece


class SharedRows:
    """The rows of all workers, all cells 0 at first; made by open_shared_rows()."""

    def __init__(self, workers: int, width: int, locks: IO[bytes]) -> None:
        self._workers = workers
        self._width = width
        self._cells = memoryview(mmap.mmap(-1, CELL_OCTETS * width * workers)).cast("d")
        self._locks = locks

    def attach(self) -> Cells:
        """Take the first row that no living worker has, until this process ends.

        A POSIX record lock marks the owner: it is not inherited by fork, and it ends with
        its process. Raises RuntimeError if all rows are taken.
        """
        for number, row in enumerate(self.rows()):
            try:
                fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
            except OSError:
                continue
            return row
        raise RuntimeError(f"there are more than {self._workers} workers")

    def rows(self) -> list[Cells]:
        """Return every row, for reading."""
        starts = range(0, self._workers * self._width, self._width)
        return [self._cells[start : start + self._width] for start in starts]


def added(rows: Sequence[Sequence[float]]) -> list[float]:
    """The sum of each column."""
    return [sum(column) for column in zip(*rows, strict=True)]


@contextmanager
def open_shared_rows(workers: int, width: int) -> Iterator[SharedRows]:
    """Open rows of `width` numbers for so many workers; call it before they are forked.

    The file is unnamed and empty: only its locks are used.
    """
    with tempfile.TemporaryFile() as locks:
        yield SharedRows(workers, width, locks)
