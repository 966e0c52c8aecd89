"""What the connections of a pool need of layer 4."""

from collections.abc import Callable
from typing import Protocol

import trio

from ...background import ContainedTasks
from ...dns.deadlines import DeadlineClock
from ...net.dialer import Dial
from ...net.reactor import ByteChannel
from ..host_memory import HostMemory
from .hedges import Hedges
from .left_connections import LeftConnections
from .permits import Permits
from .pool import Pool, PoolEgress
from .pools import Pools


class ConnectionEgress(PoolEgress, Protocol):
    """Implemented by egress.hosts.EgressHosts."""

    dial: Dial
    host_memory: HostMemory
    pools: Pools
    hedges: Hedges
    left_connections: LeftConnections
    opening_clock: DeadlineClock
    tasks: ContainedTasks
    open_channel: Callable[[trio.abc.Stream], ByteChannel]

    @property
    def permits(self) -> Permits: ...
    async def other_addresses(self, pool: Pool, account: str) -> tuple[str, ...]: ...
