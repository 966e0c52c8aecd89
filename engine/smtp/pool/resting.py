"""Back-off of one mail host, and the outcome of probes that wait meanwhile.

The pool, a domain or a name of the host may be backing off; each has its own cause.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mailprobe.engine.evidence import ConnectionAttempt
from mailprobe.engine.smtp.catchall import DomainAcceptance
from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.throttle import BACKOFF_AFTER, NEVER, HostBackoff
from mailprobe.engine.smtp.tolerance.limits import BAN_RULE, BUDGET_RULE
from mailprobe.engine.verdict import Outcome

if TYPE_CHECKING:
    from mailprobe.engine.smtp.pool.pool import Pool

NO_BUDGET = Cause(
    Outcome.HOST_BUDGET,
    BUDGET_RULE,
    "the refusals that it takes from us are used up for now",
)
AVOID_S = 5.0  # an address that failed is avoided for so long


def cause_of_backoff(pool: "Pool", probe: Probe, now: float) -> Cause | None:
    """The cause of the back-off of the host, the domain or the name; None without one."""
    domain: DomainAcceptance = probe.domain_here
    if now < pool.backoff.until:
        return pool.backoff_cause
    cause = None
    if now < domain.at.backoff_until:
        cause = domain.at.backoff_cause
    elif now < pool.names_backoff_until:
        name = probe.exchanges[probe.exchange_index].name
        cause = pool.dispatcher.host_memory.name_backoff(name, now)
    return None if cause is None or is_outwaited(pool, cause) else cause


def is_outwaited(pool: "Pool", cause: Cause) -> bool:
    """Does this pool wait longer than the one that failed by silence?"""
    return pool.patient and cause.outcome is Outcome.TIMED_OUT


def reject_waiting(pool: "Pool", probe: Probe, cause: Cause) -> None:
    if cause.rule == BAN_RULE:
        probe.retry_after(max(0.0, pool.backoff.until - pool.now()))
    if probe.notes is not None:
        probe.notes.cached.append("rest")
        words = f"not asked, resting: {cause.words}"
        probe.notes.tried.append(ConnectionAttempt(pool.name, pool.addresses[0], words))
    pool.fail_over(probe, cause)


def send_on(pool: "Pool", cause: Cause) -> None:
    """Fail over every probe that waits here."""
    for probe in pool.waiting.pop_all():
        if probe.pool is pool:
            if cause.rule == BAN_RULE:
                probe.retry_after(max(0.0, pool.backoff.until - pool.now()))
            pool.fail_over(probe, cause)


def end_backoff(pool: "Pool") -> None:
    """A recipient was answered: the host and its names are not left alone any more."""
    if pool.backoff.failures:
        pool.backoff = HostBackoff()
    if pool.names_backoff_until != NEVER:
        pool.names_backoff_until = NEVER
        pool.dispatcher.host_memory.record_success(pool)


def record_failure(
    pool: "Pool",
    cause: Cause,
    addresses: Sequence[str],
    *,
    at_once: bool = False,
    until: float = NEVER,
) -> None:
    """The host has failed, or refuses us, at these addresses.

    The owner of a domain may name the address of another's host beside his own: so no other
    address is left alone. `until`: the back-off lasts so long at least.
    """
    pool.connections.host_failed()
    now, rested_until = pool.now(), pool.backoff.until
    if at_once:
        pool.backoff = replace(pool.backoff, failures=max(pool.backoff.failures, BACKOFF_AFTER - 1))
    pool.backoff = pool.backoff.after_failure(now, refused=cause.about_us)
    if until > pool.backoff.until:
        pool.backoff = replace(pool.backoff, until=until)
    pool.backoff_cause = cause
    if pool.backoff.until > rested_until:
        pool.dispatcher.observer.host_backed_off(refused=cause.about_us)
    facts = pool.dispatcher.host_shared_cache
    if facts is not None and not pool.backoff.active(now):
        facts.refused_once(pool.names, cause)
    if pool.backoff.active(now):
        pool.dispatcher.host_memory.record(pool, addresses, cause)
        if facts is not None:
            facts.backed_off(pool, addresses, cause)
        for session in pool.sessions:
            session.withdraw()
        send_on(pool, cause)
