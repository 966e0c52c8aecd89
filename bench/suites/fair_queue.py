"""Measures the fair queue: the cost of an item must not grow with the number of accounts.

"In turn": an account has several items; one is popped and another one joins. "In and out":
an account's only item is popped, so that its queue is removed and created again.
"""

from functools import partial

from mailprobe.engine.fair_queue import FairQueue

from ..harness.figures import Figure
from ..harness.rounds import RepeatedRuns, ratio, timed

ACCOUNTS = (1, 100, 10_000)
EACH = 3  # items of an account, but for the last figures
TURNS = 50_000  # a round


def run() -> list[Figure]:
    in_turn = {accounts: measure(accounts, EACH) for accounts in ACCOUNTS}
    in_and_out = {accounts: measure(accounts, 1) for accounts in ACCOUNTS}
    first, last = ACCOUNTS[0], ACCOUNTS[-1]
    return [
        *(
            each.figure(f"in turn: accounts {accounts:,}", TURNS)
            for accounts, each in in_turn.items()
        ),
        *(
            each.figure(f"in and out: accounts {accounts:,}", TURNS)
            for accounts, each in in_and_out.items()
        ),
        ratio("in turn: 10,000 accounts beside 1", in_turn[last], in_turn[first]),
        ratio("in and out: 10,000 accounts beside 1", in_and_out[last], in_and_out[first]),
    ]


def measure(accounts: int, each: int) -> RepeatedRuns:
    """Measure popping and joining, with `each` items for each of `accounts` accounts."""
    fair_queue: FairQueue[str] = FairQueue()
    for _ in range(each):
        for number in range(accounts):
            account = f"account {number}"
            fair_queue.join(account, account)
    return timed(partial(run_turns, fair_queue))


def run_turns(fair_queue: FairQueue[str]) -> None:
    pop, join = fair_queue.pop, fair_queue.join
    for _ in range(TURNS):
        account = pop()
        assert account is not None
        join(account, account)
