"""Python's collector of cycles, held back in processes that are ours.

What is loaded at the start stays for good, so a start that is looked at while it
grows is slower by a tenth for nothing. And what an address or a request leaves behind
is hardly ever a cycle; but thousands of addresses under way are looked at again at
every collection: 30 % of the processor time of a long list.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

COLLECT_AFTER = 10_000  # new containers, where Python's own bound is 700


@contextmanager
def collector_paused() -> Iterator[None]:
    """Within, nothing is collected until spare_the_collector(); afterwards as before."""
    held = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if held:
            gc.enable()


def spare_the_collector() -> None:
    """What is there now stays for good: rules, lists, modules. And collect less often.

    The cycles among it are not looked for: a start leaves 0.6 MB of them, and to find
    those takes 50 ms in which nobody is served.
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    gc.enable()
