"""Layer 4: accepts probes and settles each of them once, by whichever egress.

It chooses the egress that asks about a probe, finds the host of its exchange, and fails over to the
next exchange or egress. A probe is settled by its deadline at the latest, even if its connection
still waits; a later reply is dropped.
"""

from collections.abc import Callable, Iterable, Sequence

import trio

from ..background import log_fault
from ..dns.messages import AddressAnswer, Addresses, MailExchange
from ..dns.routes import Routes
from ..evidence import ConnectionAttempt
from ..observer import NO_OBSERVER, Observer
from ..settings import EngineSettings
from ..verdict import LADDER, Outcome
from .address_lookups import (
    NEVER_TRIED,
    NO_ADDRESS,
    AddressLookups,
    cause_without_address,
)
from .catchall import RANDOM_UNANSWERED, UNANSWERED_S, DomainAcceptance
from .controls import CHANGED_RULE, CHANGED_S, UNCONFIRMED_RULE
from .egress.hosts import EgressHosts
from .egress.overview import HostOverview
from .egress.relief import EgressRelief, Relieved
from .host.catchall_tests import continue_test, leave_host, refused_as_unknown
from .host.host import Host, HostEgress
from .operators import MailOperators
from .probe import AWAITS_EGRESS, EGRESS_OUT_RULE, NO_EGRESS_RULE, Cause, Probe
from .replies.rules import Rules
from .tolerance.limits import BAN_RULE
from .turn import Turn

UNANSWERED = (Outcome.TIMED_OUT, Outcome.CONVERSATION_FAILED)
OVERDUE = Cause(Outcome.TIMED_OUT, "clock.overall", "no answer by its deadline")
EGRESS_OUT = Cause(Outcome.NO_EGRESS, EGRESS_OUT_RULE, "its egress may ask no more")
PERMIT_CLOCK = "clock.permit"  # likewise, because no permit was free
CHANGED = (Outcome.HOST_CHANGED, CHANGED_RULE)


class Probing:
    """Every probe under way."""

    __slots__ = (
        *("_now", "_routes", "_watched", "address_lookups", "egresses", "observer", "operators"),
        *("overview", "relief", "rules", "turn"),
    )

    def __init__(
        self,
        settings: EngineSettings,
        routes: Routes,
        rules: Rules,
        operators: MailOperators,
        observer: Observer,
        hosts_of: Callable[["Probing"], Sequence[EgressHosts]],
        relief_of: Callable[["Probing"], EgressRelief | None],
    ) -> None:
        """`hosts_of` makes those of each egress, which call this. `relief_of`: see EgressRelief."""
        self.rules = rules
        self.operators = operators
        self.observer = observer
        self._watched = observer is not NO_OBSERVER
        self._routes = routes
        self._now = trio.lowlevel.current_clock().current_time
        self.turn = Turn[Host](settings, self)
        self.address_lookups = AddressLookups(
            routes, self._found, self.next_exchange, self.turn.run
        )
        self.egresses = tuple(hosts_of(self))
        self.relief = relief_of(self)
        if self.relief is not None:
            self.turn.subscribe(self.relief.held.room_freed)  # before any list does
        self.overview = HostOverview(self.egresses, self.turn, are_named=self.relief is not None)

    def egress_for_list(self, domain: str, exchanges: Sequence[MailExchange]) -> EgressHosts | None:
        """The egress at whose hosts a list waits for this domain; None where none may ask."""
        relief = self.relief
        return relief.choice.hosts_for_list(domain, exchanges) if relief else self.egresses[0]

    def submit(self, probe: Probe) -> None:
        """Start the probe's deadline and queue it; `on_settled` is called once, in a turn.

        The caller runs the turn once it has submitted all that it has.
        """
        if self.relief is None:
            self.turn.begin((probe,))
            self.queue_by(self.egresses[0], probe)
            return
        if self.relief.held.is_due:
            self.relief.held.release()  # they have waited longer
        way = self.relief.way_for(probe)
        probe.target.belong_to(self.egresses[0] if way is None else way.hosts)
        self.turn.begin((probe,))
        if way is not None:
            self.turn.queue(probe)
        elif self.relief.is_awaited(probe):
            self.relief.held.hold(probe)
        else:
            self.settle(probe, Outcome.NO_EGRESS, NO_EGRESS_RULE)

    def queue_by(self, hosts: HostEgress, probe: Probe) -> None:
        """Try its exchanges by this egress once there is a place for it. Its clock has begun."""
        probe.target.belong_to(hosts)
        self.turn.queue(probe)

    def submit_to(self, host: Host, probes: Sequence[Probe]) -> None:
        """As submit(), probes whose first exchange has this host. Some may go to another egress."""
        others: Sequence[Probe] = ()
        if self.relief is not None:
            if not probes:
                return
            here = list(probes)
            if (tried := self.relief.trials.begin(here[0])) is not None:
                self.turn.begin(here[:1])
                self.queue_by(tried.hosts, here.pop(0))
            granted = self.relief.grant(host, here) if here else 0
            probes = here[:granted]
            others = here[granted:]
        if not self.turn.begin_together(probes):
            self.turn.begin(probes)
            for probe in probes:
                self.queue_by(host.egress, probe)
        else:
            for probe in probes:
                probe.target.belong_to(host.egress)
                if self._watched or probe.notes is not None:
                    self._recall_addresses(probe)
                probe.target.try_exchange(0)
            host.egress.join(host, probes)
        for probe in others:
            self.submit(probe)

    # -- egresses that a file names --------------------------------------------------------------

    def _relieved(self, probe: Probe, outcome: Outcome, rule: str) -> bool:
        """Does another egress go on? A bug there must not keep the answer from the caller."""
        if self.relief is None:
            return False
        try:
            relieved = self.relief.relieve(probe, outcome, rule)
            successor = (
                self._pass_on(self.relief, probe, outcome, rule, relieved)
                if relieved.passes_on
                else None
            )
            if relieved.lost_trial is not None:
                self.relief.trials.unreached(relieved.lost_trial, probe, successor)
        except Exception:
            log_fault(self.relief.relieve)
            return probe.result.successor is not None  # which has its deadline, and the answer
        return successor is not None

    def _pass_on(
        self, relief: EgressRelief, probe: Probe, outcome: Outcome, rule: str, relieved: Relieved
    ) -> Probe:
        """Another egress asks again: return its probe, which takes over place and deadline.

        For the sessions that still have it, the former probe is settled with this outcome.
        """
        if probe.clock.stopped_at is not None:
            self.turn.count_places([probe])
        successor = probe.successor_by(probe.target.egress.name, doubted=relieved.doubted)
        successor.target.belong_to(self.egresses[0] if relieved.way is None else relieved.way.hosts)
        probe.result.pass_on(outcome, rule, successor)
        self.turn.pass_on(probe, successor)
        self.address_lookups.drop(probe)
        host: Host | None = probe.target.host
        if host is not None:
            leave_host(probe)
            self.turn.mark_freed(host)
        if relieved.way is None:
            relief.held.hold(successor)
        else:
            self.next_exchange(successor)
        return successor

    def withdrawn(self, probe: Probe) -> bool:
        """Is another egress to ask? Then the probe is settled here: by what an exchange said, if any."""
        if self.relief is None or not self.relief.is_withdrawn(probe):
            return False
        if probe.result.accepted or not self._relieved(probe, Outcome.NO_EGRESS, EGRESS_OUT_RULE):
            cause = EGRESS_OUT if probe.attempts.cause in NEVER_TRIED else probe.attempts.cause
            self.settle(probe, cause.outcome, cause.rule)
        return True

    # -- settling --------------------------------------------------------------------------------

    def _recall_addresses(self, probe: Probe) -> None:
        self.observer.recalled("addresses")
        if probe.notes is not None and not probe.notes.lookup_took:
            probe.notes.cached.append("addresses")

    def settle(self, probe: Probe, outcome: Outcome, rule: str) -> None:
        """Settle the probe unless it is settled already."""
        if probe.result.outcome is not None:
            return
        if outcome is Outcome.TIMED_OUT and probe.target.host is not None:
            probe.target.host.times.note_slow()
        if outcome is Outcome.HOST_CHANGED:
            probe.result.retry_after(CHANGED_S)
        elif probe.result.accepted:
            outcome, rule = _of_accepted(probe, outcome, rule)
        elif outcome in UNANSWERED:
            outcome, rule = _of_unanswered(probe, outcome, rule)
        if self._watched:
            self._report(probe, outcome, rule)
        if self.relief is not None and self._relieved(probe, outcome, rule):
            return
        host: Host | None = probe.target.host
        probe.result.settle(outcome, rule)
        try:
            if self.address_lookups.pending:
                self.address_lookups.drop(probe)
            if host is not None:
                host.load.leave()
            self.turn.end(probe, host)
        except Exception:  # a bug in a host's bookkeeping must not keep the answer from the caller
            log_fault(self.turn.end)
        domain: DomainAcceptance = probe.target.domain
        if probe.result.accepted:
            continue_test(domain)
        elif (
            outcome is Outcome.UNDELIVERABLE
            and host is not None
            and domain.at.unknown_mailbox == probe.mailbox
        ):
            refused_as_unknown(host, domain)

    def _report(self, probe: Probe, outcome: Outcome, rule: str) -> None:
        name = probe.target.exchange.name if probe.target.exchanges else ""
        self.observer.probe_decided(
            probe.target.egress.name, self.operators.id_of(name), outcome, rule
        )

    def abandon(self, probes: Iterable[Probe]) -> None:
        """The caller has gone: drop the probes without a report."""
        abandoned = [each for each in (probe.latest for probe in probes) if not each.settled]
        for probe in abandoned:
            host: Host | None = probe.target.host
            probe.result.settle(Outcome.TIMED_OUT, "abandoned")
            self.address_lookups.drop(probe)
            probe.target.leave_host()
            self.turn.end(probe, host, is_reported=False)
        for probe in abandoned:
            # Was it to carry its domain's test? Then another one does, and may need a connection.
            if (
                probe.result.accepted
                and (carrier := continue_test(probe.target.domain)) is not None
            ):
                carrier.staff()
        self.turn.run()

    def fail_over(self, probe: Probe, cause: Cause) -> None:
        """The exchange tried last failed: try the next one, or settle.

        If it refuses this egress, another one asks it before a less preferred exchange is asked.
        """
        if probe.settled:
            return
        if probe.clock.stopped_at is not None:  # it does not wait for a permit any more
            self.turn.count_places([probe])
        probe.attempts.note_cause(cause)
        if cause.outcome is Outcome.TIMED_OUT and probe.target.host is not None:
            probe.target.host.times.note_slow()
        # A backup exchange could not judge in its place.
        final = cause.outcome not in UNANSWERED or cause.rule == BAN_RULE
        if final or probe.attempts.exhausted:
            self.settle(probe, cause.outcome, cause.rule)
        elif not (
            cause.about_us
            and probe.target.next_exchange
            and self._relieved(probe, cause.outcome, cause.rule)
        ):
            self.next_exchange(probe)

    # -- trying the exchanges in order --------------------------------------------------------

    def next_exchange(self, probe: Probe) -> None:
        """Try its next exchange, or the first; without one it is settled."""
        leave_host(probe)
        if self.withdrawn(probe):
            return
        while probe.target.place + 1 < len(probe.target.exchanges):
            probe.target.try_exchange(probe.target.place + 1)
            exchange = probe.target.exchange
            known = self._routes.cached_addresses(exchange.name)
            if known is None:
                self.address_lookups.begin(probe, probe.target.place)
                return
            self._recall_addresses(probe)
            if self._enter(probe, exchange.name, known):
                return
        if not self.address_lookups.waits(probe):  # else a look-up may still find one
            cause = probe.attempts.cause or NO_ADDRESS
            self.settle(probe, cause.outcome, cause.rule)

    def _found(self, probe: Probe, place: int, answer: AddressAnswer) -> None:
        """The look-up of an exchange is done: try it, or go on if it was the latest one begun."""
        if self.withdrawn(probe):
            return
        last = probe.target.place
        probe.target.try_exchange(place)
        if not self._enter(probe, probe.target.exchanges[place].name, answer):
            probe.target.try_exchange(last)
            if place == last or not self.address_lookups.waits(probe):
                self.next_exchange(probe)

    def _enter(self, probe: Probe, name: str, answer: AddressAnswer) -> bool:
        """Queue the probe at the exchange's host; False if it has no usable address."""
        egress = probe.target.egress
        if isinstance(answer, Addresses) and (usable := egress.network.usable(answer.ips)):
            self.address_lookups.drop(probe)
            egress.join(egress.host_at(usable, name, patient=probe.patient), (probe,))
            return True
        cause = cause_without_address(answer, egress.network.of_family)
        if probe.notes is not None:
            probe.notes.tried.append(ConnectionAttempt(name, None, cause.words))
        # The cause of an exchange that was tried says more than that of an untried one.
        if probe.attempts.cause in NEVER_TRIED:
            probe.attempts.note_cause(cause)
        return False

    def expire(self, probe: Probe) -> None:
        """Its deadline has passed."""
        if self.address_lookups.waits(probe) and probe.attempts.cause in NEVER_TRIED:
            cause = self.address_lookups.cause_at_deadline(probe)
            self.settle(probe, cause.outcome, cause.rule)
        elif probe.result.unconfirmed is not None:
            has_changed = probe.target.host.controls.has_changed(self._now())
            self.settle(probe, *(CHANGED if has_changed else probe.result.unconfirmed))
        else:
            self.time_out(probe)

    def time_out(self, probe: Probe) -> None:
        cause = probe.attempts.cause if probe.attempts.cause is AWAITS_EGRESS else OVERDUE
        self.settle(probe, cause.outcome, cause.rule)


def _of_accepted(probe: Probe, outcome: Outcome, rule: str) -> tuple[Outcome, str]:
    """The verdict of a probe that its host has accepted before."""
    if not LADDER[outcome].valid:
        # It was sent again only for the catch-all test, and the reply was another.
        outcome, rule = Outcome.DELIVERABLE_UNTESTED, RANDOM_UNANSWERED
    may_accept_all = (probe.result.of_record and probe.has_patience) or (
        probe.deferred_start
        and probe.target.host is not None
        and probe.target.host.controls.accepted_all(probe.target.host.now())
    )
    if outcome is Outcome.DELIVERABLE_UNTESTED and may_accept_all:
        if probe.has_patience:
            probe.result.retry_after(probe.result.retry_s or UNANSWERED_S, probe.result.takes)
        return Outcome.UNCONFIRMED, UNCONFIRMED_RULE
    return outcome, rule


def _of_unanswered(probe: Probe, outcome: Outcome, rule: str) -> tuple[Outcome, str]:
    """The verdict of a probe without an answer: by its cause, if that is known."""
    before, egress = probe.objections.verdict, probe.target.egress
    if before is not None and before[0] is not Outcome.UNDELIVERABLE:  # which is to be proved
        return before[0], before[1].rule  # it was sent again only because of a limit
    if rule == OVERDUE.rule and egress.permits.were_lacking(probe, egress.settings):
        return Outcome.NO_CONNECTION_FREE, PERMIT_CLOCK
    return outcome, rule
