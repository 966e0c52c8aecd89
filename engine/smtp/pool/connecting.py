"""The task of one connection to a mail host: open it, serve it, and release its permit."""

from typing import TYPE_CHECKING

import trio

from mailprobe.engine.smtp.connection import SmtpConnection
from mailprobe.engine.smtp.session.serving import SessionTask
from mailprobe.engine.smtp.session.session import SmtpSession

if TYPE_CHECKING:
    from mailprobe.engine.smtp.pool.pool import Pool


SESSION_EWMA = 0.5  # weight of the latest session in the mean of their recipients


async def run_connection(pool: "Pool", permit_at: str | None) -> None:
    """Run one connection; `permit_at` is an address whose permit it holds already."""
    session, is_done = None, True
    try:
        session = await pool.opener.open(permit_at)
        if session is not None:
            pool.sessions.add(session)
            pool.opener.proven_parallelism = max(pool.opener.proven_parallelism, len(pool.sessions))
            if pool.dispatcher.closing:
                session.withdraw()
            pool.dispatcher.hedges.greeted(pool)
            pool.dispatcher.capacity_freed(pool)
            pool.open_all()
            with pool.dispatcher.permits.holding(session.address):
                await SessionTask(session).serve()
                session_over(pool, session)
                pool.staff()
                is_done = await session.connection.quit()
    finally:
        if session is not None:
            session_over(pool, session)
            pool.opener.closed_at = pool.now()
            if not is_done:
                pool.dispatcher.left_connections.add(pool, session.connection, session.address)
            else:
                with trio.CancelScope(shield=True):
                    await session.connection.close()
                pool.dispatcher.permits.release(session.address)
        pool.connections -= 1
        if not pool.connections:
            pool.dispatcher.hedges.gave_up(pool)
    pool.connection_ended()


def session_over(pool: "Pool", session: SmtpSession) -> None:
    if session in pool.sessions and session.tenure.spent and session.limits.recipients:
        served = session.limits.recipients
        pool.session_recipients += SESSION_EWMA * (served - pool.session_recipients)
    pool.sessions.discard(session)
    if pool.lateness.sessions.pop(session.connection, None) is not None:
        pool.dispatcher.capacity_freed(pool)


def learn_pace(pool: "Pool", connection: SmtpConnection) -> None:
    pool.pipelines = connection.conversation.offer.pipelining
    if pool.pace.batch_s is None:
        turnaround_s = connection.received_at - connection.sent_at
        pool.pace.measured(turnaround_s, -1)
        pool.pace.batches = 0  # no recipient was answered
        pool.pace.gap_s = turnaround_s
        pool.pace.reply_s = turnaround_s
        pool.replied(turnaround_s)
