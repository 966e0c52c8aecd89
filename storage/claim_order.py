"""Whose job is claimed next: accounts in turn, and of each account those due longest.

The decision that every store makes alike. The account with the fewest claims in force
comes first, so that one with ten thousand due callbacks delays another's by a single
claim; no account and no lane of one has more than its bound.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

FAILING_AFTER = 10  # tries of a receiver that failed one after another: then one at a time


class Partition(NamedTuple):
    """What a bound holds for: an account's jobs to verify (`host` is empty), or its receiver."""

    account: Hashable
    host: str


class Head(NamedTuple):
    """A job that waits. Instants and numbers are the store's own, and can be compared."""

    due_at: Any
    number: Any
    partition: Partition


class ClaimBounds(NamedTuple):
    limit: int  # taken in all
    partition_max: Callable[[Partition], int]  # claims of it in force
    account_max: int | None  # claims of an account in force


def claim_in_turn(
    first_due: Mapping[Any, Any],
    heads_of: Callable[[Any], Iterator[Head]],
    held: Mapping[Partition, int],
    bounds: ClaimBounds,
) -> list[Head]:
    """The jobs to be claimed, in turn.

    `first_due` are the accounts in which something waits, with the instant since when;
    `heads_of` gives an account's jobs, those due longest first, and is asked only for
    accounts that get a turn. `held` are the claims in force.
    """
    in_force = Counter(held)
    of_account: Counter[Any] = Counter()
    for partition, count in held.items():
        of_account[partition.account] += count
    turns = [(of_account[account], due_at, account) for account, due_at in first_due.items()]
    heapify(turns)
    waiting: dict[Any, Iterator[Head]] = {}
    taken: list[Head] = []
    while turns and len(taken) < bounds.limit:
        count, _, account = heappop(turns)
        if bounds.account_max is not None and count >= bounds.account_max:
            continue
        heads = waiting.setdefault(account, heads_of(account))
        head = _first_with_room(heads, in_force, bounds)
        if head is None:
            continue
        in_force[head.partition] += 1
        taken.append(head)
        heappush(turns, (count + 1, head.due_at, account))
    return taken


def _first_with_room(
    heads: Iterator[Head], in_force: Counter[Partition], bounds: ClaimBounds
) -> Head | None:
    return next(
        (head for head in heads if in_force[head.partition] < bounds.partition_max(head.partition)),
        None,
    )
