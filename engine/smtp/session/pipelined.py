"""The replies to one batch: pairing them with its recipients, and processing what is proven.

A batch of one in lock-step comes here only when its reply is unusual or not complete.
"""

from typing import TYPE_CHECKING

from mailprobe.engine.smtp.pairing import OutOfStep
from mailprobe.engine.smtp.probe import Probe
from mailprobe.engine.smtp.session.answers import own_answer, recipient_answered
from mailprobe.engine.smtp.session.batch import BatchReplies
from mailprobe.engine.smtp.session.failures import drop_replies
from mailprobe.engine.smtp.session.late import catch_up
from mailprobe.engine.smtp.session.proof import (
    begin_quiet,
    expect_surplus,
    judge_check,
    may_owe_refusal,
    proves,
    release_proven,
)
from mailprobe.engine.smtp.session.requeue import requeue_uncounted
from mailprobe.engine.smtp.wire import CommandReply

if TYPE_CHECKING:
    from mailprobe.engine.smtp.session.session import SmtpSession


def process_replies(
    session: "SmtpSession", received: BatchReplies, turn: CommandReply | None = None
) -> bool:
    """Process the batch's replies received so far; True if those were all of them.

    `turn` is the first, if it was read already.
    """
    if received_all(session, received, turn):
        return True
    if not session.connection.receive():
        session.connection.check_clock(received.until)
        return False
    return received_all(session, received)


def received_all(
    session: "SmtpSession", received: BatchReplies, turn: CommandReply | None = None
) -> bool:
    """Pair replies with recipients; True if the batch is complete.

    Processes only what is proven by a reply that names its recipient; see batch_answered().
    """
    connection, asked, turns = session.connection, received.sent, received.exchanges
    pairing, place, count = session.pairing, received.place, len(asked)
    while place < count:
        turn = turn or connection.already_received()
        if turn is None:
            process_proven(session, received)
            return False
        reply = turn.reply
        named = reply is not pairing.nameless and proves(session, asked[place], reply)
        if not (place or session.limits.in_transaction):
            session.pairing_suspect = (
                session.pairing_suspect or reply == session.conversation.opening_reply
            )
        turns.append(turn)
        received.place = place = place + 1
        received_at = connection.received_at
        if received_at != received.last_at:  # replies that come together have one time
            if not received.last_at:
                received.first_at = received_at
            elif received_at - received.last_at > received.gap_s_max:
                received.gap_s_max = received_at - received.last_at
            received.last_at = received_at
        if named and received.transaction:
            received.proven = place
        if session.late:
            catch_up(session, accepted=reply.positive)
        if reply.code == 421:
            break
        turn = None
    else:
        if received.check_due and not check_answered(session, received):
            process_proven(session, received)
            return False
        if session.conversation.unread:
            raise OutOfStep("more replies than commands")
    process_proven(session, received)
    return True


def check_answered(session: "SmtpSession", received: BatchReplies) -> bool:
    """Has the reply to the NOOP behind the recipients come? Raises OutOfStep where it is none."""
    turn = session.connection.already_received()
    if turn is None:
        return False
    received.check_due = False
    judge_check(session, turn)
    return True


def process_proven(session: "SmtpSession", received: BatchReplies) -> None:
    """Process what a reply that names its recipient proves: itself and all before it."""
    count = received.proven - (received.place - len(received.exchanges))
    if count > 0:
        release_proven(session)
        process_oldest(session, received, count)


def batch_answered(session: "SmtpSession", received: BatchReplies) -> float | None:
    """All replies of a batch are there. Hold back what is not proven yet.

    A usual reply means only a verdict, so the conversation goes on. Any other reply decides
    which command is next: then a silence has to prove the replies first.
    """
    if not received.transaction:
        drop_replies(session, received)
    turns, now = received.exchanges, session.connection.received_at
    expect_surplus(session, received.first_at - received.began, received.gap_s_max)
    if received.proven and received.proven == received.place:
        session.pairing_suspect = False
    elif may_owe_refusal(session, received):
        session.pairing_suspect = True
    silent = session.connection.silent_s() >= session.unproven.quiet_s
    if turns and silent and not session.pairing_suspect:
        release_proven(session)
        process_oldest(session, received, len(turns))
        return session.end_batch(received)
    held = []
    for turn in () if received.noted else turns:
        verdict = session.usual(session.unanswered[0], turn.reply)
        if verdict is None:
            break
        session.unanswered.popleft()
        held.append(verdict)
    if held:
        received.first = True
        session.unproven.hold(held, now)
        del turns[: len(held)]
        session.host.hold_back(len(held))
    if turns:
        return begin_quiet(session)
    if session.pairing_suspect and session.unproven.verdicts and received.refusal is None:
        session.host.batch_done(
            received.batch_s, received.gap_s, received.first_at - received.began
        )
        return begin_quiet(session)
    return session.end_batch(received)


def process_oldest(session: "SmtpSession", received: BatchReplies, count: int) -> None:
    """Process the replies to the oldest `count` recipients."""
    turns, received.exchanges = received.exchanges[:count], received.exchanges[count:]
    if not turns or not received.transaction:
        return
    session.host.begin_answers()
    try:
        for turn in turns:
            asked = session.unanswered[0]
            usual = None if received.noted else session.usual(asked, turn.reply)
            if usual is None:
                recipient_answered(session, asked, turn, received)
            else:
                received.first = True
                session.unanswered.popleft()
                session.conclude(*usual)
        if not session.unanswered:  # before others are admitted: a limit leaves less room
            settle_limited(session)
    finally:
        session.host.end_answers(all_of_them=not session.unanswered)


def settle_limited(session: "SmtpSession") -> None:
    """Of the refusals that might be a limit, settle those that are their recipients' own."""
    released = session.limits.release(session.received.began, session.now())
    if released.of_connection:
        session.leaving = True
    for held in reversed(released.again):
        asked = held.asked
        asked.objections += 1
        if isinstance(asked, Probe):
            asked.refused, asked.refusal = (held.outcome, held.reading.rule), held.refusal
            requeue_uncounted(session.host, asked)
        else:
            session.tests.appendleft(asked)
    for held in released.own:
        own_answer(session, held.asked, held.reply, held.reading)
