"""Probes that no egress may ask about at the moment, because the next block of a day is awaited.

Requests go before lists, whose clocks are stopped meanwhile; accounts take turns. What is held
is bounded by the callers: a list's place counts, and a request's clock runs.
"""

from collections.abc import Callable, Iterator

import trio
from msgspec import Struct, field

from ...fair_queue import FairQueue
from ...verdict import Outcome
from ..host.host import Host, HostEgress
from ..probe import AWAITS_EGRESS, NO_EGRESS_RULE, Probe
from ..turn import Turn
from .choice import SPENT_S, EgressChoice, EgressTask, Way

DROPPED_EVERY_S = 1.0  # to look through 20,000 takes 2 ms
IN_VAIN_MAX = 64  # tried again without success in a row: 5 ms with 30 egresses


class HeldProbes(Struct, eq=False):
    """The queue of these probes. A list's clock is stopped meanwhile, and they have no place."""

    _choice: EgressChoice
    _turn: Turn[Host]
    _queue_by: Callable[[HostEgress, Probe], None]
    _settle: Callable[[Probe, Outcome, str], None]
    _is_too_late: Callable[[Probe], bool]  # for any egress to begin with it
    _now: Callable[[], float] = field(
        default_factory=lambda: trio.lowlevel.current_clock().current_time
    )
    _of_requests: FairQueue[Probe] = field(default_factory=FairQueue)
    _of_lists: FairQueue[Probe] = field(default_factory=FairQueue)
    _any: trio.Event = field(default_factory=trio.Event)
    _again_at: float = float("-inf")  # those that were tried without success
    _dropped_at: float = float("-inf")

    def __len__(self) -> int:
        return len(self._of_requests) + len(self._of_lists)

    @property
    def is_due(self) -> bool:
        """Does any wait, and may an egress have addresses again?"""
        return len(self) > 0 and self._now() >= self._again_at

    def hold(self, probe: Probe) -> None:
        """An egress may ask about it in a moment."""
        self._add(probe)
        self._turn.hold(probe, AWAITS_EGRESS)

    def release(self) -> None:
        """Start the probes that an egress may ask about by now; settle those without any egress."""
        for probe, way in self._released():
            if way is None:
                self._settle(probe, Outcome.NO_EGRESS, NO_EGRESS_RULE)
            else:
                self._turn.go_on(probe)
                self._queue_by(way.hosts, probe)

    def room_freed(self, host: Host | None) -> None:
        """A host has room: held probes have waited longer than those that lists hold back."""
        if host is not None and self.is_due:
            self.release()

    async def keep(self) -> None:
        """Start them as egresses get addresses again. Runs until cancelled."""
        while True:
            if not len(self):
                self._any = trio.Event()
                await self._any.wait()
            await trio.sleep(SPENT_S)
            self._drop_settled()
            self.release()
            self._turn.run()

    def _add(self, probe: Probe) -> None:
        """Add to the end of the account's queue."""
        queue = self._of_lists if probe.deferred_start else self._of_requests
        queue.join(probe.asker, probe)
        self._any.set()

    def _released(self) -> Iterator[tuple[Probe, Way | None]]:
        """Those that an egress may ask about by now, each with it; None: no egress will."""
        kept: list[Probe] = []
        try:
            while len(kept) < IN_VAIN_MAX and not self._is_in_vain():
                if (probe := self.pop()) is None:
                    break
                kept.append(probe)  # also if a bug meets it
                task = EgressTask(probe.domain, probe.target.exchanges, probe.target.egresses_tried)
                if not self._has_room(task, probe):
                    continue
                way = None if self._is_too_late(probe) else self._choice.reserve(task)
                if way is not None or not self._choice.is_awaited(task):
                    yield probe, way
                    kept.pop()
        finally:
            for probe in kept:
                self._add(probe)
            if kept:
                self._again_at = self._now() + SPENT_S

    def pop(self) -> Probe | None:
        """Remove and return the next one that is not settled, or None."""
        for queue in (self._of_requests, self._of_lists):
            while (probe := queue.pop()) is not None:
                if not probe.settled:
                    return probe
        return None

    def _drop_settled(self) -> None:
        """Drop those that are late or abandoned, since a grant may take hours."""
        now = self._now()
        if now < self._dropped_at + DROPPED_EVERY_S:
            return
        self._dropped_at = now
        for queue in (self._of_requests, self._of_lists):
            queue.discard(lambda probe: probe.settled)

    def _has_room(self, task: EgressTask, probe: Probe) -> bool:
        """Is there room for one more of a list, here and at its host? Its clock begins then."""
        if not probe.deferred_start:
            return True
        if self._turn.lists_are_full:
            return False
        if (way := self._choice.best(task)) is None:
            return True
        host = way.hosts.host_of(task.exchanges[0], patient=probe.patient)
        return host is None or host.load.room(1, probe.asker, probe.patience_s) > 0

    def _is_in_vain(self) -> bool:
        """Has no egress addresses now, while one is awaited?"""
        choice = self._choice
        return not any(map(choice.is_usable, choice.ways)) and any(
            map(choice.awaits_addresses, choice.ways)
        )
