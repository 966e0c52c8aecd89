"""A mail host that bans by the share that it refuses of what it is asked within an hour. Pure."""

from collections import deque
from functools import partial
from math import ceil

from msgspec import Struct, field

from .limits import HOUR_S

ANSWER_S = 10.0  # an answer comes so long after its recipient, at most
SHARE_FROM = 5  # recipients sent before a share of them is judged: no guard bans at fewer
COUNTED_MAX = 20_000  # recipients


class HourlyShare(Struct, eq=False):
    """The recipients answered within the hour, by a host that bans by the share that it refuses."""

    _answered: deque[float] = field(default_factory=partial(deque, maxlen=COUNTED_MAX))

    def answered(self, now: float) -> None:
        self._answered.append(now)

    def left(self, share: float, refused: int, under_way: int, now: float) -> int:
        """The most recipients of which all may be refused, with the share still below its limit."""
        # The host has counted them sooner than their answers came.
        while self._answered and self._answered[0] <= now - HOUR_S + ANSWER_S:
            self._answered.popleft()
        sent, refused = len(self._answered) + under_way, refused + under_way
        below = -int(-(share * sent - refused) // (1 - share)) - 1
        # The first share is judged with all recipients before it.
        first = min(SHARE_FROM - sent, ceil(share * (SHARE_FROM + 1)) - 1 - refused)
        return max(0, below, first)
