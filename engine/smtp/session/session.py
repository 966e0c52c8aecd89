"""One greeted connection with a mail host, from its first batch to its end, without a socket.

What a session is given: octets and times, by its conversation; recipients, by its host's queue.
What it returns: octets, in the conversation; until when to wait; and effects. A step is one call of
`react`: when something has come, the time is up, or at once, when the effects of the step before
are applied. `exchange` sends batches and processes replies; here are the steps between them, TLS
that the host demands, and the end. `mailprobe.engine.smtp.host.serving` waits, writes and applies.
"""

from collections.abc import Callable

from ..probe import Cause, Probe
from ..replies.rules import Step
from ..wire import ClosedUnasked, Conversation, RemoteProtocolError, Stage
from .batch import CatchAllTest, PendingProbe, RecipientBatch
from .effects import Busy, Effect, Idle, SessionFailed
from .exchange import BatchExchange
from .failure_causes import (
    CONNECTION_ERRORS,
    cause_of,
    leave_untested,
    requeue_unanswered,
    requeue_uncounted,
)
from .host import SessionHost

IDLE_S = 3.0  # Postfix keeps a connection for reuse 2 s; a list comes back within 3
CONTROL_CHECK_S = 0.02  # until a control that is due but cannot be sent yet is looked at again
NOW = 0.0  # instead of a time to wait until: another step follows
BY_TASK = -1.0  # instead of a time to wait until: the session is over, or TLS is to be started


def _nothing() -> None:
    """The step of a session that has ended."""


class SmtpSession:
    """A greeted connection and the recipients sent on it."""

    __slots__ = (
        *("_control_from", "_emit", "_ends", "_had_control", "_idle_until", "_state"),
        *("address", "conversation", "effects", "exchange", "host", "is_idle", "is_over"),
        *("is_woken", "takes_more"),
    )

    def __init__(
        self,
        host: SessionHost,
        conversation: Conversation,
        address: str,
        preamble: list[tuple[float, bool, str]],
    ) -> None:
        self.address = address
        self.host = host
        self.conversation = conversation
        self.effects: list[Effect] = []  # of the latest step: whoever calls it takes them
        self._emit = self.effects.append
        self.exchange = BatchExchange(host, conversation, address, preamble, self._emit)
        self._state: Callable[[], float | None] = self._choose  # the next step
        self._ends = False  # it picks nothing more but tests and a control
        self._had_control = False  # and that has been sent
        self._idle_until = 0.0
        self._control_from = 0.0  # until then one that was due and not sent is not looked at
        self.is_idle = False
        self.is_woken = False  # its idle time ends for a probe
        self.takes_more = False  # its next batch is picked as soon as this one is answered
        self.is_over = False

    # -- for its host --------------------------------------------------------------------------

    @property
    def is_leaving(self) -> bool:
        return self.exchange.tenure.is_leaving

    @property
    def is_spent(self) -> bool:
        """Can it serve no more recipients?"""
        return self.exchange.tenure.spent or not self.conversation.usable

    @property
    def recipients(self) -> int:
        """Answered so far."""
        return self.exchange.limits.recipients

    def is_testing(self) -> bool:
        """Is a random address unanswered here?"""
        return any(isinstance(each, CatchAllTest) for each in self.exchange.batch.unanswered)

    def wake(self) -> bool:
        """A probe may be waiting. Returns whether the session idles, so that its wait is to end."""
        self.is_woken = self.is_idle
        return self.is_idle

    # -- steps ---------------------------------------------------------------------------------

    def react(self) -> float:
        """Octets have come, the time is up, or NOW was returned and the effects are applied.

        Returns until when to wait: NOW if another step follows once the effects are applied, and
        BY_TASK if there is nothing to wait for.
        """
        try:
            until = self._state()
        except CONNECTION_ERRORS as error:
            return self.fail(error)
        if until is None:
            self._state = self._choose
            self.takes_more = self.takes_more and self.exchange.batch.refusal is None
            return NOW
        return until

    def fail(self, error: Exception) -> float:
        """The connection failed with one of CONNECTION_ERRORS. Returns as react()."""
        self.exchange.connection_failed(error)
        self.takes_more = False
        return self._then(self._choose)

    def _then(self, step: Callable[[], float | None]) -> float:
        """This step follows once the effects are applied."""
        self._state = step
        return NOW

    def _choose(self) -> float | None:
        """Nothing is unanswered: what is sent next, if anything?

        Held verdicts are proven first if necessary, otherwise while the session idles.
        """
        was_answered, self.takes_more = self.takes_more, False
        exchange, conversation, now = self.exchange, self.conversation, self.conversation.now
        next_batch, held = exchange.next_batch, exchange.proof.held
        if held and exchange.proof.is_due(now):
            self.takes_more = True
            return self._prove()
        if not exchange.tenure.may_continue(now):
            return self._finish()
        # Answered, it goes on as long as there is something to pick.
        if not was_answered or next_batch.again:
            if self._ends or self.is_spent:
                return self._finish()
            if conversation.offer.starttls and (exchange.answers.tls_wanted or self.host.terms.tls):
                return self._prove() if held else BY_TASK
            if exchange.limits.held:  # left only by a batch that was not answered to its end
                exchange.settle_limited()
            if next_batch.again:
                next_batch.requeue_again()
            if self.effects:
                return self._then(self._choose)
        set_aside = next_batch.set_aside and next_batch.pop_set_aside()
        asked = set_aside or next_batch.pick(now)
        if not asked:
            # What it ended or queued again is gone after this step: others may be sent then.
            if next_batch.has_ended_some or (was_answered and self.effects):
                return self._then(self._choose)
            if self._ends or exchange.tenure.is_leaving or exchange.tenure.spent:
                return self._finish()
            return self._begin_idle()
        opens = exchange.transaction.must_open(asked)
        if opens:
            if not (set_aside or exchange.transaction.may_open(asked)):
                next_batch.return_unsent(asked)
                return self._finish()
            if held:
                next_batch.keep(asked)
                return self._prove()
        self._state, self.takes_more = exchange.receive, True
        return exchange.send(asked, opens=opens)

    def _prove(self) -> float | None:
        """Prove the held verdicts by a silence before the next command."""
        self._state = self.exchange.receive
        until = self.exchange.proof.begin_quiet()
        return self.exchange.receive() if self.conversation.unread else until

    # -- idle ----------------------------------------------------------------------------------

    def _begin_idle(self) -> float:
        """Nothing is to be sent. Returns until when to wait."""
        exchange, conversation = self.exchange, self.conversation
        self._state, self.is_idle, self.is_woken = self._while_idle, True, False
        idle_s = max(IDLE_S, self.host.clocks.read_s) if exchange.next_batch.tests.due else IDLE_S
        self._idle_until = conversation.now + idle_s
        until = self._idle_until
        if exchange.proof.held:
            until = exchange.proof.begin_idle()
        elif exchange.confirmation.verdicts:
            until = self._idles_until()
        self._emit(Idle(tests=bool(exchange.next_batch.tests.due)))
        return until

    def _idles_until(self) -> float:
        """Verdicts await a control: until it is due."""
        due_at = self.exchange.confirmation.due_at
        return min(self._idle_until, max(due_at, self._control_from))

    def _while_idle(self) -> float | None:
        """Until when to idle. Silence proves the held verdicts."""
        exchange, conversation = self.exchange, self.conversation
        proof = exchange.proof
        if conversation.unread or conversation.lost:
            conversation.fail()
        if self.is_woken or not conversation.usable:
            return self._end_idle()
        now = conversation.now
        if proof.held:
            if now < proof.quiet_until:
                return proof.quiet_until
            exchange.settle_proven()
        until = self._idles_until() if exchange.confirmation.verdicts else self._idle_until
        return until if now < until else self._end_idle()

    def _end_idle(self) -> float | None:
        """Woken, the time is up, or the server spoke or closed. Then what the effects admit follows."""
        confirmation, conversation = self.exchange.confirmation, self.conversation
        self.is_idle = False
        self.exchange.proof.end_idle()
        is_due = bool(confirmation.verdicts) and conversation.now >= confirmation.due_at
        if is_due:
            self._control_from = conversation.now + CONTROL_CHECK_S
        goes_on = conversation.usable and (self.is_woken or is_due)
        self._ends = self._ends or not goes_on
        woken, self.is_woken = self.is_woken, False
        self._emit(Busy(reused=woken and goes_on and not self.is_leaving))
        return None

    # -- TLS -----------------------------------------------------------------------------------

    def begin_tls(self) -> RecipientBatch:
        """STARTTLS follows, as the host demands. Returns the recipients that wait for it."""
        exchange = self.exchange
        again = exchange.next_batch.pop_again()
        deadlines = [asked.clock.deadline for asked in again if isinstance(asked, Probe)]
        if self.conversation.stage is Stage.MAIL:
            exchange.transaction.count_reset()
        before = exchange.batch
        waiting = RecipientBatch(
            [],
            False,
            before.reused,
            again,
            elsewhere=before.elsewhere,
            first=True,
            until=max(deadlines, default=float("inf")),
        )
        exchange.set_aside(waiting)
        return waiting

    def end_tls(self, cause: Cause | None) -> None:
        """TLS is established, or failed with this cause."""
        exchange, terms = self.exchange, self.host.terms
        batch = exchange.resume_batch()
        if cause is None:
            terms.tls_works()
            for asked in batch.pop_unanswered():
                exchange.next_batch.send_again(asked)
            return
        for asked in batch.unanswered:
            if isinstance(asked, Probe):
                exchange.recorder.record_preamble(asked)
        terms.tls_failed()
        exchange.failures.fail(batch, cause, failure=exchange.answers.tls_of_all)

    def expire_tls(self) -> None:
        """The deadlines of the recipients that waited for TLS have passed."""
        batch = self.exchange.resume_batch()
        self.exchange.failures.expire(batch)

    # -- the end -------------------------------------------------------------------------------

    def _finish(self) -> float | None:
        """It ends: prove what is held, send the tests that are due and a control, if it still can."""
        exchange, now = self.exchange, self.conversation.now
        self._ends = True
        if exchange.proof.held:
            return self._prove()
        has_failed = exchange.error is not None or exchange.batch.refusal is not None
        may_send = not (has_failed or exchange.tenure.permit_lost or self._had_control)
        asked: list[PendingProbe] = []
        if may_send and self.conversation.usable:
            asked = exchange.next_batch.pick_tests(now)
            if not asked:
                control = exchange.next_batch.last_control(now)
                asked, self._had_control = [] if control is None else [control], True
        if asked:
            self._state, self.takes_more = exchange.receive, True
            return exchange.send(asked, opens=exchange.transaction.must_open(asked))
        self._check_unasked()
        self.is_over = True
        return BY_TASK

    def _check_unasked(self) -> None:
        """Did octets come before any batch was sent?"""
        if self.exchange.batches or not self.conversation.unread:
            return
        try:
            self.conversation.next_exchange()
        except ClosedUnasked:
            return  # nothing was left to ask, and it waits no longer (RFC 5321 3.8)
        except RemoteProtocolError:
            pass
        cause = cause_of(RemoteProtocolError("it spoke without being asked"), Step.HELLO)
        self._emit(SessionFailed(cause, before_recipients=True, late=False, at_recipient=False))

    def end(self) -> None:
        """The session ends, or its task is cancelled: hand back all that is not answered."""
        exchange = self.exchange
        batch, next_batch = exchange.batch, exchange.next_batch
        if self.is_idle:
            self._end_idle()
        exchange.limits.recall()
        next_batch.return_unsent(next_batch.pop_set_aside())
        exchange.proof.requeue_held()
        exchange.settle_limited()
        may_send = exchange.limits.may_send_control(accepted=True)
        if not may_send and exchange.confirmation.has_control(self.conversation.now):
            # None is left for a control: ask again, once.
            for probe in exchange.confirmation.withdraw_refusals():
                requeue_uncounted(self._emit, probe)
        exchange.confirmation.end(self.conversation.now)
        next_batch.requeue_again()
        if exchange.tenure.permit_lost:
            requeue_unanswered(self._emit, batch.unanswered, batch.elsewhere)
        for asked in batch.pop_unanswered():
            if isinstance(asked, CatchAllTest):
                leave_untested(self._emit, asked)
        next_batch.tests.abandon()
        self._state = _nothing  # breaks a reference cycle
