"""How many random worlds, kills, requests or moments a test tries: all in `make test SEEDS=all`, a tenth to a twentieth in `make test`."""

import os
from collections.abc import Collection
from typing import Any

ALL = os.environ.get("MAILPROBE_TEST_SEEDS") == "all"


def seeds(count: int) -> int:
    """So many of `count` seeds: two at least, so that no test depends on one."""
    return count if ALL else max(2, count // 20)


def stride(step: int) -> int:
    """The distance between the moments that a test tries, if it is `step` when all are tried."""
    return step if ALL else 10 * step + 1


def pairs(firsts: Collection[Any], seconds: Collection[Any]) -> list[tuple[Any, Any]]:
    """All pairs, or a third of them, in which each first and each second has some."""
    return [
        (first, second)
        for row, first in enumerate(firsts)
        for column, second in enumerate(seconds)
        if ALL or (row + column) % 3 == 0
    ]
