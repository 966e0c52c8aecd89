"""Futures: a trio task waits for the result of a thread.

Cheaper than trio's own calls from thread to task: the callers of one batch are
resumed in one step. No lock protects a future. The comments say which thread owns
which attribute.
"""

from collections.abc import Sequence

import trio

RESUMED_MAX = 16  # per turn of the event loop: what they do next takes some milliseconds


class ThreadFuture:
    """One call, from its submission to its answer."""

    __slots__ = ("abandoned", "answered", "delivered", "task", "waiting")

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.task = task
        self.abandoned = False  # under the queue's lock: the caller has given up
        self.delivered = False  # under the queue's lock: the thread has dequeued it
        self.waiting = False  # this and the next belong to trio's thread
        self.answered = False

    async def wait(self, seconds: float) -> None:
        """Wait until it is answered, at most `seconds`. A cancelled caller gets the answer first."""

        def stop(_: object) -> trio.lowlevel.Abort:
            self.waiting = False
            return trio.lowlevel.Abort.SUCCEEDED

        self.waiting = True
        with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds):
            await trio.lowlevel.wait_task_rescheduled(stop)


def resume(futures: Sequence[ThreadFuture]) -> None:
    """Mark the futures as answered and resume their tasks. Call it in trio's thread.

    Only RESUMED_MAX tasks are resumed per turn, so that the loop can serve others in between.
    """
    for each in futures:
        each.answered = True
    _resume(futures)


def _resume(futures: Sequence[ThreadFuture]) -> None:
    for each in futures[:RESUMED_MAX]:
        if each.waiting:
            each.waiting = False
            trio.lowlevel.reschedule(each.task)
    if len(futures) > RESUMED_MAX:
        trio.lowlevel.current_trio_token().run_sync_soon(_resume, futures[RESUMED_MAX:])
