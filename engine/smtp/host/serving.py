"""The task of one connection: its waits, and the effects of its session's steps on its host.

A session does not wait, and makes no calls outside itself. Each of its steps is one call from here.
Then its effects are applied and its octets are written, and only then the next step follows.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio
from msgspec import Struct

from ...background import ContainedTasks
from ...dns.routes import Routes
from ...net.dialer import Dial
from ...net.public_addresses import is_public
from ...net.reactor import ByteChannel
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
from .hedges import Hedges
from .host import Host, HostEgress
from .hosts import Hosts
from .left_connections import LeftConnections
from .permits import Permits


class EgressNetwork(Struct, frozen=True):
    """How connections leave by one egress, and to which addresses."""

    routes: Routes
    dial: Dial
    open_channel: Callable[[trio.abc.Stream], ByteChannel]
    marker: str  # a part of each address that it can connect to; empty: it can connect to all
    allow_private: bool

    def usable(self, ips: tuple[str, ...]) -> tuple[str, ...]:
        """The addresses that may be dialled."""
        return tuple(ip for ip in self.of_family(ips) if self.allow_private or is_public(ip))

    def of_family(self, ips: tuple[str, ...]) -> tuple[str, ...]:
        """From an IPv4 address only IPv4 can be reached."""
        return tuple(ip for ip in ips if self.marker in ip)


class ConnectionEgress(HostEgress, Protocol):
    """What the connections of a host need of layer 4; implemented by egress.hosts.EgressHosts."""

    network: EgressNetwork
    hosts: Hosts
    hedges: Hedges
    left_connections: LeftConnections
    tasks: ContainedTasks

    @property
    def permits(self) -> Permits: ...
    async def other_addresses(self, host: Host, account: str) -> tuple[str, ...]: ...


Open = Callable[[str | None], Awaitable["ServedSession | None"]]  # see ConnectionOpener.open()


async def run_connection(
    host: Host, egress: ConnectionEgress, open_one: Open, permit_at: str | None
) -> None:
    """Run one connection; `permit_at` is an address whose permit it holds already."""
    served, is_done, turn = None, True, host.turn
    try:
        served = await open_one(permit_at)
        if served is not None:
            host.staffing.sessions.open.add(served)
            host.staffing.connections.greeted(len(host.staffing.sessions.open))
            if egress.closing:
                served.withdraw()
            egress.hedges.greeted(host)
            turn.mark_freed(host)
            turn.run()
            host.open_all()
            with egress.permits.holding(served.address):
                await served.serve()
                session_over(host, served)
                host.staff()
                turn.run()
                is_done = await served.connection.quit()
    finally:
        if served is not None:
            session_over(host, served)
            turn.run()
            host.staffing.connections.session_closed(host.now())
            if not is_done:
                egress.left_connections.add(host, served.connection, served.address)
            else:
                with trio.CancelScope(shield=True):
                    await served.connection.close()
                egress.permits.release(served.address)
        host.staffing.connections.closed()
        if not host.staffing.connections.now:
            egress.hedges.gave_up(host)
    host.connection_ended()
    turn.run()


def session_over(host: Host, served: "ServedSession") -> None:
    session = served.session
    if served in host.staffing.sessions.open and session.is_spent and session.recipients:
        host.staffing.connections.session_spent(session.recipients)
    host.staffing.sessions.open.discard(served)
    if host.times.late.session_over(session.conversation):
        host.turn.mark_freed(host)


class ServedSession(Struct, eq=False):
    """One session on its connection: reads and writes for it, and waits. Its host wakes it."""

    _host: Host
    _egress: ConnectionEgress
    session: SmtpSession
    connection: SmtpConnection
    address: str
    _until: float = NOW  # of the wait
    _error: Exception | None = None  # of a step during a wait

    # -- for its host --------------------------------------------------------------------------

    @property
    def is_leaving(self) -> bool:
        return self.session.tenure.is_leaving

    def interrupt(self) -> None:
        """Wake the session: a probe may be waiting."""
        if self.session.idle.wake():
            self.connection.interrupt()

    def withdraw(self) -> None:
        """Send QUIT as soon as nothing is unanswered."""
        self.session.tenure.leave()
        self.interrupt()

    def revoke_permit(self) -> None:
        """Its task is about to be cancelled; the host is not at fault."""
        self.session.tenure.lose_permit()

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
        session, host, connection = self.session, self._host, self.connection
        try:
            connection.read()
            until = session.react()
            while True:
                if session.effects:
                    takes_more = session.takes_more and not session.exchange.batch.unanswered
                    self._apply(takes_more=takes_more)
                if until == NOW:
                    session.conversation.read_clock(host.now())
                elif session.exchange.late.is_late and until > NOW and self._gives_way():
                    until = session.fail(Rerouted())
                    continue
                elif not session.idle.is_woken:  # by the effects, for a probe just admitted
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
        session, host = self.session, self._host
        after_s = host.times.reroute_s(host.staffing.openings.opening_s)
        exchange = session.exchange
        return exchange.late.may_give_way(exchange.batch, after_s) and host.staffing.gives_way(
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
                cause = refused_command(refusal, self._host.read(Step.STARTTLS, refusal.reply))
            session.end_tls(cause)
        self._resume()

    # -- the effects of its steps -- -------------------------------------------------------------

    def _apply(self, *, takes_more: bool) -> None:
        """Apply the effects of the latest step, in order, and end the step.

        `takes_more`: the session takes one of those that wait.
        """
        host, session, turn = self._host, self.session, self._host.turn
        settle, read_recipient = host.egress.probes.settle, host.refusals.recipient_read
        if takes_more:
            host.staffing.sessions.woken.add(self)
        try:
            for effect in session.effects:  # those of every reply first: a class pattern takes 2 µs
                if type(effect) is Settled:
                    settle(effect.probe, effect.outcome, effect.rule)
                elif type(effect) is RecipientRead:
                    read_recipient(effect.domain, effect.reply, effect.reading, self.address)
                elif type(effect) is HeldBack:
                    host.load.hold_back(effect.count)
                    turn.hold_back(host, effect.count)
                elif type(effect) is BatchDone:
                    self._batch_done(effect)
                elif type(effect) is Idle:
                    host.staffing.sessions.idles(self, tests=effect.tests)
                else:
                    self._apply_rare(effect)
        finally:
            if turn.is_due:
                turn.run()
            if takes_more and not session.idle.is_woken:
                host.staffing.sessions.woken.discard(self)
            session.effects.clear()

    def _batch_done(self, effect: BatchDone) -> None:
        """All replies of a batch are there; their verdicts are settled or still to be proven."""
        host, staffing = self._host, self._host.staffing
        if host.times.batch_done(effect.round_s, effect.gap_s, effect.first_s):
            host.turn.mark_freed(host)
        staffing.connections.succeeded(host.now())
        if staffing.sessions.testers or staffing.counterpart is not None:
            staffing.wake_testers()
        if host.waiting.count > len(staffing.sessions.woken):
            host.staff()

    def _apply_rare(self, effect: Effect) -> None:
        host = self._host
        match effect:
            case made.Busy(reused):
                host.staffing.sessions.works(self)
                if reused:
                    host.egress.probes.observer.session_reused()
            case made.RecipientRefused(at, prompt, for_good):
                if prompt:
                    host.times.note_prompt_refusal(at)
                if for_good:
                    host.egress.probes.observer.recipient_refused(host.tolerance.known.label)
            case made.Requeued(probe, last):
                host.waiting.requeue(probe, last=last)
            case made.ClockRestarted(probe):
                host.turn.restart_clock(probe)
            case made.ClockSuspended(probe):
                host.turn.stop_clocks((probe,))
            case made.FailedOver(probe, cause):
                host.egress.probes.fail_over(probe, cause)
            case made.TestEnded(domain, acceptance, in_time):
                if acceptance is None:
                    repeat_test(host, domain)
                    return
                if not in_time:
                    host.times.note_unanswered_test(host.now())
                settle_awaiting(host, domain, acceptance, in_time=in_time)
            case made.BecameLate(conversation, accepted_before):
                host.times.became_late(conversation, host.now(), accepted_before)
                host.staff()  # another connection may be needed
                host.turn.mark_freed(host)
            case made.CaughtUp(conversation, accepted):
                host.times.caught_up(conversation, host.now(), accepted=accepted)
                host.turn.mark_freed(host)
            case made.GaveWay():
                host.times.gave_way(host.now(), host.staffing.openings.opening_s)
            case made.SessionFailed(cause, before_recipients, late, at_recipient):
                # If others were answered in time, fewer connections would not help.
                if not (late and cause.outcome is Outcome.TIMED_OUT):
                    host.staffing.connections.failed()
                # A reply to a recipient is counted for its domain instead: see RefusalMemory.
                if before_recipients or (cause.about_us and not at_recipient):
                    host.rest.record_failure(cause, [self.address])
            case made.Barren(cause, domain):
                host.refusals.session_barren(cause, domain, self.address)
            case made.IdledTooLong():
                host.staffing.sessions.close_idle()
            case made.Distrusted(renamed=is_renaming):
                host.times.distrust(renamed=is_renaming)
            case made.Proven(fast_reply_s, renamed):
                if fast_reply_s:
                    host.times.replied_early(fast_reply_s)
                if renamed and host.renamings.learn(renamed):
                    host.times.renaming_proven()
            case made.HostChanged(cause, hour):
                if hour is not None:
                    host.tolerance.known.limit_hour(hour)
                host.rest.record_failure(cause, [self.address], at_once=True)
            case made.TurnedAway(probe):
                host.waiting.turn_away(probe)
            case made.HostBlocked(words):
                host.blocked(words)
            case _:
                raise TypeError(effect)
