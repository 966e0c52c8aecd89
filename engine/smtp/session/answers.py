"""Replies to recipients that change more than one verdict.

Such replies close the session, object to the terms or to the transaction, or answer a catch-all
test. A plain verdict takes `SmtpSession.usual` instead.
"""

from typing import TYPE_CHECKING

from mailprobe.engine.smtp.catchall import Acceptance, DomainAcceptance, deciding_rule
from mailprobe.engine.smtp.controls import HostControls, Treatment
from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.replies.rules import ACCEPTED, Meaning, ReplyMeaning, Step
from mailprobe.engine.smtp.session.batch import (
    BatchReplies,
    CatchAllTest,
    Control,
    PendingProbe,
)
from mailprobe.engine.smtp.session.causes import refusal_outcome
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
    now = session.connection.received_at
    session.limits.count_recipient()
    if reply.code < 500:
        session.limits.count_answer(now, refused=False)
    if not positive:
        session.limits.count_refusal(reply, refusal_outcome(reply, reading), now)
        if not session.received.late:
            session.host.refused_promptly_at = session.connection.received_at
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
    if isinstance(asked, Control):
        session.confirmation.control_answered(asked, reply, reading, session.connection.received_at)
        return
    again = not positive and objects_to_terms(session, asked, reading, to_all=False)
    if again:
        session.again.append(asked)
    if not (again or positive):
        again = session.limits.hold(asked, reply, reading, session.elsewhere, session.now())
    if isinstance(asked, CatchAllTest):
        for probe in asked.domain.awaiting:
            session.recorder.record_exchange(probe, turn)
    elif asked.notes is not None:
        session.recorder.record_exchange(asked, turn)
    if not again:
        own_answer(session, asked, reply, reading)


def own_answer(
    session: "SmtpSession", asked: PendingProbe, reply: SmtpReply, reading: ReplyMeaning
) -> None:
    """The reply speaks of its recipient, not of the terms or of a limit."""
    if isinstance(asked, CatchAllTest):
        test_answered(session, asked, reply, reading)
    else:
        session.host.recipient_read(asked.domain_here, reply, reading)
        probe_answered(session, asked, reply, reading)


def test_answered(
    session: "SmtpSession", test: CatchAllTest, reply: SmtpReply, reading: ReplyMeaning
) -> None:
    acceptance, now = acceptance_of(reply, reading), session.connection.received_at
    domain, controls = test.domain, session.host.controls
    if acceptance is Acceptance.SOME:
        controls.note_refused(now)
        session.confirmation.see(Treatment.REFUSED)
    if needs_second_test(controls, test, reply, reading):
        session.tests.append(new_test(session, domain, deferred_start=test.deferred_start, shape=1))
        return
    if acceptance is not Acceptance.UNANSWERED:
        controls.note_tested(domain, acceptance)
    if acceptance is Acceptance.ALL:
        session.confirmation.see(Treatment.ACCEPTED)
    if acceptance is not Acceptance.SOME and now < controls.watched_until:
        awaiting, domain.awaiting = domain.awaiting, []
        for probe in awaiting:
            if not probe.settled:
                session.conclude(probe, acceptance.outcome, deciding_rule(acceptance, probe.rule))
    session.host.learn(domain, acceptance)


def acceptance_of(reply: SmtpReply, reading: ReplyMeaning) -> Acceptance:
    """How the host treated a random address."""
    if reply.positive:
        return Acceptance.ALL
    if reply.code < 500:
        return Acceptance.UNANSWERED
    unknown = reading.meaning in (Meaning.NO_MAILBOX, Meaning.DISABLED)
    return Acceptance.SOME if unknown else Acceptance.UNTOLD


def needs_second_test(
    controls: HostControls, test: CatchAllTest, reply: SmtpReply, reading: ReplyMeaning
) -> bool:
    """Was the first random address refused in words that may be about its shape?

    Then one of another shape decides. Where the host refuses because of us, no name would help.
    """
    refused = reply.code >= 500 and not reading.about_us and test.shape == 0
    return refused and not controls.is_own_refusal(test.domain, test.mailbox, reply, reading)


def probe_answered(
    session: "SmtpSession", probe: Probe, reply: SmtpReply, reading: ReplyMeaning
) -> None:
    if probe.settled:
        return
    if reply.positive:
        probe_accepted(session, probe, reading)
    else:
        if reading.meaning is Meaning.NO_MAILBOX and reply.code >= 500:
            probe.domain_here.refused_as_unknown(probe.mailbox, reply)
        session.conclude(probe, refusal_outcome(reply, reading), reading.rule)


def probe_accepted(session: "SmtpSession", probe: Probe, reading: ReplyMeaning) -> None:
    domain: DomainAcceptance = probe.domain_here
    now = session.connection.received_at
    known = domain.known(now)
    if known is None:  # it may confirm that listed addresses are refused here
        session.confirmation.accepted_untested(probe, now)
        known = domain.known(now)
    if known is not None:
        if probe.notes is not None:
            probe.notes.cached.append("catch_all")
        session.conclude(probe, known.outcome, deciding_rule(known, reading.rule))
        return
    probe.accepted = True
    probe.rule = reading.rule
    domain.awaiting.append(probe)
    if probe.deferred_start:
        session.host.suspend_clock(probe)
    if not domain.testing:
        session.tests.append(new_test(session, domain, deferred_start=probe.deferred_start))
