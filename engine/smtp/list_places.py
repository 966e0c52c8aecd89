"""The share of the places in layer 4 that a list may take: all that are free, but those that others need.

One place in KEPT is for requests alone, whose clocks run while they wait. An account's lists
may have FREE_TIMES as many places as are free beside them (dynamic thresholds, Choudhury and
Hahne, 1998): one account alone fills nineteen of twenty, and what it gives back when another
account comes it does not take again until both have the same. A place of a patient pass may
be taken for a minute: beyond half of the places it leaves OTHERS_TIMES as many as others use.
"""

from .probe import Probe

KEPT = 40  # 50 of 2,000: a batch of 50 begins at once
FREE_TIMES = 19
OTHERS_TIMES = 4  # so that they may grow at once


class ListPlaces:
    """The places of lists, of `places_max` in all, by account."""

    __slots__ = ("_half", "_held", "_most")

    def __init__(self, places_max: int) -> None:
        self._most = places_max - max(1, places_max // KEPT) if places_max > 1 else 1
        self._half = max(1, places_max // 2)
        self._held: dict[str, int] = {}  # by account

    def enter(self, account: str, count: int) -> None:
        """So many probes of the account's lists begin."""
        self._held[account] = self._held.get(account, 0) + count

    def leave(self, probe: Probe) -> None:
        """A list's probe has ended."""
        left = self._held[probe.asker] - 1
        if left:
            self._held[probe.asker] = left
        else:
            del self._held[probe.asker]

    def room(self, account: str, used: int) -> int:
        """How many more probes lists of the account may begin while `used` places are taken."""
        free = self._most - used
        if free <= 0:
            return 0
        # The most m for which held + m - 1 < FREE_TIMES * (free - m + 1).
        return -((self._held.get(account, 0) - FREE_TIMES * free) // (FREE_TIMES + 1))

    def is_full(self, used: int) -> bool:
        """Are only places for requests left?"""
        return used >= self._most

    def patient_room(self, patient: int, others: int) -> int:
        """How many more of a patient pass may begin beside so many, and so many others."""
        return max(self._half, self._most - OTHERS_TIMES * others) - patient
