"""The refusals of one mail host within the hour, and within the window of a guard. Pure."""

from collections import Counter, deque
from collections.abc import Iterable
from functools import partial
from math import inf

from msgspec import Struct, field

from ..leases.ledger import CEILING
from .limits import GUARDED_S, HOUR_S, WINDOW_S

REFUSALS_MAX = 8 * CEILING  # remembered of an hour


class GuardCount(Struct):
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


class RefusalTimes(Struct, eq=False):
    """When recipients were refused within the hour, by this process or others, and to which account."""

    guard: GuardCount = field(default_factory=GuardCount)
    latest_at: float = -inf
    _times: deque[tuple[float, str]] = field(default_factory=partial(deque, maxlen=REFUSALS_MAX))
    _window: deque[tuple[float, str]] = field(default_factory=deque)  # those within WINDOW_S,
    _by_account: Counter[str] = field(default_factory=Counter)  # counted: each row is asked for it

    def add(self, account: str, now: float) -> None:
        """A recipient of the account was refused."""
        self.latest_at = now
        self.guard.add(now)
        for times in (self._times, self._window):
            times.append((now, account))
        self._by_account[account] += 1

    def withdraw(self, account: str) -> None:
        """The latest refusal of the account was none."""
        self.guard.withdraw()
        for times in (self._times, self._window):
            latest = next((each for each in reversed(times) if each[1] == account), None)
            if latest is not None:
                times.remove(latest)
        self._recount()

    def replace(self, times: Iterable[tuple[float, str]], now: float) -> None:
        """These are all of the hour: others than this process have caused some."""
        self._times = deque(sorted(times), maxlen=REFUSALS_MAX)
        self._window = deque(each for each in self._times if each[0] > now - WINDOW_S)
        self._recount()
        self.guard = GuardCount()
        for at, _ in self._times:
            self.guard.add(at)
            self.latest_at = max(self.latest_at, at)

    def _recount(self) -> None:
        self._by_account = Counter(account for _, account in self._window)

    def of_account(self, account: str, now: float) -> int:
        """Those of this account within the window."""
        while self._window and self._window[0][0] <= now - WINDOW_S:
            _, left = self._window.popleft()
            self._by_account[left] -= 1
            if not self._by_account[left]:
                del self._by_account[left]
        return self._by_account[account]

    def in_hour(self, now: float) -> int:
        times = self._times
        while times and times[0][0] <= now - HOUR_S:
            times.popleft()
        return len(times)

    def in_hour_of(self, account: str, now: float) -> int:
        """Those of this account within the hour."""
        return sum(at > now - HOUR_S and each == account for at, each in self._times)

    def hour_ends_s(self, now: float) -> float:
        """After how many seconds the oldest of the hour has left it; 0 where there is none."""
        return self._times[0][0] + HOUR_S - now if self._times else 0.0
