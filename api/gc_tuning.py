"""Runs Python's cycle collector less often, in processes of this program.

What is loaded at the start stays, so collecting during the start makes it a tenth slower
and frees nothing. Addresses and requests hardly ever leave cycles behind; but every
collection traverses the thousands of addresses under way, which took 30 % of the processor
time of a long list.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

COLLECT_AFTER = 10_000  # new containers; Python's default is 700
# In a command, which lets no client wait: 5 MB, and some collections in a list of 10,000.
COMMAND_COLLECT_AFTER = 50_000


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause collection until tune_collector() or the end of the block."""
    held = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if held:
            gc.enable()


def tune_collector(collect_after: int = COLLECT_AFTER) -> None:
    """Exempt all present objects (rules, lists, modules) from collection; collect less often.

    Does not collect first: a start leaves 0.6 MB in cycles, and finding them would block
    all requests for 50 ms.
    """
    gc.freeze()
    gc.set_threshold(collect_after)
    gc.enable()
