"""Limits the addresses under way in this process, and shares them fairly by account."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio
from msgspec import Struct, field

from mailprobe.engine.fair_queue import FairQueue

# Of lists for each of requests. A list's address waits in its backlog without a clock, and one
# account may have half: so its lists have two addresses for each place at a mail host, and fill
# the places though some of their hosts are busy.
LISTED = 4
WAIT_S = 1.0  # a request waits for free capacity
SHORT_WAIT_S = 0.02  # within WAIT_S of a request of its account that waited without success


class Capacity:
    """Addresses under way, of at most `addresses_max`, shared fairly by account.

    Any account may use the first half. Beyond that an account may have no more addresses
    under way than are free: one account alone fills half, two get a third each, and some
    capacity always remains for another (dynamic thresholds, Choudhury and Hahne, 1998). An
    account with nothing under way may begin while anything is free, so that a request of
    fifty is served as well as a request of one.

    A request without capacity waits up to WAIT_S in a fair queue by account. After a
    request of an account has waited without success, the account's next ones wait SHORT_WAIT_S.
    """

    def __init__(self, addresses_max: int) -> None:
        self.addresses_max = addresses_max
        self.addresses = 0
        self._of: dict[str, int] = {}  # by account
        self._queue: FairQueue[_Waiting] = FairQueue()
        self._waiting: dict[str, int] = {}  # by account
        self._in_vain_at: dict[str, float] = {}  # by account, the latest last

    @property
    def free(self) -> int:
        return self.addresses_max - self.addresses

    def fits(self, account: str, addresses: int) -> bool:
        """Are so many addresses free for the account, if no other request waits?"""
        own, free = self._of.get(account, 0), self.free
        if free <= 0:
            return False
        in_half = self.addresses + addresses <= self.addresses_max // 2
        return in_half or own == 0 or own + addresses <= free

    @contextmanager
    def requesting(self, account: str, addresses: int) -> Iterator["CapacityTicket"]:
        """Hold capacity for so many addresses while the block lasts, or none.

        Holding is needed because one transaction may check many requests before any of them
        begins. The caller calls `use()` if it begins; then it calls `enter` right after.
        """
        is_free = account not in self._waiting and self.fits(account, addresses)
        if is_free:
            self.enter(addresses, account)
        ticket = CapacityTicket(is_free)
        try:
            yield ticket
        finally:
            self._end_request(account, addresses, ticket)

    @asynccontextmanager
    async def waiting(self, account: str, addresses: int) -> AsyncIterator["CapacityTicket"]:
        """As `requesting`, but wait for capacity first."""
        ticket = CapacityTicket(await self._wait(account, addresses))
        try:
            yield ticket
        finally:
            self._end_request(account, addresses, ticket)

    def _end_request(self, account: str, addresses: int, ticket: "CapacityTicket") -> None:
        """Give back what was held; no other request gets it if the caller enters next."""
        if ticket.is_free:
            self._subtract(addresses, account)
            if not ticket.is_used:
                self._admit()

    def enter(self, addresses: int, account: str = "") -> None:
        """Count so many addresses as under way."""
        self.addresses += addresses
        self._of[account] = self._of.get(account, 0) + addresses

    def release(self, addresses: int, account: str = "") -> None:
        """So many addresses have ended; waiting requests get the capacity."""
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
        """A burst may wait; requests in a standing queue are refused almost at once."""
        until = trio.current_time() - WAIT_S
        while self._in_vain_at and next(iter(self._in_vain_at.values())) <= until:
            del self._in_vain_at[next(iter(self._in_vain_at))]
        return SHORT_WAIT_S if account in self._in_vain_at else WAIT_S

    def _admit(self) -> None:
        """Give free capacity to waiting requests, one account after the other."""
        blocked: list[_Waiting] = []
        while self.addresses < self.addresses_max:
            following = self._queue.pop()
            if following is None:
                break
            if following.is_over:
                continue
            if any(each.account == following.account for each in blocked):
                self._queue.push_front(following.account, following)
                break  # every account was tried
            if self.fits(following.account, following.addresses):
                self.enter(following.addresses, following.account)
                following.is_over = True
                following.admitted.set()
            else:
                blocked.append(following)
        for each in reversed(blocked):
            self._queue.push_front(each.account, each)


class CapacityTicket(Struct, eq=False):
    """Whether capacity is held for a request, and whether the request uses it."""

    is_free: bool
    is_used: bool = False

    def use(self) -> None:
        """The request begins; the caller enters its addresses next."""
        self.is_used = True


class _Waiting(Struct, eq=False):
    account: str
    addresses: int
    admitted: trio.Event = field(default_factory=trio.Event)
    is_over: bool = False
