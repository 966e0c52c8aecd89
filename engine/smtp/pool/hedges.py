"""Connecting to the next exchange of probes while their exchange is silent.

A hedge only opens a connection: connect, banner, EHLO. Its probes move there when the silent
exchange has failed, and not before: a less preferred exchange may refuse or accept every
recipient, so it must not answer for one that is only slow. Of exchanges with the same preference,
the first one to greet takes the probes. Addresses of a list are not hedged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...dns.messages import Addresses
from ...dns.routes import Routes
from ...evidence import ConnectionAttempt
from ..probe import Probe
from .openings import HEDGE_S
from .pool import Pool
from .pools import Pools


@dataclass(slots=True, eq=False)
class Hedges:
    """The hedges of one egress, and the address look-ups that they wait for."""

    _routes: Routes
    _pools: Pools
    _usable: Callable[[tuple[str, ...]], tuple[str, ...]]  # those that may be dialled
    _start: Callable[..., None]  # begins a contained task
    _looking_up: set[str] = field(default_factory=set)  # exchanges
    # The silent pools for which a pool is connecting now, by that pool.
    _silent: dict[Pool, dict[Pool, None]] = field(default_factory=dict)

    def hedge(self, silent: Pool, probes: Sequence[Probe]) -> None:
        """This pool is silent: connect to the next exchange of each of these that waits there."""
        exchanges: dict[str, str] = {}  # name -> account
        for probe in probes:
            if silent.waiting.is_gone(probe) or probe.deferred_start:
                continue
            if (exchange := probe.next_exchange) is not None:
                exchanges.setdefault(exchange.name, probe.asker)
        for name, account in exchanges.items():
            known = self._routes.cached_addresses(name)
            if known is None:
                self._look_up(name, account, silent)
            elif isinstance(known, Addresses) and (usable := self._usable(known.ips)):
                self._connect(self._pools.find(usable, name), silent, probes)

    def is_wanted(self, pool: Pool) -> bool:
        """May probes of a silent pool still move to this one?"""
        return any(silent.staffing.is_silent for silent in self._silent.get(pool, ()))

    def greeted(self, pool: Pool) -> None:
        for silent in self._silent.pop(pool, ()):
            if silent.staffing.is_silent:
                move_equals(pool, silent, list(silent.waiting))

    def gave_up(self, pool: Pool) -> None:
        """The pool has no connection any more."""
        self._silent.pop(pool, None)

    def _connect(self, pool: Pool, silent: Pool, probes: Sequence[Probe]) -> None:
        if pool is silent:
            return
        if pool.staffing.sessions.open:
            move_equals(pool, silent, probes)
        elif pool.staffing.connections.now or connect_ahead(pool):
            self._silent.setdefault(pool, {})[silent] = None

    def _look_up(self, name: str, account: str, silent: Pool) -> None:
        if name not in self._looking_up:
            self._looking_up.add(name)
            self._start(self._find, name, account, silent)

    async def _find(self, name: str, account: str, silent: Pool) -> None:
        try:
            await self._routes.addresses(name, account)
        finally:
            self._looking_up.discard(name)
        if silent.staffing.is_silent and self._routes.cached_addresses(name) is not None:
            self.hedge(silent, list(silent.waiting))
            silent.turn.run()


def connect_ahead(pool: Pool) -> bool:
    """Open this pool's first connection, though no probe waits here; False if it may not be."""
    now = pool.now()
    if pool.rest.is_on(now) or pool.egress.closing:
        return False
    if not any(map(pool.egress.permits.available, pool.addresses)):
        return False
    pool.open_connection(None)
    return True


def move_equals(pool: Pool, silent: Pool, probes: Sequence[Probe]) -> None:
    """Move here those of the probes for which this host and the silent one are equally preferred.

    The two exchanges change places, so the silent one is the next if this one fails.
    """
    now, moved = pool.now(), []
    if pool.rest.is_on(now):
        return
    for probe in probes:
        if silent.waiting.is_gone(probe) or probe.deferred_start:
            continue
        exchange = probe.next_exchange
        if exchange is None or exchange.name not in pool.names:
            continue
        if exchange.preference != probe.exchanges[probe.exchange_index].preference:
            continue
        if pool.domains.refusal(pool.host, probe.domain, now) is not None:
            continue
        probe.prefer_next_exchange()
        if probe.notes is not None:
            words = f"silent for {HEDGE_S:g} s, an equal exchange was quicker"
            probe.notes.tried.append(ConnectionAttempt(silent.name, silent.addresses[0], words))
        silent.leave()
        moved.append(probe)
    if moved:
        pool.join(moved, now)
        pool.turn.mark_freed(silent)
