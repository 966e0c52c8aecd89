"""Mail hosts that are left alone, and those that have refused recipients: for the operator. Pure."""

from collections.abc import Iterable

from ..backoff import RestingHost
from ..host.host import Host
from ..host_memory import HostMemory
from ..operators import OTHERS
from ..tolerance.hosts import SpentBudget


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


def spent_budgets(hosts: Iterable[Host], egress: str, now: float) -> list[SpentBudget]:
    """The hosts that have refused recipients within the hour, and what they take."""
    found = {host.identity.key: host for host in hosts}
    return [
        SpentBudget(
            egress,
            host.identity.key,
            host.tolerance.known.label or OTHERS,
            host.tolerance.budget.refusals.guard.recent(now),
            refused,
            host.tolerance.known.tolerance,
            host.tolerance.known.is_careful,
            max(0.0, host.tolerance.rest_until - now),
        )
        for host in found.values()
        if (refused := host.tolerance.budget.refusals.in_hour(now))
    ]
