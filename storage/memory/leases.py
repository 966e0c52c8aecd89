"""Connection leases in dictionaries."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import cache

from mailprobe.storage.commands import LeaseConnections, ReturnConnections, RevocableConnections
from mailprobe.storage.lease_allocation import Lease, allocate, revocable
from mailprobe.storage.lease_holders import is_gone


class MemoryLeases:
    """How many connections to an address each process may hold."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._by_address: dict[str, dict[str, Lease]] = {}  # by address, by holder

    def lease_connections(self, command: LeaseConnections) -> dict[str, int]:
        now = self._now()
        granted = {}
        gone = cache(is_gone)  # each holder is judged once
        for address, request in command.requested.items():
            leases = self._by_address.setdefault(address, {})
            for holder in list(leases):
                if holder != command.holder and gone(holder):
                    del leases[holder]
            lease = allocate(
                leases.values(),
                command.holder,
                request,
                now,
                limit=command.limit,
                lease_s=command.lease_s,
            )
            granted[address] = lease.connections if lease else 0
            if lease:
                leases[command.holder] = lease
            else:
                leases.pop(command.holder, None)
        return granted

    def lease_session(self) -> int:
        return 0

    def revocable_connections(self, command: RevocableConnections) -> dict[str, int]:
        now = self._now()
        back = {
            address: revocable(leases.values(), now, limit=command.limit)[command.holder]
            for address, leases in self._by_address.items()
        }
        return {address: leases for address, leases in back.items() if leases}

    def return_connections(self, command: ReturnConnections) -> None:
        for leases in self._by_address.values():
            leases.pop(command.holder, None)

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
