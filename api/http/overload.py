"""Overload control: rejects excess requests with 503 before they are authenticated.

A request waits from its last octet until a store has granted its units. A burst is no
overload: BURST requests may come at once or little by little, and all wait. After them
CoDel's rule holds (RFC 8289): where nobody was let in within WAIT_S for LOOK_S, the
queue stands, and only as many may wait as are granted in WAIT_S, never fewer than
CROWD. The next burst is one again when no queue has stood for CALM_S.
Whoever is let in is served. Of those who wait, AT_ONCE are worked on, in the order of their
coming; the others' turn comes with the grants. So a turn of the loop stays short, and
with it the wait of whoever is no part of the queue. Where this thread has little to do
all the same, it waits for the store: then up to AT_ONCE_MAX are worked on.

Rejecting takes processor time too. Where rejections take more than REFUSALS_SHARE of
it, requests are left unread until there is room for them (`overrun`).

Measured is what requests have waited, on the clock that is handed in: a slow disk, a
slow machine and a flood show in the same way.
"""

import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from math import inf

import trio

BURST_SHARE = 64  # may always wait: they are no overload, however slow the machine
AT_ONCE = 16  # worked on towards their grant: more at a time cost each of them more
AT_ONCE_MAX = 128  # where the store is slow: it grants many in one transaction
IDLE, BUSY = 0.5, 0.75  # of the time this thread computes: then more, or fewer, are worked on
BURST = 2_500  # 2,000 are promised; a store grants them within about a second
WAIT_S = 0.05  # CoDel's target: a queue in which everybody waits longer stands
QUICK_S = 0.025  # who was let in so soon has hardly waited
INTERVAL_S = 0.1  # CoDel's interval
CALM_S = 1.0  # without a rejection: a new burst is a burst again
NEVER = -inf
GROWTH = 1.25  # of the bound, each LOOK_S that no queue stands
REFUSALS_SHARE = 0.04  # of the time, for rejections
REFUSALS_AHEAD_S = 0.02  # of that time may be used at once
REFUSAL_S = 50e-6  # a rejection, until one was measured


class AdmissionQueue:
    """Requests waiting for their grant. One queue for a process, shared by its listeners."""

    def __init__(
        self,
        now: Callable[[], float] = trio.current_time,
        computed_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._now = now
        self._computed_s = computed_s
        self._computed_at_s = computed_s()
        self._at_once = AT_ONCE
        self._waiting: set[Ticket] = set()
        self._queue: deque[Ticket] = deque()  # of those, the ones whose turn has not come
        self._at_work = 0
        self._bound = float(BURST)
        self._burst_left = BURST  # as many may still come before a queue can stand
        self._calm_at = 0.0  # when somebody was last let in quickly, or nobody waited
        self._checked_at = 0.0
        self._admitted = 0  # since then
        self._refused_at = NEVER
        self._refusal_s = REFUSAL_S  # what one costs, about
        self._credit_s = REFUSALS_AHEAD_S  # left for rejections
        self._credited_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Must the next one be rejected?"""
        if len(self._waiting) < BURST_SHARE:
            return False
        self._check(self._now())
        return len(self._waiting) >= self._bound

    @property
    def overrun(self) -> bool:
        """Must the next one be left unread?"""
        return len(self._waiting) >= BURST_SHARE and self.full and self.refusals_left < 1

    @property
    def room(self) -> int:
        """How many more may wait."""
        return 0 if self.full else int(max(BURST_SHARE, self._bound)) - len(self._waiting)

    @property
    def refusals_left(self) -> int:
        """How many may be rejected just now without taking the time of those who are served."""
        now = self._now()
        earned_s = (now - self._credited_at) * REFUSALS_SHARE
        self._credit_s = min(REFUSALS_AHEAD_S, self._credit_s + earned_s)
        self._credited_at = now
        return int(self._credit_s / self._refusal_s)

    def reject(self) -> None:
        """The next one finds no place."""
        self._refused_at = self._now()

    def refused(self, took_s: float) -> None:
        """A rejection took so much time."""
        self._refusal_s += (took_s - self._refusal_s) / 16
        self._credit_s -= took_s

    def enter(self, ticket: "Ticket") -> float:
        """The instant at which it did."""
        now = self._now()
        if not self._waiting:
            self._calm_at = now
        self._check(now)
        self._waiting.add(ticket)
        self._burst_left -= 1
        if self._at_work < self._at_once:
            self._begin(ticket)
        else:
            self._queue.append(ticket)
        return now

    def _begin(self, ticket: "Ticket") -> None:
        self._at_work += 1
        ticket.begin()

    def leave(self, ticket: "Ticket") -> None:
        now = self._now()
        self._waiting.remove(ticket)
        self._admitted += 1
        self._at_work -= ticket.has_begun
        while self._queue and self._at_work < self._at_once:
            following = self._queue.popleft()
            if following in self._waiting:
                self._begin(following)
        quick_s = QUICK_S if self._has_rejected(now) else WAIT_S
        if now - ticket.since <= quick_s or not self._waiting:
            self._calm_at = now
        self._check(now)

    def _has_rejected(self, now: float) -> bool:
        return now - self._refused_at < CALM_S

    def _check(self, now: float) -> None:
        """Set the bound anew, once in LOOK_S."""
        passed_s = now - self._checked_at
        if passed_s < INTERVAL_S:
            return
        is_calm = now - self._calm_at < INTERVAL_S
        if is_calm and not self._has_rejected(now):
            self._burst_left = BURST
        if not is_calm and self._burst_left <= 0:
            self._bound = max(BURST_SHARE, self._admitted / passed_s * WAIT_S)
        else:
            self._bound = min(BURST, self._bound * GROWTH ** min(passed_s / INTERVAL_S, 20))
        self._set_at_once(passed_s)
        self._checked_at, self._admitted = now, 0

    def _set_at_once(self, passed_s: float) -> None:
        """More at a time where the store is what they wait for, fewer where it is this thread."""
        computed_s = self._computed_s()
        busy = (computed_s - self._computed_at_s) / passed_s
        self._computed_at_s = computed_s
        if self._queue and busy < IDLE:
            self._at_once = min(AT_ONCE_MAX, 2 * self._at_once)
        elif busy > BUSY:
            self._at_once = max(AT_ONCE, self._at_once // 2)


class Ticket:
    """One request's place in the anteroom, from its last octet to its grant or its answer."""

    __slots__ = ("_left", "_may_begin", "_room", "has_begun", "since")

    def __init__(self, room: AdmissionQueue) -> None:
        self._room = room
        self._left = False
        self._may_begin: trio.Event | None = None
        self.has_begun = False
        self.since = NEVER  # it came

    def acquire(self) -> bool:
        """Wait from now on; False where the request must be sent away."""
        if self._left or self.since != NEVER:
            return True  # it has its answer already
        if self._room.full:
            self._room.reject()
            self._left = True
            return False
        self.since = self._room.enter(self)
        return True

    def begin(self) -> None:
        """Its turn has come."""
        self.has_begun = True
        if self._may_begin is not None:
            self._may_begin.set()

    async def turn(self) -> None:
        """Wait for it; at once for one that has taken no place yet, or needs none any more."""
        if not (self.has_begun or self._left or self.since == NEVER):
            self._may_begin = trio.Event()
            await self._may_begin.wait()

    def leave(self) -> None:
        """It is let in, or over; said again, nothing."""
        if not self._left:
            self._left = True
            if self.since != NEVER:
                self._room.leave(self)


_present: ContextVar[Ticket | None] = ContextVar("place", default=None)


def wait_at(ticket: Ticket) -> None:
    """The running task's request waits here."""
    _present.set(ticket)


def admitted() -> None:
    """The running task's request waits no longer: it has its grant, or needs none."""
    ticket = _present.get()
    if ticket is not None:
        ticket.leave()
