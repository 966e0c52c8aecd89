"""One mail host as one egress knows it: its queue, its connections, and what was learned of it.

It is found by the addresses of an exchange, so thousands of domains share it and its limits. Every decision is a synchronous function; I/O follows in one
task per connection. The result of a connection attempt applies to every waiting probe: a host
that cannot be reached is tried once, not once for each address.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import trio

from ...settings import EngineSettings
from ...verdict import Outcome
from ..catchall import Domains
from ..controls import HostControls
from ..host_memory import HostMemory
from ..host_policy import Terms
from ..operators import MailOperators
from ..pairing import Renamings
from ..patience import HostClocks, connections_max
from ..probe import Cause, Probe
from ..replies.rules import ReplyMeaning, Rules, Step
from ..session.recipient_limits import REFUSALS_MAX
from ..tolerance.host import Tolerance
from ..tolerance.limits import BAN_RULE
from ..turn import Turn
from ..wire import Conversation, SmtpReply
from .connections import HostConnections, first_throttle
from .identity import HostIdentity
from .queue import HostQueue
from .refusals import RefusalMemory
from .reply_times import UNANSWERED_TEST_S, ReplyTimes
from .resting import HostFindings, HostRest, SentOnProbes
from .staffing import HostLoad, Staffing

TESTING_ROUNDS = 4  # of a session with tests: listed addresses, tests, QUIT, and one to spare


class PermitQueues(Protocol):
    """The permits of addresses; implemented by permits.Permits."""

    def available(self, address: str) -> bool: ...
    def set_demand(self, address: str, host: "Host") -> None: ...
    def is_needed_elsewhere(self, address: str, host: "Host") -> bool: ...


class Probes(SentOnProbes, Protocol):
    """The probes under way; implemented by probing.Probing."""

    rules: Rules
    operators: MailOperators
    turn: "Turn[Host]"

    def settle(self, probe: Probe, outcome: Outcome, rule: str) -> None: ...


class HostEgress(Protocol):
    """What a host needs of its egress; implemented by egress.hosts.EgressHosts."""

    name: str
    settings: EngineSettings
    host_memory: HostMemory
    findings: HostFindings | None
    closing: bool

    @property
    def probes(self) -> Probes: ...
    @property
    def domains(self) -> Domains: ...
    @property
    def permits(self) -> PermitQueues: ...
    def connect(self, host: "Host", permit_at: str | None) -> None: ...
    def join(self, host: "Host", probes: Sequence[Probe]) -> None: ...


class HostKnowledge(NamedTuple):
    """What was learned of a host. A patient host and its counterpart share it."""

    terms: Terms
    renamings: Renamings
    controls: HostControls
    tolerance: Tolerance


class Host:
    """One mail host. Implements `SessionHost` for its sessions."""

    __slots__ = (
        *("clocks", "egress", "identity", "load", "now", "refusals", "rest", "staffing", "times"),
        *("turn", "waiting"),
        *("controls", "renamings", "terms", "tolerance"),  # HostKnowledge
    )

    def __init__(
        self,
        addresses: tuple[str, ...],
        name: str,
        key: str,
        egress: HostEgress,
        known: HostKnowledge,
        *,
        patient: bool,
    ) -> None:
        """`key` is that by which the domains at this host are remembered.

        `patient`: it waits longer for each reply, on few connections.
        """
        self.egress, settings, probes = egress, egress.settings, egress.probes
        self.turn = probes.turn
        self.now: Callable[[], float] = trio.lowlevel.current_clock().current_time
        self.clocks = HostClocks.of(settings, patient)
        self.terms, self.renamings, self.controls, self.tolerance = known
        self.identity = HostIdentity(
            *(probes.operators, self.tolerance.known, self.controls), name, key, addresses
        )
        self.rest = HostRest(self, egress.host_memory, egress.findings, probes)
        self.waiting = HostQueue(self, probes)
        self.times = ReplyTimes(1 if patient else REFUSALS_MAX, distrusted=patient)
        connections = HostConnections(
            first_throttle(connections_max(settings, patient)),
            settings.host_connections,
            probes.observer.limit_lowered,
        )
        self.staffing = Staffing(
            self, connections, settings.host_connections, egress.permits.available
        )
        self.load = HostLoad(self)
        self.refusals = RefusalMemory(self, self.times.late)

    @property
    def known(self) -> HostKnowledge:
        return HostKnowledge(self.terms, self.renamings, self.controls, self.tolerance)

    def follow(self, known: "Host") -> None:
        """Take over what was learned of the host of this name at its former addresses."""
        self.staffing.connections.follow(known.staffing.connections)
        self.terms, self.renamings = known.terms, known.renamings

    def backed_off_elsewhere(self, until: float) -> None:
        """Another engine backs off from one of the host's names: reject the probes that wait here, too."""
        self.rest.name_rests(until)
        if not self.staffing.sessions.open:  # else it serves us here
            self.waiting.reject_resting()
            self.turn.run()

    def join(self, probes: Sequence[Probe], now: float) -> None:
        """Queue probes; during a back-off they fail over with its cause at once."""
        waiting, find_domain, key = self.waiting, self.egress.domains.find, self.identity.key
        for probe in probes:
            domain = find_domain(key, probe.domain, now, probe.mailbox.rpartition("@")[0])
            probe.target.wait_at(self, domain)
            self.load.enter()
            backing_off = self.rest.is_on(now) or now < domain.at.backoff_until
            if backing_off and (cause := self.rest.cause_for(probe, now)) is not None:
                self.rest.reject(probe, cause)
            else:
                waiting.add(probe)
        lease = self.tolerance.budget.lease
        if lease is not None and probes and waiting.count:
            lease.want(self, domain.key if domain.needs_test(now) else "")
        self._staff_waiting()

    def _staff_waiting(self) -> None:
        """Wake sessions, and open a connection, for those that wait."""
        before, woken = -1, self.staffing.sessions.woken
        while self.waiting.count > len(woken) != before:  # until no further one is woken
            before = len(woken)
            self.staff()

    def any_waiting(self) -> bool:
        """Does a probe wait, so that a lease of the host's refusals is of use?"""
        return self.waiting.any()

    @property
    def hour_took(self) -> int:
        """Most refusals within six hours after which the host was seen to judge."""
        return self.controls.record.took

    def refusals_leased(self, hour_took: int) -> None:
        """The lease of the host's refusals has changed: waiting probes are sent or turned away."""
        self.controls.record.trust(hour_took)
        self.staffing.wake_testers()
        self._staff_waiting()
        self.turn.mark_freed(self)
        self.turn.run()

    # -- connections -----------------------------------------------------------------------------

    def staff(self, *, hurried: bool = False) -> None:
        """Wake an idle session, or open a connection if the queue is worth one."""
        if self.egress.closing:
            return
        match self.staffing.plan(is_hurried=hurried):
            case None:
                return
            case "wake":
                self.staffing.sessions.wake_one()
            case "connect":
                self.open_connection(None)
            case "await a permit":
                for address in self.staffing.good_addresses():
                    self.egress.permits.set_demand(address, self)

    @property
    def width(self) -> int:
        """How many probes a session sends at a time."""
        return 1 if self.times.pipelines is False else self.window()

    def open_connection(self, permit_at: str | None) -> None:
        """Open one more; `permit_at` is an address whose permit it holds already."""
        self.staffing.connections.opened()
        self.egress.connect(self, permit_at)

    def connection_ended(self) -> None:
        """Another one may be opened in its place."""
        self.staffing.wake_testers()
        self.open_all()
        if self.staffing.counterpart is not None:
            self.staffing.counterpart.open_all()

    def open_all(self) -> None:
        """Open as many connections as are worth it and allowed."""
        before = -1
        while self.staffing.connections.now != before:
            before = self.staffing.connections.now
            self.staff()

    def adopt(self, address: str) -> bool:
        """Use a permit of the address; False if the host does not need it any more."""
        if not self.staffing.may_adopt():
            return False
        self.open_connection(address)
        return True

    def window(self) -> int:
        width = self.terms.limits.width
        if self.times.pipelines is not None:  # then its greeting is known, and so what it tolerates
            allowed = self.tolerance.budget.session_window(0)
            width = allowed if allowed < width else width
        return self.times.window(width)

    def read(self, step: Step, reply: SmtpReply) -> ReplyMeaning:
        return self.egress.probes.rules.read(step, reply, self.identity.site_id)

    def is_needed_elsewhere(self, address: str) -> bool:
        return self.egress.permits.is_needed_elsewhere(address, self)

    def work_with_tests_s(self) -> float:
        """How long the waiting probes would take if each of their domains were tested.

        Each test uses up one of the refusals of its session, and then another one is opened.
        """
        session_s = self.staffing.openings.opening_s + TESTING_ROUNDS * (
            self.times.pace.batch_s or 0.0
        )
        if not self.waiting.any():
            return 0.0
        sessions = len(self.waiting) / max(1, self.tolerance.known.session_max)
        return session_s * max(1.0, sessions / max(1, self.staffing.limit))

    @property
    def refuses_too_late(self) -> bool:
        """Would a random address get no reply in time, so that it only blocks its connection?

        Yes for a while after one got no reply. At software that is slow by default
        they are sent one at a time until a recipient was refused promptly.
        """
        if self.clocks.patient:
            return False
        now, times = self.now(), self.times
        is_slow = (
            self.tolerance.known.row.slow and now >= times.refused_promptly_at + UNANSWERED_TEST_S
        )
        return times.names_rest_s(now) > 0 or (is_slow and self.staffing.is_testing())

    def blocked(self, words: str) -> bool:
        """The host no longer lets us in. Rest if that is a ban, and return whether it is."""
        if not self.tolerance.blocked(self.now()):
            return False
        cause = Cause(Outcome.CONVERSATION_FAILED, BAN_RULE, words, about_us=True)
        self.rest.record_failure(
            cause, [], at_once=True, until=self.tolerance.budget.bans.rest_until
        )
        return True

    def introduced(self, conversation: Conversation) -> None:
        """A connection is greeted: its reply to EHLO is there."""
        turnaround_s = conversation.received_at - conversation.sent_at
        self.times.greeted(turnaround_s, pipelines=conversation.state.offer.pipelining)
