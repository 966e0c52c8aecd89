"""Every store: reservations, limits, counters and rows."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.storage.contract import REFUSALS_SINGLE_MAX, SETTLED_KEPT
from mailprobe.storage.records import (
    DayCount,
    DayLight,
    Ledger,
    Reservation,
)
from mailprobe.storage.store import Store
from tests.storage.contract.calls import JANUARY_ENDS, at_most, refusal
from tests.storage.fixed_clock import (
    INSTANT,
    NOON,
    RETENTION,
    Clock,
    another_key,
    granted,
    make_caller,
    row,
    use,
)

# reservations


async def test_a_new_ledger_is_empty(store: Store):
    caller = await make_caller(store)
    ledger = await store.ledger(caller)
    assert ledger.asked_at == NOON
    assert tuple(ledger.window) == ()
    assert ledger.window_units == 0
    assert (ledger.month_units, ledger.month_billable) == (0, 0)
    assert (ledger.period_billable, ledger.reserved) == (0, 0)
    assert ledger.period_start == datetime(2025, 3, 1, tzinfo=UTC)
    assert ledger.period_end == datetime(2025, 4, 1, tzinfo=UTC)


async def test_reserved_units_count_before_they_are_settled(store: Store):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 7, granted, lease_s=60)
    assert isinstance(reservation, Reservation)
    assert (reservation.units, reservation.caller) == (7, caller)
    ledger = await store.ledger(caller)
    assert tuple(ledger.window) == ((NOON, 7),)
    assert (ledger.month_units, ledger.reserved) == (7, 7)
    assert (ledger.month_billable, ledger.period_billable) == (0, 0)


async def test_a_refused_reservation_changes_nothing(store: Store):
    caller = await make_caller(store)
    seen = []

    def refuse(ledger: Ledger) -> str:
        seen.append(ledger)
        return "no"

    assert await store.reserve(caller, 7, refuse, lease_s=60) == "no"
    assert seen == [await store.ledger(caller)]
    assert seen[0].reserved == 0


async def test_an_error_of_the_limit_check_reserves_nothing(store: Store):
    caller = await make_caller(store)

    def stumble(_: Ledger) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.reserve(caller, 7, stumble, lease_s=60)
    assert (await store.ledger(caller)).reserved == 0


@pytest.mark.parametrize("units", [0, -1])
async def test_less_than_one_unit_cannot_be_reserved(store: Store, units: int):
    caller = await make_caller(store)
    with pytest.raises(ValueError, match="cannot be reserved"):
        await store.reserve(caller, units, granted, lease_s=60)


async def test_settled_units_count_and_the_rest_is_released(store: Store):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 10, granted, lease_s=60)
    rows = [row(NOON), row(NOON, billable=False, failed_check="syntax", status="invalid")]
    await store.settle(reservation, rows)
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.month_billable) == (2, 1)
    assert (ledger.period_billable, ledger.reserved) == (1, 0)
    assert ledger.window_units == 10  # a rate is of what was asked
    assert await store.usage(caller.account.id, limit=10) == rows[::-1]


async def test_nothing_used_is_settled_with_no_rows(store: Store):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 10, granted, lease_s=60)
    await store.settle(reservation, [])
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.reserved) == (0, 0)


async def test_settling_twice_counts_once(store: Store, clock: Clock):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 2, granted, lease_s=60)
    await store.settle(reservation, [row(NOON)] * 2)
    await store.settle(reservation, [row(NOON)] * 2)
    clock.advance(days=1)
    await store.apply_retention(RETENTION)
    await store.settle(reservation, [row(NOON)] * 2)
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.month_billable) == (2, 2)
    assert len(await store.usage(caller.account.id, limit=10)) == 2


async def test_spending_checks_and_counts_at_once(store: Store):
    caller = await make_caller(store)
    rows = [row(NOON), row(NOON, billable=False)]
    seen: list[tuple[int, int]] = []

    def weigh(ledger: Ledger) -> str | None:
        seen.append((ledger.window_units, ledger.month_units))
        return "no" if ledger.window_units else None

    assert await store.spend(caller, rows, weigh) is None
    assert await store.spend(caller, rows, weigh) == "no"
    ledger = await store.ledger(caller)
    assert seen == [(0, 0), (2, 2)]
    assert (ledger.window_units, ledger.month_units, ledger.month_billable) == (2, 2, 1)
    assert ledger.reserved == 0
    assert await store.usage(caller.account.id, limit=9) == rows[::-1]
    assert await store.days(caller.account.id, NOON.date(), NOON.date()) == [
        DayCount(NOON.date(), 1)
    ]


async def test_spent_units_are_metered_if_the_account_is(store: Store):
    caller = await make_caller(store)
    await store.spend(caller, [row(NOON)] * 3, granted, emit_meter_event=True)
    await store.spend(caller, [row(NOON)], granted)
    assert [message.count for message in await store.messages("meter", limit=9)] == [3]


async def test_an_error_of_the_limit_check_spends_nothing(store: Store):
    caller = await make_caller(store)

    def weigh(_: Ledger) -> None:
        raise LookupError("a bug")

    with pytest.raises(LookupError):
        await store.spend(caller, [row(NOON)], weigh)
    assert (await store.ledger(caller)).window_units == 0
    assert await store.usage(caller.account.id, limit=9) == []


async def test_less_than_one_unit_cannot_be_spent(store: Store):
    caller = await make_caller(store)
    with pytest.raises(ValueError, match="0 units"):
        await store.spend(caller, [row(NOON, units=0)], granted)


async def test_parallel_spendings_never_pass_the_edge(store: Store):
    caller = await make_caller(store)
    refused = 0

    async def spend() -> None:
        nonlocal refused
        outcome = await store.spend(
            caller, [row(NOON)], lambda ledger: "no" if ledger.window_units >= 10 else None
        )
        refused += outcome == "no"

    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(spend)
    assert refused == 50
    assert (await store.ledger(caller)).month_billable == 10


async def test_a_lease_that_ends_gives_quota_back_and_not_the_rate(store: Store, clock: Clock):
    caller = await make_caller(store)
    await store.reserve(caller, 5, granted, lease_s=30)
    clock.advance(29.999_999)
    assert (await store.ledger(caller)).reserved == 5
    clock.advance(0.000_001)
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.reserved, ledger.window_units) == (0, 0, 5)


async def test_units_settled_after_their_lease_ended_count_once(store: Store, clock: Clock):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 5, granted, lease_s=30)
    clock.advance(31)
    await store.reserve(caller, 1, granted, lease_s=30)  # gives the ended lease back
    await store.apply_retention(RETENTION)
    for _ in range(2):
        await store.settle(reservation, [row(clock())] * 3)
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.month_billable, ledger.reserved) == (4, 3, 1)


async def test_a_lease_is_extended_while_it_lasts_and_not_after(store: Store, clock: Clock):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 5, granted, lease_s=30)
    clock.advance(20)
    await store.extend(reservation, lease_s=30)
    clock.advance(29)
    assert (await store.ledger(caller)).reserved == 5
    clock.advance(1)
    await store.extend(reservation, lease_s=30)
    assert (await store.ledger(caller)).reserved == 0


async def test_a_settled_reservation_is_not_extended(store: Store):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 5, granted, lease_s=30)
    await store.settle(reservation, [])
    await store.extend(reservation, lease_s=30)
    assert (await store.ledger(caller)).reserved == 0


async def test_a_part_that_is_settled_is_no_longer_reserved(store: Store):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 5, granted, lease_s=30)
    await store.settle(reservation, [row(NOON)] * 2, part=0, ends=False)
    ledger = await store.ledger(caller)
    assert (ledger.reserved, ledger.month_units, ledger.month_billable) == (3, 5, 2)
    await store.settle(reservation, [row(NOON)], part=1)
    ledger = await store.ledger(caller)
    assert (ledger.reserved, ledger.month_units, ledger.month_billable) == (0, 3, 3)


async def test_each_part_counts_once_in_whatever_order_they_come(store: Store, clock: Clock):
    """A part that could not be written at first may follow the last one."""
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 5, granted, lease_s=30)
    for part in (2, 0, 2, 1, 0, 1):
        await store.settle(reservation, [row(NOON)], part=part, ends=part == 2)
    clock.advance(60)
    await store.settle(reservation, [row(NOON)] * 2, part=3, ends=False)
    ledger = await store.ledger(caller)
    assert (ledger.reserved, ledger.month_units, ledger.month_billable) == (0, 5, 5)
    assert len(await store.usage(caller.account.id, limit=10)) == 5


async def test_a_reservation_in_parts_ends_with_its_lease(store: Store, clock: Clock):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 5, granted, lease_s=30)
    await store.settle(reservation, [row(NOON)], ends=False)
    clock.advance(30)
    await store.apply_retention({})
    assert (await store.ledger(caller)).month_units == 1


async def test_settling_again_is_recognised_for_a_week(store: Store, clock: Clock):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 1, granted, lease_s=30)
    await store.settle(reservation, [row(NOON)])
    clock.at += SETTLED_KEPT - INSTANT
    await store.apply_retention({})
    await store.settle(reservation, [row(NOON)])
    assert (await store.ledger(caller)).month_billable == 1


# edges


@pytest.mark.parametrize(("seconds", "weighs"), [(0, 3), (59.999, 3), (59.999_999, 3), (60, 0)])
async def test_a_unit_weighs_for_sixty_seconds(
    store: Store, clock: Clock, seconds: float, weighs: int
):
    caller = await make_caller(store)
    await use(store, caller, NOON, 3)
    clock.advance(seconds)
    ledger = await store.ledger(caller)
    assert ledger.window_units == weighs
    assert tuple(ledger.window) == (((NOON, 3),) if weighs else ())


async def test_the_window_slides_unit_by_unit(store: Store, clock: Clock):
    caller = await make_caller(store)
    for _ in range(4):
        await store.reserve(caller, 2, granted, lease_s=1)
        clock.advance(20)
    expected = ((NOON + timedelta(seconds=40), 2), (NOON + timedelta(seconds=60), 2))
    assert tuple((await store.ledger(caller)).window) == expected
    await store.apply_retention(RETENTION)
    assert tuple((await store.ledger(caller)).window) == expected


async def test_a_clock_set_back_keeps_the_windows_sum_and_its_order(store: Store, clock: Clock):
    caller = await make_caller(store)
    for seconds, units in [(0, 1), (10, 2), (-5, 4), (0, 8), (-30, 16), (50, 32)]:
        clock.advance(seconds)
        await store.reserve(caller, units, granted, lease_s=600)
        ledger = await store.ledger(caller)
        assert ledger.window_units == sum(units for _, units in ledger.window)
        assert list(ledger.window) == sorted(ledger.window)
    assert [units for _, units in ledger.window] == [31, 32]


async def test_as_much_of_a_window_is_read_while_weighing_as_is_looked_at(
    store: Store, clock: Clock
):
    caller = await make_caller(store)
    for _ in range(5):
        await store.reserve(caller, 3, granted, lease_s=60)
        clock.advance(1)
    seen: list[Any] = []

    def weigh(ledger: Ledger) -> str:
        seen.append(next(iter(ledger.window)))
        seen.append(len(tuple(ledger.window)))
        seen.append(tuple(ledger.window)[-1])
        return "no"

    assert await store.reserve(caller, 1, weigh, lease_s=60) == "no"
    assert seen == [(NOON, 3), 5, (NOON + timedelta(seconds=4), 3)]


async def test_a_window_is_a_keys_and_the_rest_is_the_accounts(store: Store):
    one = await make_caller(store)
    two = await another_key(store, one.account.id, "second")
    stranger = await make_caller(store, sha256="third")
    await use(store, one, NOON, 3)
    await store.reserve(one, 2, granted, lease_s=60)
    assert (await store.ledger(one)).window_units == 5
    ledger = await store.ledger(two)
    assert (ledger.window_units, ledger.month_units, ledger.reserved) == (0, 5, 2)
    assert (await store.ledger(stranger)).month_units == 0


async def test_a_month_ends_at_midnight_in_utc(store: Store, clock: Clock):
    clock.at = JANUARY_ENDS - INSTANT
    caller = await make_caller(store, "free")
    await use(store, caller, clock(), 3)
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.month_billable, ledger.period_billable) == (3, 3, 3)
    assert (ledger.period_start, ledger.period_end) == (
        datetime(2025, 1, 1, tzinfo=UTC),
        JANUARY_ENDS,
    )
    clock.at = JANUARY_ENDS
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.month_billable, ledger.period_billable) == (0, 0, 0)
    assert ledger.period_start == JANUARY_ENDS
    assert ledger.window_units == 3


async def test_units_reserved_at_the_end_of_a_month_count_for_both_months(
    store: Store, clock: Clock
):
    """It will be counted where its rows lie, and nobody knows yet where that is."""
    clock.at = JANUARY_ENDS - INSTANT
    caller = await make_caller(store, "free")
    reservation = await store.reserve(caller, 2, granted, lease_s=60)
    clock.at = JANUARY_ENDS
    assert (await store.ledger(caller)).month_units == 2
    await store.settle(reservation, [row(JANUARY_ENDS - INSTANT), row(JANUARY_ENDS)])
    assert (await store.ledger(caller)).month_units == 1
    assert await store.days(caller.account.id, date(2025, 1, 1), date(2025, 2, 28)) == [
        DayCount(date(2025, 1, 31), 1),
        DayCount(date(2025, 2, 1), 1),
    ]


async def test_a_december_ends_with_its_year(store: Store, clock: Clock):
    clock.at = datetime(2024, 12, 31, 23, 59, 59, tzinfo=UTC)
    caller = await make_caller(store)
    ledger = await store.ledger(caller)
    assert ledger.period_start == datetime(2024, 12, 1, tzinfo=UTC)
    assert ledger.period_end == datetime(2025, 1, 1, tzinfo=UTC)


async def test_a_subscriptions_period_is_the_billing_period(store: Store, clock: Clock):
    caller = await make_caller(store)
    await use(store, caller, clock(), 5)
    start, end = NOON + timedelta(hours=1), NOON + timedelta(days=30)
    await store.change_account(
        caller.account.id, current_period_start=start, current_period_end=end
    )
    clock.at = start
    await use(store, caller, start - INSTANT)
    await use(store, caller, start, 2)
    ledger = await store.ledger(caller)
    assert (ledger.period_start, ledger.period_end) == (start, end)
    assert (ledger.period_billable, ledger.month_billable) == (2, 8)
    clock.at = datetime(2025, 4, 1, tzinfo=UTC)
    await use(store, caller, clock())
    ledger = await store.ledger(caller)
    assert (ledger.period_billable, ledger.month_billable) == (3, 1)


async def test_a_period_that_rolls_late_loses_nothing(store: Store, clock: Clock):
    """What is verified after the old period's end is the next one's, also before the provider's word of it."""
    caller = await make_caller(store)
    start, end = NOON, NOON + timedelta(days=10)
    account_id = caller.account.id
    await store.change_account(account_id, current_period_start=start, current_period_end=end)
    await use(store, caller, end - INSTANT, 4)
    clock.at = end
    await use(store, caller, end, 3)
    ledger = await store.ledger(caller)
    assert (ledger.period_start, ledger.period_billable) == (start, 7)
    await store.change_account(
        account_id, current_period_start=end, current_period_end=end + timedelta(days=10)
    )
    await use(store, caller, end - INSTANT)  # one that was under way
    assert (await store.ledger(caller)).period_billable == 3


async def test_sixty_at_the_edge_never_get_one_too_many(store: Store):
    caller = await make_caller(store)
    await use(store, caller, NOON, 5)
    outcomes: list[Any] = []

    async def reserve(units: int) -> None:
        outcomes.append(await store.reserve(caller, units, at_most(10, units), lease_s=60))

    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(reserve, 1)
    assert sum(isinstance(outcome, Reservation) for outcome in outcomes) == 5
    assert outcomes.count("too many") == 55
    assert (await store.ledger(caller)).window_units == 10


async def test_batches_at_the_edge_are_granted_whole_or_not_at_all(store: Store):
    caller = await make_caller(store, "free")
    outcomes: list[Any] = []

    def weigh(ledger: Ledger) -> str | None:
        return "too many" if ledger.month_units + 30 > 500 else None

    async def reserve_and_settle() -> None:
        reservation = await store.reserve(caller, 30, weigh, lease_s=60)
        outcomes.append(reservation)
        if isinstance(reservation, Reservation):
            await store.settle(reservation, [row(NOON)] * 30)

    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(reserve_and_settle)
    assert outcomes.count("too many") == 44
    assert (await store.ledger(caller)).month_units == 480


# days and rows


async def test_days_are_counted_in_utc_and_zeros_left_out(store: Store, clock: Clock):
    caller = await make_caller(store)
    other = await make_caller(store, sha256="other")
    midnight = datetime(2025, 3, 14, tzinfo=UTC)
    await use(store, caller, midnight - INSTANT)
    await use(store, caller, midnight, 2)
    await use(store, caller, midnight + timedelta(days=2))
    await use(store, caller, midnight + timedelta(days=1), billable=False)
    await use(store, other, midnight, 9)
    days = [(13, 1), (14, 2), (16, 1)]
    expected = [DayCount(date(2025, 3, day), calls) for day, calls in days]
    account_id = caller.account.id
    assert await store.days(account_id, date(2025, 3, 1), date(2025, 3, 31)) == expected
    assert await store.days(account_id, date(2025, 3, 14), date(2025, 3, 16)) == expected[1:]
    assert await store.days(account_id, date(2025, 3, 14), date(2025, 3, 14)) == expected[1:2]


async def test_results_of_a_day_are_counted_by_light_billable_or_not(store: Store):
    caller = await make_caller(store)
    lights: tuple[DayLight, ...] = ("green", "red", "green", "yellow", "red", "green")
    rows = [row(NOON, light=light, billable=light != "red") for light in lights]
    await store.spend(caller, rows, granted)
    later = NOON + timedelta(days=1)
    only_red = [row(later, light="red", billable=False), row(later, status=None, billable=False)]
    await store.spend(caller, only_red, granted)
    assert await store.days(caller.account.id, date.min, date.max) == [
        DayCount(NOON.date(), 4, green=3, yellow=1, red=2),
        DayCount(later.date(), 0, red=1),
    ]


async def test_rows_are_shown_newest_first(store: Store, clock: Clock):
    caller = await make_caller(store)
    rows = [
        row(NOON - timedelta(hours=1), operation="batch", status=None, failed_check="no_mx"),
        row(NOON, latency_ms=0),
        row(NOON + timedelta(hours=1), units=0, billable=False),
    ]
    reservation = await store.reserve(caller, 3, granted, lease_s=60)
    await store.settle(reservation, [rows[1], rows[2], rows[0]])
    assert await store.usage(caller.account.id, limit=10) == rows[::-1]
    assert await store.usage(caller.account.id, limit=2) == [rows[2], rows[1]]


# refusals


async def test_few_refusals_are_a_row_each_and_weigh_on_nothing(store: Store):
    caller = await make_caller(store)
    before = await store.ledger(caller)
    await store.log_refusal(caller, refusal(NOON))
    await store.log_refusal(caller, refusal(NOON, "monthly_quota_exceeded"))
    await store.log_refusal(caller, replace(refusal(NOON, None), units=3, billable=True))
    assert await store.ledger(caller) == before
    rows = await store.usage(caller.account.id, limit=10)
    assert {one.failed_check for one in rows} == {
        "rate_limit_exceeded",
        "monthly_quota_exceeded",
        None,
    }


async def test_a_flood_of_refusals_is_one_row_a_minute(store: Store, clock: Clock):
    caller = await make_caller(store)
    for minutes in range(3):
        clock.at = NOON + timedelta(minutes=minutes)
        for _ in range(REFUSALS_SINGLE_MAX + 30):
            await store.log_refusal(caller, refusal(clock()))
    rows = await store.usage(caller.account.id, limit=1000)
    assert len(rows) == 3 * (REFUSALS_SINGLE_MAX + 1)
    assert sorted(one.times for one in rows)[-4:] == [1, 30, 30, 30]


async def test_a_flood_of_one_key_leaves_others_their_rows(store: Store):
    caller = await make_caller(store)
    other = await another_key(store, caller.account.id, "second")
    for _ in range(REFUSALS_SINGLE_MAX + 2):
        await store.log_refusal(caller, refusal(NOON))
    await store.log_refusal(other, refusal(NOON))
    rows = await store.usage(caller.account.id, limit=1000)
    assert sorted(one.times for one in rows) == [1] * (REFUSALS_SINGLE_MAX + 1) + [2]
