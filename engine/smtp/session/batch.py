"""One pipeline batch: the recipients that were sent together, and the replies so far."""

import msgspec

from ...verdict import Outcome
from ..catchall import DomainAcceptance
from ..leases.name_claims import CLAIM_S
from ..probe import Cause, Objections, Probe
from ..replies.rules import ReplyMeaning
from ..tolerance.limits import Kind
from ..wire import Command, CommandReply


class CatchAllTest(msgspec.Struct, eq=False):
    """A random address, sent with the recipients to test whether a domain accepts all."""

    domain: DomainAcceptance
    mailbox: str
    asker: str = ""  # the account for which it is sent
    model: str = ""  # the local part whose shape it has
    variant: int = 0  # the first or the second: see DomainAcceptance.random_mailbox()
    deferred_start: bool = False  # a list waits for it: see probe.Probe
    objections: Objections = msgspec.field(default_factory=Objections)
    smtputf8: bool = False
    abandoned: bool = False  # its domain is tested elsewhere
    settled: bool = False  # never: its domain waits for it

    @property
    def kind(self) -> Kind:
        several = self.deferred_start or len(self.domain.awaiting) > 1
        return Kind.NAME if several else Kind.LONE_NAME

    @property
    def may_wait(self) -> bool:
        """Is it only for lists, which may ask again once another process has the answer?"""
        return self.deferred_start and all(
            probe.deferred_start and probe.patience_s >= CLAIM_S for probe in self.domain.awaiting
        )

    @property
    def patience_s(self) -> float:
        """What is left of the patience of the lists that wait for this test."""
        return max((probe.patience_s for probe in self.domain.awaiting), default=0.0)

    def abandon(self) -> bool:
        """Do not send it any more. False if it was abandoned before."""
        before, self.abandoned = self.abandoned, True
        return not before


PendingProbe = Probe | CatchAllTest
ProbeVerdict = tuple[Probe, Outcome, str]  # with the rule that decides it


def domain_here(asked: PendingProbe) -> DomainAcceptance:
    """The state of the recipient's domain at this host."""
    return asked.target.domain if isinstance(asked, Probe) else asked.domain


class BatchRefusal(msgspec.Struct, frozen=True):
    """Why the server refuses a batch as a whole."""

    cause: Cause
    objection: ReplyMeaning | None = None  # what it says of RSET or MAIL
    is_closing: bool = False  # 421 in answer to a recipient


class BatchReplies(msgspec.Struct, eq=False):
    """The replies to the recipients of a batch so far. Times are seconds of trio's clock."""

    count: int = 0
    unprocessed: list[CommandReply] = []  # the latest of them
    proven: int = 0  # so many of these are proven to be their recipients'
    first_at: float = 0.0
    last_at: float = 0.0
    gap_s_max: float = 0.0  # between two of them

    def add(self, turn: CommandReply, received_at: float, *, proves: bool) -> None:
        """The reply to the next recipient has come; `proves`: it names its recipient."""
        self.unprocessed.append(turn)
        self.count += 1
        if received_at != self.last_at:  # replies that come together have one time
            if not self.last_at:
                self.first_at = received_at
            elif received_at - self.last_at > self.gap_s_max:
                self.gap_s_max = received_at - self.last_at
            self.last_at = received_at
        if proves:
            self.proven = len(self.unprocessed)

    def pop(self, count: int) -> list[CommandReply]:
        """The oldest unprocessed ones, which are processed now."""
        taken, self.unprocessed = self.unprocessed[:count], self.unprocessed[count:]
        self.proven = max(0, self.proven - count)
        return taken

    def pop_all(self) -> list[CommandReply]:
        return self.pop(len(self.unprocessed))


class RecipientBatch(msgspec.Struct, eq=False):
    """A batch, and what has become of it so far. Times are seconds of trio's clock."""

    sent: list[PendingProbe]
    reused: bool  # the connection has served a batch before
    unanswered: list[PendingProbe]
    replies: BatchReplies
    commands: list[Command] = []
    checked: bool = False  # NOOP follows them in the same write: see Proof.begin_check()
    until: float = float("inf")  # the latest deadline of its probes: the wait for replies ends then
    began: float = 0.0
    idle_s: float = 0.0  # since the reply before the batch
    served: bool = False  # a reply to it shows that the server serves us
    transaction: bool = False  # MAIL was accepted, so replies are about recipients
    late: bool = False  # one of the replies was late
    elsewhere: frozenset[Probe] = frozenset()  # of the unanswered: sent on other connections, too
    refusal: BatchRefusal | None = None

    @property
    def is_closing(self) -> bool:
        """Did the server answer a recipient with 421?"""
        return self.refusal is not None and self.refusal.is_closing

    def written(self, at: float) -> None:
        """The recipients are written only now: the replies to RSET and MAIL came before."""
        self.began = at

    def opened(self) -> None:
        """The transaction is open: replies are about recipients."""
        self.transaction = True

    def opening_replied(self, *, serves: bool) -> None:
        """A reply to RSET or MAIL has come. `serves`: it shows that the server serves us."""
        self.served = self.served or serves

    def refuse(self, refusal: BatchRefusal) -> None:
        """The server refuses the batch as a whole."""
        self.refusal = refusal

    def become_late(self) -> None:
        self.late = True

    def send_elsewhere(self, probe: Probe) -> None:
        """Its unanswered recipients are sent on another connection, too."""
        self.elsewhere |= {probe}

    def began_anew(self) -> None:
        """Count it as a batch on a reused connection without a reply."""
        self.reused, self.served = True, False

    def answer(self, count: int) -> None:
        """The oldest recipients are answered by the oldest unprocessed replies."""
        self.served = True
        del self.replies.unprocessed[:count]
        del self.unanswered[:count]

    def answer_oldest(self) -> None:
        """The oldest recipient is answered."""
        self.served = True
        del self.unanswered[0]

    def pop_unanswered(self) -> list[PendingProbe]:
        unanswered, self.unanswered = self.unanswered, []
        return unanswered
