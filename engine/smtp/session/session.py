"""One greeted connection with a mail host, from its first batch to its end.

`exchange` sends batches and processes replies; here are the waits between them, TLS that the host
demands, and the end. Nothing waits here: see `serving`.
"""

from collections import deque

import trio

from mailprobe.engine.smtp.catchall import DomainAcceptance
from mailprobe.engine.smtp.connection import SmtpConnection
from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.replies.rules import Step
from mailprobe.engine.smtp.session.batch import CatchAllTest, PendingProbe, RecipientBatch
from mailprobe.engine.smtp.session.causes import cause_of
from mailprobe.engine.smtp.session.exchange import BatchExchange
from mailprobe.engine.smtp.session.host import SessionHost
from mailprobe.engine.smtp.session.parts import make_parts
from mailprobe.engine.smtp.session.requeue import (
    leave_untested,
    requeue_unanswered,
    requeue_uncounted,
)
from mailprobe.engine.smtp.wire import RemoteProtocolError, Stage

IDLE_S = 3.0  # Postfix keeps a connection for reuse 2 s; a list comes back within 3


class SmtpSession:
    """A greeted connection and the recipients sent on it."""

    __slots__ = (
        *("_confirmation", "_failures", "_idle_until", "_interrupted", "_is_idle", "_now"),
        *("_proof", "_transaction", "address", "agenda", "answers", "connection", "exchange"),
        *("host", "limits", "recorder", "tenure"),
    )

    def __init__(
        self,
        host: SessionHost,
        connection: SmtpConnection,
        address: str,
        preamble: list[tuple[float, bool, str]],
    ) -> None:
        self.address = address
        self.host = host
        self.connection = connection
        parts = make_parts(host, connection, address, preamble)
        self.recorder = parts.recorder
        self.limits = parts.limits
        self.agenda = parts.agenda
        self.answers = parts.answers
        self.tenure = parts.tenure
        self._transaction = parts.transaction
        self._proof = parts.proof
        self._confirmation = parts.confirmation
        self._failures = parts.failures
        self.exchange = BatchExchange(parts)
        self._is_idle = False
        self._idle_until = 0.0
        self._interrupted = False
        self._now = trio.lowlevel.current_clock().current_time

    # -- for its host --------------------------------------------------------------------------

    @property
    def is_leaving(self) -> bool:
        return self.tenure.is_leaving

    def is_sending(self, domain: DomainAcceptance) -> bool:
        """Is a listed address of this domain unanswered here?"""
        return any(
            isinstance(each, Probe) and each.domain_here is domain and not each.settled
            for each in self.exchange.batch.unanswered
        )

    def is_testing(self) -> bool:
        """Is a random address unanswered here?"""
        return any(isinstance(each, CatchAllTest) for each in self.exchange.batch.unanswered)

    def interrupt(self) -> None:
        """Wake the session: a probe may be waiting."""
        if self._is_idle:
            self._interrupted = True
            self.connection.interrupt()

    def withdraw(self) -> None:
        """Send QUIT as soon as nothing is unanswered."""
        self.tenure.leave()
        self.interrupt()

    def revoke_permit(self) -> None:
        """Its task is about to be cancelled: then requeue what is unanswered."""
        self.tenure.lose_permit()

    # -- picking -------------------------------------------------------------------------------

    def wants_tls(self) -> bool:
        """Is TLS to be started before anything else is sent?"""
        wanted = self.answers.tls_wanted or self.host.terms.tls
        return wanted and self.connection.conversation.offer.starttls

    def pick(self) -> list[PendingProbe] | None:
        """The recipients of the next batch; None if what is held is to be proven before."""
        self.exchange.settle_limited()  # left only by a batch that was not answered to its end
        self.agenda.requeue_again()
        asked = self.agenda.pop_next() or self.exchange.pick()
        if asked and self.must_prove and self._transaction.must_open(asked):
            self.agenda.send_next(asked)
            return None
        return asked

    @property
    def must_prove(self) -> bool:
        """Are verdicts held that are not proven?"""
        return bool(self._proof.held.verdicts)

    @property
    def is_done(self) -> bool:
        """May it send nothing more, whatever comes?"""
        return self.tenure.is_leaving or self.tenure.spent

    @property
    def _may_send(self) -> bool:
        return self.connection.usable and not self.exchange.has_failed

    def pick_last_tests(self) -> list[PendingProbe]:
        """The tests that are due before the session ends, if it can still send."""
        if not self._may_send or self.tenure.permit_lost:
            return []
        return self.agenda.pick_tests(self._now(), at_end=True)

    def pick_last_control(self) -> list[PendingProbe]:
        """A control for the last verdicts of the session, if it can still send."""
        if not self._may_send or not self.tenure.may_send_control:
            return []
        control = self.agenda.last_control(self._now())
        return [] if control is None else [control]

    # -- idle ----------------------------------------------------------------------------------

    def begin_idle(self) -> float:
        """Nothing is to be sent. Returns until when to wait."""
        self._is_idle, self._interrupted = True, False
        idle_s = max(IDLE_S, self.host.read_s) if self.agenda.tests else IDLE_S
        self._idle_until = until = self._now() + idle_s
        if self._confirmation.verdicts:
            until = min(until, self._confirmation.due_at)
        if self._proof.held.verdicts:
            until = self._proof.begin_idle()
        self.host.is_idle(self, tests=bool(self.agenda.tests))
        return until

    def while_idle(self) -> float | None:
        """Until when to idle; None when that is over. Silence proves the held verdicts."""
        if self._interrupted or self.connection.replied():
            return None
        now = self._now()
        if self._proof.held.verdicts:
            if now < self._proof.quiet_until:
                return self._proof.quiet_until
            self.exchange.settle_proven(is_idle=True)
            if self._interrupted:  # for a probe just admitted
                return None
        if self._confirmation.verdicts and self._confirmation.due_at < self._idle_until:
            return self._confirmation.due_at if now < self._confirmation.due_at else None
        return self._idle_until if now < self._idle_until else None

    def end_idle(self) -> None:
        self._is_idle = False
        self._proof.end_idle()
        self.host.is_busy(self, woken=self._interrupted)

    def goes_on(self) -> bool:
        """The idle time is over: was the session woken, or is a control due?"""
        if not self.connection.usable:
            return False
        if self._interrupted and not self.is_leaving:
            self.host.session_reused()
        confirmation = self._confirmation
        return self._interrupted or (
            bool(confirmation.verdicts) and self._now() >= confirmation.due_at
        )

    # -- TLS -----------------------------------------------------------------------------------

    def begin_tls(self) -> RecipientBatch:
        """STARTTLS follows, as the host demands. Returns the recipients that wait for it."""
        again = self.agenda.pop_again()
        deadlines = [asked.deadline for asked in again if isinstance(asked, Probe)]
        if self.connection.conversation.stage is Stage.MAIL:
            self._transaction.count_reset()
        before = self.exchange.batch
        waiting = RecipientBatch(
            [],
            False,
            before.reused,
            deque(again),
            elsewhere=before.elsewhere,
            first=True,
            until=max(deadlines, default=float("inf")),
        )
        self.exchange.set_aside(waiting)
        return waiting

    def end_tls(self, cause: Cause | None) -> None:
        """TLS is established, or failed with this cause."""
        batch = self.exchange.resume_batch()
        terms = self.host.terms
        if cause is None:
            terms.tls_works()
            for asked in batch.pop_unanswered():
                self.agenda.send_again(asked)
            return
        for asked in batch.unanswered:
            if isinstance(asked, Probe):
                self.recorder.record_preamble(asked)
        terms.tls_failed()
        failure, is_late = self.answers.tls_of_all, self.exchange.is_late
        self._failures.fail(batch, cause, is_late=is_late, failure=failure)

    def expire_tls(self) -> None:
        """The deadlines of the recipients that waited for TLS have passed."""
        batch = self.exchange.resume_batch()
        self._failures.expire(batch)

    # -- the end -------------------------------------------------------------------------------

    def end(self) -> None:
        """The session ends: hand back all that is not answered."""
        host, batch, agenda = self.host, self.exchange.batch, self.agenda
        self.limits.reserve(0)
        agenda.return_unsent(agenda.pop_next())
        self._failures.requeue_unproven()
        self.exchange.settle_limited()
        if self.limits.refusals_allowed <= 0:  # none is left for a control: ask again, once
            for probe in self._confirmation.withdraw_refusals():
                requeue_uncounted(host, probe)
        self._confirmation.end(self._now())
        agenda.requeue_again()
        if self.tenure.permit_lost:
            requeue_unanswered(host, batch.unanswered, batch.elsewhere)
        for asked in batch.pop_unanswered():
            if isinstance(asked, CatchAllTest):
                leave_untested(host, asked)
        agenda.abandon()

    def check_unasked(self) -> None:
        """Did octets come before any batch was sent?"""
        if self.exchange.batches or not self.connection.unread():
            return
        cause = cause_of(RemoteProtocolError("it spoke without being asked"), Step.HELLO)
        self.host.session_failed(cause, before_recipients=True, late=False, at_recipient=False)
