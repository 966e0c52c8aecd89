"""Lets the streams of a process submit in turn, so that no account takes the event loop for itself.

Submitting a step of addresses takes a millisecond or more, and causes several times as much
work later. Sixty batches of one account that arrive together would all submit in one turn of
the event loop, and every other request would wait for them at each of its replies. So one
stream submits at a time, one step, and the loop runs once before the next one does; the
accounts take turns (round-robin, as Postfix's SCHEDULER_README has it for destinations).

While several accounts are active, steps are also spaced, so that this thread computes for at
most BUSY_MAX of the time: a queue whose server is saturated makes all wait. An account
that is alone is never slowed down.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

import trio

from ..fair_queue import FairQueue

ACTIVE_S = 1.0  # an account is active for this long after it submitted
BUSY_MAX = 0.7  # share of the time that this thread computes while accounts share it
PAUSE_S_MIN = 0.002  # a shorter pause isn't worth waking up for
PAUSE_S_MAX = 0.2  # between two steps, whatever else this thread has to do


class SubmissionTurns:
    """The turns of all streams of an engine. `computed_s` is the processor time of this thread."""

    def __init__(self, computed_s: Callable[[], float] = time.thread_time) -> None:
        self._now = trio.current_time
        self._computed_s = computed_s
        self._waiting: FairQueue[SubmissionTurn] = FairQueue()
        self._taken = False
        self._active: OrderedDict[str, float] = OrderedDict()  # account: its latest step
        self._stepped_at = 0.0  # when the latest step began,
        self._computed_at = 0.0  # and this thread's processor time then

    def of(self, account: str) -> "SubmissionTurn":
        """Return the turn with which one stream of `account` submits."""
        return SubmissionTurn(self, account)

    def note_active(self, account: str) -> None:
        """The account submits something now."""
        now, active = self._now(), self._active
        active[account] = now
        active.move_to_end(account)
        while now - active[oldest := next(iter(active))] > ACTIVE_S:
            del active[oldest]

    def pause_s(self) -> float:
        """How long the next step must wait; up to PAUSE_S_MIN: not at all."""
        now = self._now()
        latest = list(islice(reversed(self._active.values()), 2))
        if len(latest) < 2 or now - latest[1] > ACTIVE_S:  # at most one account is active
            return 0.0
        computed_s = self._computed_s() - self._computed_at
        return min(computed_s / BUSY_MAX, PAUSE_S_MAX) - (now - self._stepped_at)

    async def acquire(self, turn: "SubmissionTurn") -> None:
        """Wait until no other stream has the turn, and this one is next."""
        if not self._taken:
            self._taken = True
            return
        turn.task = trio.lowlevel.current_task()
        self._waiting.join(turn.account, turn)

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            turn.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def begin_step(self) -> None:
        """A step is submitted now."""
        self._stepped_at = self._now()
        self._computed_at = self._computed_s()

    def release(self) -> None:
        """Pass the turn on."""
        while (turn := self._waiting.pop()) is not None:
            if turn.task is not None:  # else it was cancelled while it waited
                trio.lowlevel.reschedule(turn.task)
                turn.task = None
                return
        self._taken = False


class SubmissionTurn:
    """One stream's place in the turns. Leaving a block of it passes the turn on."""

    __slots__ = ("_held", "_turns", "account", "task")

    def __init__(self, turns: SubmissionTurns, account: str) -> None:
        self.account = account
        self.task: trio.lowlevel.Task | None = None  # while it waits
        self._turns = turns
        self._held = False

    async def begin(self) -> None:
        """Wait for the turn. Not always a checkpoint."""
        turns = self._turns
        await turns.acquire(self)
        self._held = True
        turns.note_active(self.account)
        while (pause_s := turns.pause_s()) > PAUSE_S_MIN:  # noqa: ASYNC110 - it waits for time, not for an event
            await trio.sleep(pause_s)
        turns.begin_step()

    def end(self) -> None:
        """Pass the turn on, if this stream has it."""
        if self._held:
            self._held = False
            self._turns.release()

    def __enter__(self) -> "SubmissionTurn":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
