"""Cores for a prober and its load side: on one core each they do not slow each other down."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pinned(*load_pids: int) -> Iterator[bool]:
    """Run this process on one core and the processes of the load on another, as long as the block lasts.

    Yields False, and changes nothing, where this process may use fewer than two.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        yield False
        return
    for pid in load_pids:
        os.sched_setaffinity(pid, cores[1:2])
    os.sched_setaffinity(0, cores[:1])
    try:
        yield True
    finally:
        os.sched_setaffinity(0, cores)
