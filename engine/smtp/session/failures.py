"""Ends a batch early and requeues its unanswered recipients and tests.

The connection may have failed, its permit may be gone, or the deadlines of the batch have passed.
`requeue` says what follows for the probes; here the state of the session changes with it.
"""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.session.batch import BatchReplies, CatchAllTest, PendingProbe
from mailprobe.engine.smtp.session.causes import GARBLED_RULE, REROUTED
from mailprobe.engine.smtp.session.requeue import (
    expire_unanswered,
    fail_unanswered,
    leave_untested,
    requeue_rerouted,
    requeue_uncounted,
)

if TYPE_CHECKING:
    from mailprobe.engine.smtp.session.session import SmtpSession


def return_probes(session: "SmtpSession", asked: Sequence[PendingProbe]) -> None:
    """This session can't send these: it ends, and another one will."""
    session.leaving = session.leaving or bool(asked)
    for each in reversed(asked):
        if isinstance(each, Probe):
            session.host.requeue(each)
        else:
            leave_untested(session.host, each)


def drop_replies(session: "SmtpSession", received: BatchReplies) -> None:
    """Drop replies that follow a refused MAIL. The server counts their refusals all the same."""
    replies = [turn.reply for turn in received.exchanges]
    session.limits.count_dropped(replies, session.connection.received_at)
    received.exchanges.clear()


def fail_batch(
    session: "SmtpSession",
    cause: Cause,
    received: BatchReplies,
    *,
    failure: bool = True,
    limited: bool = False,
) -> None:
    """Retry, fail over or settle each unanswered probe of the batch.

    See `fail_unanswered`. `failure`: the host failed, and not only one domain there;
    `limited`: this may be a limit of the connection, and no failure.
    """
    session.leaving = True
    reused = received.reused
    early = failure and not (reused or received.transaction or session.transaction.smtputf8)
    hung_up = received.goodbye or (received.transaction and cause.hung_up)
    session.host.session_failed(
        cause, before_recipients=early, late=session.late, at_recipient=received.goodbye or limited
    )
    silent_or_garbled = received.transaction and cause.rule in (REROUTED.rule, GARBLED_RULE)
    fruitful = session.fruitful or limited
    if (hung_up or silent_or_garbled) and session.unanswered and not fruitful:
        oldest = session.unanswered[0]
        domain = oldest.domain_here if isinstance(oldest, Probe) else oldest.domain
        session.host.session_barren(cause, domain)
    if reused and not received.first:
        session.host.close_idle_session()  # kept for as long, so hardly any better
    unanswered, session.unanswered = session.unanswered, deque()
    fail_unanswered(session.host, unanswered, session.elsewhere, cause, received, limited=limited)


def reroute_waiting(session: "SmtpSession") -> None:
    """Give up the late reply: queue its probe again, behind all others."""
    session.leaving = True
    session.host.session_rerouted()
    unanswered, session.unanswered = session.unanswered, deque()
    requeue_rerouted(session.host, unanswered, session.elsewhere)


def expire_batch(session: "SmtpSession") -> None:
    """The deadlines of the whole batch have passed."""
    session.leaving = True
    unanswered, session.unanswered = session.unanswered, deque()
    expire_unanswered(session.host, unanswered)


def requeue_unproven(session: "SmtpSession") -> None:
    """The session ended before the proof: queue the held probes for another connection."""
    if not session.unproven.verdicts:
        return
    verdicts = session.unproven.release_all()
    session.host.end_deferral(len(verdicts))
    for probe, _, _ in reversed(verdicts):
        if not probe.settled:
            requeue_uncounted(session.host, probe)


def abandon_tests(session: "SmtpSession") -> None:
    """Hand back the tests that were not sent."""
    for asked in (*session.unanswered, *session.tests):
        if isinstance(asked, CatchAllTest):
            leave_untested(session.host, asked)
    session.unanswered.clear()
    session.tests.clear()
