"""A host's limits as a session's recipients show them, and the session's remaining room.

A refusal may be a limit by its position: it is held until its batch is answered. Then its
recipient is sent again, or the refusal is its own. `mailprobe.engine.smtp.limits` explains what a
position proves. A refusal whose words condemn its recipient is never held: it is evidence in
itself. One that only its code condemns is not: `550 5.1.1 Recipient rejected, one message at a
time` is a limit.
"""

from collections import deque
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from msgspec import Struct, field

from ...verdict import Outcome
from ..limits import (
    UNLIMITED,
    Observation,
    RecipientLimits,
    Scope,
    alike,
)
from ..probe import OBJECTIONS_MAX, Cause, Probe
from ..replies.rules import Meaning, ReplyMeaning, Step
from ..tolerance.limits import Kind
from ..wire import CommandReply, SmtpReply
from .batch import PendingProbe, RecipientBatch
from .failure_causes import refusal_outcome
from .host import SessionHost

RECIPIENTS_MAX = UNLIMITED  # of a session
REFUSALS_MAX = 8  # Postfix delays from the 11th error of a session and closes at the 21st
# Such a recipient was sent again on other terms, in a transaction of its own: see terms.
OF_TERMS = (Meaning.SENDER_REFUSED, Meaning.TLS_DEMANDED)
NOT_REFUSED = (*OF_TERMS, Meaning.ANOTHER_RECIPIENT)  # it is sent again, on other terms
# Rules of replies that condemn by their code, because no rule knows their words.
BY_CODE = frozenset(("enhanced.no-mailbox", "code.no-mailbox"))
IDLE_CLOSE_S = 0.5  # a host that closes after such a pause may have had enough of waiting
_UNDELIVERABLE = Outcome.UNDELIVERABLE  # to look it up takes 0.12 µs in Python 3.11


class HeldRefusal(NamedTuple):
    """A refused recipient of the batch under way; its refusal may be a limit."""

    asked: PendingProbe
    reply: SmtpReply
    reading: ReplyMeaning
    refusal: str  # see limits.alike()
    place: int  # among the recipients answered in this session

    @property
    def outcome(self) -> Outcome:
        return refusal_outcome(self.reply, self.reading)


class Released(NamedTuple):
    """What became of the held refusals of an answered batch."""

    own: list[HeldRefusal]  # they speak of their recipients
    again: list[HeldRefusal]  # a limit refused them
    of_connection: bool = False  # which is the connection's: no more may be sent on it


NOTHING_RELEASED = Released([], [])


class SessionLimits(Struct, eq=False):
    """Counts the recipients of one session, and holds refusals that may be a limit."""

    _host: SessionHost
    of_host: RecipientLimits
    recipients: int = 0  # answered, and not by 421
    refusals: int = 0
    _refused: int = 0  # of these: for good (5yz), as hosts that ban count them
    _refused_last: bool = False  # the latest recipient that was accepted, or refused for good
    _sent: deque[tuple[Kind, str]] = field(
        default_factory=deque
    )  # of the batch under way, with their accounts
    _unjudged: int = 0  # refused for another reason than an unknown mailbox
    held: list[HeldRefusal] = field(default_factory=list)
    in_transaction: int = 0  # recipients of the transaction under way
    _before: tuple[int, int] = (0, 0)  # refusals and unjudged when it began
    _served: int = 0  # transactions before it with a recipient that was judged
    # When the connection failed: recipients accepted and not proven, and these with those condemned.
    _unproven: tuple[int, int] = (0, 0)

    def begin_transaction(self) -> None:
        self._served += self.in_transaction > self._unjudged - self._before[1]
        self.in_transaction = 0
        self._before = (self.refusals, self._unjudged)

    @property
    def judged(self) -> int:
        """How many recipients this connection accepted, or refused as no mailbox."""
        return self.recipients - self._unjudged

    def left_here(self, now: float) -> int:
        """How many recipients it may still have under way, as far as the session decides.

        One place is kept for a control where verdicts may have to be confirmed.
        """
        left = self._host.tolerance.budget.session_window(self._refused)
        of_session = REFUSALS_MAX - self.refusals
        if of_session <= left:
            left = of_session - self._host.controls.may_be_due(now)
        return min(
            left,
            self.of_host.refusals_per_connection - self.refusals,
            self.of_host.per_connection - self.recipients,
        )

    @property
    def refusals_left(self) -> int:
        """After so many more refused for good the session ends."""
        return self._host.tolerance.known.session_max - self._refused

    def may_send_control(self, *, accepted: bool) -> bool:
        """Is there room for one more recipient, which the host `accepted` before, or refused?"""
        if self.recipients >= self.of_host.per_connection or self.refusals >= REFUSALS_MAX:
            return False
        return accepted or (
            self.refusals_left > 0 and self.refusals < self.of_host.refusals_per_connection
        )

    def send(self, asked: Sequence[PendingProbe], now: float) -> None:
        """These are sent; what the batch before left unanswered is not counted any more."""
        self.recall()
        budget, sent = self._host.tolerance.budget, self._sent
        for each in asked:
            kind, account = each.kind, each.asker
            budget.send(kind, account, now, each.mailbox)
            sent.append((kind, account))

    def recall(self) -> None:
        """Stop counting the unanswered recipients: they get no answer here."""
        sent = self._sent
        while sent:
            self._host.tolerance.budget.recall(*sent.popleft())

    def count_answer(self, now: float, *, accepted: bool = False, refused: bool = False) -> None:
        """The oldest of the recipients under way was answered."""
        self.recipients += accepted
        self.in_transaction += accepted
        if accepted or refused:
            self._refused_last = refused
        if self._sent:
            kind, account = self._sent.popleft()
            self._host.tolerance.budget.answered(
                kind, account, now, accepted=accepted, refused=refused
            )

    def count_refusal(
        self, reply: SmtpReply, reading: ReplyMeaning, outcome: Outcome, now: float
    ) -> None:
        """A recipient was refused; for good, unless the host only wants other terms."""
        self.recipients += 1
        self.in_transaction += 1
        for_good = reply.code >= 500 and reading.meaning not in NOT_REFUSED
        self.count_answer(now, refused=for_good)
        self._refused += for_good
        self.refusals += 1
        self._unjudged += outcome is not _UNDELIVERABLE

    def count_dropped(self, replies: Iterable[SmtpReply], now: float) -> None:
        """Replies that follow a refused MAIL. The session counts their refusals all the same."""
        for reply in replies:
            self.refusals += not reply.positive
            self.count_answer(now)

    def count_unproven(self, turns: Sequence[CommandReply], now: float) -> None:
        """The connection failed before these were proven: some recipients were judged, it seems."""
        outcomes = [
            refusal_outcome(turn.reply, self._host.read(Step.RCPT, turn.reply))
            for turn in turns
            if not turn.reply.positive
        ]
        for turn in turns:
            self.count_answer(now, refused=turn.reply.code >= 500)
        accepted = len(turns) - len(outcomes)
        self._unproven = accepted, accepted + outcomes.count(_UNDELIVERABLE)
        if self._unproven[1]:
            self._refused_last = not turns[-1].reply.positive

    def may_be_limit(
        self,
        asked: PendingProbe,
        reply: SmtpReply,
        reading: ReplyMeaning,
        outcome: Outcome,
        now: float,
    ) -> bool:
        """Does more follow from this refusal than its own verdict?"""
        if reading.meaning is Meaning.ANOTHER_RECIPIENT:
            return True
        if reading.meaning in OF_TERMS:
            return False
        if outcome is not _UNDELIVERABLE and self.recipients == self._unjudged:
            return asked.objections.count > 0 or self.of_host.in_force
        return not self.of_host.is_own(alike(reply.code, " ".join(reply.lines)), now)

    def hold(
        self,
        asked: PendingProbe,
        reply: SmtpReply,
        reading: ReplyMeaning,
        elsewhere: Set[Probe],
        now: float,
    ) -> bool:
        """Hold this refusal if its position may explain it, until the batch is answered.

        `elsewhere` are recipients that are sent again already.
        """
        condemns = refusal_outcome(reply, reading) is _UNDELIVERABLE
        if reading.meaning in OF_TERMS or (condemns and reading.rule not in BY_CODE):
            return False
        limits = self.of_host
        refusal = alike(reply.code, " ".join(reply.lines))
        if (
            condemns
            and not isinstance(asked, Probe)
            and not (self.held and self.held[-1].refusal == refusal)
        ):
            return False  # a random address is refused by most hosts
        certain = reading.meaning is Meaning.ANOTHER_RECIPIENT
        if not (self.recipients > 1 if certain or condemns else self.judged):
            if not certain and (condemns or asked.objections.count or limits.knows(refusal)):
                limits.refute(refusal, now)
            return False
        is_own = not certain and limits.is_own(refusal, now)
        if is_own or asked.objections.count >= OBJECTIONS_MAX:
            return False
        if asked not in elsewhere:
            self.held.append(HeldRefusal(asked, reply, reading, refusal, self.recipients))
            self._unjudged += condemns
        return True

    def release(self, sent_at: float, now: float) -> Released:
        """The batch, sent at `sent_at`, is answered: which of the held refusals were a limit?"""
        held, self.held = self.held, []
        if not held:
            return NOTHING_RELEASED
        behind = _all_later_alike(held, self.recipients)
        again = [
            each
            for each in held
            if each.place >= behind or each.reading.meaning is Meaning.ANOTHER_RECIPIENT
        ]
        own = [each for each in held if each not in again]
        for each in again:  # a limit refused them, and not for who they are
            if each.reply.code >= 500 and each.reading.meaning not in NOT_REFUSED:
                self._host.tolerance.budget.withdraw_refusal(each.asked.kind, each.asked.asker)
                self._refused -= 1
        self._unjudged -= sum(each.outcome is _UNDELIVERABLE for each in own)
        of_connection = bool(again) and self._learn(again[-1], behind, sent_at, now)
        return Released(own, again, of_connection)

    def _learn(self, latest: HeldRefusal, behind: int, sent_at: float, now: float) -> bool:
        """Learn the limit of the transaction, or of the connection: then return True.

        Those from the place `behind` on were all refused alike.
        """
        limits, refusal = self.of_host, latest.refusal
        refusals, unjudged = self._before
        certain = latest.reading.meaning is Meaning.ANOTHER_RECIPIENT
        at_end = latest.place >= behind
        if certain or latest.outcome is _UNDELIVERABLE:
            # Then it need not have judged the first ones.
            judged = behind - 1 - (self.recipients - self.in_transaction)
        else:
            judged = self.in_transaction - (self._unjudged - unjudged)
        if judged > 0 and not limits.is_of_connection(refusal):
            # If a later recipient was judged, the words alone count: send each by itself.
            accepted = self.in_transaction - (self.refusals - refusals) if at_end else 1
            seen = Observation(refusal, judged, accepted, sent_at, now, certain)
            limits.observe(Scope.TRANSACTION, seen)
            return False
        if self._served <= 1:
            limits.not_of_transaction(refusal, now)
        accepted = self.recipients - self.refusals
        seen = Observation(refusal, self.judged, accepted, sent_at, now, certain)
        limits.observe(Scope.CONNECTION, seen)
        return True

    def ended_by_limit(self, cause: Cause, batch: RecipientBatch, now: float) -> bool:
        """Did the host close, or refuse a further transaction, after it had judged recipients?"""
        if not cause.hung_up and batch.refusal is None:
            return False
        accepted, judged = self._unproven
        judged += self.judged
        if not judged:
            return False
        if batch.idle_s > IDLE_CLOSE_S and batch.replies.count <= batch.is_closing:
            return False
        accepted += self.recipients - self.refusals
        refusal = alike(0, cause.words)
        seen = Observation(refusal, judged, accepted, batch.began, now, closed=True)
        self.of_host.observe_end(seen, after_refusal=self._refused_last)
        return True


def _all_later_alike(held: list[HeldRefusal], recipients: int) -> int:
    """From which place on were all recipients of the session refused alike?"""
    refusal, place = held[-1].refusal, recipients
    for each in reversed(held):
        if each.place != place or each.refusal != refusal:
            break
        place -= 1
    return place + 1
