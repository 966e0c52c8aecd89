"""The order in which jobs are claimed: accounts take turns, and within one the longest due.

A receiver with a call that has taken longer than HANGS_AFTER hangs. Its jobs come after the
account's others, two at a time, and its calls do not count towards the account's limit, so
that an account's healthy receivers do not wait for those that hang.

The same decision for every store. The account with the fewest active claims comes
first, so that an account with ten thousand due callbacks delays another by a single
claim. No account and none of its partitions exceeds its limit.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import timedelta
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, TypeVar

A = TypeVar("A", bound=Hashable)  # an account, as a store identifies it

FAILING_AFTER = 10  # consecutive failed attempts of a receiver; from then on one at a time

HANGS_AFTER = timedelta(seconds=2)  # far longer than a receiver needs that puts its work off
HANGING_EACH_MAX = 2  # calls at a time of a receiver that hangs


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
    # Active claims of one account. As many more may be of receivers that do not hang, while
    # calls of others do.
    account_max: int | None


def claim_in_turn(
    first_due: Mapping[A, object],
    heads_of: Callable[[A], Iterator[Head]],
    held: Mapping[Partition, int],
    hanging: Mapping[Partition, int],
    bounds: ClaimBounds,
) -> list[Head]:
    """Return the jobs to claim, in order.

    `first_due` maps each account with waiting jobs to the instant its first one was due.
    `heads_of` yields an account's jobs, those due longest first; it is called only for
    accounts that get a turn. `held` are the active claims, `hanging` those of them that hang.
    """
    rooms = _Rooms(Counter(held), hanging, bounds.partition_max)
    of_account, hang = _by_account(held), _by_account(hanging)
    turns = [(of_account[account], due_at, account) for account, due_at in first_due.items()]
    heapify(turns)
    waiting: dict[A, Iterator[Head]] = {}
    most = bounds.account_max
    taken: list[Head] = []
    while turns and len(taken) < bounds.limit:
        count, _, account = heappop(turns)
        if most is not None and (count - hang[account] >= most or count >= 2 * most):
            continue
        if account not in waiting:
            waiting[account] = rooms.in_order(heads_of(account))
        head = next((head for head in waiting[account] if rooms.free(head.partition)), None)
        if head is None:
            continue
        if most is not None and count >= most and head.partition in hanging:
            continue  # the room beyond `most` is for receivers that may answer
        rooms.in_force[head.partition] += 1
        taken.append(head)
        heappush(turns, (count + 1, head.due_at, account))
    return taken


def _by_account(counts: Mapping[Partition, int]) -> Counter[Hashable]:
    """The sum of each account's counts."""
    found: Counter[Hashable] = Counter()
    for partition, count in counts.items():
        found[partition.account] += count
    return found


class _Rooms(NamedTuple):
    """How many more claims each partition may have."""

    in_force: Counter[Partition]
    hanging: Mapping[Partition, int]
    partition_max: Callable[[Partition], int]

    def free(self, partition: Partition) -> bool:
        """Whether one more job of it may be claimed."""
        most = self.partition_max(partition)
        if partition in self.hanging:
            most = min(most, HANGING_EACH_MAX)
        return self.in_force[partition] < most

    def in_order(self, heads: Iterator[Head]) -> Iterator[Head]:
        """Those of receivers that hang come last; those without room are left out."""
        late: list[Head] = []
        for head in heads:
            if not self.free(head.partition):
                continue
            if head.partition in self.hanging:
                late.append(head)
            else:
                yield head
        yield from late
