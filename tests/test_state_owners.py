"""State has one owner: what other modules write, or work on from outside, may only become less.

A class whose methods move into functions of other modules is as long as before, and its state
has no owner. `python tests/state_owners.py` prints every entry.
"""

import ast
from collections import Counter

import pytest

from tests.state_owners import by_folder, foreign_first, foreign_writes, read, texts

# How many entries each folder has. Lower a number when entries go; never raise one of the product.
# Each case of a bench has its own world as its first argument.
WRITES = Counter({
    "api.cli": 15, "api.http": 13, "api.live": 12, "api.operations": 5, "api.pages": 2, "api.rest": 18,
    "api.sandbox": 3, "bench.lab": 7, "bench.load": 3, "bench.market": 13, "bench.suites": 3, "engine.dns": 5,
    "engine.net": 1, "engine.stream": 10, "bench.world": 12,
    "storage.migrate": 1, "storage.postgres": 4, "storage.sqlite": 4,
})  # fmt: skip
FIRST = Counter({
    "api.cli": 20, "api.http": 1, "api.listfile": 4, "api.observability": 1, "api.operations": 2,
    "api.sandbox": 1, "bench.lab": 41, "bench.peers": 5, "bench.suites": 23, "engine.dns":
    2, "engine.smtp": 27, "engine.stream": 2, "storage.migrate": 1,
})  # fmt: skip


@pytest.mark.parametrize(
    ("find", "known"), [(foreign_writes, WRITES), (foreign_first, FIRST)], ids=["writes", "first"]
)
def test_no_more_state_is_handled_outside_of_its_module(find, known):
    found = find(texts())
    grown = by_folder(found) - known
    assert not grown, "\n".join(sorted(each for each in found if each.startswith(tuple(grown))))


OWNER = """
class Pool:
    def __init__(self) -> None:
        self.free = 0
    def grow(self) -> None:
        self.free += 1

@dataclass(frozen=True)
class Plan:
    size: int
"""
USER = """
from owner import Plan, Pool

class Own:
    free = 0

def resize(pool: "Pool | None", plan: Plan) -> None:
    pool.free, own.free = plan.size, 0
    pool.free.names["a"] = 1
    Own().free = 2

def measure(plan: Plan) -> int:
    return plan.size
"""


def test_the_lists_name_writes_and_functions_of_other_modules():
    both = {"owner": read("owner", ast.parse(OWNER)), "user": read("user", ast.parse(USER))}
    assert foreign_writes(both) == {"user resize: pool.free"}
    assert foreign_first(both) == {"user resize(Pool)"}
