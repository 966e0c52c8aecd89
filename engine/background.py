"""Background work that outlives the request it was begun for: its faults end nothing but itself.

A nursery that lives as long as the service ends with the first exception that leaves
one of its tasks, and the process with it. So whatever is done there for one request,
job, account or mail host runs through `contained`: a bug is logged with its traceback,
and only the work that has it is lost.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVarTuple, Unpack

log = logging.getLogger("mailprobe.background")

Arguments = TypeVarTuple("Arguments")


async def contained(
    run: Callable[[Unpack[Arguments]], Awaitable[object]], *arguments: *Arguments
) -> bool:
    """Run it to its end; False where it failed, which is logged. Raises nothing but Cancelled."""
    try:
        await run(*arguments)
    except Exception:
        log_fault(run)
        return False
    return True


def log_fault(run: object) -> None:
    """Log the exception that is being handled: a bug of ours, in background work."""
    name = getattr(run, "__qualname__", type(run).__qualname__)
    log.exception("background work failed: work=%s", name)
