"""Connection leases in dictionaries."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

import trio

from mailprobe.storage.lease_allocation import Lease, LeaseRequest, allocate, revocable


class MemoryLeases:
    """How many connections to an address each process may hold."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._by_address: dict[str, dict[str, Lease]] = {}  # by address, by holder

    async def lease_connections(
        self, holder: str, asked: Mapping[str, LeaseRequest], *, limit: int, lease_s: float
    ) -> dict[str, int]:
        await trio.lowlevel.checkpoint()
        now = self._now()
        granted = {}
        for address, command in asked.items():
            leases = self._by_address.setdefault(address, {})
            lease = allocate(leases.values(), holder, command, now, limit=limit, lease_s=lease_s)
            granted[address] = lease.connections if lease else 0
            if lease:
                leases[holder] = lease
            else:
                leases.pop(holder, None)
        return granted

    async def revocable_connections(self, holder: str, *, limit: int) -> dict[str, int]:
        await trio.lowlevel.checkpoint()
        now = self._now()
        back = {
            address: revocable(leases.values(), now, limit=limit)[holder]
            for address, leases in self._by_address.items()
        }
        return {address: leases for address, leases in back.items() if leases}

    async def return_connections(self, holder: str) -> None:
        await trio.lowlevel.checkpoint()
        for leases in self._by_address.values():
            leases.pop(holder, None)

    def _reclaim_leases(self, until_max: datetime) -> None:
        for leases in self._by_address.values():
            for holder, lease in leases.items():
                leases[holder] = replace(lease, until=min(lease.until, until_max))

    def _drop_leases(self, now: datetime) -> None:
        standing = {
            address: {holder: lease for holder, lease in leases.items() if lease.until > now}
            for address, leases in self._by_address.items()
        }
        self._by_address = {address: leases for address, leases in standing.items() if leases}
