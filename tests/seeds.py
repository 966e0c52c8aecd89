"""How many random worlds, kills or requests a test tries: a fifth in `make test`, all in `make test SEEDS=all`."""

import os

ALL = os.environ.get("MAILPROBE_TEST_SEEDS") == "all"


def seeds(count: int) -> int:
    """So many of `count` seeds."""
    return count if ALL else -(-count // 5)


def stride(step: int) -> int:
    """The distance between the moments that a test tries, if it is `step` when all are tried."""
    return step if ALL else 3 * step + 1
