"""The part of the store that shares connections to mail hosts among processes."""

from collections.abc import Mapping

from mailprobe.storage import commands
from mailprobe.storage.base.lease_allocation import LeaseRequest
from mailprobe.storage.store_part import StorePart


class ConnectionLeases(StorePart):
    """Leases of connections to IP addresses."""

    async def lease_connections(
        self, holder: str, asked: Mapping[str, LeaseRequest], *, limit: int, lease_s: float
    ) -> Mapping[str, int]:
        """Lease connections to these IP addresses for `lease_s`; returns the number per address.

        Over all holders at most `limit` connections to an address are leased at a time. The
        holder keeps what it holds, if its lease has not ended, and gets at most one more per
        call: holders without a connection come first. A holder that asked and got none stays
        in the queue as long as it asks again within WAITING_S.
        """
        return await self._execute(commands.LeaseConnections(holder, asked, limit, lease_s))

    def lease_session(self) -> int:
        """Return a number that changes when the database session changes that leases are made in.

        Leases that were made before a change must be requested again within LOST_S, or no
        longer be used: GONE_S after it other holders may get them.
        """
        return self.executor.lease_session()

    async def revocable_connections(self, holder: str, *, limit: int) -> Mapping[str, int]:
        """Return how many connections per address the holder must give up for waiting holders."""
        return await self._execute(commands.RevocableConnections(holder, limit))

    async def return_connections(self, holder: str) -> None:
        """Release all leases of the holder, and its places in the queues."""
        await self._execute(commands.ReturnConnections(holder))
