"""What the whole process bears, and what an answer says of the caller's own limits."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import trio

from mailprobe.engine.fair_queue import FairQueue

BODY_OCTETS_MAX = 2 * 1024 * 1024
EVENT_OCTETS_MAX = 256 * 1024  # of Stripe's, which have a few KiB; nobody's key is asked for
BODY_S_MAX = 10  # from a request's head to the end of its body
ROOM_S = 1.0  # as long as a request waits for room
HASTE_S = 0.02  # while others of its account have waited so long in vain


class Capacity:
    """Addresses under way, counted in this process, and shared fairly by account.

    Up to half of it is anybody's. Beyond that an account may have no more under way
    than are free: so one alone fills half of it, two have a third each, and there is
    always room for a newcomer (the dynamic thresholds of Choudhury and Hahne, 1998).
    An account that has nothing under way may begin while there is room at all, so that a
    request of fifty gets its turn as well as one of one.

    What finds no room waits in a fair queue by account, for ROOM_S. While an account's
    requests have waited that long in vain, its next ones wait for a moment only.
    """

    def __init__(self, addresses_max: int) -> None:
        self.addresses_max = addresses_max
        self.addresses = 0
        self._of: dict[str, int] = {}  # by account
        self._queue: FairQueue[_Waiting] = FairQueue()
        self._waiting: dict[str, int] = {}  # by account
        self._in_vain_at: dict[str, float] = {}  # by account, the latest last

    def fits(self, account: str, addresses: int) -> bool:
        """Is there room for these, as long as nobody waits?"""
        own, free = self._of.get(account, 0), self.addresses_max - self.addresses
        if free <= 0:
            return False
        in_half = self.addresses + addresses <= self.addresses_max // 2
        return in_half or own == 0 or own + addresses <= free

    @contextmanager
    def requesting(self, account: str, addresses: int) -> Iterator["CapacityTicket"]:
        """Room for these, held as long as the block lasts, or none.

        Many requests may be weighed in one transaction, before any of them is let in.
        """
        has_room = account not in self._waiting and self.fits(account, addresses)
        if has_room:
            self.enter(addresses, account)
        room = CapacityTicket(has_room)
        try:
            yield room
        finally:
            self._end_request(account, addresses, room)

    @asynccontextmanager
    async def waiting(self, account: str, addresses: int) -> AsyncIterator["CapacityTicket"]:
        """The same, for a request that waits until there is room."""
        room = CapacityTicket(await self._wait(account, addresses))
        try:
            yield room
        finally:
            self._end_request(account, addresses, room)

    def _end_request(self, account: str, addresses: int, room: "CapacityTicket") -> None:
        """Room that was granted is entered in a moment, and nobody else's."""
        if room.is_there:
            self._subtract(addresses, account)
            if not room.is_granted:
                self._admit()

    def enter(self, addresses: int, account: str = "") -> None:
        self.addresses += addresses
        self._of[account] = self._of.get(account, 0) + addresses

    def release(self, addresses: int, account: str = "") -> None:
        if addresses:
            self._subtract(addresses, account)
            self._admit()

    def _subtract(self, addresses: int, account: str) -> None:
        self.addresses -= addresses
        self._of[account] -= addresses
        if not self._of[account]:
            del self._of[account]

    async def _wait(self, account: str, addresses: int) -> bool:
        waiting = _Waiting(account, addresses)
        self._waiting[account] = self._waiting.get(account, 0) + 1
        self._queue.join(account, waiting)
        self._admit()
        try:
            with trio.move_on_after(self._timeout_s(account)):
                await waiting.admitted.wait()
        except trio.Cancelled:
            if waiting.admitted.is_set():
                self.release(addresses, account)
            raise
        finally:
            waiting.is_over = True
            self._waiting[account] -= 1
            if not self._waiting[account]:
                del self._waiting[account]
        if not waiting.admitted.is_set():
            self._in_vain_at.pop(account, None)
            self._in_vain_at[account] = trio.current_time()
        return waiting.admitted.is_set()

    def _timeout_s(self, account: str) -> float:
        """A burst waits; of a queue that stands each request is refused at once."""
        until = trio.current_time() - ROOM_S
        while self._in_vain_at and next(iter(self._in_vain_at.values())) <= until:
            del self._in_vain_at[next(iter(self._in_vain_at))]
        return HASTE_S if account in self._in_vain_at else ROOM_S

    def _admit(self) -> None:
        """Room may have become free: for those who wait, an account after the other."""
        passed_over: list[_Waiting] = []
        while self.addresses < self.addresses_max:
            following = self._queue.pop()
            if following is None:
                break
            if following.is_over:
                continue
            if any(each.account == following.account for each in passed_over):
                self._queue.push_front(following.account, following)
                break  # all accounts have had their turn
            if self.fits(following.account, following.addresses):
                self.enter(following.addresses, following.account)
                following.is_over = True
                following.admitted.set()
            else:
                passed_over.append(following)
        for each in reversed(passed_over):
            self._queue.push_front(each.account, each)


@dataclass(slots=True, eq=False)
class CapacityTicket:
    """What was found for a request that asks."""

    is_there: bool
    is_granted: bool = False  # by whoever asked: its addresses are entered next


@dataclass(slots=True, eq=False)
class _Waiting:
    account: str
    addresses: int
    admitted: trio.Event = field(default_factory=trio.Event)
    is_over: bool = False
