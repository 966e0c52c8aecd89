"""When a mail host replies, and what follows from it for its batches. Time is an argument.

A tarpit delays the replies to some recipients only. The share of late replies and their duration
decide how large a batch may be, and when a recipient gives up its connection to others: a late
reply delays its whole batch. Where replies did not match their commands, each verdict is proven
by itself.
"""

from msgspec import Struct, field

from ..backoff import NEVER
from ..pairing import EARLY
from ..session.recipient_limits import REFUSALS_MAX
from ..wire import Conversation

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
BATCH_S = 0.8  # the replies of one batch should not take longer
UNANSWERED_TEST_S = 60.0  # after a random address got no reply in time no other is sent
VENTURED = 4  # first batch of a host with PIPELINING: it may want one each


class ReplyPace(Struct):
    """How fast the host answers, in seconds; moving averages."""

    batch_s: float | None = None  # from a batch's write to its last reply
    gap_s: float = 0.0  # between two replies of one batch
    reply_s: float = 0.0  # from a batch's write to its first reply
    jitter_s: float = 0.0  # mean deviation of reply_s
    batches: int = 0  # answered so far

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


class Lateness(Struct, eq=False):
    """The late sessions and the late replies of one host. Times are seconds of trio's clock."""

    sessions: dict[Conversation, float] = field(default_factory=dict)  # late now, and since when
    rerouted_at: float = NEVER  # when a session last gave up a late reply
    late_reply_s: float | None = None  # how long a late reply takes here, at the least
    accepted: int = 0  # recipients,
    _accepted_late: int = 0  # those of them with a late reply,
    _accepting_s: float = 0.0  # and the longest of these replies
    # The host did not notice that we left a connection: leaving another frees no place there.
    sleeps_on: bool = False
    share: float = LATE_SHARE_GUESS  # of the recipients: a guess, then a moving average

    def session_late(self, conversation: Conversation, since: float, accepted: int) -> None:
        """`accepted` recipients before the late one were answered in time."""
        self.accepted += accepted
        self.share *= (1 - LATE_SHARE_EWMA) ** accepted
        self.sessions[conversation] = since
        self.share += LATE_SHARE_EWMA * (1 - self.share)

    def caught_up(self, conversation: Conversation, now: float, *, accepted: bool) -> float | None:
        """The late reply of this session has come. Returns how long it took; None if it was not late."""
        since = self.sessions.pop(conversation, None)
        if since is None:
            return None
        if accepted:
            self._accepted_late += 1
            self._accepting_s = max(self._accepting_s, now - since)
        return now - since

    def session_over(self, conversation: Conversation) -> bool:
        """Returns whether the session was late."""
        return self.sessions.pop(conversation, None) is not None

    def recipient_read(self, *, accepted: bool) -> None:
        """A recipient is answered."""
        self.accepted += accepted
        self.share -= LATE_SHARE_EWMA * self.share

    def left(self, *, noticed: bool) -> None:
        """We left a connection while a reply was owed: did the host close it at once?"""
        self.sleeps_on = not noticed

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
        return max(1, min(far, int(LATE_A_ROUND / self.share), REFUSALS_MAX // 2))


class ReplyTimes(Struct, eq=False):
    """The usual time to reply of one host, its late replies, and the size of its batches."""

    # Recipients in one batch, fewer after a late reply. Where most are late, a surplus reply
    # can only be told from an owed one if nothing else is unanswered.
    depth: int
    distrusted: bool  # its replies did not match commands: prove each by itself
    pipelines: bool | None = None  # None: it has not greeted us yet
    pace: ReplyPace = field(default_factory=ReplyPace)
    late: Lateness = field(default_factory=Lateness)
    usual_s: float = 0.0  # from a recipient's write to its reply
    gap_s: float = 0.0  # between the replies to two recipients of one write; 0: not known yet
    late_s: float = LATE_S  # a reply that takes longer is late
    _prompt: int = 0  # batches without a late reply since then
    _depth_trusted: int = 0  # before that, if only because of a renamed recipient
    slow_to_answer: bool = False  # a reply was late not long ago
    slow: bool = False  # a reply was ever late, or did not come in time
    accepted_several: bool = False  # a whole batch of recipients
    refused_promptly_at: float = NEVER  # its latest refusal that was not late
    unanswered_at: float = NEVER  # when a random address last got no reply in time

    # -- what was seen -------------------------------------------------------------------------

    def greeted(self, turnaround_s: float, *, pipelines: bool) -> None:
        """The reply to EHLO took so long, and offers PIPELINING or not."""
        pace, self.pipelines = self.pace, pipelines
        if pace.batch_s is None:  # else more is known: this is a guess
            pace.batch_s = pace.gap_s = pace.reply_s = self.usual_s = turnaround_s
            self.late_s = self.late.late_after_s(pace)

    def batch_done(self, round_s: float, gap_s: float, first_s: float) -> bool:
        """All replies of a batch are there. Returns whether it is the first one of several."""
        pace, late = self.pace, self.late
        is_first = gap_s >= 0 and not self.accepted_several
        if is_first:
            pace.gap_s = gap_s  # until now it was a guess
            self.accepted_several = True
        pace.batches += 1
        before_s = round_s if pace.batch_s is None else pace.batch_s
        pace.batch_s = before_s + EWMA * (round_s - before_s)
        if gap_s >= 0:
            self.gap_s = pace.gap_s = pace.gap_s + EWMA * (gap_s - pace.gap_s)
        if first_s >= EARLY * pace.reply_s:  # otherwise it is counted once it is proven
            pace.replied(first_s)
        self.usual_s = usual_s = pace.reply_s
        is_usual = usual_s < QUICK_REPLY_S and late.late_reply_s is None
        self.late_s = LATE_S if is_usual else late.late_after_s(pace)
        if self.depth < REFUSALS_MAX and not self.distrusted:
            self._prompt += 1
            if self._prompt >= PROMPT_BATCHES:
                self.depth, self._prompt = self.depth + 1, 0
                self.slow_to_answer = self.depth < REFUSALS_MAX
        return is_first

    def replied_early(self, reply_s: float) -> None:
        """A reply that came sooner than usual was the right one."""
        self.usual_s = self.pace.replied(reply_s)

    def became_late(self, conversation: Conversation, now: float, accepted: int) -> None:
        """The oldest recipient of a session is late; `accepted` before it were accepted in time."""
        late = self.late
        late.session_late(conversation, now - self.late_s, accepted)
        self.depth, self._prompt = late.tarpit_depth(self.pace, self.gap_s), 0
        self.slow_to_answer = self.slow = True
        if late.late_reply_s is None:
            self._learn_late(self.late_s)

    def caught_up(self, conversation: Conversation, now: float, *, accepted: bool) -> None:
        """The late reply has come; `accepted` if it was positive."""
        late_reply_s = self.late.caught_up(conversation, now, accepted=accepted)
        if late_reply_s is not None:
            self._learn_late(late_reply_s)

    def gave_way(self, now: float, opening_s: float) -> None:
        """A late reply was given up: it takes longer than that."""
        at_least_s = self.reroute_s(opening_s) + opening_s
        self.late.rerouted_at = now
        self._learn_late(max(at_least_s, self.late.late_reply_s or 0.0))

    def note_slow(self) -> None:
        """A probe had no reply in time."""
        self.slow = True

    def note_prompt_refusal(self, at: float) -> None:
        """A recipient was refused, and not late."""
        self.refused_promptly_at = at

    def note_unanswered_test(self, now: float) -> None:
        """A random address had no reply in time."""
        self.unanswered_at = now

    def distrust(self, *, renamed: bool) -> None:
        """A reply too many, or one too few: from now on prove each verdict by itself.

        `renamed`: or else the host renamed a recipient; then only until that is proven.
        """
        if not renamed:
            self._depth_trusted = 0
        elif not self.distrusted:
            self._depth_trusted = self.depth
        self.distrusted = True
        self.depth = 1

    def renaming_proven(self) -> None:
        """The host renames recipients: that is all that its replies were distrusted for."""
        if self._depth_trusted:
            self.distrusted = False
            self.depth, self._depth_trusted = self._depth_trusted, 0

    def _learn_late(self, late_reply_s: float) -> None:
        self.late.late_reply_s = late_reply_s
        self.late_s = self.late.late_after_s(self.pace)

    # -- what follows --------------------------------------------------------------------------

    @property
    def is_quick(self) -> bool:
        """It answers, and has never been late: patience is of no use."""
        return self.pace.batches > 0 and not self.slow

    @property
    def is_careful(self) -> bool:
        """Batches are small because of a late reply or of replies out of step."""
        return self.depth < REFUSALS_MAX

    def names_rest_s(self, now: float) -> float:
        """For how long no random address is sent because one got no reply in time."""
        is_late = self.refused_promptly_at < self.unanswered_at
        return max(0.0, self.unanswered_at + UNANSWERED_TEST_S - now) if is_late else 0.0

    def reroute_s(self, opening_s: float) -> float:
        """How long to wait for a late reply while others need its connection, which takes so long to open."""
        return self.late.reroute_s(self.late_s, opening_s)

    def window(self, most: int) -> int:
        """How many recipients a batch has, if the host tolerates `most`."""
        depth, pace = self.depth, self.pace
        depth = most if most < depth else depth
        if not self.accepted_several and pace.reply_s >= FAR_S and not self.late.sessions:
            return min(depth, VENTURED)  # network latency, or work for each recipient
        gap_s = pace.gap_s
        # Compared as a product: the mean gap of replies that come together can underflow
        # a division.
        if gap_s * REFUSALS_MAX <= BATCH_S:
            return depth
        return min(depth, max(1, int(BATCH_S / gap_s)))
