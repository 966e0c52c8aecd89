"""The pace of an endpoint that limits our queries, and how Retry-After is read."""

import itertools
from email.utils import formatdate

import pytest

from mailprobe.engine.dns.pacing import (
    PAUSE_S,
    PAUSE_S_MAX,
    RETRY_AFTER_S_MAX,
    QueryPace,
    read_refusal,
    read_retry_after,
)
from mailprobe.engine.dns.response import HttpResponse, QueryRefused

ROUND_TRIP_S = 0.02
STEP_S = 0.005
NOW = 1_750_000_000.0


class Limiter:
    """A resolver that answers so many queries in each second and refuses the others."""

    def __init__(self, per_second: int, retry_after_s: float | None) -> None:
        self.per_second = per_second
        self.retry_after_s = retry_after_s
        self.queries: list[float] = []
        self.answers = 0
        self._second, self._in_second = -1, 0

    def answers_now(self, now: float) -> bool:
        self.queries.append(now)
        if int(now) != self._second:
            self._second, self._in_second = int(now), 0
        self._in_second += 1
        self.answers += self._in_second <= self.per_second
        return self._in_second <= self.per_second


def run(pace: QueryPace, limiter: Limiter, lasts_s: float, *, in_flight_max: int = 200) -> None:
    """Query the limiter for so long, as fast as the pace allows."""
    in_flight: list[tuple[float, bool]] = []
    for step in range(int(lasts_s / STEP_S)):
        now = step * STEP_S
        while in_flight and in_flight[0][0] + ROUND_TRIP_S <= now:
            sent_at, answered = in_flight.pop(0)
            if answered:
                pace.after_answer(sent_at, now)
            else:
                pace.after_refusal(sent_at, now, limiter.retry_after_s)
        while len(in_flight) < in_flight_max and pace.ready(now):
            pace.spend()
            in_flight.append((now, limiter.answers_now(now)))


def test_a_resolver_that_never_refuses_is_not_paced():
    pace, limiter = QueryPace(), Limiter(1_000_000, None)
    run(pace, limiter, 2)
    assert not pace.limited
    assert limiter.answers == len(limiter.queries) > 15_000


@pytest.mark.parametrize("retry_after_s", [1.0, 5.0, 30.0])
def test_an_endpoint_that_refuses_everything_is_queried_as_often_as_it_asks(retry_after_s):
    pace, limiter = QueryPace(), Limiter(0, retry_after_s)
    run(pace, limiter, 120, in_flight_max=20)
    later = limiter.queries[20:]
    assert 120 / retry_after_s / 1.3 <= len(later) + 1 <= 120 / retry_after_s
    gaps = [after - before for before, after in itertools.pairwise(later)]
    assert min(gaps) >= retry_after_s


def test_without_retry_after_the_pauses_double():
    pace, limiter = QueryPace(), Limiter(0, None)
    run(pace, limiter, 60, in_flight_max=1)
    gaps = [b - a for a, b in zip(limiter.queries, limiter.queries[1:], strict=False)]
    assert gaps[:4] == pytest.approx([PAUSE_S * 2**n for n in range(4)], abs=0.05)
    assert gaps[-1] == pytest.approx(PAUSE_S_MAX, abs=0.05)


@pytest.mark.parametrize("retry_after_s", [None, 1.0])
@pytest.mark.parametrize("per_second", [1, 5, 20, 100])
def test_the_pace_of_the_endpoint_is_learned(per_second, retry_after_s):
    """It answers most of what it can, and refuses few of the queries."""
    pace, limiter = QueryPace(), Limiter(per_second, retry_after_s)
    run(pace, limiter, 10)
    limiter.queries.clear()
    limiter.answers = 0
    run(pace, limiter, 60)
    refused = len(limiter.queries) - limiter.answers
    assert limiter.answers >= 60 * per_second * 0.4
    assert refused <= 60 * max(1.5, 0.05 * per_second)


def test_one_refusal_by_chance_is_soon_forgotten():
    """After the pause the answers double the pace, whatever it was before."""
    pace = QueryPace()
    pace.after_refusal(0.0, 0.02, None)
    limiter = Limiter(1_000_000, None)
    run(pace, limiter, 1.0)
    assert not pace.limited
    assert limiter.answers > 1_000


def test_a_refusal_in_a_calm_hour_leaves_room_for_a_burst():
    pace = QueryPace()
    pace.after_answer(0.0, 0.02)
    pace.after_refusal(1.0, 1.02, None)
    limiter = Limiter(1_000_000, None)
    run(pace, limiter, 3.0)
    assert limiter.answers >= 18


def test_refusals_of_queries_that_were_under_way_together_count_once():
    one, many = QueryPace(), QueryPace()
    one.after_refusal(0.0, 0.02, None)
    for _ in range(200):
        many.after_refusal(0.0, 0.02, None)
    assert one.ready_at(0.02) == many.ready_at(0.02) == pytest.approx(0.02 + PAUSE_S)


def test_the_longest_retry_after_counts():
    pace = QueryPace()
    pace.after_refusal(0.0, 0.02, 1.0)
    pace.after_refusal(0.0, 0.03, 5.0)
    pace.after_refusal(0.0, 0.04, 1.0)
    assert pace.paused(5.0)
    assert not pace.ready(5.0)
    assert pace.ready_at(1.0) == pytest.approx(5.03)
    assert pace.ready(5.04)


def test_answers_under_way_at_a_refusal_do_not_end_its_pause():
    pace = QueryPace()
    pace.after_refusal(0.0, 0.02, 1.0)
    for _ in range(1_000):
        pace.after_answer(0.01, 0.03)
    assert not pace.ready(1.0)
    assert pace.limited


def test_the_pace_becomes_free_again():
    pace = QueryPace()
    pace.after_answer(0.0, 0.02)
    pace.after_refusal(0.0, 0.03, None)
    limiter = Limiter(1_000_000, None)
    run(pace, limiter, 60)
    assert not pace.limited


SECONDS = {b"1": 1.0, b"0": 0.0, b" 30 ": 30.0, b"86400": RETRY_AFTER_S_MAX}
JUNK = [
    *(b"", b"soon", b"-1", b"1.5", b"1e3", b"0x10", b"1, 2", b"9" * 5_000, "²".encode("latin-1")),
    *(b"\xff\xfe", b"Sun, 99 Nov 2025 99:99:99 GMT", b"Sun, 06 Nov 99999 08:49:37 GMT"),
    *(b"0" * 30_000, b"Sun, 06 Nov 2025 " + b"08" * 30_000, b"Nov 0 0 0 0 0 -9999"),
]


@pytest.mark.parametrize(("value", "seconds"), SECONDS.items())
def test_seconds_are_read_and_bounded(value, seconds):
    assert read_retry_after(value, b"", NOW) == seconds


@pytest.mark.parametrize("value", JUNK)
def test_junk_is_ignored(value):
    assert read_retry_after(value, b"", NOW) is None
    refusal = read_refusal(HttpResponse(429, retry_after=value), NOW)
    assert isinstance(refusal, QueryRefused)
    assert refusal.retry_after_s is None


@pytest.mark.parametrize(("after_s", "seconds"), [(7, 7), (-7, 0), (0, 0), (9_999, 60)])
def test_a_date_counts_from_the_responses_own_date(after_s, seconds):
    date = formatdate(NOW, usegmt=True).encode()
    until = formatdate(NOW + after_s, usegmt=True).encode()
    assert read_retry_after(until, date, NOW + 12_345) == seconds
    assert read_retry_after(until, b"", NOW) == seconds
    assert read_retry_after(until, b"today", NOW) == seconds


@pytest.mark.parametrize(
    "value",
    [
        b"Sun, 06 Nov 1994 08:49:37 GMT",
        b"Sunday, 06-Nov-94 08:49:37 GMT",
        b"Sun Nov  6 08:49:37 1994",
    ],
)
def test_a_date_has_three_forms(value):
    assert read_retry_after(value, b"", 784_111_777.0 - 5) == 5


@pytest.mark.parametrize(
    ("status", "value", "limited", "after_s"),
    [
        (429, b"", True, None),
        (429, b"2", True, 2.0),
        (503, b"2", True, 2.0),
        (503, b"", False, None),
        (503, b"soon", False, None),
        (500, b"2", False, None),
        (404, b"2", False, None),
    ],
)
def test_the_meaning_of_a_status_for_the_pace(status, value, limited, after_s):
    failure = read_refusal(HttpResponse(status, retry_after=value), NOW)
    assert str(failure) == f"HTTP status {status}"
    assert isinstance(failure, QueryRefused) == limited
    assert getattr(failure, "retry_after_s", None) == after_s
