"""The batches of one session: which octets are sent, and what their replies settle.

A batch is what may be written at once: one recipient in lock-step, up to the window with
PIPELINING. The window keeps the refusals of one session below `REFUSALS_MAX` even if every
recipient under way is refused: mail servers slow down at ten refusals and hang up at
twenty. Every reply belongs to the oldest unanswered command, verdicts are held back until the
pairing of the replies is proven (see mailprobe.engine.smtp.pairing), and a session that failed
in any way is never used again.

A session is late while its oldest unanswered recipient takes much longer than usual, as at a
tarpit. The recipients behind it are then sent on other connections as well.

Nothing waits here: `resume()` processes what has come and returns until when to wait for more.
"""

import trio

from mailprobe.engine.evidence import ConnectionAttempt
from mailprobe.engine.smtp.catchall import DomainAcceptance
from mailprobe.engine.smtp.pairing import QUIET_S, OutOfStep
from mailprobe.engine.smtp.probe import Probe
from mailprobe.engine.smtp.replies.rules import Step
from mailprobe.engine.smtp.session.batch import (
    CatchAllTest,
    PendingProbe,
    RecipientBatch,
    new_batch,
)
from mailprobe.engine.smtp.session.causes import Rerouted, refused_command
from mailprobe.engine.smtp.session.limited import RECIPIENTS_MAX
from mailprobe.engine.smtp.session.parts import SessionParts
from mailprobe.engine.smtp.session.proof import ProvenVerdict
from mailprobe.engine.smtp.session.requeue import leave_untested, requeue_uncounted
from mailprobe.engine.smtp.wire import Command, CommandReply, RemoteProtocolError, SmtpReply
from mailprobe.engine.verdict import LADDER, Outcome

REROUTE_CHECK_S = 0.02  # between two checks whether others need a late session's place


class BatchExchange:
    """Sends the batches of one session and processes their replies."""

    # Of more than 30 attributes Python keeps a dict for each object, and looks each up: 6 µs an address.
    __slots__ = (
        *("_agenda", "_answers", "_aside", "_confirmation", "_connection", "_conversation"),
        *("_failures", "_host", "_limits", "_now", "_proof", "_recorder", "_tenure"),
        *("_transaction", "_address", "batch", "batches", "error", "is_late"),
    )

    def __init__(self, parts: SessionParts) -> None:
        self._host = parts.host
        self._connection = parts.connection
        self._conversation = parts.connection.conversation
        self._recorder = parts.recorder
        self._limits = parts.limits
        self._transaction = parts.transaction
        self._proof = parts.proof
        self._confirmation = parts.confirmation
        self._agenda = parts.agenda
        self._answers = parts.answers
        self._tenure = parts.tenure
        self._failures = parts.failures
        self._address = parts.address
        self.batch = self._aside = new_batch([], pipelined=False, reused=False)  # under way
        self.batches = 0
        self.is_late = False  # the oldest unanswered recipient takes much longer than usual
        self.error: Exception | None = None  # that ended the connection
        self._now = trio.lowlevel.current_clock().current_time

    @property
    def has_failed(self) -> bool:
        return self.error is not None or self.batch.refusal is not None

    # -- sending -------------------------------------------------------------------------------

    def may_continue(self) -> bool:
        return self._tenure.may_continue(self._now())

    def pick(self) -> list[PendingProbe]:
        may_send_control = bool(self._confirmation.verdicts) and self._tenure.may_send_control
        return self._agenda.pick(self._now(), may_send_control=may_send_control)

    def begin(self, asked: list[PendingProbe]) -> RecipientBatch:
        """Begin a batch of these: none of its recipients is answered."""
        for each in asked:
            if isinstance(each, Probe) and each.stopped_at is not None:
                self._host.restart_clock(
                    each
                )  # sent only for its domain's test, or to be confirmed
        batch = self.batch = new_batch(
            asked, pipelined=self._conversation.offer.pipelining, reused=self.batches > 0
        )
        self.batches += 1
        self._limits.reserve(len(asked))
        batch.begin(self._now(), self._connection.received_at)
        has_tests = False
        for each in asked:
            self._proof.pairing.add(each.mailbox)
            if not isinstance(each, Probe):
                has_tests = True
                each.domain.send_test()
                continue
            each.begin_try()
            if each.notes is not None:
                attempt = ConnectionAttempt(self._host.name, self._address, "answered")
                self._recorder.record_start(each, attempt, reused=batch.reused)
        if not has_tests and self._proof.begin_check(asked):
            batch.check()
        return batch

    def open(self, asked: list[PendingProbe]) -> list[Command]:
        """The commands before these recipients: none, or RSET and MAIL as needed."""
        return self._transaction.open(asked)

    def begin_quiet(self) -> float | None:
        """Prove what is held by a silence: see Proof.begin_quiet()."""
        return self._proof.begin_quiet()

    def opening_replied(
        self, turn: CommandReply, before: SmtpReply | None, batch: RecipientBatch
    ) -> None:
        """A reply to RSET or MAIL has come; `before` is the positive reply before it."""
        reply, proof = turn.reply, self._proof
        proof.suspect_repeated(reply, before)
        proof.pairing.check_names_none(reply, [each.mailbox for each in batch.sent])
        self._recorder.record_opening(batch.unanswered, turn)
        # Only these show that the server still serves us; it accepts RSET from any client.
        batch.opening_replied(serves=turn.command.verb == "MAIL" and reply.positive)
        if not reply.positive and batch.refusal is None:
            objection = self._host.read(Step.MAIL, reply)
            batch.refuse(refused_command(turn, objection), objection)

    def _begin_next(self) -> bool:
        """Send the next batch, if there is one for this transaction and the system takes it."""
        if self._agenda.again or not self._tenure.may_continue(self._now()):
            return False
        asked = self.pick()
        if not asked:
            return False
        if self._transaction.must_open(asked):
            self._agenda.send_next(asked)
            return False
        batch = self.begin(asked)
        batch.opened()
        self._transaction.join(asked)
        return self._connection.send_now(*batch.recipients)

    # -- receiving -----------------------------------------------------------------------------

    def resume(self) -> float | None:
        """Process the replies received. Returns until when to wait for more, or None at the end.

        If the next batch goes into the same transaction, it is sent from here.
        """
        try:
            batch, proof = self.batch, self._proof
            if proof.quiet_until:
                return self._await_quiet()
            turn = self._connection.receive_exchange() if batch.alone else None
            if turn is not None:
                asked, reply = batch.sent[0], turn.reply
                named = reply is not proof.pairing.nameless and proof.names(asked, reply, batch)
                if not self._limits.in_transaction:
                    proof.suspect_repeated(reply, self._conversation.opening_reply)
                if (usual := self._answers.usual(asked, reply, batch)) is not None:
                    return self._continue_alone(batch, *usual, named=named)
            if self._process_replies(batch, turn):
                return self._batch_answered(batch)
            now = self._now()
            if not self.is_late and now >= self._connection.since + self._host.late_s:
                self._become_late(batch)
            if (
                self.is_late
                and now >= self._reroutes_at()
                and self._host.is_blocked(self._connection)
            ):
                raise Rerouted
            return self.receive_until()
        except Exception as error:  # a bug, too, ends only this session: see SessionTask
            self.error = error
            return None

    def receive_until(self) -> float:
        """The read deadline, or before that the moment at which the session becomes late."""
        deadline = self._connection.deadline(self.batch.until)
        if not self.is_late:
            late_at = self._connection.since + self._host.late_s
            return late_at if late_at < deadline else deadline
        # Later, others may need its place, or more be known of this host's late replies.
        look_at = self._now() + REROUTE_CHECK_S
        return look_at if look_at < deadline and self._may_reroute() else deadline

    def _process_replies(self, batch: RecipientBatch, turn: CommandReply | None) -> bool:
        """Process the batch's replies received so far; True if those were all of them.

        `turn` is the first, if it was read already.
        """
        if self._pair_replies(batch, turn):
            return True
        if not self._connection.receive():
            self._connection.check_clock(batch.until)
            return False
        return self._pair_replies(batch, None)

    def _pair_replies(self, batch: RecipientBatch, turn: CommandReply | None) -> bool:
        """Pair replies with recipients; True if the batch is complete.

        Processes only what is proven by a reply that names its recipient; see _batch_answered().
        """
        connection, asked, proof = self._connection, batch.sent, self._proof
        nameless = proof.pairing.nameless
        while batch.place < len(asked):
            turn = turn or connection.already_received()
            if turn is None:
                if batch.proven > batch.processed:
                    self._process_proven(batch)
                return False
            reply = turn.reply
            named = reply is not nameless and proof.names(asked[batch.place], reply, batch)
            if not (batch.place or self._limits.in_transaction):
                proof.suspect_repeated(reply, self._conversation.opening_reply)
            batch.add_reply(turn, connection.received_at, named=named)
            if self.is_late:
                self._catch_up(accepted=reply.positive)
            if reply.code == 421:
                break
            turn = None
        else:
            if batch.check_due:
                if not proof.is_check_answered(batch):
                    self._process_proven(batch)
                    return False
                batch.check_answered()
            if self._conversation.unread:
                raise OutOfStep("more replies than commands")
        if batch.proven > batch.processed:
            self._process_proven(batch)
        return True

    def _process_proven(self, batch: RecipientBatch) -> None:
        """Process what a reply that names its recipient proves: itself and all before it."""
        self.settle_proven()
        self._process(batch, batch.pop(batch.proven - batch.processed))

    def _batch_answered(self, batch: RecipientBatch) -> float | None:
        """All replies of a batch are there. Hold back what is not proven yet.

        A usual reply means only a verdict, so the conversation goes on. Any other reply decides
        which command is next: then a silence has to prove the replies first.
        """
        proof = self._proof
        if not batch.transaction:
            self._failures.drop_replies(batch)
        now = self._connection.received_at
        proof.expect_surplus(batch.first_s, batch.gap_s_max)
        if batch.proven and batch.proven == batch.place:
            proof.named()
        elif proof.may_owe_refusal(batch):
            proof.suspect()
        silent = self._connection.silent_s() >= proof.held.quiet_s
        if batch.exchanges and silent and not proof.is_suspect:
            self.settle_proven()
            self._process(batch, batch.pop_all())
            return self._end_batch(batch)
        if not batch.noted and (held := self._usual_verdicts(batch)):
            proof.held.hold(held, now)
            self._host.hold_back(len(held))
        if batch.exchanges:
            return proof.begin_quiet()
        if proof.is_suspect and proof.held.verdicts and batch.refusal is None:
            self._host.batch_done(batch.batch_s, batch.gap_s, batch.first_s)
            return proof.begin_quiet()
        return self._end_batch(batch)

    def _usual_verdicts(self, batch: RecipientBatch) -> list[ProvenVerdict]:
        """The verdicts of the oldest replies, as far as nothing else follows from them."""
        held: list[ProvenVerdict] = []
        for asked, turn in zip(batch.unanswered, batch.exchanges, strict=False):
            verdict = self._answers.usual(asked, turn.reply, batch)
            if verdict is None:
                break
            held.append(verdict)
        batch.answer(len(held))
        return held

    def _process(self, batch: RecipientBatch, turns: list[CommandReply]) -> None:
        """Process the replies to the oldest recipients."""
        if not turns or not batch.transaction:
            return
        self._host.begin_answers()
        try:
            for turn in turns:
                self._answers.process(turn, batch)
            if not batch.unanswered:  # before others are admitted: a limit leaves less room
                self.settle_limited()
        finally:
            self._host.end_answers(all_of_them=not batch.unanswered)

    def settle_limited(self) -> None:
        """The batch is over: what was a limit, and what the recipients' own?"""
        if self._answers.settle_limited(self.batch):
            self._tenure.leave()

    def _end_batch(self, batch: RecipientBatch) -> float | None:
        if batch.refusal is not None:
            self.refused()
            return None
        self._host.batch_done(batch.batch_s, batch.gap_s, batch.first_s)
        return self._continue()

    def _continue(self) -> float | None:
        """Send the next batch in this transaction, if there is one.

        Held verdicts are proven first if necessary, otherwise while the session idles.
        """
        if self._proof.held.verdicts and self._proof.must_wait(self._now()):
            return self._proof.begin_quiet()
        return self.receive_until() if self._begin_next() else None

    def _await_quiet(self) -> float | None:
        batch = self.batch
        until = self._proof.silent_until(batch)
        if until is not None:
            return until
        self.settle_proven()
        if batch.exchanges:
            self._process(batch, batch.pop_all())
            return self._end_batch(batch)
        return self._continue()

    def while_silent(self) -> float | None:
        """Until when to stay silent, or None at the end: then what is held is proven."""
        try:
            until = self._proof.silent_until(self.batch)
            if until is None:
                self.settle_proven()
        except Exception as error:
            self.error = error
            return None
        return until

    def _continue_alone(
        self, batch: RecipientBatch, asked: Probe, outcome: Outcome, rule: str, *, named: bool
    ) -> float | None:
        """Settle or hold the verdict of a batch of one, and send the next; returns as resume()."""
        host, proof, now = self._host, self._proof, self._connection.received_at
        round_s = now - batch.began
        if self.is_late:
            self._catch_up(accepted=LADDER[outcome].valid)
        batch.answer_oldest()
        if named:
            proof.named()
        elif host.usual_s > QUIET_S:
            proof.expect_surplus(round_s, 0.0)
        held = proof.held
        if named or (self._connection.silent_s() >= held.quiet_s and not proof.is_suspect):
            if held.verdicts or held.quiet_s > QUIET_S:
                self.settle_proven()
            if self._confirmation.may_settle(asked, outcome, rule, now):
                host.settle_alone(asked, outcome, rule, round_s)
            else:
                host.answered_alone(round_s)
        else:
            held.hold([(asked, outcome, rule)], now)
            host.hold_back(1)
            host.answered_alone(round_s)
            if proof.must_wait(now):
                return proof.begin_quiet()
        probe = None
        if self._tenure.may_send_one(now) and not (
            self._confirmation.verdicts and self._confirmation.is_urgent()
        ):
            probe = host.next_probe(now)
        if probe is None or not self._is_single(probe, now):
            if probe is not None:
                host.requeue(probe)
            return self._continue()
        probe.begin_try()
        proof.pairing.add(probe.mailbox)
        if host.budget.is_bounded:
            self._limits.reserve(1)
        is_sent = self._connection.send_rcpt_now(probe.mailbox)
        batch.begin_alone(probe, self._connection.sent_at)
        if not is_sent:
            return None
        deadline, late_at = self._connection.deadline(batch.until), batch.began + host.late_s
        return late_at if late_at < deadline else deadline

    def _is_single(self, probe: Probe, now: float) -> bool:
        """May this probe go next by itself, in the present transaction and without a test?"""
        domain: DomainAcceptance = probe.domain_here
        offer = self._conversation.offer
        return (
            probe.notes is None
            and probe.stopped_at is None
            and not probe.smtputf8
            and not probe.objections
            and (now < domain.known_until or domain.testing)
            and offer.domains_max is None
            and self._limits.in_transaction < self._limits.of_host.per_transaction
            and self._limits.in_transaction < (offer.recipients_max or RECIPIENTS_MAX)
        )

    def settle_proven(self, *, is_idle: bool = False) -> None:
        """The pairing is proven: settle the held verdicts."""
        verdicts = self._proof.release()
        if not verdicts:
            return
        host, now = self._host, self._connection.received_at
        host.begin_answers()
        try:
            for verdict in verdicts:  # conclude(), written here to save a call for each
                if self._confirmation.may_settle(*verdict, now):
                    host.settle(*verdict)
        finally:
            # An idle session takes admitted probes only once it is woken.
            host.end_answers(all_of_them=not (self.batch.unanswered or is_idle))

    # -- what is set aside, fails or is late ---------------------------------------------------

    def set_aside(self, waiting: RecipientBatch) -> None:
        """These recipients wait for something else than replies to RCPT."""
        self._aside, self.batch = self.batch, waiting

    def resume_batch(self) -> RecipientBatch:
        """That is over; returns the recipients that waited."""
        waiting, self.batch = self.batch, self._aside
        return waiting

    def connection_failed(self, error: Exception) -> None:
        """The connection failed with one of `CONNECTION_ERRORS`: end the batch accordingly."""
        self.error = error
        if not (isinstance(error, RemoteProtocolError) or self._proof.is_suspect):
            self.settle_proven()  # silence, or the end: no surplus reply was on its way
        if self._failures.connection_failed(self.batch, error, is_late=self.is_late):
            self.batches -= 1

    def refused(self) -> None:
        """The batch is refused as a whole."""
        batch = self.batch
        if batch.refusal is None:
            return
        if self._failures.refused(batch, batch.refusal, is_late=self.is_late):
            self.batches -= 1

    def _reroutes_at(self) -> float:
        if not self._may_reroute():
            return float("inf")
        return self._connection.since + self._host.reroute_s

    def _may_reroute(self) -> bool:
        """Once for each probe; a test is not sent again."""
        if self._host.patient:
            return False
        batch, answered = self.batch, len(self.batch.exchanges)
        if answered >= len(batch.unanswered):
            return False
        oldest = batch.unanswered[answered]
        return isinstance(oldest, CatchAllTest) or not oldest.rerouted

    def _become_late(self, batch: RecipientBatch) -> None:
        """The oldest recipient delays those behind it: queue them for other connections too.

        If their replies come here first, these count. Earlier replies are not proven, because
        one may have been left out: their recipients are sent elsewhere too, and so are those
        whose verdicts are held.
        """
        self.is_late = True
        batch.become_late()
        self._proof.suspect()
        if self._host.patient:
            return
        self._failures.requeue_unproven()
        answered = len(batch.exchanges)
        for place, asked in reversed(list(enumerate(batch.unanswered))):
            if place == answered or asked in batch.elsewhere:
                continue
            if isinstance(asked, CatchAllTest):
                leave_untested(self._host, asked)
            elif not asked.settled:
                batch.elsewhere.add(asked)
                requeue_uncounted(self._host, asked)
        accepted = sum(turn.reply.positive for turn in batch.exchanges)
        self._host.session_late(self._connection, accepted=accepted)

    def _catch_up(self, *, accepted: bool) -> None:
        self.is_late = False
        self._host.session_prompt(self._connection, accepted=accepted)
