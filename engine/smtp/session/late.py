"""A late reply: the recipients behind it are sent on other connections as well."""

from typing import TYPE_CHECKING

from mailprobe.engine.smtp.session.batch import CatchAllTest
from mailprobe.engine.smtp.session.failures import requeue_unproven
from mailprobe.engine.smtp.session.requeue import leave_untested, requeue_uncounted

if TYPE_CHECKING:
    from mailprobe.engine.smtp.session.session import SmtpSession


def reroutes_at(session: "SmtpSession") -> float:
    if not may_reroute(session):
        return float("inf")
    return session.connection.since + session.host.reroute_s


def may_reroute(session: "SmtpSession") -> bool:
    """Once for each probe; a test is not sent again."""
    if session.host.patient:
        return False
    answered = len(session.received.exchanges)
    if answered >= len(session.unanswered):
        return False
    oldest = session.unanswered[answered]
    return isinstance(oldest, CatchAllTest) or not oldest.rerouted


def become_late(session: "SmtpSession") -> None:
    """The oldest recipient delays those behind it: queue them for other connections too.

    If their replies come here first, these count. Earlier replies are not proven, because
    one may have been left out: their recipients are sent elsewhere too, and so are those
    whose verdicts are held.
    """
    session.late = session.pairing_suspect = session.received.late = True
    if session.host.patient:
        return
    requeue_unproven(session)
    answered = len(session.received.exchanges)
    for place, asked in reversed(list(enumerate(session.unanswered))):
        if place == answered or asked in session.elsewhere:
            continue
        if isinstance(asked, CatchAllTest):
            leave_untested(session.host, asked)
        elif not asked.settled:
            session.elsewhere.add(asked)
            requeue_uncounted(session.host, asked)
    accepted = sum(turn.reply.positive for turn in session.received.exchanges)
    session.host.session_late(session, accepted=accepted)


def catch_up(session: "SmtpSession", *, accepted: bool) -> None:
    session.late = False
    session.host.session_prompt(session, accepted=accepted)
