"""The probes under way by all egresses, and the end of each step: reports, admissions, notices.

A step is one event: a session's effects are applied, a deadline passes, a stream submits. Nothing
is called back meanwhile: what the step settles and frees is only marked here. After the step its
caller runs the turn, which ends when nothing is marked. Calls of a turn may submit more: that is
marked as well, and follows in the same turn.

`probes_max` is a limit of the process: an address that goes from one egress to another keeps its
place and its deadline.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

import trio
from msgspec import Struct, field

from ..background import log_fault
from ..fair_queue import FairQueue
from ..settings import EngineSettings
from .patience import overall_s
from .probe import Cause, Probe

KEPT = 40  # 50 of 2,000: a batch of 50 begins at once
FREE_TIMES = 19
OTHERS_TIMES = 4  # so that they may grow at once


class ClockedProbes(Protocol):
    """Starts and expires probes for a turn; implemented by probing.Probing."""

    def next_exchange(self, probe: Probe) -> None: ...
    def expire(self, probe: Probe) -> None: ...
    def time_out(self, probe: Probe) -> None: ...


class Deadlines(Struct, eq=False):
    """The probes whose clocks run, in the order of their deadlines.

    A clock that is stopped begins anew, whole, when it goes on.
    A probe that goes on as another one (`Probe.latest`) keeps its place.
    """

    _probes: ClockedProbes
    _overall_s: float
    _now: Callable[[], float] = field(
        default_factory=lambda: trio.lowlevel.current_clock().current_time
    )
    _running: OrderedDict[Probe, None] = field(default_factory=OrderedDict)
    _first_of: dict[Probe, Probe] = field(
        default_factory=dict
    )  # of successors: who has their place
    _wake: trio.Event = field(default_factory=trio.Event)

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, probes: Iterable[Probe]) -> None:
        """Begin the clocks, or begin them anew that were stopped."""
        now = self._now()
        if not self._running:
            self._wake.set()
        for probe in probes:
            probe.clock.start(now, self._overall_s)
            self._running[probe] = None

    def stop(self, probe: Probe) -> None:
        """Stop the clock until begin()."""
        self.end(probe)
        probe.clock.stop(self._now())

    def pass_on(self, probe: Probe, successor: Probe) -> None:
        """The successor has the clock of this probe from now on."""
        first = self._first_of.pop(probe, probe)
        if first in self._running:
            self._first_of[successor] = first

    def end(self, probe: Probe) -> None:
        """The probe is settled, or its clock is stopped."""
        self._running.pop(self._first_of.pop(probe, probe), None)
        if probe.clock.stopped_at is not None:
            probe.clock.end(self._now())

    async def keep(self, end_step: Callable[[], None]) -> None:
        """Have every probe settled at its deadline; each is a step. Runs until cancelled."""
        while True:
            first = next(iter(self._running), None)
            if first is None:
                self._wake = trio.Event()
                await self._wake.wait()
            elif first.clock.deadline > self._now():
                await trio.sleep_until(first.clock.deadline)
            else:
                probe = first.latest
                try:
                    self._probes.expire(probe)
                except Exception:
                    log_fault(self._probes.expire)
                    self.end(probe)
                    self._probes.time_out(probe)
                end_step()


class ListPlaces:
    """The share of the places that a list may take: all free ones, but those that others need.

    One place in KEPT is for requests alone, whose clocks run while they wait. An account's lists
    may have FREE_TIMES as many places as are free beside them (dynamic thresholds, Choudhury and
    Hahne, 1998): one account alone fills nineteen of twenty. When another account comes, places
    that become free go to it until both have the same number. A place of a patient pass may be
    taken for a minute: beyond half of the places it leaves OTHERS_TIMES as many as others use.
    """

    __slots__ = ("_half", "_held", "_most")

    def __init__(self, places_max: int) -> None:
        """Of `places_max` places in all."""
        self._most = places_max - max(1, places_max // KEPT) if places_max > 1 else 1
        self._half = max(1, places_max // 2)
        self._held: dict[str, int] = {}  # by account

    def enter(self, account: str, count: int) -> None:
        """So many probes of the account's lists begin."""
        self._held[account] = self._held.get(account, 0) + count

    def leave(self, probe: Probe) -> None:
        """A list's probe has ended."""
        left = self._held[probe.asker] - 1
        if left:
            self._held[probe.asker] = left
        else:
            del self._held[probe.asker]

    def room(self, account: str, used: int) -> int:
        """How many more probes lists of the account may begin while `used` places are taken."""
        free = self._most - used
        if free <= 0:
            return 0
        # The most m for which held + m - 1 < FREE_TIMES * (free - m + 1).
        return -((self._held.get(account, 0) - FREE_TIMES * free) // (FREE_TIMES + 1))

    def is_full(self, used: int) -> bool:
        """Are only places for requests left?"""
        return used >= self._most

    def patient_room(self, patient: int, others: int) -> int:
        """How many more of a patient pass may begin beside so many, and so many others."""
        return max(self._half, self._most - OTHERS_TIMES * others) - patient


AnyHost = TypeVar("AnyHost")  # a mail host that probes wait at: host.Host
OnCapacity = Callable[[AnyHost | None], None]


class Turn(Generic[AnyHost]):
    """The places of probes, their clocks, and what the steps have marked."""

    __slots__ = (
        *("_admitted", "_awaiting_proof", "_freed", "_has_places", "places", "_list_places"),
        *(
            "_list_waits",
            "_listeners",
            "_now",
            "_probes",
            "_settled",
            "clocks",
            "is_due",
            "waiting",
        ),
    )

    def __init__(self, settings: EngineSettings, probes: ClockedProbes) -> None:
        self.places = settings.probes_max  # of probes under way
        self._probes = probes
        self._now = trio.lowlevel.current_clock().current_time
        # Of ordinary probes, and of patient ones: indexed by `Probe.patient`.
        self.clocks = tuple(
            Deadlines(probes, overall_s(settings, patient)) for patient in (False, True)
        )
        self._admitted: set[Probe] = set()
        self._awaiting_proof = 0  # admitted probes whose reply is not proven yet
        self.waiting: FairQueue[Probe] = FairQueue()  # for a place
        self._list_places = ListPlaces(settings.probes_max)
        self._list_waits = False  # a list found less room than its hosts have
        self.is_due = False  # something is marked
        self._settled: deque[Probe] = deque()
        self._freed: dict[AnyHost, None] = {}  # hosts, in the order in which they had room first
        self._has_places = False  # a list that found none may have one
        self._listeners: tuple[OnCapacity[AnyHost], ...] = ()

    # -- places ----------------------------------------------------------------------------------

    @property
    def under_way(self) -> int:
        """Probes that are admitted and have no reply yet."""
        return len(self._admitted) - self._awaiting_proof

    @property
    def lists_are_full(self) -> bool:
        """Are only places for requests left?"""
        return self._list_places.is_full(self.under_way)

    def room_for(self, account: str, wanted: int, *, patient: bool) -> int:
        """How many of the `wanted` probes the account's list may begin.

        If not all, the listeners are notified once another probe has ended.
        """
        room = self._list_places.room(account, self.under_way)
        if patient:
            ordinary, own = map(len, self.clocks)
            room = min(room, self._list_places.patient_room(own, ordinary))
        if room >= wanted:
            return wanted
        self._list_waits = True
        return room

    def begin(self, probes: Sequence[Probe]) -> None:
        """Submit these probes of one stream: their clocks begin."""
        if probes:
            self.clocks[probes[0].patient].begin(probes)
            if probes[0].deferred_start:
                self._list_places.enter(probes[0].asker, len(probes))

    def queue(self, probe: Probe) -> None:
        """Start it once there is a place for it. Its clock has begun."""
        self.waiting.join(probe.asker, probe)
        self._admit()

    def begin_together(self, probes: Sequence[Probe]) -> bool:
        """Begin these, which the caller starts at once. False if not all have a place."""
        if self.waiting.count or len(probes) > self.places - self.under_way:
            return False
        self.begin(probes)
        self._admitted.update(probes)
        return True

    def _admit(self) -> None:
        now = self._now()
        while self.under_way < self.places and (probe := self.waiting.pop()) is not None:
            if not probe.settled and probe.clock.deadline > now:
                self._admitted.add(probe)
                self._probes.next_exchange(probe)

    def leave_places(self, probes: Iterable[Probe]) -> None:
        """Stop counting these as under way: they wait for what others have."""
        self._admitted.difference_update(probes)
        self._has_places |= self._list_waits
        self.is_due = True

    def count_places(self, probes: Iterable[Probe]) -> None:
        """Count these again: they wait no longer, and their clocks begin anew."""
        for probe in probes:
            self.clocks[probe.patient].begin((probe,))
        self._admitted.update(probes)

    def stop_clocks(self, probes: Iterable[Probe]) -> None:
        """Stop the clocks of these: they wait for something beyond their control."""
        for probe in probes:
            if probe.result.outcome is None and probe.clock.stopped_at is None:
                self.clocks[probe.patient].stop(probe)

    def restart_clock(self, probe: Probe) -> None:
        """The probe waits no longer: its clock begins anew."""
        if probe.result.outcome is None and probe.clock.stopped_at is not None:
            self.clocks[probe.patient].begin((probe,))

    def pass_on(self, probe: Probe, successor: Probe) -> None:
        """The successor has the place and the clock of this probe."""
        self.clocks[probe.patient].pass_on(probe, successor)
        self._admitted.discard(probe)
        self._admitted.add(successor)

    def hold(self, probe: Probe, cause: Cause) -> None:
        """Hold the probe before all queues, without a place; a list's clock is stopped.

        If its clock ends first, it is settled with this cause.
        """
        probe.attempts.note_cause(cause)
        if probe.deferred_start:
            self.stop_clocks((probe,))
        self.leave_places((probe,))

    def go_on(self, probe: Probe) -> None:
        """The probe is not held any longer."""
        probe.attempts.note_cause(None)
        self.restart_clock(probe)

    # -- marks -----------------------------------------------------------------------------------

    def mark_freed(self, host: AnyHost) -> None:
        """The host may have room for more probes."""
        self._freed[host] = None
        self.is_due = True

    def end(self, probe: Probe, host: AnyHost | None, *, is_reported: bool = True) -> None:
        """The probe is settled; it was at this host."""
        self.is_due = True
        if is_reported:
            self._settled.append(probe)
        self.clocks[probe.patient].end(probe)
        self._admitted.discard(probe)
        if probe.deferred_start:
            self._list_places.leave(probe)
        if host is not None:
            self._freed[host] = None
        self._has_places |= self._list_waits

    def hold_back(self, host: AnyHost, count: int) -> None:
        """`count` probes have a reply and wait for its proof: others may begin in their place.

        A negative `count`: so many of them are settled or queued again.
        """
        self._awaiting_proof += count
        if count > 0:
            self._freed[host] = None
            self._has_places |= self._list_waits
            self.is_due = True

    # -- turns -----------------------------------------------------------------------------------

    def subscribe(self, listener: OnCapacity[AnyHost]) -> None:
        """Call this when a host may have room; with None: when a list may have a place."""
        self._listeners = (*self._listeners, listener)

    def unsubscribe(self, listener: OnCapacity[AnyHost]) -> None:
        self._listeners = tuple(each for each in self._listeners if each != listener)

    def run(self) -> None:
        """The step is over."""
        settled, freed = self._settled, self._freed
        while True:
            while settled:
                probe = settled.popleft()
                try:
                    probe.on_settled(probe)
                except Exception:  # in the caller's callback: it must not affect other callers
                    log_fault(probe.on_settled)
            if self.waiting.count:
                self._admit()
            host: AnyHost | None = None
            if freed:
                host = next(iter(freed))
                del freed[host]
            elif self._has_places:  # lists that still find too little room are noted anew
                self._has_places = self._list_waits = False
            elif settled:
                continue
            else:
                self.is_due = False
                return
            for notify in self._listeners:
                notify(host)
