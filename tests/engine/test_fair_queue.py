"""Seats shared between askers: whose turn it is."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mailprobe.engine.fair_queue import Turnstile


def joined(*items: str) -> Turnstile[str]:
    """A turnstile at which these wait; an item's first letter is its asker."""
    turnstile: Turnstile[str] = Turnstile()
    for item in items:
        turnstile.join(item[0], item)
    return turnstile


def drained(turnstile: Turnstile[str]) -> list[str]:
    items = []
    while (item := turnstile.take()) is not None:
        items.append(item)
    return items


def test_nobody_waits_at_first():
    turnstile: Turnstile[str] = Turnstile()
    assert turnstile.take() is None
    assert turnstile.take_all() == []
    assert len(turnstile) == 0
    assert list(turnstile) == []


def test_one_asker_is_served_in_order():
    assert drained(joined("a1", "a2", "a3")) == ["a1", "a2", "a3"]


def test_askers_take_turns():
    assert drained(joined("a1", "a2", "a3", "b1", "b2", "c1")) == [
        "a1",
        "b1",
        "c1",
        "a2",
        "b2",
        "a3",
    ]


def test_a_neighbour_of_a_batch_of_fifty_is_served_second():
    turnstile = joined(*(f"a{number}" for number in range(50)), "b1")
    assert [turnstile.take(), turnstile.take()] == ["a0", "b1"]


def test_who_comes_again_is_served_after_those_who_wait():
    turnstile = joined("a1", "b1", "c1")
    assert turnstile.take() == "a1"
    turnstile.join("a", "a2")
    assert drained(turnstile) == ["b1", "c1", "a2"]


def test_what_is_put_back_is_next():
    turnstile = joined("a1", "a2", "b1")
    assert turnstile.take() == "a1"
    turnstile.put_back("a", "a1")
    assert drained(turnstile) == ["a1", "b1", "a2"]


def test_what_is_put_back_by_who_has_nothing_else_is_next():
    turnstile = joined("a1", "b1", "b2")
    assert turnstile.take() == "a1"
    turnstile.put_back("a", "a1")
    assert drained(turnstile) == ["a1", "b1", "b2"]


def test_several_put_back_in_reverse_are_as_they_were():
    turnstile = joined("a1", "b1", "a2", "b2")
    taken = [turnstile.take() for _ in range(3)]
    for item in reversed(taken):
        assert item is not None
        turnstile.put_back(item[0], item)
    assert drained(turnstile) == ["a1", "b1", "a2", "b2"]


def test_take_all_is_lane_by_lane_and_leaves_nobody():
    turnstile = joined("a1", "b1", "a2", "b2", "a3")
    assert list(turnstile) == ["a1", "a2", "a3", "b1", "b2"]
    assert turnstile.take_all() == ["a1", "a2", "a3", "b1", "b2"]
    assert len(turnstile) == 0
    assert turnstile.take() is None
    turnstile.join("b", "b3")
    assert drained(turnstile) == ["b3"]


class BesideAList(RuleBasedStateMachine):
    """Anything done in any order, beside the plainest thing that could be right: a list of lanes."""

    def __init__(self) -> None:
        super().__init__()
        self.turnstile: Turnstile[int] = Turnstile()
        self.lanes: list[tuple[str, list[int]]] = []  # nobody's lane is empty
        self.number = 0

    def lane(self, asker: str) -> list[int] | None:
        return next((lane for name, lane in self.lanes if name == asker), None)

    @rule(asker=st.sampled_from("abcde"))
    def join(self, asker: str) -> None:
        self.number += 1
        self.turnstile.join(asker, self.number)
        if (lane := self.lane(asker)) is not None:
            lane.append(self.number)
        else:
            self.lanes.append((asker, [self.number]))

    @rule(asker=st.sampled_from("abcde"))
    def put_back(self, asker: str) -> None:
        self.number += 1
        self.turnstile.put_back(asker, self.number)
        lane = self.lane(asker) or []
        self.lanes = [(asker, [self.number, *lane])] + [
            (name, others) for name, others in self.lanes if name != asker
        ]

    @rule()
    def take(self) -> None:
        expected = None
        if self.lanes:
            asker, (expected, *rest) = self.lanes.pop(0)
            if rest:
                self.lanes.append((asker, rest))
        assert self.turnstile.take() == expected

    @rule()
    def take_all(self) -> None:
        assert self.turnstile.take_all() == [item for _, lane in self.lanes for item in lane]
        self.lanes = []

    @invariant()
    def all_are_there(self) -> None:
        items = [item for _, lane in self.lanes for item in lane]
        assert list(self.turnstile) == items
        assert len(self.turnstile) == len(items)


TestBesideAList = BesideAList.TestCase


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=100))
def test_nobody_is_served_twice_while_another_waits(askers):
    """Between two turns of an asker, everyone else who waits has one."""
    turnstile: Turnstile[str] = Turnstile()
    for asker in askers:
        turnstile.join(asker, asker)
    served = drained(turnstile)
    assert sorted(served) == sorted(askers)
    for place, asker in enumerate(served):
        later = served[place + 1 :]
        if asker in later:
            between = later[: later.index(asker)]
            assert set(between) == set(later) - {asker}
