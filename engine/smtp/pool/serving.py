"""The task of one connection: its waits, and the effects of its session's steps on its host.

A session neither waits nor calls anybody. Each of its steps is one call from here; then what it
has changed outside it is applied and what it has to send is written, and only then the next step
follows.
"""

from collections.abc import Awaitable, Callable

import trio

from ...verdict import Outcome
from ..connection import SmtpConnection
from ..host_policy import start_tls
from ..replies.rules import Step
from ..session import effects as made
from ..session.effects import BatchDone, Effect, HeldBack, Idle, RecipientRead, Settled
from ..session.failure_causes import (
    CONNECTION_ERRORS,
    Rerouted,
    cause_of,
    refused_command,
)
from ..session.session import NOW, SmtpSession
from ..wire import ConnectionLost, Overdue
from .catchall_tests import repeat_test, settle_awaiting
from .host import ConnectionEgress
from .pool import Pool

Open = Callable[[str | None], Awaitable["ServedSession | None"]]  # see ConnectionOpener.open()


async def run_connection(
    pool: Pool, egress: ConnectionEgress, open_one: Open, permit_at: str | None
) -> None:
    """Run one connection; `permit_at` is an address whose permit it holds already."""
    served, is_done, turn = None, True, pool.turn
    try:
        served = await open_one(permit_at)
        if served is not None:
            pool.staffing.sessions.add(served)
            pool.staffing.connections.greeted(len(pool.staffing.sessions.open))
            if egress.closing:
                served.withdraw()
            egress.hedges.greeted(pool)
            turn.mark_freed(pool)
            turn.run()
            pool.open_all()
            with egress.permits.holding(served.address):
                await served.serve()
                session_over(pool, served)
                pool.staff()
                turn.run()
                is_done = await served.connection.quit()
    finally:
        if served is not None:
            session_over(pool, served)
            turn.run()
            pool.staffing.connections.session_closed(pool.now())
            if not is_done:
                egress.left_connections.add(pool, served.connection, served.address)
            else:
                with trio.CancelScope(shield=True):
                    await served.connection.close()
                egress.permits.release(served.address)
        pool.staffing.connections.closed()
        if not pool.staffing.connections.now:
            egress.hedges.gave_up(pool)
    pool.connection_ended()
    turn.run()


def session_over(pool: Pool, served: "ServedSession") -> None:
    session = served.session
    if served in pool.staffing.sessions.open and session.is_spent and session.recipients:
        pool.staffing.connections.session_spent(session.recipients)
    pool.staffing.sessions.discard(served)
    if pool.times.late.session_over(session.conversation):
        pool.turn.mark_freed(pool)


class ServedSession:
    """One session on its connection: reads and writes for it, and waits. Its host wakes it."""

    __slots__ = (*("_egress", "_error", "_pool", "_until", "address", "connection", "session"),)

    def __init__(
        self,
        pool: Pool,
        egress: ConnectionEgress,
        session: SmtpSession,
        connection: SmtpConnection,
    ) -> None:
        self.session = session
        self.connection = connection
        self.address = session.address
        self._pool = pool
        self._egress = egress
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

    def revoke_permit(self) -> None:
        """It is about to be cancelled, through no fault of the host."""
        self.session.revoke_permit()

    def is_testing(self) -> bool:
        """Is a random address unanswered here?"""
        return self.session.is_testing()

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
            self._apply(takes_more=False)

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
                    self._apply(takes_more=takes_more)
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
        after_s = pool.times.reroute_s(pool.staffing.openings.opening_s)
        return session.exchange.may_give_way(after_s) and pool.staffing.gives_way(
            session.conversation
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
        batch, helo_name = session.begin_tls(), self._egress.settings.helo_name
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

    # -- what its steps have changed -------------------------------------------------------------

    def _apply(self, *, takes_more: bool) -> None:
        """Apply what the latest step has changed, in order, and end the step.

        `takes_more`: the session takes one of those that wait.
        """
        pool, session, turn = self._pool, self.session, self._pool.turn
        settle, read_recipient = pool.probes.settle, pool.refusals.recipient_read
        if takes_more:
            pool.staffing.sessions.begin_picking(self)
        try:
            for effect in session.effects:  # those of every reply first: a class pattern takes 2 µs
                if type(effect) is Settled:
                    settle(effect.probe, effect.outcome, effect.rule)
                elif type(effect) is RecipientRead:
                    read_recipient(effect.domain, effect.reply, effect.reading, self.address)
                elif type(effect) is HeldBack:
                    pool.hold_back(effect.count)
                elif type(effect) is BatchDone:
                    pool.batch_done(effect.round_s, effect.gap_s, effect.first_s)
                elif type(effect) is Idle:
                    pool.staffing.sessions.idles(self, tests=effect.tests)
                else:
                    self._apply_rare(effect)
        finally:
            if turn.is_due:
                turn.run()
            if takes_more and not session.is_woken:
                pool.staffing.sessions.end_picking(self)
            session.effects.clear()

    def _apply_rare(self, effect: Effect) -> None:
        pool = self._pool
        match effect:
            case made.Busy(reused):
                pool.staffing.sessions.works(self)
                if reused:
                    pool.probes.observer.session_reused()
            case made.RecipientRefused(at, prompt, for_good):
                if prompt:
                    pool.times.note_prompt_refusal(at)
                if for_good:
                    pool.probes.observer.recipient_refused(pool.budget.label)
            case made.Requeued(probe, last):
                pool.waiting.requeue(probe, last=last)
            case made.ClockRestarted(probe):
                pool.turn.restart_clock(probe)
            case made.ClockSuspended(probe):
                pool.turn.stop_clocks((probe,))
            case made.FailedOver(probe, cause):
                pool.probes.fail_over(probe, cause)
            case made.TestEnded(domain, acceptance, in_time):
                if acceptance is None:
                    repeat_test(pool, domain)
                    return
                if not in_time:
                    pool.times.note_unanswered_test(pool.now())
                settle_awaiting(pool, domain, acceptance, in_time=in_time)
            case made.BecameLate(conversation, accepted_before):
                pool.times.became_late(conversation, pool.now(), accepted_before)
                pool.staff()  # another connection may be needed
                pool.turn.mark_freed(pool)
            case made.CaughtUp(conversation, accepted):
                pool.times.caught_up(conversation, pool.now(), accepted=accepted)
                pool.turn.mark_freed(pool)
            case made.GaveWay():
                pool.times.gave_way(pool.now(), pool.staffing.openings.opening_s)
            case made.SessionFailed(cause, before_recipients, late, at_recipient):
                # If others were answered in time, fewer connections would not help.
                if not (late and cause.outcome is Outcome.TIMED_OUT):
                    pool.staffing.connections.failed()
                # A reply to a recipient is counted for its domain instead: see RefusalMemory.
                if before_recipients or (cause.about_us and not at_recipient):
                    pool.rest.record_failure(cause, [self.address])
            case made.Barren(cause, domain):
                pool.refusals.session_barren(cause, domain, self.address)
            case made.IdledTooLong():
                pool.staffing.sessions.close_idle()
            case made.Distrusted(renamed=is_renaming):
                pool.times.distrust(renamed=is_renaming)
            case made.Proven(fast_reply_s, renamed):
                if fast_reply_s:
                    pool.times.replied_early(fast_reply_s)
                if renamed and pool.renamings.learn(renamed):
                    pool.times.renaming_proven()
            case made.HostChanged(cause, hour):
                if hour is not None:
                    pool.budget.limit_hour(hour)
                pool.rest.record_failure(cause, [self.address], at_once=True)
            case made.TurnedAway(probe):
                pool.waiting.turn_away(probe)
            case made.HostBlocked(words):
                pool.blocked(words)
            case _:
                raise TypeError(effect)
