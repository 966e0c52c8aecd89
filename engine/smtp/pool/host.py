"""What the connections of a pool need of layer 4."""

from collections.abc import Callable
from typing import Any, Protocol

import trio

from ...dns.deadlines import DeadlineClock
from ...net.dialer import Dial
from ...net.reactor import ByteChannel
from .hedges import Hedges
from .left_connections import LeftConnections
from .permits import Permits
from .pool import Pool, PoolHost
from .pools import Pools


class ConnectionHost(PoolHost, Protocol):
    """Implemented by dispatcher.ProbeDispatcher."""

    dial: Dial
    pools: Pools
    hedges: Hedges
    left_connections: LeftConnections
    opening_clock: DeadlineClock

    @property
    def permits(self) -> Permits: ...
    def start(self, task: Callable[..., Any], *args: Any) -> None: ...
    def open_channel(self, stream: trio.abc.Stream) -> ByteChannel: ...
    async def other_addresses(self, pool: Pool, account: str) -> tuple[str, ...]: ...
