"""Python's collector of cycles, held back in processes that are ours.

What is loaded at the start stays for good, and what an address or a request leaves
behind is hardly ever a cycle; but thousands of addresses under way are looked at
again at every collection: 30 % of the processor time of a long list.
"""

import gc

COLLECT_AFTER = 10_000  # new containers, where Python's own bound is 700


def spare_the_collector() -> None:
    """What is loaded now stays for good: rules, lists, modules. And collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
