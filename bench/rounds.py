"""Doing the same a few times: the median, how far the rounds lie apart, and what they cost."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Timed:
    """Several rounds of the same work."""

    wall_s: float  # the median
    cpu_s: float  # the median; of this process, all its threads
    spread: float  # (slowest - fastest) / median

    def each_us(self, items: int) -> float:
        return self.wall_s / items * 1e6

    def cpu_each_us(self, items: int) -> float:
        return self.cpu_s / items * 1e6


def timed(work: Callable[[], object], rounds: int = 5) -> Timed:
    """Do the work so many times, after once for warmth."""
    work()
    walls, cpus = [], []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return Timed(median(walls), median(cpus), (max(walls) - min(walls)) / median(walls))
