"""The batches of one session: which octets are sent, and what their replies settle.

A batch is what may be written at once: one recipient in lock-step, up to the window with
PIPELINING. The window keeps the refusals of one session below `REFUSALS_MAX` even if every
recipient under way is refused: mail servers slow down at ten refusals and hang up at
twenty. Every reply belongs to the oldest unanswered command, verdicts are held back until the
pairing of the replies is proven (see mailprobe.engine.smtp.pairing), and a session that failed
in any way is never used again.

Nothing waits here: `receive()` processes what has come and returns until when to wait for more,
or None if the batch is over.
"""

from collections import deque
from math import inf

from ...evidence import ConnectionAttempt
from ..pairing import OutOfStep, Pairing
from ..probe import Cause, Probe
from ..replies.rules import Step
from ..wire import (
    ClosedUnasked,
    Command,
    CommandReply,
    Conversation,
    RemoteProtocolError,
    SmtpReply,
    rcpt,
)
from .answers import RecipientReplies
from .batch import PendingProbe, RecipientBatch
from .confirmation import Confirmation
from .due_tests import DueTests
from .effects import (
    BatchDone,
    ClockRestarted,
    Emit,
)
from .failure_causes import (
    refused_command,
)
from .failures import Failures
from .host import SessionHost
from .late_reply import LateReply
from .next_batch import TURN_S, NextBatch, Tenure
from .proof import Proof, ProvenVerdict
from .recipient_limits import SessionLimits
from .recorder import SessionRecorder
from .transaction import Transaction


class BatchExchange:
    """Sends the batches of one session and processes their replies."""

    # Of more than 30 attributes Python keeps a dict for each object, and looks each up: 6 µs an address.
    __slots__ = (
        *("_address", "_aside", "_conversation", "_emit", "_host", "_opening"),
        *(
            "next_batch",
            "answers",
            "batch",
            "batches",
            "confirmation",
            "error",
            "failures",
            "late",
        ),
        *("limits", "proof", "recorder", "tenure", "transaction"),
    )

    def __init__(
        self,
        host: SessionHost,
        conversation: Conversation,
        address: str,
        preamble: list[tuple[float, bool, str]],
        emit: Emit,
    ) -> None:
        self._host = host
        self._conversation = conversation
        self._address = address
        self._emit = emit
        self.recorder = recorder = SessionRecorder(conversation, preamble)
        self.limits = limits = SessionLimits(host, host.terms.limits)
        self.transaction = transaction = Transaction(conversation, host, limits)
        self.proof = proof = Proof(
            host, conversation, transaction, recorder, Pairing(host.renamings), emit
        )
        self.confirmation = confirmation = Confirmation(host, host.controls, emit)
        tests = DueTests(host, emit)
        self.next_batch = next_batch = NextBatch(
            host, conversation, limits, transaction, proof, confirmation, tests, emit
        )
        self.answers = answers = RecipientReplies(
            host, conversation, limits, transaction, next_batch, confirmation, recorder, emit
        )
        self.tenure = tenure = Tenure(
            host, conversation, address, limits, next_batch, conversation.now + TURN_S
        )
        self.late = late = LateReply(host, conversation, proof, emit)
        self.failures = Failures(
            host, conversation, limits, transaction, proof, next_batch, answers, tenure, late, emit
        )
        self.batch = self._aside = RecipientBatch([], False, False, [])  # under way
        self.batches = 0
        self.error: Exception | None = None  # that ended the connection
        self._opening: deque[Command] = deque()  # RSET and MAIL, as far as they are unanswered

    # -- sending -------------------------------------------------------------------------------

    def send(self, asked: list[PendingProbe], *, opens: bool) -> float:
        """Send a batch of these. `opens`: in a new transaction. Returns as receive()."""
        conversation = self._conversation
        batch = self._begin(asked, in_transaction=not opens)
        if not opens:
            conversation.send(*batch.recipients)
            return conversation.deadline(batch.until, self._host.times.late_s)
        opening = self.transaction.open(asked)
        self._opening.extend(opening)
        if batch.pipelined:
            conversation.send(*opening, *batch.recipients)
        else:
            conversation.send(opening[0])
        return conversation.deadline(batch.until)

    def _opened(self, batch: RecipientBatch) -> float:
        """The replies to RSET and MAIL are there."""
        if not batch.pipelined:
            self._conversation.send(*batch.recipients)
            batch.written(self._conversation.now)
        if batch.refusal is None:
            batch.opened()
        return self.late.until(batch)

    def _begin(self, asked: list[PendingProbe], *, in_transaction: bool) -> RecipientBatch:
        """Begin a batch of these: none of its recipients is answered."""
        host, conversation, pairing = self._host, self._conversation, self.proof.pairing
        offer, now, reused, until = conversation.offer, conversation.now, self.batches > 0, 0.0
        has_tests = False
        recipients: list[Command] = []
        for each in asked:
            recipients.append(rcpt(each.mailbox))
            pairing.add(each.mailbox)
            if not isinstance(each, Probe):
                has_tests = True
                if each.deferred_start:
                    until = inf  # only silence ends the wait for its reply
                continue
            deadline = each.clock.deadline
            if each.clock.stopped_at is not None:
                # It is sent only for its domain's test, or to be confirmed.
                self._emit(ClockRestarted(each))
                deadline = now + host.clocks.overall_s[each.patient]
            if deadline > until:
                until = deadline
            each.attempts.begin()
            if each.notes is not None:
                attempt = ConnectionAttempt(host.identity.name, self._address, "answered")
                self.recorder.record_start(each, attempt, reused=reused)
        batch = self.batch = RecipientBatch(
            asked,
            offer.pipelining,
            reused,
            asked[:],
            recipients,
            transaction=in_transaction,
            until=until or inf,
            began=now,
            idle_s=now - conversation.received_at,
        )
        self.batches += 1
        if in_transaction and offer.domains_max is not None:
            self.transaction.join(asked)
        self.limits.send(asked, now)
        if len(asked) > 1 and not has_tests and self.proof.begin_check():
            batch.check()
        return batch

    def _receive_opening(self, batch: RecipientBatch) -> float | None:
        """Process the replies to RSET and MAIL; returns as receive()."""
        conversation = self._conversation
        while self._opening:
            before = conversation.opening_reply
            turn = conversation.next_exchange()
            if turn is None:
                conversation.check_clock(batch.until)
                return conversation.deadline(batch.until)
            self._opening.popleft()
            self._opening_replied(turn, before, batch)
            if batch.refusal is not None and (turn.reply.code == 421 or not batch.pipelined):
                self._opening.clear()
                self._refused(batch, batch.refusal)
                return None
            if self._opening and not batch.pipelined:
                conversation.send(self._opening[0])
        until = self._opened(batch)
        return self.receive() if conversation.unread else until

    def _opening_replied(
        self, turn: CommandReply, before: SmtpReply | None, batch: RecipientBatch
    ) -> None:
        """A reply to RSET or MAIL has come; `before` is the positive reply before it."""
        reply, proof = turn.reply, self.proof
        proof.suspect_repeated(reply, before)
        proof.pairing.check_names_none(reply, [each.mailbox for each in batch.sent])
        self.recorder.record_opening(batch.unanswered, turn)
        # Only these show that the server still serves us; it accepts RSET from any client.
        batch.opening_replied(serves=turn.command.verb == "MAIL" and reply.positive)
        if not reply.positive and batch.refusal is None:
            objection = self._host.read(Step.MAIL, reply)
            batch.refuse(refused_command(turn, objection), objection)

    # -- receiving -----------------------------------------------------------------------------

    def receive(self) -> float | None:
        """Process the replies received. Returns until when to wait for more, or None at the end."""
        batch, conversation = self.batch, self._conversation
        if self.proof.quiet_until:
            return self._await_quiet()
        if self._opening:
            return self._receive_opening(batch)
        asked, proof = batch.sent, self.proof
        turn, last = conversation.next_exchange(), len(asked) - 1
        if turn is None:
            conversation.check_clock(batch.until)
        while turn is not None and batch.place <= last:
            place, reply = batch.place, turn.reply
            named = reply is not proof.pairing.nameless and proof.names(asked[place], reply, batch)
            if not (place or self.limits.in_transaction):
                proof.suspect_repeated(reply, conversation.opening_reply)
            if reply.code == 421 and conversation.unread:
                self._read_behind_goodbye(asked[place], turn, batch)
            batch.add_reply(turn, conversation.received_at, named=named)
            if self.late.is_late:
                self.late.has_come(accepted=reply.positive)
            if reply.code == 421:
                return self._batch_answered(batch)
            more = place < last or batch.check_due
            turn = conversation.next_exchange() if more else None
        if turn is not None:
            proof.judge_check(turn, batch)
            batch.check_answered()
        if batch.place > last and not batch.check_due:
            if conversation.unread:
                proof.refuse_surplus()
            return self._batch_answered(batch)
        # Only what is proven by a reply that names its recipient is processed before the others.
        if batch.proven > batch.processed:
            self._process_proven(batch)
        return self.late.until(batch)

    def _read_behind_goodbye(
        self, asked: PendingProbe, goodbye: CommandReply, batch: RecipientBatch
    ) -> None:
        """421, and more behind it: if that names the recipient, it is the answer.

        Raises ClosedUnasked then. Else 421 is the answer; raises RemoteProtocolError if what is
        behind it is not a further 421.
        """
        conversation = self._conversation
        try:
            behind = conversation.reply_behind(goodbye)
            named = behind is not None and self.proof.names(asked, behind.reply, batch)
            if behind is not None and not named and behind.reply.code != 421:
                raise OutOfStep("a reply behind 421")
        except RemoteProtocolError:
            batch.add_reply(goodbye, conversation.received_at, named=False)
            raise
        if behind is not None and named:
            batch.add_reply(behind, conversation.received_at, named=True)
            raise ClosedUnasked(f"closed by the server: 421 {goodbye.reply.text[:80]}")

    def _process_proven(self, batch: RecipientBatch) -> None:
        """Process what a reply that names its recipient proves: itself and all before it."""
        self.settle_proven()
        self._process(batch, batch.pop(batch.proven - batch.processed))

    def _batch_answered(self, batch: RecipientBatch) -> float | None:
        """All replies of a batch are there. Hold back what is not proven yet.

        A usual reply means only a verdict, so the conversation goes on. Any other reply decides
        which command is next: then a silence has to prove the replies first.
        """
        proof = self.proof
        if batch.proven > batch.processed:
            self._process_proven(batch)
        if not batch.transaction:
            self.failures.drop_replies(batch)
        if batch.proven and batch.proven == batch.place:
            proof.named()
        else:
            proof.expect_surplus(batch)
        silent = self._conversation.silent_s >= proof.quiet_s
        if batch.exchanges and silent and not proof.is_suspect:
            self.settle_proven()
            self._process(batch, batch.pop_all())
            return self._end_batch(batch)
        if batch.exchanges:
            held: list[ProvenVerdict] = []
            for asked, turn in zip(batch.unanswered, batch.exchanges, strict=False):
                verdict = self.answers.usual(asked, turn, batch)
                if verdict is None:
                    break
                held.append(verdict)
            if held:
                batch.answer(len(held))
                proof.hold(held, self._conversation.received_at)
        return proof.begin_quiet() if batch.exchanges else self._end_batch(batch)

    def _process(self, batch: RecipientBatch, turns: list[CommandReply]) -> None:
        """Process the replies to the oldest recipients."""
        if not turns or not batch.transaction:
            return
        answers, now = self.answers, self._conversation.received_at
        for turn in turns:
            asked = batch.unanswered[0]
            verdict = answers.usual(asked, turn, batch)
            if verdict is None:
                answers.process(asked, turn, batch)
            else:
                batch.answer_oldest()
                self.confirmation.conclude(*verdict, now)
        if self.limits.held and not batch.unanswered:
            self.settle_limited()

    def settle_limited(self) -> None:
        """The batch is over: what was a limit, and what the recipients' own?"""
        if self.answers.settle_limited(self.batch):
            self.tenure.leave()

    def _end_batch(self, batch: RecipientBatch) -> float | None:
        if batch.refusal is not None:
            self._refused(batch, batch.refusal)
            return None
        gaps, began, first_at = batch.place - 1, batch.began, batch.first_at
        gap_s = (batch.last_at - first_at) / gaps if gaps > 0 else -1.0
        self._emit(BatchDone(batch.last_at - began, gap_s, first_at - began))
        return None

    def _await_quiet(self) -> float | None:
        batch = self.batch
        until = self.proof.silent_until(batch)
        if until is not None:
            return until
        self.settle_proven()
        if not batch.exchanges:
            return None
        self._process(batch, batch.pop_all())
        return self._end_batch(batch)

    def settle_proven(self) -> None:
        """The pairing is proven: settle the held verdicts."""
        now = self._conversation.received_at
        for verdict in self.proof.release():
            self.confirmation.conclude(*verdict, now)

    # -- what is set aside, fails or is late ---------------------------------------------------

    def set_aside(self, waiting: RecipientBatch) -> None:
        """These recipients wait for something else than replies to RCPT."""
        self._aside, self.batch = self.batch, waiting

    def resume_batch(self) -> RecipientBatch:
        """That is over; returns the recipients that waited."""
        waiting, self.batch = self.batch, self._aside
        return waiting

    def connection_failed(self, error: Exception) -> None:
        """The connection failed with one of `CONNECTION_ERRORS`: end the batch accordingly.

        A reply that names its recipient counts, whatever followed it.
        """
        self.error = error
        self._opening.clear()
        if self.batch.proven > self.batch.processed:
            self._process_proven(self.batch)
        if not (isinstance(error, RemoteProtocolError | ClosedUnasked) or self.proof.is_suspect):
            self.settle_proven()  # silence, or the end: no surplus reply was on its way
        if self.failures.connection_failed(self.batch, error):
            self.batches -= 1

    def _refused(self, batch: RecipientBatch, cause: Cause) -> None:
        """The batch is refused as a whole."""
        if self.failures.refused(batch, cause):
            self.batches -= 1
