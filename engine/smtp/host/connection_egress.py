"""What the connections of a host need of layer 4."""

from collections.abc import Callable
from typing import Protocol

import trio

from ...background import ContainedTasks
from ...dns.deadlines import DeadlineClock
from ...net.dialer import Dial
from ...net.reactor import ByteChannel
from ..host_memory import HostMemory
from .hedges import Hedges
from .host import Host, HostEgress
from .hosts import Hosts
from .left_connections import LeftConnections
from .permits import Permits


class ConnectionEgress(HostEgress, Protocol):
    """Implemented by egress.hosts.EgressHosts."""

    dial: Dial
    host_memory: HostMemory
    hosts: Hosts
    hedges: Hedges
    left_connections: LeftConnections
    opening_clock: DeadlineClock
    tasks: ContainedTasks
    open_channel: Callable[[trio.abc.Stream], ByteChannel]

    @property
    def permits(self) -> Permits: ...
    async def other_addresses(self, host: Host, account: str) -> tuple[str, ...]: ...
