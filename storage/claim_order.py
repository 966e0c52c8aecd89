"""The order in which jobs are claimed: accounts take turns, and within one the longest due.

The same decision for every store. The account with the fewest active claims comes
first, so that an account with ten thousand due callbacks delays another by a single
claim. No account and none of its partitions exceeds its limit.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

FAILING_AFTER = 10  # consecutive failed attempts of a receiver; from then on one at a time


class Partition(NamedTuple):
    """What a limit applies to: an account's jobs to verify (`host` is empty), or one of its receivers."""

    account: Hashable
    host: str


class Head(NamedTuple):
    """A waiting job. Instants and numbers are the store's own, and are comparable."""

    due_at: Any
    number: Any
    partition: Partition


class ClaimBounds(NamedTuple):
    """The limits of one claim."""

    limit: int  # jobs claimed in all
    partition_max: Callable[[Partition], int]  # its active claims
    account_max: int | None  # active claims of one account


def claim_in_turn(
    first_due: Mapping[Any, Any],
    heads_of: Callable[[Any], Iterator[Head]],
    held: Mapping[Partition, int],
    bounds: ClaimBounds,
) -> list[Head]:
    """Return the jobs to claim, in order.

    `first_due` maps each account with waiting jobs to the instant its first one was due.
    `heads_of` yields an account's jobs, those due longest first; it is called only for
    accounts that get a turn. `held` are the active claims.
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
