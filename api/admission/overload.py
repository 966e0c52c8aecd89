"""Overload control: rejects excess requests with 503 before authentication.

A request waits in the admission queue from its last byte until a store has reserved its
units. A burst may wait: BURST requests, arriving at once or little by little. After them
CoDel's rule applies (RFC 8289): a queue in which every request waits longer than TARGET_S
for a whole INTERVAL_S is a standing queue. Then only as many requests may wait as are
admitted within TARGET_S, but never fewer than QUEUE_MIN. A new burst is accepted after
CALM_S without a standing queue.

Admitted requests are always served. ACTIVE_MIN of the waiting requests are worked on, in
the order of arrival; each one that is admitted starts the next. This keeps each turn of the
event loop short, and with it the delay of requests outside the queue. Where this thread is
mostly idle although requests wait, the store is the bottleneck, and up to ACTIVE_MAX are
worked on.

Rejecting costs processor time too. When rejections use more than REJECTION_SHARE of it, new
requests are left unread until there is capacity (`is_overrun`).

The only measure is how long requests have waited, on an injected clock: a slow disk, a slow
machine and a flood look the same.
"""

import time
from collections import deque
from collections.abc import Callable
from math import inf

import trio

BURST = 2_500  # 2,000 are promised; a store reserves for them within about a second
QUEUE_MIN = 64  # may wait on any machine, however slow: so few are no overload
ACTIVE_MIN = 16  # worked on at a time: with more, each costs more
ACTIVE_MAX = 128  # where the store is slow: it reserves for many in one transaction
IDLE, BUSY = 0.5, 0.75  # share of time this thread computes: work on more below, on fewer above
TARGET_S = 0.05  # CoDel's target: a queue in which every request waits longer is standing
QUICK_S = 0.025  # a request admitted within this time has hardly waited
INTERVAL_S = 0.1  # CoDel's interval
CALM_S = 1.0  # without a rejection, before a new burst is accepted
NEVER = -inf
GROWTH = 1.25  # of the bound, for each INTERVAL_S without a standing queue
REJECTION_SHARE = 0.04  # of the processor time
REJECTION_CREDIT_S = 0.02  # of that time may be used at once
REJECTION_S = 50e-6  # the cost of a rejection, until one was measured


class AdmissionQueue:
    """Requests waiting for their reservation. One queue per process, shared by its listeners.

    `now` is the clock, `computed_s` the processor time of this thread, both in seconds.
    """

    def __init__(
        self,
        now: Callable[[], float] = trio.current_time,
        computed_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._now = now
        self._computed_s = computed_s
        self._computed_at_s = computed_s()
        self._active_max = ACTIVE_MIN
        self._waiting: set[Ticket] = set()
        self._inactive: deque[Ticket] = deque()  # of those, the ones that nothing works on yet
        self._active = 0
        self._bound = float(BURST)
        self._burst_left = BURST  # requests that may still arrive before a queue can stand
        self._calm_at = 0.0  # when a request was last admitted quickly, or the queue was empty
        self._checked_at = 0.0
        self._admitted = 0  # since the last check
        self._rejected_at = NEVER
        self._rejection_s = REJECTION_S  # the cost of one, a moving average
        self._credit_s = REJECTION_CREDIT_S  # processor time left for rejections
        self._credited_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Must the next request be rejected?"""
        if len(self._waiting) < QUEUE_MIN:
            return False
        self._check(self._now())
        return len(self._waiting) >= self._bound

    @property
    def is_overrun(self) -> bool:
        """Must the next request be left unread?"""
        return len(self._waiting) >= QUEUE_MIN and self.is_full and self.rejections_left < 1

    @property
    def free(self) -> int:
        """How many more requests may wait."""
        return 0 if self.is_full else int(max(QUEUE_MIN, self._bound)) - len(self._waiting)

    @property
    def rejections_left(self) -> int:
        """How many rejections fit in their share of the processor time just now."""
        now = self._now()
        earned_s = (now - self._credited_at) * REJECTION_SHARE
        self._credit_s = min(REJECTION_CREDIT_S, self._credit_s + earned_s)
        self._credited_at = now
        return int(self._credit_s / self._rejection_s)

    def note_rejection(self) -> None:
        """A request was refused a ticket."""
        self._rejected_at = self._now()

    def charge_rejection(self, took_s: float) -> None:
        """A rejection took so much processor time."""
        self._rejection_s += (took_s - self._rejection_s) / 16
        self._credit_s -= took_s

    def enter(self, ticket: "Ticket") -> float:
        """Add the ticket; return the present time."""
        now = self._now()
        if not self._waiting:
            self._calm_at = now
        self._check(now)
        self._waiting.add(ticket)
        self._burst_left -= 1
        if self._active < self._active_max:
            self._activate(ticket)
        else:
            self._inactive.append(ticket)
        return now

    def _activate(self, ticket: "Ticket") -> None:
        self._active += 1
        ticket.activate()

    def leave(self, ticket: "Ticket") -> None:
        """Remove the ticket, whose request was admitted or has ended; activate the next."""
        now = self._now()
        self._waiting.remove(ticket)
        self._admitted += 1
        self._active -= ticket.is_active
        while self._inactive and self._active < self._active_max:
            following = self._inactive.popleft()
            if following in self._waiting:
                self._activate(following)
        quick_s = QUICK_S if self._has_rejected(now) else TARGET_S
        if now - ticket.since <= quick_s or not self._waiting:
            self._calm_at = now
        self._check(now)

    def _has_rejected(self, now: float) -> bool:
        return now - self._rejected_at < CALM_S

    def _check(self, now: float) -> None:
        """Set the bound anew, once in INTERVAL_S."""
        passed_s = now - self._checked_at
        if passed_s < INTERVAL_S:
            return
        is_calm = now - self._calm_at < INTERVAL_S
        if is_calm and not self._has_rejected(now):
            self._burst_left = BURST
        if not is_calm and self._burst_left <= 0:
            self._bound = max(QUEUE_MIN, self._admitted / passed_s * TARGET_S)
        else:
            self._bound = min(BURST, self._bound * GROWTH ** min(passed_s / INTERVAL_S, 20))
        self._set_active_max(passed_s)
        self._checked_at, self._admitted = now, 0

    def _set_active_max(self, passed_s: float) -> None:
        """Work on more at a time where the store is the bottleneck, on fewer where this thread is."""
        computed_s = self._computed_s()
        busy = (computed_s - self._computed_at_s) / passed_s
        self._computed_at_s = computed_s
        if self._inactive and busy < IDLE:
            self._active_max = min(ACTIVE_MAX, 2 * self._active_max)
        elif busy > BUSY:
            self._active_max = max(ACTIVE_MIN, self._active_max // 2)


class Ticket:
    """One request's entry in the admission queue, from its last byte to its reservation."""

    __slots__ = ("_activated", "_queue", "has_left", "is_active", "since")

    def __init__(self, queue: AdmissionQueue) -> None:
        self._queue = queue
        self.has_left = False
        self._activated: trio.Event | None = None
        self.is_active = False
        self.since = NEVER  # when it entered the queue

    def try_enter(self) -> bool:
        """Enter the queue; False if the request must be rejected."""
        if self.has_left or self.since != NEVER:
            return True  # it was answered already
        if self._queue.is_full:
            self._queue.note_rejection()
            self.has_left = True
            return False
        self.since = self._queue.enter(self)
        return True

    def activate(self) -> None:
        """The request may be worked on; called by the queue."""
        self.is_active = True
        if self._activated is not None:
            self._activated.set()

    async def wait_until_active(self) -> None:
        """Wait in the queue; returns at once for a ticket that has not entered or has left."""
        if not (self.is_active or self.has_left or self.since == NEVER):
            self._activated = trio.Event()
            await self._activated.wait()

    def leave(self) -> None:
        """The request is admitted or has ended; further calls do nothing."""
        if not self.has_left:
            self.has_left = True
            if self.since != NEVER:
                self._queue.leave(self)
