"""The refusals of one mail host within the hour, and within the window of a guard. Pure."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from math import inf

from ..leases.ledger import CEILING
from .limits import GUARDED_S, HOUR_S, WINDOW_S

REFUSALS_MAX = 8 * CEILING  # remembered of an hour


@dataclass(slots=True)
class GuardCount:
    """Refusals within the window, as fail2ban counts them.

    It keeps a count with its first and its last time: where the first is older than the
    window, the count is what the rate since then makes in a window, and only where the last
    one is older everything is forgotten.
    """

    count: int = 0
    first_at: float = -inf
    last_at: float = -inf

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


@dataclass(slots=True, eq=False)
class RefusalTimes:
    """When recipients were refused within the hour, by this process or others, and to which account."""

    guard: GuardCount = field(default_factory=GuardCount)
    latest_at: float = -inf
    _times: deque[tuple[float, str]] = field(default_factory=partial(deque, maxlen=REFUSALS_MAX))

    def add(self, account: str, now: float) -> None:
        """A recipient of the account was refused."""
        self.latest_at = now
        self.guard.add(now)
        self._times.append((now, account))

    def withdraw(self, account: str) -> None:
        """The latest refusal of the account was none."""
        self.guard.withdraw()
        latest = next((each for each in reversed(self._times) if each[1] == account), None)
        if latest is not None:
            self._times.remove(latest)

    def replace(self, times: Iterable[tuple[float, str]]) -> None:
        """These are all of the hour: others than this process have caused some."""
        self._times = deque(sorted(times), maxlen=REFUSALS_MAX)
        self.guard = GuardCount()
        for at, _ in self._times:
            self.guard.add(at)
            self.latest_at = max(self.latest_at, at)

    def in_hour(self, now: float) -> int:
        times = self._times
        while times and times[0][0] <= now - HOUR_S:
            times.popleft()
        return len(times)

    def of_account(self, account: str, now: float, within_s: float = WINDOW_S) -> int:
        """Those of this account within so long, at most an hour."""
        count = 0
        for at, each in reversed(self._times):
            if at <= now - within_s:
                break
            count += each == account
        return count

    def hour_ends_s(self, now: float) -> float:
        """After how many seconds the oldest of the hour has left it; 0 where there is none."""
        return self._times[0][0] + HOUR_S - now if self._times else 0.0
