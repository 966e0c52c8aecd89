"""Every store: clocks that were ahead, retention, and callers that are cancelled."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import trio

from mailprobe.storage import retention
from mailprobe.storage.contract import LEASES_MAX, WAITS_MAX, WINDOW, IdempotencyInProgress
from mailprobe.storage.database import Database
from mailprobe.storage.records import (
    DayCount,
    IdempotencyRecord,
    LeaseRequest,
    Ledger,
    Reservation,
)
from mailprobe.storage.store import Store
from tests.storage.contract.calls import ANSWER, at_most, begin, refusal
from tests.storage.fixed_clock import (
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

# a clock that was ahead


async def test_units_reserved_by_a_clock_that_was_ahead_count_as_reserved_now(
    store: Store, clock: Clock
):
    """It locked a key out for as long as it was ahead."""
    caller = await make_caller(store)
    clock.advance(3600)
    await use(store, caller, clock(), 3)
    clock.advance(1)
    await use(store, caller, clock(), 1)
    clock.advance(-3591)
    assert tuple((await store.ledger(caller)).window) == ((clock(), 4),)
    assert await store.reserve(caller, 7, at_most(10, 7), lease_s=60) == "too many"
    back = clock()
    clock.advance(30)
    assert tuple((await store.ledger(caller)).window) == ((back, 4),)
    assert isinstance(await store.reserve(caller, 5, at_most(10, 5), lease_s=60), Reservation)
    clock.advance(29.999_999)
    assert (await store.ledger(caller)).window_units == 9
    clock.advance(0.000_001)
    assert (await store.ledger(caller)).window_units == 5
    clock.advance(60)
    assert (await store.ledger(caller)).window_units == 0


async def test_leases_and_waits_of_a_clock_that_was_ahead_are_brought_back(
    store: Store, clock: Clock
):
    """They held quota and jobs for as long as it was ahead."""
    caller = await make_caller(store)
    clock.advance(days=3)
    await store.reserve(caller, 5, granted, lease_s=20)
    await promise(store, caller, order("1"), order("2"))
    (claim, _) = await store.claim_jobs("verify", limit=2, each_max=2, lease_s=15)
    await store.job_verified(claim, row(NOON), b"{}")
    await store.lease_connections("gone", {"192.0.2.1": LeaseRequest(0, 1)}, limit=1, lease_s=12)
    await store.enqueue_message("alert", caller.account.id, "a", b"", due_at=clock())
    clock.advance(days=-3)
    assert (await store.ledger(caller)).reserved == 6
    await store.apply_retention(RETENTION)
    (claim,) = await store.claim_jobs("deliver", limit=2, each_max=2, lease_s=15)
    assert claim.job.id == "1"
    clock.advance(LEASES_MAX.total_seconds())
    assert (await store.ledger(caller)).reserved == 1  # the job's
    (claim,) = await store.claim_jobs("verify", limit=2, each_max=2, lease_s=15)
    assert claim.job.id == "2"
    asked = {"192.0.2.1": LeaseRequest(0, 1)}
    assert await store.lease_connections("new", asked, limit=1, lease_s=12) == {"192.0.2.1": 1}
    clock.advance(WAITS_MAX.total_seconds())
    assert len(await store.claim_messages("alert", limit=1, lease_s=60)) == 1


async def test_keys_that_a_clock_used_and_revoked_that_was_ahead_are_forgotten_a_minute_from_now(
    store: Store, clock: Clock
):
    """They weighed on all keys of their account for as long as it was ahead."""
    caller = await make_caller(store)
    other = await another_key(store, caller.account.id, "other")
    clock.advance(days=365)
    await use(store, caller, clock(), 4)
    clock.advance(1)
    await use(store, caller, clock(), 1)
    assert await store.revoke_key(None, caller.key.id)
    clock.advance(days=-365)
    await use(store, other, clock(), 2)
    await store.apply_retention(RETENTION)
    ledger = await store.ledger(other)
    assert (ledger.keys, tuple(ledger.account_window)) == (2, ((clock(), 7),))
    clock.advance(WINDOW.total_seconds())
    ledger = await store.ledger(other)
    assert (ledger.keys, tuple(ledger.account_window)) == (1, ())


async def test_few_windows_of_a_clock_that_was_ahead_are_corrected_in_one_transaction(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    """All at once took seconds of many keys, whose requests were refused meanwhile."""
    caller = await make_caller(store)
    callers = [caller, *[await another_key(store, caller.account.id, f"{n}") for n in range(4)]]
    clock.advance(days=365)
    for each in callers:
        await use(store, each, clock(), 1)
    clock.advance(days=-365)
    monkeypatch.setattr(retention, "JOBS_TIDIED_MAX", 2)
    corrected: list[int] = []
    act = retention.reclaim_windows

    def counted(db: Database, *, latest: Mapping[str, int]) -> bool:
        found = "SELECT count(DISTINCT key) FROM rate_windows WHERE at > :soon"
        ((before,),) = db.all(found, latest)
        more = act(db, latest=latest)
        ((after,),) = db.all(found, latest)
        corrected.append(before - after)
        return more

    monkeypatch.setattr(retention, "reclaim_windows", counted)
    await store.apply_retention(RETENTION)
    assert corrected == [2, 2, 1]
    assert tuple((await store.ledger(caller)).account_window) == ((clock(), 5),)


async def test_a_request_that_a_clock_began_that_was_ahead_holds_its_idempotency_key_no_longer(
    store: Store, clock: Clock
):
    """A repeat met 409 for as long as the clock was ahead."""
    account_id = (await make_caller(store)).account.id
    clock.advance(3600)
    died, kept = await begin(store, account_id, "died"), await begin(store, account_id, "kept")
    await store.finish_idempotent(kept, ANSWER)
    clock.advance(-3600)
    again = await begin(store, account_id, "died")
    assert isinstance(again, IdempotencyRecord)
    await store.finish_idempotent(died, ANSWER)  # too late: the other one runs
    with pytest.raises(IdempotencyInProgress):
        await begin(store, account_id, "died")
    await store.apply_retention(RETENTION)
    assert await begin(store, account_id, "kept") == ANSWER
    clock.advance(days=1)
    assert isinstance(await begin(store, account_id, "kept"), IdempotencyRecord)


async def test_retention_leaves_pending_work_unchanged(store: Store, clock: Clock):
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
    clock.advance(180)
    assert (await store.ledger(caller)).reserved == 0


# upkeep


@pytest.mark.parametrize(("tier", "days"), [("free", 7), ("builder", 90), ("scale", 90)])
async def test_tidying_drops_rows_by_tier_and_never_a_count(
    store: Store, clock: Clock, tier: Any, days: int
):
    clock.at = datetime(2025, 3, 1, 0, 0, 1, tzinfo=UTC)
    caller = await make_caller(store, tier)
    period: Any = {
        "current_period_start": clock.at,
        "current_period_end": clock.at + timedelta(200),
    }
    await store.change_account(caller.account.id, **period)
    await use(store, caller, clock.at, 3)
    await store.log_refusal(caller, refusal(clock.at))
    clock.at = datetime(2025, 3, 1, 23, 59, 59, tzinfo=UTC) + timedelta(days - 1)
    await store.apply_retention(RETENTION)
    assert len(await store.usage(caller.account.id, limit=10)) == 4
    ledger = await store.ledger(caller)
    clock.advance(1)
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
    clock.advance(30)
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
    clock.advance(days=100)
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

    async def reserve() -> None:
        held.append(await store.reserve(caller, 1, granted, lease_s=60))

    for steps in range(6):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(reserve)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert (await store.ledger(caller)).reserved == len(held)


async def test_neighbours_of_one_that_fails_are_not_hurt(store: Store):
    caller = await make_caller(store)
    failed = 0

    def stumble(_: Ledger) -> None:
        raise ZeroDivisionError

    async def reserve(weigh: Any) -> None:
        nonlocal failed
        try:
            await store.reserve(caller, 1, weigh, lease_s=60)
        except ZeroDivisionError:
            failed += 1

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(reserve, stumble if number % 3 else granted)
    assert failed == 40
    assert (await store.ledger(caller)).reserved == 20
