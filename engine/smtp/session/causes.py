"""What a failed connection or a refused recipient means for an address. Pure functions."""

from mailprobe.engine.smtp.connection import ConnectionLost, ReadTimedOut
from mailprobe.engine.smtp.probe import Cause
from mailprobe.engine.smtp.replies.rules import Meaning, ReplyMeaning, Step
from mailprobe.engine.smtp.wire import CommandReply, RemoteProtocolError, SmtpReply
from mailprobe.engine.verdict import Outcome


class Rerouted(Exception):
    """The session gave up a late reply; its recipient is sent on another connection."""


CONNECTION_ERRORS = (ReadTimedOut, ConnectionLost, RemoteProtocolError, Rerouted)

REROUTED = Cause(Outcome.TIMED_OUT, "clock.rcpt", "silent at RCPT", replied=True)
GARBLED_RULE = "garbage.rcpt"  # of a `RemoteProtocolError` in answer to a recipient


def cause_of(error: Exception, step: Step, *, spoke: bool = True) -> Cause:
    """Return the cause for an exception of a connection at this step."""
    where = step.value
    if isinstance(error, ReadTimedOut):
        return Cause(Outcome.TIMED_OUT, f"clock.{where}", f"silent at {where}", replied=spoke)
    if isinstance(error, RemoteProtocolError):
        return Cause(Outcome.CONVERSATION_FAILED, f"garbage.{where}", str(error), replied=spoke)
    return Cause(
        Outcome.CONVERSATION_FAILED,
        f"closed.{where}",
        f"{error} at {where}",
        replied=spoke,
        hung_up=True,
    )


def refused_command(turn: CommandReply, reading: ReplyMeaning) -> Cause:
    """Return the cause for a refused MAIL, RSET or STARTTLS."""
    return Cause(
        Outcome.CONVERSATION_FAILED,
        reading.rule,
        f"{turn.command.verb} refused: {turn.reply.code} {turn.reply.text[:80]}",
        about_us=reading.about_us,
        replied=True,
    )


def refusal_outcome(reply: SmtpReply, reading: ReplyMeaning) -> Outcome:
    """Return the outcome of a 4xx (except 421) or 5xx to RCPT."""
    if reading.meaning is Meaning.MAILBOX_FULL:
        return Outcome.MAILBOX_FULL
    if reply.code < 500:
        return Outcome.TEMPORARY
    if reading.meaning in (Meaning.NO_MAILBOX, Meaning.DISABLED):
        return Outcome.UNDELIVERABLE
    return Outcome.REFUSED_BY_POLICY
