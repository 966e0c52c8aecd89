"""One pipeline batch: the recipients that were sent together, and the replies so far."""

from dataclasses import dataclass, field

import msgspec

from mailprobe.engine.smtp.catchall import DomainAcceptance
from mailprobe.engine.smtp.controls import Known, Treatment
from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.replies.rules import ReplyMeaning
from mailprobe.engine.smtp.wire import Command, CommandReply


@dataclass(slots=True, eq=False)
class CatchAllTest:
    """A random address, sent with the recipients to test whether a domain accepts all."""

    domain: DomainAcceptance
    mailbox: str
    shape: int = 0  # of the random address: see catchall.Domains.random_mailbox()
    deferred_start: bool = False  # a list waits for it: see probe.Probe
    objections: int = 0
    smtputf8: bool = False
    abandoned: bool = False  # its domain is tested elsewhere
    sender_refused_by: object = None  # see probe.Probe
    settled: bool = False  # never: its domain waits for it


@dataclass(slots=True, eq=False)
class Control(CatchAllTest):
    """An address that the host treated in one way before, sent again: see `controls`.

    Where it is not answered nothing follows: it counts as abandoned from the start.
    """

    known: Known = field(kw_only=True)
    expected: Treatment = field(kw_only=True)

    def __post_init__(self) -> None:
        self.abandoned = True


PendingProbe = Probe | CatchAllTest


class BatchReplies(msgspec.Struct, eq=False):
    """A batch and the replies to it so far. Times are seconds of trio's clock."""

    sent: list[PendingProbe]
    pipelined: bool
    reused: bool  # the connection has served a batch before
    recipients: list[Command] = []
    alone: bool = False  # one recipient in lock-step, and no probe has notes
    noted: bool = False  # a probe has notes
    tests: bool = False  # a catch-all test is among them
    checked: bool = False  # NOOP follows them in the same write: see proof.needs_check()
    check_due: bool = False  # and its reply has not come yet
    place: int = 0  # the recipient whose reply comes next
    proven: int = 0  # so many replies are proven to be their recipients'
    first: bool = False  # any reply at all
    transaction: bool = False  # MAIL was accepted, so replies are about recipients
    late: bool = False  # one of them was late
    goodbye: bool = False  # 421 in answer to a recipient
    refusal: Cause | None = None
    objection: ReplyMeaning | None = None  # the meaning of the refusal of RSET or MAIL
    exchanges: list[CommandReply] = []  # replies to recipients, not yet processed
    accepted_unproven: int = 0  # when the connection failed: accepted, and not proven
    judged_unproven: int = 0  # these, and those refused as no mailbox
    until: float = 0.0  # the latest deadline of its probes: the wait for replies ends then
    began: float = 0.0
    idle_s: float = 0.0  # since the reply before the batch
    first_at: float = 0.0
    last_at: float = 0.0
    gap_s_max: float = 0.0  # between two replies

    @property
    def batch_s(self) -> float:
        return self.last_at - self.began

    @property
    def gap_s(self) -> float:
        """The mean time between two replies, or -1 with fewer than two replies."""
        return (self.last_at - self.first_at) / (self.place - 1) if self.place > 1 else -1.0


def domain_of(asked: PendingProbe) -> str:
    return asked.domain if isinstance(asked, Probe) else asked.domain.name
