"""Choosing the recipients of the next batch of a session, and beginning it."""

from collections import deque
from typing import TYPE_CHECKING

from mailprobe.engine.evidence import ConnectionAttempt
from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.catchall import DomainAcceptance
from mailprobe.engine.smtp.probe import Probe
from mailprobe.engine.smtp.session.batch import BatchReplies, CatchAllTest, PendingProbe
from mailprobe.engine.smtp.session.failures import return_probes
from mailprobe.engine.smtp.session.transaction import RECIPIENTS_MAX, REFUSALS_MAX
from mailprobe.engine.verdict import Outcome

if TYPE_CHECKING:
    from mailprobe.engine.smtp.session.session import SmtpSession


def pick_recipients(session: "SmtpSession") -> list[PendingProbe]:
    """The recipients of the next batch; tests that are due go first."""
    if not session.tests and not session.host.any_waiting():
        return []
    now, room = session.now(), room_for(session)
    asked: list[PendingProbe] = []
    while session.tests and len(asked) < room:
        asked.append(session.tests.popleft())
    # If the host limits transactions, the test must fit into this one.
    spare = int(session.conversation.offer.transactions_max is not None and room > 1)
    untested: set[str] = set()
    while len(asked) < room - spare and (probe := session.host.next_probe(now)) is not None:
        domain: DomainAcceptance = probe.domain_here
        if now >= domain.known_until and domain.needs_test(now):
            untested.add(probe.domain)
        if session.recipients + len(asked) + 1 + len(untested) > RECIPIENTS_MAX:
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
    if asked and session.transaction.must_open(asked) and not session.transaction.may_open(asked):
        return_probes(session, asked)
        return []
    return asked


def room_for(session: "SmtpSession") -> int:
    offer = session.conversation.offer
    room = min(REFUSALS_MAX - session.refusals, RECIPIENTS_MAX - session.recipients)
    if session.host.one_each or not offer.pipelining:
        return min(room, 1)
    room = min(room, session.host.window())
    return min(room, offer.recipients_max or room)


def add_tests(session: "SmtpSession", asked: list[PendingProbe], room: int, now: float) -> None:
    """Append the random address behind the real ones if there is room.

    If the batch is full, a test follows only once a real address was accepted.
    """
    if len(asked) >= room:
        return
    for probe in list(asked):
        if isinstance(probe, Probe) and probe.domain_here.needs_test(now):
            asked.append(new_test(session, probe.domain_here))
            if len(asked) >= room:
                return


def new_test(session: "SmtpSession", domain: DomainAcceptance) -> CatchAllTest:
    domain.testing = True
    return CatchAllTest(domain, session.host.random_mailbox(domain))


def begin_batch(session: "SmtpSession", asked: list[PendingProbe]) -> BatchReplies:
    """Begin a batch: none of its recipients is answered."""
    session.unanswered = deque(asked)
    session.received = received = BatchReplies(
        asked, session.conversation.offer.pipelining, session.batches > 0
    )
    session.batches += 1
    session.elsewhere.clear()
    received.began = session.now()
    received.recipients = [wire.rcpt(each.mailbox) for each in asked]
    for each in asked:
        session.pairing.add(each.mailbox)
        if isinstance(each, Probe):
            each.conversations += 1
            each.addresses_tried += 1
            if each.deadline > received.until:
                received.until = each.deadline
            if each.notes is not None:
                received.noted = True
                attempt = ConnectionAttempt(session.host.name, session.address, "answered")
                session.recorder.record_start(each, attempt, reused=received.reused)
        else:
            received.tests = True
    if not received.until:
        received.until = float("inf")
    received.alone = not received.pipelined and len(asked) == 1 and not received.noted
    return received
