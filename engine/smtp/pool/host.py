"""The interface between a pool and the dispatcher that it belongs to."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import trio

from ...dns.deadlines import DeadlineClock
from ...net.dialer import Dial
from ...net.reactor import ByteChannel
from ...observer import Observer
from ...settings import EngineSettings
from ...verdict import Outcome
from ..catchall import Domains
from ..controls import EgressControls
from ..host_memory import HostMemory
from ..operators import MailOperators
from ..probe import Cause, Probe
from ..replies.rules import Rules
from ..tolerance.hosts import Tolerances

if TYPE_CHECKING:
    from ..permits import Permits
    from ..pools import Pools
    from ..turn import Turn
    from .hedges import Hedges
    from .left_connections import LeftConnections
    from .pool import Pool


class HostFindings(Protocol):
    """Shares what pools find with other engines; implemented by host_shared_cache.HostSharedCache."""

    def pool_opened(self, pool: "Pool", name: str) -> None: ...
    def refused_once(self, names: Iterable[str], cause: Cause) -> None: ...
    def backed_off(self, pool: "Pool", addresses: Iterable[str], cause: Cause) -> None: ...


class PoolHost(Protocol):
    """What a pool needs of layer 4; implemented by dispatcher.ProbeDispatcher."""

    settings: EngineSettings
    rules: Rules
    operators: MailOperators
    tolerances: Tolerances
    dial: Dial
    domains: Domains
    controls: EgressControls | None
    observer: Observer
    pools: "Pools"
    permits: "Permits"
    hedges: "Hedges"
    left_connections: "LeftConnections"
    opening_clock: DeadlineClock
    host_memory: HostMemory
    host_shared_cache: "HostFindings | None"
    closing: bool
    turn: "Turn[Pool]"

    def start(self, task: Callable[..., Any], *args: Any) -> None: ...
    def open_channel(self, stream: trio.abc.Stream) -> ByteChannel: ...
    def suspend_clock(self, probe: Probe) -> None: ...
    def restart_clock(self, probe: Probe) -> None: ...
    def settle(self, probe: Probe, outcome: Outcome, rule: str) -> None: ...
    def fail_over(self, probe: Probe, cause: Cause) -> None: ...
    def withdrawn(self, probe: Probe) -> bool: ...
    async def other_addresses(self, pool: "Pool", account: str) -> tuple[str, ...]: ...
