"""The proof that replies are paired with the right recipients, and the verdicts held until then.

A silence proves them, and NOOP before it where the host may owe a reply.
`mailprobe.engine.smtp.pairing` explains the law that this keeps.
"""

from math import inf

from msgspec import Struct, field

from .. import wire
from ..pairing import (
    DEADLINE_MARGIN_S,
    EARLY,
    HELD_S,
    QUIET_MARGIN,
    QUIET_S,
    QUIET_S_MAX,
    NamesAnother,
    OutOfStep,
    Pairing,
)
from ..probe import Probe
from ..wire import (
    CommandReply,
    ConnectionLost,
    Conversation,
    RemoteProtocolError,
    SmtpReply,
    Stage,
)
from .batch import CatchAllTest, PendingProbe, ProbeVerdict, RecipientBatch
from .effects import Emit, HeldBack, Proven
from .failure_causes import requeue_uncounted
from .host import SessionHost
from .recorder import SessionRecorder
from .transaction import RESETS_MAX, Transaction

PROMPT_S = 600.0  # after a prompt refusal the host is not expected to be slow to refuse
NOT_IMPLEMENTED = range(500, 505)  # replies of a host that does not implement NOOP


class Proof(Struct, eq=False):
    """What is held in one session until it is proven, and what was seen of the order of replies."""

    _host: SessionHost
    _conversation: Conversation
    _transaction: Transaction
    _recorder: SessionRecorder
    pairing: Pairing
    _emit: Emit
    held: list[ProbeVerdict] = field(
        default_factory=list
    )  # until the replies are proven to match their commands
    prove_by: float = inf  # when the session must wait in silence
    quiet_s: float = QUIET_S  # how long a silence must last to prove what is held
    is_suspect: bool = False  # silence proves nothing before a reply to NOOP: see pairing
    _checking: bool = False  # that reply is awaited
    quiet_until: float = 0.0  # end of that silence; 0: none
    _early_s: float = 0.0  # a reply came sooner than usual, and is not proven yet

    # -- evidence ------------------------------------------------------------------------------

    def names(self, asked: PendingProbe, reply: SmtpReply, batch: RecipientBatch) -> bool:
        """Does the reply name its recipient? Raises NamesAnother if it names another one.

        Another name is allowed if nothing else is unanswered and the host may have renamed the
        recipient: the local part is the same, or the recipient is sent again because its reply
        named another. So is the acceptance of an earlier recipient, word for word: both may be
        one mailbox. The reply to NOOP proves the order then.
        """
        try:
            return self.pairing.proves(reply, asked.mailbox)
        except NamesAnother as error:
            again = isinstance(asked, Probe) and asked.attempts.unproven
            alone = len(batch.sent) == 1 and self._transaction.resets <= RESETS_MAX
            if not (error.repeated or (alone and (error.same_local or again))):
                raise
        self.is_suspect = True
        return False

    def named(self) -> None:
        """The last reply of a batch named its recipient, so nothing is owed."""
        self.is_suspect = False

    def suspect_repeated(self, reply: SmtpReply, before: SmtpReply | None) -> None:
        """A reply that repeats the one before it word for word may be that one, doubled."""
        self.is_suspect = self.is_suspect or reply == before

    def suspect(self) -> None:
        self.is_suspect = True

    def is_slow_to_refuse(self) -> bool:
        """Was no recent refusal of the host prompt? Then its silence may be an owed refusal."""
        return self._conversation.received_at >= self._host.times.refused_promptly_at + PROMPT_S

    def begin_check(self) -> bool:
        """Must NOOP follow several recipients in one write (RFC 2920 3.1), to count their replies?

        If the host doubles a reply, the last of several recipients gets another's. Its own would
        follow at once, unless it is a refusal and the host is slow to refuse. Then that refusal
        comes in the place of the reply to NOOP.
        """
        needed = (
            self._conversation.state.offer.pipelining
            and self._transaction.may_reset
            and self.is_slow_to_refuse()
        )
        if needed:
            self._transaction.count_reset()
        return needed

    def _may_owe_refusal(self, batch: RecipientBatch) -> bool:
        """Was a random address, or the last of several, accepted by a host that is slow to refuse?"""
        turns = batch.replies.unprocessed
        return (
            not batch.checked
            and self.is_slow_to_refuse()
            and (
                (len(batch.sent) > 1 and bool(turns) and turns[-1].reply.positive)
                or any(
                    turn.reply.positive and isinstance(asked, CatchAllTest)
                    for asked, turn in zip(batch.unanswered, turns, strict=False)
                )
            )
        )

    def expect_surplus(self, batch: RecipientBatch) -> None:
        """How soon would a surplus reply follow? As the batch's replies followed each other.

        A reply that came sooner than this host makes one may answer an earlier command:
        then the surplus one is still being made.
        """
        times, replies, several = self._host.times, batch.replies, len(batch.sent) > 1
        usual_s, first_s = times.usual_s, replies.first_at - batch.began
        # Two that came together may be one, doubled: the host takes its usual time for the next.
        gap_s = max(replies.gap_s_max, times.gap_s) if several else 0.0
        if usual_s > QUIET_S and first_s < EARLY * usual_s:
            self._early_s = first_s
            gap_s = max(gap_s, usual_s)
        # A surplus reply may come so long after the one before it.
        self.quiet_s = max(self.quiet_s, min(QUIET_MARGIN * gap_s, QUIET_S_MAX))
        if (several or isinstance(batch.sent[0], CatchAllTest)) and self._may_owe_refusal(batch):
            self.is_suspect = True

    # -- the silence ---------------------------------------------------------------------------

    def hold(self, verdicts: list[ProbeVerdict], now: float) -> None:
        """Hold back these verdicts, at least one, of replies that came at `now`."""
        prove_by = self.prove_by if self.held else now + HELD_S
        for probe, _, _ in verdicts:
            latest = probe.clock.deadline - DEADLINE_MARGIN_S
            if latest < prove_by:
                prove_by = latest
        self.prove_by = prove_by
        self.held += verdicts
        self._emit(HeldBack(len(verdicts)))

    def is_due(self, now: float) -> bool:
        """Must the held verdicts be proven before more is sent?"""
        times = self._host.times
        distrusts = self.is_suspect or times.distrusted or times.slow_to_answer
        return distrusts or now >= self.prove_by

    def begin_quiet(self) -> float:
        """Send nothing for a moment: a surplus reply would come now. Returns until when to wait.

        A host that still owes a reply is silent, too. If that is possible, NOOP is sent first: an
        owed reply would be read as the reply to NOOP.
        """
        conversation = self._conversation
        # One is kept for this: a session sends nothing more after RESETS_MAX.
        may_check = (
            self._transaction.resets <= RESETS_MAX and conversation.state.stage is not Stage.CLOSED
        )
        if self.is_suspect and may_check:
            self._transaction.count_reset()
            self._checking, self.quiet_until = True, inf
            conversation.send(wire.NOOP)
            return conversation.deadline()
        return self.begin_idle()

    def begin_idle(self) -> float:
        """Idle: there is nothing to send. Returns when the silence has proven what is held."""
        self.quiet_until = self._conversation.received_at + self.quiet_s
        return self.quiet_until

    def end_idle(self) -> None:
        self.quiet_until = 0.0

    def silent_until(self, batch: RecipientBatch) -> float | None:
        """Until when to stay silent; None at the end: what is held is proven. Raises OutOfStep."""
        conversation = self._conversation
        if self._checking and not self._is_noop_answered(batch):
            return conversation.deadline()
        if conversation.unread:
            self.quiet_until = 0.0
            self.refuse_surplus()
        # If the server has closed, it sent nothing more before.
        if conversation.now < self.quiet_until and not conversation.lost:
            return self.quiet_until
        self.quiet_until = 0.0
        return None

    def refuse_surplus(self) -> None:
        """More has come than commands were sent. Raises ClosedUnasked for a 421, else OutOfStep."""
        try:
            self._conversation.next_exchange()
        except RemoteProtocolError as error:
            raise OutOfStep("more replies than commands") from error
        raise OutOfStep("more replies than commands")

    def _is_noop_answered(self, batch: RecipientBatch) -> bool:
        """Has the reply to NOOP come? Raises OutOfStep if that is not its own, or ConnectionLost."""
        conversation = self._conversation
        turn = conversation.next_exchange()
        if turn is None:
            conversation.check_clock()
            return False
        self._checking = False
        self.judge_check(turn, batch)
        self.is_suspect = False
        # If this was an earlier command's reply, NOOP's own comes one round trip after NOOP.
        own_by = conversation.sent_at + min(QUIET_MARGIN * self._host.times.usual_s, QUIET_S_MAX)
        self.quiet_until = max(conversation.received_at, own_by) + self.quiet_s
        return True

    def judge_check(self, turn: CommandReply, batch: RecipientBatch) -> None:
        """The reply to NOOP has come. Raises OutOfStep if that is not its own, or ConnectionLost."""
        conversation, code = self._conversation, turn.reply.code
        self._recorder.record_opening(batch.unanswered, turn)
        if code == 421:
            raise ConnectionLost(f"closed by the server: 421 {turn.reply.text[:80]}")
        unknown = code in NOT_IMPLEMENTED
        late = conversation.received_at >= conversation.sent_at + self._host.times.late_s
        if not turn.reply.positive and (late or not unknown):
            raise OutOfStep(f"{code} in answer to NOOP")
        self.pairing.check_names_none(turn.reply, ())

    # -- the end of what is held ---------------------------------------------------------------

    def release(self, *, is_proven: bool) -> list[ProbeVerdict]:
        """Stop holding: return the held verdicts, proven or not."""
        if is_proven and (self._early_s or self.pairing.renamed):
            self._emit(Proven(self._early_s, self.pairing.pop_renamed()))
            self._early_s = 0.0
        verdicts, self.quiet_s = self.held, QUIET_S
        if verdicts:
            self.held, self.prove_by = [], inf
            self._emit(HeldBack(-len(verdicts)))
        return verdicts

    def requeue_held(self) -> None:
        """There will be no proof: queue the held probes for another connection."""
        for probe, _, _ in reversed(self.release(is_proven=False)):
            if not probe.settled:
                requeue_uncounted(self._emit, probe)

    def distrust(self) -> None:
        """The connection failed: a reply that came early proves nothing any more."""
        self._early_s = 0.0
