"""The overall deadlines of probes, and their places: one task settles what has expired.

A deadline that is stopped begins anew, whole, when it goes on. Dispatchers share one admission:
`probes_max` is a limit of the process, and an address that goes from one egress to another keeps
its place and its deadline.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import trio

from ..background import log_fault
from ..fair_queue import FairQueue
from ..settings import EngineSettings
from .list_places import ListPlaces
from .patience import overall_s
from .probe import Cause, Probe


class Deadlines:
    """The probes whose clocks run, in the order of their deadlines.

    A probe that goes on as another one (`Probe.latest`) keeps its place.
    """

    __slots__ = ("_first_of", "_now", "_overall_s", "_running", "_wake")

    def __init__(self, overall_s: float) -> None:
        self._overall_s = overall_s
        self._now = trio.lowlevel.current_clock().current_time
        self._running: OrderedDict[Probe, None] = OrderedDict()
        self._first_of: dict[Probe, Probe] = {}  # of successors: the probe that has their place
        self._wake = trio.Event()

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, probes: Iterable[Probe]) -> None:
        """Begin the clocks, or begin them anew that were stopped."""
        now = self._now()
        if not self._running:
            self._wake.set()
        for probe in probes:
            probe.start_clock(now, self._overall_s)
            self._running[probe] = None

    def stop(self, probe: Probe) -> None:
        """Stop the clock until begin()."""
        self._leave(probe)
        probe.stop_clock(self._now())

    def pass_on(self, probe: Probe, successor: Probe) -> None:
        """The successor has the clock of this probe from now on."""
        first = self._first_of.pop(probe, probe)
        if first in self._running:
            self._first_of[successor] = first

    def end(self, probe: Probe) -> None:
        """The probe is settled."""
        # _leave() written out: this runs once for each answer.
        first = self._first_of.pop(probe, probe) if self._first_of else probe
        self._running.pop(first, None)
        if probe.stopped_at is not None:
            probe.end_clock(self._now())

    def _leave(self, probe: Probe) -> None:
        if self._first_of:
            probe = self._first_of.pop(probe, probe)
        self._running.pop(probe, None)

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
                probe = first.latest
                try:
                    expire(probe)
                except Exception:
                    log_fault(expire)
                    self._leave(probe)
                    time_out(probe)


class ProbeAdmission:
    """The probes under way in all dispatchers, and those that wait for room."""

    __slots__ = (
        *("_admitting", "admitted", "awaiting_proof", "clocks", "limit"),
        *("list_places", "list_waits", "waiting"),
    )

    def __init__(self, settings: EngineSettings) -> None:
        self.limit = settings.probes_max
        # Of ordinary probes, and of patient ones: indexed by `Probe.patient`.
        self.clocks = tuple(Deadlines(overall_s(settings, patient)) for patient in (False, True))
        self.admitted: set[Probe] = set()
        self.awaiting_proof = 0  # admitted probes whose reply is not proven yet
        self.waiting: FairQueue[Probe] = FairQueue()
        self.list_places = ListPlaces(settings.probes_max)
        self.list_waits = False  # a list found less room than its hosts have
        self._admitting = False  # probes settled at once admit others only afterwards

    def begin(self, probe: Probe) -> None:
        """The probe is submitted: its clock begins."""
        self.clocks[probe.patient].begin((probe,))
        if probe.deferred_start:
            self.list_places.enter(probe.asker, 1)

    def admit(self, now: float, start: Callable[[Probe], None]) -> None:
        """Start waiting probes while there is room. Those settled at once make room for others."""
        if self._admitting:
            return
        self._admitting = True
        try:
            while len(self.admitted) - self.awaiting_proof < self.limit:
                if (probe := self.waiting.pop()) is None:
                    break
                if not probe.settled and probe.deadline > now:
                    self.admitted.add(probe)
                    start(probe)
        finally:
            self._admitting = False

    def admit_together(self, probes: Sequence[Probe], start: Callable[[], None]) -> bool:
        """Start these in one call, if there is room for all; return whether it was done."""
        room = self.limit - len(self.admitted) + self.awaiting_proof
        if self._admitting or self.waiting.count or len(probes) > room:
            return False
        if probes:  # they are of one stream
            self.clocks[probes[0].patient].begin(probes)
            if probes[0].deferred_start:
                self.list_places.enter(probes[0].asker, len(probes))
        self.admitted.update(probes)
        self._admitting = True
        try:
            start()
        finally:
            self._admitting = False
        return True

    def hold_back(self, count: int) -> None:
        """So many more have a reply that waits for its proof; negative: fewer."""
        self.awaiting_proof += count

    def notified(self) -> None:
        """The lists that found too little room look again; those that still do are noted anew."""
        self.list_waits = False

    def hold(self, probe: Probe, cause: Cause) -> None:
        """It waits before all queues, and has no place meanwhile; a list's clock is stopped.

        If its clock ends first, it is settled with this cause.
        """
        probe.fail(cause)
        self.admitted.discard(probe)
        if probe.deferred_start and probe.stopped_at is None:
            self.clocks[probe.patient].stop(probe)

    def go_on(self, probe: Probe) -> None:
        """It waits no more."""
        probe.forget_cause()
        if probe.stopped_at is not None:
            self.clocks[probe.patient].begin((probe,))

    def room_for(self, account: str, wanted: int, *, patient: bool) -> int:
        """How many of the `wanted` probes the account's list may begin; see `list_waits`."""
        room = self.list_places.room(account, len(self.admitted) - self.awaiting_proof)
        if patient:
            ordinary, own = map(len, self.clocks)
            room = min(room, self.list_places.patient_room(own, ordinary))
        if room >= wanted:
            return wanted
        self.list_waits = True
        return room
