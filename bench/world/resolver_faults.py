"""Faults of a resolver that depend on how many questions it has had.

Each counts by itself, so several can be set at once; a question has at most one of them.
"""

from collections import Counter
from collections.abc import Callable
from email.utils import formatdate
from enum import Enum
from time import time

from msgspec import Struct, field


class RetryAfter(Enum):
    """How a refusal says when the next question may come."""

    SECONDS = "seconds"
    DATE = "date"  # an HTTP date


class Unavailable(Struct, frozen=True):
    """A response of HTTP that carries no DNS message, and its headers."""

    status: int  # 429 or 503
    date: str
    retry_after: str = ""


class ResolverFaults(Struct):
    """What a resolver does wrong; by default nothing.

    `goaway_after` needs HTTP/2: only the lab plays it.
    """

    servfail_first: int = 0  # SERVFAIL for so many first questions about each name and type
    unavailable_first: int = 0  # 503 for so many first questions of all
    limited_first: int = 0  # 429 for so many first questions of all
    limited_every: int = 0  # 429 for every n-th question; 1: for all
    per_second: int = 0  # 429 for all questions beyond so many within a second
    retry_after_s: float | None = None  # that a 429 or 503 asks for; None: no Retry-After
    retry_after: RetryAfter = RetryAfter.SECONDS
    goaway_after: int | None = None  # GOAWAY after so many answers of a connection
    kinds: frozenset[str] = frozenset()  # only questions of these types ("MX"); empty: all
    now: Callable[[], float] = time  # for `per_second` and dates
    questions: int = 0
    _by_name: Counter[tuple[str, str]] = field(default_factory=Counter)
    _second: int = 0
    _in_second: int = 0

    def fault(self, name: str, kind: str) -> Unavailable | bool:
        """Count this question. Return its failure, True for SERVFAIL, or False if there is none."""
        if self.kinds and kind not in self.kinds:
            return False
        self.questions += 1
        if self.questions <= self.unavailable_first:
            return self._unavailable(503)
        if self._limited():
            return self._unavailable(429)
        if self.servfail_first:
            self._by_name[name, kind] += 1
            return self._by_name[name, kind] <= self.servfail_first
        return False

    def _limited(self) -> bool:
        if self.questions <= self.limited_first:
            return True
        if self.limited_every and self.questions % self.limited_every == 0:
            return True
        if not self.per_second:
            return False
        second = int(self.now())
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        return self._in_second > self.per_second

    def _unavailable(self, status: int) -> Unavailable:
        now = self.now()
        retry_after = ""
        if self.retry_after_s is not None:
            retry_after = f"{self.retry_after_s:g}"
            if self.retry_after is RetryAfter.DATE:
                retry_after = formatdate(now + self.retry_after_s, usegmt=True)
        return Unavailable(status, formatdate(now, usegmt=True), retry_after)
