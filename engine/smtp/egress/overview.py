"""Mail hosts that are left alone, and those that have refused recipients: for the operator. Pure."""

from collections.abc import Iterable

from ..backoff import RestingHost
from ..host_memory import HostMemory
from ..operators import OTHERS
from ..pool.pool import Pool
from ..tolerance.hosts import SpentBudget


def resting_hosts(pools: Iterable[Pool], memory: HostMemory, now: float) -> list[RestingHost]:
    """The mail hosts that are left alone now, and why: also those that refused other engines."""
    resting = [each for each in pools if each.rest.backoff.active(now) and each.rest.cause]
    own = {name for pool in resting for name in pool.names}
    found = [(pool.name, pool.rest.backoff.until, pool.rest.cause) for pool in resting]
    found += [each for each in memory.resting_names(now) if each[0] not in own]
    return [
        RestingHost(name, cause.words, cause.about_us, until - now)
        for name, until, cause in found
        if cause is not None
    ]


def spent_budgets(pools: Iterable[Pool], egress: str, now: float) -> list[SpentBudget]:
    """The hosts that have refused recipients within the hour, and what they take."""
    found = {pool.host: pool for pool in pools}
    return [
        SpentBudget(
            egress,
            pool.host,
            pool.budget.label or OTHERS,
            pool.budget.recent(now),
            refused,
            pool.budget.tolerance,
            pool.budget.is_careful,
            max(0.0, pool.budget.rest_until - now),
        )
        for pool in found.values()
        if (refused := pool.budget.refused(now))
    ]
