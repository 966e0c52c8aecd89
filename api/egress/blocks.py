"""Blocks of an egress' day that a process sets aside. Pure.

Processes share a day's limit by blocks that they reserve in the store: so no call of the engine
waits for it, and all of them together never ask more. A killed process loses its block, so what
is held in advance is small: one that is killed at each start must not use up the day. Addresses
wait for the next block, so a sudden need costs them one exchange with the store.
"""

HELD_SHARE = 50  # each process holds at most this part of what is left of the day without need:
# ten starts in a row that are killed cost a fifth of it
IDLE_MAX = 200  # some batches of requests
BLOCK_MAX = 10_000  # some seconds' worth of the fastest process


def wanted(left: int, used: int, free: int) -> int:
    """How many more to reserve; below 0, how many to give back.

    `left` of the block is unused, `used` were needed since the last time (granted or not), and
    `free` of the day is in no block. What is held without need shrinks with what is free, so
    the last addresses of a day go to those who ask.
    """
    idle = min(IDLE_MAX, max(1, free // HELD_SHARE))
    target = max(idle, min(2 * used, BLOCK_MAX))
    return target - left if not target <= 2 * left <= 4 * target else 0


def is_low(left: int, used: int) -> bool:
    """Should a process look for more before the next round?"""
    return left < used
