"""Connecting to the next exchange of probes while their exchange is silent.

A hedge only opens a connection: connect, banner, EHLO. Its probes move there when the silent
exchange has failed, and not before: a less preferred exchange may refuse or accept every
recipient, so it must not answer for one that is only slow. Of exchanges with the same preference,
the first one to greet takes the probes. Addresses of a list are not hedged.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from ...dns.messages import Addresses
from ...dns.routes import Routes
from ...evidence import ConnectionAttempt
from ..probe import Probe
from .host import Host
from .hosts import Hosts
from .openings import HEDGE_S


class Hedges(Struct, eq=False):
    """The hedges of one egress, and the address look-ups that they wait for."""

    _routes: Routes
    _hosts: Hosts
    _usable: Callable[[tuple[str, ...]], tuple[str, ...]]  # those that may be dialled
    _start: Callable[..., None]  # begins a contained task
    _looking_up: set[str] = field(default_factory=set)  # exchanges
    # The silent hosts for which a host is connecting now, by that host.
    _silent: dict[Host, dict[Host, None]] = field(default_factory=dict)

    def hedge(self, silent: Host, probes: Sequence[Probe]) -> None:
        """This host is silent: connect to the next exchange of each of these that waits there."""
        exchanges: dict[str, str] = {}  # name -> account
        for probe in probes:
            if silent.waiting.is_gone(probe) or probe.deferred_start:
                continue
            if (exchange := probe.target.next_exchange) is not None:
                exchanges.setdefault(exchange.name, probe.asker)
        for name, account in exchanges.items():
            known = self._routes.cached_addresses(name)
            if known is None:
                self._look_up(name, account, silent)
            elif isinstance(known, Addresses) and (usable := self._usable(known.ips)):
                self._connect(self._hosts.find(usable, name), silent, probes)

    def is_wanted(self, host: Host) -> bool:
        """May probes of a silent host still move to this one?"""
        return any(silent.staffing.is_silent for silent in self._silent.get(host, ()))

    def greeted(self, host: Host) -> None:
        for silent in self._silent.pop(host, ()):
            if silent.staffing.is_silent:
                move_equals(host, silent, list(silent.waiting))

    def gave_up(self, host: Host) -> None:
        """The host has lost its last connection."""
        self._silent.pop(host, None)

    def _connect(self, host: Host, silent: Host, probes: Sequence[Probe]) -> None:
        if host is silent:
            return
        if host.staffing.sessions.open:
            move_equals(host, silent, probes)
        elif host.staffing.connections.now or connect_ahead(host):
            self._silent.setdefault(host, {})[silent] = None

    def _look_up(self, name: str, account: str, silent: Host) -> None:
        if name not in self._looking_up:
            self._looking_up.add(name)
            self._start(self._find, name, account, silent)

    async def _find(self, name: str, account: str, silent: Host) -> None:
        try:
            await self._routes.addresses(name, account)
        finally:
            self._looking_up.discard(name)
        if silent.staffing.is_silent and self._routes.cached_addresses(name) is not None:
            self.hedge(silent, list(silent.waiting))
            silent.turn.run()


def connect_ahead(host: Host) -> bool:
    """Open this host's first connection before any probe waits here; False if it may not."""
    now = host.now()
    if (
        host.rest.is_on(now)
        or host.egress.closing
        or not any(map(host.egress.permits.available, host.identity.addresses))
    ):
        return False
    host.open_connection(None)
    return True


def move_equals(host: Host, silent: Host, probes: Sequence[Probe]) -> None:
    """Move here those of the probes for which this host and the silent one are equally preferred.

    The two exchanges change places, so the silent one is the next if this one fails.
    """
    now, moved = host.now(), []
    if host.rest.is_on(now):
        return
    for probe in probes:
        if silent.waiting.is_gone(probe) or probe.deferred_start:
            continue
        exchange = probe.target.next_exchange
        if (
            exchange is None
            or exchange.name not in host.identity.names
            or exchange.preference != probe.target.exchange.preference
        ):
            continue
        if host.egress.domains.refusal(host.identity.key, probe.domain, now) is not None:
            continue
        probe.target.prefer_next_exchange()
        if probe.notes is not None:
            words = f"silent for {HEDGE_S:g} s, an equal exchange was quicker"
            probe.notes.tried.append(
                ConnectionAttempt(silent.identity.name, silent.identity.addresses[0], words)
            )
        silent.load.leave()
        moved.append(probe)
    if moved:
        host.join(moved, now)
        host.turn.mark_freed(silent)
