"""Choosing the recipients of the next batch of a session, and beginning it."""

from collections import deque
from typing import TYPE_CHECKING

from mailprobe.engine.evidence import ConnectionAttempt
from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.catchall import DomainAcceptance
from mailprobe.engine.smtp.probe import Probe
from mailprobe.engine.smtp.session.batch import BatchReplies, CatchAllTest, PendingProbe
from mailprobe.engine.smtp.session.failures import return_probes
from mailprobe.engine.smtp.session.limited import is_known_already
from mailprobe.engine.smtp.session.transaction import RECIPIENTS_MAX
from mailprobe.engine.verdict import Outcome

if TYPE_CHECKING:
    from mailprobe.engine.smtp.session.session import SmtpSession


def pick_recipients(session: "SmtpSession") -> list[PendingProbe]:
    """The recipients of the next batch; a control that is due goes first, then tests."""
    now, asked = session.now(), due_control(session)
    if asked:
        return openable(session, asked)
    drop_needless_tests(session)
    if not session.tests and not session.host.any_waiting():
        return []
    if now >= session.limits.until:
        session.limits.update(now)
    room, recipients_max = room_for(session), min(RECIPIENTS_MAX, session.limits.per_connection)
    while session.tests and len(asked) < room:
        asked.append(session.tests.popleft())
    # If the host limits transactions, the test must fit into this one.
    spare = int(session.conversation.offer.transactions_max is not None and room > 1)
    untested: set[str] = set()
    while len(asked) < room - spare and (probe := session.host.next_probe(now)) is not None:
        domain: DomainAcceptance = probe.domain_here
        if (probe.objections or probe.accepted) and is_known_already(session, probe, now):
            if probe.outcome is None and not domain.testing:
                asked.append(new_test(session, domain, deferred_start=probe.deferred_start))
            continue
        if now >= domain.known_until and domain.needs_test(now) and recipients_max > 1:
            untested.add(probe.domain)
        if session.recipients + len(asked) + 1 + len(untested) > recipients_max:
            session.host.requeue(probe)  # its domain's test would not fit here
            session.leaving = session.leaving or not asked
            break
        if probe.smtputf8 and not session.conversation.offer.smtputf8:
            session.host.settle(probe, Outcome.NEEDS_SMTPUTF8, "smtputf8.not-offered")
        elif asked and not session.transaction.may_share(asked, probe):
            session.host.requeue(probe)
            break
        else:
            asked.append(probe)
    add_tests(session, asked, room, now)
    return openable(session, asked)


def drop_needless_tests(session: "SmtpSession") -> None:
    """A listed address has answered what these were to find out."""
    if session.tests and not all(test.domain.testing for test in session.tests):
        session.tests = deque(test for test in session.tests if test.domain.testing)


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


def room_for(session: "SmtpSession") -> int:
    offer = session.conversation.offer
    recipients_max = min(RECIPIENTS_MAX, session.limits.per_connection)
    room = min(session.refusals_max - session.refusals, recipients_max - session.recipients)
    if not offer.pipelining:
        return min(room, 1)
    return min(room, session.host.window(), session.transaction.recipients_max)


def add_tests(session: "SmtpSession", asked: list[PendingProbe], room: int, now: float) -> None:
    """Append the random address behind the real ones if there is room.

    If the batch is full, a test follows only once a real address was accepted.
    """
    if len(asked) >= room:
        return
    for probe in list(asked):
        if isinstance(probe, Probe) and probe.domain_here.needs_test(now):
            asked.append(new_test(session, probe.domain_here, deferred_start=probe.deferred_start))
            if len(asked) >= room:
                return


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
    if not received.until:
        received.until = float("inf")
    received.alone = not received.pipelined and len(asked) == 1 and not received.noted
    return received
