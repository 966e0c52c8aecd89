"""The overall deadlines of probes: one task settles what has expired.

A deadline that is stopped begins anew, whole, when it goes on.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from math import inf

import trio

from mailprobe.engine.background import log_fault
from mailprobe.engine.smtp.probe import Probe


class Deadlines:
    """The probes whose clocks run, in the order of their deadlines."""

    __slots__ = ("_now", "_overall_s", "_running", "_wake")

    def __init__(self, overall_s: float) -> None:
        self._overall_s = overall_s
        self._now = trio.lowlevel.current_clock().current_time
        self._running: OrderedDict[Probe, None] = OrderedDict()
        self._wake = trio.Event()

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, probes: Iterable[Probe]) -> None:
        """Begin the clocks, or begin them anew that were stopped."""
        deadline = self._now() + self._overall_s
        if not self._running:
            self._wake.set()
        for probe in probes:
            if probe.stopped_at is not None:
                probe.stopped_s += self._now() - probe.stopped_at + self._overall_s - probe.left_s
                probe.stopped_at = None
            probe.deadline = deadline
            self._running[probe] = None

    def stop(self, probe: Probe) -> None:
        """Stop the clock until begin()."""
        self._running.pop(probe, None)
        now = self._now()
        probe.left_s, probe.deadline, probe.stopped_at = probe.deadline - now, inf, now

    def end(self, probe: Probe) -> None:
        """The probe is settled."""
        self._running.pop(probe, None)
        if probe.stopped_at is not None:
            now = self._now()
            probe.stopped_s += now - probe.stopped_at
            probe.deadline, probe.stopped_at = now + probe.left_s, None

    async def keep(
        self, expire: Callable[[Probe], None], time_out: Callable[[Probe], None]
    ) -> None:
        """Settle every probe at its deadline by `expire`, or by `time_out` if that fails.

        Runs until cancelled.
        """
        while True:
            first = next(iter(self._running), None)
            if first is None:
                self._wake = trio.Event()
                await self._wake.wait()
            elif first.deadline > self._now():
                await trio.sleep_until(first.deadline)
            else:
                try:
                    expire(first)
                except Exception:
                    log_fault(expire)
                    self._running.pop(first, None)
                    time_out(first)
