"""Threads that execute the calls of trio tasks, and the queue in front of them.

The same for every database: a task submits a call and waits; a thread takes the pending
calls, executes them together, and answers all of them in one step, which is cheaper than
trio's own calls from thread to task. A call that no thread has taken can be abandoned: it
has changed nothing. No lock protects a call's other attributes. The comments say which
thread owns which.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import trio

from ..contract import OutcomeUnknown, StoreUnavailable

log = logging.getLogger("mailprobe.store")

Q = TypeVar("Q")

ANSWER_S = 0.8  # then StoreUnavailable: one second is promised, and a request makes several calls
CLOSING_S = 5.0  # how long close() waits for a stalled disk or server
WAITING_MAX = 20_000  # calls: more than any database answers in ANSWER_S
RESUMED_MAX = 16  # per turn of the event loop: what they do next takes some milliseconds


class PendingCall(Generic[Q]):
    """One call, from its submission to its answer."""

    __slots__ = (
        "abandoned", "answered", "delivered", "error", "isolated", "task", "until", "value",
        "waiting", "what",
    )  # fmt: skip

    def __init__(self, what: Q, task: trio.lowlevel.Task, patience_s: float) -> None:
        self.what = what
        self.task = task
        self.until = time.monotonic() + patience_s
        self.abandoned = False  # under the queue's lock: the caller has given up
        self.delivered = False  # under the queue's lock: a thread has dequeued it
        self.isolated = False  # this and the next two belong to the thread that has dequeued it
        self.value: Any = None
        self.error: Exception | None = None
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


class CallQueue(ABC, Generic[Q]):
    """Threads of one kind of work, and their pending calls."""

    begun_s = 0.0  # how much longer a call that has begun is awaited, so that its outcome is known

    def __init__(self, database: str, *, threads: int = 1, answer_s: float | None = None) -> None:
        """Start the threads; `database` is its name in messages. A call has `answer_s`, or ANSWER_S."""
        self._database = database
        self._answer_s = answer_s
        self._queue: deque[PendingCall[Q]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._trio = trio.lowlevel.current_trio_token()
        self._running = threads
        self._ended = trio.Event()
        self._threads = [
            threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
            for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    async def call(self, what: Q, *, patience_s: float | None = None) -> Any:
        """Execute a call and return its value; raises its error, or StoreUnavailable after `patience_s`.

        A call that has begun by then is awaited for `begun_s` longer. A cancelled caller gets
        its answer first: the wait is short, and the caller must know what was committed.
        """
        patience_s = patience_s or self._answer_s or ANSWER_S
        await trio.lowlevel.checkpoint_if_cancelled()
        pending = PendingCall(what, trio.lowlevel.current_task(), patience_s)
        self._enqueue(pending)
        await pending.wait(patience_s)
        if not pending.answered and not self._abandon(pending):
            await pending.wait(self.begun_s)
        if not pending.answered:
            is_abandoned = self._abandon(pending)  # it may have been requeued
            kind = StoreUnavailable if is_abandoned else OutcomeUnknown
            raise kind(f"{self._database} did not answer within {patience_s:g} s")
        if pending.error:
            raise pending.error
        return pending.value

    async def close(self) -> None:
        """Answer the pending calls and end the threads, within CLOSING_S."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSING_S):
            await self._ended.wait()
            for thread in self._threads:
                thread.join()

    def _enqueue(self, pending: PendingCall[Q]) -> None:
        with self._changed:
            if self._closing:
                raise StoreUnavailable("the store has been closed")
            if len(self._queue) >= WAITING_MAX:
                raise StoreUnavailable("too many wait for the store")
            self._queue.append(pending)
            self._changed.notify()

    def _abandon(self, pending: PendingCall[Q]) -> bool:
        """Abandon a call; False if it has begun."""
        with self._changed:
            pending.abandoned = not pending.delivered
            return pending.abandoned

    # below: executed in the threads

    def _run(self) -> None:
        self._serve_calls()
        with self._changed:
            self._running -= 1
            is_last = not self._running
        if is_last:
            with suppress(trio.RunFinishedError):
                self._trio.run_sync_soon(self._ended.set)

    @abstractmethod
    def _serve_calls(self) -> None:
        """Execute calls as long as `_await_work` returns True. Raises nothing."""

    def _await_work(self) -> bool:
        """Wait for a call; False once the queue is closed and empty."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return bool(self._queue)

    def _has_waiting_call(self) -> bool:
        with self._changed:
            while self._queue and self._queue[0].abandoned:
                self._queue.popleft()
            return bool(self._queue)

    def _dequeue(self, most: int) -> list[PendingCall[Q]]:
        """Take the pending calls, at most so many; empty if all were abandoned or taken."""
        taken: list[PendingCall[Q]] = []
        with self._changed:
            while self._queue and len(taken) < most:
                pending = self._queue.popleft()
                if not pending.abandoned:
                    pending.delivered = True
                    taken.append(pending)
        return taken

    def _requeue(self, calls: Sequence[PendingCall[Q]]) -> None:
        """Put calls of which nothing has happened back at the head of the queue."""
        with self._changed:
            for pending in calls:
                pending.delivered = False
                pending.value = pending.error = None
            self._queue.extendleft(reversed(calls))

    def _answer(self, calls: Sequence[PendingCall[Q]]) -> None:
        with suppress(trio.RunFinishedError):
            self._trio.run_sync_soon(_answer_all, calls)


def _answer_all(calls: Sequence[PendingCall[Any]]) -> None:
    for each in calls:
        each.answered = True
    _resume(calls)


def _resume(calls: Sequence[PendingCall[Any]]) -> None:
    """Resume RESUMED_MAX tasks per turn, so that the loop can serve others in between."""
    for each in calls[:RESUMED_MAX]:
        if each.waiting:
            each.waiting = False
            trio.lowlevel.reschedule(each.task)
    if len(calls) > RESUMED_MAX:
        trio.lowlevel.current_trio_token().run_sync_soon(_resume, calls[RESUMED_MAX:])
