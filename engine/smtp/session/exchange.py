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

from msgspec import Struct, field

from ..pairing import OutOfStep
from ..probe import Probe
from ..replies.rules import Step
from ..wire import (
    NOOP,
    ClosedUnasked,
    Command,
    CommandReply,
    Conversation,
    RemoteProtocolError,
    SmtpReply,
    rcpt,
)
from .answers import RecipientReplies
from .batch import BatchRefusal, BatchReplies, PendingProbe, ProbeVerdict, RecipientBatch
from .confirmation import Confirmation
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
from .proof import Proof
from .recipient_limits import SessionLimits
from .recorder import SessionRecorder
from .transaction import Transaction


class BatchExchange(Struct, eq=False):
    """Sends the batches of one session and processes their replies."""

    _host: SessionHost
    _conversation: Conversation
    limits: SessionLimits
    transaction: Transaction
    proof: Proof
    confirmation: Confirmation
    answers: RecipientReplies
    late: LateReply
    failures: Failures
    recorder: SessionRecorder
    _emit: Emit
    batch: RecipientBatch  # under way, or the latest
    batches: int = 0
    _opening: deque[Command] = field(default_factory=deque)  # RSET and MAIL, while unanswered

    # -- sending -------------------------------------------------------------------------------

    def send(self, asked: list[PendingProbe], *, opens: bool) -> float:
        """Send a batch of these. `opens`: in a new transaction. Returns as receive()."""
        conversation = self._conversation
        batch = self._begin(asked, in_transaction=not opens)
        if not opens:
            conversation.send(*batch.commands)
            return conversation.deadline(batch.until, self._host.times.late_s)
        opening = self.transaction.open(asked)
        self._opening.extend(opening)
        if conversation.state.offer.pipelining:
            conversation.send(*opening, *batch.commands)
        else:
            conversation.send(opening[0])
        return conversation.deadline(batch.until)

    def _begin(self, asked: list[PendingProbe], *, in_transaction: bool) -> RecipientBatch:
        """Begin a batch of these: none of its recipients is answered."""
        host, conversation, pairing = self._host, self._conversation, self.proof.pairing
        now, reused, until = conversation.now, self.batches > 0, 0.0
        has_tests = False
        commands: list[Command] = []
        for each in asked:
            commands.append(rcpt(each.mailbox))
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
                self.recorder.record_start(each, each.notes, reused=reused)
        checked = len(asked) > 1 and not has_tests and self.proof.begin_check()
        if checked:
            commands.append(NOOP)
        batch = self.batch = RecipientBatch(
            asked,
            reused,
            asked[:],
            BatchReplies(),
            commands,
            checked,
            until or inf,
            now,
            now - conversation.received_at,
            transaction=in_transaction,
        )
        self.batches += 1
        if in_transaction and conversation.state.offer.domains_max is not None:
            self.transaction.join(asked)
        self.limits.send(asked, now)
        return batch

    def _receive_opening(self, batch: RecipientBatch) -> float | None:
        """Process the replies to RSET and MAIL; returns as receive()."""
        conversation, is_pipelined = self._conversation, self._conversation.state.offer.pipelining
        while self._opening:
            before = conversation.state.opening_reply
            turn = conversation.next_exchange()
            if turn is None:
                conversation.check_clock(batch.until)
                return conversation.deadline(batch.until)
            self._opening.popleft()
            self._opening_replied(turn, before, batch)
            if batch.refusal is not None and (turn.reply.code == 421 or not is_pipelined):
                self._opening.clear()
                return self._end_batch(batch)
            if self._opening and not is_pipelined:
                conversation.send(self._opening[0])
        if not is_pipelined:
            conversation.send(*batch.commands)
            batch.written(conversation.now)
        if batch.refusal is None:
            batch.opened()
        until = self.late.until(batch)
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
            batch.refuse(BatchRefusal(refused_command(turn, objection), objection))

    # -- receiving -----------------------------------------------------------------------------

    def receive(self) -> float | None:
        """Process the replies received. Returns until when to wait for more, or None at the end."""
        batch, conversation = self.batch, self._conversation
        if self.proof.quiet_until:
            return self._await_quiet()
        if self._opening:
            return self._receive_opening(batch)
        asked, proof, replies = batch.sent, self.proof, batch.replies
        turn, last = conversation.next_exchange(), len(asked) - 1
        if turn is None:
            conversation.check_clock(batch.until)
        while turn is not None and replies.count <= last:
            place, reply = replies.count, turn.reply
            named = reply is not proof.pairing.nameless and proof.names(asked[place], reply, batch)
            if not (place or self.limits.in_transaction):
                proof.suspect_repeated(reply, conversation.state.opening_reply)
            if reply.code == 421 and conversation.unread:
                self._read_behind_goodbye(asked[place], turn, batch)
            replies.add(turn, conversation.received_at, proves=named and batch.transaction)
            if self.late.is_late:
                self.late.has_come(accepted=reply.positive)
            if reply.code == 421:
                return self._batch_answered(batch)
            turn = conversation.next_exchange() if conversation.unanswered else None
        if turn is not None:
            proof.judge_check(turn, batch)
        if not conversation.unanswered:
            if conversation.unread:
                proof.refuse_surplus()
            return self._batch_answered(batch)
        # Only what is proven by a reply that names its recipient is processed before the others.
        if replies.proven:
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
            batch.replies.add(goodbye, conversation.received_at, proves=False)
            raise
        if behind is not None and named:
            batch.replies.add(behind, conversation.received_at, proves=batch.transaction)
            raise ClosedUnasked(f"closed by the server: 421 {goodbye.reply.text[:80]}")

    def _process_proven(self, batch: RecipientBatch) -> None:
        """Process what a reply that names its recipient proves: itself and all before it."""
        self.settle_proven()
        self._process(batch, batch.replies.pop(batch.replies.proven))

    def _batch_answered(self, batch: RecipientBatch) -> float | None:
        """All replies of a batch are there. Hold back what is not proven yet.

        A usual reply means only a verdict, so the conversation goes on. Any other reply decides
        which command is next: then a silence has to prove the replies first.
        """
        proof, replies = self.proof, batch.replies
        if replies.proven:
            self._process_proven(batch)
        last_is_proven = not replies.unprocessed
        if not batch.transaction:
            self.failures.drop_replies(batch)
        if last_is_proven:
            proof.named()
        else:
            proof.expect_surplus(batch)
        silent = self._conversation.silent_s >= proof.quiet_s
        if replies.unprocessed and silent and not proof.is_suspect:
            self.settle_proven()
            self._process(batch, replies.pop_all())
            return self._end_batch(batch)
        if replies.unprocessed:
            held: list[ProbeVerdict] = []
            for asked, turn in zip(batch.unanswered, replies.unprocessed, strict=False):
                verdict = self.answers.usual(asked, turn, batch)
                if verdict is None:
                    break
                held.append(verdict)
            if held:
                batch.answer(len(held))
                proof.hold(held, self._conversation.received_at)
        return proof.begin_quiet() if replies.unprocessed else self._end_batch(batch)

    def _process(self, batch: RecipientBatch, turns: list[CommandReply]) -> None:
        """Process the replies to the oldest recipients."""
        if not turns or not batch.transaction:
            return None
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
            answers.settle_limited(batch)

    def _end_batch(self, batch: RecipientBatch) -> float | None:
        """All its replies are processed, or it is refused as a whole."""
        if batch.refusal is not None:
            if self.failures.refused(batch, batch.refusal.cause):
                self.batches -= 1
            return None
        replies, began = batch.replies, batch.began
        gaps, first_at = replies.count - 1, replies.first_at
        gap_s = (replies.last_at - first_at) / gaps if gaps > 0 else -1.0
        self._emit(BatchDone(replies.last_at - began, gap_s, first_at - began))
        return None

    def _await_quiet(self) -> float | None:
        batch = self.batch
        until = self.proof.silent_until(batch)
        if until is not None:
            return until
        self.settle_proven()
        if not batch.replies.unprocessed:
            return None
        self._process(batch, batch.replies.pop_all())
        return self._end_batch(batch)

    def settle_proven(self) -> None:
        """The pairing is proven: settle the held verdicts."""
        now = self._conversation.received_at
        for verdict in self.proof.release(is_proven=True):
            self.confirmation.conclude(*verdict, now)

    # -- what else ends it -----------------------------------------------------------------------

    def await_tls(self, waiting: RecipientBatch) -> None:
        """STARTTLS follows. These recipients wait for it, in the place of the batch before."""
        self.batch = waiting

    def connection_failed(self, error: Exception) -> None:
        """The connection failed with one of `CONNECTION_ERRORS`: end the batch accordingly.

        A reply that names its recipient counts, whatever followed it.
        """
        self._opening.clear()
        if self.batch.replies.proven:
            self._process_proven(self.batch)
        if not (isinstance(error, RemoteProtocolError | ClosedUnasked) or self.proof.is_suspect):
            self.settle_proven()  # silence, or the end: no surplus reply was on its way
        if self.failures.connection_failed(self.batch, error):
            self.batches -= 1
