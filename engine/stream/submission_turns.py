"""Lets the streams of a process submit in turn, so that no turn of the event loop is long.

Submitting a step of addresses takes a millisecond or more. Sixty batches of one account that
arrive together would all submit in one turn of the event loop, and every other request would
wait for them at each of its replies. So one stream submits at a time, one step, and lets the
loop go round before the next one does; the accounts take turns (Postfix's SCHEDULER_README
calls it round-robin by destination; here it is by client).
"""

import trio

from mailprobe.engine.fair_queue import FairQueue


class SubmissionTurns:
    """The turns of all streams of an engine."""

    def __init__(self) -> None:
        self._waiting: FairQueue[SubmissionTurn] = FairQueue()
        self._taken = False

    def of(self, account: str) -> "SubmissionTurn":
        """Return what one stream of `account` submits with."""
        return SubmissionTurn(self, account)

    async def _acquire(self, turn: "SubmissionTurn") -> None:
        if not self._taken:
            self._taken = True
            return
        turn.task = trio.lowlevel.current_task()
        self._waiting.join(turn.account, turn)

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            turn.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _release(self) -> None:
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
        """Wait for the turn, if another stream has it. Not always a checkpoint."""
        await self._turns._acquire(self)
        self._held = True

    def end(self) -> None:
        """Pass the turn on, if this stream has it."""
        if self._held:
            self._held = False
            self._turns._release()

    def __enter__(self) -> "SubmissionTurn":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
