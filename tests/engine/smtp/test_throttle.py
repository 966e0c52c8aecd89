"""How many connections a host tolerates, and how long it is left alone: step by step."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailprobe.engine.smtp.backoff import (
    BACKOFF_AFTER,
    REFUSAL_BACKOFF_S,
    REFUSAL_BACKOFF_S_MAX,
    UNREACHABLE_BACKOFF_S,
    UNREACHABLE_BACKOFF_S_MAX,
    HostBackoff,
)
from mailprobe.engine.smtp.host.connections import (
    HOST_LIMIT_S,
    LIMIT_AT_FIRST,
    Throttle,
    first_throttle,
)


def after(throttle: Throttle, events: str) -> Throttle:
    """The throttle after these events: `+` for a success, `-` for a failure."""
    for event in events:
        throttle = throttle.after_success(0.0) if event == "+" else throttle.after_failure()
    return throttle


@pytest.mark.parametrize(
    ("events", "limit"),
    [
        ("", 2),
        ("+", 2),
        ("++", 3),  # one whole round of good news: one more
        ("+++", 3),
        ("+++++", 4),
        ("+++++++++", 5),
        ("-", 2),
        ("--", 1),  # one whole round of bad news: one fewer
        ("---", 1),
        ("----------", 1),
        ("+-", 2),
        ("+-+", 3),  # a round goes on until the limit changes
        ("+-++", 3),
        ("-+-", 1),
        ("-+--", 1),
        ("++-", 3),
        ("++--", 3),
        ("++---", 2),
        ("--+", 2),  # a round at one connection is one success
        ("--++", 2),
        ("--+++", 3),
    ],
)
def test_the_feedback_rule_step_by_step(events, limit):
    assert after(first_throttle(10), events).limit == limit


@pytest.mark.parametrize("limit", list(range(1, 30)))
def test_a_whole_round_at_each_limit_is_as_many_as_the_limit(limit):
    throttle = Throttle(limit_max=100, limit=limit)
    for _ in range(limit - 1):
        throttle = throttle.after_success(0.0)
        assert throttle.limit == limit
    assert throttle.after_success(0.0).limit == limit + 1


def test_it_begins_with_two_or_with_fewer_where_fewer_are_allowed():
    assert first_throttle(4).limit == LIMIT_AT_FIRST == 2
    assert first_throttle(1).limit == 1


@given(st.integers(1, 20), st.text("+-", max_size=200))
def test_the_limit_keeps_its_bounds(limit_max, events):
    throttle = first_throttle(limit_max)
    for event in events:
        before, throttle = throttle, after(throttle, event)
        assert 1 <= throttle.limit <= limit_max
        assert abs(throttle.limit - before.limit) <= 1
        assert (throttle.limit >= before.limit) or event == "-"
        assert 0 <= throttle.good < throttle.limit
        assert 0 <= throttle.bad < throttle.limit


@given(st.integers(1, 20), st.text("+-", max_size=100))
def test_good_news_alone_reach_the_most_and_bad_news_alone_the_least(limit_max, events):
    throttle = after(first_throttle(limit_max), events)
    assert after(throttle, "+" * limit_max * (limit_max + 1)).limit == limit_max
    assert after(throttle, "-" * limit_max * (limit_max + 1)).limit == 1


@pytest.mark.parametrize(
    ("limit", "others", "then"), [(4, 3, 3), (4, 1, 1), (4, 0, 1), (2, 5, 2), (1, 1, 1)]
)
def test_a_connection_too_many_tells_how_many_are_borne(limit, others, then):
    assert Throttle(limit_max=10, limit=limit).after_crowding(others, 100.0).limit == then


def test_after_a_connection_too_many_no_other_is_tried_for_a_while():
    throttle = first_throttle(10).after_crowding(1, 100.0)
    for now in (100.0, 100.0 + HOST_LIMIT_S - 1):
        for _ in range(50):
            throttle = throttle.after_success(now)
        assert throttle.limit == 1
    assert throttle.after_success(100.0 + HOST_LIMIT_S).limit == 2


def test_an_event_gives_a_new_value():
    throttle = first_throttle(4)
    after(throttle, "++--")
    assert throttle == first_throttle(4)


# -- rest ------------------------------------------------------------------------------------


def failure(*times: tuple[float, bool]) -> HostBackoff:
    rest = HostBackoff()
    for now, refused in times:
        rest = rest.after_failure(now, refused=refused)
    return rest


def test_one_failure_is_chance():
    assert not failure((100.0, False)).active(100.0)
    assert not failure((100.0, True)).active(100.0)


@pytest.mark.parametrize(
    ("refused", "first_s", "most_s"),
    [
        (False, UNREACHABLE_BACKOFF_S, UNREACHABLE_BACKOFF_S_MAX),
        (True, REFUSAL_BACKOFF_S, REFUSAL_BACKOFF_S_MAX),
    ],
)
def test_the_rest_doubles_to_its_most(refused, first_s, most_s):
    for failures in range(BACKOFF_AFTER, 100):
        rest = failure(*((2.0 * number, refused) for number in range(1, failures + 1)))
        expected = min(first_s * 2 ** (failures - BACKOFF_AFTER), most_s)
        assert rest.until - 2 * failures == expected
        assert math.isfinite(rest.until)


def test_a_refusal_rests_longer_than_a_silence():
    assert (UNREACHABLE_BACKOFF_S, REFUSAL_BACKOFF_S) == (5, 60)
    assert (UNREACHABLE_BACKOFF_S_MAX, REFUSAL_BACKOFF_S_MAX) == (300, 3600)


@pytest.mark.parametrize(
    ("now", "resting"), [(100.0, True), (104.9, True), (105.0, False), (1e9, False)]
)
def test_a_rest_ends_at_its_time(now, resting):
    rest = failure((90.0, False), (100.0, False))
    assert rest.until == 105
    assert rest.active(now) is resting


def test_the_last_failure_says_how_long():
    assert failure((0.0, True), (2.0, False)).until == 2 + UNREACHABLE_BACKOFF_S
    assert failure((0.0, False), (2.0, True)).until == 2 + REFUSAL_BACKOFF_S


@pytest.mark.parametrize(("apart_s", "resting"), [(0.0, False), (0.9, False), (1.0, True)])
def test_failures_of_one_moment_are_one_failure(apart_s, resting):
    """An outage ends all connections at once; that is not failing again and again."""
    assert failure((50.0, False), (50.0 + apart_s, False)).active(52.0) is resting


def test_refusals_of_one_moment_are_as_many_as_they_are():
    assert failure((50.0, True), (50.0, True)).active(50.0)


@pytest.mark.parametrize(
    ("now", "doubtful"), [(50.0, True), (50.9, True), (51.0, False), (1e9, False)]
)
def test_a_host_is_doubtful_for_a_moment_after_a_failure(now, doubtful):
    assert failure((50.0, False)).doubtful(now) is doubtful


def test_a_host_is_doubtful_while_it_rests():
    rest = failure((40.0, False), (50.0, False))
    assert rest.doubtful(54.9)
    assert not rest.doubtful(55.0)
    assert not HostBackoff().doubtful(0)


def test_a_new_host_is_not_in_back_off():
    assert not HostBackoff().active(-1e9)
    assert not HostBackoff().active(0)
