"""Measures how fast a mail host replies, and decides when a reply is late and how long to wait.

A tarpit delays the replies to some recipients only. The share of late replies and their
duration decide how large a batch may be and when a recipient gives up its connection to
others.
"""

from dataclasses import dataclass

from mailprobe.engine.smtp.pairing import EARLY
from mailprobe.engine.smtp.session.recipient_limits import REFUSALS_MAX
from mailprobe.engine.smtp.throttle import NEVER
from mailprobe.engine.smtp.wire import Conversation

FAR_S = 0.075  # a host that takes this long to reply is far away
EWMA = 0.3  # weight of the newest measurement
LATE_SHARE_GUESS = 0.2  # of the recipients at a host that has had one late reply
LATE_SHARE_EWMA = 0.15  # weight of the newest recipient in that share
LATE_A_ROUND = 0.8  # late replies expected in one batch, at most
LATE_S = 0.15  # a reply is late after this time and
LATE_REPLIES = 5  # this many times the usual time, at most LATE_S after the usual time
TARPIT_LATE_S = 0.1  # after a first late reply more follow: late after this time,
TARPIT_REPLIES = 1.2  # this many times the usual time, and
JITTERS = 4  # this many times the jitter (as in TCP, RFC 6298)
TARPIT_OVER = 1.25  # times the latest late reply; then this one takes longer
TARPIT_DEPTH_S = 0.05  # of round trip to a host that pipelines, for each recipient of a batch
PROMPT_BATCHES = 16  # prompt batches before a batch may have one more recipient
QUICK_REPLY_S = LATE_S / LATE_REPLIES


@dataclass(slots=True)
class ReplyPace:
    """How fast the host answers, in seconds; moving averages."""

    batch_s: float | None = None  # from a batch's write to its last reply
    gap_s: float = 0.0  # between two replies of one batch
    reply_s: float = 0.0  # from a batch's write to its first reply
    jitter_s: float = 0.0  # mean deviation of reply_s
    batches: int = 0  # answered so far

    def begin(self, turnaround_s: float) -> None:
        """The host was greeted in that time: a guess, until a recipient is answered."""
        if self.batch_s is None:
            self.batch_s = self.gap_s = self.reply_s = turnaround_s

    def measured(self, round_s: float, gap_s: float, reply_s: float) -> None:
        """A batch is answered, the first recipient within `reply_s`."""
        self.batches += 1
        before = self.batch_s if self.batch_s is not None else round_s
        self.batch_s = before + EWMA * (round_s - before)
        if gap_s >= 0:
            self.gap_s += EWMA * (gap_s - self.gap_s)
        if reply_s >= EARLY * self.reply_s:  # otherwise it is counted once it is proven
            self.replied(reply_s)

    def replied(self, reply_s: float) -> float:
        """Return the new usual time. A late reply predicts little: it counts as twice the usual."""
        usual_s = self.reply_s
        if usual_s:
            if reply_s > 2 * usual_s:
                reply_s = 2 * usual_s
            differ_s = reply_s - usual_s if reply_s > usual_s else usual_s - reply_s
            self.jitter_s += EWMA * (differ_s - self.jitter_s)
        self.reply_s = usual_s = usual_s + EWMA * (reply_s - usual_s)
        return usual_s


class Lateness:
    """The late sessions and the late replies of one host. Times are seconds of trio's clock."""

    __slots__ = (
        "_accepted_late",
        "_accepting_s",
        "accepted",
        "late_reply_s",
        "rerouted_at",
        "sessions",
        "share",
        "sleeps_on",
    )

    def __init__(self) -> None:
        self.sessions: dict[Conversation, float] = {}  # late now, and since when
        self.rerouted_at = NEVER  # when a session last gave up a late reply
        self.late_reply_s: float | None = None  # how long a late reply takes here, at the least
        self.accepted = 0  # recipients,
        self._accepted_late = 0  # those of them with a late reply,
        self._accepting_s = 0.0  # and the longest of these replies
        # The host did not notice that we left a connection: leaving another frees no place there.
        self.sleeps_on = False
        self.share = LATE_SHARE_GUESS  # of the recipients: a guess, then a moving average

    def session_late(self, conversation: Conversation, since: float, accepted: int) -> None:
        """`accepted` recipients before the late one were answered in time."""
        self.accepted += accepted
        self.share *= (1 - LATE_SHARE_EWMA) ** accepted
        self.sessions[conversation] = since
        self.share += LATE_SHARE_EWMA * (1 - self.share)

    def accepted_late(self, reply_s: float) -> None:
        self._accepted_late += 1
        self._accepting_s = max(self._accepting_s, reply_s)

    def late_after_s(self, pace: ReplyPace) -> float:
        """How long a reply may take before it is late."""
        usual_s = pace.reply_s
        if self.late_reply_s is None or self.slow_for_all:
            return max(LATE_S, min(LATE_REPLIES * usual_s, usual_s + LATE_S))
        return max(TARPIT_LATE_S, TARPIT_REPLIES * usual_s, usual_s + JITTERS * pace.jitter_s)

    @property
    def slow_for_all(self) -> bool:
        """No recipient was accepted in time: the host may be slow rather than a tarpit."""
        return self.accepted <= self._accepted_late

    def reroute_s(self, late_s: float, opening_s: float) -> float:
        """How long to wait for a late reply while other probes need its connection.

        Waiting a little longer costs less than a new connection.
        """
        late_reply_s = self.late_reply_s or 0.0
        give_way_s = max(late_s, TARPIT_OVER * self._accepting_s)
        if self.slow_for_all or self.late_reply_s is None:
            return max(give_way_s, TARPIT_OVER * late_s)
        soon = late_reply_s - late_s <= opening_s
        return max(give_way_s, TARPIT_OVER * late_reply_s) if soon else give_way_s

    def tarpit_depth(self, pace: ReplyPace, gap_s: float) -> int:
        """How many recipients one batch may have when any of them may be answered late.

        A late reply delays its whole batch. If few are late and the host is far away, that
        costs less than a round trip for each recipient.
        """
        far = int((pace.reply_s - gap_s) / TARPIT_DEPTH_S)
        few = int(LATE_A_ROUND / self.share)
        return max(1, min(far, few, REFUSALS_MAX // 2))
