"""Back-off of one mail host, and the outcome of probes that wait meanwhile.

The host, a domain there or a name of the host may be backing off; each has its own cause.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from ...evidence import NOT_ASKED, ConnectionAttempt
from ...fair_queue import FairQueue
from ...observer import Observer
from ...verdict import Outcome
from ..backoff import BACKOFF_AFTER, NEVER, HostBackoff
from ..catchall import DomainAcceptance
from ..host_memory import HostMemory
from ..patience import HostClocks
from ..probe import Cause, Probe
from ..tolerance.host import Tolerance
from ..tolerance.limits import BAN_RULE, BUDGET_RULE
from .connections import HostConnections, HostSessions
from .identity import HostIdentity

NO_BUDGET = Cause(
    Outcome.HOST_BUDGET,
    BUDGET_RULE,
    "the refusals that it takes from us are used up for now",
)
RATE_REST = Cause(
    Outcome.HOST_BUDGET, BUDGET_RULE, "it takes only so many recipients from us in a time"
)
DEFERRED_FAILURES_MAX = 3  # after more, probes are settled instead of deferred


class HostFindings(Protocol):
    """Shares back-offs with other engines; implemented by host_shared_cache.HostSharedCache."""

    def refused_once(self, names: Iterable[str], cause: Cause) -> None: ...
    def backed_off(
        self, names: Iterable[str], backoff: HostBackoff, addresses: Iterable[str], cause: Cause
    ) -> None: ...


class SentOnProbes(Protocol):
    """The probes under way; implemented by probing.Probing."""

    observer: Observer

    def fail_over(self, probe: Probe, cause: Cause) -> None: ...
    def withdrawn(self, probe: Probe) -> bool: ...


class HostStaff(Protocol):
    """The connections of one host; implemented by staffing.Staffing."""

    connections: HostConnections
    sessions: HostSessions


class HostParts(Protocol):
    """One host, as far as what is learned of it needs the rest; implemented by host.Host."""

    clocks: HostClocks
    tolerance: Tolerance
    identity: HostIdentity
    rest: "HostRest"
    now: Callable[[], float]

    @property
    def waiting(self) -> FairQueue[Probe]: ...
    @property
    def staffing(self) -> HostStaff: ...


class HostRest(Struct, eq=False):
    """Until when one host is left alone, or one of its names, and why."""

    _host: HostParts
    _memory: HostMemory
    _findings: HostFindings | None
    _probes: SentOnProbes
    backoff: HostBackoff = field(default_factory=HostBackoff)
    cause: Cause | None = None
    names_until: float = NEVER  # the latest back-off of one of its names

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
        """A list only waits for this host: allow its second try now."""
        self.backoff = self.backoff.without_pause(now)

    def struck_elsewhere(self) -> None:
        """The host refused another engine: a first failure here is the second."""
        if not self.backoff.failures:
            self.backoff = HostBackoff(1)

    def name_rests(self, until: float) -> None:
        """Do not connect to one of its names until then."""
        self.names_until = max(self.names_until, until)

    # -- failures --------------------------------------------------------------------------------

    def record_failure(
        self,
        cause: Cause,
        addresses: Sequence[str],
        *,
        at_once: bool = False,
        until: float = NEVER,
    ) -> None:
        """The host has failed, or refuses us, at these addresses.

        The owner of a domain may name the address of another's host beside his own: so no other
        address is left alone. `at_once`: at its first failure. `until`: so long at least.
        """
        host, now, before = self._host, self._host.now(), self.backoff
        host.staffing.connections.host_failed()
        failed = (
            replace(before, failures=max(before.failures, BACKOFF_AFTER - 1)) if at_once else before
        )
        self.backoff = failed.after_failure(now, refused=cause.about_us)
        if until > self.backoff.until:
            self.backoff = replace(self.backoff, until=until)
        self.cause = cause
        is_on, findings = self.backoff.active(now), self._findings
        if is_on and self.backoff.until > before.until:
            self._probes.observer.host_backed_off(refused=cause.about_us)
        if findings is not None and not is_on:
            findings.refused_once(host.identity.names, cause)
        if is_on:
            self._memory.record(host.identity.names, self.backoff, addresses, cause)
            if findings is not None:
                findings.backed_off(host.identity.names, self.backoff, addresses, cause)
            host.staffing.sessions.withdraw_all()
            self.send_on(cause)

    def end(self) -> None:
        """A recipient was answered: the host and its names are not left alone any more."""
        if self.backoff.failures:
            self.backoff = HostBackoff()
        had_names, self.names_until = self.names_until != NEVER, NEVER
        if had_names:
            self._memory.record_success(self._host.identity.names)

    # -- probes that wait meanwhile --------------------------------------------------------------

    def cause_for(self, probe: Probe, now: float) -> Cause | None:
        """The cause of the back-off of the host, the domain or the name; None without one."""
        domain: DomainAcceptance = probe.target.domain
        if now < self.backoff.until:
            return self.cause
        cause = None
        if now < domain.at.backoff_until:
            cause = domain.at.backoff_cause
        elif now < self.names_until:
            cause = self._memory.name_backoff(probe.target.exchange.name, now)
        return None if cause is None or self.is_outwaited(cause) else cause

    def is_outwaited(self, cause: Cause) -> bool:
        """Is this host patient, and the cause one that failed by silence?"""
        return self._host.clocks.patient and cause.outcome is Outcome.TIMED_OUT

    def cause_at(self, address: str) -> Cause | None:
        """The back-off of this address, whichever host or engine failed there, as its cause.

        None without one, and while the host serves us: then an attempt must dial. One that only
        found its addresses in back-off would end, and be planned again, without time passing.
        """
        cause = self._memory.address_backoff(address)
        serves_us = self._host.staffing.sessions.open
        return None if cause is None or serves_us or self.is_outwaited(cause) else cause

    def reject(self, probe: Probe, cause: Cause) -> None:
        """Do not send the probe here, for this cause."""
        host = self._host
        cause = self._reported_cause(probe, cause)
        if probe.notes is not None:
            probe.notes.cached.append("rest")
            words = f"{NOT_ASKED}, resting: {cause.words}"
            probe.notes.tried.append(
                ConnectionAttempt(host.identity.name, host.identity.addresses[0], words)
            )
        self._probes.fail_over(probe, cause)

    def send_on(self, cause: Cause) -> None:
        """Fail over every probe that waits here."""
        for probe in self._host.waiting.pop_all():
            if not probe.settled and probe.target.host is self._host:
                self._probes.fail_over(probe, self._reported_cause(probe, cause))

    def _reported_cause(self, probe: Probe, cause: Cause) -> Cause:
        """Note when the probe may be retried, if that is known. Returns the cause to report.

        If the host limits its rate, a list's row was not refused itself: it reports RATE_REST.
        """
        rate, until, now = self._host.tolerance.budget.rate, self.backoff.until, self._host.now()
        if cause.rule == BAN_RULE:
            probe.result.retry_after(max(0.0, until - now))
            return cause
        if not (rate.is_limited and probe.has_patience):
            return cause
        until = max(until, rate.rest.until, probe.target.domain.at.backoff_until)
        if now >= until:
            return cause
        probe.result.retry_after(until - now)
        return RATE_REST
