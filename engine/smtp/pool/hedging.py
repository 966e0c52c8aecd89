"""One hedge: a connection for probes that may fail over, and moves between equal exchanges."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mailprobe.engine.evidence import ConnectionAttempt
from mailprobe.engine.smtp.pool.connecting import run_connection
from mailprobe.engine.smtp.pool.opening import HEDGE_S
from mailprobe.engine.smtp.probe import Probe

if TYPE_CHECKING:
    from mailprobe.engine.smtp.pool.pool import Pool


def connect_ahead(pool: "Pool") -> bool:
    """Open this pool's first connection, though no probe waits here; False if it may not be."""
    now = pool.now()
    if now < pool.backoff.until or now < pool.names_backoff_until or pool.dispatcher.closing:
        return False
    if not any(map(pool.dispatcher.permits.available, pool.addresses)):
        return False
    pool.connections += 1
    pool.dispatcher.start(run_connection, pool, None)
    return True


def move_equals(pool: "Pool", silent: "Pool", probes: Sequence[Probe]) -> None:
    """Move here those of the probes for which this host and the silent one are equally preferred.

    The two exchanges change places, so the silent one is the next if this one fails.
    """
    now, moved = pool.now(), []
    if now < pool.backoff.until or now < pool.names_backoff_until:
        return
    for probe in probes:
        if silent.session_ended(probe) or probe.deferred_start:
            continue
        place, exchange = probe.exchange_index, probe.next_exchange
        if exchange is None or exchange.name not in pool.names:
            continue
        if exchange.preference != probe.exchanges[place].preference:
            continue
        if now < pool.dispatcher.domains.find(pool.host, probe.domain).backoff_until:
            continue
        probe.exchanges = probe.exchanges.copy()  # it is shared
        probe.exchanges[place : place + 2] = probe.exchanges[place + 1], probe.exchanges[place]
        if probe.notes is not None:
            words = f"silent for {HEDGE_S:g} s, an equal exchange was quicker"
            probe.notes.tried.append(ConnectionAttempt(silent.name, silent.addresses[0], words))
        moved.append(probe)
    if moved:
        silent.present -= len(moved)
        pool.join(moved, now)
        pool.dispatcher.capacity_freed(silent)
