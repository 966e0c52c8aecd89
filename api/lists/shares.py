"""Shares of a worker's chunks: a floor for every account, and the free ones for those with work.

Every account may have CHUNKS_EACH_MIN. What is free beyond that goes to accounts that have work: the chunks
of an account that are under way may double with each claim, as long as none of them waits, be it
for units of its key's minute or for capacity. So a list that a limit paces takes no place from
one that could use it. A part of the places is kept for accounts below their floor. Pure.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from math import ceil
from statistics import fmean

from msgspec import Struct

from mailprobe.storage.list_records import ListShare

from ..reader.chunks import CHUNK_UNITS

CHUNKS_EACH_MIN = 4  # 400 addresses: a claim and a commit are spent on many of them
KEPT_SHARE = 4  # one of so many places is for accounts below their floor
CLAIMED_MAX = 50  # at once: a claim reads and locks some milliseconds


class ClaimRoom(Struct, frozen=True):
    """What the next claim may take: chunks in all, and of each account; others have `each_max`."""

    limit: int
    shares: Mapping[str, ListShare]
    each_max: int = CHUNKS_EACH_MIN


def claim_room(
    held: Mapping[str, int], waiting: Set[str], places: int, claimed_max: int = CLAIMED_MAX
) -> ClaimRoom:
    """Return the room of a worker with so many `places`, by the chunks that accounts hold.

    `waiting` are the accounts with a chunk that waits.
    """
    free = places - sum(held.values())
    spare = free - places // KEPT_SHARE
    grows = spare > 0
    shares = {
        account: ListShare(
            count,
            max(CHUNKS_EACH_MIN, 2 * count if grows and account not in waiting else 0),
        )
        for account, count in held.items()
    }
    most = min(claimed_max, free, max(spare, 0) if grows else free)
    return ClaimRoom(max(0, most), shares)


def last_in_turn(held: Mapping[str, int], claimed: Sequence[str], *, after: str) -> str:
    """Return the account whose turn was last, by the accounts of the chunks that were claimed."""
    turns = Counter(claimed)
    return max(
        turns,
        key=lambda account: (held.get(account, 0) + turns[account], account <= after, account),
        default=after,
    )


class ClaimSize(Struct):
    """How many chunks a claim may take: half as many after each failure, so that it succeeds.

    And no more than there is capacity for: `units` are a chunk's, as the last claims had them.
    """

    most: int = CLAIMED_MAX
    units: float = CHUNK_UNITS

    def fitting(self, free_units: int) -> int:
        """Return how many chunks to claim where so many units can be worked on."""
        return min(self.most, ceil(free_units / self.units))

    def failed(self) -> None:
        self.most = max(1, self.most // 2)

    def succeeded(self, units: Sequence[int]) -> None:
        """Note the units of each chunk that was claimed; one that finishes its list has none."""
        self.most = min(CLAIMED_MAX, 2 * self.most)
        if working := [each for each in units if each]:
            self.units = (self.units + fmean(working)) / 2


class WaitingAccounts:
    """The accounts whose chunks wait, each as often as it has such chunks."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()

    @contextmanager
    def waits(self, account: str) -> Iterator[None]:
        """A chunk of the account waits, as long as the block lasts."""
        self._count[account] += 1
        try:
            yield
        finally:
            self._count[account] -= 1
            if not self._count[account]:
                del self._count[account]

    def accounts(self) -> Set[str]:
        return self._count.keys()
