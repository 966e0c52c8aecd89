"""The end of a catch-all test, for the accepted probes of its domain."""

from math import inf

from ...verdict import Outcome
from ..catchall import (
    RANDOM_UNANSWERED,
    Acceptance,
    DomainAcceptance,
    deciding_rule,
)
from ..controls import CHANGED_RULE, UNCONFIRMED_RULE, Treatment
from ..leases.name_claims import ELSEWHERE_S
from ..probe import Probe
from ..tolerance.host import list_wait_s
from ..tolerance.limits import Kind
from .host import Host


def settle_awaiting(
    host: Host, domain: DomainAcceptance, acceptance: Acceptance, *, in_time: bool
) -> None:
    """The test was answered: settle the probes that await it."""
    now, tolerance, controls = host.now(), host.tolerance, host.controls
    if acceptance is Acceptance.UNASKED:
        host.egress.probes.observer.budget_lacking(tolerance.known.label, random=True)
    for probe in host.egress.domains.learn(domain, acceptance, now, in_time=in_time):
        outcome, rule = acceptance.outcome, deciding_rule(acceptance, probe.result.rule)
        if acceptance is Acceptance.ELSEWHERE:
            probe.result.retry_after(ELSEWHERE_S)
        if (
            acceptance is Acceptance.SOME
            and probe.has_patience
            and host.terms.limits.limits_connection
            and probe.result.of_record == inf  # no recipient was refused shortly before
        ):
            outcome, rule = Outcome.UNCONFIRMED, UNCONFIRMED_RULE
            # The name's refusal is the one shortly before the next acceptance.
            probe.result.retry_after(list_wait_s(probe.patience_s))
            domain.forget()
        if acceptance is Acceptance.UNASKED and not probe.settled:
            room_s = tolerance.next_room_s(
                Kind.NAME if probe.deferred_start else Kind.LONE_NAME,
                probe.asker,
                now,
                probe.patience_s,
            )
            probe.result.retry_after(
                max(room_s, host.times.names_rest_s(now)), tolerance.known.takes
            )
            # Seen to judge since: what the address lacks is its domain's name alone.
            if (
                probe.result.of_record
                and controls.seen_at[Treatment.REFUSED] > probe.result.of_record
            ):
                probe.result.note_record(None)
            if probe.deferred_start:
                tolerance.turned_away(probe.asker, now, untested=domain.name)
        host.egress.probes.settle(probe, outcome, rule)


def refused_as_unknown(host: Host, domain: DomainAcceptance) -> None:
    """A listed address of the domain is settled as unknown."""
    now = host.now()
    host.controls.note_listed_refused(domain, now)
    host.egress.domains.note_refused(host.identity.key, now)


def leave_host(probe: Probe) -> None:
    """The probe goes elsewhere. If it was to carry its domain's test, another one does."""
    probe.target.leave_host()
    if probe.result.accepted:
        continue_test(probe.target.domain)


def continue_test(domain: DomainAcceptance) -> Host | None:
    """An accepted probe of the domain is gone. If it was to carry the test, another one does.

    Returns the host at which it does.
    """
    awaiting = () if domain.testing else domain.awaiting
    hosts = (each.target.host for each in awaiting if not each.settled)
    host: Host | None = next(filter(None, hosts), None)
    if host is not None:
        repeat_test(host, domain)
    return host


def repeat_test(host: Host, domain: DomainAcceptance) -> None:
    """The test was not sent: repeat it.

    One of the accepted probes is sent again on another connection with the test behind
    it. If none has a conversation left, all are settled as untested.
    """
    domain.withdraw_test()
    half_s = host.egress.settings.probe_s / 2
    while (again := domain.pop_carrier()) is not None:
        its_host: Host = again.target.host  # counterparts share their domains
        domain.begin_test()  # if it is settled, or goes elsewhere, the next one follows here
        # If time is short, addresses that were not sent yet go first.
        is_short = not again.deferred_start and again.clock.deadline - host.now() <= half_s
        its_host.waiting.requeue(again, last=is_short)
        domain.withdraw_test()
        if not its_host.waiting.is_gone(again):
            if its_host is not host:
                its_host.staff()
            return
    outcome, rule = Outcome.DELIVERABLE_UNTESTED, RANDOM_UNANSWERED
    if host.controls.has_changed(host.now()):
        outcome, rule = Outcome.HOST_CHANGED, CHANGED_RULE
    for probe in domain.pop_awaiting():
        host.egress.probes.settle(probe, outcome, rule)
