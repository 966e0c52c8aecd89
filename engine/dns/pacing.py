"""The pace of queries to a resolver that limits them: HTTP 429 and Retry-After (RFC 9110, 6585).

A resolver that never refuses a query is not paced. A refusal pauses all queries to it, for
as long as Retry-After says, or else for a pause that doubles with each refusal in a row.
After the pause one query is sent; each answer doubles the pace, up to a ceiling that is
learned: a little less than the answers that came within a second when the refusal came,
but at least half of the ceiling before. From there each answer raises it slightly, until
the pace is free again. Pure: the caller passes the time.
"""

import re

from .response import HttpResponse, QueryRefused, TransportFailed

RETRY_AFTER_S_MAX = 60.0  # a resolver that asks for more is asked again after this
PAUSE_S = 0.25  # after the first refusal without Retry-After; a request has 1.5 s in all
PAUSE_S_MAX = 8.0
RATE_MIN = 0.5  # queries a second
RATE_AFTER_PAUSE = 2.0  # until the first answer
CEILING_AFTER_FIRST = 10.0  # at least, after one refusal: it may have been chance
CEILING_SHARE = 0.8  # of the answers within the second before a refusal
RAISE_PER_ANSWER = 0.1  # a tenth more for each second at the full pace
RATE_FREE = 1_000.0  # a faster pace is not a limit
BURST_S = 0.05  # tokens of so long are kept while nothing waits
WINDOW_S = 1.0  # of counting answers
FREE = float("inf")

DATE_OCTETS_MAX = 40  # the longest form of an HTTP date has 33
_SECONDS = re.compile(r"[0-9]{1,9}")


class QueryPace:
    """A token bucket that learns its rate. Free until the first refusal."""

    __slots__ = (
        *("_answered", "_at", "_ceiling", "_count", "_count_before", "_pause_s", "_rate"),
        *("_refused_at", "_tokens", "_window_ends", "limited"),
    )

    def __init__(self) -> None:
        self.limited = False  # a plain attribute: it is read for every query
        self._rate = FREE
        self._ceiling = FREE
        self._tokens = 0.0
        self._at = 0.0  # when the tokens were counted; after a refusal, the end of the pause
        self._pause_s = PAUSE_S  # the next one without Retry-After
        self._refused_at = float("-inf")
        self._answered = False  # since that refusal
        self._count = 0  # answers in the present window
        self._count_before = 0
        self._window_ends = float("-inf")

    def ready(self, now: float) -> bool:
        """Whether a query may be sent now."""
        return not self.limited or self.ready_at(now) <= now

    def ready_at(self, now: float) -> float:
        """When the next query may be sent; not after `now` if it may be sent now."""
        if not self.limited:
            return now
        if now > self._at:
            kept = max(1.0, self._rate * BURST_S)
            refilled = self._tokens + (now - self._at) * self._rate
            self._tokens = max(self._tokens, min(kept, refilled))
            self._at = now
        return self._at + max(0.0, 1.0 - self._tokens) / self._rate

    def paused(self, now: float) -> bool:
        """Whether the resolver has asked for silence until later than now."""
        return self.limited and self._at > now

    def spend(self) -> None:
        """A query is sent."""
        if self.limited:
            self._tokens -= 1.0

    def after_answer(self, sent_at: float, now: float) -> None:
        """The resolver has answered a query, whatever the answer says."""
        if self.limited and sent_at <= self._refused_at:
            return  # it says nothing about the pace since then
        if now >= self._window_ends:
            self._count_before = self._count
            self._count = 0
            self._window_ends = now + WINDOW_S
        self._count += 1
        if not self.limited:
            return
        self._answered = True
        self._pause_s = PAUSE_S
        if self._rate < self._ceiling:
            self._rate = min(2.0 * self._rate, self._ceiling)
            self._tokens += 2.0
        else:
            self._rate = self._ceiling = self._ceiling + RAISE_PER_ANSWER
        if self._rate >= RATE_FREE:
            self.limited, self._rate, self._ceiling = False, FREE, FREE

    def after_refusal(self, sent_at: float, now: float, retry_after_s: float | None) -> None:
        """The resolver has refused a query because there were too many.

        Of queries that were under way together, only the first refusal lowers the pace.
        """
        if retry_after_s is not None and retry_after_s < PAUSE_S:
            retry_after_s = None
        if self.limited and sent_at <= self._refused_at:
            self._at = max(self._at, now + (retry_after_s or 0.0))
            return
        if self._answered or not self.limited:
            self._learn()
        pause_s = retry_after_s
        if pause_s is None:
            pause_s = self._pause_s
            self._pause_s = min(2.0 * pause_s, PAUSE_S_MAX)
        self.limited = True
        self._refused_at = now
        self._answered = False
        self._rate = min(RATE_AFTER_PAUSE, self._ceiling)
        self._tokens = 1.0
        self._at = max(self._at, now + pause_s)

    def _learn(self) -> None:
        """Lower the ceiling. A resolver that has answered nothing shows no pace."""
        if not (self._count or self._count_before):
            return
        before = min(self._ceiling, 2.0 * CEILING_AFTER_FIRST)
        answered = CEILING_SHARE * max(self._count, self._count_before) / WINDOW_S
        self._ceiling = max(answered, before / 2.0, RATE_MIN)
        self._count = self._count_before = 0


def read_refusal(response: HttpResponse, now_unix: float) -> TransportFailed:
    """What a response without DNS says of the endpoint: that it fails, or that it limits us."""
    words = f"HTTP status {response.status}"
    after_s = None
    if response.retry_after and response.status in (429, 503):  # RFC 6585 4, RFC 9110 15.6.4
        after_s = read_retry_after(response.retry_after, response.date, now_unix)
    if response.status == 429 or after_s is not None:
        return QueryRefused(words, after_s)
    return TransportFailed(words)


def read_retry_after(value: bytes, date: bytes, now_unix: float) -> float | None:
    """The seconds that a Retry-After header asks for, at most RETRY_AFTER_S_MAX; None for junk.

    A date counts from the response's own Date header if there is one: the resolver's clock
    may differ from ours, which is `now_unix`.
    """
    text = value.decode("latin-1").strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), RETRY_AFTER_S_MAX)
    until = _read_date(text)
    if until is None:
        return None
    sent = _read_date(date.decode("latin-1").strip())
    after_s = until - (now_unix if sent is None else sent)
    return min(max(after_s, 0.0), RETRY_AFTER_S_MAX)


def _read_date(text: str) -> float | None:
    """An HTTP date in any of its three forms (RFC 9110 5.6.7), as seconds since 1970."""
    if not text or len(text) > DATE_OCTETS_MAX or not text.isascii():
        return None
    from datetime import UTC
    from email.utils import parsedate_to_datetime  # here, not above: it is slow to import

    try:
        read = parsedate_to_datetime(text)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
