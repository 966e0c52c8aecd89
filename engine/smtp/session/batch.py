"""One pipeline batch: the recipients that were sent together, and the replies so far."""

from dataclasses import dataclass, field

import msgspec

from ..catchall import DomainAcceptance
from ..controls import Known, Treatment
from ..leases.name_claims import CLAIM_S
from ..probe import Cause, Objections, Probe
from ..replies.rules import ReplyMeaning
from ..tolerance.limits import Kind
from ..wire import NOOP, Command, CommandReply


@dataclass(slots=True, eq=False)
class CatchAllTest:
    """A random address, sent with the recipients to test whether a domain accepts all."""

    domain: DomainAcceptance
    mailbox: str
    asker: str = ""  # the account for which it is sent
    model: str = ""  # the local part whose shape it has
    variant: int = 0  # the first or the second: see DomainAcceptance.random_mailbox()
    deferred_start: bool = False  # a list waits for it: see probe.Probe
    objections: Objections = field(default_factory=Objections)
    smtputf8: bool = False
    abandoned: bool = False  # its domain is tested elsewhere
    settled: bool = False  # never: its domain waits for it

    @property
    def kind(self) -> Kind:
        several = self.deferred_start or len(self.domain.awaiting) > 1
        return Kind.NAME if several else Kind.LONE_NAME

    @property
    def may_wait(self) -> bool:
        """Do only lists wait for it that may come back when another process has the answer?"""
        return self.deferred_start and all(
            probe.deferred_start and probe.patience_s >= CLAIM_S for probe in self.domain.awaiting
        )

    @property
    def patience_s(self) -> float:
        """What is left of the patience of the lists that wait for this test."""
        return max((probe.patience_s for probe in self.domain.awaiting), default=0.0)

    def abandon(self) -> bool:
        """It is not sent any more. False if that is known already."""
        before, self.abandoned = self.abandoned, True
        return not before


@dataclass(slots=True, eq=False)
class Control(CatchAllTest):
    """An address that the host treated in one way before, sent again: see `controls`.

    Where it is not answered nothing follows: it counts as abandoned from the start.
    """

    known: Known = field(kw_only=True)
    expected: Treatment = field(kw_only=True)
    is_postmaster: bool = False  # its acceptance is expected by RFC 5321 4.5.1 alone

    def __post_init__(self) -> None:
        self.abandoned = True

    @property
    def kind(self) -> Kind:
        return Kind.CONTROL if self.expected is Treatment.ACCEPTED else Kind.LONE_NAME


PendingProbe = Probe | CatchAllTest


class RecipientBatch(msgspec.Struct, eq=False):
    """A batch and the replies to it so far. Times are seconds of trio's clock."""

    sent: list[PendingProbe]
    pipelined: bool
    reused: bool  # the connection has served a batch before
    unanswered: list[PendingProbe]
    recipients: list[Command] = []
    elsewhere: frozenset[Probe] = frozenset()  # of the unanswered: sent on other connections, too
    checked: bool = False  # NOOP follows them in the same write: see Proof.begin_check()
    check_due: bool = False  # and its reply has not come yet
    place: int = 0  # the recipient whose reply comes next
    proven: int = 0  # so many replies are proven to be their recipients'
    processed: int = 0  # so many replies were taken to be processed
    first: bool = False  # any reply at all
    transaction: bool = False  # MAIL was accepted, so replies are about recipients
    late: bool = False  # one of them was late
    goodbye: bool = False  # 421 in answer to a recipient
    refusal: Cause | None = None
    objection: ReplyMeaning | None = None  # the meaning of the refusal of RSET or MAIL
    exchanges: list[CommandReply] = []  # replies to recipients, not yet processed
    accepted_unproven: int = 0  # when the connection failed: accepted, and not proven
    judged_unproven: int = 0  # these, and those refused as no mailbox
    until: float = float("inf")  # the latest deadline of its probes: the wait for replies ends then
    began: float = 0.0
    idle_s: float = 0.0  # since the reply before the batch
    first_at: float = 0.0
    last_at: float = 0.0
    gap_s_max: float = 0.0  # between two replies

    def written(self, at: float) -> None:
        """The recipients are written only now: the replies to RSET and MAIL came before."""
        self.began = at

    def check(self) -> None:
        """NOOP follows the recipients in the same write."""
        self.checked = self.check_due = True
        self.recipients.append(NOOP)

    def opened(self) -> None:
        """The transaction is open: replies are about recipients."""
        self.transaction = True

    def opening_replied(self, *, serves: bool) -> None:
        """A reply to RSET or MAIL has come. `serves`: it shows that the server serves us."""
        self.first = self.first or serves

    def refuse(self, cause: Cause, objection: ReplyMeaning | None = None) -> None:
        """The server refuses the batch as a whole; `objection` is what it says of RSET or MAIL."""
        self.refusal, self.objection = cause, objection

    def close(self, cause: Cause) -> None:
        """421 in answer to a recipient."""
        self.refusal, self.goodbye = cause, True

    def become_late(self) -> None:
        self.late = True

    def send_elsewhere(self, probe: Probe) -> None:
        """It is sent on another connection, too."""
        self.elsewhere |= {probe}

    def began_anew(self) -> None:
        """Count it as a batch on a reused connection without a reply."""
        self.reused, self.first = True, False

    def add_reply(self, turn: CommandReply, received_at: float, *, named: bool) -> None:
        """The reply to the next recipient has come; `named`: it names its recipient."""
        self.exchanges.append(turn)
        self.place += 1
        if received_at != self.last_at:  # replies that come together have one time
            if not self.last_at:
                self.first_at = received_at
            elif received_at - self.last_at > self.gap_s_max:
                self.gap_s_max = received_at - self.last_at
            self.last_at = received_at
        if named and self.transaction:
            self.proven = self.place

    def check_answered(self) -> None:
        self.check_due = False

    def pop(self, count: int) -> list[CommandReply]:
        """The oldest unprocessed replies, which are processed now."""
        taken, self.exchanges = self.exchanges[:count], self.exchanges[count:]
        self.processed += len(taken)
        return taken

    def pop_all(self) -> list[CommandReply]:
        taken, self.exchanges = self.exchanges, []
        self.processed += len(taken)
        return taken

    def answer(self, count: int) -> None:
        """The oldest recipients are answered by the oldest unprocessed replies."""
        self.first, self.processed = True, self.processed + count
        del self.exchanges[:count]
        del self.unanswered[:count]

    def answer_oldest(self) -> PendingProbe:
        """The oldest recipient is answered."""
        self.first = True
        return self.unanswered.pop(0)

    def pop_unanswered(self) -> list[PendingProbe]:
        unanswered, self.unanswered = self.unanswered, []
        return unanswered

    def count_unproven(self, accepted: int, condemned: int) -> None:
        self.accepted_unproven, self.judged_unproven = accepted, accepted + condemned


def domain_here(asked: PendingProbe) -> DomainAcceptance:
    """What is known of its domain at this host."""
    return asked.target.domain if isinstance(asked, Probe) else asked.domain
