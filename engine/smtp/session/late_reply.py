"""A late session: its oldest unanswered recipient takes much longer than usual, as at a tarpit.

The recipients behind it are then sent on other connections as well.
"""

from msgspec import Struct

from ..wire import Conversation
from .batch import CatchAllTest, RecipientBatch
from .effects import BecameLate, CaughtUp, Emit
from .failure_causes import leave_untested, requeue_uncounted
from .host import SessionHost
from .proof import Proof

REROUTE_CHECK_S = 0.02  # between two checks whether others need a late session's place


class LateReply(Struct, eq=False):
    """Whether the reply to the oldest recipient of one session is late."""

    _host: SessionHost
    _conversation: Conversation
    _proof: Proof
    _emit: Emit
    is_late: bool = False

    def until(self, batch: RecipientBatch) -> float:
        """When to read next: at the deadline, or before that when the session becomes late.

        It becomes late here if it is time.
        """
        conversation, late_s = self._conversation, self._host.times.late_s
        if not self.is_late:
            if conversation.now < conversation.since + late_s:
                return conversation.deadline(batch.until, late_s)
            self._begin(batch)
        deadline = conversation.deadline(batch.until)
        # Later, others may need its place, or more be known of this host's late replies.
        look_at = conversation.now + REROUTE_CHECK_S
        return look_at if look_at < deadline and self._may_reroute(batch) else deadline

    def has_come(self, *, accepted: bool) -> None:
        """The late reply has come."""
        self.is_late = False
        self._emit(CaughtUp(self._conversation, accepted))

    def may_give_way(self, batch: RecipientBatch, after_s: float) -> bool:
        """Is the reply later than that, and may its probe be sent again?"""
        conversation = self._conversation
        is_later = self.is_late and conversation.now >= conversation.since + after_s
        return is_later and self._may_reroute(batch)

    def _may_reroute(self, batch: RecipientBatch) -> bool:
        """Once for each probe. A request's test is not sent again; a list's is worth the time."""
        answered = len(batch.replies.unprocessed)
        if self._host.clocks.patient or answered >= len(batch.unanswered):
            return False
        oldest = batch.unanswered[answered]
        if isinstance(oldest, CatchAllTest):
            return not oldest.deferred_start
        return not oldest.attempts.rerouted

    def _begin(self, batch: RecipientBatch) -> None:
        """The oldest recipient delays those behind it: queue them for other connections too.

        If their replies come here first, these count. Earlier replies are not proven, because
        one may have been left out: their recipients are sent elsewhere too, and so are those
        whose verdicts are held.
        """
        self.is_late = True
        batch.become_late()
        self._proof.suspect()
        if self._host.clocks.patient:
            return
        self._proof.requeue_held()
        answered = len(batch.replies.unprocessed)
        for place, asked in reversed(list(enumerate(batch.unanswered))):
            if place == answered or asked in batch.elsewhere:
                continue
            if isinstance(asked, CatchAllTest):
                leave_untested(self._emit, asked)
            elif not asked.settled:
                batch.send_elsewhere(asked)
                requeue_uncounted(self._emit, asked)
        accepted = sum(turn.reply.positive for turn in batch.replies.unprocessed)
        self._emit(BecameLate(self._conversation, accepted))
