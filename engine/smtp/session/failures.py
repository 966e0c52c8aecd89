"""Failed batches: the consequences for their recipients, and for verdicts that the session holds."""

from msgspec import Struct

from ..pairing import NamesAnother
from ..probe import Cause
from ..replies.rules import Step
from ..wire import Conversation, Overdue, RemoteProtocolError
from .answers import RecipientReplies
from .batch import PendingProbe, RecipientBatch, domain_here
from .effects import (
    Barren,
    Distrusted,
    Emit,
    GaveWay,
    IdledTooLong,
    SessionFailed,
)
from .failure_causes import (
    GARBLED_RULE,
    REROUTED,
    Rerouted,
    cause_of,
    expire_unanswered,
    fail_unanswered,
    requeue_doubted,
    requeue_rerouted,
)
from .host import SessionHost
from .late_reply import LateReply
from .next_batch import Tenure, Unsent
from .proof import Proof
from .recipient_limits import SessionLimits
from .transaction import Transaction


class Failures(Struct, eq=False):
    """Ends the batches of one session that failed."""

    _host: SessionHost
    _conversation: Conversation
    _limits: SessionLimits
    _transaction: Transaction
    _proof: Proof
    _unsent: Unsent
    _answers: RecipientReplies
    _tenure: Tenure
    _late: LateReply
    _emit: Emit

    def connection_failed(self, batch: RecipientBatch, error: Exception) -> bool:
        """The connection failed with one of `CONNECTION_ERRORS`; returns as refused()."""
        step = Step.RCPT if batch.transaction else Step.MAIL
        gave_way = isinstance(error, Rerouted)
        cause = REROUTED if gave_way else cause_of(error, step)
        if batch.refusal is not None:
            cause = batch.refusal.cause
        self._tenure.fail()
        if not batch.transaction:
            self.drop_replies(batch)
        self._limits.count_unproven(batch.replies.unprocessed, self._conversation.received_at)
        self._distrust_pairing(batch, cause, error)
        if gave_way:  # give up the late reply: queue its probe again, behind all others
            self._tenure.leave()
            self._emit(GaveWay())
            requeue_rerouted(self._emit, batch.pop_unanswered(), batch.elsewhere)
        elif isinstance(error, Overdue) and batch.refusal is None:
            self.expire(batch)
        else:
            return self.refused(batch, cause)
        return False

    def drop_replies(self, batch: RecipientBatch) -> None:
        """Replies that follow a refused MAIL mean nothing for their recipients."""
        replies = [turn.reply for turn in batch.replies.pop_all()]
        self._limits.count_dropped(replies, self._conversation.received_at)

    def _distrust_pairing(self, batch: RecipientBatch, cause: Cause, error: Exception) -> None:
        """Requeue what was answered and is not proven, once; after that it is unknown.

        If only a late reply was given up, nothing shows that the host is out of step. That
        does not use up the one retry. If a reply named another recipient, its own is in doubt as
        well, and those behind it have no share in it.
        """
        self._proof.distrust()
        doubted: list[PendingProbe] = [
            probe for probe, _, _ in self._proof.release(is_proven=False)
        ]
        doubted += [batch.unanswered.pop(0) for _ in batch.replies.pop_all()]
        if isinstance(error, NamesAnother) and batch.transaction:
            doubted.append(batch.unanswered.pop(0))
            behind = batch.pop_unanswered()
            requeue_doubted(self._emit, behind, batch.elsewhere, cause, gave_way=True)
        if doubted and isinstance(error, RemoteProtocolError):
            self._emit(Distrusted(isinstance(error, NamesAnother) and error.same_local))
        requeue_doubted(
            self._emit, doubted, batch.elsewhere, cause, gave_way=isinstance(error, Rerouted)
        )

    def refused(self, batch: RecipientBatch, cause: Cause) -> bool:
        """The batch is refused as a whole: requeue each recipient for which other terms are left.

        True if that is every recipient: then no recipient was served by it.
        """
        objection = None if batch.refusal is None else batch.refusal.objection
        if objection is not None:
            refused = batch.pop_unanswered()
            for asked in refused:
                if self._answers.objects_to_terms(asked, objection, to_all=True):
                    self._unsent.send_again(asked)
                else:
                    batch.unanswered.append(asked)
            if refused and not batch.unanswered:
                return True
        limited = self._limits.ended_by_limit(cause, batch, self._conversation.now)
        self.fail(batch, cause, limited=limited)
        return False

    def fail(
        self,
        batch: RecipientBatch,
        cause: Cause,
        *,
        failure: bool = True,
        limited: bool = False,
    ) -> None:
        """Retry, fail over or settle each unanswered probe of the batch.

        See `fail_unanswered`. `failure`: the host failed, and not only one domain there;
        `limited`: this may be a limit of the connection, and no failure.
        """
        self._tenure.leave()
        emit, reused = self._emit, batch.reused
        early = failure and not (reused or batch.transaction or self._transaction.smtputf8)
        is_closing = batch.is_closing
        hung_up = is_closing or (batch.transaction and cause.hung_up)
        emit(SessionFailed(cause, early, self._late.is_late, at_recipient=is_closing or limited))
        silent_or_garbled = batch.transaction and cause.rule in (REROUTED.rule, GARBLED_RULE)
        fruitful = self._answers.fruitful or limited
        if (hung_up or silent_or_garbled) and batch.unanswered and not fruitful:
            emit(Barren(cause, domain_here(batch.unanswered[0])))
        if reused and not batch.served:
            emit(IdledTooLong())
        fail_unanswered(emit, batch.pop_unanswered(), batch, cause, limited=limited)

    def expire(self, batch: RecipientBatch) -> None:
        """The deadlines of the whole batch have passed."""
        self._tenure.leave()
        expire_unanswered(self._emit, batch.pop_unanswered())
