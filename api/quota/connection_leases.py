"""Seats at exchanges that all processes of one store share, on whatever machines they run.

Each process leases its connections to an IP address from the store before it opens
them, extends the lease well before its end, and gives back what it does not use.
A process that could not extend closes its connections before the lease ends, by its
own clock from before the lease was asked for; one that dies holds nobody up for
longer than the lease. While the store is away nobody gets new seats.

Where others wait and have none, a holder lets connections go after their round and
takes its turn again. One call is under way at a time, for all addresses that want
something: a second call that came before the first could say what is no longer so.
"""

import logging
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

import trio

from mailprobe.engine.background import log_fault, supervised
from mailprobe.engine.smtp.connection_budget import Sitter
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.lease_allocation import SeatsAsked

log = logging.getLogger("mailprobe.fleet")

LEASE_S = 12.0  # as long as a dead process holds others up
EXTEND_S = 4.0  # after the lease's beginning: there is time for many tries
WIND_UP_S = 2.0  # before its end: nobody sits down any more, and rounds end
CUT_S = 0.5  # before its end: connections are closed, whatever they wait for
WANT_S = 3.0  # a question's clock: who has not asked again for so long wants none
KEEP_S = 3.0  # an unused seat is kept: the next address of a list may want it
LOOK_S = 0.25  # between two looks whether others wait
TICK_S = 0.1  # between two looks at the clock, and two tries to get a seat
FAILED_S = 0.25  # after a call that failed
RETURN_S = 1.0  # for giving all back at the end
GROUP_MAX = 100  # addresses in one call: a transaction of a few milliseconds


class Ledger(Protocol):
    """What is needed of the store; see mailprobe.storage.contract.Store."""

    async def lease_seats(
        self, holder: str, asked: Mapping[str, SeatsAsked], *, limit: int, lease_s: float
    ) -> Mapping[str, int]: ...

    async def seats_asked_back(self, holder: str, *, limit: int) -> Mapping[str, int]: ...

    async def return_seats(self, holder: str) -> None: ...


@dataclass(slots=True)
class _Place:
    """One IP address, and what is ours of it. Times are trio's clock."""

    held: int = 0  # leased
    until: float = -math.inf  # the lease's end, counted from before it was asked for
    used: int = 0  # connections
    spare_since: float = math.inf  # not all that is held was used
    wanted_until: float = -math.inf
    asked_back: int = 0
    denied: bool = False  # one more was wanted, and not granted
    known: bool = True  # to the store, just as it is here
    queued: bool = False  # the store has us wait
    asking: bool = False  # in the call under way
    told: tuple[int, bool] = (0, False)  # how many may be used, and whether they are short

    def at(self, now: float) -> int:
        return 0 if now >= self.until - WIND_UP_S else max(0, self.held - self.asked_back)

    @property
    def short(self) -> bool:
        return self.denied or self.asked_back > 0

    def wants(self, now: float, limit: int) -> bool:
        return now < self.wanted_until and self.used >= self.held < limit and not self.asked_back

    def gives(self, now: float) -> int:
        """How many go back: those asked for, where nobody sits there, and what is not needed."""
        spare = max(0, self.held - self.used)
        if self.asked_back:
            return min(spare, self.asked_back)
        return spare if now - self.spare_since >= KEEP_S else 0

    def due(self, now: float, limit: int) -> bool:
        """Is there something to be said to the store?"""
        if not self.known or self.wants(now, limit) or self.gives(now):
            return True
        if self.held:
            return now >= self.until - LEASE_S + EXTEND_S
        return self.queued and now >= self.wanted_until

    @property
    def empty(self) -> bool:
        return not (self.held or self.used or self.queued or self.asking) and self.known


class LeasedSeats:
    """The seats of this process; see mailprobe.engine.smtp.connection_budget.Seats."""

    def __init__(self, store: Ledger, limit: int) -> None:
        self.holder = uuid4().hex  # another one for each start: nobody inherits a lease
        self._store = store
        self._limit = limit
        self._sitter: Sitter | None = None
        self._places: dict[str, _Place] = {}
        self._due: dict[str, None] = {}  # in the order in which they are spoken of
        self._stirred = trio.Event()
        self._peopled = trio.Event()  # there is a place
        self._look_at = math.inf
        self._away = False  # the store, when it was last asked

    # -- what the engine asks ----------------------------------------------------------------

    def open_for(self, sitter: Sitter) -> None:
        self._sitter = sitter

    def at(self, address: str) -> int:
        place = self._places.get(address)
        return place.at(trio.current_time()) if place else 0

    def short(self, address: str) -> bool:
        place = self._places.get(address)
        return place is not None and place.short

    def want(self, address: str) -> None:
        place = self._place(address)
        place.wanted_until = trio.current_time() + WANT_S
        if not place.denied:  # else the clock asks again
            self._stir(address)

    def used(self, address: str, count: int) -> None:
        place = self._place(address)
        if count < place.used:
            place.spare_since = trio.current_time()
            if place.asked_back:
                self._stir(address)
        place.used = count
        if count >= place.held:
            place.spare_since = math.inf

    def _place(self, address: str) -> _Place:
        place = self._places.get(address)
        if place is None:
            place = self._places[address] = _Place()
            self._peopled.set()
        return place

    def _stir(self, address: str) -> None:
        self._due[address] = None
        self._stirred.set()

    # -- the strict clock --------------------------------------------------------------------

    async def keep_time(self) -> None:
        """End leases before the store does, and say what is due. Runs until cancelled."""
        while True:
            if not self._places:
                self._peopled = trio.Event()
                await self._peopled.wait()
            await trio.sleep(TICK_S)
            now = trio.current_time()
            for address, place in list(self._places.items()):
                try:
                    self._look_at_clock(address, place, now)
                except Exception:
                    log_fault(self._look_at_clock)

    def _look_at_clock(self, address: str, place: _Place, now: float) -> None:
        if place.held and now >= place.until - CUT_S:
            self._end(address, place)
        if place.denied and now >= place.wanted_until:
            place.denied = False
        self._tell(address, place)
        if place.asking:
            return
        if place.due(now, self._limit):
            self._stir(address)
        elif place.empty and now >= place.wanted_until:
            del self._places[address]

    def _end(self, address: str, place: _Place) -> None:
        place.held = place.asked_back = 0
        place.known = False
        place.spare_since = math.inf
        if self._sitter is not None:
            self._sitter.seats_ended(address)

    def _tell(self, address: str, place: _Place) -> None:
        """Tell the engine what has changed; that connections are to go, again and again."""
        at = place.at(trio.current_time())
        state = at, place.short
        if state != place.told or place.used > at:
            place.told = state
            if self._sitter is not None:
                self._sitter.seats_changed(address)

    # -- the calls ---------------------------------------------------------------------------

    async def deal(self) -> None:
        """Speak with the store whenever there is something to be said. Runs until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._look_at):
                await self._stirred.wait()
            self._stirred = trio.Event()
            try:
                if trio.current_time() >= self._look_at:
                    await self._look()
                while self._due:
                    await self._lease()
            except StoreUnavailable as error:
                if not self._away:
                    log.warning("no seats at exchanges are leased: %s", error)
                self._away = True
                await trio.sleep(FAILED_S)
            except Exception:
                log_fault(self.deal)
                await trio.sleep(FAILED_S)
            else:
                self._away = False

    async def _lease(self) -> None:
        """Say once what is wanted of all addresses that are due, or of as many as a call takes."""
        began = trio.current_time()
        asked: dict[str, SeatsAsked] = {}
        while self._due and len(asked) < GROUP_MAX:
            address = next(iter(self._due))
            del self._due[address]
            place = self._places.get(address)
            if place is not None and place.due(began, self._limit):
                asked[address] = self._wish(place, began)
        if not asked:
            return
        try:
            granted = await self._store.lease_seats(
                self.holder, asked, limit=self._limit, lease_s=LEASE_S
            )
        except StoreUnavailable:
            for address in asked:
                self._places[address].known = False
            raise
        finally:
            for address in asked:
                self._places[address].asking = False
        for address, wish in asked.items():
            self._take(address, wish, granted[address], began)
        self._look_at = min(self._look_at, began + LOOK_S)

    def _wish(self, place: _Place, now: float) -> SeatsAsked:
        """What is said of the place. Seats that are given back are not used from here on."""
        gives = place.gives(now)
        place.held -= gives
        place.asked_back -= min(gives, place.asked_back)
        place.asking = True
        if place.held <= place.used:
            place.spare_since = math.inf
        return SeatsAsked(place.held, place.held + place.wants(now, self._limit))

    def _take(self, address: str, wish: SeatsAsked, granted: int, began: float) -> None:
        place = self._places[address]
        place.known = True
        place.queued = wish.wanted > 0 and not granted
        place.denied = wish.wanted > granted
        if granted < wish.held:  # the store has seen the lease end, whatever our clock says
            self._end(address, place)
        if granted > wish.held:
            place.wanted_until = -math.inf  # who wants another one says so
        place.held = granted
        place.asked_back = min(place.asked_back, granted)
        place.known = True
        if granted:
            place.until = began + LEASE_S
            if granted > place.used and place.spare_since == math.inf:
                place.spare_since = trio.current_time()
        self._tell(address, place)

    async def _look(self) -> None:
        """Ask whether others wait for what we hold."""
        self._look_at = math.inf
        if not any(place.held for place in self._places.values()):
            return
        self._look_at = trio.current_time() + LOOK_S
        back = await self._store.seats_asked_back(self.holder, limit=self._limit)
        for address, place in list(self._places.items()):
            place.asked_back = min(back.get(address, 0), place.held)
            self._tell(address, place)
            if place.asked_back and place.gives(trio.current_time()):
                self._stir(address)


@asynccontextmanager
async def open_seats(store: Ledger, limit: int) -> AsyncIterator[LeasedSeats]:
    """Seats that are shared by all who have this store; what is left is given back at the end.

    To be closed after the engine, whose connections hold them, and before the store.
    """
    seats = LeasedSeats(store, limit)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervised, seats.keep_time)
            nursery.start_soon(supervised, seats.deal)
            try:
                yield seats
            finally:
                nursery.cancel_scope.cancel()
    finally:
        with (
            suppress(StoreUnavailable),  # the leases end by themselves
            trio.CancelScope(shield=True, deadline=trio.current_time() + RETURN_S),
        ):
            await store.return_seats(seats.holder)


def is_shared(database: str) -> bool:
    """May several processes have this store? A second service may come to a file at any time."""
    return database != "memory:"
