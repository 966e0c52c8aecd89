"""Counts refusals as the commonest guard of mail servers does. Pure."""

from math import inf

from .limits import GUARDED_S


class GuardCount:
    """Refusals within the window, as fail2ban counts them.

    It keeps a count with its first and its last time: where the first is older than the
    window, the count is what the rate since then makes in a window, and only where the last
    one is older everything is forgotten.
    """

    __slots__ = ("count", "first_at", "last_at")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.count, self.first_at, self.last_at = 0, -inf, -inf

    def recent(self, now: float) -> int:
        if not self.count or now - self.last_at >= GUARDED_S:
            return 0
        span_s = now - self.first_at
        return self.count if span_s <= GUARDED_S else round(self.count / span_s * GUARDED_S)

    def add(self, at: float) -> None:
        count = self.recent(at)
        self.first_at = max(self.first_at, at - GUARDED_S) if count else at
        self.count, self.last_at = count + 1, at

    def withdraw(self) -> None:
        """The latest was none."""
        self.count = max(0, self.count - 1)

    def slower_s(self, most: float, now: float) -> float:
        """After how many seconds the rate has fallen to so many in a window."""
        slower_at = self.first_at + self.count * GUARDED_S / most
        return min(max(slower_at, self.first_at + GUARDED_S), self.last_at + GUARDED_S) - now
