"""Counts of results by status, reason and light, and their rate. Pure."""

from collections import Counter, deque
from datetime import datetime

from msgspec import Struct, field

from mailprobe.engine.verdict import light_of

from .lights import OURS, UNREACHED
from .row_result import RowResult

HOSTS_MAX = 10_000  # names kept for the summary
FAILED_HOSTS_MIN = 20  # fewer may be dead hosts, more are this machine's failure
PACE_SPAN_S = 20.0  # the rate is measured over this span: steady, but still current


class ResultCounts(Struct):
    """Counts of results."""

    done: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    lights: Counter[str] = field(default_factory=Counter)
    blames: Counter[str] = field(default_factory=Counter)
    suggestions: int = 0
    refusing_hosts: set[str] = field(default_factory=set)  # at most HOSTS_MAX
    failed_hosts: set[str] = field(default_factory=set)  # not reached; at most FAILED_HOSTS_MIN
    goes_on_at: datetime | None = None  # all that is not done waits until then for mail hosts

    def count(self, result: RowResult, by: int = 1) -> None:
        """Add a result; take it off again with `by` -1."""
        self.done += by
        self.statuses[result.status] += by
        self.reasons[result.reason] += by
        self.blames[result.blame or ""] += by
        self.lights[light_of(result)] += by
        self.suggestions += by * (result.suggestion is not None)
        if len(self.failed_hosts) < FAILED_HOSTS_MIN and (
            result.blame in OURS or result.reason in UNREACHED
        ):
            self.failed_hosts.add(result.host)
        if result.reason == "blocked_us" and len(self.refusing_hosts) < HOSTS_MAX:
            self.refusing_hosts.add(result.mx_host or "")

    def note_wait(self, goes_on_at: datetime | None) -> None:
        """All that is not done waits until then; None: it does not any more."""
        self.goes_on_at = goes_on_at

    @property
    def refused_share(self) -> float:
        """The share of addresses that mail hosts refused."""
        return self.statuses["undeliverable"] / self.done if self.done else 0.0


class ProgressRate:
    """The rate of progress over the last PACE_SPAN_S."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def mark(self, now: float, done: int) -> None:
        self._marks.append((now, done))
        while len(self._marks) > 2 and now - self._marks[1][0] > PACE_SPAN_S:
            self._marks.popleft()

    @property
    def per_s(self) -> float:
        """0.0 until there are two marks."""
        if len(self._marks) < 2:
            return 0.0
        (since, before), (now, done) = self._marks[0], self._marks[-1]
        return (done - before) / (now - since) if now > since else 0.0

    def left_s(self, total: int) -> float | None:
        """Seconds until `total` at this rate; None without a rate."""
        if not self._marks or not self.per_s:
            return None
        return (total - self._marks[-1][1]) / self.per_s


def duration(seconds: float) -> str:
    """`8 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
