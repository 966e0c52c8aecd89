"""Turns are shared by account: by the time that each has used, with pauses, bounds and refusals."""

import pytest
import trio
import trio.testing

from mailprobe.api.admission.turns import BEGIN_S, HALF_LIFE_S, SLICE_S, FairTurns, UsedTime
from mailprobe.api.refusals import Overloaded

Clock = trio.testing.MockClock


class Work:
    """Takes seconds of turns; knows when it ran, and how it ended."""

    def __init__(self, turns: FairTurns, account: str, seconds: float) -> None:
        self.turns, self.account, self.left_s = turns, account, seconds
        self.begun_at = self.ended_at = -1.0
        self.is_refused = False
        self.pauses = 0

    def pause(self) -> None:
        self.pauses += 1

    def go_on(self) -> None:
        pass

    async def run(self) -> None:
        try:
            async with self.turns.turn(self.account) as turn:
                self.begun_at = trio.current_time()
                while self.left_s > 0:
                    await trio.sleep(min(0.1, self.left_s))
                    self.left_s -= 0.1
                    await turn.make_way(self.pause, self.go_on)
                self.ended_at = trio.current_time()
        except Overloaded:
            self.is_refused = True


async def test_accounts_take_turns_and_one_that_leaves_holds_up_no_other(
    autojump_clock: Clock,
) -> None:
    turns = FairTurns(2)
    begun: list[str] = []

    async def read(account: str, within_s: float = 100) -> None:
        with trio.move_on_after(within_s):
            async with turns.turn(account):
                begun.append(account)
                await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for account in ("busy",) * 5:
            nursery.start_soon(read, account)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(read, "leaving", 0.5)
        nursery.start_soon(read, "other")
    assert begun[:2] == ["busy", "busy"]
    assert set(begun[2:4]) == {"busy", "other"}  # in the same instant
    assert begun[4:] == ["busy", "busy"]
    async with turns.turn("a"), turns.turn("b"):
        pass  # both are free again


async def test_the_account_that_has_used_least_is_next(autojump_clock: Clock) -> None:
    turns = FairTurns(1)
    for account, seconds in (("much", 9), ("little", 1)):
        async with turns.turn(account):
            await trio.sleep(seconds)
    works = [Work(turns, account, 1) for account in ("first", "much", "little", "new")]
    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(work.run)
            await trio.testing.wait_all_tasks_blocked()
    order = sorted(works, key=lambda work: work.begun_at)
    assert [work.account for work in order] == ["first", "new", "little", "much"]


def test_used_time_is_forgotten_by_halves() -> None:
    used = UsedTime()
    used.add("ann", 8, 100)
    assert used.at("ann", 100 + 3 * HALF_LIFE_S) == pytest.approx(1)
    used.add("bob", 1, 100 + 30 * HALF_LIFE_S)
    assert used.at("ann", 100) == 0  # swept


async def test_short_work_waits_for_slices_of_long_work_and_not_for_its_end(
    autojump_clock: Clock,
) -> None:
    turns = FairTurns(2, begun_max=4)
    long = [Work(turns, name, 60) for name in "abc"]
    short = Work(turns, "neighbour", 0.5)
    async with trio.open_nursery() as nursery:
        for work in long:
            nursery.start_soon(work.run)
        await trio.sleep(10)
        nursery.start_soon(short.run)
    assert short.ended_at < 10 + 2 * SLICE_S
    assert not short.pauses
    assert all(work.pauses for work in long)
    assert max(work.ended_at for work in long) < 95  # two at a time, of three times 60 s


async def test_one_account_uses_what_is_free_without_a_pause(autojump_clock: Clock) -> None:
    turns = FairTurns(2, begun_max=4)
    works = [Work(turns, "ann", 30) for _ in range(2)]
    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(work.run)
    assert [work.pauses for work in works] == [0, 0]
    assert trio.current_time() == pytest.approx(30)


async def test_no_account_has_more_begun_turns_than_it_may(autojump_clock: Clock) -> None:
    turns = FairTurns(9, account_max=4)
    works = [Work(turns, "ann", 10) for _ in range(40)]
    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(work.run)
        await trio.sleep(5)
        assert sum(work.begun_at >= 0 for work in works) == 4
        async with turns.turn("bob"):
            assert trio.current_time() == 5
    assert not any(work.is_refused for work in works)


async def test_where_all_are_begun_the_account_that_has_used_most_ends_for_a_new_one(
    autojump_clock: Clock,
) -> None:
    """Four accounts would otherwise keep out a fifth, however short its work is."""
    turns = FairTurns(2, account_max=1, begun_max=4)
    long = [Work(turns, str(number), 600) for number in range(8)]
    async with trio.open_nursery() as nursery:
        for work in long:
            nursery.start_soon(work.run)
        await trio.sleep(60)
        short = Work(turns, "neighbour", 0.5)
        began_at = trio.current_time()
        await short.run()
        assert short.ended_at - began_at < BEGIN_S + 2 * SLICE_S
        nursery.cancel_scope.cancel()
    assert not short.is_refused


async def test_turns_that_wait_too_long_are_refused_beginning_with_the_account_that_has_most(
    autojump_clock: Clock,
) -> None:
    turns = FairTurns(1, wait_s=10)
    works: list[Work] = []
    async with trio.open_nursery() as nursery:
        for account in ("busy", "ann", "many", "many", "many", "many"):
            works.append(Work(turns, account, 12.5))
            nursery.start_soon(works[-1].run)
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(11.5)
        # All wait for longer than 10 s: one is refused each second, of the account with most.
        assert [work.is_refused for work in works] == [False] * 3 + [False, True, True]
    assert not works[1].is_refused


async def test_those_of_an_account_that_wait_for_its_own_are_refused_alone(
    autojump_clock: Clock,
) -> None:
    turns = FairTurns(float("inf"), account_max=1, wait_s=10)
    works = [Work(turns, name, 4 if name == "ann" else 15) for name in ("ann", "ann", *["bob"] * 3)]
    async with trio.open_nursery() as nursery:
        for work in works[2:]:
            nursery.start_soon(work.run)
        await trio.sleep(8)
        for work in works[:2]:
            nursery.start_soon(work.run)
    assert [work.is_refused for work in works[:2]] == [False, False]
    assert sum(work.is_refused for work in works[2:]) == 2


async def test_more_waiting_than_there_may_be_are_refused_at_once(autojump_clock: Clock) -> None:
    turns = FairTurns(1, waiting_max=2)
    works = [Work(turns, account, 1) for account in ("busy", "many", "many", "ann")]
    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(work.run)
            await trio.testing.wait_all_tasks_blocked()
        assert [work.is_refused for work in works] == [False, False, True, False]


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.5, 3.5, 4.2])
async def test_a_cancelled_turn_is_free_again_at_each_moment(
    after_s: float, autojump_clock: Clock
) -> None:
    turns = FairTurns(1, account_max=1, begun_max=2)
    works = [Work(turns, account, 3) for account in ("ann", "bob", "eve")]
    scopes = [trio.CancelScope() for _ in works]

    async def run(work: Work, scope: trio.CancelScope) -> None:
        with scope:
            await work.run()

    async with trio.open_nursery() as nursery:
        for each in zip(works, scopes, strict=True):
            nursery.start_soon(run, *each)
        await trio.sleep(after_s)
        for scope in scopes[:2]:
            scope.cancel()
    assert works[2].ended_at > 0 or works[2].is_refused
    async with turns.turn("a"):
        pass


async def test_a_refused_block_ends_with_overloaded_and_a_finished_one_does_not(
    autojump_clock: Clock,
) -> None:
    """A list that was stored is not reported as refused."""
    turns = FairTurns(1)

    async def refuse(wait_s: float) -> None:
        async with turns.turn("ann") as turn:
            turn.refuse()
            if wait_s:
                await trio.sleep(wait_s)

    await refuse(0)
    with pytest.raises(Overloaded):
        await refuse(1)
