"""Queueing a probe at the next exchange as well, because the one before it is silent."""

from typing import TYPE_CHECKING

from mailprobe.engine.evidence import ConnectionAttempt
from mailprobe.engine.smtp.pool.opening import HEDGE_S
from mailprobe.engine.smtp.probe import Probe

if TYPE_CHECKING:
    from mailprobe.engine.smtp.pool.pool import Pool


def queue_hedged(pool: "Pool", probe: Probe, place: int) -> None:
    """Queue the probe here as well, because the exchange before this one is silent.

    The first of the two that greets takes it.
    """
    now = pool.now()
    if now < pool.backoff.until or now < pool.names_backoff_until:
        return
    probe.hedge, probe.hedge_index = pool, place
    pool.waiting.join(probe.asker, probe)
    pool.staff()


def claim_hedged(pool: "Pool", probe: Probe) -> None:
    """This host greeted first: move the probe here from the pool where it waited."""
    silent: Pool = probe.pool
    silent.present -= 1
    pool.dispatcher.capacity_freed(silent)
    if probe.notes is not None:
        words = f"silent for {HEDGE_S:g} s, the next exchange was quicker"
        probe.notes.tried.append(ConnectionAttempt(silent.name, silent.addresses[0], words))
    probe.pool, probe.hedge = pool, None
    probe.exchange_index = probe.hedge_index
    probe.domain_here = pool.dispatcher.domains.find(pool.host, probe.domain)
    pool.present += 1
