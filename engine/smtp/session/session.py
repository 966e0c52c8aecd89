"""One greeted connection with a mail host: batches of recipients, and QUIT.

A batch is what may be written at once: one recipient in lock-step, up to the window with
PIPELINING. The window keeps the refusals of one session below `REFUSALS_MAX` even if every
recipient under way is refused: mail servers slow down at ten refusals and hang up at
twenty. Every reply belongs to the oldest unanswered command, verdicts are held back until the
pairing of the replies is proven (see mailprobe.engine.smtp.pairing), and a session that failed
in any way is never used again.

A session is late while its oldest unanswered recipient takes much longer than usual, as at a
tarpit. The recipients behind it are then sent on other connections as well.
"""

from collections import deque

import trio

from mailprobe.engine.smtp.catchall import DomainAcceptance, deciding_rule
from mailprobe.engine.smtp.connection import SmtpConnection
from mailprobe.engine.smtp.pairing import QUIET_S, Pairing, UnprovenPairings
from mailprobe.engine.smtp.probe import Probe
from mailprobe.engine.smtp.replies.rules import ACCEPTED, Meaning, Step
from mailprobe.engine.smtp.session.batch import BatchReplies, CatchAllTest, PendingProbe
from mailprobe.engine.smtp.session.causes import (
    CONNECTION_ERRORS,
    Rerouted,
    cause_of,
    refusal_outcome,
)
from mailprobe.engine.smtp.session.confirmation import Confirmation
from mailprobe.engine.smtp.session.failures import abandon_tests, requeue_unproven, return_probes
from mailprobe.engine.smtp.session.host import SessionHost
from mailprobe.engine.smtp.session.late import become_late, catch_up, may_reroute, reroutes_at
from mailprobe.engine.smtp.session.limited import BY_CODE, RECIPIENTS_MAX, SessionLimits
from mailprobe.engine.smtp.session.next_batch import (
    begin_batch,
    must_test,
    pick_recipients,
    pick_tests,
)
from mailprobe.engine.smtp.session.pipelined import (
    batch_answered,
    process_oldest,
    process_replies,
    settle_limited,
)
from mailprobe.engine.smtp.session.proof import (
    begin_quiet,
    connection_failed,
    expect_surplus,
    prove,
    proves,
    release_proven,
    silent_until,
)
from mailprobe.engine.smtp.session.recorder import SessionRecorder
from mailprobe.engine.smtp.session.requeue import requeue_unanswered, requeue_uncounted
from mailprobe.engine.smtp.session.terms import (
    batch_refused,
    continue_in_tls,
    open_transaction,
    requeue_again,
)
from mailprobe.engine.smtp.session.transaction import Transaction
from mailprobe.engine.smtp.wire import RemoteProtocolError, SmtpReply
from mailprobe.engine.verdict import LADDER, Outcome

TURN_S = 0.5  # of a connection while another pool waits for a permit of its address
TURN_CHECK_S = 0.1  # after that, between two checks whether any does
REROUTE_CHECK_S = 0.02  # between two checks whether others need a late session's place
IDLE_S = 3.0  # Postfix keeps a connection for reuse 2 s; a list comes back within 3


_NO_MAILBOX = Meaning.NO_MAILBOX  # to look each up takes 0.12 µs in Python 3.11
_TLS_DEMANDED = Meaning.TLS_DEMANDED
_SENDER_REFUSED = Meaning.SENDER_REFUSED
_UNDELIVERABLE = Outcome.UNDELIVERABLE


class SmtpSession:
    """A greeted connection and the recipients sent on it."""

    # Of more than 30 attributes Python keeps a dict for each object, and looks each up: 6 µs an address.
    __slots__ = (
        "_idle_until",
        "_interrupted",
        "_named",
        "_next",
        "_permit_lost",
        "_turn_ends",
        "address",
        "again",
        "batches",
        "checking",
        "confirmation",
        "connection",
        "conversation",
        "early_s",
        "elsewhere",
        "error",
        "fruitful",
        "host",
        "idle",
        "late",
        "leaving",
        "limits",
        "now",
        "pairing",
        "pairing_suspect",
        "quiet_until",
        "received",
        "recorder",
        "tests",
        "tls_of_all",
        "tls_wanted",
        "transaction",
        "unanswered",
        "unproven",
        "unsaid",
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
        self.conversation = connection.conversation
        self.recorder = SessionRecorder(connection, preamble)
        self.tests: deque[CatchAllTest] = deque()  # due because a recipient was accepted
        self.unanswered: deque[PendingProbe] = deque()  # of the batch under way
        self.limits = SessionLimits(host)
        self.transaction = Transaction(connection.conversation, host, self.limits)
        self.batches = 0
        self.leaving = False
        self._permit_lost = False
        self._next: list[PendingProbe] = []  # picked for a transaction of their own
        self.again: list[PendingProbe] = []  # refused for the terms, to be sent on others
        self.tls_wanted = False  # a reply demanded it
        self.tls_of_all = False  # and that was the reply to MAIL
        self.received = BatchReplies([], False, False)  # of the batch under way
        self.pairing = Pairing(host.renamings)
        self.unproven = UnprovenPairings()
        self.confirmation = Confirmation(host)
        self.early_s = 0.0  # a reply came sooner than usual, and is not proven yet
        self.pairing_suspect = False  # silence proves nothing before a reply to NOOP: see pairing
        self.checking = False  # that reply is awaited
        self.quiet_until = 0.0  # end of the silence that proves them; 0: none
        self._idle_until = 0.0
        self.late = False  # the oldest unanswered recipient takes much longer than usual
        self._named = False  # the latest reply of a batch of one names its recipient
        self.elsewhere: set[Probe] = set()  # of the unanswered: sent elsewhere, too
        self.fruitful = False  # a recipient was answered, and not with 421
        self.unsaid = b""  # bytes that the socket did not accept at once
        self.error: Exception | None = None  # that ended the connection
        self._turn_ends = 0.0
        self.idle = False
        self._interrupted = False
        self.now = trio.lowlevel.current_clock().current_time

    @property
    def spent(self) -> bool:
        """No more recipients may be sent on this connection."""
        return (
            self.limits.refusals_left(self.now()) <= 0
            or self.limits.recipients >= self.limits.of_host.per_connection
            or self.limits.recipients >= RECIPIENTS_MAX - (not self.tests)  # the last is a test's
            or not self.connection.usable
        )

    def _end_unconfirmed(self) -> None:
        """The session ends. Without a refusal left for a control, ask again elsewhere, once."""
        if self.limits.refusals_allowed <= 0:
            for probe in self.confirmation.withdraw_refusals():
                requeue_uncounted(self.host, probe)
        self.confirmation.end(self.now())

    @property
    def may_send_control(self) -> bool:
        """Is there room for one more recipient, which may be refused?"""
        limits = self.limits
        within_limits = limits.refusals_allowed > 0 and limits.recipients < limits.recipients_max
        within_budget = self.host.budget.left(self.now()) > 0
        return within_limits and within_budget and not self._permit_lost

    def interrupt(self) -> None:
        """Wake the session: a probe may be waiting."""
        if self.idle:
            self._interrupted = True
            self.connection.interrupt()

    def withdraw(self) -> None:
        """Send QUIT as soon as nothing is unanswered."""
        self.leaving = True
        self.interrupt()

    def revoke_permit(self) -> None:
        """serve() is about to be cancelled: requeue what is unanswered."""
        self.leaving = self._permit_lost = True

    async def serve(self) -> None:
        """Send waiting probes until the session is idle for too long or spent.

        The caller still has to `quit` and `close` afterwards.
        """
        self._turn_ends = self.now() + TURN_S
        try:
            while self._may_continue():
                wanted = self.tls_wanted or self.host.terms.tls
                if wanted and self.conversation.offer.starttls:
                    if await prove(self):
                        await continue_in_tls(self)
                    continue
                settle_limited(self)  # left here only by a batch that was not answered to its end
                requeue_again(self)
                asked, self._next = [each for each in self._next if not each.settled], []
                asked = asked or pick_recipients(self)
                if asked and self.unproven.verdicts and self.transaction.must_open(asked):
                    self._next = asked
                    await prove(self)
                elif asked:
                    await self._send_batch(asked)
                elif self.leaving or self.spent or not await self._wait():
                    break
            await prove(self)
            await self._send_last_tests()
            await self._send_controls()
            if not self.batches and self.connection.unread():
                mistake = RemoteProtocolError("it spoke without being asked")
                cause = cause_of(mistake, Step.HELLO)
                self.host.session_failed(
                    cause, before_recipients=True, late=False, at_recipient=False
                )
        finally:
            self.limits.reserve(0)
            return_probes(self, self._next)
            requeue_unproven(self)
            settle_limited(self)
            self._end_unconfirmed()
            requeue_again(self)
            if self._permit_lost:
                requeue_unanswered(self.host, self.unanswered, self.elsewhere)
            abandon_tests(self)

    async def quit(self) -> bool:
        """Send QUIT if the stage allows it; False if the host still owes a reply."""
        return await self.connection.quit()

    async def close(self) -> None:
        """Close at once. Never blocks."""
        await self.connection.close()

    async def _wait(self) -> bool:
        """Idle until woken; False if the time is up or the server spoke or closed."""
        self.idle, self._interrupted = True, False
        idle_s = max(IDLE_S, self.host.read_s) if self.tests else IDLE_S
        self._idle_until = until = self.now() + idle_s
        if self.confirmation.verdicts:
            until = min(until, self.confirmation.due_at)
        if self.unproven.verdicts:
            self.quiet_until = until = self.connection.received_at + self.unproven.quiet_s
        self.host.is_idle(self)
        try:
            await self.connection.receive_until(self._while_idle, until)
        finally:
            self.idle, self.quiet_until = False, 0.0
            self.host.is_busy(self, woken=self._interrupted)
        woken = self._interrupted and self.connection.usable
        if woken and not self.leaving:
            self.host.session_reused()
        return woken or (self._is_control_due() and self.connection.usable)

    def _is_control_due(self) -> bool:
        """Is it time to confirm the verdicts, as nothing else is to be sent?"""
        return bool(self.confirmation.verdicts) and self.now() >= self.confirmation.due_at

    @property
    def _has_failed(self) -> bool:
        return self.error is not None or self.received.refusal is not None

    async def _send_last_tests(self) -> None:
        """Send the tests that are due before the session ends, if it can still send."""
        while not self._has_failed and self.connection.usable and not self._permit_lost:
            asked = pick_tests(self, at_end=True)
            if not asked:
                return
            await self._send_batch(asked)
            await prove(self)

    async def _send_controls(self) -> None:
        """Confirm the last verdicts of the session, if it can still send."""
        if self._has_failed or not (self.connection.usable and self.may_send_control):
            return
        control = self.confirmation.next_control(self.now())
        if control is None:
            return
        if not self.transaction.must_open([control]) or self.transaction.may_open([control]):
            await self._send_batch([control])
            await prove(self)

    def _while_idle(self) -> float | None:
        """Until when to idle; None when that is over. Silence proves the held verdicts."""
        if self._interrupted or self.connection.replied():
            return None
        now = self.now()
        if self.unproven.verdicts:
            if now < self.quiet_until:
                return self.quiet_until
            release_proven(self)
            if self._interrupted:  # for a probe just admitted
                return None
        if self.confirmation.verdicts and self.confirmation.due_at < self._idle_until:
            return self.confirmation.due_at if now < self.confirmation.due_at else None
        return self._idle_until if now < self._idle_until else None

    async def _send_batch(self, asked: list[PendingProbe]) -> None:
        """Send a batch, and then further batches in the same transaction while all goes well."""
        received = begin_batch(self, asked)
        try:
            opening = self.transaction.open(asked)
            if received.pipelined:
                await self.connection.send(*opening, *received.recipients)
            if not await open_transaction(self, opening, received):
                return
            if not received.pipelined:
                await self.connection.send(*received.recipients)
                received.began = self.connection.sent_at
            await self.connection.follow(self._resume, self._receive_until())
            while self.unsaid:
                rest, self.unsaid = self.unsaid, b""
                await self.connection.flush(rest)
                await self.connection.follow(self._resume, self._receive_until())
            if self.error is not None:
                raise self.error
        except CONNECTION_ERRORS as error:
            self.error = error
            connection_failed(self, error)

    def _resume(self) -> float | None:
        """Process the replies received. Returns until when to wait for more, or None at the end.

        If the next batch goes into the same transaction, it is sent from here.
        """
        try:
            received = self.received
            if self.quiet_until:
                return self._await_quiet()
            turn = self.connection.receive_exchange() if received.alone else None
            if turn is not None:
                asked, reply = received.sent[0], turn.reply
                pairing = self.pairing
                self._named = reply is not pairing.nameless and proves(self, asked, reply)
                if not self.limits.in_transaction and reply == self.conversation.opening_reply:
                    self.pairing_suspect = True
                if (usual := self.usual(asked, reply)) is not None:
                    return self._continue_alone(received, *usual)
            if process_replies(self, received, turn):
                return batch_answered(self, received)
            now = self.now()
            if not self.late and now >= self.connection.since + self.host.late_s:
                become_late(self)
            if self.late and now >= reroutes_at(self) and self.host.is_blocked(self):
                raise Rerouted
            return self._receive_until()
        except Exception as error:  # a bug, too, ends only this session: see _send_batch()
            self.error = error
            return None

    def _receive_until(self) -> float:
        """The read deadline, or before that the moment at which the session becomes late."""
        deadline = self.connection.deadline(self.received.until)
        if not self.late:
            late_at = self.connection.since + self.host.late_s
            return late_at if late_at < deadline else deadline
        # Later, others may need its place, or more be known of this host's late replies.
        look_at = self.now() + REROUTE_CHECK_S
        return look_at if look_at < deadline and may_reroute(self) else deadline

    def end_batch(self, received: BatchReplies) -> float | None:
        if received.refusal is not None:
            batch_refused(self, received.refusal, received)
            return None
        self.host.batch_done(received.batch_s, received.gap_s, received.first_at - received.began)
        return self._continue()

    def _continue(self) -> float | None:
        """Send the next batch in this transaction, if there is one.

        Held verdicts are proven first if necessary, otherwise while the session idles.
        """
        if self.unproven.verdicts and self._must_prove(self.now()):
            return begin_quiet(self)
        return self._receive_until() if self._begin_next() else None

    def _must_prove(self, now: float) -> bool:
        """Must the held verdicts be proven before the next command?"""
        host = self.host
        return (
            self.pairing_suspect or host.wary or host.slow_to_answer or now >= self.unproven.until
        )

    def _begin_next(self) -> bool:
        if self.again or not self._may_continue():
            return False
        asked = pick_recipients(self)
        if not asked or self.transaction.must_open(asked):
            self._next = asked
            return False
        received = begin_batch(self, asked)
        received.transaction = True
        self.unsaid = self.connection.send_now(*received.recipients)
        return not self.unsaid

    def _await_quiet(self) -> float | None:
        until, received = silent_until(self), self.received
        if until is not None:
            return until
        if received.exchanges:
            process_oldest(self, received, len(received.exchanges))
            return self.end_batch(received)
        return self._continue()

    def usual(self, probe: PendingProbe, reply: SmtpReply) -> tuple[Probe, Outcome, str] | None:
        """The verdict of this reply, if nothing but a verdict follows from it.

        None if more follows; then nothing has been changed, and `pipelined` processes it.
        """
        if not isinstance(probe, Probe) or probe.outcome is not None:
            return None
        code = reply.code
        if code < 300:
            reading = ACCEPTED
            domain: DomainAcceptance = probe.domain_here
            if domain.acceptance is None or self.connection.received_at >= domain.known_until:
                return None
            outcome = domain.acceptance.outcome
            rule = deciding_rule(domain.acceptance, reading.rule)
        elif code < 400 or code == 421:
            return None
        else:
            reading = self.host.read(Step.RCPT, reply)
            meaning = reading.meaning
            outcome, rule = refusal_outcome(reply, reading), reading.rule
            if meaning is not _NO_MAILBOX and (
                meaning is _SENDER_REFUSED or meaning is _TLS_DEMANDED
            ):
                return None
            in_words = outcome is _UNDELIVERABLE and rule not in BY_CODE
            now = self.connection.received_at
            if not in_words and self.limits.may_be_limit(probe, reply, reading, outcome, now):
                return None
            self.limits.count_refusal(reply, outcome, now)
            if not self.received.late:
                self.host.refused_promptly_at = self.connection.received_at
            if meaning is _NO_MAILBOX and code >= 500:
                probe.domain_here.refused_as_unknown(probe.mailbox, reply)
        self.fruitful = True
        if code < 500 and self.limits.reserved:
            self.limits.count_answer(self.connection.received_at, refused=False)
        self.limits.count_recipient()
        self.host.recipient_read(probe.domain_here, reply, reading)
        return probe, outcome, rule

    def _continue_alone(
        self, received: BatchReplies, asked: Probe, outcome: Outcome, rule: str
    ) -> float | None:
        """Settle or hold the verdict and send the next recipient; returns as _resume()."""
        host, now, unproven = self.host, self.connection.received_at, self.unproven
        round_s = now - received.began
        received.first = True
        if self.late:
            catch_up(self, accepted=LADDER[outcome].valid)
        self.unanswered.clear()
        if not self._named and host.usual_s > QUIET_S:
            expect_surplus(self, round_s, 0.0)
        if self._named:
            self.pairing_suspect = False
        silent = self.connection.silent_s() >= unproven.quiet_s and not self.pairing_suspect
        if self._named or silent:
            if unproven.verdicts or unproven.quiet_s > QUIET_S:
                release_proven(self)
            if self.confirmation.may_settle(asked, outcome, rule, now):
                host.settle_alone(asked, outcome, rule, round_s)
            else:
                host.answered_alone(round_s)
        else:
            unproven.hold([(asked, outcome, rule)], now)
            host.hold_back(1)
            host.answered_alone(round_s)
            if self._must_prove(now):
                return begin_quiet(self)
        if now > self._turn_ends:
            self._yield_if_needed(now)
        probe = None
        if (
            not (self.leaving or (self.tests and must_test(self, now)))
            and not (self.confirmation.verdicts and self.confirmation.is_urgent())
            and self.limits.refusals_left(now) > len(self.tests)
            and self.host.budget.left(now) > 0
            and self.limits.recipients < RECIPIENTS_MAX - 1
            and self.limits.recipients < self.limits.of_host.per_connection - 1
        ):
            probe = host.next_probe(now)
        if probe is None or not self._is_single(probe, now):
            if probe is not None:
                host.requeue(probe)
            return self._continue()
        probe.conversations += 1
        probe.addresses_tried += 1
        self.pairing.add(probe.mailbox)
        self.limits.reserve(1)
        self.unanswered.append(probe)
        received.sent = [probe]
        received.reused, received.first, received.late = True, False, False
        received.until = probe.deadline
        if self.elsewhere:
            self.elsewhere.clear()
        self.unsaid = self.connection.send_rcpt_now(probe.mailbox)
        received.began = self.connection.sent_at
        if self.unsaid:
            return None
        deadline, late_at = self.connection.deadline(received.until), received.began + host.late_s
        return late_at if late_at < deadline else deadline

    def conclude(self, probe: Probe, outcome: Outcome, rule: str) -> None:
        """This verdict is proven to be the probe's: settle it, or hold it until it is confirmed."""
        if self.confirmation.may_settle(probe, outcome, rule, self.connection.received_at):
            self.host.settle(probe, outcome, rule)

    def _is_single(self, probe: Probe, now: float) -> bool:
        """May this probe go next by itself, in the present transaction and without a test?"""
        offer = self.conversation.offer
        domain: DomainAcceptance = probe.domain_here
        return (
            probe.notes is None
            and probe.stopped_at is None
            and not probe.smtputf8
            and not probe.objections
            and (now < domain.known_until or domain.testing)
            and offer.domains_max is None
            and self.limits.in_transaction < self.transaction.recipients_max
        )

    def _may_continue(self) -> bool:
        now = self.now()
        if now > self._turn_ends:
            self._yield_if_needed(now)
        return not self.leaving and not self.spent

    def _yield_if_needed(self, now: float) -> None:
        """Leave if the permit is needed elsewhere; else go on, and check again in TURN_CHECK_S."""
        self._turn_ends = now + TURN_CHECK_S
        if not self.leaving:
            self.leaving = self.host.is_needed_elsewhere(self.address)

    # -- failures ----------------------------------------------------------------------------
