"""Seats shared between askers: whose turn it is."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mailprobe.engine.fair_queue import FairQueue


def joined(*items: str) -> FairQueue[str]:
    """A queue with these items; the first letter of an item is its account."""
    fair_queue: FairQueue[str] = FairQueue()
    for item in items:
        fair_queue.join(item[0], item)
    return fair_queue


def drained(fair_queue: FairQueue[str]) -> list[str]:
    items = []
    while (item := fair_queue.pop()) is not None:
        items.append(item)
    return items


def test_a_new_queue_is_empty():
    fair_queue: FairQueue[str] = FairQueue()
    assert fair_queue.pop() is None
    assert fair_queue.pop_all() == []
    assert len(fair_queue) == 0
    assert list(fair_queue) == []


def test_one_account_is_served_in_order():
    assert drained(joined("a1", "a2", "a3")) == ["a1", "a2", "a3"]


def test_accounts_take_turns():
    assert drained(joined("a1", "a2", "a3", "b1", "b2", "c1")) == [
        "a1",
        "b1",
        "c1",
        "a2",
        "b2",
        "a3",
    ]


def test_a_neighbour_of_a_batch_of_fifty_is_served_second():
    fair_queue = joined(*(f"a{number}" for number in range(50)), "b1")
    assert [fair_queue.pop(), fair_queue.pop()] == ["a0", "b1"]


def test_an_account_that_returns_is_served_after_those_that_wait():
    fair_queue = joined("a1", "b1", "c1")
    assert fair_queue.pop() == "a1"
    fair_queue.join("a", "a2")
    assert drained(fair_queue) == ["b1", "c1", "a2"]


def test_an_item_put_back_is_next():
    fair_queue = joined("a1", "a2", "b1")
    assert fair_queue.pop() == "a1"
    fair_queue.push_front("a", "a1")
    assert drained(fair_queue) == ["a1", "b1", "a2"]


def test_an_item_put_back_for_an_account_with_no_other_is_next():
    fair_queue = joined("a1", "b1", "b2")
    assert fair_queue.pop() == "a1"
    fair_queue.push_front("a", "a1")
    assert drained(fair_queue) == ["a1", "b1", "b2"]


def test_several_put_back_in_reverse_are_as_they_were():
    fair_queue = joined("a1", "b1", "a2", "b2")
    taken = [fair_queue.pop() for _ in range(3)]
    for item in reversed(taken):
        assert item is not None
        fair_queue.push_front(item[0], item)
    assert drained(fair_queue) == ["a1", "b1", "a2", "b2"]


def test_take_all_is_lane_by_lane_and_leaves_nobody():
    fair_queue = joined("a1", "b1", "a2", "b2", "a3")
    assert list(fair_queue) == ["a1", "a2", "a3", "b1", "b2"]
    assert fair_queue.pop_all() == ["a1", "a2", "a3", "b1", "b2"]
    assert len(fair_queue) == 0
    assert fair_queue.pop() is None
    fair_queue.join("b", "b3")
    assert drained(fair_queue) == ["b3"]


class BesideAList(RuleBasedStateMachine):
    """Anything done in any order, beside the plainest thing that could be right: a list of lanes."""

    def __init__(self) -> None:
        super().__init__()
        self.fair_queue: FairQueue[int] = FairQueue()
        self.queues: list[tuple[str, list[int]]] = []  # nobody's lane is empty
        self.number = 0

    def lane(self, account: str) -> list[int] | None:
        return next((queue for name, queue in self.queues if name == account), None)

    @rule(account=st.sampled_from("abcde"))
    def join(self, account: str) -> None:
        self.number += 1
        self.fair_queue.join(account, self.number)
        if (queue := self.lane(account)) is not None:
            queue.append(self.number)
        else:
            self.queues.append((account, [self.number]))

    @rule(account=st.sampled_from("abcde"))
    def put_back(self, account: str) -> None:
        self.number += 1
        self.fair_queue.push_front(account, self.number)
        queue = self.lane(account) or []
        self.queues = [(account, [self.number, *queue])] + [
            (name, others) for name, others in self.queues if name != account
        ]

    @rule()
    def pop(self) -> None:
        expected = None
        if self.queues:
            account, (expected, *rest) = self.queues.pop(0)
            if rest:
                self.queues.append((account, rest))
        assert self.fair_queue.pop() == expected

    @rule()
    def pop_all(self) -> None:
        assert self.fair_queue.pop_all() == [item for _, queue in self.queues for item in queue]
        self.queues = []

    @invariant()
    def all_are_there(self) -> None:
        items = [item for _, queue in self.queues for item in queue]
        assert list(self.fair_queue) == items
        assert len(self.fair_queue) == len(items)


TestBesideAList = BesideAList.TestCase


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=100))
def test_no_account_is_served_twice_while_another_waits(accounts):
    """Between two turns of an asker, everyone else who waits has one."""
    fair_queue: FairQueue[str] = FairQueue()
    for account in accounts:
        fair_queue.join(account, account)
    served = drained(fair_queue)
    assert sorted(served) == sorted(accounts)
    for place, account in enumerate(served):
        later = served[place + 1 :]
        if account in later:
            between = later[: later.index(account)]
            assert set(between) == set(later) - {account}
