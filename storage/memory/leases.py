"""Leases of seats, as dictionaries."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

import trio

from mailprobe.storage.lease_allocation import Lease, SeatsAsked, asked_back, deal


class Seats:
    """Which process may hold how many connections to an exchange."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._seats: dict[str, dict[str, Lease]] = {}  # by address, by holder

    async def lease_seats(
        self, holder: str, asked: Mapping[str, SeatsAsked], *, limit: int, lease_s: float
    ) -> dict[str, int]:
        await trio.lowlevel.checkpoint()
        now = self._now()
        granted = {}
        for address, wish in asked.items():
            leases = self._seats.setdefault(address, {})
            lease = deal(leases.values(), holder, wish, now, limit=limit, lease_s=lease_s)
            granted[address] = lease.seats if lease else 0
            if lease:
                leases[holder] = lease
            else:
                leases.pop(holder, None)
        return granted

    async def seats_asked_back(self, holder: str, *, limit: int) -> dict[str, int]:
        await trio.lowlevel.checkpoint()
        now = self._now()
        back = {
            address: asked_back(leases.values(), now, limit=limit)[holder]
            for address, leases in self._seats.items()
        }
        return {address: seats for address, seats in back.items() if seats}

    async def return_seats(self, holder: str) -> None:
        await trio.lowlevel.checkpoint()
        for leases in self._seats.values():
            leases.pop(holder, None)

    def _bring_back_seats(self, until_max: datetime) -> None:
        for leases in self._seats.values():
            for holder, lease in leases.items():
                leases[holder] = replace(lease, until=min(lease.until, until_max))

    def _drop_seats(self, now: datetime) -> None:
        standing = {
            address: {holder: lease for holder, lease in leases.items() if lease.until > now}
            for address, leases in self._seats.items()
        }
        self._seats = {address: leases for address, leases in standing.items() if leases}
