"""Refusal leases: all processes that share a store share what each mail host tolerates.

Each process leases refusals of a host from the store before it sends anything there, reports those
that it caused, and gives back what it does not use. What was learned of a host goes with it, and
comes back at the next start. The engine decides what is due (engine/smtp/leases/refusal_leases.py); here
are the calls: one is under way at a time, for all hosts of all egresses at once, so that a call
never overtakes another one. While the store is unavailable nothing new is leased.

Durations cross the store, not instants, so no machine's clock matters.
"""

import logging
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import msgspec
import trio
from msgspec.structs import replace

from mailprobe.engine.background import running_loops
from mailprobe.engine.smtp.leases.ledger import (
    LeaseGrant,
    LeaseKeeper,
    RefusalReport,
)
from mailprobe.engine.smtp.leases.refusal_leases import LEASE_S, TICK_S
from mailprobe.storage.base.lease_holders import new_holder
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.store import Store
from mailprobe.storage.tolerances import (
    NAME_MAX,
    HostKey,
    RefusalGrant,
    RefusalRequest,
)

from ..observability.store_outages import RepeatedCalls

log = logging.getLogger("mailprobe.leases")

GROUP_MAX = 100  # hosts in one call: a transaction of a few milliseconds
FAILED_S = 0.25  # after a call that failed
RETURN_S = 1.0  # for reporting and giving back everything at the end


class LeasedRefusals:
    """This process's leases; implements mailprobe.engine.smtp.leases.ledger.RefusalLedger."""

    def __init__(self, store: Store) -> None:
        self.holder = new_holder()  # at each start, so that no lease is inherited
        self._store = store
        self._keepers: dict[str, LeaseKeeper] = {}  # by egress
        self._is_due = trio.Event()
        self._calls = RepeatedCalls("refusal leases", log)

    # -- what the engine calls ---------------------------------------------------------------

    def open_for(self, egress: str, keeper: LeaseKeeper) -> None:
        self._keepers[egress] = keeper

    def wake(self) -> None:
        self._is_due.set()

    # -- the calls ---------------------------------------------------------------------------

    async def allocate(self) -> None:
        """Call the store whenever a host is due. Runs until cancelled."""
        while True:
            with trio.move_on_after(TICK_S if self._is_active else math.inf):
                await self._is_due.wait()
            self._is_due = trio.Event()
            if not await self._calls.try_call(self._lease_due):
                await trio.sleep(FAILED_S)

    async def _lease_due(self) -> None:
        while due := self._due():
            await self._lease(due)

    @property
    def _is_active(self) -> bool:
        return any(keeper.active() for keeper in self._keepers.values())

    def _due(self) -> list[HostKey]:
        """The hosts of the next call. Those that are left are due in the one after it."""
        found: list[HostKey] = []
        for egress, keeper in self._keepers.items():
            for host in keeper.due():
                if len(found) == GROUP_MAX:
                    return found
                found.append((egress, host))
        return found

    async def _lease(self, keys: list[HostKey], *, at_end: bool = False) -> None:
        began = trio.current_time()
        asked: dict[HostKey, RefusalRequest] = {}
        answered: Mapping[HostKey, RefusalGrant] = {}
        for egress, host in keys:
            report = self._keepers[egress].request(host, at_end=at_end)
            asked[egress, host] = _request_of(report)
        try:
            answered = await self._store.lease_refusals(self.holder, asked, lease_s=LEASE_S)
        finally:
            for egress, host in keys:
                grant = answered.get((egress, host))
                if grant is None:
                    self._keepers[egress].failed(host)
                else:
                    made = msgspec.convert(grant, LeaseGrant, from_attributes=True)
                    self._keepers[egress].granted(host, made, began)

    async def return_all(self) -> None:
        """Report what is left to report, and give everything back. Raises StoreUnavailable."""
        keys = [(egress, host) for egress, each in self._keepers.items() for host in each.active()]
        for first in range(0, len(keys), GROUP_MAX):
            await self._lease(keys[first : first + GROUP_MAX], at_end=True)


@asynccontextmanager
async def open_refusal_leases(store: Store) -> AsyncIterator[LeasedRefusals]:
    """Open what hosts tolerate, as it is shared through this store.

    Reports and gives back everything at the end. Close it after the engine, and before the store.
    """
    leases = LeasedRefusals(store)
    try:
        async with running_loops(leases.allocate):
            yield leases
    finally:
        with (
            suppress(StoreUnavailable),  # the leases end by themselves
            trio.CancelScope(shield=True, deadline=trio.current_time() + RETURN_S),
        ):
            await leases.return_all()


def _request_of(report: RefusalReport) -> RefusalRequest:
    """The report as the store takes it: longer names are cut."""
    request = msgspec.convert(report, RefusalRequest, from_attributes=True)
    refusals = [replace(each, account=each.account[:NAME_MAX]) for each in request.refusals]
    return replace(request, refusals=refusals)
