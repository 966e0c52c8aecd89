"""Connection leases: all processes that share a store share one connection budget.

Each process leases its connections to an IP address from the store before it opens them,
extends the lease well before its end, and returns what it does not use. A process that
could not extend closes its connections before the lease ends, by its own clock from before
it requested the lease; one that dies blocks the others no longer than the lease lasts, and
mostly less: the store drops the leases of processes that are gone for certain. Where it goes
by a session of the database, leases made in a session that has ended are made again, or their
connections are closed.
While the store is unavailable no new connection is permitted.

Where other processes wait and have none, the store revokes: a holder closes connections
after their current batch and then waits its turn. One call to the store is under way at a
time, for all addresses at once: a call that overtook another could report an old state.
"""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import trio
from msgspec import Struct
from trio.lowlevel import checkpoint

from mailprobe.engine.background import log_fault, running_loops
from mailprobe.engine.smtp.connection_budget import PermitHolder
from mailprobe.storage.base.lease_holders import new_holder
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.leases import LOST_S
from mailprobe.storage.records import LeaseRequest
from mailprobe.storage.store import Store

from ..observability.store_outages import RepeatedCalls

log = logging.getLogger("mailprobe.leases")

LEASE_S = 12.0  # a dead process blocks the others no longer
EXTEND_S = 4.0  # after the lease's start: leaves time for many tries
WIND_UP_S = 2.0  # before its end: no connection is opened any more, and batches end
CUT_S = 0.5  # before its end: connections are closed in any state
REQUEST_S = 3.0  # a request for a permit expires after this time
RENEW_S = 1.0  # before its end a request is renewed, if it still stands
KEEP_S = 3.0  # an unused permit is kept: the next address of a list may need it
POLL_S = 0.25  # between two polls whether other processes wait
TICK_S = 0.1  # between two checks of the clock, and two tries to get a permit
FAILED_S = 0.25  # after a call that failed
RETURN_S = 1.0  # for returning all permits at the end
GROUP_MAX = 100  # addresses in one call: a transaction of a few milliseconds


class _LeasedAddress(Struct):
    """This process's share of one IP address. Times are on trio's clock, in seconds."""

    held: int = 0  # permits leased
    until: float = -math.inf  # the lease's end, counted from before it was requested
    used: int = 0  # open connections
    spare_since: float = math.inf  # since then, not all permits were used
    requested_until: float = -math.inf
    revoked: int = 0
    denied: bool = False  # one more was requested and not granted
    known: bool = True  # the store has the same state
    session: int = 0  # of the store, in which it was leased
    queued: bool = False  # this process waits in the store
    requesting: bool = False  # in the call under way
    # Last reported: how many may be used, and whether they are short.
    notified: tuple[int, bool] = (0, False)

    def at(self, now: float) -> int:
        """How many connections may be used now."""
        return 0 if now >= self.until - WIND_UP_S else max(0, self.held - self.revoked)

    @property
    def short(self) -> bool:
        """Are there fewer permits than wanted?"""
        return self.denied or self.revoked > 0

    def requests(self, now: float, limit: int) -> bool:
        """Should one more be requested?"""
        return now < self.requested_until and self.used >= self.held < limit and not self.revoked

    def returns(self, now: float) -> int:
        """How many permits to return: unused ones that are revoked or no longer needed."""
        spare = max(0, self.held - self.used)
        if self.revoked:
            return min(spare, self.revoked)
        return spare if now - self.spare_since >= KEEP_S else 0

    def due(self, now: float, limit: int, session: int) -> bool:
        """Does the next call to the store, in this session, concern the address?"""
        if not self.known or self.requests(now, limit) or self.returns(now):
            return True
        if self.held:
            return now >= self.until - LEASE_S + EXTEND_S or session != self.session
        return self.queued and now >= self.requested_until

    @property
    def empty(self) -> bool:
        return not (self.held or self.used or self.queued or self.requesting) and self.known


class LeasedBudget:
    """This process's permits; implements mailprobe.engine.smtp.connection_budget.ConnectionBudget."""

    def __init__(
        self, store: Store, limit: int, before_use: Callable[[], Awaitable[None]] = checkpoint
    ) -> None:
        """`before_use` is awaited before the first permit of an address is used; it must not raise."""
        self.holder = new_holder()  # at each start, so that no lease is inherited
        self._store = store
        self._limit = limit
        self._before_use = before_use
        self._permit_holder: PermitHolder | None = None
        self.addresses: dict[str, _LeasedAddress] = {}
        self._due: dict[str, None] = {}  # ordered: the next call begins with the first
        self._is_due = trio.Event()
        self._has_addresses = trio.Event()  # there is an address
        self._poll_at = math.inf
        self._calls = RepeatedCalls("connection leases", log)
        self._session = store.lease_session()
        self._session_changed_at = -math.inf

    # -- what the engine calls ---------------------------------------------------------------

    def open_for(self, permit_holder: PermitHolder) -> None:
        self._permit_holder = permit_holder

    def at(self, address: str) -> int:
        leased = self.addresses.get(address)
        return leased.at(trio.current_time()) if leased else 0

    def short(self, address: str) -> bool:
        leased = self.addresses.get(address)
        return leased is not None and leased.short

    def request(self, address: str) -> None:
        leased = self._address(address)
        leased.requested_until = trio.current_time() + REQUEST_S
        if not leased.denied:  # else keep_time() requests again
            self._wake(address)

    def used(self, address: str, count: int) -> None:
        leased = self._address(address)
        if count < leased.used:
            leased.spare_since = trio.current_time()
            if leased.revoked:
                self._wake(address)
        leased.used = count
        if count >= leased.held:
            leased.spare_since = math.inf

    def _address(self, address: str) -> _LeasedAddress:
        leased = self.addresses.get(address)
        if leased is None:
            leased = self.addresses[address] = _LeasedAddress()
            self._has_addresses.set()
        return leased

    def _wake(self, address: str) -> None:
        self._due[address] = None
        self._is_due.set()

    # -- the strict clock --------------------------------------------------------------------

    async def keep_time(self) -> None:
        """End leases before the store does, and wake `allocate`. Runs until cancelled."""
        while True:
            if not self.addresses:
                self._has_addresses = trio.Event()
                await self._has_addresses.wait()
            await trio.sleep(TICK_S)
            now = trio.current_time()
            if (session := self._store.lease_session()) != self._session:
                self._session, self._session_changed_at = session, now
            for address, leased in list(self.addresses.items()):
                try:
                    self._check_clock(address, leased, now)
                except Exception:
                    log_fault(self._check_clock)

    def _check_clock(self, address: str, leased: _LeasedAddress, now: float) -> None:
        until = leased.until - CUT_S
        if leased.session != self._session:
            until = min(until, self._session_changed_at + LOST_S)
        if leased.held and now >= until:
            self._end(address, leased)
        holder = self._permit_holder
        if leased.requested_until - now < RENEW_S and holder and holder.is_wanted(address):
            leased.requested_until = now + REQUEST_S  # keeps its place in the store's queue
        if leased.denied and now >= leased.requested_until:
            leased.denied = False
        self._notify(address, leased)
        if leased.requesting:
            return
        if leased.due(now, self._limit, self._session):
            self._wake(address)
        elif leased.empty and now >= leased.requested_until:
            del self.addresses[address]

    def _end(self, address: str, leased: _LeasedAddress) -> None:
        leased.held = leased.revoked = 0
        leased.known = False
        leased.spare_since = math.inf
        if self._permit_holder is not None:
            self._permit_holder.permits_revoked(address)

    def _notify(self, address: str, leased: _LeasedAddress) -> None:
        """Notify the engine of a change, and repeatedly while too many connections are open."""
        at = leased.at(trio.current_time())
        state = at, leased.short
        if state != leased.notified or leased.used > at:
            leased.notified = state
            if self._permit_holder is not None:
                self._permit_holder.permits_changed(address)

    # -- the calls ---------------------------------------------------------------------------

    async def allocate(self) -> None:
        """Call the store whenever an address is due. Runs until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._poll_at):
                await self._is_due.wait()
            self._is_due = trio.Event()
            if not await self._calls.try_call(self._call_store):
                await trio.sleep(FAILED_S)

    async def _call_store(self) -> None:
        """Make the calls that are due."""
        if trio.current_time() >= self._poll_at:
            await self._poll()
        while self._due:
            await self._lease()

    async def _lease(self) -> None:
        """Make one call for all addresses that are due, at most GROUP_MAX."""
        began, session = trio.current_time(), self._store.lease_session()
        asked: dict[str, LeaseRequest] = {}
        while self._due and len(asked) < GROUP_MAX:
            address = next(iter(self._due))
            del self._due[address]
            leased = self.addresses.get(address)
            if leased is not None and leased.due(began, self._limit, session):
                asked[address] = self._request(leased, began)
        if not asked:
            return
        try:
            granted = await self._store.lease_connections(
                self.holder, asked, limit=self._limit, lease_s=LEASE_S
            )
            if any(granted[address] and not request.held for address, request in asked.items()):
                await self._before_use()
        except StoreUnavailable:
            for address in asked:
                self.addresses[address].known = False
            raise
        finally:
            for address in asked:
                self.addresses[address].requesting = False
        for address, request in asked.items():
            self.addresses[address].session = session
            self._apply(address, request, granted[address], began)
        self._poll_at = min(self._poll_at, began + POLL_S)

    def _request(self, leased: _LeasedAddress, now: float) -> LeaseRequest:
        """Return the request for one address. Permits that it returns are not used from here on."""
        returned = leased.returns(now)
        leased.held -= returned
        leased.revoked -= min(returned, leased.revoked)
        leased.requesting = True
        if leased.held <= leased.used:
            leased.spare_since = math.inf
        return LeaseRequest(leased.held, leased.held + leased.requests(now, self._limit))

    def _apply(self, address: str, request: LeaseRequest, granted: int, began: float) -> None:
        leased = self.addresses[address]
        leased.queued = request.requested > 0 and not granted
        leased.denied = request.requested > granted
        if granted < request.held:  # the lease has ended in the store, if not by our clock
            self._end(address, leased)
        if granted > request.held:
            leased.requested_until = -math.inf  # another one must be requested anew
        leased.held = granted
        leased.revoked = min(leased.revoked, granted)
        leased.known = True
        if granted:
            leased.until = began + LEASE_S
            if granted > leased.used and leased.spare_since == math.inf:
                leased.spare_since = trio.current_time()
        self._notify(address, leased)

    async def _poll(self) -> None:
        """Learn from the store which permits other processes wait for."""
        self._poll_at = math.inf
        if not any(leased.held for leased in self.addresses.values()):
            return
        self._poll_at = trio.current_time() + POLL_S
        revocable = await self._store.revocable_connections(self.holder, limit=self._limit)
        for address, leased in list(self.addresses.items()):
            leased.revoked = min(revocable.get(address, 0), leased.held)
            self._notify(address, leased)
            if leased.revoked and leased.returns(trio.current_time()):
                self._wake(address)


@asynccontextmanager
async def open_leases(
    store: Store, limit: int, before_use: Callable[[], Awaitable[None]] = checkpoint
) -> AsyncIterator[LeasedBudget]:
    """Open the connection budget shared through this store: `limit` per IP address.

    `before_use`: see LeasedBudget.

    Returns all permits at the end. Close it after the engine, whose connections hold
    permits, and before the store.
    """
    permits = LeasedBudget(store, limit, before_use)
    try:
        async with running_loops(permits.keep_time, permits.allocate):
            yield permits
    finally:
        with (
            suppress(StoreUnavailable),  # the leases end by themselves
            trio.CancelScope(shield=True, deadline=trio.current_time() + RETURN_S),
        ):
            await store.return_connections(permits.holder)


def is_shared(database: str) -> bool:
    """May several processes use this store? A second service may open a file at any time."""
    return database != "memory:"
