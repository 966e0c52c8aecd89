"""Probes that no egress may ask about at the moment, because the next block of a day is awaited.

Requests go before lists, whose clocks are stopped meanwhile; accounts take turns. What is held
is bounded by the callers: a list's place counts, and a request's clock runs.
"""

import trio

from ...fair_queue import FairQueue
from ..probe import Probe

DROPPED_EVERY_S = 1.0  # to look through 20,000 takes 2 ms


class HeldProbes:
    """The queue of these probes."""

    __slots__ = ("_any", "_dropped_at", "_of_lists", "_of_requests")

    def __init__(self) -> None:
        self._of_requests: FairQueue[Probe] = FairQueue()
        self._of_lists: FairQueue[Probe] = FairQueue()
        self._any = trio.Event()
        self._dropped_at = float("-inf")

    def __len__(self) -> int:
        return len(self._of_requests) + len(self._of_lists)

    def add(self, probe: Probe) -> None:
        """Add to the end of the account's queue."""
        queue = self._of_lists if probe.deferred_start else self._of_requests
        queue.join(probe.asker, probe)
        self._any.set()

    def pop(self) -> Probe | None:
        """Remove and return the next one that is not settled, or None."""
        for queue in (self._of_requests, self._of_lists):
            while (probe := queue.pop()) is not None:
                if not probe.settled:
                    return probe
        return None

    def drop_settled(self, now: float) -> None:
        """Drop those whose time has passed or whose caller has gone: nothing may be granted for hours."""
        if now < self._dropped_at + DROPPED_EVERY_S:
            return
        self._dropped_at = now
        for queue in (self._of_requests, self._of_lists):
            queue.discard(lambda probe: probe.settled)

    async def wait(self) -> None:
        """Wait until there is one."""
        if not len(self):
            self._any = trio.Event()
            await self._any.wait()
