"""Who is sent away unheard while too many wait: before his key is looked at, within a moment.

An anteroom holds the requests from their last octet to their grant, which a store gives.
While it lets them in quickly, a burst of BURST may wait there. Where nobody has been
let in quickly for a while, as many may wait as the store grants in a moment, and never
fewer than CROWD; the next one is told 503. Whoever is let in is served.

Measured is what requests have waited, on the clock that is handed in: a slow disk, a
slow machine and a flood show in the same way.
"""

from collections.abc import Callable
from contextvars import ContextVar
from math import inf

import trio

CROWD = 64  # may always wait: they are no overload, however slow the machine
BURST = 200  # may wait while all is well; they are let in within a second
WAIT_S = 0.05  # as long those may wait who come while too many do
QUICK_S = 0.025  # who was let in so soon has hardly waited
LOOK_S = 0.1  # nobody let in quickly for so long: too many wait
NEVER = -inf
GROWTH = 1.25  # of the bound, each LOOK_S that all is well again


class Anteroom:
    """Those who wait to be let in; one for a process, all its doors together."""

    def __init__(self, now: Callable[[], float] = trio.current_time) -> None:
        self._now = now
        self._waiting: set[Place] = set()
        self._bound = float(BURST)
        self._calm_at = 0.0  # when somebody was last let in quickly, or nobody waited
        self._looked_at = 0.0
        self._let_in = 0  # since then

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Must the next one be sent away?"""
        if len(self._waiting) < CROWD:
            return False
        self._look(self._now())
        return len(self._waiting) >= self._bound

    def enter(self, place: "Place") -> float:
        """The instant at which it did."""
        now = self._now()
        if not self._waiting:
            self._calm_at = now
        self._look(now)
        self._waiting.add(place)
        return now

    def leave(self, place: "Place") -> None:
        now = self._now()
        self._waiting.remove(place)
        self._let_in += 1
        if now - place.since <= QUICK_S or not self._waiting:
            self._calm_at = now
        self._look(now)

    def _look(self, now: float) -> None:
        """Set the bound anew, once in LOOK_S."""
        passed_s = now - self._looked_at
        if passed_s < LOOK_S:
            return
        if now - self._calm_at >= LOOK_S:
            self._bound = max(CROWD, self._let_in / passed_s * WAIT_S)
        else:
            self._bound = min(BURST, self._bound * GROWTH ** min(passed_s / LOOK_S, 10))
        self._looked_at, self._let_in = now, 0


class Place:
    """One request's place in the anteroom, from its last octet to its grant or its answer."""

    __slots__ = ("_left", "_room", "since")

    def __init__(self, room: Anteroom) -> None:
        self._room = room
        self._left = False
        self.since = NEVER  # it came

    def take(self) -> bool:
        """Wait from now on; False where the request must be sent away."""
        if self._left or self.since != NEVER:
            return True  # it has its answer already
        if self._room.full:
            self._left = True
            return False
        self.since = self._room.enter(self)
        return True

    def leave(self) -> None:
        """It is let in, or over; said again, nothing."""
        if not self._left:
            self._left = True
            if self.since != NEVER:
                self._room.leave(self)


_present: ContextVar[Place | None] = ContextVar("place", default=None)


def wait_at(place: Place) -> None:
    """The running task's request waits here."""
    _present.set(place)


def let_in() -> None:
    """The running task's request waits no longer: it has its grant, or needs none."""
    place = _present.get()
    if place is not None:
        place.leave()
