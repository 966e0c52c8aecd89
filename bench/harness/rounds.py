"""Doing the same a few times: the median, how far the rounds lie apart, and what they cost."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from mailprobe.bench.harness.figures import Figure


@dataclass(frozen=True, slots=True)
class RepeatedRuns:
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
        """What each of so many items took, in µs of processor time.

        For work that only computes: what else the machine does is no part of it.
        """
        return Figure(what, self.cpu_each_us(items), "µs", spread=self.cpu_spread)

    def rate(self, what: str, items: int) -> Figure:
        """The same as how many a second, of one core."""
        return Figure(what, items / self.cpu_s, "a second", spread=self.cpu_spread)


def timed(work: Callable[[], object], rounds: int = 5) -> RepeatedRuns:
    """Do the work so many times, after once for warmth."""
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
    """How many times the other's processor time one item took; both measured in this run."""
    value = one.cpu_each_us(items) / other.cpu_each_us(other_items)
    return Figure(what, value, "×", spread=one.cpu_spread + other.cpu_spread)
