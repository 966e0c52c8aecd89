"""The counted minutes: what a worker adds, what a day forgets, and what is added up."""

import os
from collections.abc import Iterator

import pytest

from mailprobe.api.observability.throughput import (
    BOUNDS_S,
    MINUTE_S,
    MINUTES,
    NOTHING,
    Counted,
    MinuteCounter,
    Throughput,
    open_throughput,
    summed,
)

NOON = 12 * 60  # in minutes since 1970


class Clock:
    minute: float = NOON

    def __call__(self) -> float:
        return self.minute * MINUTE_S


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def throughput(clock: Clock) -> Iterator[Throughput]:
    with open_throughput(2, clock) as throughput:
        yield throughput


def answers_of(throughput: Throughput, first: int, last: int) -> list[int]:
    return [each.answers for each in throughput.minutes(first, last)]


def test_an_answer_is_counted_in_its_minute(throughput: Throughput, clock: Clock) -> None:
    worker = throughput.attach()
    worker.answered(3, replies=2, refused=1)
    worker.answered(1, replies=0, refused=0)
    clock.minute = NOON + 1.5
    worker.answered(5, replies=5, refused=0)
    before, first, second = throughput.minutes(NOON - 1, NOON + 1)
    assert before == NOTHING
    assert (first.answers, first.replies, first.refused) == (4, 2, 1)
    assert (second.answers, second.replies, second.refused) == (5, 5, 0)


def test_a_minute_is_forgotten_a_day_later(throughput: Throughput, clock: Clock) -> None:
    worker = throughput.attach()
    worker.answered(3, replies=0, refused=0)
    clock.minute += MINUTES
    assert answers_of(throughput, NOON + MINUTES, NOON + MINUTES) == [0]
    worker.probed(1.0)
    [counted] = throughput.minutes(NOON + MINUTES, NOON + MINUTES)
    assert (counted.answers, sum(counted.times)) == (0, 1)
    assert answers_of(throughput, NOON, NOON) == [0]


def test_workers_are_added_up_and_outlived(throughput: Throughput) -> None:
    throughput.attach().answered(2, replies=0, refused=0)
    for _ in range(2):  # the second one takes the row of the first, which has ended
        if (child := os.fork()) == 0:
            throughput.attach().answered(5, replies=1, refused=1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    [counted] = throughput.minutes(NOON, NOON)
    assert (counted.answers, counted.replies, counted.refused) == (12, 2, 2)


@pytest.mark.parametrize(("started", "first"), [(NOON, NOON), (NOON + 0.25, NOON + 1)])
def test_the_first_whole_minute_begins_with_the_service_or_after_it(
    started: float, first: int, clock: Clock
) -> None:
    clock.minute = started
    with open_throughput(1, clock) as throughput:
        assert throughput.first_minute == first


def times_of(worker: MinuteCounter, throughput: Throughput, *seconds: float) -> Counted:
    for each in seconds:
        worker.probed(each)
    return summed(throughput.minutes(NOON, NOON))


def test_a_quantile_is_read_from_the_times_of_probes(throughput: Throughput) -> None:
    worker = throughput.attach()
    assert times_of(worker, throughput).time_s(0.5) is None
    counted = times_of(worker, throughput, *[0.02] * 50, *[0.22] * 100, *[1.2] * 48, 2.6, 90.0)
    assert counted.time_s(0.5) == pytest.approx(0.225)
    assert counted.time_s(0.99) == pytest.approx(1.5)
    assert counted.time_s(1.0) == BOUNDS_S[-1]


def test_a_sum_of_nothing_is_nothing() -> None:
    assert summed([]) == NOTHING
    assert summed([NOTHING, NOTHING]).time_s(0.5) is None
