"""Whose query is sent next, and which late one gives way; time is a number here."""

import random

import pytest

from mailprobe.engine.dns.query_queue import (
    LATE_S,
    ZONE_LATE_MAX,
    Priority,
    Query,
    QueryPlan,
    QueryQueue,
    zone_of,
)
from mailprobe.engine.dns.response import DohResponse, TransportFailed
from tests.seeds import seeds


class Sent(Query):
    """A query that does nothing."""

    def __init__(self, name: str, *accounts: str, priority=Priority.REQUEST) -> None:
        super().__init__(name, b"", dict.fromkeys(accounts, priority))

    def sent(self, now: float) -> None:
        raise AssertionError("the queue calls nothing")

    def gave_way(self) -> None:
        raise AssertionError("the queue calls nothing")

    def received(self, result: DohResponse | TransportFailed) -> None:
        raise AssertionError("the queue calls nothing")


class Queue(QueryQueue):
    """A queue of so many slots with a record of its plans, and a short way to fill it."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.log: list[str] = []
        self.names: dict[str, Sent] = {}

    def record(self, plan: QueryPlan) -> None:
        """One gives way for each that is sent without a free slot: the last ones."""
        free = len(plan.send) - len(plan.stop)
        self.log += [query.name for query in plan.send[:free]]
        for stopped, sent in zip(plan.stop, plan.send[free:], strict=True):
            self.log += [f"-{stopped.name}", sent.name]

    def turn(self, now: float = 0.0) -> None:
        self.record(self.plan(now, self.capacity - self.under_way))

    def late_turn(self, now: float) -> None:
        self.record(self.review(now, self.capacity - self.under_way))

    def submit_new(
        self, name: str, *accounts: str, now: float = 0.0, priority=Priority.REQUEST
    ) -> Sent:
        query = self.names[name] = Sent(name, *accounts, priority=priority)
        self.submit(query)
        self.turn(now)
        return query

    def answer(self, name: str, now: float = 0.0) -> None:
        self.remove(self.names[name])
        self.turn(now)


def test_a_query_is_sent_at_once_if_a_slot_is_free():
    queue = Queue(2)
    queue.submit_new("a1.test", "a")
    queue.submit_new("a2.test", "a")
    queue.submit_new("a3.test", "a")
    assert queue.log == ["a1.test", "a2.test"]
    queue.answer("a1.test")
    assert queue.log[2:] == ["a3.test"]


def test_the_account_with_the_fewest_places_goes_first():
    queue = Queue(3)
    for number in range(6):
        queue.submit_new(f"a{number}.test", "a")
    queue.submit_new("b.test", "b")
    queue.submit_new("c.test", "c")
    for name in queue.log[:3]:
        queue.answer(name)
    assert queue.log[3:] == ["b.test", "c.test", "a3.test"]


def test_layer_4_goes_before_requests_and_these_before_lists():
    queue = Queue(1)
    queue.submit_new("first.test", "a")
    for priority in (Priority.LIST, Priority.REQUEST, Priority.PROBE):
        queue.submit_new(f"{priority.name.lower()}.test", "a", priority=priority)
    for name in ("first.test", "probe.test", "request.test"):
        queue.answer(name)
    assert queue.log[1:] == ["probe.test", "request.test", "list.test"]


def test_nothing_gives_way_before_it_is_late_or_where_nobody_waits():
    queue = Queue(2)
    queue.submit_new("a1.test", "a")
    queue.submit_new("a2.test", "a")
    queue.late_turn(10)
    queue.submit_new("b.test", "b", now=LATE_S / 2)
    queue.late_turn(LATE_S * 0.9)
    assert queue.log == ["a1.test", "a2.test"]
    queue.late_turn(LATE_S)
    assert queue.log[2:] == ["-a1.test", "b.test"]


def test_accounts_of_one_size_take_nothing_from_each_other():
    queue = Queue(2)
    queue.submit_new("a.test", "a")
    queue.submit_new("b.test", "b")
    queue.submit_new("c.test", "c")
    queue.late_turn(10)
    assert queue.log == ["a.test", "b.test"]  # nobody has two


def test_an_accounts_late_queries_keep_a_quarter_of_its_places_from_its_others():
    queue = Queue(8)
    for number in range(8):
        queue.submit_new(f"hung{number}.test", "a")
    for number in range(20):
        queue.submit_new(f"new{number}.test", "a")
    queue.late_turn(LATE_S)
    assert queue.log[8:20] == [
        line for number in range(6) for line in (f"-hung{number}.test", f"new{number}.test")
    ]


def test_a_query_that_gave_way_is_sent_again_behind_new_ones():
    queue = Queue(1)
    queue.submit_new("hung.test", "a")
    queue.submit_new("one.test", "a")
    queue.late_turn(LATE_S)
    queue.submit_new("two.test", "a")
    queue.answer("one.test")
    queue.answer("two.test")
    assert queue.log == ["hung.test", "-hung.test", "one.test", "two.test", "hung.test"]
    queue.late_turn(10)
    assert queue.log[-1] == "hung.test"


def test_late_queries_of_one_zone_give_way_first():
    queue = Queue(ZONE_LATE_MAX + 4)
    for number in range(3):
        queue.submit_new(f"slow{number}.test", "a")
    for number in range(ZONE_LATE_MAX + 1):
        queue.submit_new(f"d{number}.hung.test", f"b{number}")
    queue.submit_new("new.test", "c")
    queue.late_turn(LATE_S)
    assert queue.log[-2:] == ["-d0.hung.test", "new.test"]


def test_a_name_queued_by_two_accounts_has_the_better_of_both_turns():
    queue = Queue(1)
    for number in range(5):
        queue.submit_new(f"a{number}.test", "a")
    wanted = queue.names["a4.test"]
    wanted.wanted_by["b"] = Priority.REQUEST
    queue.claim(wanted, "b", Priority.REQUEST)
    for name in ("a0.test", "a1.test", "a4.test"):
        queue.answer(name)
    assert queue.log[1:] == ["a1.test", "a4.test", "a2.test"]


def test_a_query_that_left_the_queue_is_not_sent():
    queue = Queue(1)
    queue.submit_new("a.test", "a")
    queue.submit_new("b.test", "b")
    queue.answer("b.test")
    queue.answer("a.test")
    assert queue.log == ["a.test"]
    assert not queue.waiting


def test_a_query_without_callers_gives_way_at_once():
    queue = Queue(2)
    unneeded = queue.submit_new("a.test", "a")
    queue.submit_new("b.test", "b")
    queue.set_unwanted(unneeded)
    assert queue.log == ["a.test", "b.test"]
    queue.submit_new("c.test", "b")
    assert queue.log[2:] == ["-a.test", "c.test"]


def test_a_query_that_no_connection_took_is_the_next_one():
    """It keeps its turn, within its account and before the other accounts."""
    queue = Queue(2)
    queue.submit_new("a1.test", "a")
    queue.submit_new("b1.test", "b")
    for name in ("c1.test", "b2.test", "a2.test"):
        queue.submit_new(name, name[0])
    queue.put_back(queue.names["b1.test"])
    queue.turn()
    assert queue.log == ["a1.test", "b1.test", "b1.test"]


def test_an_unwanted_query_that_no_connection_took_does_not_wait():
    queue = Queue(1)
    queue.set_unwanted(queue.submit_new("a.test", "a"))
    queue.put_back(queue.names["a.test"])
    assert not queue.waiting
    assert queue.under_way == 0


@pytest.mark.parametrize(
    ("name", "zone"),
    [
        ("shop.test", "shop.test"),
        ("d1.shop.test", "shop.test"),
        ("a.b.shop.test", "b.shop.test"),
        ("shop.co.uk", "shop.co.uk"),
        ("mail.shop.co.uk", "shop.co.uk"),
        ("test", "test"),
    ],
)
def test_the_zone_of_a_name_is_found(name, zone):
    assert zone_of(name) == zone


@pytest.mark.parametrize("seed", range(seeds(200)))
def test_any_sequence_keeps_the_slots_and_serves_every_query(seed):
    rng = random.Random(seed)
    capacity = rng.choice((1, 2, 8, 32))
    queue = Queue(capacity)
    now, number = 0.0, 0
    answered: set[str] = set()
    for _ in range(300):
        now += rng.choice((0.0, 0.01, 0.1, 0.4))
        match rng.randrange(5):
            case 0 | 1:
                number += 1
                accounts = rng.sample("abcd", rng.choice((1, 1, 2)))
                zone = rng.choice(("one.test", "two.test"))
                queue.submit_new(
                    f"d{number}.{zone}", *accounts, now=now, priority=rng.choice((0, 1, 2))
                )
            case 2 | 3:
                if pending := sorted(set(queue.names) - answered):
                    name = rng.choice(pending)
                    answered.add(name)
                    queue.answer(name, now)
            case 4:
                queue.late_turn(now)
        assert queue.under_way <= capacity
        assert queue.under_way == capacity or not queue.waiting
    for name in [*queue.names]:
        while name not in answered:
            under_way = [each for each in queue.names if queue.names[each].sent_at is not None]
            gone = next(each for each in under_way if each not in answered)
            answered.add(gone)
            queue.answer(gone, now)
    assert not queue.waiting
    assert queue.under_way == 0
    assert not queue.slots
