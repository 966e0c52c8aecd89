"""Repeats the same work a few times: median time, spread, and processor time."""

import time
from collections.abc import Callable
from statistics import median

from msgspec import Struct

from .figures import Figure


class RepeatedRuns(Struct, frozen=True):
    """Several rounds of the same work."""

    wall_s: float  # the median
    cpu_s: float  # the median; of this process, all its threads
    spread: float  # (slowest - fastest) / median, of wall_s
    cpu_spread: float = 0.0  # the same of cpu_s

    def each_us(self, items: int) -> float:
        return self.wall_s / items * 1e6

    def cpu_each_us(self, items: int) -> float:
        return self.cpu_s / items * 1e6

    def figure(self, what: str, items: int) -> Figure:
        """Processor time per item in µs.

        For work that only computes; other work on the machine does not count.
        """
        return Figure(what, self.cpu_each_us(items), "µs", spread=self.cpu_spread)

    def rate(self, what: str, items: int) -> Figure:
        """Items per second of processor time on one core."""
        return Figure(what, items / self.cpu_s, "a second", spread=self.cpu_spread)


def timed(work: Callable[[], object], rounds: int = 5) -> RepeatedRuns:
    """Run the work `rounds` times, after one run to warm up."""
    work()
    walls, cpus = [], []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return RepeatedRuns(median(walls), median(cpus), _spread(walls), _spread(cpus))


def _spread(times: list[float]) -> float:
    return (max(times) - min(times)) / median(times) if median(times) else 0.0


def ratio(
    what: str, one: RepeatedRuns, other: RepeatedRuns, items: int = 1, other_items: int = 1
) -> Figure:
    """Processor time per item of `one`, as a multiple of that of `other`; both from this run."""
    value = one.cpu_each_us(items) / other.cpu_each_us(other_items)
    return Figure(what, value, "×", spread=one.cpu_spread + other.cpu_spread)
