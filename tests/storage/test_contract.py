"""One contract, every Store: what the API may rely on, whatever remembers."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import trio

from mailprobe.storage.contract import (
    ANSWER_OCTETS_MAX,
    LEASES_MAX,
    REFUSALS_SINGLE_MAX,
    SETTLED_KEPT,
    WAITS_MAX,
    WINDOW,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    KeyCreationTooFast,
    KeyLimitReached,
    Store,
)
from mailprobe.storage.lease_allocation import LeaseRequest
from mailprobe.storage.records import (
    Answered,
    Caller,
    DayCount,
    FirstAnswer,
    IdempotencyRecord,
    JobOrder,
    Ledger,
    Reservation,
    Window,
)
from tests.storage.fixed_clock import (
    INSTANT,
    NOON,
    RETENTION,
    Clock,
    another_key,
    attempt,
    granted,
    make_caller,
    order,
    promise,
    row,
    use,
)

JANUARY_ENDS = datetime(2025, 2, 1, tzinfo=UTC)
ANSWER = Answered(201, (("Content-Type", "application/json"), ("X-Id", "é")), b'{"key":"\xff\n"}')


def at_most(limit: int, units: int) -> Any:
    """Weigh as a rate limit does: by the window alone."""

    def weigh(ledger: Ledger) -> str | None:
        return "too many" if ledger.window_units + units > limit else None

    return weigh


# accounts


async def test_an_account_is_as_it_was_made(store: Store, clock: Clock):
    account = await store.create_account("ann@shop.test", "free")
    assert (account.email, account.tier, account.created_at) == ("ann@shop.test", "free", NOON)
    assert account.alerts is True
    assert account.hard_cap_micros is account.current_period_end is None
    assert await store.account(account.id) == account


async def test_accounts_are_listed_oldest_first(store: Store):
    made = [await store.create_account(f"{name}@shop.test", "free") for name in "cab"]
    assert await store.accounts() == made


async def test_an_account_that_is_not_there_is_none(store: Store):
    assert await store.account("no such id") is None
    assert await store.change_account("no such id", tier="scale") is None
    assert await store.keys("no such id") == []
    assert await store.days("no such id", date.min, date.max) == []
    assert await store.usage("no such id", limit=10) == []


async def test_every_field_of_an_account_can_be_changed_and_comes_back_as_it_was(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    odd = NOON + timedelta(microseconds=123_457)
    changes: dict[str, Any] = {
        "email": "bob@shop.test",
        "tier": "scale",
        "soft_cap_micros": 0,
        "hard_cap_micros": 2**60,
        "alerts": False,
        "subscription_status": "active",
        "current_period_start": odd,
        "current_period_end": odd + timedelta(days=30),
        "cancel_at_period_end": False,
        "canceled_at": odd,
        "cancel_at": odd,
        "trial_start": odd,
        "trial_end": odd,
        "billing_cycle_anchor": odd,
        "customer_id": "cus_ü",
    }
    changed = await store.change_account(account.id, **changes)
    assert changed == replace(account, **changes)
    assert await store.account(account.id) == changed
    back = await store.change_account(account.id, soft_cap_micros=None, cancel_at=None)
    assert back == replace(account, **changes | {"soft_cap_micros": None, "cancel_at": None})


@pytest.mark.parametrize("name", ["id", "created_at", "balance", "tier = 'scale' --"])
async def test_what_is_no_field_to_change_is_an_error(store: Store, name: str):
    account = await store.create_account("ann@shop.test", "free")
    with pytest.raises(TypeError):
        await store.change_account(account.id, **{name: "x"})
    assert await store.account(account.id) == account


async def test_a_change_is_seen_by_the_next_request(store: Store):
    caller = await make_caller(store)
    await store.change_account(caller.account.id, hard_cap_micros=5)
    again = await store.caller("hash")
    assert again
    assert again.account.hard_cap_micros == 5


async def test_an_account_is_found_by_who_it_is_to_the_billing_provider(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    other = await store.create_account("bob@shop.test", "free")
    assert await store.account_of_customer("cus_1") is None
    account = await store.change_account(account.id, customer_id="cus_1")
    assert await store.account_of_customer("cus_1") == account
    assert await store.account_of_customer("CUS_1") is None
    with pytest.raises(ValueError, match="another account"):
        await store.change_account(other.id, tier="scale", customer_id="cus_1")
    assert await store.account(other.id) == other
    assert await store.change_account(account.id, customer_id="cus_1") == account
    assert await store.change_account("no such id", customer_id="cus_1") is None
    await store.change_account(account.id, customer_id=None)
    assert await store.account_of_customer("cus_1") is None
    assert await store.change_account(other.id, customer_id="cus_1")


# keys


async def keep_key(store: Store, account_id: str, kind: Any = "standard", **other: Any) -> Any:
    sha256 = other.pop("sha256", f"{kind} {len(await store.keys(account_id))}")
    values: dict[str, Any] = {"label": None, "prefix": "sk_live_abcd", "keys_max": None} | other
    return await store.create_key(account_id, kind, sha256=sha256, **values)


async def test_a_key_is_found_by_its_hash_with_its_account(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    key = await keep_key(store, account.id, label="shop ü\0", sha256="h")
    assert (key.account_id, key.kind, key.label, key.prefix) == (
        account.id,
        "standard",
        "shop ü\0",
        "sk_live_abcd",
    )
    caller = await store.caller("h")
    assert caller
    assert (caller.account, caller.key) == (account, key)
    assert await store.caller("H") is None


async def test_active_keys_of_both_kinds_are_listed_oldest_first(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    other = await store.create_account("bob@shop.test", "free")
    first = await keep_key(store, account.id, "provisioning")
    second = await keep_key(store, account.id)
    gone = await keep_key(store, account.id)
    await keep_key(store, other.id, sha256="other's")
    await store.revoke_key(account.id, gone.id)
    assert await store.keys(account.id) == [first, second]


async def test_only_active_standard_keys_are_bounded(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    await keep_key(store, account.id, "provisioning", keys_max=0)
    first = await keep_key(store, account.id, keys_max=2)
    await keep_key(store, account.id, keys_max=2)
    with pytest.raises(KeyLimitReached):
        await keep_key(store, account.id, keys_max=2)
    await keep_key(store, account.id, "provisioning", keys_max=2)
    await store.revoke_key(account.id, first.id)
    await keep_key(store, account.id, keys_max=2, sha256="a place again")


async def test_parallel_creations_never_pass_the_bound(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    refused = 0

    async def create(number: int) -> None:
        nonlocal refused
        try:
            await keep_key(store, account.id, keys_max=2, sha256=f"{number}")
        except KeyLimitReached:
            refused += 1

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(create, number)
    assert refused == 18
    assert len(await store.keys(account.id)) == 2


async def test_a_key_needs_an_account_and_a_hash_of_its_own(store: Store):
    account = await store.create_account("ann@shop.test", "free")
    with pytest.raises(KeyError):
        await store.create_key(
            "nobody", "standard", None, sha256="h", prefix="sk_live_abcd", keys_max=None
        )
    await keep_key(store, account.id, sha256="h")
    with pytest.raises(ValueError, match="kept already"):
        await keep_key(store, account.id, sha256="h")
    assert len(await store.keys(account.id)) == 1


async def test_a_revoked_key_fails_at_once_and_for_good(store: Store):
    caller = await make_caller(store)
    assert await store.revoke_key(caller.account.id, caller.key.id)
    assert await store.caller("hash") is None
    assert not await store.revoke_key(caller.account.id, caller.key.id)
    assert await store.keys(caller.account.id) == []


async def test_nobody_revokes_a_key_of_another_account(store: Store):
    caller = await make_caller(store)
    other = await store.create_account("bob@shop.test", "free")
    assert not await store.revoke_key(other.id, caller.key.id)
    assert not await store.revoke_key("no such id", caller.key.id)
    assert not await store.revoke_key(caller.account.id, "no such id")
    assert await store.caller("hash")
    assert await store.revoke_key(None, caller.key.id)


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


async def test_what_is_granted_weighs_before_it_is_settled(store: Store):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 7, granted, lease_s=60)
    assert isinstance(reservation, Reservation)
    assert (reservation.units, reservation.reserved_at, reservation.caller) == (7, NOON, caller)
    ledger = await store.ledger(caller)
    assert tuple(ledger.window) == ((NOON, 7),)
    assert (ledger.month_units, ledger.reserved) == (7, 7)
    assert (ledger.month_billable, ledger.period_billable) == (0, 0)


async def test_what_is_refused_changes_nothing(store: Store):
    caller = await make_caller(store)
    seen = []

    def refuse(ledger: Ledger) -> str:
        seen.append(ledger)
        return "no"

    assert await store.reserve(caller, 7, refuse, lease_s=60) == "no"
    assert seen == [await store.ledger(caller)]
    assert seen[0].reserved == 0


async def test_what_weighing_raises_is_raised_and_nothing_is_granted(store: Store):
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


async def test_what_is_settled_counts_and_the_rest_is_given_back(store: Store):
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
    clock.pass_(days=1)
    await store.apply_retention(RETENTION)
    await store.settle(reservation, [row(NOON)] * 2)
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.month_billable) == (2, 2)
    assert len(await store.usage(caller.account.id, limit=10)) == 2


async def test_what_is_spent_is_weighed_and_counted_at_once(store: Store):
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


async def test_what_is_spent_goes_to_the_meter_where_it_is_metered(store: Store):
    caller = await make_caller(store)
    await store.spend(caller, [row(NOON)] * 3, granted, metered=True)
    await store.spend(caller, [row(NOON)], granted)
    assert [message.count for message in await store.messages("meter", limit=9)] == [3]


async def test_what_weighing_raises_is_raised_and_nothing_is_spent(store: Store):
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

    async def ask() -> None:
        nonlocal refused
        outcome = await store.spend(
            caller, [row(NOON)], lambda ledger: "no" if ledger.window_units >= 10 else None
        )
        refused += outcome == "no"

    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(ask)
    assert refused == 50
    assert (await store.ledger(caller)).month_billable == 10


async def test_a_lease_that_ends_gives_quota_back_and_not_the_rate(store: Store, clock: Clock):
    caller = await make_caller(store)
    await store.reserve(caller, 5, granted, lease_s=30)
    clock.pass_(29.999_999)
    assert (await store.ledger(caller)).reserved == 5
    clock.pass_(0.000_001)
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.reserved, ledger.window_units) == (0, 0, 5)


async def test_what_was_used_after_the_lease_had_ended_still_counts_once(
    store: Store, clock: Clock
):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 5, granted, lease_s=30)
    clock.pass_(31)
    await store.reserve(caller, 1, granted, lease_s=30)  # gives the ended lease back
    await store.apply_retention(RETENTION)
    for _ in range(2):
        await store.settle(reservation, [row(clock())] * 3)
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.month_billable, ledger.reserved) == (4, 3, 1)


async def test_a_lease_is_extended_while_it_lasts_and_not_after(store: Store, clock: Clock):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 5, granted, lease_s=30)
    clock.pass_(20)
    await store.extend(reservation, lease_s=30)
    clock.pass_(29)
    assert (await store.ledger(caller)).reserved == 5
    clock.pass_(1)
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
    clock.pass_(60)
    await store.settle(reservation, [row(NOON)] * 2, part=3, ends=False)
    ledger = await store.ledger(caller)
    assert (ledger.reserved, ledger.month_units, ledger.month_billable) == (0, 5, 5)
    assert len(await store.usage(caller.account.id, limit=10)) == 5


async def test_a_reservation_in_parts_ends_with_its_lease(store: Store, clock: Clock):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 5, granted, lease_s=30)
    await store.settle(reservation, [row(NOON)], ends=False)
    clock.pass_(30)
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
    clock.pass_(seconds)
    ledger = await store.ledger(caller)
    assert ledger.window_units == weighs
    assert tuple(ledger.window) == (((NOON, 3),) if weighs else ())


async def test_the_window_slides_unit_by_unit(store: Store, clock: Clock):
    caller = await make_caller(store)
    for _ in range(4):
        await store.reserve(caller, 2, granted, lease_s=1)
        clock.pass_(20)
    expected = ((NOON + timedelta(seconds=40), 2), (NOON + timedelta(seconds=60), 2))
    assert tuple((await store.ledger(caller)).window) == expected
    await store.apply_retention(RETENTION)
    assert tuple((await store.ledger(caller)).window) == expected


async def test_a_clock_set_back_keeps_the_windows_sum_and_its_order(store: Store, clock: Clock):
    caller = await make_caller(store)
    for seconds, units in [(0, 1), (10, 2), (-5, 4), (0, 8), (-30, 16), (50, 32)]:
        clock.pass_(seconds)
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
        clock.pass_(1)
    seen: list[Any] = []

    def weigh(ledger: Ledger) -> str:
        seen.append(next(iter(ledger.window)))
        seen.append(len(ledger.window))
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


async def test_what_is_under_way_at_the_months_edge_weighs_on_both(store: Store, clock: Clock):
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

    async def ask(units: int) -> None:
        outcomes.append(await store.reserve(caller, units, at_most(10, units), lease_s=60))

    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(ask, 1)
    assert sum(isinstance(outcome, Reservation) for outcome in outcomes) == 5
    assert outcomes.count("too many") == 55
    assert (await store.ledger(caller)).window_units == 10


async def test_batches_at_the_edge_are_granted_whole_or_not_at_all(store: Store):
    caller = await make_caller(store, "free")
    outcomes: list[Any] = []

    def weigh(ledger: Ledger) -> str | None:
        return "too many" if ledger.month_units + 30 > 500 else None

    async def ask() -> None:
        reservation = await store.reserve(caller, 30, weigh, lease_s=60)
        outcomes.append(reservation)
        if isinstance(reservation, Reservation):
            await store.settle(reservation, [row(NOON)] * 30)

    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(ask)
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


def refusal(at: datetime, failed_check: str | None = "rate_limit_exceeded") -> Any:
    return row(at, status=None, failed_check=failed_check, units=0, billable=False)


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


# keys that come and go


async def test_an_account_makes_so_many_keys_in_a_minute(store: Store, clock: Clock):
    caller = await make_caller(store)
    account_id = caller.account.id
    made = 0

    async def make(kind: Any = "standard", a_minute: int | None = 3) -> None:
        nonlocal made
        made += 1
        key = await store.create_key(
            account_id, kind, None, sha256=f"new {made}", prefix="", keys_max=5, a_minute=a_minute
        )
        await store.revoke_key(account_id, key.id)

    await make()
    clock.pass_(10)
    await make()  # with the first of all, which make_caller() made, it is the third
    for _ in range(2):
        with pytest.raises(KeyCreationTooFast) as early:
            await make()
        assert (early.value.asked_at, early.value.reset_at) == (clock(), NOON + WINDOW)
    await make("provisioning")
    await make(a_minute=None)
    clock.pass_(49.999_999)
    with pytest.raises(KeyCreationTooFast):
        await make()
    clock.pass_(20)
    await make()


async def test_units_of_all_keys_weigh_until_a_minute_after_they_were_revoked(
    store: Store, clock: Clock
):
    """A fresh key in a revoked one's place bought a fresh minute."""
    one = await make_caller(store)
    account_id = one.account.id
    seen: list[tuple[int, int, int, tuple[Any, ...]]] = []

    def look(ledger: Ledger) -> str:
        window = ledger.account_window
        units = window.units if isinstance(window, Window) else sum(n for _, n in window)
        seen.append((ledger.keys, ledger.window_units, units, tuple(window)))
        return "no"

    await use(store, one, clock(), 3)
    clock.pass_(10)
    await store.revoke_key(account_id, one.key.id)
    two = await another_key(store, account_id, "second")
    await store.create_key(account_id, "provisioning", None, sha256="p", prefix="", keys_max=None)
    other = await make_caller(store, sha256="other")
    await use(store, other, clock(), 7)
    await use(store, two, clock(), 2)
    await store.reserve(two, 1, look, lease_s=60)
    later = NOON + timedelta(seconds=10)
    assert seen.pop() == (2, 2, 5, ((NOON, 3), (later, 2)))
    shown = await store.ledger(two)
    assert (shown.keys, tuple(shown.account_window)) == (2, ((NOON, 3), (later, 2)))
    clock.pass_(50)
    await store.reserve(two, 1, look, lease_s=60)
    assert seen.pop() == (2, 2, 2, ((later, 2),))
    clock.pass_(10)
    await store.reserve(two, 1, look, lease_s=60)
    assert seen.pop() == (1, 0, 0, ())


async def test_what_is_granted_together_weighs_on_all_keys_of_an_account(store: Store):
    one = await make_caller(store)
    callers = [one, *[await another_key(store, one.account.id, f"{n}") for n in range(3)]]
    outcomes: list[Any] = []

    def weigh(ledger: Ledger) -> str | None:
        units = getattr(ledger.account_window, "units", None)
        if units is None:
            units = sum(count for _, count in ledger.account_window)
        return "too many" if units + 1 > 10 else None

    async def ask(caller: Caller) -> None:
        outcomes.append(await store.reserve(caller, 1, weigh, lease_s=60))

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(ask, callers[number % 4])
    assert sum(isinstance(outcome, Reservation) for outcome in outcomes) == 10


async def test_revoked_keys_go_when_they_are_past_retention(store: Store, clock: Clock):
    caller = await make_caller(store, "free")
    account_id = caller.account.id
    unused = await another_key(store, account_id, "unused")
    with_job = await another_key(store, account_id, "with a job")
    await promise(store, with_job, order("1"))
    for one in (unused, with_job):
        await store.revoke_key(account_id, one.key.id)
    await another_key(store, account_id, "last")
    clock.pass_(6 * 86_400)
    await store.apply_retention(RETENTION)
    with pytest.raises(ValueError, match="kept already"):
        await another_key(store, account_id, "unused")
    clock.pass_(10 * 86_400)
    await store.apply_retention(RETENTION)
    assert await store.caller("hash")
    again = await another_key(store, account_id, "unused")
    assert again.key.id != unused.key.id
    (claim,) = await store.claim_jobs("verify", limit=5, each_max=5, lease_s=60)
    assert claim.caller.key.id == with_job.key.id


# a clock that was ahead


async def test_what_a_clock_granted_that_was_ahead_counts_as_granted_now(
    store: Store, clock: Clock
):
    """It locked a key out for as long as it was ahead."""
    caller = await make_caller(store)
    clock.pass_(3600)
    await use(store, caller, clock(), 3)
    clock.pass_(1)
    await use(store, caller, clock(), 1)
    clock.pass_(-3591)
    assert tuple((await store.ledger(caller)).window) == ((clock(), 4),)
    assert await store.reserve(caller, 7, at_most(10, 7), lease_s=60) == "too many"
    back = clock()
    clock.pass_(30)
    assert tuple((await store.ledger(caller)).window) == ((back, 4),)
    assert isinstance(await store.reserve(caller, 5, at_most(10, 5), lease_s=60), Reservation)
    clock.pass_(29.999_999)
    assert (await store.ledger(caller)).window_units == 9
    clock.pass_(0.000_001)
    assert (await store.ledger(caller)).window_units == 5
    clock.pass_(60)
    assert (await store.ledger(caller)).window_units == 0


async def test_leases_and_waits_of_a_clock_that_was_ahead_are_brought_back(
    store: Store, clock: Clock
):
    """They held quota and jobs for as long as it was ahead."""
    caller = await make_caller(store)
    clock.pass_(days=3)
    await store.reserve(caller, 5, granted, lease_s=20)
    await promise(store, caller, order("1"), order("2"))
    (claim, _) = await store.claim_jobs("verify", limit=2, each_max=2, lease_s=15)
    await store.job_verified(claim, row(NOON), b"{}")
    await store.lease_connections("gone", {"192.0.2.1": LeaseRequest(0, 1)}, limit=1, lease_s=12)
    await store.enqueue_message("alert", caller.account.id, "a", b"", due_at=clock())
    clock.pass_(days=-3)
    assert (await store.ledger(caller)).reserved == 6
    await store.apply_retention(RETENTION)
    (claim,) = await store.claim_jobs("deliver", limit=2, each_max=2, lease_s=15)
    assert claim.job.id == "1"
    clock.pass_(LEASES_MAX.total_seconds())
    assert (await store.ledger(caller)).reserved == 1  # the job's
    (claim,) = await store.claim_jobs("verify", limit=2, each_max=2, lease_s=15)
    assert claim.job.id == "2"
    asked = {"192.0.2.1": LeaseRequest(0, 1)}
    assert await store.lease_connections("new", asked, limit=1, lease_s=12) == {"192.0.2.1": 1}
    clock.pass_(WAITS_MAX.total_seconds())
    assert len(await store.claim_messages("alert", limit=1, lease_s=60)) == 1


async def test_keys_that_a_clock_used_and_revoked_that_was_ahead_are_forgotten_a_minute_from_now(
    store: Store, clock: Clock
):
    """They weighed on all keys of their account for as long as it was ahead."""
    caller = await make_caller(store)
    other = await another_key(store, caller.account.id, "other")
    clock.pass_(days=365)
    await use(store, caller, clock(), 4)
    clock.pass_(1)
    await use(store, caller, clock(), 1)
    assert await store.revoke_key(None, caller.key.id)
    clock.pass_(days=-365)
    await use(store, other, clock(), 2)
    await store.apply_retention(RETENTION)
    ledger = await store.ledger(other)
    assert (ledger.keys, tuple(ledger.account_window)) == (2, ((clock(), 7),))
    clock.pass_(WINDOW.total_seconds())
    ledger = await store.ledger(other)
    assert (ledger.keys, tuple(ledger.account_window)) == (1, ())


async def test_a_request_that_a_clock_began_that_was_ahead_holds_its_idempotency_key_no_longer(
    store: Store, clock: Clock
):
    """A repeat met 409 for as long as the clock was ahead."""
    account_id = (await make_caller(store)).account.id
    clock.pass_(3600)
    died, kept = await begin(store, account_id, "died"), await begin(store, account_id, "kept")
    await store.finish_idempotent(kept, ANSWER)
    clock.pass_(-3600)
    again = await begin(store, account_id, "died")
    assert isinstance(again, IdempotencyRecord)
    await store.finish_idempotent(died, ANSWER)  # too late: the other one runs
    with pytest.raises(IdempotencyInProgress):
        await begin(store, account_id, "died")
    await store.apply_retention(RETENTION)
    assert await begin(store, account_id, "kept") == ANSWER
    clock.pass_(days=1)
    assert isinstance(await begin(store, account_id, "kept"), IdempotencyRecord)


async def test_what_is_planned_is_left_as_it_is(store: Store, clock: Clock):
    caller = await make_caller(store)
    await store.reserve(caller, 5, granted, lease_s=180)
    await promise(store, caller, order("1"))
    (claim,) = await store.claim_jobs("verify", limit=2, each_max=2, lease_s=15)
    await store.job_verified(claim, row(NOON), b"{}")
    (claim,) = await store.claim_jobs("deliver", limit=2, each_max=2, lease_s=15)
    tomorrow = clock() + timedelta(hours=28)
    await store.job_attempted(claim, attempt(), state="delivering", due_at=tomorrow)
    await store.apply_retention(RETENTION)
    assert (await store.ledger(caller)).reserved == 5
    (job,) = await store.jobs(limit=9)
    assert job.due_at == tomorrow
    clock.pass_(180)
    assert (await store.ledger(caller)).reserved == 0


# idempotency


async def begin(store: Store, account_id: str, key: str = "k", body: str = "b") -> Any:
    return await store.begin_idempotent(account_id, key, body, keep_s=86_400, lease_s=60)


async def test_the_first_answer_is_given_again_byte_for_byte(store: Store):
    caller = await make_caller(store)
    account_id = caller.account.id
    idempotency = await begin(store, account_id)
    assert isinstance(idempotency, IdempotencyRecord)
    await store.finish_idempotent(idempotency, ANSWER)
    assert await begin(store, account_id) == ANSWER
    assert await begin(store, account_id) == ANSWER


async def test_while_the_first_runs_a_second_is_told_so(store: Store):
    caller = await make_caller(store)
    await begin(store, caller.account.id)
    with pytest.raises(IdempotencyInProgress):
        await begin(store, caller.account.id)


async def test_another_body_is_told_so_whether_the_first_runs_or_not(store: Store):
    caller = await make_caller(store)
    idempotency = await begin(store, caller.account.id)
    with pytest.raises(IdempotencyKeyReused):
        await begin(store, caller.account.id, body="another")
    await store.finish_idempotent(idempotency, ANSWER)
    with pytest.raises(IdempotencyKeyReused):
        await begin(store, caller.account.id, body="another")
    assert await begin(store, caller.account.id) == ANSWER


async def test_idempotency_keys_are_an_accounts_own(store: Store):
    one = await make_caller(store)
    other = await make_caller(store, sha256="other")
    await begin(store, one.account.id)
    assert isinstance(await begin(store, other.account.id, body="another"), IdempotencyRecord)
    assert isinstance(await begin(store, one.account.id, key="K"), IdempotencyRecord)
    with pytest.raises(KeyError):
        await begin(store, "nobody")


async def test_a_first_request_that_died_is_forgotten_after_its_lease(store: Store, clock: Clock):
    caller = await make_caller(store)
    await begin(store, caller.account.id)
    clock.pass_(59.999_999)
    with pytest.raises(IdempotencyInProgress):
        await begin(store, caller.account.id)
    clock.pass_(0.000_001)
    assert isinstance(await begin(store, caller.account.id, body="another"), IdempotencyRecord)
    with pytest.raises(IdempotencyInProgress):
        await begin(store, caller.account.id, body="another")


async def test_an_answer_is_forgotten_after_a_day(store: Store, clock: Clock):
    caller = await make_caller(store)
    await store.finish_idempotent(await begin(store, caller.account.id), ANSWER)
    clock.pass_(86_399.999_999)
    await store.apply_retention(RETENTION)
    assert await begin(store, caller.account.id) == ANSWER
    clock.pass_(0.000_001)
    assert isinstance(await begin(store, caller.account.id, body="another"), IdempotencyRecord)


async def test_a_key_that_was_let_go_can_be_used_again(store: Store):
    caller = await make_caller(store)
    await store.finish_idempotent(await begin(store, caller.account.id), None)
    assert isinstance(await begin(store, caller.account.id, body="another"), IdempotencyRecord)


async def test_an_answer_once_given_stays(store: Store):
    caller = await make_caller(store)
    account_id = caller.account.id
    await store.finish_idempotent(IdempotencyRecord(account_id, "k", NOON), ANSWER)  # nobody began
    idempotency = await begin(store, account_id)
    assert isinstance(idempotency, IdempotencyRecord)
    await store.finish_idempotent(replace(idempotency, lease_until=NOON), ANSWER)  # another one's
    await store.finish_idempotent(idempotency, ANSWER)
    await store.finish_idempotent(idempotency, replace(ANSWER, body=b"other"))
    await store.finish_idempotent(idempotency, None)
    assert await begin(store, account_id) == ANSWER


async def test_one_of_many_that_begin_together_is_the_first(store: Store):
    caller = await make_caller(store)
    firsts = 0

    async def ask() -> None:
        nonlocal firsts
        with suppress(IdempotencyInProgress):
            firsts += isinstance(await begin(store, caller.account.id), IdempotencyRecord)

    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(ask)
    assert firsts == 1


async def test_an_answer_has_a_bound(store: Store):
    caller = await make_caller(store)
    account_id = caller.account.id
    large = replace(ANSWER, body=bytes(ANSWER_OCTETS_MAX))
    await store.finish_idempotent(await begin(store, account_id), large)
    assert await begin(store, account_id) == large
    too_large = replace(ANSWER, body=bytes(ANSWER_OCTETS_MAX + 1))
    await store.finish_idempotent(await begin(store, account_id, "other"), too_large)
    assert await begin(store, account_id, "other") == replace(ANSWER, body=None)


# the answer and what it tells of, in one transaction


async def spend_idempotency(
    store: Store, caller: Caller, first: FirstAnswer, refusal: Any = None
) -> Any:
    return await store.spend(caller, [row(NOON)], lambda _: refusal, first=first)


async def settle_idempotency(store: Store, caller: Caller, first: FirstAnswer) -> None:
    reservation = await store.reserve(caller, 1, granted, lease_s=60)
    assert isinstance(reservation, Reservation)
    await store.settle(reservation, [row(NOON)], first=first)


async def create_job_idempotency(store: Store, caller: Caller, first: FirstAnswer) -> None:
    job_id = f"job {first.once.lease_until}"
    order = JobOrder(job_id, "ann@shop.test", "https://a.test/", "a.test")
    await store.create_job(caller, order, granted, first=first)


async def create_key_idempotency(store: Store, caller: Caller, first: FirstAnswer) -> None:
    await store.create_key(
        caller.account.id, "standard", None, sha256=f"new {first.once.lease_until}", prefix="", keys_max=None,
        idempotency=first.once, answer=lambda key: first.answer,
    )  # fmt: skip


DOING = [spend_idempotency, settle_idempotency, create_job_idempotency, create_key_idempotency]


async def done_by(store: Store, caller: Caller) -> tuple[int, int, int]:
    account_id = caller.account.id
    usage = await store.usage(account_id, limit=100)
    return len(usage), len(await store.jobs(limit=10)), len(await store.keys(account_id))


@pytest.mark.parametrize("do", DOING)
async def test_an_answer_is_kept_with_what_it_tells_of(store: Store, do: Any):
    caller = await make_caller(store)
    idempotency = await begin(store, caller.account.id)
    before = await done_by(store, caller)
    await do(store, caller, FirstAnswer(idempotency, ANSWER))
    assert await begin(store, caller.account.id) == ANSWER
    assert sum(await done_by(store, caller)) == sum(before) + 1


@pytest.mark.parametrize("do", DOING)
async def test_who_comes_late_does_nothing(store: Store, clock: Clock, do: Any):
    """Its lease has ended, and the repeat has begun: only one of the two may count."""
    caller = await make_caller(store)
    late = await begin(store, caller.account.id)
    clock.pass_(61)
    idempotency = await begin(store, caller.account.id)
    before = await done_by(store, caller)
    with pytest.raises(IdempotencyInProgress):
        await do(store, caller, FirstAnswer(late, ANSWER))
    assert await done_by(store, caller) == before
    other = replace(ANSWER, body=b"other")
    await do(store, caller, FirstAnswer(idempotency, other))
    with pytest.raises(IdempotencyInProgress):
        await do(store, caller, FirstAnswer(late, ANSWER))
    assert await begin(store, caller.account.id) == other
    assert sum(await done_by(store, caller)) == sum(before) + 1


async def test_what_is_settled_already_is_settled_once_late_or_not(store: Store):
    caller = await make_caller(store)
    idempotency = await begin(store, caller.account.id)
    reservation = await store.reserve(caller, 1, granted, lease_s=60)
    assert isinstance(reservation, Reservation)
    for _ in range(2):  # the second time the first one's answer is there
        await store.settle(reservation, [row(NOON)], first=FirstAnswer(idempotency, ANSWER))
    assert len(await store.usage(caller.account.id, limit=10)) == 1


async def test_of_a_refusal_no_answer_is_kept(store: Store):
    caller = await make_caller(store)
    idempotency = await begin(store, caller.account.id)
    first = FirstAnswer(idempotency, ANSWER)
    assert await spend_idempotency(store, caller, first, refusal="no") == "no"
    with pytest.raises(IdempotencyInProgress):
        await begin(store, caller.account.id)


async def test_one_who_comes_late_takes_nothing_from_others(store: Store, clock: Clock):
    """They are written together, in one transaction of the store."""
    caller = await make_caller(store)
    late = await begin(store, caller.account.id)
    clock.pass_(61)
    await begin(store, caller.account.id)
    refused = 0

    async def spend(first: FirstAnswer | None) -> None:
        nonlocal refused
        try:
            await store.spend(caller, [row(NOON)], granted, first=first)
        except IdempotencyInProgress:
            refused += 1

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(spend, FirstAnswer(late, ANSWER) if number % 5 == 0 else None)
    assert refused == 4
    assert len(await store.usage(caller.account.id, limit=100)) == 16


# upkeep


@pytest.mark.parametrize(("tier", "days"), [("free", 7), ("builder", 90), ("scale", 90)])
async def test_tidying_drops_rows_by_tier_and_never_a_count(
    store: Store, clock: Clock, tier: Any, days: int
):
    clock.at = datetime(2025, 3, 1, 0, 0, 1, tzinfo=UTC)
    caller = await make_caller(store, tier)
    period = {"current_period_start": clock.at, "current_period_end": clock.at + timedelta(200)}
    await store.change_account(caller.account.id, **period)
    await use(store, caller, clock.at, 3)
    await store.log_refusal(caller, refusal(clock.at))
    clock.at = datetime(2025, 3, 1, 23, 59, 59, tzinfo=UTC) + timedelta(days - 1)
    await store.apply_retention(RETENTION)
    assert len(await store.usage(caller.account.id, limit=10)) == 4
    ledger = await store.ledger(caller)
    clock.pass_(1)
    await store.apply_retention(RETENTION)
    assert await store.usage(caller.account.id, limit=10) == []
    after = await store.ledger(caller)
    assert after.period_billable == 3
    assert after.month_units == ledger.month_units
    assert await store.days(caller.account.id, date.min, date.max) == [
        DayCount(date(2025, 3, 1), 3)
    ]


async def test_tidying_keeps_what_is_under_way(store: Store, clock: Clock):
    caller = await make_caller(store)
    reservation = await store.reserve(caller, 3, granted, lease_s=60)
    await begin(store, caller.account.id)
    clock.pass_(30)
    before = await store.ledger(caller)
    await store.apply_retention(RETENTION)
    assert await store.ledger(caller) == before
    with pytest.raises(IdempotencyInProgress):
        await begin(store, caller.account.id)
    await store.settle(reservation, [row(clock())])
    assert (await store.ledger(caller)).month_units == 1


async def test_tidying_takes_all_however_much_there_is(store: Store, clock: Clock):
    caller = await make_caller(store)
    for _ in range(5):
        await use(store, caller, NOON, 500)
    clock.pass_(days=100)
    await store.apply_retention(RETENTION)
    assert await store.usage(caller.account.id, limit=10) == []
    assert (await store.days(caller.account.id, date.min, date.max))[0].calls == 2500


async def test_check_tells_the_stores_clock(store: Store):
    assert await store.check() == NOON


# callers that go away


async def test_a_caller_that_was_cancelled_before_changes_nothing(store: Store):
    caller = await make_caller(store)
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.reserve(caller, 3, granted, lease_s=60)
    assert scope.cancelled_caught
    ledger = await store.ledger(caller)
    assert (ledger.reserved, ledger.window_units) == (0, 0)


async def test_a_caller_cancelled_in_the_middle_has_its_reservation_or_there_is_none(store: Store):
    caller = await make_caller(store)
    held = []

    async def ask() -> None:
        held.append(await store.reserve(caller, 1, granted, lease_s=60))

    for steps in range(6):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert (await store.ledger(caller)).reserved == len(held)


async def test_neighbours_of_one_that_fails_are_not_hurt(store: Store):
    caller = await make_caller(store)
    failed = 0

    def stumble(_: Ledger) -> None:
        raise ZeroDivisionError

    async def ask(weigh: Any) -> None:
        nonlocal failed
        try:
            await store.reserve(caller, 1, weigh, lease_s=60)
        except ZeroDivisionError:
            failed += 1

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(ask, stumble if number % 3 else granted)
    assert failed == 40
    assert (await store.ledger(caller)).reserved == 20
