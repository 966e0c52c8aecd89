"""The share of an account is a floor; what is free goes to whoever has work."""

from collections import Counter
from collections.abc import Set

from mailprobe.api.lists.shares import (
    CHUNKS_EACH_MIN,
    CLAIMED_MAX,
    ClaimSize,
    WaitingAccounts,
    claim_room,
    last_in_turn,
)

PLACES = 400
KEPT = 100  # for accounts below their floor


def most_of(held: dict[str, int], waiting: Set[str] = frozenset()) -> dict[str, int]:
    return {
        account: share.most for account, share in claim_room(held, waiting, PLACES).shares.items()
    }


def test_an_account_alone_gets_all_but_what_is_kept_for_others():
    held, waiting = Counter[str](), set[str]()
    for _ in range(20):
        room = claim_room(held, waiting, PLACES)
        most = room.shares["a"].most if "a" in room.shares else room.each_max
        held["a"] = min(held["a"] + room.limit, max(most, held["a"]))
        assert held["a"] <= PLACES - KEPT
    assert held["a"] == PLACES - KEPT


def test_an_account_whose_chunks_wait_has_its_floor_alone():
    assert most_of({"a": 3, "b": 50}) == {"a": 6, "b": 100}
    assert most_of({"a": 3, "b": 50}, {"a", "b"}) == dict.fromkeys("ab", CHUNKS_EACH_MIN)


def test_accounts_below_their_floor_get_the_places_that_are_kept():
    held = {"a": PLACES - KEPT}
    room = claim_room(held, set(), PLACES)
    assert (room.limit, room.shares["a"].most, room.each_max) == (
        50,
        CHUNKS_EACH_MIN,
        CHUNKS_EACH_MIN,
    )
    assert claim_room({"a": PLACES - 3}, set(), PLACES).limit == 3
    assert claim_room({"a": PLACES}, set(), PLACES).limit == 0


def test_a_claim_is_half_as_large_after_each_failure():
    size = ClaimSize()
    for most in (25, 12, 6, 3, 1, 1):
        size.failed()
        assert size.most == claim_room({}, set(), PLACES, claimed_max=size.most).limit == most
    for _ in range(10):
        size.succeeded([])
    assert size.most == CLAIMED_MAX


def test_a_claim_takes_what_its_service_has_capacity_for():
    size = ClaimSize()
    assert size.fitting(0) == 0
    assert size.fitting(20) == 1
    assert size.fitting(1_000_000) == CLAIMED_MAX
    for _ in range(10):
        size.succeeded([3, 3, 0])  # lists of three addresses, and the end of one
    assert size.fitting(20) == 7
    size.succeeded([0])
    assert size.fitting(20) == 7
    for _ in range(10):
        size.succeeded([100])
    assert size.fitting(20) == 1


def test_the_next_turn_is_behind_the_account_that_was_last():
    assert last_in_turn({}, [], after="x") == "x"
    assert last_in_turn({}, ["c", "b", "a"], after="") == "c"
    assert last_in_turn({}, ["c", "b", "a"], after="b") == "b"  # the order was c, a, b
    assert last_in_turn({"a": 4}, ["c", "b", "a"], after="b") == "a"


def test_an_account_waits_as_long_as_one_of_its_chunks_does():
    waiting = WaitingAccounts()
    with waiting.waits("a"):
        with waiting.waits("a"), waiting.waits("b"):
            assert waiting.accounts() == {"a", "b"}
        assert waiting.accounts() == {"a"}
    assert not waiting.accounts()
