"""The tolerance of one mail host: when a list may raise it, and when it comes back."""

from mailprobe.engine.smtp.tolerance.host import OWN_START, Tolerance
from mailprobe.engine.smtp.tolerance.limits import HOUR_S, WINDOW_S, Growth, Kind, RefusalLimits

PATIENCE_S = 4 * 3600.0


def ask(tolerance: Tolerance, now: float, *, accepted: int = 0, refused: int = 0) -> None:
    """Rows of a list, answered at once."""
    for number in range(accepted + refused):
        tolerance.send(Kind.LIST, "mine", now)
        is_accepted = number < accepted
        tolerance.answered(
            Kind.LIST, "mine", now, accepted=is_accepted, refused=not is_accepted
        )  # fmt: skip


def turn_away(tolerance: Tolerance, rows: int, now: float) -> None:
    for number in range(rows):
        tolerance.turned_away("mine", now, f"{number}@shop.test")


def test_rows_that_come_back_several_times_are_counted_once() -> None:
    """Somebody's own server is not raised for a list that will be done within its patience."""
    tolerance = Tolerance()
    ask(tolerance, 0.0, accepted=20, refused=OWN_START)
    for number in range(10):
        turn_away(tolerance, 100, number * 30.0)
    ask(tolerance, 301.0, accepted=1)
    assert tolerance.growth(Kind.LIST, "mine", 301.0, PATIENCE_S) is Growth.NOT


def test_rows_that_wait_are_counted_until_they_are_sent() -> None:
    """They are turned away as they come: one of them a second, or all at once."""
    tolerance = Tolerance(RefusalLimits(tolerance=64, hour=24))
    ask(tolerance, 0.0, accepted=80, refused=20)
    later = HOUR_S + 1.0
    for number in range(100):
        tolerance.turned_away("mine", later + number, f"{number}@shop.test")
    later += 100.0
    assert tolerance.room(Kind.NAME, "mine", later) == 6  # of 100 rows 17.5 are refused
    for number in range(60):
        tolerance.send(Kind.LIST, "mine", later, f"{number}@shop.test")
        tolerance.recall(Kind.LIST, "mine")
    assert tolerance.room(Kind.NAME, "mine", later) == 17


def test_rows_that_wait_still_count_after_a_growth() -> None:
    tolerance = Tolerance()
    tolerance.share_host()
    ask(tolerance, 0.0, accepted=100, refused=tolerance.tolerance)
    turn_away(tolerance, 2_000, 1.0)
    ask(tolerance, 61.0, accepted=1)
    assert tolerance.growth(Kind.LIST, "mine", 61.0, PATIENCE_S) is Growth.NOW
    tolerance.grow()
    assert tolerance.growth(Kind.LIST, "mine", 61.0, PATIENCE_S) is Growth.NOW


def test_a_list_without_room_never_comes_back_at_once() -> None:
    """Nor where its time to grow has come and nothing shows that the host judges."""
    tolerance = Tolerance()
    ask(tolerance, 0.0, refused=OWN_START)
    turn_away(tolerance, 1_000, 0.0)
    for now in (0.0, 59.0, 61.0, 300.0, 590.0):
        assert tolerance.room(Kind.LIST, "mine", now) == 0
        wait_s = tolerance.next_room_s(Kind.LIST, "mine", now, PATIENCE_S)
        assert 1.0 <= wait_s <= WINDOW_S + 10
        assert now < 61.0 or wait_s >= 10.0


def test_a_list_of_little_patience_comes_back_while_a_proof_is_under_way() -> None:
    """A minute would be the end of its patience, and what the proof shows would not be told."""
    tolerance = Tolerance()
    ask(tolerance, 0.0, refused=OWN_START)
    turn_away(tolerance, 1_000, 0.0)
    assert tolerance.next_room_s(Kind.LIST, "mine", 4.0, 26.0) <= 3.0


def test_a_limit_of_a_share_does_not_grow() -> None:
    tolerance = Tolerance(RefusalLimits(session=8, tolerance=64, share=0.5), "forcepoint")
    ask(tolerance, 0.0, accepted=2, refused=3)
    assert tolerance.is_spent(Kind.LIST, "mine", 1.0)
    turn_away(tolerance, 2_000, 1.0)
    ask_again_s = tolerance.next_room_s(Kind.LIST, "mine", 1.0, PATIENCE_S)
    assert ask_again_s >= WINDOW_S
    assert tolerance.growth(Kind.LIST, "mine", 100.0, PATIENCE_S) is Growth.NOT
