"""The proof that replies are paired with the right recipients, and what follows without it.

Held verdicts are settled after a silence, or are sent once more when the connection fails.
`mailprobe.engine.smtp.pairing` explains the law that this keeps.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.connection import ConnectionLost, Overdue
from mailprobe.engine.smtp.pairing import (
    EARLY,
    QUIET_MARGIN,
    QUIET_S,
    QUIET_S_MAX,
    NamesAnother,
    OutOfStep,
)
from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.replies.rules import Step
from mailprobe.engine.smtp.session.batch import BatchReplies, CatchAllTest, PendingProbe
from mailprobe.engine.smtp.session.causes import (
    CONNECTION_ERRORS,
    REROUTED,
    Rerouted,
    cause_of,
    refusal_outcome,
)
from mailprobe.engine.smtp.session.failures import drop_replies, expire_batch, reroute_waiting
from mailprobe.engine.smtp.session.requeue import requeue_doubted
from mailprobe.engine.smtp.session.terms import batch_refused
from mailprobe.engine.smtp.session.transaction import RESETS_MAX
from mailprobe.engine.smtp.wire import CommandReply, RemoteProtocolError, SmtpReply, Stage
from mailprobe.engine.verdict import Outcome

if TYPE_CHECKING:
    from mailprobe.engine.smtp.session.session import SmtpSession

PROMPT_S = 600.0  # after a prompt refusal the host is not expected to be slow to refuse
NOT_IMPLEMENTED = range(500, 505)  # replies of a host that does not implement NOOP


def proves(session: "SmtpSession", asked: PendingProbe, reply: SmtpReply) -> bool:
    """Does the reply name its recipient? Raises NamesAnother if it names another one.

    That is no contradiction if nothing else is unanswered and the host may have renamed the
    recipient: the local part is the same, or the recipient is sent again because its reply
    named another. The reply to NOOP proves the order then.
    """
    try:
        return session.pairing.proves(reply, asked.mailbox)
    except NamesAnother as error:
        again = isinstance(asked, Probe) and asked.unproven
        alone = len(session.received.sent) == 1 and session.transaction.resets <= RESETS_MAX
        if not (alone and (error.same_local or again)):
            raise
    session.pairing_suspect = True
    return False


def may_be_slow_to_refuse(session: "SmtpSession") -> bool:
    """Has the host refused nobody promptly of late? Then its silence may be an owed refusal."""
    return session.connection.received_at >= session.host.refused_promptly_at + PROMPT_S


def needs_check(session: "SmtpSession", asked: Sequence[PendingProbe]) -> bool:
    """Must NOOP follow these recipients in one write (RFC 2920 3.1), to count their replies?

    If the host doubles a reply, the last of several recipients gets another's. Its own would
    follow at once, unless it is a refusal and the host is slow to refuse. Then that refusal
    comes in the place of the reply to NOOP.
    """
    return (
        len(asked) > 1
        and session.conversation.offer.pipelining
        and session.transaction.resets < RESETS_MAX
        and may_be_slow_to_refuse(session)
    )


def may_owe_refusal(session: "SmtpSession", received: BatchReplies) -> bool:
    """Was a random address, or the last of several, accepted by a host that is slow to refuse?"""
    turns = received.exchanges
    if received.checked or not turns or not may_be_slow_to_refuse(session):
        return False
    return (len(received.sent) > 1 and turns[-1].reply.positive) or any(
        turn.reply.positive and isinstance(asked, CatchAllTest)
        for asked, turn in zip(session.unanswered, turns, strict=False)
    )


def expect_surplus(session: "SmtpSession", first_s: float, gap_s: float) -> None:
    """How soon would a surplus reply follow? As the round's replies followed each other.

    A reply that came sooner than this host makes one may answer an earlier command:
    then the surplus one is still being made.
    """
    usual_s = session.host.usual_s
    if usual_s > QUIET_S and first_s < EARLY * usual_s:
        session.early_s = first_s
        gap_s = max(gap_s, usual_s)
    if gap_s > QUIET_S / 2:
        session.unproven.expect_surplus(gap_s)


async def prove(session: "SmtpSession") -> bool:
    """Prove the held verdicts by a silence before the next command; False if that fails."""
    if session.unproven.verdicts:
        try:
            until = begin_quiet(session)
            if until is None:
                rest, session.unsaid = session.unsaid, b""
                await session.connection.flush(rest)
                until = session.connection.deadline(float("inf"))
            await session.connection.receive_until(partial(while_silent, session), until)
            if session.error is not None:
                raise session.error
        except CONNECTION_ERRORS as error:
            connection_failed(session, error)
            return False
    return True


def begin_quiet(session: "SmtpSession") -> float | None:
    """Say nothing for a moment: a surplus reply would come now. Returns as SmtpSession._resume().

    A host that is slow with the reply it owes is silent, too: where that may be, NOOP
    comes first. An outstanding reply would then be read as the reply to NOOP.
    """
    # One is kept for this: a session asks nothing more after RESETS_MAX.
    may_check = (
        session.transaction.resets <= RESETS_MAX and session.conversation.stage is not Stage.CLOSED
    )
    if session.pairing_suspect and may_check:
        session.transaction.resets += 1
        session.checking, session.quiet_until = True, float("inf")
        session.unsaid = session.connection.send_now(wire.NOOP)
        return None if session.unsaid else session.connection.deadline(float("inf"))
    session.quiet_until = session.connection.received_at + session.unproven.quiet_s
    return session.quiet_until


def noop_answered(session: "SmtpSession") -> bool:
    """Has the reply to NOOP come? Raises OutOfStep where it is none, or ConnectionLost."""
    connection = session.connection
    turn = connection.already_received()
    if turn is None and connection.receive():
        turn = connection.already_received()
    if turn is None:
        connection.check_clock(float("inf"))
        return False
    session.checking = False
    judge_check(session, turn)
    session.pairing_suspect = False
    # Where this was an earlier command's reply, NOOP's own comes a turn-around after NOOP.
    own_by = connection.sent_at + min(QUIET_MARGIN * session.host.usual_s, QUIET_S_MAX)
    session.quiet_until = max(connection.received_at, own_by) + session.unproven.quiet_s
    return True


def judge_check(session: "SmtpSession", turn: CommandReply) -> None:
    """The reply to NOOP has come. Raises OutOfStep where it is none, or ConnectionLost."""
    connection, code = session.connection, turn.reply.code
    session.recorder.record_opening(session.unanswered, turn)
    if code == 421:
        raise ConnectionLost(f"closed by the server: 421 {turn.reply.text[:80]}")
    unknown = code in NOT_IMPLEMENTED
    late = connection.received_at >= connection.sent_at + session.host.late_s
    if not turn.reply.positive and (late or not unknown):
        raise OutOfStep(f"{code} in answer to NOOP")
    session.pairing.check_names_none(turn.reply, ())


def while_silent(session: "SmtpSession") -> float | None:
    """Until when to stay silent, or None at the end: see prove()."""
    try:
        return silent_until(session)
    except Exception as error:
        session.error = error
        return None


def silent_until(session: "SmtpSession") -> float | None:
    """None where the silence is over and what is held is proven. Raises OutOfStep."""
    if session.checking and not noop_answered(session):
        return session.connection.deadline(float("inf"))
    surplus = gone = False
    try:
        surplus = session.connection.unread() or session.connection.receive()
    except ConnectionLost:
        gone = True  # and it said no more before
    if surplus:
        session.quiet_until = 0.0
        raise OutOfStep("more replies than commands")
    if session.now() < session.quiet_until and not gone:
        return session.quiet_until
    session.quiet_until = 0.0
    release_proven(session)
    return None


def release_proven(session: "SmtpSession") -> None:
    """The pairing is proven: settle the held verdicts."""
    if session.early_s:
        session.host.learn_fast_reply(session.early_s)
        session.early_s = 0.0
    if session.pairing.renamed:
        session.host.learn_renamings(session.pairing.renamed)
        session.pairing.renamed = set()
    verdicts = session.unproven.release_all()
    if not verdicts:
        return
    host = session.host
    host.end_deferral(len(verdicts))
    host.begin_answers()
    try:
        now = session.connection.received_at
        for verdict in verdicts:
            if session.confirmation.may_settle(*verdict, now):
                host.settle(*verdict)
    finally:
        # An idle session takes admitted probes only once it is woken.
        host.end_answers(all_of_them=not (session.unanswered or session.idle))


def distrust_pairing(
    session: "SmtpSession", received: BatchReplies, cause: Cause, error: Exception
) -> None:
    """Requeue what was answered and is not proven, once; after that it is unknown.

    If only a late reply was given up, nothing shows that the host is out of step. That
    does not use up the one retry. If a reply named another recipient, its own is in doubt as
    well, and those behind it have no share in it.
    """
    session.early_s = 0.0
    doubted: list[PendingProbe] = [probe for probe, _, _ in session.unproven.verdicts]
    session.host.end_deferral(len(session.unproven.release_all()))
    doubted += [session.unanswered.popleft() for _ in received.exchanges]
    received.exchanges.clear()
    if isinstance(error, NamesAnother) and received.transaction:
        doubted.append(session.unanswered.popleft())
        behind, session.unanswered = session.unanswered, deque()
        requeue_doubted(session.host, behind, session.elsewhere, cause, gave_way=True)
    if doubted and isinstance(error, RemoteProtocolError):
        session.host.distrust(renamed=isinstance(error, NamesAnother) and error.same_local)
    requeue_doubted(
        session.host, doubted, session.elsewhere, cause, gave_way=isinstance(error, Rerouted)
    )


def count_unproven(session: "SmtpSession", received: BatchReplies) -> None:
    """The connection failed within the batch: some of its recipients were judged, it seems."""
    replies = [turn.reply for turn in received.exchanges]
    outcomes = [
        refusal_outcome(reply, session.host.read(Step.RCPT, reply))
        for reply in replies
        if not reply.positive
    ]
    received.accepted_unproven = accepted = len(replies) - len(outcomes)
    received.judged_unproven = accepted + outcomes.count(Outcome.UNDELIVERABLE)
    for reply in replies:
        refused = reply.code >= 500
        session.limits.count_answer(session.connection.received_at, refused=refused)


def connection_failed(session: "SmtpSession", error: Exception) -> None:
    """The connection failed with one of `CONNECTION_ERRORS`: end the batch accordingly."""
    received = session.received
    step = Step.RCPT if received.transaction else Step.MAIL
    cause = received.refusal or (REROUTED if isinstance(error, Rerouted) else cause_of(error, step))
    if not (isinstance(error, RemoteProtocolError) or session.pairing_suspect):
        release_proven(session)  # silence, or the end: no surplus reply was on its way
    if not received.transaction:
        drop_replies(session, received)
    count_unproven(session, received)
    distrust_pairing(session, received, cause, error)
    if isinstance(error, Rerouted):
        reroute_waiting(session)
        return
    if isinstance(error, Overdue) and received.refusal is None:
        expire_batch(session)
        return
    batch_refused(session, cause, received)
