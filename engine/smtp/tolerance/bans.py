"""The bans of one mail host, and how long it rests after them. Pure."""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from math import inf

from msgspec import Struct, field

from .limits import DAY_S, HOUR_S

RESTS_S = (600.0, HOUR_S, 6 * HOUR_S, DAY_S)  # after the first ban of a day, the second, ...
SAME_BAN_S = 590.0  # two bans in a shorter time are one: the shortest rest lasts longer


class Bans(Struct, eq=False):
    """The bans of the last day: each one causes a longer rest than the one before."""

    _times: deque[float] = field(default_factory=partial(deque, maxlen=len(RESTS_S)))
    rest_until: float = -inf

    def add(self, now: float) -> None:
        while self._times and self._times[0] <= now - DAY_S:
            self._times.popleft()
        self._times.append(now)
        self.rest_until = now + _rest_s(len(self._times))

    def ages_s(self, now: float) -> tuple[float, ...]:
        return tuple(round(now - at, 1) for at in self._times if now - at < DAY_S)

    def learn(self, ages_s: Iterable[float], now: float) -> None:
        """Another process, or an earlier run, has noted bans of these ages."""
        others = (now - age for age in ages_s)
        new = [at for at in others if all(abs(at - own) >= SAME_BAN_S for own in self._times)]
        if not new:
            return
        bans = sorted((*self._times, *new))
        self._times = deque(bans, maxlen=len(RESTS_S))
        self.rest_until = max(self.rest_until, bans[-1] + _rest_s(len(bans)))


def _rest_s(bans: int) -> float:
    return RESTS_S[min(bans, len(RESTS_S)) - 1]


def rest_left_s(ban_ages_s: Sequence[float]) -> float:
    """How much longer a host rests after these bans of a day."""
    if not ban_ages_s:
        return 0.0
    return max(0.0, _rest_s(len(ban_ages_s)) - min(ban_ages_s))
