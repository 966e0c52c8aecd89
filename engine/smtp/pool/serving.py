"""The task of one connection: its waits, and the effects of its session's steps on its host.

A session neither waits nor calls anybody. Each of its steps is one call from here; then what it
has changed outside it is applied and what it has to send is written, and only then the next step
follows.
"""

from typing import TYPE_CHECKING

import trio

from ..connection import SmtpConnection
from ..host_policy import start_tls
from ..replies.rules import Step
from ..session.exchange import NOW
from ..session.failure_causes import (
    CONNECTION_ERRORS,
    Rerouted,
    cause_of,
    refused_command,
)
from ..session.session import SmtpSession
from ..wire import ConnectionLost, Overdue
from .staffing import gives_way

if TYPE_CHECKING:
    from .pool import Pool


async def run_connection(pool: "Pool", permit_at: str | None) -> None:
    """Run one connection; `permit_at` is an address whose permit it holds already."""
    served, is_done, turn = None, True, pool.dispatcher.turn
    try:
        served = await pool.opener.open(permit_at)
        if served is not None:
            pool.sessions.add(served)
            pool.connections.greeted(len(pool.sessions))
            if pool.dispatcher.closing:
                served.withdraw()
            pool.dispatcher.hedges.greeted(pool)
            turn.mark_freed(pool)
            turn.run()
            pool.open_all()
            with pool.dispatcher.permits.holding(served.address):
                await served.serve()
                session_over(pool, served)
                pool.staff()
                turn.run()
                is_done = await served.connection.quit()
    finally:
        if served is not None:
            session_over(pool, served)
            turn.run()
            pool.connections.session_closed(pool.now())
            if not is_done:
                pool.dispatcher.left_connections.add(pool, served.connection, served.address)
            else:
                with trio.CancelScope(shield=True):
                    await served.connection.close()
                pool.dispatcher.permits.release(served.address)
        pool.connection_closed()
    pool.connection_ended()
    turn.run()


def session_over(pool: "Pool", served: "ServedSession") -> None:
    session = served.session
    if served in pool.sessions and session.is_spent and session.recipients:
        pool.connections.session_spent(session.recipients)
    pool.sessions.discard(served)
    if pool.times.late.session_over(session.conversation):
        pool.dispatcher.turn.mark_freed(pool)


class ServedSession:
    """One session on its connection: reads and writes for it, and waits. Its host wakes it."""

    __slots__ = ("_error", "_pool", "_until", "address", "connection", "session")

    def __init__(self, pool: "Pool", session: SmtpSession, connection: SmtpConnection) -> None:
        self.session = session
        self.connection = connection
        self.address = session.address
        self._pool = pool
        self._until = NOW  # of the wait
        self._error: Exception | None = None  # of a step during a wait

    # -- for its host --------------------------------------------------------------------------

    @property
    def is_leaving(self) -> bool:
        return self.session.is_leaving

    def interrupt(self) -> None:
        """Wake the session: a probe may be waiting."""
        if self.session.wake():
            self.connection.interrupt()

    def withdraw(self) -> None:
        """Send QUIT as soon as nothing is unanswered."""
        self.session.leave()
        self.interrupt()

    # -- its task ------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Send waiting probes until the session is idle for too long or spent.

        The caller still has to `quit` and `close` the connection afterwards.
        """
        connection = self.connection
        try:
            self._resume()
            while self._error is None:
                if connection.unsent:
                    await self._flush()
                elif self._until > NOW:
                    await connection.follow(self._resume, self._until)
                elif self.session.is_over:
                    return
                else:
                    await self._start_tls()
            raise self._error
        finally:
            self.session.end()
            self._pool.apply(self, self.session.effects, takes_more=False)

    def _resume(self) -> float | None:
        """Octets have come, the time is up, or the session failed: read, take its steps, and write.

        Returns until when to wait, or None for the task to act.
        """
        session, pool, connection = self.session, self._pool, self.connection
        try:
            connection.read()
            until = session.react()
            while True:
                if session.effects:
                    takes_more = session.takes_more and not session.exchange.batch.unanswered
                    pool.apply(self, session.effects, takes_more=takes_more)
                if until == NOW:
                    session.conversation.read_clock(pool.now())
                elif session.exchange.is_late and until > NOW and self._gives_way():
                    until = session.fail(Rerouted())
                    continue
                elif not session.is_woken:  # by the effects, for a probe just admitted
                    break
                until = session.react()
            self._until = until
            if session.conversation.outgoing and not connection.write():
                return None
        except Exception as error:  # a bug, too, ends only this session
            self._error = error
            return None
        return until if until > NOW else None

    def _gives_way(self) -> bool:
        """Is the session late, and do other probes need its place?"""
        session, pool = self.session, self._pool
        return session.exchange.may_give_way(pool.reroute_s) and gives_way(
            pool, session.conversation
        )

    async def _flush(self) -> None:
        """Write what the system did not take at once."""
        try:
            await self.connection.flush()
        except CONNECTION_ERRORS as error:
            self.session.fail(error)
            self._resume()

    async def _start_tls(self) -> None:
        """Start TLS, as the host demands. If that fails, the recipients that wait for it fail."""
        session, preamble = self.session, self.session.exchange.recorder.preamble
        batch, helo_name = session.begin_tls(), self._pool.dispatcher.settings.helo_name
        cause, said_before = None, len(preamble)
        try:
            refusal = await start_tls(self.connection, helo_name, preamble, until=batch.until)
        except Overdue:
            session.expire_tls()
        except CONNECTION_ERRORS as error:
            cause = cause_of(error, Step.STARTTLS)
            if isinstance(error, ConnectionLost) and len(preamble) == said_before:
                # It hung up right after its demand: others are asked on a fresh connection.
                batch.began_anew()
            session.end_tls(cause)
        else:
            if refusal is not None:
                reading = session.host.read(Step.STARTTLS, refusal.reply)
                cause = refused_command(refusal, reading)
            session.end_tls(cause)
        self._resume()
