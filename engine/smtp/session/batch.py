"""One pipeline batch: the recipients that were sent together, and the replies so far."""

from dataclasses import dataclass

import msgspec

from mailprobe.engine.smtp.catchall import DomainAcceptance
from mailprobe.engine.smtp.probe import Cause, Probe
from mailprobe.engine.smtp.replies.rules import ReplyMeaning
from mailprobe.engine.smtp.wire import Command, CommandReply


@dataclass(slots=True, eq=False)
class CatchAllTest:
    """The random address that goes along to tell whether a domain accepts all."""

    domain: DomainAcceptance
    mailbox: str
    objections: int = 0
    smtputf8: bool = False
    abandoned: bool = False  # its domain is tested elsewhere
    sender_refused_by: object = None  # see question.Question


PendingProbe = Probe | CatchAllTest


class BatchReplies(msgspec.Struct, eq=False):
    """A round, and what has been heard of it so far."""

    sent: list[PendingProbe]
    pipelined: bool
    reused: bool  # the connection has served a round before
    recipients: list[Command] = []
    alone: bool = False  # one recipient in step, and nobody wants to know the words
    noted: bool = False  # somebody does
    tests: bool = False  # a catch-all test is among them
    place: int = 0  # the recipient whose reply comes next
    proven: int = 0  # so many of the replies are surely their recipients'
    first: bool = False  # any reply at all
    transaction: bool = False  # MAIL was accepted: replies speak of recipients
    late: bool = False  # one of them was late
    goodbye: bool = False  # 421 in answer to a recipient
    refusal: Cause | None = None
    objection: ReplyMeaning | None = None  # how the refusal of RSET or MAIL was read
    exchanges: list[CommandReply] = []  # replies to recipients, not yet given out
    until: float = 0.0  # the latest of their questions' deadlines: no need to listen longer
    began: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    gap_s_max: float = 0.0  # between two of its replies

    @property
    def batch_s(self) -> float:
        return self.last_at - self.began

    @property
    def gap_s(self) -> float:
        """Between two replies of the round; a round of one says nothing and gives -1."""
        return (self.last_at - self.first_at) / (self.place - 1) if self.place > 1 else -1.0


def domain_of(asked: PendingProbe) -> str:
    return asked.domain if isinstance(asked, Probe) else asked.domain.name
