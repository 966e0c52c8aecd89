"""The part of the store that shares the refusals that mail hosts take."""

from collections.abc import Mapping

from mailprobe.storage.store_part import StorePart
from mailprobe.storage.tolerances.commands import LeaseRefusals, ListTolerances
from mailprobe.storage.tolerances.records import (
    SHOWN_MAX,
    HostKey,
    HostTolerance,
    RefusalGrant,
    RefusalRequest,
    is_sound,
)


class ToleranceStore(StorePart):
    """Refusals that mail hosts take, and what was learned of hosts. See tolerances.records."""

    async def lease_refusals(
        self, holder: str, asked: Mapping[HostKey, RefusalRequest], *, lease_s: float
    ) -> Mapping[HostKey, RefusalGrant]:
        """Note what the holder reports of hosts, and lease refusals to it for `lease_s`.

        Over all holders, refusals within WINDOW_S and leases together are at most the host's
        tolerance. A lease ends earlier if its process ran on this machine and has ended. Durations
        cross, not instants. Raises ValueError for more than HOSTS_MAX, or names that are too long.
        """
        if not is_sound(asked):
            raise ValueError("too many hosts or refusals, or a name that may not be stored")
        return await self._execute(LeaseRefusals(holder, asked, lease_s))

    async def host_tolerances(
        self, egress: str | None = None, *, limit: int = SHOWN_MAX
    ) -> list[HostTolerance]:
        """Return the hosts asked within a day by this egress, or by any; the latest used first."""
        return await self._execute(ListTolerances(egress, min(limit, SHOWN_MAX)))
