"""The tolerance of one mail host: when a list may raise it, and when it comes back."""

import pytest

from mailprobe.engine.smtp.tolerance import accounts
from mailprobe.engine.smtp.tolerance.accounts import FORGOTTEN_S, AccountsHere, WaitingHosts
from mailprobe.engine.smtp.tolerance.budget import OWN_START
from mailprobe.engine.smtp.tolerance.host import Tolerance
from mailprobe.engine.smtp.tolerance.limits import HOUR_S, WINDOW_S, Growth, Kind, RefusalLimits

PATIENCE_S = 4 * 3600.0


def ask(tolerance: Tolerance, now: float, *, accepted: int = 0, refused: int = 0) -> None:
    """Rows of a list, answered at once."""
    for number in range(accepted + refused):
        tolerance.budget.send(Kind.LIST, "mine", now)
        is_accepted = number < accepted
        tolerance.budget.answered(
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
    assert tolerance.budget.room(Kind.NAME, "mine", later) == 6  # of 100 rows 17.5 are refused
    for number in range(60):
        tolerance.budget.send(Kind.LIST, "mine", later, f"{number}@shop.test")
        tolerance.budget.recall(Kind.LIST, "mine")
    assert tolerance.budget.room(Kind.NAME, "mine", later) == 17


def test_rows_that_wait_still_count_after_a_growth() -> None:
    tolerance = Tolerance()
    tolerance.known.share_host()
    ask(tolerance, 0.0, accepted=100, refused=tolerance.known.tolerance)
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
        assert tolerance.budget.room(Kind.LIST, "mine", now) == 0
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


def test_a_list_that_is_cancelled_is_forgotten_at_each_host() -> None:
    """Nobody says that its rows don't come back: what other hosts turn away shows the time."""
    waiting = WaitingHosts()
    left, asked = AccountsHere(waiting), AccountsHere(waiting)
    left.meet("mine", 0.0).waiting.add(0.0, "1@shop.test", "shop.test")
    asked.meet("other", 1.0).waiting.add(1.0, "1@else.test", "")
    assert left.rows_waiting(1.0) == 1
    asked.meet("other", FORGOTTEN_S).waiting.add(FORGOTTEN_S, "2@else.test", "")
    assert left.rows_waiting(2.0) == 0
    assert left.refusals_waiting(2.0, 0.5) == 0.5  # no name either
    assert asked.rows_waiting(FORGOTTEN_S, FORGOTTEN_S) == 2


def test_rows_that_wait_have_a_bound_over_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host that turned rows away first forgets them; the others know theirs."""
    monkeypatch.setattr(accounts, "ROWS_MAX", 10)
    waiting = WaitingHosts()
    hosts = [AccountsHere(waiting) for _ in range(3)]
    for number in range(4):
        for host in hosts[:2]:
            host.meet("mine", 0.0).waiting.add(0.0, f"{number}@shop.test", "")
    hosts[0].meet("mine", 0.0).waiting.sent("0@shop.test")
    for number in range(3):
        hosts[2].meet("mine", 1.0).waiting.add(1.0, f"{number}@shop.test", "")
    assert [host.rows_waiting(1.0) for host in hosts] == [3, 4, 3]
    hosts[2].meet("mine", 1.0).waiting.add(1.0, "4@shop.test", "")
    assert [host.rows_waiting(1.0) for host in hosts] == [0, 4, 4]


def test_one_list_beyond_the_bound_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "ROWS_MAX", 2)
    host = AccountsHere(WaitingHosts())
    for number in range(5):
        host.meet("mine", 0.0).waiting.add(0.0, f"{number}@shop.test", "")
    assert 0 <= host.rows_waiting(0.0) <= 2
