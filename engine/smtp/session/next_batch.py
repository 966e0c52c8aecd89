"""Choosing the recipients of the next batch of a session, and beginning it."""

from collections import deque
from typing import TYPE_CHECKING

from mailprobe.engine.evidence import ConnectionAttempt
from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.catchall import DomainAcceptance, deciding_rule
from mailprobe.engine.smtp.probe import Probe
from mailprobe.engine.smtp.session.batch import (
    BatchReplies,
    CatchAllTest,
    PendingProbe,
    domain_of,
)
from mailprobe.engine.smtp.session.failures import return_probes
from mailprobe.engine.smtp.session.proof import may_be_slow_to_refuse, needs_check
from mailprobe.engine.smtp.session.transaction import RESETS_MAX
from mailprobe.engine.verdict import Outcome

if TYPE_CHECKING:
    from mailprobe.engine.smtp.session.session import SmtpSession

PRESSED_SHARE = 0.5  # of the time that is left: not all connections are open from the start
TEST_LEFT_S = 0.6  # of a request's clock: then its domain's test goes before other addresses


def pick_recipients(session: "SmtpSession") -> list[PendingProbe]:
    """The recipients of the next batch: a control that is due, else listed ones, then tests.

    A listed address that is refused as unknown makes the test of its domain needless, so the
    tests are a session's last questions.
    """
    now, asked = session.now(), due_control(session)
    if asked:
        return openable(session, asked)
    drop_needless_tests(session)
    if session.host.budget.exhausted(now):
        session.host.budget_exhausted()
    if not session.tests and not session.host.any_waiting():
        return []
    if now >= session.limits.of_host.until:
        session.limits.of_host.update(now)
    left = session.limits.left(now)
    room = room_for(session, left)
    must = bool(session.tests) and must_test(session, now)
    kept = 0 if not session.tests or is_pressed(session, now) else len(session.tests)
    pick_listed(session, asked, min(room - must, left - kept), now)
    if not asked:  # what is left of the room is the tests'
        return pick_tests(session)
    add_tests(session, asked, room, now, must=must)
    return openable(session, asked)


def pick_tests(session: "SmtpSession", *, at_end: bool = False) -> list[PendingProbe]:
    """The tests that are due, as far as the session may send them; the others stay.

    A test waits while a listed address of its domain is unanswered in another session, unless
    a request's clock is nearly over or this session ends: that address may be refused.
    """
    drop_needless_tests(session)
    asked: list[PendingProbe] = []
    budget, now = session.host.budget, session.now()
    at_end = at_end or must_test(session, now)
    of_budget = budget.left_to_tests(now)
    tolerates_tests = of_budget > 0 if at_end else budget.tolerates_tests(now)
    if session.host.refuses_too_late or not tolerates_tests:
        end_tests(session)
    due = [
        test
        for test in session.tests
        if at_end or not session.host.is_under_way_elsewhere(test.domain, session)
    ]
    room = room_for(session, session.limits.left(now))
    for each in due[: max(0, min(room, of_budget))]:
        if asked and not session.transaction.may_share(asked, each):
            break
        asked.append(each)
    if not asked or (
        session.transaction.must_open(asked) and not session.transaction.may_open(asked)
    ):
        return []
    session.tests = deque(test for test in session.tests if test not in asked)
    return asked


def end_tests(session: "SmtpSession") -> None:
    """The host would not refuse a random address in time, or tolerates none at the moment.

    What was accepted stays untested; a later pass of a list asks again, and waits longer.
    """
    tests, session.tests = session.tests, deque()
    for test in tests:
        if test.domain.testing:
            session.host.leave_unasked(test.domain)


def is_pressed(session: "SmtpSession", now: float) -> bool:
    """Would requests run out of time here if this session kept a place for each of its tests?

    Then listed addresses go first, and what is left of the refusals is for the tests.
    """
    clocks = [
        probe.deadline
        for test in session.tests
        if not test.deferred_start
        for probe in test.domain.awaiting
    ]
    return bool(clocks) and PRESSED_SHARE * (min(clocks) - now) < session.host.work_with_tests_s()


def must_test(session: "SmtpSession", now: float) -> bool:
    """Does a request wait for a test, and has it too little time left to wait for others?

    A host that is slow to refuse would not answer it in time.
    """
    return not session.host.slow_to_answer and any(
        not probe.deferred_start and probe.deadline - now < TEST_LEFT_S
        for test in session.tests
        for probe in test.domain.awaiting
    )


def drop_needless_tests(session: "SmtpSession") -> None:
    """A listed address has answered what these were to find out."""
    if session.tests and not all(test.domain.testing for test in session.tests):
        session.tests = deque(test for test in session.tests if test.domain.testing)


def pick_listed(session: "SmtpSession", asked: list[PendingProbe], room: int, now: float) -> None:
    """Append the probes that wait, as far as this session may send them and test their domains."""
    recipients_max = session.limits.recipients_max
    # If the host limits transactions, the test must fit into this one.
    spare = int(session.conversation.offer.transactions_max is not None and room > 1)
    untested: set[str] = set()
    while len(asked) < room - spare and (probe := session.host.next_probe(now)) is not None:
        domain: DomainAcceptance = probe.domain_here
        if (probe.objections or probe.accepted) and is_known_already(session, probe, now):
            if probe.outcome is None and not domain.testing:
                session.tests.append(new_test(session, domain, deferred_start=probe.deferred_start))
                room -= 1
            continue
        if now >= domain.known_until and domain.needs_test(now) and recipients_max > 1:
            untested.add(probe.domain)
        tests = len(session.tests) + len(untested)
        if session.limits.recipients + len(asked) + 1 + tests > recipients_max:
            session.host.requeue(probe)  # its domain's test would not fit here
            session.leaving = session.leaving or not (asked or session.tests)
            break
        if probe.smtputf8 and not session.conversation.offer.smtputf8:
            session.host.settle(probe, Outcome.NEEDS_SMTPUTF8, "smtputf8.not-offered")
        elif asked and not session.transaction.may_share(asked, probe):
            session.host.requeue(probe)
            break
        else:
            asked.append(probe)


def is_known_already(session: "SmtpSession", probe: Probe, now: float) -> bool:
    """Settle a probe that was sent before, if it need not be sent again.

    The rest of those who were refused alike need not, once one of them shows that the
    refusal was no limit. An accepted one need not, if its domain's test was answered
    meanwhile. If a connection is good for one recipient, the test takes it alone: then an
    accepted probe waits here, and the caller sends the test.
    """
    limits = session.limits.of_host
    if probe.refused is not None and limits.is_own(probe.refusal, now):
        session.conclude(probe, *probe.refused)
        return True
    if not probe.accepted or limits.per_connection > 1:
        return False
    domain: DomainAcceptance = probe.domain_here
    known = domain.known(now)
    if known is not None:
        session.host.settle(probe, known.outcome, deciding_rule(known, probe.rule))
    else:
        probe.conversations += 1
        domain.awaiting.append(probe)
    return True


def due_control(session: "SmtpSession") -> list[PendingProbe]:
    """A control, if the held verdicts are not to wait for a reply that confirms them."""
    confirmation = session.confirmation
    if not confirmation.verdicts:
        return []
    now, idle = session.now(), not session.tests and not session.host.any_waiting()
    is_last = idle and now >= confirmation.due_at
    is_due = session.may_send_control and (is_last or confirmation.is_urgent())
    control = confirmation.next_control(now) if is_due else None
    if control is None and is_last:
        confirmation.end(now)
    return [] if control is None else [control]


def openable(session: "SmtpSession", asked: list[PendingProbe]) -> list[PendingProbe]:
    """These, if they need no transaction that the session may not open; else they go back."""
    if asked and session.transaction.must_open(asked) and not session.transaction.may_open(asked):
        return_probes(session, asked)
        return []
    return asked


def room_for(session: "SmtpSession", room: int) -> int:
    """How many of these recipients the next batch may have."""
    offer = session.conversation.offer
    if not offer.pipelining:
        return min(room, 1)
    if session.transaction.resets >= RESETS_MAX and may_be_slow_to_refuse(session):
        return min(room, 1)  # of several, the last one's reply could not be proven
    return min(room, session.host.window(), session.transaction.recipients_max)


def add_tests(
    session: "SmtpSession", asked: list[PendingProbe], room: int, now: float, *, must: bool
) -> None:
    """If nothing else waits, or one `must` be sent: append the tests that are due, and those of requests' domains.

    In a list, a test never shares a batch with a listed address of its domain: that may be
    refused, and a test follows only where one was accepted.
    """
    if not session.tests and all(each.deferred_start for each in asked):
        return
    room = min(room, len(asked) + session.host.budget.left_to_tests(now))
    waits = session.host.any_waiting() and not must
    if len(asked) >= room or waits or session.host.refuses_too_late:
        return
    listed = list(asked)
    domains = {domain_of(each) for each in listed}
    while (
        session.tests
        and len(asked) < room
        and session.tests[0].domain.name not in domains
        and session.transaction.may_share(asked, session.tests[0])
    ):
        asked.append(session.tests.popleft())
    for probe in listed:
        if len(asked) >= room:
            return
        if not isinstance(probe, Probe) or probe.deferred_start:
            continue
        if probe.domain_here.needs_test(now):
            asked.append(new_test(session, probe.domain_here, deferred_start=False))


def new_test(
    session: "SmtpSession", domain: DomainAcceptance, *, deferred_start: bool, shape: int = 0
) -> CatchAllTest:
    domain.testing = True
    mailbox = session.host.random_mailbox(domain, shape)
    return CatchAllTest(domain, mailbox, shape=shape, deferred_start=deferred_start)


def begin_batch(session: "SmtpSession", asked: list[PendingProbe]) -> BatchReplies:
    """Begin a batch: none of its recipients is answered."""
    session.unanswered = deque(asked)
    session.received = received = BatchReplies(
        asked, session.conversation.offer.pipelining, session.batches > 0
    )
    session.batches += 1
    session.elsewhere.clear()
    session.limits.reserve(len(asked))
    received.began = session.now()
    received.idle_s = received.began - session.connection.received_at
    received.recipients = [wire.rcpt(each.mailbox) for each in asked]
    for each in asked:
        session.pairing.add(each.mailbox)
        if isinstance(each, Probe):
            each.conversations += 1
            each.addresses_tried += 1
            if each.stopped_at is not None:  # only for its domain's test, or to be confirmed
                session.host.restart_clock(each)
            if each.deadline > received.until:
                received.until = each.deadline
            if each.notes is not None:
                received.noted = True
                attempt = ConnectionAttempt(session.host.name, session.address, "answered")
                session.recorder.record_start(each, attempt, reused=received.reused)
        else:
            received.tests = True
            each.domain.test_sent = each.domain.testing
            if each.deferred_start:  # only silence ends the wait for its reply
                received.until = float("inf")
    if not received.tests and needs_check(session, asked):
        received.checked = received.check_due = True
        received.recipients.append(wire.NOOP)
        session.transaction.resets += 1
    if not received.until:
        received.until = float("inf")
    received.alone = not received.pipelined and len(asked) == 1 and not received.noted
    return received
