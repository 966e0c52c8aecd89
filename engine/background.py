"""Background work that outlives its request: a bug in it ends that work and nothing else.

The first exception that leaves a task of a long-lived nursery ends the nursery, and the
process with it. So each task of such a nursery is started in one of two ways
(`tests/engine/test_background.py` finds those that are not):

    contained     work for one request, job, account, connection or mail host: a bug is
                  logged with its traceback, and only that work is lost
    supervised    a loop that serves all of them: a bug is logged, and the loop starts again

Cancelled, KeyboardInterrupt and SystemExit are not bugs; they propagate.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVarTuple, Unpack

import trio

log = logging.getLogger("mailprobe.background")

FATAL = (trio.Cancelled, KeyboardInterrupt, SystemExit)  # they end more than their task
PAUSE_S = 0.1  # before a failed loop starts again; short because requests wait for it
PAUSE_S_MAX = 10.0  # doubled up to this: a loop that always fails must not fill the log

Arguments = TypeVarTuple("Arguments")


class Faults:
    """Bugs in background work that were logged; one for a process."""

    def __init__(self) -> None:
        self.logged = 0

    def add(self) -> None:
        self.logged += 1


FAULTS = Faults()


async def contained(
    run: Callable[[Unpack[Arguments]], Awaitable[object]], *arguments: *Arguments
) -> bool:
    """Await `run(*arguments)`; return False if it raised a bug, which is logged, not raised."""
    return await contained_until(_nothing, run, *arguments)


def _nothing() -> None:
    pass


async def contained_until(
    ended: Callable[[], object],
    run: Callable[[Unpack[Arguments]], Awaitable[object]],
    *arguments: *Arguments,
) -> bool:
    """As contained(); `ended` is called once `run` has ended or failed."""
    try:
        await run(*arguments)
    except BaseException as error:
        fatal, fault = separate(error)
        if fault is not None:
            log_fault(run, fault)
        if fatal is not None:
            raise fatal from None
        return False
    finally:
        ended()
    return True


async def supervised(
    run: Callable[[Unpack[Arguments]], Awaitable[object]], *arguments: *Arguments
) -> None:
    """Run a loop until it returns. Log each failure, and start the loop again after a pause."""
    pause_s = PAUSE_S
    while True:
        began_at = trio.current_time()
        if await contained(run, *arguments):
            return
        if trio.current_time() - began_at > PAUSE_S_MAX:
            pause_s = PAUSE_S
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


@asynccontextmanager
async def running_loops(*loops: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Run these loops, supervised, for the duration of the block."""
    async with trio.open_nursery() as nursery:
        for run in loops:
            nursery.start_soon(supervised, run)
        yield
        nursery.cancel_scope.cancel()


def separate(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Split an exception into what must propagate and what is a bug; a group may hold both.

    A GeneratorExit in a group counts as a bug: async generators around nurseries leave
    one behind, and it would end the process.
    """
    if isinstance(error, BaseExceptionGroup):
        return error.split(FATAL)
    return (error, None) if isinstance(error, FATAL) else (None, error)


def log_fault(run: object, error: BaseException | None = None) -> None:
    """Log a bug in background work: this exception, or else the one being handled."""
    function = getattr(run, "func", run)  # a partial has no name of its own
    name = getattr(function, "__qualname__", type(function).__qualname__)
    FAULTS.add()
    log.error("background work failed: work=%s", name, exc_info=error or True)


def sole_exception(error: BaseException) -> BaseException:
    """The one exception in a group, so that callers can catch it by its class; else `error`."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class ContainedTasks:
    """Begins contained tasks, and knows when all have ended."""

    __slots__ = ("_all_done", "_nursery", "count")

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.count = 0
        self._all_done = trio.Event()

    def start(
        self, task: Callable[[Unpack[Arguments]], Awaitable[None]], *args: *Arguments
    ) -> None:
        self.count += 1
        self._nursery.start_soon(contained_until, self._ended, task, *args)

    def _ended(self) -> None:
        self.count -= 1
        if not self.count:
            self._all_done.set()

    async def wait(self) -> None:
        """Wait until every task has ended."""
        while self.count:
            self._all_done = trio.Event()
            await self._all_done.wait()
