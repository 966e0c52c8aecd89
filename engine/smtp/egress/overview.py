"""Mail hosts that are left alone, and those that have refused recipients: for the operator."""

from collections.abc import Iterable, Sequence

import trio
from msgspec import Struct
from msgspec.structs import replace

from ...observer import EngineStatistics
from ..backoff import RestingHost
from ..host.host import Host
from ..host_memory import HostMemory
from ..operators import OTHERS
from ..tolerance.hosts import SpentBudget
from ..turn import Turn
from .hosts import EgressHosts


class HostOverview(Struct, frozen=True):
    """The mail hosts of all egresses, for the operator."""

    _egresses: Sequence[EgressHosts]
    _turn: Turn[Host]
    are_named: bool  # by a file

    def hosts_backing_off(self) -> list[RestingHost]:
        """The mail hosts that are left alone now, and why; by which egress, if a file names them."""
        now = trio.current_time()
        return [
            replace(host, words=f"{egress.name}: {host.words}") if self.are_named else host
            for egress in self._egresses
            for host in resting_hosts(egress.all_hosts(), egress.host_memory, now)
        ]

    def spent_budgets(self) -> list[SpentBudget]:
        """The hosts that have refused recipients within the hour, and what they tolerate."""
        now = trio.current_time()
        return [
            SpentBudget(
                egress.client,
                key,
                host.tolerance.known.label or OTHERS,
                host.tolerance.budget.refusals.guard.recent(now),
                refused,
                host.tolerance.known.tolerance,
                host.tolerance.known.is_careful,
                max(0.0, host.tolerance.budget.bans.rest_until - now),
            )
            for egress in self._egresses
            for key, host in {each.identity.key: each for each in egress.hosts.values()}.items()
            if (refused := host.tolerance.budget.refusals.in_hour(now))
        ]

    def statistics(self) -> EngineStatistics:
        """Return current counts. Visits every host: call it once a second, not per address.

        A host counts once for each egress that has asked it.
        """
        now = trio.current_time()
        hosts = [host for egress in self._egresses for host in egress.all_hosts()]
        return EngineStatistics(
            probes=self._turn.under_way,
            probes_in_flight=len(self._turn.waiting),
            probes_waiting=sum(len(host.waiting) for host in hosts),
            connections=sum(egress.permits.in_use for egress in self._egresses),
            hosts=sum(len(egress.hosts) for egress in self._egresses),
            hosts_backing_off=sum(host.rest.backoff.active(now) for host in hosts),
            hosts_waiting=sum(egress.permits.demand for egress in self._egresses),
        )


def resting_hosts(hosts: Iterable[Host], memory: HostMemory, now: float) -> list[RestingHost]:
    """The mail hosts that are left alone now, and why: also those that refused other engines."""
    resting = [each for each in hosts if each.rest.backoff.active(now) and each.rest.cause]
    own = {name for host in resting for name in host.identity.names}
    found = [(host.identity.name, host.rest.backoff.until, host.rest.cause) for host in resting]
    found += [each for each in memory.resting_names(now) if each[0] not in own]
    return [
        RestingHost(name, cause.words, cause.about_us, until - now)
        for name, until, cause in found
        if cause is not None
    ]
