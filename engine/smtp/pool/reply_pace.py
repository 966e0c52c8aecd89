"""Measures how fast a mail host replies: moving averages over its batches and replies."""

from dataclasses import dataclass

FAR_S = 0.075  # a host that takes this long to reply is far away
EWMA = 0.3  # weight of the newest measurement


@dataclass(slots=True)
class ReplyPace:
    """How fast the host answers, in seconds; moving averages."""

    batch_s: float | None = None  # from a batch's write to its last reply
    gap_s: float = 0.0  # between two replies of one batch
    reply_s: float = 0.0  # from a batch's write to its first reply
    jitter_s: float = 0.0  # mean deviation of reply_s
    batches: int = 0  # answered so far

    def measured(self, round_s: float, gap_s: float) -> None:
        self.batches += 1
        before = self.batch_s if self.batch_s is not None else round_s
        self.batch_s = before + EWMA * (round_s - before)
        if gap_s >= 0:
            self.gap_s += EWMA * (gap_s - self.gap_s)

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
