"""Changes that a step of a session causes outside it, as frozen values, in the order of events.

A session calls nothing: it appends these to a list. After the step its host applies them (see
`mailprobe.engine.smtp.host.serving`), so nothing outside changes during a step.
"""

from collections.abc import Callable

import msgspec

from ...verdict import Outcome
from ..catchall import Acceptance, DomainAcceptance
from ..probe import Cause, Probe
from ..replies.rules import ReplyMeaning
from ..wire import Conversation, SmtpReply


class Effect(msgspec.Struct, frozen=True, eq=False):
    """One change. A probe that is settled meanwhile stays as it is."""


Emit = Callable[[Effect], None]  # appends one to the session's list

# -- of one probe ------------------------------------------------------------------------------


class Settled(Effect, frozen=True):
    """The probe has its outcome."""

    probe: Probe
    outcome: Outcome
    rule: str


class FailedOver(Effect, frozen=True):
    """This exchange does not answer the probe: the next one may."""

    probe: Probe
    cause: Cause


class Requeued(Effect, frozen=True):
    """The probe waits for a connection of this host again: first of its account, or last."""

    probe: Probe
    last: bool = False


class ClockSuspended(Effect, frozen=True):
    """A list's probe is answered, and waits for what confirms the answer."""

    probe: Probe


class ClockRestarted(Effect, frozen=True):
    """It is sent again, only for what confirms its answer: its clock begins anew."""

    probe: Probe


# -- of replies to recipients ------------------------------------------------------------------


class RecipientRead(Effect, frozen=True):
    """A reply that speaks of its recipient."""

    domain: DomainAcceptance
    reply: SmtpReply
    reading: ReplyMeaning


class RecipientRefused(Effect, frozen=True):
    """A recipient was refused, whatever the reply speaks of."""

    at: float
    prompt: bool  # it was not late
    for_good: bool  # 5yz


class HeldBack(Effect, frozen=True):
    """`count` more verdicts wait for their proof; fewer if it is negative."""

    count: int


class BatchDone(Effect, frozen=True):
    """All replies of a batch are there; their verdicts are settled or still to be proven."""

    round_s: float  # from its write to the last reply
    gap_s: float  # between two replies; -1 with fewer
    first_s: float  # from its write to the first reply


class Proven(Effect, frozen=True):
    """The replies are proven to be their recipients'."""

    fast_reply_s: float  # of one that came sooner than usual; 0 if none did
    renamed: set[tuple[str, str]]  # pairs of domains, as sent and as the host names them


class TestEnded(Effect, frozen=True):
    """The result of a domain's random address; None if it was not sent, or is not proven."""

    domain: DomainAcceptance
    acceptance: Acceptance | None
    in_time: bool = True  # or else it got no reply in time


# -- of the session and its host ---------------------------------------------------------------


class Idle(Effect, frozen=True):
    """Nothing is to be sent; with `tests`, it waits until the addresses of their domains are answered."""

    tests: bool


class Busy(Effect, frozen=True):
    """It does not idle any more; `reused`: it was woken for a probe, which it may send."""

    reused: bool


class BecameLate(Effect, frozen=True):
    """The reply to the session's oldest recipient is late."""

    conversation: Conversation
    accepted: int  # recipients before it, in time


class CaughtUp(Effect, frozen=True):
    """The late reply has come; `accepted` if it was positive."""

    conversation: Conversation
    accepted: bool


class GaveWay(Effect, frozen=True):
    """The late reply was given up, because others need the session's place."""


class SessionFailed(Effect, frozen=True):
    """The session ended with this cause."""

    cause: Cause
    before_recipients: bool
    late: bool  # others were answered in time, so fewer connections would not help
    at_recipient: bool  # then it counts for the recipient's domain: see Barren


class Barren(Effect, frozen=True):
    """It ended at a recipient of this domain without an answer to any recipient."""

    cause: Cause
    domain: DomainAcceptance


class IdledTooLong(Effect, frozen=True):
    """It was closed while idle: others that are kept for as long are hardly any better."""


class Distrusted(Effect, frozen=True):
    """A reply too many, or one too few; or else the host renamed a recipient."""

    renamed: bool


class HostChanged(Effect, frozen=True):
    """The host contradicted its own earlier answer, after so many refusals in an hour.

    `hour`: None where it goes on as it did at the contradiction before.
    """

    cause: Cause
    hour: int | None


class TurnedAway(Effect, frozen=True):
    """The probe is not sent: the host tolerates no more refusals for it at the moment."""

    probe: Probe


class HostBlocked(Effect, frozen=True):
    """The host said that it has refused us too often, or it no longer lets us in."""

    words: str
