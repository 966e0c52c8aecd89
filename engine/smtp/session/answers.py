"""Replies to recipients that change more than one verdict.

Such replies close the session, object to the terms or to the transaction, or answer a catch-all
test. A plain verdict takes `SmtpSession.usual` instead.
"""

from typing import TYPE_CHECKING

from mailprobe.engine.smtp.catchall import Acceptance, DomainAcceptance, deciding_rule
from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.replies.rules import ACCEPTED, Meaning, ReplyMeaning, Step
from mailprobe.engine.smtp.session.batch import BatchReplies, CatchAllTest, PendingProbe, domain_of
from mailprobe.engine.smtp.session.causes import refusal_outcome
from mailprobe.engine.smtp.session.limited import count_refusal, held_as_limit
from mailprobe.engine.smtp.session.next_batch import new_test
from mailprobe.engine.smtp.session.terms import objects_to_terms
from mailprobe.engine.smtp.wire import CommandReply, SmtpReply
from mailprobe.engine.verdict import Outcome

if TYPE_CHECKING:
    from mailprobe.engine.smtp.session.session import SmtpSession


def recipient_answered(
    session: "SmtpSession", asked: PendingProbe, turn: CommandReply, received: BatchReplies
) -> None:
    reply, positive = turn.reply, turn.reply.positive
    reading = ACCEPTED if positive else session.host.read(Step.RCPT, reply)
    session.recipients += 1
    session.transaction.recipients += 1
    session.transaction.domains.add(domain_of(asked))
    if not positive:
        count_refusal(session, refusal_outcome(reply, reading))
        session.refused_promptly = session.refused_promptly or not session.received.late
    if reply.code == 421:
        received.refusal = Cause(
            Outcome.CONVERSATION_FAILED,
            reading.rule,
            f"the server closes: 421 {reply.text[:80]}",
            about_us=reading.about_us,
            replied=True,
        )
        received.goodbye = True
        if isinstance(asked, Probe):
            session.recorder.record_exchange(asked, turn)
        return
    received.first = session.fruitful = True
    session.unanswered.popleft()
    again = not positive and objects_to_terms(session, asked, reading, to_all=False)
    if again:
        session.again.append(asked)
    again = again or (not positive and held_as_limit(session, asked, reply, reading))
    if isinstance(asked, CatchAllTest):
        for probe in asked.domain.awaiting:
            session.recorder.record_exchange(probe, turn)
        if not again:
            test_answered(session, asked, reply, reading)
    else:
        if asked.notes is not None:
            session.recorder.record_exchange(asked, turn)
        if not again:
            session.host.recipient_read(asked.domain_here, reply, reading)
            probe_answered(session, asked, reply, reading)


def test_answered(
    session: "SmtpSession", test: CatchAllTest, reply: SmtpReply, reading: ReplyMeaning
) -> None:
    if reply.positive:
        acceptance = Acceptance.ALL
    elif reply.code >= 500 and reading.meaning in (Meaning.NO_MAILBOX, Meaning.DISABLED):
        acceptance = Acceptance.SOME
    else:
        acceptance = Acceptance.UNTOLD
    session.host.learn(test.domain, acceptance)


def probe_answered(
    session: "SmtpSession", probe: Probe, reply: SmtpReply, reading: ReplyMeaning
) -> None:
    if probe.settled:
        return
    if reply.positive:
        probe_accepted(session, probe, reading)
    else:
        session.host.settle(probe, refusal_outcome(reply, reading), reading.rule)


def probe_accepted(session: "SmtpSession", probe: Probe, reading: ReplyMeaning) -> None:
    domain: DomainAcceptance = probe.domain_here
    known = domain.known(session.connection.received_at)
    if known is not None:
        if probe.notes is not None:
            probe.notes.cached.append("catch_all")
        session.host.settle(probe, known.value, deciding_rule(known, reading.rule))
        return
    probe.accepted = True
    probe.rule = reading.rule
    domain.awaiting.append(probe)
    if not domain.testing:
        session.tests.append(new_test(session, domain))
