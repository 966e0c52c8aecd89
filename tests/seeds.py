"""How many random worlds, kills or requests a test tries: a third in `make test`, all in `make test SEEDS=all`."""

import os

ALL = os.environ.get("MAILPROBE_TEST_SEEDS") == "all"


def seeds(count: int) -> int:
    """So many of `count` seeds."""
    return count if ALL else -(-count // 3)
