"""Background work that outlives the request it was begun for: its faults end nothing but itself.

A nursery that lives as long as the service ends with the first exception that leaves
one of its tasks, and the process with it. So each task of such a nursery is started in
one of two ways (`tests/engine/test_background.py` finds those that are not):

    contained     work for one request, job, account, connection or mail host: a bug is
                  logged with its traceback, and only the work that has it is lost
    supervised    a loop that serves all of them: a bug is logged, and the loop begins anew

Cancelled, KeyboardInterrupt and SystemExit are no faults; they travel on.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVarTuple, Unpack

import trio

log = logging.getLogger("mailprobe.background")

FATAL = (trio.Cancelled, KeyboardInterrupt, SystemExit)  # they end more than their task
PAUSE_S = 0.1  # before a loop that failed begins anew; short, for requests wait for it
PAUSE_S_MAX = 10.0  # it is doubled up to this: a loop that always fails must not fill the log

Arguments = TypeVarTuple("Arguments")


async def contained(
    run: Callable[[Unpack[Arguments]], Awaitable[object]], *arguments: *Arguments
) -> bool:
    """Run it to its end; False where it failed, which is logged. Raises nothing that is a fault."""
    try:
        await run(*arguments)
    except BaseException as error:
        fatal, fault = separate(error)
        if fault is not None:
            log_fault(run, fault)
        if fatal is not None:
            raise fatal from None
        return False
    return True


async def supervised(
    run: Callable[[Unpack[Arguments]], Awaitable[object]], *arguments: *Arguments
) -> None:
    """Run a loop until it returns. Where it fails, that is logged, and it begins anew soon."""
    pause_s = PAUSE_S
    while True:
        began_at = trio.current_time()
        if await contained(run, *arguments):
            return
        if trio.current_time() - began_at > PAUSE_S_MAX:
            pause_s = PAUSE_S
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def separate(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """What of this must travel on, and what is a fault of ours; a group may hold both.

    A GeneratorExit in a group is a fault: async generators around nurseries leave one
    behind, and it would end the process.
    """
    if isinstance(error, BaseExceptionGroup):
        return error.split(FATAL)
    return (error, None) if isinstance(error, FATAL) else (None, error)


def log_fault(run: object, error: BaseException | None = None) -> None:
    """Log this exception, or else the one being handled: a bug of ours, in background work."""
    name = getattr(run, "__qualname__", type(run).__qualname__)
    log.error("background work failed: work=%s", name, exc_info=error or True)
