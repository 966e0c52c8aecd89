"""One contract, every Store: a job that was promised is verified once, counted once, called back."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import trio

from mailprobe.storage.claim_order import FAILING_AFTER
from mailprobe.storage.contract import LISTED_MAX, RECEIVERS_KEPT, Store
from mailprobe.storage.memory import jobs as memory_jobs
from mailprobe.storage.postgres import job_outcomes
from mailprobe.storage.records import Caller, Claim, DayCount, Job, Ledger
from mailprobe.storage.sqlite import jobs as sqlite_jobs
from tests.storage.fixed_clock import (
    INSTANT,
    LEASE_S,
    NOON,
    RETENTION,
    Clock,
    another_key,
    attempt,
    claimed,
    delivering,
    granted,
    make_caller,
    order,
    promise,
    row,
)

Write = Callable[[Store, Claim], Awaitable[bool]]
PAYLOAD = b'{"job":"\xff"}'
SOON = NOON + timedelta(seconds=5)


async def verify(store: Store, claim: Claim) -> bool:
    return await store.job_verified(claim, row(NOON), PAYLOAD, metered=True)


async def abandon(store: Store, claim: Claim) -> bool:
    return await store.abandon_job(claim)


async def extend(store: Store, claim: Claim) -> bool:
    return await store.extend_claim(claim, lease_s=LEASE_S)


async def put_off(store: Store, claim: Claim) -> bool:
    return await store.job_attempted(claim, attempt(), state="delivering", due_at=SOON)


async def finish(store: Store, claim: Claim) -> bool:
    return await store.job_attempted(claim, attempt(status=200), state="done", due_at=None)


async def look(store: Store, caller: Caller) -> list[Any]:
    """Everything that a job could have changed."""
    jobs = await store.jobs(limit=LISTED_MAX)
    return [
        jobs,
        [await store.attempts(job.id) for job in jobs],
        await store.ledger(caller),
        await store.days(caller.account.id, date.min, date.max),
        await store.usage(caller.account.id, limit=10_000),
        await store.messages("meter", limit=LISTED_MAX),
    ]


def ids(claims: list[Claim]) -> list[str]:
    return [claim.job.id for claim in claims]


# promised


async def test_a_job_is_as_it_was_ordered(store: Store):
    caller = await make_caller(store)
    ordered = order("a", host="hooks.test")
    job = await store.create_job(caller, ordered, granted)
    expected = Job(
        "a", caller.account.id, ordered.email, ordered.webhook, "hooks.test", "pending", NOON, NOON
    )
    assert job == await store.job("a") == expected
    assert await store.job("A") is None
    assert await store.attempts("a") == await store.attempts("A") == []


async def test_a_pending_job_weighs_as_what_is_granted_does(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, order("1"), order("2"))
    ledger = await store.ledger(caller)
    assert tuple(ledger.window) == ((NOON, 2),)
    assert (ledger.month_units, ledger.reserved, ledger.month_billable) == (2, 2, 0)
    other = await another_key(store, caller.account.id, "second")
    ledger = await store.ledger(other)
    assert (ledger.window_units, ledger.month_units, ledger.reserved) == (0, 2, 2)


async def test_what_is_refused_is_no_job(store: Store):
    caller = await make_caller(store)
    seen = []

    def refuse(ledger: Ledger) -> str:
        seen.append(ledger)
        return "no"

    before = await look(store, caller)
    assert await store.create_job(caller, order(), refuse) == "no"
    assert seen == [before[2]]
    assert await look(store, caller) == before


async def test_what_weighing_raises_is_raised_and_there_is_no_job(store: Store):
    caller = await make_caller(store)

    def stumble(_: Ledger) -> None:
        raise ZeroDivisionError

    before = await look(store, caller)
    with pytest.raises(ZeroDivisionError):
        await store.create_job(caller, order(), stumble)
    assert await look(store, caller) == before


async def test_an_id_that_is_kept_already_is_refused_and_weighs_nothing(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, order())
    before = await look(store, caller)
    with pytest.raises(ValueError, match="kept already"):
        await store.create_job(caller, replace(order(), email="bob@shop.test"), granted)
    assert await look(store, caller) == before


async def test_a_key_that_is_not_there_is_promised_nothing(store: Store):
    caller = await make_caller(store)
    stranger = Caller(
        replace(caller.account, id="nobody"), replace(caller.key, id="no key", account_id="nobody")
    )
    with pytest.raises(KeyError):
        await store.create_job(stranger, order(), granted)
    assert await store.job("1") is None


async def test_sixty_jobs_at_the_edge_never_get_one_too_many(store: Store):
    caller = await make_caller(store)
    outcomes: list[Any] = []

    def weigh(ledger: Ledger) -> str | None:
        return "too many" if ledger.month_units >= 7 else None

    async def ask(number: int) -> None:
        outcomes.append(await store.create_job(caller, order(f"{number}"), weigh))

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(ask, number)
    assert outcomes.count("too many") == 53
    assert (await store.ledger(caller)).reserved == 7


async def test_a_pending_job_is_reserved_for_however_long(store: Store, clock: Clock):
    caller = await make_caller(store)
    await promise(store, caller, order())
    await claimed(store)
    clock.pass_(days=3_650)
    reservation: Any = await store.reserve(caller, 1, granted, lease_s=60)  # gives ended ones back
    await store.settle(reservation, [])
    await store.apply_retention(RETENTION)
    ledger = await store.ledger(caller)
    assert (ledger.reserved, ledger.month_units, ledger.window_units) == (1, 1, 1)
    [claim] = await claimed(store)
    assert await verify(store, claim)
    assert (await store.ledger(caller)).reserved == 0


async def test_a_caller_that_was_cancelled_before_is_promised_nothing(store: Store):
    caller = await make_caller(store)
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.create_job(caller, order(), granted)
    assert scope.cancelled_caught
    assert await store.job("1") is None
    assert (await store.ledger(caller)).reserved == 0


# claimed


async def test_a_claim_has_the_job_its_caller_and_its_secret(store: Store):
    caller = await make_caller(store)
    [one, two] = await promise(store, caller, order("1", secret="geheim ü\0"), order("2"))
    assert await claimed(store) == [
        Claim(one, caller, "geheim ü\0", 1),
        Claim(two, caller, None, 1),
    ]


async def test_a_claims_account_is_as_it_is_now_and_its_key_may_be_revoked(
    store: Store, clock: Clock
):
    caller = await make_caller(store)
    await promise(store, caller, order())
    clock.pass_(1)
    await store.revoke_key(None, caller.key.id)
    account = await store.change_account(caller.account.id, tier="scale", hard_cap_micros=5)
    [claim] = await claimed(store)
    assert claim.caller == Caller(account, replace(caller.key, revoked_at=clock()))  # type: ignore[arg-type]
    assert await verify(store, claim)


async def test_pending_jobs_are_verified_and_delivering_ones_delivered(store: Store):
    caller = await make_caller(store)
    await delivering(store, caller, order("1"))
    await promise(store, caller, order("2"))
    assert ids(await claimed(store, "verify")) == ["2"]
    assert ids(await claimed(store, "deliver")) == ["1"]
    assert await claimed(store, "verify") == await claimed(store, "deliver") == []


async def test_an_ended_job_is_nobodys(store: Store, clock: Clock):
    caller = await make_caller(store)
    await delivering(store, caller, order("1"), order("2"))
    await promise(store, caller, order("3"))
    [one, two] = await claimed(store, "deliver")
    await finish(store, one)
    await store.job_attempted(two, attempt(), state="failed", due_at=None)
    [three] = await claimed(store)
    await abandon(store, three)
    clock.pass_(days=3)
    assert await claimed(store, "verify") == await claimed(store, "deliver") == []


async def test_nothing_is_claimed_before_it_is_due(store: Store, clock: Clock):
    caller = await make_caller(store)
    await delivering(store, caller, order())
    [claim] = await claimed(store, "deliver")
    await put_off(store, claim)
    clock.at = SOON - INSTANT
    assert await claimed(store, "deliver") == []
    clock.at = SOON
    assert ids(await claimed(store, "deliver")) == ["1"]


async def test_those_due_longest_are_claimed_first_and_of_one_instant_the_first_made(
    store: Store, clock: Clock
):
    caller = await make_caller(store)
    names = ["c", "a", "b", "e", "d"]
    await delivering(store, caller, *(order(name, host=f"{name}.test") for name in names))
    due_s = {"c": 30, "a": 20, "b": 30, "e": 10, "d": 20}
    for claim in await claimed(store, "deliver"):
        due_at = NOON + timedelta(seconds=due_s[claim.job.id])
        await store.job_attempted(claim, attempt(), state="delivering", due_at=due_at)
    clock.pass_(20)
    assert ids(await claimed(store, "deliver", limit=2)) == ["e", "a"]
    clock.pass_(10)
    assert ids(await claimed(store, "deliver")) == ["d", "c", "b"]


async def test_a_job_whose_claim_has_ended_stands_where_it_stood(store: Store, clock: Clock):
    caller = await make_caller(store)
    await promise(store, caller, order("1"))
    await claimed(store)
    clock.pass_(1)
    other = await make_caller(store, sha256="other")
    await promise(store, other, order("2"))
    await promise(store, caller, order("3"))
    clock.pass_(LEASE_S - 1)
    assert ids(await claimed(store)) == ["1", "2", "3"]


@pytest.mark.parametrize(("limit", "taken"), [(-1, 0), (0, 0), (1, 1), (4, 4), (5, 5), (99, 5)])
async def test_no_more_are_claimed_than_are_asked_for(store: Store, limit: int, taken: int):
    caller = await make_caller(store)
    await promise(store, caller, *(order(f"{number}") for number in range(5)))
    assert ids(await claimed(store, limit=limit)) == [f"{number}" for number in range(taken)]


@pytest.mark.parametrize(("each_max", "taken"), [(0, 0), (1, 1), (4, 4), (9, 5)])
async def test_an_account_has_no_more_than_each_max_claims(store: Store, each_max: int, taken: int):
    caller = await make_caller(store)
    await promise(store, caller, *(order(f"{number}", host=f"{number}") for number in range(5)))
    assert len(await claimed(store, each_max=each_max)) == taken
    assert await claimed(store, each_max=each_max) == []


async def test_an_accounts_host_has_no_more_than_each_max_claims(store: Store):
    one = await make_caller(store)
    two = await make_caller(store, sha256="other")
    for number in range(6):
        await delivering(store, one, order(f"{number}"))
    await delivering(store, two, order("another's"))
    assert len(await claimed(store, "deliver", each_max=4)) == 5
    assert await claimed(store, "deliver", each_max=4) == []
    assert len(await claimed(store, "deliver", each_max=5)) == 1


async def test_an_account_has_no_more_than_account_max_claims_over_all_its_hosts(store: Store):
    one = await make_caller(store)
    two = await make_caller(store, sha256="other")
    for number in range(9):
        await delivering(store, one, order(f"{number}", host=f"{number}.test"))
    await delivering(store, two, order("another's"))
    bounds: Any = {"limit": 20, "each_max": 4, "account_max": 3, "lease_s": LEASE_S}
    assert ids(await store.claim_jobs("deliver", **bounds)) == ["0", "another's", "1", "2"]
    assert await store.claim_jobs("deliver", **bounds) == []


async def test_accounts_come_in_turn_however_long_one_waits(store: Store, clock: Clock):
    """A thousand callbacks of one account came before the single one of its neighbour."""
    many = await make_caller(store)
    for number in range(12):
        await delivering(store, many, order(f"many {number}", host=f"{number % 6}.test"))
    clock.pass_(5)
    for number in range(2):
        other = await make_caller(store, sha256=f"other {number}")
        await delivering(store, other, order(f"few {number}"))
    assert ids(await claimed(store, "deliver", limit=4)) == ["many 0", "few 0", "few 1", "many 1"]
    last = await make_caller(store, sha256="last")
    await delivering(store, last, order("last"))
    assert ids(await claimed(store, "deliver", limit=2)) == ["last", "many 2"]


async def test_a_receiver_whose_last_ten_tries_failed_gets_one_at_a_time(
    store: Store, clock: Clock
):
    caller = await make_caller(store)
    for number in range(4):
        await delivering(store, caller, order(f"{number}"))
    await delivering(store, caller, order("other", host="other.test"))
    for number in range(FAILING_AFTER):
        (claim, *_) = await claimed(store, "deliver", limit=1, each_max=4)
        await store.job_attempted(claim, attempt(), state="delivering", due_at=clock())
        if number == FAILING_AFTER - 2:
            assert len(await claimed(store, "deliver", each_max=4)) == 5
            clock.pass_(LEASE_S)
    claims = {claim.job.host: claim for claim in await claimed(store, "deliver", each_max=4)}
    assert len(claims) == len(await claimed(store, "deliver", each_max=5)) + 2 == 2
    good = claims["hooks.test"]
    await store.job_attempted(good, attempt(status=200), state="done", due_at=None)
    assert len(await claimed(store, "deliver", each_max=4)) == 3


async def test_a_receiver_is_forgotten_a_day_after_its_last_try(store: Store, clock: Clock):
    caller = await make_caller(store)
    for number in range(4):
        await delivering(store, caller, order(f"{number}"))
    for _ in range(FAILING_AFTER):
        (claim, *_) = await claimed(store, "deliver", limit=1, each_max=4)
        await store.job_attempted(claim, attempt(), state="delivering", due_at=clock())
    clock.pass_(RECEIVERS_KEPT.total_seconds() - 0.000_001)
    await store.apply_retention(RETENTION)
    assert len(await claimed(store, "deliver", each_max=4)) == 1
    clock.pass_(LEASE_S)
    await store.apply_retention(RETENTION)
    assert len(await claimed(store, "deliver", each_max=4)) == 4


async def test_what_is_not_delivered_is_counted_by_account(store: Store, clock: Clock):
    caller = await make_caller(store)
    counts = []

    async def look() -> None:
        counts.append((await store.ledger(caller)).undelivered)

    await look()
    await promise(store, caller, order("1"), order("2"), order("3"))
    await look()
    one, two, three = await claimed(store)
    await verify(store, one)
    await look()
    await verify(store, two)
    await abandon(store, three)
    await look()
    first, second = await claimed(store, "deliver")
    await store.job_attempted(first, attempt(), state="delivering", due_at=clock())
    await store.job_attempted(second, attempt(status=200), state="done", due_at=None)
    await look()
    await store.resend_job("1")
    await store.resend_job("2")
    await look()
    reported: list[int] = []
    await store.create_job(caller, order("4"), lambda ledger: reported.append(ledger.undelivered))
    assert (counts, reported) == ([0, 3, 3, 2, 1, 2], [2])


async def test_claims_to_verify_take_no_place_from_those_to_deliver(store: Store):
    caller = await make_caller(store)
    await delivering(store, caller, order("1"))
    await promise(store, caller, order("2"))
    assert len(await claimed(store, "verify", each_max=1)) == 1
    assert len(await claimed(store, "deliver", each_max=1)) == 1


async def test_who_is_over_it_keeps_nobody_else_waiting(store: Store, clock: Clock):
    slow = [order(f"slow {number}", host="slow.test") for number in range(20)]
    caller = await make_caller(store)
    await delivering(store, caller, *slow)
    clock.pass_(1)
    await delivering(store, caller, order("quick", host="quick.test"))
    assert ids(await claimed(store, "deliver", each_max=2)) == ["slow 0", "slow 1", "quick"]
    clock.pass_(1)
    await delivering(store, caller, order("next", host="next.test"))
    assert ids(await claimed(store, "deliver", each_max=2)) == ["next"]


async def test_who_is_not_over_it_is_claimed_in_turn_with_the_others(store: Store, clock: Clock):
    caller = await make_caller(store)
    for number in range(6):
        host = "even.test" if number % 2 == 0 else "odd.test"
        await delivering(store, caller, order(f"{number}", host=host))
        clock.pass_(1)
    assert ids(await claimed(store, "deliver", limit=3, each_max=3)) == ["0", "1", "2"]
    assert ids(await claimed(store, "deliver", limit=9, each_max=2)) == ["3"]


async def test_an_outcome_and_the_end_of_a_lease_make_room(store: Store, clock: Clock):
    caller = await make_caller(store)
    await promise(store, caller, *(order(f"{number}") for number in range(4)))
    [claim] = await claimed(store, each_max=1)
    await verify(store, claim)
    [claim] = await claimed(store, each_max=1)
    await abandon(store, claim)
    assert ids(await claimed(store, each_max=1)) == ["2"]
    clock.pass_(LEASE_S - 0.000_001)
    assert await claimed(store, each_max=1) == []
    clock.pass_(0.000_001)
    assert ids(await claimed(store, each_max=1)) == ["2"]
    assert await claimed(store, each_max=1) == []


@pytest.mark.parametrize("lease_s", [1, 25, 30])
async def test_a_killed_claimants_job_is_claimed_again_when_its_lease_ends(
    store: Store, clock: Clock, lease_s: float
):
    caller = await make_caller(store)
    await promise(store, caller, order())
    fences = []
    for _ in range(3):
        [claim] = await store.claim_jobs("verify", limit=5, each_max=5, lease_s=lease_s)
        fences.append(claim.fence)
        clock.pass_(lease_s - 0.000_001)
        assert await claimed(store) == []
        clock.pass_(0.000_001)
    assert fences == [1, 2, 3]


async def test_many_claimants_have_each_job_once(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, *(order(f"{number}") for number in range(30)))
    taken: list[str] = []

    async def take() -> None:
        taken.extend(ids(await claimed(store, limit=3, each_max=20)))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(take)
    assert len(taken) == len(set(taken)) == 20


async def test_claimants_that_are_cancelled_leave_nothing_that_nobody_knows_of(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, *(order(f"{number}") for number in range(60)))
    taken: list[str] = []

    async def take() -> None:
        taken.extend(ids(await claimed(store, limit=1)))

    for steps in range(6):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(take)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    left = ids(await claimed(store))
    assert sorted(taken + left, key=int) == [f"{number}" for number in range(60)]


# extended


async def test_a_claim_is_extended_from_now_while_it_lasts(store: Store, clock: Clock):
    caller = await make_caller(store)
    await promise(store, caller, order())
    [claim] = await claimed(store)
    clock.pass_(20)
    assert await extend(store, claim)
    clock.pass_(LEASE_S - 0.000_001)
    assert await claimed(store) == []
    clock.pass_(0.000_001)
    assert not await extend(store, claim)
    assert ids(await claimed(store)) == ["1"]


# stale and spent


@pytest.mark.parametrize("write", [verify, abandon, extend])
async def test_a_stale_claim_of_a_pending_job_changes_nothing(
    store: Store, clock: Clock, write: Write
):
    caller = await make_caller(store)
    await promise(store, caller, order())
    [stale] = await claimed(store)
    clock.pass_(LEASE_S)
    [claim] = await claimed(store)
    before = await look(store, caller)
    assert not await write(store, stale)
    assert not await write(store, replace(claim, fence=claim.fence + 1))
    assert await look(store, caller) == before
    assert await write(store, claim)


@pytest.mark.parametrize("write", [put_off, finish, extend])
async def test_a_stale_claim_of_a_delivering_job_changes_nothing(
    store: Store, clock: Clock, write: Write
):
    caller = await make_caller(store)
    await delivering(store, caller, order())
    [stale] = await claimed(store, "deliver")
    clock.pass_(LEASE_S)
    [claim] = await claimed(store, "deliver")
    before = await look(store, caller)
    assert not await write(store, stale)
    assert await look(store, caller) == before
    assert await write(store, claim)


@pytest.mark.parametrize("write", [verify, abandon, put_off, finish])
async def test_a_claim_is_spent_by_its_outcome(store: Store, write: Write):
    """One told twice, for the first answer was lost, is told once."""
    caller = await make_caller(store)
    if write in (verify, abandon):
        await promise(store, caller, order())
        [claim] = await claimed(store)
    else:
        await delivering(store, caller, order())
        [claim] = await claimed(store, "deliver")
    assert await write(store, claim)
    before = await look(store, caller)
    for again in (verify, abandon, put_off, finish, extend):
        assert not await again(store, claim)
    assert await look(store, caller) == before


@pytest.mark.parametrize("write", [verify, abandon, put_off, finish])
async def test_a_job_that_nobody_has_and_one_that_is_not_there_have_no_outcome(
    store: Store, write: Write
):
    caller = await make_caller(store)
    [job] = await promise(store, caller, order())
    before = await look(store, caller)
    assert not await write(store, Claim(job, caller, None, 0))
    assert not await write(store, Claim(replace(job, id="nothing"), caller, None, 0))
    assert await look(store, caller) == before


@pytest.mark.parametrize(
    ("work", "write"),
    [("verify", put_off), ("verify", finish), ("deliver", verify), ("deliver", abandon)],
)
async def test_what_does_not_fit_the_jobs_state_changes_nothing(
    store: Store, work: Any, write: Write
):
    caller = await make_caller(store)
    await delivering(store, caller, order("1"))
    await promise(store, caller, order("2"))
    [claim] = await claimed(store, work)
    before = await look(store, caller)
    assert not await write(store, claim)
    assert await look(store, caller) == before


# verified


async def test_what_is_verified_is_counted_and_due_to_be_delivered(store: Store, clock: Clock):
    caller = await make_caller(store)
    [job] = await promise(store, caller, order())
    [claim] = await claimed(store)
    clock.pass_(2)
    logged = row(SOON, latency_ms=1_999)
    assert await store.job_verified(claim, logged, PAYLOAD)
    assert await store.job("1") == replace(job, state="delivering", due_at=clock(), payload=PAYLOAD)
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.month_billable, ledger.period_billable) == (1, 1, 1)
    assert (ledger.reserved, ledger.window_units) == (0, 1)
    assert await store.usage(caller.account.id, limit=10) == [logged]
    assert await store.days(caller.account.id, date.min, date.max) == [DayCount(NOON.date(), 1)]


async def test_what_is_not_billable_is_counted_as_such(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, order())
    [claim] = await claimed(store)
    assert await store.job_verified(claim, row(NOON, billable=False), PAYLOAD)
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.month_billable, ledger.reserved) == (1, 0, 0)


async def test_a_job_promised_before_the_months_edge_counts_where_its_row_lies(
    store: Store, clock: Clock
):
    clock.at = datetime(2025, 1, 31, 23, 59, 59, tzinfo=UTC)
    caller = await make_caller(store, "free")
    await promise(store, caller, order())
    clock.pass_(3)
    assert (await store.ledger(caller)).month_units == 1
    [claim] = await claimed(store)
    assert await store.job_verified(claim, row(clock()), PAYLOAD)
    assert await store.days(caller.account.id, date.min, date.max) == [
        DayCount(date(2025, 2, 1), 1)
    ]


async def test_a_claim_that_has_ended_and_that_nobody_took_over_still_counts(
    store: Store, clock: Clock
):
    caller = await make_caller(store)
    await promise(store, caller, order())
    [claim] = await claimed(store)
    clock.pass_(days=2)
    await store.apply_retention(RETENTION)
    assert await verify(store, claim)
    ledger = await store.ledger(caller)
    assert (ledger.month_billable, ledger.reserved) == (1, 0)


# tried


async def test_a_try_is_logged_and_the_job_due_again(store: Store, clock: Clock):
    caller = await make_caller(store)
    [job] = await delivering(store, caller, order())
    for number in (1, 2, 3):
        [claim] = await claimed(store, "deliver")
        assert claim.job.tries == number - 1
        assert claim.fence == number + 1
        due_at = clock() + timedelta(seconds=7)
        tried = attempt(number, clock(), None)
        assert await store.job_attempted(claim, tried, state="delivering", due_at=due_at)
        clock.pass_(7)
    assert await store.job("1") == replace(job, due_at=due_at, tries=3)
    assert await store.attempts("1") == [
        attempt(number, NOON + timedelta(seconds=7 * number - 7), None) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("state", ["done", "failed"])
async def test_the_last_try_ends_the_job(store: Store, clock: Clock, state: Any):
    caller = await make_caller(store)
    [job] = await delivering(store, caller, order())
    [claim] = await claimed(store, "deliver")
    clock.pass_(3)
    assert await store.job_attempted(claim, attempt(), state=state, due_at=None)
    assert await store.job("1") == replace(job, state=state, due_at=None, tries=1, ended_at=clock())
    assert await store.attempts("1") == [attempt()]


@pytest.mark.parametrize(
    ("state", "due_at"),
    [("pending", SOON), ("pending", None), ("delivering", None), ("done", SOON), ("failed", SOON)],
)
async def test_an_outcome_that_leaves_the_job_to_nobody_is_an_error(
    store: Store, state: Any, due_at: datetime | None
):
    caller = await make_caller(store)
    await delivering(store, caller, order())
    [claim] = await claimed(store, "deliver")
    before = await look(store, caller)
    with pytest.raises(ValueError, match="cannot be"):
        await store.job_attempted(claim, attempt(), state=state, due_at=due_at)
    assert await look(store, caller) == before


async def test_the_last_attempts_are_shown(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    for module in (memory_jobs, sqlite_jobs, job_outcomes):
        monkeypatch.setattr(module, "LISTED_MAX", 5)
    caller = await make_caller(store)
    await delivering(store, caller, order("1"), order("2", host="other.test"))
    for number in range(1, 9):
        for claim in await claimed(store, "deliver"):
            await store.job_attempted(claim, attempt(number), state="delivering", due_at=NOON)
    for id in ("1", "2"):
        assert await store.attempts(id) == [attempt(number) for number in range(4, 9)]


# abandoned


async def test_an_abandoned_job_is_not_counted_and_calls_nobody(store: Store, clock: Clock):
    caller = await make_caller(store)
    [job] = await promise(store, caller, order())
    [claim] = await claimed(store)
    clock.pass_(1)
    assert await store.abandon_job(claim)
    assert await store.job("1") == replace(job, state="failed", due_at=None, ended_at=clock())
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.reserved, ledger.window_units) == (0, 0, 1)
    assert await store.usage(caller.account.id, limit=10) == []


# sent again


@pytest.mark.parametrize("state", ["done", "failed"])
async def test_an_ended_job_is_sent_again_at_once_with_all_its_tries(
    store: Store, clock: Clock, state: Any
):
    caller = await make_caller(store)
    [job] = await delivering(store, caller, order(secret="s"))
    [claim] = await claimed(store, "deliver")
    await store.job_attempted(claim, attempt(), state=state, due_at=None)
    before = await store.ledger(caller)
    clock.pass_(9)
    again = await store.resend_job("1")
    assert again == await store.job("1") == replace(job, due_at=clock())
    [resent] = await claimed(store, "deliver")
    assert resent.fence > claim.fence
    assert resent == Claim(replace(job, due_at=clock()), caller, "s", resent.fence)
    await finish(store, resent)
    assert await store.attempts("1") == [attempt(), attempt(status=200)]
    assert replace(await store.ledger(caller), asked_at=NOON) == before


async def test_a_job_that_waits_for_its_next_try_is_sent_at_once(store: Store, clock: Clock):
    caller = await make_caller(store)
    await delivering(store, caller, order("1"), order("2"))
    for claim in await claimed(store, "deliver"):
        await put_off(store, claim)
    assert await store.resend_job("2")
    assert ids(await claimed(store, "deliver")) == ["2"]
    clock.at = SOON
    assert ids(await claimed(store, "deliver")) == ["1"]


async def test_the_outcome_of_a_try_that_is_under_way_no_longer_counts(store: Store):
    caller = await make_caller(store)
    await delivering(store, caller, order())
    [under_way] = await claimed(store, "deliver")
    await store.resend_job("1")
    before = await look(store, caller)
    for write in (put_off, finish, extend):
        assert not await write(store, under_way)
    assert await look(store, caller) == before
    [resent] = await claimed(store, "deliver")
    assert await finish(store, resent)


async def test_what_has_no_payload_is_not_sent_again(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, order("pending"))
    assert await store.resend_job("pending") is None
    [claim] = await claimed(store)
    assert await store.resend_job("pending") is None
    assert await abandon(store, claim)
    assert await store.resend_job("pending") is None
    assert await store.resend_job("no such job") is None


async def test_a_payload_may_be_empty(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, order())
    [claim] = await claimed(store)
    await store.job_verified(claim, row(NOON), b"")
    assert (await store.resend_job("1")).payload == b""  # type: ignore[union-attr]


# shown


async def test_jobs_are_shown_newest_first(store: Store, clock: Clock):
    one = await make_caller(store)
    two = await make_caller(store, sha256="other")
    await delivering(store, one, order("c"), order("a"))
    await delivering(store, two, order("d"))
    await promise(store, two, order("b"))
    await promise(store, one, order("e"))

    async def shown(**which: Any) -> str:
        return "".join(job.id for job in await store.jobs(**{"limit": 10} | which))

    assert await shown() == "ebdac"
    assert await shown(limit=2) == "eb"
    assert await shown(account_id=one.account.id) == "eac"
    assert await shown(state="delivering") == "dac"
    assert await shown(account_id=two.account.id, state="pending") == "b"
    assert await shown(account_id=two.account.id, state="delivering", limit=1) == "d"
    assert await shown(limit=0) == await shown(limit=-1) == ""
    assert await shown(state="done") == await shown(account_id="nobody") == ""


async def test_no_more_than_listed_max_are_shown(store: Store):
    caller = await make_caller(store)
    for first in range(0, LISTED_MAX + 1, 100):  # some at a time: a busy disk takes its time
        async with trio.open_nursery() as nursery:
            for number in range(first, min(first + 100, LISTED_MAX + 1)):
                nursery.start_soon(partial(store.create_job, caller, order(f"{number}"), granted))
    assert len(await store.jobs(limit=10 * LISTED_MAX)) == LISTED_MAX


# upkeep


@pytest.mark.parametrize(("tier", "days"), [("free", 7), ("builder", 90)])
@pytest.mark.parametrize("end", [finish, abandon])
async def test_an_ended_job_goes_with_its_attempts_by_its_accounts_tier(
    store: Store, clock: Clock, tier: Any, days: int, end: Write
):
    clock.at = datetime(2025, 3, 1, 0, 0, 1, tzinfo=UTC)
    caller = await make_caller(store, tier)
    if end is finish:
        await delivering(store, caller, order())
        [claim] = await claimed(store, "deliver")
    else:
        await promise(store, caller, order())
        [claim] = await claimed(store)
    await end(store, claim)
    logged = await store.attempts("1")
    clock.at = datetime(2025, 3, 1, 23, 59, 59, tzinfo=UTC) + timedelta(days - 1)
    await store.apply_retention(RETENTION)
    assert await store.job("1")
    assert await store.attempts("1") == logged
    clock.pass_(1)
    await store.apply_retention(RETENTION)
    assert await store.job("1") is None
    assert await store.attempts("1") == []
    assert await store.resend_job("1") is None
    await promise(store, caller, order())  # its id is free
    assert await store.attempts("1") == []


async def test_a_job_is_kept_however_old_until_it_has_ended(store: Store, clock: Clock):
    caller = await make_caller(store)
    await delivering(store, caller, order("1"))
    await promise(store, caller, order("2"))
    clock.pass_(days=1_000)
    await store.apply_retention(RETENTION)
    assert ids(await claimed(store, "deliver")) == ["1"]
    [claim] = await claimed(store)
    await abandon(store, claim)
    await store.apply_retention({})
    await store.apply_retention(RETENTION)
    assert [job.id for job in await store.jobs(limit=10)] == ["2", "1"]


async def test_a_job_that_is_sent_again_is_kept(store: Store, clock: Clock):
    caller = await make_caller(store)
    await delivering(store, caller, order())
    [claim] = await claimed(store, "deliver")
    await finish(store, claim)
    clock.pass_(days=50)
    await store.resend_job("1")
    clock.pass_(days=50)
    await store.apply_retention(RETENTION)
    assert await store.job("1")
    assert await store.attempts("1")


async def test_tidying_takes_all_jobs_however_many_there_are(store: Store, clock: Clock):
    caller = await make_caller(store)
    async with trio.open_nursery() as nursery:
        for number in range(250):
            nursery.start_soon(partial(store.create_job, caller, order(f"{number}"), granted))
    async with trio.open_nursery() as nursery:
        for claim in await claimed(store, limit=250, each_max=250):
            nursery.start_soon(store.abandon_job, claim)
    clock.pass_(days=100)
    await promise(store, caller, order("young"))
    await store.apply_retention(RETENTION)
    assert [job.id for job in await store.jobs(limit=1_000)] == ["young"]
