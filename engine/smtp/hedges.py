"""Dialling the next exchange of probes whose exchange is silent, beside the silent one."""

from collections.abc import Callable

from mailprobe.engine.dns.messages import Addresses
from mailprobe.engine.dns.routes import Routes
from mailprobe.engine.smtp.pool.hedging import queue_hedged
from mailprobe.engine.smtp.pool.pool import Pool
from mailprobe.engine.smtp.pools import Pools


class Hedges:
    """The hedges of one dispatcher, and the address look-ups that they wait for."""

    __slots__ = ("_looking_up", "_pools", "_routes", "_start", "_usable")

    def __init__(
        self,
        routes: Routes,
        pools: Pools,
        usable: Callable[[tuple[str, ...]], tuple[str, ...]],
        start: Callable[..., None],
    ) -> None:
        """`usable` keeps the addresses that may be dialled; `start` begins a contained task."""
        self._routes = routes
        self._pools = pools
        self._usable = usable
        self._start = start
        self._looking_up: set[str] = set()  # exchanges

    def hedge(self, pool: Pool) -> None:
        """The pool's exchange is silent: dial the next exchange of each probe that waits there."""
        for probe in list(pool.waiting):
            if probe.settled or probe.pool is not pool or probe.hedge_index >= 0:
                continue
            index = probe.exchange_index + 1
            if index >= len(probe.exchanges):
                continue
            name = probe.exchanges[index].name
            known = self._routes.cached_addresses(name)
            if known is None:
                self._look_up(name, probe.asker, pool)
            elif isinstance(known, Addresses) and (usable := self._usable(known.ips)):
                other = self._pools.find(usable, name)
                if other is not pool:
                    queue_hedged(other, probe, index)

    def _look_up(self, name: str, account: str, pool: Pool) -> None:
        if name not in self._looking_up:
            self._looking_up.add(name)
            self._start(self._find, name, account, pool)

    async def _find(self, name: str, account: str, pool: Pool) -> None:
        try:
            await self._routes.addresses(name, account)
        finally:
            self._looking_up.discard(name)
        if pool.silent and self._routes.cached_addresses(name) is not None:
            self.hedge(pool)
