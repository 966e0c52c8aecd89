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
from collections.abc import Sequence

import trio

from mailprobe.engine.evidence import ConnectionAttempt
from mailprobe.engine.smtp import wire
from mailprobe.engine.smtp.catchall import Acceptance, DomainAcceptance, deciding_rule
from mailprobe.engine.smtp.connection import ConnectionLost, Overdue, SmtpConnection
from mailprobe.engine.smtp.host_policy import start_tls
from mailprobe.engine.smtp.pairing import (
    EARLY,
    QUIET_MARGIN,
    QUIET_S,
    QUIET_S_MAX,
    OutOfStep,
    Pairing,
    UnprovenPairings,
)
from mailprobe.engine.smtp.probe import OBJECTIONS_MAX, Cause, Probe
from mailprobe.engine.smtp.replies.rules import ACCEPTED, Meaning, ReplyMeaning, Step
from mailprobe.engine.smtp.session.batch import BatchReplies, CatchAllTest, PendingProbe, domain_of
from mailprobe.engine.smtp.session.causes import (
    CONNECTION_ERRORS,
    GARBLED_RULE,
    REROUTED,
    Rerouted,
    cause_of,
    refusal_outcome,
    refused_command,
)
from mailprobe.engine.smtp.session.host import SessionHost
from mailprobe.engine.smtp.session.recorder import SessionRecorder
from mailprobe.engine.smtp.session.requeue import (
    expire_unanswered,
    fail_unanswered,
    leave_untested,
    requeue_doubted,
    requeue_rerouted,
    requeue_unanswered,
    requeue_uncounted,
)
from mailprobe.engine.smtp.session.transaction import RECIPIENTS_MAX, RESETS_MAX, Transaction
from mailprobe.engine.smtp.wire import (
    Command,
    CommandReply,
    RemoteProtocolError,
    SmtpReply,
    Stage,
)
from mailprobe.engine.verdict import LADDER, Outcome

REFUSALS_MAX = 8  # Postfix delays from the 11th error of a session and closes at the 21st
TURN_S = 0.5  # of a connection while another pool waits for a permit of its address
TURN_CHECK_S = 0.1  # after that, between two checks whether any does
REROUTE_CHECK_S = 0.02  # between two checks whether others need a late session's place
NOT_IMPLEMENTED = range(500, 505)  # replies of a host that does not implement NOOP
IDLE_S = 3.0  # Postfix keeps a connection for reuse 2 s; a list comes back within 3


_ANOTHER_RECIPIENT = Meaning.ANOTHER_RECIPIENT  # to look each up takes 0.12 µs in Python 3.11
_NO_MAILBOX = Meaning.NO_MAILBOX
_TLS_DEMANDED = Meaning.TLS_DEMANDED
_SENDER_REFUSED = Meaning.SENDER_REFUSED


class SmtpSession:
    """A greeted connection and the recipients sent on it."""

    # Of more than 30 attributes Python keeps a dict for each object, and looks each up: 6 µs an address.
    __slots__ = (
        "_again",
        "_batches",
        "_checking",
        "_connection",
        "_conversation",
        "_early_s",
        "_elsewhere",
        "_error",
        "_fruitful",
        "_host",
        "_idle",
        "_idle_until",
        "_interrupted",
        "_late",
        "_leaving",
        "_named",
        "_next",
        "_now",
        "_pairing",
        "_pairing_suspect",
        "_permit_lost",
        "_quiet_until",
        "_received",
        "_recipients",
        "_recorder",
        "_refusals",
        "_refused_promptly",
        "_tests",
        "_tls_of_all",
        "_tls_wanted",
        "_transaction",
        "_turn_ends",
        "_unanswered",
        "_unproven",
        "_unsaid",
        "address",
    )

    def __init__(
        self,
        host: SessionHost,
        connection: SmtpConnection,
        address: str,
        preamble: list[tuple[float, bool, str]],
    ) -> None:
        self.address = address
        self._host = host
        self._connection = connection
        self._conversation = connection.conversation
        self._recorder = SessionRecorder(connection, preamble)
        self._tests: deque[CatchAllTest] = deque()  # due because a recipient was accepted
        self._unanswered: deque[PendingProbe] = deque()  # of the batch under way
        self._transaction = Transaction(connection.conversation, host)
        self._refusals = 0
        self._recipients = 0
        self._batches = 0
        self._leaving = False
        self._permit_lost = False
        self._next: list[PendingProbe] = []  # picked for a transaction of their own
        self._again: list[PendingProbe] = []  # refused for the terms, to be sent on others
        self._tls_wanted = False  # a reply demanded it
        self._tls_of_all = False  # and that was the reply to MAIL
        self._received = BatchReplies([], False, False)  # of the batch under way
        self._pairing = Pairing()
        self._unproven = UnprovenPairings()
        self._early_s = 0.0  # a reply came sooner than usual, and is not proven yet
        self._pairing_suspect = False  # silence proves nothing before a reply to NOOP: see pairing
        self._checking = False  # that reply is awaited
        self._refused_promptly = False  # the host is not slow to refuse
        self._quiet_until = 0.0  # end of the silence that proves them; 0: none
        self._idle_until = 0.0
        self._late = False
        self._named = False  # the latest reply of a batch of one names its recipient
        self._elsewhere: set[Probe] = set()  # of the unanswered: sent elsewhere, too
        self._fruitful = False  # a recipient was answered, and not with 421
        self._unsaid = b""  # bytes that the socket did not accept at once
        self._error: Exception | None = None  # that ended the connection
        self._turn_ends = 0.0
        self._idle = False
        self._interrupted = False
        self._now = trio.lowlevel.current_clock().current_time

    @property
    def spent(self) -> bool:
        """No more recipients may be sent on this connection."""
        return (
            self._refusals >= REFUSALS_MAX
            or self._recipients >= RECIPIENTS_MAX - (not self._tests)  # the last is a test's
            or not self._connection.usable
        )

    @property
    def leaving(self) -> bool:
        return self._leaving

    @property
    def late(self) -> bool:
        """The oldest unanswered recipient takes much longer than usual."""
        return self._late

    def interrupt(self) -> None:
        """Wake the session: a probe may be waiting."""
        if self._idle:
            self._interrupted = True
            self._connection.interrupt()

    def withdraw(self) -> None:
        """Send QUIT as soon as nothing is unanswered."""
        self._leaving = True
        self.interrupt()

    def revoke_permit(self) -> None:
        """serve() is about to be cancelled: requeue what is unanswered."""
        self._leaving = self._permit_lost = True

    async def serve(self) -> None:
        """Send waiting probes until the session is idle for too long or spent.

        The caller still has to `quit` and `close` afterwards.
        """
        self._turn_ends = self._now() + TURN_S
        try:
            while self._may_continue():
                wanted = self._tls_wanted or self._host.terms.tls
                if wanted and self._conversation.offer.starttls:
                    if await self._prove():
                        await self._start_tls()
                    continue
                self._requeue_again()
                asked, self._next = self._next or self._pick(), []
                if asked and self._unproven.verdicts and self._transaction.must_open(asked):
                    self._next = asked
                    await self._prove()
                elif asked:
                    await self._send_batch(asked)
                elif self._leaving or self.spent or not await self._wait():
                    break
            await self._prove()
            if not self._batches and self._connection.unread():
                mistake = RemoteProtocolError("it spoke without being asked")
                cause = cause_of(mistake, Step.HELLO)
                self._host.session_failed(
                    cause, before_recipients=True, late=False, at_recipient=False
                )
        finally:
            self._return_probes(self._next)
            self._requeue_unproven()
            self._requeue_again()
            if self._permit_lost:
                requeue_unanswered(self._host, self._unanswered, self._elsewhere)
            self._abandon_tests()

    async def quit(self) -> None:
        """Send QUIT if the stage allows it, and close."""
        await self._connection.quit()

    async def close(self) -> None:
        """Close at once. Never blocks."""
        await self._connection.close()

    async def _wait(self) -> bool:
        """Idle until woken; False if the time is up or the server spoke or closed."""
        self._idle, self._interrupted = True, False
        self._idle_until = until = self._now() + IDLE_S
        if self._unproven.verdicts:
            self._quiet_until = until = self._connection.received_at + self._unproven.quiet_s
        self._host.is_idle(self)
        try:
            await self._connection.receive_until(self._while_idle, until)
        finally:
            self._idle, self._quiet_until = False, 0.0
            self._host.is_busy(self, woken=self._interrupted)
        woken = self._interrupted and self._connection.usable
        if woken and not self._leaving:
            self._host.session_reused()
        return woken

    def _while_idle(self) -> float | None:
        """Until when to idle; None when that is over. Silence proves the held verdicts."""
        if self._interrupted or self._connection.replied():
            return None
        now = self._now()
        if self._unproven.verdicts:
            if now < self._quiet_until:
                return self._quiet_until
            self._release()
            if self._interrupted:  # for a probe just admitted
                return None
        return self._idle_until if now < self._idle_until else None

    # -- choosing the next batch -------------------------------------------------------------

    def _pick(self) -> list[PendingProbe]:
        """The recipients of the next batch; tests that are due go first."""
        if not self._tests and not self._host.any_waiting():
            return []
        now, room = self._now(), self._room()
        asked: list[PendingProbe] = []
        while self._tests and len(asked) < room:
            asked.append(self._tests.popleft())
        # If the host limits transactions, the test must fit into this one.
        spare = int(self._conversation.offer.transactions_max is not None and room > 1)
        untested: set[str] = set()
        while len(asked) < room - spare and (probe := self._host.next_probe(now)) is not None:
            domain: DomainAcceptance = probe.domain_here
            if now >= domain.known_until and domain.needs_test(now):
                untested.add(probe.domain)
            if self._recipients + len(asked) + 1 + len(untested) > RECIPIENTS_MAX:
                self._host.requeue(probe)  # its domain's test would not fit here
                self._leaving = self._leaving or not asked
                break
            if probe.smtputf8 and not self._conversation.offer.smtputf8:
                self._host.settle(probe, Outcome.NEEDS_SMTPUTF8, "smtputf8.not-offered")
            elif asked and not self._transaction.may_share(asked, probe):
                self._host.requeue(probe)
                break
            else:
                asked.append(probe)
        self._add_tests(asked, room, now)
        if asked and self._transaction.must_open(asked) and not self._transaction.may_open(asked):
            self._return_probes(asked)
            return []
        return asked

    def _return_probes(self, asked: Sequence[PendingProbe]) -> None:
        """This session can't send these: it ends, and another one will."""
        self._leaving = self._leaving or bool(asked)
        for each in reversed(asked):
            if isinstance(each, Probe):
                self._host.requeue(each)
            else:
                leave_untested(self._host, each)

    def _room(self) -> int:
        offer = self._conversation.offer
        room = min(REFUSALS_MAX - self._refusals, RECIPIENTS_MAX - self._recipients)
        if self._host.one_each or not offer.pipelining:
            return min(room, 1)
        room = min(room, self._host.window())
        return min(room, offer.recipients_max or room)

    def _add_tests(self, asked: list[PendingProbe], room: int, now: float) -> None:
        """Append the random address behind the real ones if there is room.

        If the batch is full, a test follows only once a real address was accepted.
        """
        if len(asked) >= room:
            return
        for probe in list(asked):
            if isinstance(probe, Probe) and probe.domain_here.needs_test(now):
                asked.append(self._new_test(probe.domain_here))
                if len(asked) >= room:
                    return

    def _new_test(self, domain: DomainAcceptance) -> CatchAllTest:
        domain.testing = True
        return CatchAllTest(domain, self._host.random_mailbox(domain))

    # -- a batch -----------------------------------------------------------------------------

    async def _send_batch(self, asked: list[PendingProbe]) -> None:
        """Send a batch, and then further batches in the same transaction while all goes well."""
        received = self._begin(asked)
        try:
            opening = self._transaction.open(asked)
            if received.pipelined:
                await self._connection.send(*opening, *received.recipients)
            if not await self._open(opening, received):
                return
            if not received.pipelined:
                await self._connection.send(*received.recipients)
                received.began = self._connection.sent_at
            await self._connection.follow(self._resume, self._receive_until())
            while self._unsaid:
                rest, self._unsaid = self._unsaid, b""
                await self._connection.flush(rest)
                await self._connection.follow(self._resume, self._receive_until())
            if self._error is not None:
                raise self._error
        except CONNECTION_ERRORS as error:
            self._went_wrong(error)

    def _begin(self, asked: list[PendingProbe]) -> BatchReplies:
        """Begin a batch: none of its recipients is answered."""
        self._unanswered = deque(asked)
        self._received = received = BatchReplies(
            asked, self._conversation.offer.pipelining, self._batches > 0
        )
        self._batches += 1
        self._elsewhere.clear()
        received.began = self._now()
        received.recipients = [wire.rcpt(each.mailbox) for each in asked]
        for each in asked:
            self._pairing.add(each.mailbox)
            if isinstance(each, Probe):
                each.conversations += 1
                each.addresses_tried += 1
                if each.deadline > received.until:
                    received.until = each.deadline
                if each.notes is not None:
                    received.noted = True
                    attempt = ConnectionAttempt(self._host.name, self.address, "answered")
                    self._recorder.record_start(each.notes, attempt, reused=received.reused)
            else:
                received.tests = True
        if not received.until:
            received.until = float("inf")
        received.alone = not received.pipelined and len(asked) == 1 and not received.noted
        return received

    async def _open(self, opening: list[Command], received: BatchReplies) -> bool:
        """Receive the replies to RSET and MAIL; False if the batch ends with them."""
        for command in opening:
            if not received.pipelined:
                await self._connection.send(command)
            before = self._conversation.opening_reply
            turn = await self._connection.receive_reply(until=received.until)
            self._pairing_suspect = self._pairing_suspect or turn.reply == before
            self._pairing.check_names_none(turn.reply, [each.mailbox for each in received.sent])
            self._recorder.record_opening(self._unanswered, turn)
            # Only these show that the server still serves us; it accepts RSET from any client.
            received.first = received.first or (command.verb == "MAIL" and turn.reply.positive)
            if not turn.reply.positive:
                if received.refusal is None:
                    received.objection = self._host.read(Step.MAIL, turn.reply)
                    received.refusal = refused_command(turn, received.objection)
                if turn.reply.code == 421 or not received.pipelined:
                    self._refused(received.refusal, received)
                    return False
        received.transaction = received.refusal is None
        return True

    def _resume(self) -> float | None:
        """Process the replies received. Returns until when to wait for more, or None at the end.

        If the next batch goes into the same transaction, it is sent from here.
        """
        try:
            received = self._received
            if self._quiet_until:
                return self._await_quiet()
            turn = self._connection.receive_exchange() if received.alone else None
            if turn is not None:
                asked, reply = received.sent[0], turn.reply
                pairing = self._pairing
                self._named = reply is not pairing.nameless and pairing.proves(reply, asked.mailbox)
                if not self._transaction.recipients and reply == self._conversation.opening_reply:
                    self._pairing_suspect = True
                if (usual := self._usual(asked, reply)) is not None:
                    return self._continue_alone(received, *usual)
            if self._process_replies(received, turn):
                return self._batch_answered(received)
            now = self._now()
            if not self._late and now >= self._connection.since + self._host.late_s:
                self._become_late()
            if self._late and now >= self._reroutes_at() and self._host.is_blocked(self):
                raise Rerouted
            return self._receive_until()
        except Exception as error:  # a bug, too, ends only this session: see _send_batch()
            self._error = error
            return None

    def _receive_until(self) -> float:
        """The read deadline, or before that the moment at which the session becomes late."""
        deadline = self._connection.deadline(self._received.until)
        if not self._late:
            late_at = self._connection.since + self._host.late_s
            return late_at if late_at < deadline else deadline
        # Later, others may need its place, or more be known of this host's late replies.
        look_at = self._now() + REROUTE_CHECK_S
        return look_at if look_at < deadline and self._may_reroute() else deadline

    def _reroutes_at(self) -> float:
        if not self._may_reroute():
            return float("inf")
        return self._connection.since + self._host.reroute_s

    def _may_reroute(self) -> bool:
        """Once for each probe; a test is not sent again."""
        answered = len(self._received.exchanges)
        if answered >= len(self._unanswered):
            return False
        oldest = self._unanswered[answered]
        return isinstance(oldest, CatchAllTest) or not oldest.rerouted

    def _process_replies(self, received: BatchReplies, turn: CommandReply | None = None) -> bool:
        """Process the batch's replies received so far; True if those were all of them.

        `turn` is the first, if it was read already.
        """
        if self._received_all(received, turn):
            return True
        if not self._connection.receive():
            self._connection.check_clock(received.until)
            return False
        return self._received_all(received)

    def _received_all(self, received: BatchReplies, turn: CommandReply | None = None) -> bool:
        """Pair replies with recipients; True if the batch is complete.

        Processes only what is proven by a reply that names its recipient; see _batch_answered().
        """
        connection, asked, turns = self._connection, received.sent, received.exchanges
        pairing, place, count = self._pairing, received.place, len(asked)
        while place < count:
            turn = turn or connection.already_received()
            if turn is None:
                self._process_proven(received)
                return False
            reply = turn.reply
            named = reply is not pairing.nameless and pairing.proves(reply, asked[place].mailbox)
            if not (place or self._transaction.recipients):
                self._pairing_suspect = (
                    self._pairing_suspect or reply == self._conversation.opening_reply
                )
            turns.append(turn)
            received.place = place = place + 1
            received_at = connection.received_at
            if received_at != received.last_at:
                if not received.last_at:
                    received.first_at = received_at
                elif received_at - received.last_at > received.gap_s_max:
                    received.gap_s_max = received_at - received.last_at
                received.last_at = received_at
            if named and received.transaction:
                received.proven = place
            if self._late:
                self._catch_up(accepted=reply.positive)
            if reply.code == 421:
                break
            turn = None
        else:
            if self._conversation.unread:
                raise OutOfStep("more replies than commands")
        self._process_proven(received)
        return True

    def _process_proven(self, received: BatchReplies) -> None:
        """Process what a reply that names its recipient proves: itself and all before it."""
        count = received.proven - (received.place - len(received.exchanges))
        if count > 0:
            self._release()
            self._process(received, count)

    def _batch_answered(self, received: BatchReplies) -> float | None:
        """All replies of a batch are there. Hold back what is not proven yet.

        A usual reply means only a verdict, so the conversation goes on. Any other reply decides
        which command is next: then a silence has to prove the replies first.
        """
        if not received.transaction:
            self._drop_replies(received)
        turns, now = received.exchanges, self._connection.received_at
        self._expect_surplus(received.first_at - received.began, received.gap_s_max)
        if received.proven and received.proven == received.place:
            self._pairing_suspect = False
        elif self._accepts_at_random(received):
            self._pairing_suspect = True
        silent = self._connection.silent_s() >= self._unproven.quiet_s
        if turns and silent and not self._pairing_suspect:
            self._release()
            self._process(received, len(turns))
            return self._end_batch(received)
        held = []
        for turn in () if received.noted else turns:
            verdict = self._usual(self._unanswered[0], turn.reply)
            if verdict is None:
                break
            self._unanswered.popleft()
            held.append(verdict)
        if held:
            received.first = True
            self._unproven.hold(held, now)
            del turns[: len(held)]
            self._host.hold_back(len(held))
        if turns:
            return self._begin_quiet()
        if self._pairing_suspect and self._unproven.verdicts and received.refusal is None:
            self._host.batch_done(
                received.batch_s, received.gap_s, received.first_at - received.began
            )
            return self._begin_quiet()
        return self._end_batch(received)

    def _accepts_at_random(self, received: BatchReplies) -> bool:
        """Was a random address accepted by a host that may only be slow to refuse it?"""
        return (
            received.tests
            and not self._refused_promptly
            and any(
                turn.reply.positive and isinstance(asked, CatchAllTest)
                for asked, turn in zip(self._unanswered, received.exchanges, strict=False)
            )
        )

    def _expect_surplus(self, first_s: float, gap_s: float) -> None:
        """How soon would a surplus reply follow? As the round's replies followed each other.

        A reply that came sooner than this host makes one may answer an earlier command:
        then the surplus one is still being made.
        """
        usual_s = self._host.usual_s
        if usual_s > QUIET_S and first_s < EARLY * usual_s:
            self._early_s = first_s
            gap_s = max(gap_s, usual_s)
        if gap_s > QUIET_S / 2:
            self._unproven.expect_surplus(gap_s)

    def _end_batch(self, received: BatchReplies) -> float | None:
        if received.refusal is not None:
            self._refused(received.refusal, received)
            return None
        self._host.batch_done(received.batch_s, received.gap_s, received.first_at - received.began)
        return self._continue()

    def _continue(self) -> float | None:
        """Send the next batch in this transaction, if there is one.

        Held verdicts are proven first if necessary, otherwise while the session idles.
        """
        if self._unproven.verdicts and self._must_prove(self._now()):
            return self._begin_quiet()
        return self._receive_until() if self._begin_next() else None

    def _must_prove(self, now: float) -> bool:
        """Must the held verdicts be proven before the next command?"""
        host = self._host
        return (
            self._pairing_suspect or host.wary or host.slow_to_answer or now >= self._unproven.until
        )

    def _begin_next(self) -> bool:
        if self._again or not self._may_continue():
            return False
        asked = self._pick()
        if not asked or self._transaction.must_open(asked):
            self._next = asked
            return False
        received = self._begin(asked)
        received.transaction = True
        self._unsaid = self._connection.send_now(*received.recipients)
        return not self._unsaid

    # -- proof -------------------------------------------------------------------------------

    async def _prove(self) -> bool:
        """Prove the held verdicts by a silence before the next command; False if that fails."""
        if self._unproven.verdicts:
            try:
                until = self._begin_quiet()
                if until is None:
                    rest, self._unsaid = self._unsaid, b""
                    await self._connection.flush(rest)
                    until = self._connection.deadline(float("inf"))
                await self._connection.receive_until(self._while_silent, until)
                if self._error is not None:
                    raise self._error
            except CONNECTION_ERRORS as error:
                self._went_wrong(error)
                return False
        return True

    def _begin_quiet(self) -> float | None:
        """Say nothing for a moment: a surplus reply would come now. Returns as _resume().

        A host that is slow with the reply it owes is silent, too: where that may be, NOOP
        comes first. What the host owes would be taken for its reply.
        """
        # One is kept for this: a session asks nothing more after RESETS_MAX.
        may_check = (
            self._transaction.resets <= RESETS_MAX and self._conversation.stage is not Stage.CLOSED
        )
        if self._pairing_suspect and may_check:
            self._transaction.resets += 1
            self._checking, self._quiet_until = True, float("inf")
            self._unsaid = self._connection.send_now(wire.NOOP)
            return None if self._unsaid else self._connection.deadline(float("inf"))
        self._quiet_until = self._connection.received_at + self._unproven.quiet_s
        return self._quiet_until

    def _noop_answered(self) -> bool:
        """Has the reply to NOOP come? Raises OutOfStep where it is none, or ConnectionLost."""
        connection = self._connection
        turn = connection.already_received()
        if turn is None and connection.receive():
            turn = connection.already_received()
        if turn is None:
            connection.check_clock(float("inf"))
            return False
        self._checking, code = False, turn.reply.code
        self._recorder.record_opening(self._unanswered, turn)
        if code == 421:
            raise ConnectionLost(f"closed by the server: 421 {turn.reply.text[:80]}")
        unknown = code in NOT_IMPLEMENTED
        late = connection.received_at >= connection.sent_at + self._host.late_s
        if not turn.reply.positive and (late or not unknown):
            raise OutOfStep(f"{code} in answer to NOOP")
        self._pairing.check_names_none(turn.reply, ())
        self._pairing_suspect = False
        # Where this was an earlier command's reply, NOOP's own comes a turn-around after NOOP.
        own_by = connection.sent_at + min(QUIET_MARGIN * self._host.usual_s, QUIET_S_MAX)
        self._quiet_until = max(connection.received_at, own_by) + self._unproven.quiet_s
        return True

    def _while_silent(self) -> float | None:
        """Until when to stay silent, or None at the end: see _prove()."""
        try:
            return self._silent_until()
        except Exception as error:
            self._error = error
            return None

    def _silent_until(self) -> float | None:
        """None where the silence is over and what is held is proven. Raises OutOfStep."""
        if self._checking and not self._noop_answered():
            return self._connection.deadline(float("inf"))
        surplus = gone = False
        try:
            surplus = self._connection.unread() or self._connection.receive()
        except ConnectionLost:
            gone = True  # and it said no more before
        if surplus:
            self._quiet_until = 0.0
            raise OutOfStep("more replies than commands")
        if self._now() < self._quiet_until and not gone:
            return self._quiet_until
        self._quiet_until = 0.0
        self._release()
        return None

    def _await_quiet(self) -> float | None:
        until, received = self._silent_until(), self._received
        if until is not None:
            return until
        if received.exchanges:
            self._process(received, len(received.exchanges))
            return self._end_batch(received)
        return self._continue()

    def _release(self) -> None:
        """The pairing is proven: settle the held verdicts."""
        if self._early_s:
            self._host.learn_fast_reply(self._early_s)
            self._early_s = 0.0
        verdicts = self._unproven.release_all()
        if not verdicts:
            return
        host = self._host
        host.end_deferral(len(verdicts))
        host.begin_answers()
        try:
            for probe, outcome, rule in verdicts:
                host.settle(probe, outcome, rule)
        finally:
            # An idle session takes admitted probes only once it is woken.
            host.end_answers(all_of_them=not (self._unanswered or self._idle))

    def _distrust_pairing(self, received: BatchReplies, cause: Cause, error: Exception) -> None:
        """What was answered and is not proven is asked once more, one by one; else it is unknown.

        Before a late reply that gave way nothing has shown that the host is out of step:
        those are asked again as before, at most once for each that gives way.
        """
        self._early_s = 0.0
        doubted: list[PendingProbe] = [probe for probe, _, _ in self._unproven.verdicts]
        self._host.end_deferral(len(self._unproven.release_all()))
        doubted += [self._unanswered.popleft() for _ in received.exchanges]
        received.exchanges.clear()
        if doubted and isinstance(error, RemoteProtocolError):
            self._host.distrust()
        requeue_doubted(
            self._host, doubted, self._elsewhere, cause, gave_way=isinstance(error, Rerouted)
        )

    # -- a late reply ------------------------------------------------------------------------

    def _become_late(self) -> None:
        """The oldest recipient delays those behind it: they are asked elsewhere as well.

        Should their replies come here first, these count. What was answered before is
        not proven where a reply may have been left out: that is asked elsewhere, too.
        So is what is held: the late one may not be the first that the host is slow with.
        """
        self._late = self._pairing_suspect = self._received.late = True
        self._requeue_unproven()
        answered = len(self._received.exchanges)
        for place, asked in reversed(list(enumerate(self._unanswered))):
            if place == answered or asked in self._elsewhere:
                continue
            if isinstance(asked, CatchAllTest):
                leave_untested(self._host, asked)
            elif not asked.settled:
                self._elsewhere.add(asked)
                requeue_uncounted(self._host, asked)
        accepted = sum(turn.reply.positive for turn in self._received.exchanges)
        self._host.session_late(self, accepted=accepted)

    def _catch_up(self, *, accepted: bool) -> None:
        self._late = False
        self._host.session_prompt(self, accepted=accepted)

    # -- a round of one in step, where all is as usual: most rounds are, with many hosts ------

    def _usual(self, probe: PendingProbe, reply: SmtpReply) -> tuple[Probe, Outcome, str] | None:
        """What this reply makes of the question, if nothing but that follows from it.

        None where more does, and nothing was done: that is for the long way.
        """
        if not isinstance(probe, Probe) or probe.outcome is not None:
            return None
        code = reply.code
        if code < 300:
            reading = ACCEPTED
            domain: DomainAcceptance = probe.domain_here
            if domain.acceptance is None or self._connection.received_at >= domain.known_until:
                return None
            outcome = domain.acceptance.outcome
            rule = deciding_rule(domain.acceptance, reading.rule)
        elif code < 400 or code == 421:
            return None
        else:
            reading = self._host.read(Step.RCPT, reply)
            meaning = reading.meaning
            if meaning is not _NO_MAILBOX and (
                meaning is _ANOTHER_RECIPIENT
                or meaning is _SENDER_REFUSED
                or meaning is _TLS_DEMANDED
            ):
                return None
            self._refusals += 1
            self._refused_promptly = self._refused_promptly or not self._received.late
            outcome, rule = refusal_outcome(reply, reading), reading.rule
        self._fruitful = True
        self._recipients += 1
        self._transaction.recipients += 1
        self._transaction.domains.add(probe.domain)
        self._host.recipient_read(probe.domain_here, reply, reading)
        return probe, outcome, rule

    def _continue_alone(
        self, received: BatchReplies, asked: Probe, outcome: Outcome, rule: str
    ) -> float | None:
        """Settle or hold the round's verdict and ask the next question; returns as _resume()."""
        host, now, unproven = self._host, self._connection.received_at, self._unproven
        round_s = now - received.began
        received.first = True
        if self._late:
            self._catch_up(accepted=LADDER[outcome].valid)
        self._unanswered.clear()
        if not self._named and host.usual_s > QUIET_S:
            self._expect_surplus(round_s, 0.0)
        if self._named:
            self._pairing_suspect = False
        silent = self._connection.silent_s() >= unproven.quiet_s and not self._pairing_suspect
        if self._named or silent:
            if unproven.verdicts or unproven.quiet_s > QUIET_S:
                self._release()
            host.settle_alone(asked, outcome, rule, round_s)
        else:
            unproven.hold([(asked, outcome, rule)], now)
            host.hold_back(1)
            host.answered_alone(round_s)
            if self._must_prove(now):
                return self._begin_quiet()
        if now > self._turn_ends:
            self._yield_if_needed(now)
        probe = None
        if (
            not (self._leaving or self._tests)
            and self._refusals < REFUSALS_MAX
            and self._recipients < RECIPIENTS_MAX - 1
        ):
            probe = host.next_probe(now)
        if probe is None or not self._is_single(probe, now):
            if probe is not None:
                host.requeue(probe)
            return self._continue()
        probe.conversations += 1
        probe.addresses_tried += 1
        self._pairing.add(probe.mailbox)
        self._unanswered.append(probe)
        received.sent = [probe]
        received.reused, received.first, received.late = True, False, False
        received.until = probe.deadline
        if self._elsewhere:
            self._elsewhere.clear()
        self._unsaid = self._connection.send_rcpt_now(probe.mailbox)
        received.began = self._connection.sent_at
        if self._unsaid:
            return None
        deadline, late_at = self._connection.deadline(received.until), received.began + host.late_s
        return late_at if late_at < deadline else deadline

    def _is_single(self, probe: Probe, now: float) -> bool:
        """May this probe go next by itself, in the present transaction and without a test?"""
        offer = self._conversation.offer
        domain: DomainAcceptance = probe.domain_here
        return (
            probe.notes is None
            and not probe.smtputf8
            and (now < domain.known_until or domain.testing)
            and not self._host.one_each
            and offer.domains_max is None
            and self._transaction.recipients < (offer.recipients_max or RECIPIENTS_MAX)
        )

    def _may_continue(self) -> bool:
        now = self._now()
        if now > self._turn_ends:
            self._yield_if_needed(now)
        return not self._leaving and not self.spent

    def _yield_if_needed(self, now: float) -> None:
        """Leave if the permit is needed elsewhere; else go on, and check again in TURN_CHECK_S."""
        self._turn_ends = now + TURN_CHECK_S
        if not self._leaving:
            self._leaving = self._host.is_needed_elsewhere(self.address)

    def _went_wrong(self, error: Exception) -> None:
        """Each of the round's questions goes on its way after one of `CONNECTION_ERRORS`."""
        received = self._received
        step = Step.RCPT if received.transaction else Step.MAIL
        cause = received.refusal or (
            REROUTED if isinstance(error, Rerouted) else cause_of(error, step)
        )
        if not (isinstance(error, RemoteProtocolError) or self._pairing_suspect):
            self._release()  # silence, or the end: no surplus reply was on its way
        if not received.transaction:
            self._drop_replies(received)
        self._distrust_pairing(received, cause, error)
        if isinstance(error, Rerouted):
            self._reroute_waiting()
            return
        if isinstance(error, Overdue) and received.refusal is None:
            self._expire()
            return
        self._refused(cause, received)

    def _drop_replies(self, received: BatchReplies) -> None:
        """Drop replies that follow a refused MAIL. The server counts their refusals all the same."""
        self._refusals += sum(not turn.reply.positive for turn in received.exchanges)
        received.exchanges.clear()

    def _process(self, received: BatchReplies, count: int) -> None:
        """Process the replies to the oldest `count` recipients."""
        turns, received.exchanges = received.exchanges[:count], received.exchanges[count:]
        if not turns or not received.transaction:
            return
        self._host.begin_answers()
        try:
            for turn in turns:
                asked = self._unanswered[0]
                usual = None if received.noted else self._usual(asked, turn.reply)
                if usual is None:
                    self._recipient_answered(asked, turn, received)
                else:
                    received.first = True
                    self._unanswered.popleft()
                    self._host.settle(*usual)
        finally:
            self._host.end_answers(all_of_them=not self._unanswered)

    # -- other terms: TLS where it is demanded, another sender where this one is refused -----

    def _objects_to_terms(
        self, asked: PendingProbe, reading: ReplyMeaning, *, to_all: bool
    ) -> bool:
        """Did the host refuse the terms, and is this one to be asked again on others?

        Each kind of sender is offered once for each question and host; TLS is started once
        on a connection, where it is offered. A demand in reply to MAIL is made `to_all`; one
        in reply to RCPT may be one domain's.
        """
        if reading.meaning is _TLS_DEMANDED and self._conversation.offer.starttls:
            self._tls_wanted, self._tls_of_all = True, self._tls_of_all or to_all
            self._host.terms.demand_tls(of_all=to_all)
            return True
        if reading.meaning is not _SENDER_REFUSED:
            return False
        if not self._host.terms.refuse(self._transaction.sender):
            return False
        refused_before, asked.sender_refused_by = asked.sender_refused_by, self._host
        return refused_before is not self._host

    def _refused(self, cause: Cause, received: BatchReplies) -> None:
        """The round is refused as a whole: those are asked again for whom other terms are left."""
        if received.objection is not None and not received.goodbye:
            refused, self._unanswered = self._unanswered, deque()
            for asked in refused:
                again = self._objects_to_terms(asked, received.objection, to_all=True)
                (self._again if again else self._unanswered).append(asked)
            if refused and not self._unanswered:
                self._batches -= 1  # the connection has served nobody with it
                return
        self._fail(cause, received)

    def _requeue_again(self) -> None:
        """Those that wait for other terms are asked next, and it's the same conversation."""
        again, self._again = self._again, []
        for asked in reversed(again):
            if isinstance(asked, Probe):
                asked.conversations -= 1
                asked.addresses_tried -= 1
                self._host.requeue(asked)
            elif asked.domain.awaiting:
                self._tests.appendleft(asked)
            else:  # it comes anew, behind a real one
                leave_untested(self._host, asked)

    async def _start_tls(self) -> None:
        """Go on within TLS, as the host demands; where that fails, so do those it was begun for."""
        again, self._again = self._again, []
        self._unanswered = deque(again)
        deadlines = [asked.deadline for asked in again if isinstance(asked, Probe)]
        received = BatchReplies([], False, self._received.reused, first=True)
        received.until = max(deadlines, default=float("inf"))
        self._transaction.resets += self._conversation.stage is Stage.MAIL
        cause, said_before = None, len(self._recorder.preamble)
        try:
            refusal = await start_tls(
                self._connection,
                self._host.helo_name,
                self._recorder.preamble,
                until=received.until,
            )
        except Overdue:
            self._expire()
            return
        except CONNECTION_ERRORS as error:
            cause = cause_of(error, Step.STARTTLS)
            if isinstance(error, ConnectionLost) and len(self._recorder.preamble) == said_before:
                # It hung up right after its demand: others are asked on a fresh connection.
                received.reused, received.first = True, False
        else:
            if refusal is not None:
                reading = self._host.read(Step.STARTTLS, refusal.reply)
                cause = refused_command(refusal, reading)
        if cause is None:
            self._host.terms.tls_works()
            self._again, self._unanswered = again, deque()
            return
        for asked in again:
            if isinstance(asked, Probe) and asked.notes is not None:
                self._recorder.record_preamble(asked.notes)
        self._host.terms.tls_failed()
        self._fail(cause, received, failure=self._tls_of_all)

    # -- replies to recipients ---------------------------------------------------------------

    def _recipient_answered(
        self, asked: PendingProbe, turn: CommandReply, received: BatchReplies
    ) -> None:
        reply, positive = turn.reply, turn.reply.positive
        reading = ACCEPTED if positive else self._host.read(Step.RCPT, reply)
        self._recipients += 1
        self._transaction.recipients += 1
        self._transaction.domains.add(domain_of(asked))
        if not positive:
            self._refusals += 1
            self._refused_promptly = self._refused_promptly or not self._received.late
        if reply.code == 421:
            received.refusal = Cause(
                Outcome.CONVERSATION_FAILED,
                reading.rule,
                f"the server closes: 421 {reply.text[:80]}",
                about_us=reading.about_us,
                replied=True,
            )
            received.goodbye = True
            if isinstance(asked, Probe):
                self._recorder.record_exchange(asked, turn)
            return
        received.first = self._fruitful = True
        self._unanswered.popleft()
        again = not positive and self._objects_to_terms(asked, reading, to_all=False)
        if again:
            self._again.append(asked)
        if isinstance(asked, CatchAllTest):
            for probe in asked.domain.awaiting:
                self._recorder.record_exchange(probe, turn)
            if not again:
                self._test_answered(asked, reply, reading)
        else:
            if asked.notes is not None:
                self._recorder.record_exchange(asked, turn)
            if not again:
                self._host.recipient_read(asked.domain_here, reply, reading)
                self._probe_answered(asked, reply, reading)

    def _objected(self, asked: PendingProbe, reading: ReplyMeaning) -> bool:
        """Does the host want this recipient in a transaction of its own, and may it be sent so?"""
        if reading.meaning is not Meaning.ANOTHER_RECIPIENT or self._transaction.recipients < 2:
            return False
        self._host.one_each = True
        asked.objections += 1
        return asked.objections <= OBJECTIONS_MAX

    def _test_answered(self, test: CatchAllTest, reply: SmtpReply, reading: ReplyMeaning) -> None:
        if self._objected(test, reading):
            self._tests.append(test)
            return
        if reply.positive:
            acceptance = Acceptance.ALL
        elif reply.code >= 500 and reading.meaning in (Meaning.NO_MAILBOX, Meaning.DISABLED):
            acceptance = Acceptance.SOME
        else:
            acceptance = Acceptance.UNTOLD
        self._host.learn(test.domain, acceptance)

    def _probe_answered(self, probe: Probe, reply: SmtpReply, reading: ReplyMeaning) -> None:
        if probe.settled:
            return
        if self._objected(probe, reading):
            probe.conversations -= 1  # it is the same conversation, one transaction later
            self._host.requeue(probe)
        elif reply.positive:
            self._accepted(probe, reading)
        else:
            self._host.settle(probe, refusal_outcome(reply, reading), reading.rule)

    def _accepted(self, probe: Probe, reading: ReplyMeaning) -> None:
        domain: DomainAcceptance = probe.domain_here
        known = domain.known(self._connection.received_at)
        if known is not None:
            if probe.notes is not None:
                probe.notes.cached.append("catch_all")
            self._host.settle(probe, known.value, deciding_rule(known, reading.rule))
            return
        probe.accepted = True
        probe.rule = reading.rule
        domain.awaiting.append(probe)
        if not domain.testing:
            self._tests.append(self._new_test(domain))

    # -- failures ----------------------------------------------------------------------------

    def _fail(self, cause: Cause, received: BatchReplies, *, failure: bool = True) -> None:
        """Give each question of the round that was not answered its way on.

        On a reused connection that fails before its first reply all of them are
        asked once more on a fresh one. Otherwise what failed is the oldest
        unanswered one's; those behind it were only in its way. `failure`: it is the host's
        failure, and not that of one domain there.
        """
        self._leaving = True
        reused = received.reused
        early = failure and not (reused or received.transaction or self._transaction.smtputf8)
        hung_up = received.goodbye or (received.transaction and cause.hung_up)
        self._host.session_failed(
            cause, before_recipients=early, late=self._late, at_recipient=received.goodbye
        )
        silent_or_garbled = received.transaction and cause.rule in (REROUTED.rule, GARBLED_RULE)
        if (hung_up or silent_or_garbled) and self._unanswered and not self._fruitful:
            oldest = self._unanswered[0]
            domain = oldest.domain_here if isinstance(oldest, Probe) else oldest.domain
            self._host.session_barren(cause, domain)
        if reused and not received.first:
            self._host.close_idle_session()  # they have been kept as long: hardly any better
        unanswered, self._unanswered = self._unanswered, deque()
        fail_unanswered(self._host, unanswered, self._elsewhere, cause, received)

    def _reroute_waiting(self) -> None:
        """Give up the late reply: queue its probe again, behind all others."""
        self._leaving = True
        self._host.session_rerouted()
        unanswered, self._unanswered = self._unanswered, deque()
        requeue_rerouted(self._host, unanswered, self._elsewhere)

    def _expire(self) -> None:
        """The deadlines of the whole batch have passed."""
        self._leaving = True
        unanswered, self._unanswered = self._unanswered, deque()
        expire_unanswered(self._host, unanswered)

    def _requeue_unproven(self) -> None:
        """The session ended before the proof: queue the held probes for another connection."""
        if not self._unproven.verdicts:
            return
        verdicts = self._unproven.release_all()
        self._host.end_deferral(len(verdicts))
        for probe, _, _ in reversed(verdicts):
            if not probe.settled:
                requeue_uncounted(self._host, probe)

    def _abandon_tests(self) -> None:
        """Hand back the tests that were not sent."""
        for asked in (*self._unanswered, *self._tests):
            if isinstance(asked, CatchAllTest):
                leave_untested(self._host, asked)
        self._unanswered.clear()
        self._tests.clear()
