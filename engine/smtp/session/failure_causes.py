"""Failed connections and refused recipients: the cause for an address, and whether it is sent again.

Pure functions, and functions over probes that emit effects; a session's state is not changed.
`elsewhere` holds the probes that are already queued for another connection because a reply before
theirs was late.
"""

from collections.abc import Collection, Sequence, Set

from ...verdict import Outcome
from ..catchall import Acceptance
from ..probe import OBJECTIONS_MAX, Cause, Probe
from ..replies.rules import Meaning, ReplyMeaning, Step
from ..wire import (
    CommandReply,
    ConnectionLost,
    ReadTimedOut,
    RemoteProtocolError,
    SmtpReply,
)
from .batch import CatchAllTest, PendingProbe, RecipientBatch
from .effects import (
    Emit,
    FailedOver,
    Requeued,
    Settled,
    TestEnded,
)


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


# -- which probes are sent again, fail over or are settled --------------------------------


def fail_unanswered(
    emit: Emit,
    unanswered: Collection[PendingProbe],
    batch: RecipientBatch,
    cause: Cause,
    *,
    limited: bool = False,
) -> None:
    """The batch failed: retry, fail over or settle each of its unanswered probes.

    On a reused connection that fails before its first reply, each probe is sent once more on
    another one. Otherwise the failure belongs to the oldest; the others only wait behind it.
    If it is `limited`, no probe caused the failure.
    """
    reused, elsewhere = batch.reused, batch.elsewhere
    head = True
    for probe in unanswered:
        if isinstance(probe, CatchAllTest):
            if head and batch.transaction and not (probe.abandoned or limited):
                emit(TestEnded(probe.domain, Acceptance.UNANSWERED, in_time=False))
            else:
                leave_untested(emit, probe)
        elif probe.settled or probe in elsewhere:
            pass
        elif limited and probe.objections.count < OBJECTIONS_MAX:
            # Those behind the oldest got no reply; each such session answers someone.
            if head or not batch.transaction:
                probe.objections.add()
            requeue_uncounted(emit, probe)
        elif reused and not batch.served and not probe.attempts.retried:
            probe.attempts.retry()
            emit(Requeued(probe))
        elif not batch.transaction:
            emit(FailedOver(probe, cause))
        elif head and (cause.outcome is Outcome.TIMED_OUT or batch.is_closing):
            emit(Settled(probe, cause.outcome, cause.rule))
        elif head or probe.attempts.exhausted:
            emit(FailedOver(probe, cause))
        else:
            emit(Requeued(probe))
        head = False


def requeue_rerouted(
    emit: Emit, unanswered: Collection[PendingProbe], elsewhere: Set[Probe]
) -> None:
    """A late reply was given up: its probe is sent again, after all others."""
    for probe in unanswered:
        if isinstance(probe, CatchAllTest):
            if not probe.abandoned:
                emit(TestEnded(probe.domain, Acceptance.UNANSWERED, in_time=False))
        elif not probe.settled and probe not in elsewhere:
            probe.attempts.reroute()
            emit(Requeued(probe, last=True))


def expire_unanswered(emit: Emit, unanswered: Collection[PendingProbe]) -> None:
    """The probes' deadlines have passed. This says nothing about the host."""
    for probe in unanswered:
        if isinstance(probe, Probe):
            emit(Settled(probe, Outcome.TIMED_OUT, "clock.overall"))
        else:
            leave_untested(emit, probe)


def requeue_unanswered(
    emit: Emit, unanswered: Sequence[PendingProbe], elsewhere: Set[Probe]
) -> None:
    """The permit was revoked, which is not the host's fault: send the probes on another connection."""
    for probe in reversed(unanswered):
        if not isinstance(probe, Probe) or probe.settled or probe in elsewhere:
            continue
        requeue_uncounted(emit, probe)


def requeue_doubted(
    emit: Emit,
    doubted: Sequence[PendingProbe],
    elsewhere: Set[Probe],
    cause: Cause,
    *,
    gave_way: bool,
) -> None:
    """These have replies that were never proven to be theirs: each is sent once more.

    `gave_way`: only a late reply was given up, so this does not use up the one retry.
    """
    for probe in reversed(doubted):
        if isinstance(probe, CatchAllTest):
            leave_untested(emit, probe)
        elif probe.settled or probe in elsewhere:
            pass
        elif gave_way:
            requeue_uncounted(emit, probe)
        elif probe.attempts.unproven:
            emit(Settled(probe, cause.outcome, cause.rule))
        else:
            probe.attempts.doubt()
            requeue_uncounted(emit, probe)


def requeue_uncounted(emit: Emit, probe: Probe) -> None:
    """Send it again, and do not count this conversation: the probe did not cause the failure."""
    probe.attempts.undo()
    emit(Requeued(probe))


def leave_untested(emit: Emit, test: CatchAllTest) -> None:
    if test.abandon():
        emit(TestEnded(test.domain, None))
