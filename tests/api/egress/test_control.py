"""The control that processes share: its blocks, pauses, trials, and a store that is gone."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mailprobe.api.egress import control as control_module
from mailprobe.api.egress.blocks import BLOCK_MAX, HELD_SHARE, IDLE_MAX, wanted
from mailprobe.api.egress.control import POLL_S, StoredControl, open_control
from mailprobe.engine.egress import DailyLimit, Egress, Egresses
from mailprobe.storage import open_store
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.egresses import EgressGrant, EgressReport
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import SECRET

BEGUN = datetime(2026, 11, 26, 23, 58, tzinfo=UTC)
TODAY, TOMORROW = BEGUN.date(), BEGUN.date() + timedelta(days=1)
FILE = Egresses(
    (
        Egress("new", daily=(DailyLimit(TODAY, 500), DailyLimit(TOMORROW, 700))),
        Egress("old", source="192.0.2.1"),
    )
)


class Moments:
    """now(), by trio's clock."""

    def __init__(self) -> None:
        self.zero = trio.current_time()

    def __call__(self) -> datetime:
        return BEGUN + timedelta(seconds=trio.current_time() - self.zero)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with open_store("memory:", secret_key=SECRET, now=Moments()) as opened:
        yield opened


class Reaching:
    """A store that answers as long as it is reached; counts the reports."""

    def __init__(self, store: Store) -> None:
        self.store, self.is_there, self.reports = store, True, 0

    async def report_egresses(self, report: EgressReport) -> EgressGrant:
        await self._reach()
        self.reports += 1
        return await self.store.report_egresses(report)

    async def egresses(self, day: date) -> Any:
        await self._reach()
        return await self.store.egresses(day)

    async def _reach(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self.is_there:
            raise StoreUnavailable("gone")


async def drained(control: StoredControl, seconds: float = 30.0, step: int = 25) -> int:
    """All that this process gets within a time."""
    got, until = 0, trio.current_time() + seconds
    while trio.current_time() < until:
        got += control.reserve("new", step)
        await trio.sleep(0.4)
    return got


async def test_all_processes_together_use_the_day_up_and_no_more(
    store: Store, autojump_clock: Any
) -> None:
    got: list[int] = []
    async with AsyncExitStack() as stack:
        controls = [
            await stack.enter_async_context(open_control(FILE, store, Moments())) for _ in range(5)
        ]
        async with trio.open_nursery() as nursery:
            for control in controls:
                nursery.start_soon(_count, got, control)
    assert sum(got) == 500
    uses = (await store.egresses(TODAY)).uses["new"]
    assert (uses.reserved, uses.asked) == (500, 500)


async def _count(got: list[int], control: StoredControl) -> None:
    got.append(await drained(control))


async def test_others_get_the_rest_of_a_block_that_is_not_used(
    store: Store, autojump_clock: Any
) -> None:
    moments = Moments()
    async with open_control(FILE, store, moments) as idle:
        assert idle.reserve("new", 5) == 5
        async with open_control(FILE, store, moments) as busy:
            got = await drained(busy)
    assert 490 < got <= 495  # one or two stay with the idle process
    assert (await store.egresses(TODAY)).uses["new"].reserved == got + 5  # until it ends


async def test_a_killed_process_loses_its_block_alone(store: Store, autojump_clock: Any) -> None:
    killed = StoredControl(FILE, Moments())
    await killed.exchange(store)
    async with open_control(FILE, store, Moments()) as other:
        got = await drained(other)
    assert got == 500 - 500 // HELD_SHARE


async def test_a_process_that_is_killed_at_each_start_does_not_use_up_the_day(
    store: Store, autojump_clock: Any
) -> None:
    for _ in range(10):
        await StoredControl(FILE, Moments()).exchange(store)
    async with open_control(FILE, store, Moments()) as other:
        assert await drained(other) >= 400


async def test_the_next_day_has_its_own_limit(store: Store, autojump_clock: Any) -> None:
    async with open_control(FILE, store, Moments()) as control:
        assert await drained(control) == 500
        await trio.sleep(91)  # past midnight
        assert await drained(control) == 700
        assert [each.limit for each in control.overview()] == [700, None]


async def test_a_day_is_used_up_once_others_had_time_to_give_back(
    store: Store, autojump_clock: Any
) -> None:
    """Until then addresses wait: at the start, at midnight, and while the store is away."""
    reaching: Any = Reaching(store)
    async with open_control(FILE, reaching, Moments()) as control:
        for limit in (500, 700):
            assert control.reserve("new", 1_000) < limit
            assert control.awaits_more("new")
            reaching.is_there = False
            await trio.sleep(20)
            control.reserve("new", 1_000)
            assert control.awaits_more("new")
            reaching.is_there = True
            await drained(control)
            assert control.reserve("new", 1) == 0
            assert not control.awaits_more("new")
            await trio.sleep(91)  # past midnight
            assert not control.awaits_more("old")


async def test_an_egress_without_a_limit_is_counted_alone(
    store: Store, autojump_clock: Any
) -> None:
    async with open_control(FILE, store, Moments()) as control:
        assert control.reserve("old", 100_000) == 100_000
        assert control.reserve("gone", 1) == 0
        await trio.sleep(10)
        assert [each.asked for each in control.overview()] == [0, 100_000]
    assert (await store.egresses(TODAY)).uses["old"].asked == 100_000


async def test_a_pause_reaches_every_process_within_two_seconds(
    store: Store, autojump_clock: Any
) -> None:
    async with AsyncExitStack() as stack:
        all_of = [
            await stack.enter_async_context(open_control(FILE, store, Moments())) for _ in range(3)
        ]
        for act, state in ((store.pause_egress, "paused"), (store.resume_egress, "active")):
            await act("old")
            await trio.sleep(2)
            assert [each.state("old") for each in all_of] == [state] * 3


async def test_one_process_tries_a_quarantined_egress_and_all_learn_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    monkeypatch.setattr("mailprobe.storage.egresses.TRIAL_EVERY", timedelta(seconds=20))
    async with AsyncExitStack() as stack:
        a, b = [
            await stack.enter_async_context(open_control(FILE, store, Moments())) for _ in range(2)
        ]
        a.quarantine("old", "15 of 20 answers refused us")
        assert a.state("old") == "quarantined"
        await trio.sleep(2)
        assert b.state("old") == "quarantined"
        assert not await _tries([a, b])  # not yet
        await trio.sleep(20)
        assert await _tries([a, b]) == 1
        a.release("old")
        assert a.state("old") == "active"
        await trio.sleep(2)
        assert [each.state("old") for each in (a, b)] == ["active"] * 2


async def _tries(controls: list[StoredControl]) -> int:
    tries = 0
    for _ in range(8):
        tries += sum(each.reserve_trial("old") for each in controls)
        await trio.sleep(0.5)
    return tries


async def test_without_the_store_the_last_state_holds_and_the_block_is_the_limit(
    store: Store, autojump_clock: Any
) -> None:
    reaching: Any = Reaching(store)
    async with open_control(FILE, reaching, Moments()) as control:
        await store.pause_egress("old")
        await trio.sleep(2)
        reaching.is_there = False
        await store.resume_egress("old")
        control.answered("new", "google", "mx.example", "blocked_us")
        control.quarantine("new", "refused")
        got = await drained(control)
        assert got == 500 // HELD_SHARE
        assert control.state("old") == "paused"
        assert control.state("new") == "quarantined"
        reaching.is_there = True
        await trio.sleep(10)
        assert control.state("old") == "active"
        assert await drained(control) == 500 - got
    assert (await store.egresses(TODAY)).uses["new"].asked == 500
    assert (await store.egresses(TODAY)).rests["new"].why == "refused"
    assert [reply.times for reply in await store.egress_replies()] == [1]


async def test_addresses_that_were_given_back_are_not_used_when_the_answer_is_lost(
    store: Store, autojump_clock: Any
) -> None:
    """The store may have them already: to use them too would exceed the limit."""
    reaching: Any = Reaching(store)
    control = StoredControl(FILE, Moments())
    control.reserve("new", 100)  # a need that passes
    await control.exchange(reaching)
    reaching.is_there = False
    await control.exchange(reaching)  # gives back what is beyond its share
    assert control.reserve("new", 200) <= 50


async def test_an_idle_process_only_reads(store: Store, autojump_clock: Any) -> None:
    reaching: Any = Reaching(store)
    async with open_control(FILE, reaching, Moments()):
        await trio.sleep(control_module.COUNTS_EVERY_S)
        before = reaching.reports
        await trio.sleep(30 * POLL_S)
    assert reaching.reports - before <= 1  # the last, at the end


async def test_two_processes_that_want_the_last_block_at_once_share_it(tmp_path: Path) -> None:
    """Two connections, each with its thread, to one file."""
    place = str(tmp_path / "shared.db")
    got: list[int] = []

    async def race(store: Store) -> None:
        control = StoredControl(FILE, lambda: BEGUN)
        for _ in range(60):
            got.append(control.reserve("new", 30))
            await control.exchange(store)

    async with (
        open_store(place, secret_key=SECRET) as first,
        open_store(place, secret_key=SECRET) as second,
    ):
        async with trio.open_nursery() as nursery:
            for store in (first, second):
                nursery.start_soon(race, store)
        assert (await first.egresses(TODAY)).uses["new"].reserved <= 500
    assert 400 < sum(got) <= 500


@pytest.mark.parametrize(
    ("left", "used", "free", "more"),
    [
        (0, 0, 500, 10),  # a fiftieth of the day, before it is needed
        (0, 0, 10**9, IDLE_MAX),
        (10, 0, 450, 0),
        (0, 100, 500, 200),
        (0, 10**6, 10**9, BLOCK_MAX),
        (200, 0, 300, -194),
        (25, 0, 100, -23),  # it gets scarce
        (1, 0, 0, 0),
        (0, 0, 0, 1),
    ],
)
def test_a_block_is_as_large_as_the_need(left: int, used: int, free: int, more: int) -> None:
    assert wanted(left, used, free) == more
