"""Which body is refused when all together hold too much."""

import pytest

from mailprobe.api.admission.request_bodies import OCTETS_MAX, ArrivingBody, BodyBudget

MIB = 1024 * 1024


class Bodies:
    """Bodies of one budget, and the names of those that were refused."""

    def __init__(self) -> None:
        self.budget = BodyBudget(address_bodies_max=10_000, account_bodies_max=10_000)
        self.refused: list[str] = []

    def arriving(self, name: str, octets: int, key: str | None) -> ArrivingBody:
        body = ArrivingBody(self.budget, "192.0.2.1", lambda: self.refused.append(name))
        if key is not None:
            body.identify(key)
        body.acquire(octets)
        return body


@pytest.mark.parametrize("key", [None, "of the flood", "of another customer"])
def test_a_small_body_is_not_refused_beside_large_ones(key: str | None) -> None:
    bodies = Bodies()
    flood = [bodies.arriving(f"large {number}", MIB, "of the flood") for number in range(60)]
    bodies.arriving("small", 30, key)
    flood[0].acquire(MIB)
    assert bodies.refused
    assert "small" not in bodies.refused


def test_small_bodies_are_refused_where_there_are_no_others() -> None:
    bodies = Bodies()
    number = OCTETS_MAX // (16 * 1024)
    for each in range(number):
        bodies.arriving(str(each), 16 * 1024, "one key")
    assert bodies.budget.octets <= OCTETS_MAX
    assert len(bodies.refused) == number // 16
    assert str(number - 1) in bodies.refused


def test_the_youngest_without_a_key_is_refused_first_then_of_the_key_that_holds_most() -> None:
    bodies = Bodies()
    for number in range(20):
        bodies.arriving(f"A{number}", MIB, "A")
    for number in range(30):
        bodies.arriving(f"B{number}", MIB, "B")
    bodies.arriving("without", MIB, None)
    for number in range(10):
        bodies.arriving(f"C{number}", MIB, "C")
    assert bodies.refused == ["without"]
    bodies.arriving("C10", MIB, "C")
    assert bodies.refused == ["without", "B29"]
