"""Deadlines of look-ups, and of greetings: one task keeps all, instead of one task for each.

The same task runs the turns of DNS endpoints. Each event at an endpoint only marks it; once all
events of this moment are handled, each marked endpoint plans once. So a callback never sends a
query itself.

The clock also counts the time in which this process did not run its tasks: a busy machine gave it
no processor, or one task took long. An answer that came meanwhile was not read, so the time of a
look-up does not run then. While there are deadlines, the clock wakes each BEAT_S and counts how
late it is: in a second of a look-up, all that has come was read at least 20 times.
"""

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

import trio

from ..background import log_fault

STALL_S = 0.1  # a wake-up this late means that the process did not run
STALL_GRACE_S = 0.02
STALL_TURNS = 10  # of the event loop: enough for each connection to read what has come
BEAT_S = 0.05
LATE_S_LEAST = 0.001  # a wake-up is never quite in time
FAULT_PAUSE_S = 0.2  # of a turn or a deadline that comes again, after a bug
NEVER = float("inf")
AWAKE = float("-inf")


async def catch_up(due: float) -> None:
    """Wait if this task woke long after `due`: the process stood still.

    An answer that came meanwhile lies in its socket. The connections read it first;
    then its deadline is no longer of interest.
    """
    if trio.current_time() > due + STALL_S:
        await trio.sleep(STALL_GRACE_S)
        for _ in range(STALL_TURNS):  # the process may have stood still again
            await trio.lowlevel.checkpoint()


class TimedObject(Protocol):
    """An object with a deadline that the clock keeps."""

    @property
    def over(self) -> bool:
        """Whether it needs no more ticks."""
        ...

    @property
    def due(self) -> float:
        """When `tick` has something to do."""
        ...

    def tick(self, now: float) -> None: ...


class Timer:
    """A deadline that comes again: `act` returns when it is due next, or NEVER."""

    def __init__(self, clock: "DeadlineClock", act: Callable[[float], float]) -> None:
        self._clock = clock
        self._act = act
        self.due = NEVER

    @property
    def over(self) -> bool:
        return self.due == NEVER

    def start(self, due: float) -> None:
        """Be due then, unless it is due already."""
        if self.due == NEVER:
            self.due = due
            self._clock.watch(self)

    def tick(self, now: float) -> None:
        try:
            self.due = self._act(now)
        except Exception:  # the deadline comes again all the same
            log_fault(self._act)
            self.due = now + FAULT_PAUSE_S


class Planner(Protocol):
    """An object that plans in a turn, after something has happened to it."""

    def plan(self, now: float) -> None: ...


class DeadlineClock:
    """Calls `tick` of each timed object when it is due, and drops those that are over.

    Nearly all are over long before they are due, so the clock seldom wakes for them.
    """

    def __init__(self) -> None:
        self.now = trio.lowlevel.current_clock().current_time
        self._due: list[tuple[float, int, TimedObject]] = []  # a heap
        self._numbers = count()  # equal instants come in the order of `watch`
        self._marked: dict[Planner, None] = {}
        self._sleep = trio.CancelScope()
        self._task: trio.lowlevel.Task | None = None  # while nothing is marked or due
        self._wakes_at = AWAKE
        self._lost_s = 0.0  # until its latest wake-up

    @property
    def lost_s(self) -> float:
        """The time until now in which this process did not run, while there were deadlines."""
        return self._lost_s if self._wakes_at == AWAKE else self._lost_s + self._late_s

    @property
    def _late_s(self) -> float:
        late_s = self.now() - self._wakes_at
        return late_s if late_s > LATE_S_LEAST else 0.0

    def watch(self, timed: TimedObject) -> None:
        if timed.over or (due := timed.due) == NEVER:
            return
        heappush(self._due, (due, next(self._numbers), timed))
        if due < self._wakes_at:
            self._wakes_at = due
            self._sleep.deadline = due

    def mark(self, planner: Planner) -> None:
        """Let it plan once in the next turn."""
        self._marked[planner] = None
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self.tick(self.now())
            self._plan_marked()
            self._wakes_at = min(self._due[0][0], self.now() + BEAT_S) if self._due else NEVER
            with trio.CancelScope(deadline=self._wakes_at) as self._sleep:
                while True:
                    self._task = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
                    self._plan_marked()
            await catch_up(self._wakes_at)
            self._lost_s += self._late_s
            self._wakes_at = AWAKE

    def _stop_waiting(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _plan_marked(self) -> None:
        while self._marked:
            planner = next(iter(self._marked))
            del self._marked[planner]
            try:
                planner.plan(self.now())
            except Exception:  # it plans again soon: what waits there may have nothing to mark it
                log_fault(planner.plan)
                Timer(self, partial(self._mark_again, planner)).start(self.now() + FAULT_PAUSE_S)

    def _mark_again(self, planner: Planner, _: float) -> float:
        self.mark(planner)
        return NEVER

    def tick(self, now: float) -> None:
        while self._due and (self._due[0][2].over or self._due[0][0] <= now):
            timed = heappop(self._due)[2]
            if timed.over:
                continue
            try:
                if timed.due <= now:
                    timed.tick(now)
            except Exception:  # its callers have deadlines of their own; the others go on
                log_fault(timed.tick)
                continue
            self.watch(timed)
