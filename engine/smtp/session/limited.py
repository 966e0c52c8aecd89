"""Refusals that may be a limit by their position: held back, then asked again or settled.

`mailprobe.engine.smtp.limits` explains what a position proves. A refusal whose words condemn
its recipient is never held back: it is evidence in itself. One that only its code condemns
is not: `550 5.1.1 Recipient rejected, one message at a time` is a limit.
"""

from typing import TYPE_CHECKING, NamedTuple

from mailprobe.engine.smtp.catchall import DomainAcceptance, deciding_rule
from mailprobe.engine.smtp.limits import Observation, Scope, alike
from mailprobe.engine.smtp.probe import OBJECTIONS_MAX, Cause, Probe
from mailprobe.engine.smtp.replies.rules import Meaning, ReplyMeaning, Step
from mailprobe.engine.smtp.session.batch import BatchReplies, PendingProbe
from mailprobe.engine.smtp.session.causes import refusal_outcome
from mailprobe.engine.smtp.session.requeue import requeue_uncounted
from mailprobe.engine.smtp.wire import SmtpReply
from mailprobe.engine.verdict import Outcome

if TYPE_CHECKING:
    from mailprobe.engine.smtp.session.session import SmtpSession

# Such a recipient was sent again on other terms, in a transaction of its own: see terms.
OF_TERMS = (Meaning.SENDER_REFUSED, Meaning.TLS_DEMANDED)
# Rules of replies that condemn by their code, because no rule knows their words.
BY_CODE = frozenset(("enhanced.no-mailbox", "code.no-mailbox"))
IDLE_CLOSE_S = 0.5  # a host that closes after such a pause may have had enough of waiting


class HeldRefusal(NamedTuple):
    """A refused recipient of the batch under way; its refusal may be a limit."""

    asked: PendingProbe
    reply: SmtpReply
    reading: ReplyMeaning
    refusal: str  # see limits.alike()
    place: int  # among the recipients answered in this session


def judged_by(session: "SmtpSession") -> int:
    """How many recipients this connection accepted, or refused as no mailbox."""
    return session.recipients - session.unjudged


def count_answer(session: "SmtpSession", *, refused: bool) -> None:
    """One of the recipients under way was answered; it counts if it was reserved."""
    if session.reserved:
        session.reserved -= 1
        session.host.budget.answered(session.connection.received_at, refused=refused)


def count_refusal(session: "SmtpSession", reply: SmtpReply, outcome: Outcome) -> None:
    if reply.code >= 500:
        count_answer(session, refused=True)
        session.refused += 1
        session.host.recipient_refused()
    session.refusals += 1
    session.transaction.refusals += 1
    if outcome is not Outcome.UNDELIVERABLE:
        _count_unjudged(session, 1)


def may_be_limit(
    session: "SmtpSession",
    asked: PendingProbe,
    reply: SmtpReply,
    reading: ReplyMeaning,
    outcome: Outcome,
) -> bool:
    """Does more follow from this refusal than its own verdict?"""
    if reading.meaning is Meaning.ANOTHER_RECIPIENT:
        return True
    if reading.meaning in OF_TERMS:
        return False
    if outcome is not Outcome.UNDELIVERABLE and session.recipients == session.unjudged:
        return asked.objections > 0 or session.limits.in_force
    refusal = alike(reply.code, " ".join(reply.lines))
    return not session.limits.is_own(refusal, session.now())


def held_as_limit(
    session: "SmtpSession", asked: PendingProbe, reply: SmtpReply, reading: ReplyMeaning
) -> bool:
    """Hold this refusal back if its position may explain it, until the batch is answered."""
    condemns = refusal_outcome(reply, reading) is Outcome.UNDELIVERABLE
    if reading.meaning in OF_TERMS or (condemns and reading.rule not in BY_CODE):
        return False
    limits, now = session.limits, session.now()
    refusal = alike(reply.code, " ".join(reply.lines))
    if condemns and not isinstance(asked, Probe) and not _is_held(session, refusal):
        return False  # a random address is refused by most hosts
    certain = reading.meaning is Meaning.ANOTHER_RECIPIENT
    if not (session.recipients > 1 if certain or condemns else judged_by(session)):
        if not certain and (condemns or asked.objections or limits.knows(refusal)):
            limits.refute(refusal, now)
        return False
    if asked.objections >= OBJECTIONS_MAX:
        return False
    if not certain and limits.is_own(refusal, now):
        return False
    if asked not in session.elsewhere:  # else it is asked again already
        session.limited.append(HeldRefusal(asked, reply, reading, refusal, session.recipients))
        if condemns:
            _count_unjudged(session, 1)
    return True


def _is_held(session: "SmtpSession", refusal: str) -> bool:
    return bool(session.limited) and session.limited[-1].refusal == refusal


def _count_unjudged(session: "SmtpSession", change: int) -> None:
    session.unjudged += change
    session.transaction.unjudged += change


def release_limited(session: "SmtpSession") -> list[HeldRefusal]:
    """The batch is answered: ask those again whom a limit refused. Returns the others."""
    held, session.limited = session.limited, []
    if not held:
        return []
    behind = _all_later_alike(held, session.recipients)
    again = [
        each
        for each in held
        if each.place >= behind or each.reading.meaning is Meaning.ANOTHER_RECIPIENT
    ]
    own = [each for each in held if each not in again]
    for each in own:
        if refusal_outcome(each.reply, each.reading) is Outcome.UNDELIVERABLE:
            _count_unjudged(session, -1)
    if again:
        _observe(session, again[-1], behind)
    for each in reversed(again):
        asked = each.asked
        asked.objections += 1
        if isinstance(asked, Probe):
            asked.refused = (refusal_outcome(each.reply, each.reading), each.reading.rule)
            asked.refusal = each.refusal
            requeue_uncounted(session.host, asked)
        else:
            session.tests.appendleft(asked)
    return own


def _all_later_alike(held: list[HeldRefusal], recipients: int) -> int:
    """From which place on were all recipients of the session refused alike?"""
    refusal, place = held[-1].refusal, recipients
    for each in reversed(held):
        if each.place != place or each.refusal != refusal:
            break
        place -= 1
    return place + 1


def _observe(session: "SmtpSession", latest: HeldRefusal, behind: int) -> None:
    """Learn the limit of the transaction, or of the connection: then no more is sent on it.

    Those from the place `behind` on were all refused alike.
    """
    transaction, limits, refusal = session.transaction, session.limits, latest.refusal
    sent_at, now = session.received.began, session.now()
    certain = latest.reading.meaning is Meaning.ANOTHER_RECIPIENT
    at_end = latest.place >= behind
    if certain or refusal_outcome(latest.reply, latest.reading) is Outcome.UNDELIVERABLE:
        # Then it need not have judged the first ones.
        judged = behind - 1 - (session.recipients - transaction.recipients)
    else:
        judged = transaction.recipients - transaction.unjudged
    if judged > 0 and not limits.is_of_connection(refusal):
        # If a later recipient was judged, the words alone count: send each by itself.
        accepted = transaction.recipients - transaction.refusals if at_end else 1
        seen = Observation(refusal, judged, accepted, sent_at, now, certain)
        limits.observe(Scope.TRANSACTION, seen)
        return
    if transaction.served <= 1:
        limits.not_of_transaction(refusal, now)
    accepted = session.recipients - session.refusals
    seen = Observation(refusal, judged_by(session), accepted, sent_at, now, certain)
    limits.observe(Scope.CONNECTION, seen)
    session.leaving = True


def ended_by_limit(session: "SmtpSession", cause: Cause, received: BatchReplies) -> bool:
    """Did the host close, or refuse a further transaction, after it had judged recipients?"""
    if not cause.hung_up and received.refusal is None:
        return False
    judged = judged_by(session) + received.judged_unproven
    if not judged:
        return False
    if received.idle_s > IDLE_CLOSE_S and received.place <= received.goodbye:
        return False
    accepted = session.recipients - session.refusals + received.accepted_unproven
    refusal, now = alike(0, cause.words), session.now()
    seen = Observation(refusal, judged, accepted, received.began, now, closed=True)
    session.limits.observe(Scope.CONNECTION, seen)
    return True


def count_unproven(session: "SmtpSession", received: BatchReplies) -> None:
    """The connection failed within the batch: some of its recipients were judged, it seems."""
    readings = [
        (turn.reply, session.host.read(Step.RCPT, turn.reply)) for turn in received.exchanges
    ]
    accepted = sum(reply.positive for reply, _ in readings)
    condemned = sum(
        not reply.positive and refusal_outcome(reply, reading) is Outcome.UNDELIVERABLE
        for reply, reading in readings
    )
    received.accepted_unproven, received.judged_unproven = accepted, accepted + condemned
    for reply, _ in readings:
        count_answer(session, refused=reply.code >= 500)


def is_known_already(session: "SmtpSession", probe: Probe, now: float) -> bool:
    """Settle a probe that was sent before, if it need not be sent again.

    The rest of those who were refused alike need not, once one of them shows that the
    refusal was no limit. An accepted one need not, if its domain's test was answered
    meanwhile. If a connection is good for one recipient, the test takes it alone: then an
    accepted probe waits here, and the caller sends the test.
    """
    if probe.refused is not None and session.limits.is_own(probe.refusal, now):
        session.conclude(probe, *probe.refused)
        return True
    if not probe.accepted or session.limits.per_connection > 1:
        return False
    domain: DomainAcceptance = probe.domain_here
    known = domain.known(now)
    if known is not None:
        session.host.settle(probe, known.outcome, deciding_rule(known, probe.rule))
    else:
        probe.conversations += 1
        domain.awaiting.append(probe)
    return True
