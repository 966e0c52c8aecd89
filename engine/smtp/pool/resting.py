"""Back-off of one mail host, and the outcome of probes that wait meanwhile.

The pool, a domain or a name of the host may be backing off; each has its own cause.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...evidence import ConnectionAttempt
from ...verdict import Outcome
from ..catchall import DomainAcceptance
from ..probe import Cause, Probe
from ..throttle import BACKOFF_AFTER, NEVER, HostBackoff
from ..tolerance.limits import BAN_RULE, BUDGET_RULE

if TYPE_CHECKING:
    from .pool import Pool

NO_BUDGET = Cause(
    Outcome.HOST_BUDGET,
    BUDGET_RULE,
    "the refusals that it takes from us are used up for now",
)
AVOID_S = 5.0  # an address that failed is avoided for so long
DEFERRED_FAILURES_MAX = 3  # after more, probes are settled instead of deferred


class HostRest:
    """Until when one host is left alone, or one of its names, and why. Time is an argument."""

    __slots__ = ("backoff", "cause", "names_until")

    def __init__(self) -> None:
        self.backoff = HostBackoff()
        self.cause: Cause | None = None
        self.names_until = NEVER  # the latest back-off of one of its names

    def is_on(self, now: float) -> bool:
        """Is the host, or one of its names, left alone?"""
        return now < self.backoff.until or now < self.names_until

    def worth_waiting_for(self, now: float) -> bool:
        """The host could not be reached a moment ago: a caller with time should defer its probes."""
        if not self.backoff.failures:
            return False
        refused = self.cause is not None and self.cause.about_us
        may_defer = not refused and self.backoff.failures < DEFERRED_FAILURES_MAX
        return may_defer and self.backoff.doubtful(now)

    def retry_at_once(self, now: float) -> None:
        """A list has nothing else to do than to wait for this host: its second try may come now."""
        self.backoff = self.backoff.without_pause(now)

    def struck_elsewhere(self) -> None:
        """The host refused another engine: a first failure here is the second."""
        if not self.backoff.failures:
            self.backoff = HostBackoff(1)

    def name_rests(self, until: float) -> None:
        """One of its names is not to be connected to until then."""
        self.names_until = max(self.names_until, until)

    def fail(self, cause: Cause, now: float, *, at_once: bool, until: float) -> bool:
        """The host has failed, or refuses us. Returns whether it is left alone for longer by that.

        `at_once`: at its first failure. `until`: so long at least.
        """
        before, rested_until = self.backoff, self.backoff.until
        if at_once:
            before = replace(before, failures=max(before.failures, BACKOFF_AFTER - 1))
        self.backoff = before.after_failure(now, refused=cause.about_us)
        if until > self.backoff.until:
            self.backoff = replace(self.backoff, until=until)
        self.cause = cause
        return self.backoff.until > rested_until

    def end(self) -> bool:
        """A recipient was answered. Returns whether one of its names was left alone."""
        if self.backoff.failures:
            self.backoff = HostBackoff()
        had_names, self.names_until = self.names_until != NEVER, NEVER
        return had_names


def cause_of_backoff(pool: "Pool", probe: Probe, now: float) -> Cause | None:
    """The cause of the back-off of the host, the domain or the name; None without one."""
    domain: DomainAcceptance = probe.domain_here
    if now < pool.rest.backoff.until:
        return pool.rest.cause
    cause = None
    if now < domain.at.backoff_until:
        cause = domain.at.backoff_cause
    elif now < pool.rest.names_until:
        name = probe.exchanges[probe.exchange_index].name
        cause = pool.dispatcher.host_memory.name_backoff(name, now)
    return None if cause is None or is_outwaited(pool, cause) else cause


def is_outwaited(pool: "Pool", cause: Cause) -> bool:
    """Does this pool wait longer than the one that failed by silence?"""
    return pool.patient and cause.outcome is Outcome.TIMED_OUT


def reject_waiting(pool: "Pool", probe: Probe, cause: Cause) -> None:
    if cause.rule == BAN_RULE:
        probe.retry_after(max(0.0, pool.rest.backoff.until - pool.now()))
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
                probe.retry_after(max(0.0, pool.rest.backoff.until - pool.now()))
            pool.fail_over(probe, cause)


def end_backoff(pool: "Pool") -> None:
    """A recipient was answered: the host and its names are not left alone any more."""
    if pool.rest.end():
        pool.dispatcher.host_memory.record_success(pool.names)


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
    now, rest = pool.now(), pool.rest
    if rest.fail(cause, now, at_once=at_once, until=until):
        pool.dispatcher.observer.host_backed_off(refused=cause.about_us)
    facts = pool.dispatcher.host_shared_cache
    if facts is not None and not rest.backoff.active(now):
        facts.refused_once(pool.names, cause)
    if rest.backoff.active(now):
        pool.dispatcher.host_memory.record(pool.names, rest.backoff, addresses, cause)
        if facts is not None:
            facts.backed_off(pool, addresses, cause)
        for session in pool.sessions:
            session.withdraw()
        send_on(pool, cause)
