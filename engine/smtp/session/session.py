"""One greeted connection with a mail host, from its first batch to its end, without a socket.

A session gets octets and times from its conversation, and recipients from its host's queue. It
returns octets in the conversation, until when to wait, and effects. A step is one call of `react`:
when octets have come, when the time is up, or as soon as the effects of the step before are
applied. `exchange` sends batches and processes replies; here are the steps between them, TLS that
the host demands, and the end. `mailprobe.engine.smtp.host.serving` waits, writes and applies.
"""

from collections.abc import Callable
from math import inf

from msgspec import Struct

from ..pairing import Pairing
from ..probe import Cause, Probe
from ..replies.rules import Step
from ..wire import ClosedUnasked, Conversation, RemoteProtocolError, Stage
from .answers import RecipientReplies
from .batch import BatchReplies, CatchAllTest, PendingProbe, RecipientBatch
from .confirmation import Confirmation, SessionTreatments
from .due_tests import DueTests
from .effects import Busy, Effect, Idle, SessionFailed
from .exchange import BatchExchange
from .failure_causes import (
    CONNECTION_ERRORS,
    cause_of,
    leave_untested,
    requeue_unanswered,
    requeue_uncounted,
)
from .failures import Failures
from .host import SessionHost
from .late_reply import LateReply
from .next_batch import TURN_S, NextBatch, Tenure, Unsent
from .proof import Proof
from .recipient_limits import SessionLimits
from .recorder import SessionRecorder
from .transaction import Transaction

IDLE_S = 3.0  # Postfix keeps a connection for reuse 2 s; a list comes back within 3
CONTROL_CHECK_S = 0.02  # until a control that is due but cannot be sent yet is looked at again
NOW = 0.0  # instead of a time to wait until: another step follows
BY_TASK = -1.0  # instead of a time to wait until: the session is over, or TLS is to be started


def _nothing() -> None:
    """The step of a session that has ended."""


class IdleTime(Struct, eq=False):
    """Whether a session idles, and until when."""

    is_running: bool = False
    is_woken: bool = False  # it ends for a probe
    ends_at: float = 0.0
    _control_from: float = 0.0  # until then a control that was due and not sent is not looked at

    def begin(self, ends_at: float) -> None:
        """It begins, and ends by itself then."""
        self.is_running, self.is_woken, self.ends_at = True, False, ends_at

    def until(self, control_due_at: float) -> float:
        """Until when to wait, if a control is due then."""
        return min(self.ends_at, max(control_due_at, self._control_from))

    def wake(self) -> bool:
        """A probe may be waiting. Returns whether the session idles, so its wait must end."""
        self.is_woken = self.is_running
        return self.is_running

    def try_control(self, now: float) -> None:
        """A control is due: if it cannot be sent now, it is looked at again a moment later."""
        self._control_from = now + CONTROL_CHECK_S

    def end(self) -> bool:
        """The time is over. Returns whether it ended for a probe."""
        was_woken, self.is_running, self.is_woken = self.is_woken, False, False
        return was_woken


class SmtpSession:
    """A greeted connection and the recipients sent on it."""

    __slots__ = (
        *("_emit", "_ends", "_had_control", "_host", "_state"),
        *("conversation", "effects", "exchange", "idle", "is_over", "next_batch", "takes_more"),
        *("tenure", "unsent"),
    )

    def __init__(
        self,
        host: SessionHost,
        conversation: Conversation,
        address: str,
        preamble: list[tuple[float, bool, str]],
    ) -> None:
        self.conversation = conversation
        self.effects: list[Effect] = []  # of the latest step: whoever calls it takes them
        self.idle = IdleTime()
        self.takes_more = False  # its next batch is picked as soon as this one is answered
        self.is_over = False
        self._host = host
        self._emit = emit = self.effects.append
        self._state: Callable[[], float | None] = self._choose  # the next step
        self._ends = False  # it picks nothing more but tests and a control
        self._had_control = False  # and that has been sent

        recorder = SessionRecorder(host, conversation, address, preamble)
        limits = SessionLimits(host, host.terms.limits)
        transaction = Transaction(conversation.state, host, limits)
        proof = Proof(*(host, conversation, transaction, recorder, Pairing(host.renamings), emit))
        confirmation = Confirmation(host, SessionTreatments(host.controls), emit)
        tests = DueTests(host, emit)
        turn_ends = conversation.now + TURN_S
        self.tenure = tenure = Tenure(host, conversation, address, limits, tests, turn_ends)
        self.unsent = unsent = Unsent(tests, tenure, emit)
        answers = RecipientReplies(
            *(host, conversation, limits, transaction, tests, unsent, tenure),
            *(confirmation, recorder, emit),
        )
        late = LateReply(host, conversation, proof, emit)
        failures = Failures(
            *(host, conversation, limits, transaction, proof, unsent, answers, tenure, late, emit)
        )
        self.next_batch = NextBatch(
            *(host, conversation.state, limits, transaction, proof, confirmation),
            *(tests, tenure, emit),
        )
        self.exchange = BatchExchange(
            *(host, conversation, limits, transaction, proof, confirmation, answers, late),
            *(failures, recorder, emit),
            RecipientBatch([], False, [], BatchReplies()),
        )

    # -- for its host --------------------------------------------------------------------------

    @property
    def is_spent(self) -> bool:
        """Can it serve no more recipients?"""
        return self.tenure.spent or not self.conversation.usable

    @property
    def recipients(self) -> int:
        """Answered so far."""
        return self.exchange.limits.recipients

    def is_testing(self) -> bool:
        """Is a random address unanswered here?"""
        return any(isinstance(each, CatchAllTest) for each in self.exchange.batch.unanswered)

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
        self.takes_more, self._state = False, self._choose
        return NOW

    def _choose(self) -> float | None:
        """Nothing is unanswered: what is sent next, if anything?

        Held verdicts are proven first if necessary, otherwise while the session idles.
        """
        was_answered, self.takes_more = self.takes_more, False
        exchange, now = self.exchange, self.conversation.now
        next_batch, unsent, held = self.next_batch, self.unsent, exchange.proof.held
        if held and exchange.proof.is_due(now):
            self.takes_more = True
            return self._prove()
        if not self.tenure.may_continue(now):
            return self._finish()
        # Answered, it goes on as long as there is something to pick.
        if not was_answered or unsent.again:
            if self._ends or self.is_spent:
                return self._finish()
            is_tls_wanted = exchange.answers.tls_wanted or self._host.terms.tls
            if is_tls_wanted and self.conversation.state.offer.starttls:
                return self._prove() if held else BY_TASK
            if exchange.limits.held:  # left only by a batch that was not answered to its end
                exchange.answers.settle_limited(exchange.batch)
            if unsent.again:
                unsent.requeue_again()
            if self.effects:
                return NOW  # then it chooses again
        set_aside = unsent.set_aside and unsent.pop_set_aside()
        asked = set_aside or next_batch.pick(now)
        if not asked:
            # Probes that it ended or queued again are gone after this step: then others may be sent.
            if next_batch.has_ended_some or (was_answered and self.effects):
                return NOW  # likewise
            if self._ends or self.tenure.is_leaving or self.tenure.spent:
                return self._finish()
            return self._begin_idle()
        opens = exchange.transaction.must_open(asked)
        if opens:
            if not (set_aside or exchange.transaction.may_open(asked)):
                unsent.return_unsent(asked)
                return self._finish()
            if held:
                unsent.keep(asked)
                return self._prove()
        return self._send(asked, opens=opens)

    def _send(self, asked: list[PendingProbe], *, opens: bool) -> float:
        """Send these, and process their replies in the steps that follow."""
        self._state, self.takes_more = self.exchange.receive, True
        return self.exchange.send(asked, opens=opens)

    def _prove(self) -> float | None:
        """Prove the held verdicts by a silence before the next command."""
        self._state = self.exchange.receive
        until = self.exchange.proof.begin_quiet()
        return self.exchange.receive() if self.conversation.unread else until

    # -- idle ----------------------------------------------------------------------------------

    def _begin_idle(self) -> float:
        """Nothing is to be sent. Returns until when to wait."""
        proof, confirmation = self.exchange.proof, self.exchange.confirmation
        has_tests = bool(self.next_batch.tests.due)
        idle_s = max(IDLE_S, self._host.clocks.read_s) if has_tests else IDLE_S
        self._state = self._while_idle
        until = self.conversation.now + idle_s
        self.idle.begin(until)
        if proof.held:
            until = proof.begin_idle()
        elif confirmation.verdicts:
            until = self.idle.until(confirmation.due_at)
        self._emit(Idle(tests=has_tests))
        return until

    def _while_idle(self) -> float | None:
        """Until when to idle. Silence proves the held verdicts."""
        exchange, conversation = self.exchange, self.conversation
        proof, confirmation, now = exchange.proof, exchange.confirmation, conversation.now
        if conversation.unread or conversation.lost:
            conversation.state.fail()
        if self.idle.is_woken or conversation.state.failed:
            return self._end_idle()
        if proof.held:
            if now < proof.quiet_until:
                return proof.quiet_until
            exchange.settle_proven()
        until = self.idle.ends_at
        if confirmation.verdicts:
            until = self.idle.until(confirmation.due_at)
        return until if now < until else self._end_idle()

    def _end_idle(self) -> float | None:
        """Woken, the time is up, or the server spoke or closed. Then what the effects admit follows."""
        confirmation, now = self.exchange.confirmation, self.conversation.now
        self.exchange.proof.end_idle()
        is_due = bool(confirmation.verdicts) and now >= confirmation.due_at
        if is_due:
            self.idle.try_control(now)
        was_woken = self.idle.end()
        goes_on = self.conversation.usable and (was_woken or is_due)
        self._ends = self._ends or not goes_on
        self._emit(Busy(reused=was_woken and goes_on and not self.tenure.is_leaving))
        return None

    # -- TLS -----------------------------------------------------------------------------------

    def begin_tls(self) -> RecipientBatch:
        """STARTTLS follows, as the host demands. Returns the recipients that wait for it."""
        exchange, before = self.exchange, self.exchange.batch
        again = self.unsent.pop_again()
        deadlines = [asked.clock.deadline for asked in again if isinstance(asked, Probe)]
        if self.conversation.state.stage is Stage.MAIL:
            exchange.transaction.count_reset()
        waiting = RecipientBatch(
            [],
            before.reused,
            again,
            BatchReplies(),
            until=max(deadlines, default=inf),
            began=before.began,
            served=True,
            elsewhere=before.elsewhere,
            refusal=before.refusal,
        )
        exchange.await_tls(waiting)
        return waiting

    def end_tls(self, cause: Cause | None) -> None:
        """TLS is established, or failed with this cause."""
        exchange, terms, batch = self.exchange, self._host.terms, self.exchange.batch
        if cause is None:
            terms.tls_works()
            for asked in batch.pop_unanswered():
                self.unsent.send_again(asked)
            return
        for asked in batch.unanswered:
            if isinstance(asked, Probe):
                exchange.recorder.record_preamble(asked)
        terms.tls_failed()
        exchange.failures.fail(batch, cause, failure=exchange.answers.tls_of_all)

    def expire_tls(self) -> None:
        """The deadlines of the recipients that waited for TLS have passed."""
        self.exchange.failures.expire(self.exchange.batch)

    # -- the end -------------------------------------------------------------------------------

    def _finish(self) -> float | None:
        """It ends: prove what is held, send the tests that are due and a control, if it still can."""
        exchange, tenure, now = self.exchange, self.tenure, self.conversation.now
        self._ends = True
        if exchange.proof.held:
            return self._prove()
        has_failed = tenure.has_failed or exchange.batch.refusal is not None
        may_send = not (has_failed or tenure.permit_lost or self._had_control)
        asked: list[PendingProbe] = []
        if may_send and self.conversation.usable:
            asked = self.next_batch.pick_tests(now)
            if not asked:
                control = self.next_batch.last_control(now)
                asked, self._had_control = [] if control is None else [control], True
        if asked:
            return self._send(asked, opens=exchange.transaction.must_open(asked))
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
            return  # nothing was left to send, and the host closes (RFC 5321 3.8)
        except RemoteProtocolError:
            pass
        cause = cause_of(RemoteProtocolError("it spoke without being asked"), Step.HELLO)
        self._emit(SessionFailed(cause, before_recipients=True, late=False, at_recipient=False))

    def end(self) -> None:
        """The session ends, or its task is cancelled: hand back all that is not answered."""
        exchange, unsent = self.exchange, self.unsent
        batch, confirmation, now = exchange.batch, exchange.confirmation, self.conversation.now
        if self.idle.is_running:
            self._end_idle()
        exchange.limits.recall()
        unsent.return_unsent(unsent.pop_set_aside())
        exchange.proof.requeue_held()
        exchange.answers.settle_limited(batch)
        may_send = exchange.limits.may_send_control(accepted=True)
        if not may_send and confirmation.has_control(now):
            for probe in confirmation.withdraw_refusals(now):  # no place is left for a control
                requeue_uncounted(self._emit, probe)
        confirmation.end(now)
        unsent.requeue_again()
        if self.tenure.permit_lost:
            requeue_unanswered(self._emit, batch.unanswered, batch.elsewhere)
        for asked in batch.pop_unanswered():
            if isinstance(asked, CatchAllTest):
                leave_untested(self._emit, asked)
        self.next_batch.tests.abandon()
        self._state = _nothing  # breaks a reference cycle
