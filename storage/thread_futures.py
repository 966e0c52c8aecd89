"""A task of trio's that waits for what a thread does, and how it is woken.

Cheaper than trio's own ways from thread to task: a group's callers are woken in one
step. Which of the attributes belongs to whom is all that keeps the two apart.
"""

from collections.abc import Sequence

import trio

RESUMED_MAX = 16  # in one turn of the loop: what they do next is some milliseconds of it


class ThreadFuture:
    """One caller, from its asking to its answer."""

    __slots__ = ("abandoned", "answered", "delivered", "task", "waiting")

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.task = task
        self.abandoned = False  # both under the desk's lock: nobody waits for it any more,
        self.delivered = False  # or it is being done
        self.waiting = False  # these two are trio's thread's
        self.answered = False

    async def wait(self, seconds: float) -> None:
        """Until it is answered, at most so long; whoever is cancelled gets the answer first."""

        def stop(_: object) -> trio.lowlevel.Abort:
            self.waiting = False
            return trio.lowlevel.Abort.SUCCEEDED

        self.waiting = True
        with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds):
            await trio.lowlevel.wait_task_rescheduled(stop)


def resume(those: Sequence[ThreadFuture]) -> None:
    """They are answered. In trio's thread.

    Of many only some go on at once, so that in between the loop looks at who else has come.
    """
    for each in those:
        each.answered = True
    _resume(those)


def _resume(those: Sequence[ThreadFuture]) -> None:
    for each in those[:RESUMED_MAX]:
        if each.waiting:
            each.waiting = False
            trio.lowlevel.reschedule(each.task)
    if len(those) > RESUMED_MAX:
        trio.lowlevel.current_trio_token().run_sync_soon(_resume, those[RESUMED_MAX:])
