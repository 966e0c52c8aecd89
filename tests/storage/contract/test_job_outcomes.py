"""Every store: outcomes of jobs, attempts, resends and retention."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import trio
from msgspec import structs

from mailprobe.storage import jobs
from mailprobe.storage.contract import LISTED_MAX
from mailprobe.storage.records import Claim, DayCount
from mailprobe.storage.store import Store
from tests.storage.contract.job_calls import (
    PAYLOAD,
    SOON,
    Write,
    abandon,
    extend,
    finish,
    ids,
    observe,
    postpone,
    put_off,
    verify,
)
from tests.storage.fixed_clock import (
    LEASE_S,
    NOON,
    RETENTION,
    Clock,
    attempt,
    claimed,
    delivering,
    granted,
    make_caller,
    order,
    promise,
    row,
)

# stale and spent


@pytest.mark.parametrize("write", [verify, postpone, abandon, extend])
async def test_a_stale_claim_of_a_pending_job_changes_nothing(
    store: Store, clock: Clock, write: Write
):
    caller = await make_caller(store)
    await promise(store, caller, order())
    [stale] = await claimed(store)
    clock.advance(LEASE_S)
    [claim] = await claimed(store)
    before = await observe(store, caller)
    assert not await write(store, stale)
    assert not await write(store, structs.replace(claim, fence=claim.fence + 1))
    assert await observe(store, caller) == before
    assert await write(store, claim)


@pytest.mark.parametrize("write", [put_off, finish, extend])
async def test_a_stale_claim_of_a_delivering_job_changes_nothing(
    store: Store, clock: Clock, write: Write
):
    caller = await make_caller(store)
    await delivering(store, caller, order())
    [stale] = await claimed(store, "deliver")
    clock.advance(LEASE_S)
    [claim] = await claimed(store, "deliver")
    before = await observe(store, caller)
    assert not await write(store, stale)
    assert await observe(store, caller) == before
    assert await write(store, claim)


@pytest.mark.parametrize("write", [verify, postpone, abandon, put_off, finish])
async def test_a_claim_is_spent_by_its_outcome(store: Store, write: Write):
    """One told twice, for the first answer was lost, is told once."""
    caller = await make_caller(store)
    if write in (verify, postpone, abandon):
        await promise(store, caller, order())
        [claim] = await claimed(store)
    else:
        await delivering(store, caller, order())
        [claim] = await claimed(store, "deliver")
    assert await write(store, claim)
    before = await observe(store, caller)
    for again in (verify, postpone, abandon, put_off, finish, extend):
        assert not await again(store, claim)
    assert await observe(store, caller) == before


@pytest.mark.parametrize("write", [verify, postpone, abandon, put_off, finish])
async def test_a_job_that_nobody_has_and_one_that_is_not_there_have_no_outcome(
    store: Store, write: Write
):
    caller = await make_caller(store)
    [job] = await promise(store, caller, order())
    before = await observe(store, caller)
    assert not await write(store, Claim(job, caller, None, 0))
    assert not await write(store, Claim(structs.replace(job, id="nothing"), caller, None, 0))
    assert await observe(store, caller) == before


@pytest.mark.parametrize(
    ("work", "write"),
    [
        ("verify", put_off),
        ("verify", finish),
        ("deliver", verify),
        ("deliver", postpone),
        ("deliver", abandon),
    ],
)
async def test_a_result_that_does_not_fit_the_jobs_state_changes_nothing(
    store: Store, work: Any, write: Write
):
    caller = await make_caller(store)
    await delivering(store, caller, order("1"))
    await promise(store, caller, order("2"))
    [claim] = await claimed(store, work)
    before = await observe(store, caller)
    assert not await write(store, claim)
    assert await observe(store, caller) == before


# verified


async def test_a_verified_job_is_counted_and_due_for_delivery(store: Store, clock: Clock):
    caller = await make_caller(store)
    [job] = await promise(store, caller, order())
    [claim] = await claimed(store)
    clock.advance(2)
    logged = row(SOON, latency_ms=1_999)
    assert await store.job_verified(claim, logged, PAYLOAD)
    assert await store.job("1") == structs.replace(
        job, state="delivering", due_at=clock(), payload=PAYLOAD
    )
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.month_billable, ledger.period_billable) == (1, 1, 1)
    assert (ledger.reserved, ledger.window_units) == (0, 1)
    assert await store.usage(caller.account.id, limit=10) == [logged]
    assert await store.days(caller.account.id, date.min, date.max) == [DayCount(NOON.date(), 1)]


async def test_a_job_that_is_not_billable_is_counted_as_such(store: Store):
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
    clock.advance(3)
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
    clock.advance(days=2)
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
        clock.advance(7)
    assert await store.job("1") == structs.replace(job, due_at=due_at, tries=3)
    assert await store.attempts("1") == [
        attempt(number, NOON + timedelta(seconds=7 * number - 7), None) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("state", ["done", "failed"])
async def test_the_last_try_ends_the_job(store: Store, clock: Clock, state: Any):
    caller = await make_caller(store)
    [job] = await delivering(store, caller, order())
    [claim] = await claimed(store, "deliver")
    clock.advance(3)
    assert await store.job_attempted(claim, attempt(), state=state, due_at=None)
    assert await store.job("1") == structs.replace(
        job, state=state, due_at=None, tries=1, ended_at=clock()
    )
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
    before = await observe(store, caller)
    with pytest.raises(ValueError, match="cannot be"):
        await store.job_attempted(claim, attempt(), state=state, due_at=due_at)
    assert await observe(store, caller) == before


async def test_the_last_attempts_are_shown(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jobs, "LISTED_MAX", 5)
    caller = await make_caller(store)
    await delivering(store, caller, order("1"), order("2", host="other.test"))
    for number in range(1, 9):
        for claim in await claimed(store, "deliver"):
            await store.job_attempted(claim, attempt(number), state="delivering", due_at=NOON)
    for id in ("1", "2"):
        assert await store.attempts(id) == [attempt(number) for number in range(4, 9)]


# postponed


async def test_a_postponed_job_is_not_counted_and_is_due_again(store: Store, clock: Clock):
    caller = await make_caller(store)
    [job] = await promise(store, caller, structs.replace(order(), recheck=True))
    assert job.recheck
    for tries in (1, 2):
        [claim] = await claimed(store)
        assert claim.job.recheck
        due_at = clock() + timedelta(minutes=5)
        assert await store.postpone_job(claim, due_at)
        assert await store.job("1") == structs.replace(job, tries=tries, due_at=due_at)
        ledger = await store.ledger(caller)
        assert (ledger.month_units, ledger.reserved) == (1, 1)
        assert await claimed(store) == []
        assert not await verify(store, claim)
        clock.advance(300)
    [claim] = await claimed(store)
    assert await verify(store, claim)
    kept = await store.job("1")
    assert kept is not None
    assert (kept.state, kept.tries) == ("delivering", 0)
    assert (await store.ledger(caller)).month_units == 1


async def test_a_postponed_job_keeps_its_time_when_a_clock_is_corrected(store: Store, clock: Clock):
    caller = await make_caller(store)
    [job] = await promise(store, caller, structs.replace(order(), recheck=True))
    [claim] = await claimed(store)
    due_at = clock() + timedelta(minutes=5)
    await store.postpone_job(claim, due_at)
    await store.apply_retention(RETENTION)
    kept = await store.job(job.id)
    assert kept is not None
    assert kept.due_at == due_at


# abandoned


async def test_an_abandoned_job_is_not_counted_and_calls_nobody(store: Store, clock: Clock):
    caller = await make_caller(store)
    [job] = await promise(store, caller, order())
    [claim] = await claimed(store)
    clock.advance(1)
    assert await store.abandon_job(claim)
    assert await store.job("1") == structs.replace(
        job, state="failed", due_at=None, ended_at=clock()
    )
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
    clock.advance(9)
    again = await store.resend_job("1")
    assert again == await store.job("1") == structs.replace(job, due_at=clock())
    [resent] = await claimed(store, "deliver")
    assert resent.fence > claim.fence
    assert resent == Claim(structs.replace(job, due_at=clock()), caller, "s", resent.fence)
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
    before = await observe(store, caller)
    for write in (put_off, finish, extend):
        assert not await write(store, under_way)
    assert await observe(store, caller) == before
    [resent] = await claimed(store, "deliver")
    assert await finish(store, resent)


async def test_a_job_without_a_payload_is_not_sent_again(store: Store):
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


async def test_jobs_are_shown_by_their_receiver_and_from_a_place_on(store: Store):
    one = await make_caller(store)
    two = await make_caller(store, sha256="other")
    await delivering(store, one, order("a", host="x.test", secret="s"), order("b", host="y.test"))
    await delivering(store, two, order("e", host="x.test"))
    await promise(
        store,
        one,
        order("c", host="x.test"),
        structs.replace(order("d", host="a.test"), webhook=None),
    )

    async def shown(**which: Any) -> str:
        found = await store.jobs(account_id=one.account.id, **{"limit": 10} | which)
        return "".join(job.id for job in found)

    assert await shown(host="x.test") == "ca"
    assert await shown(host="x.test", state="delivering") == "a"
    assert await shown(host="x.test", state="done") == await shown(host="X.test") == ""
    assert await shown(host="a.test") == ""
    assert await shown(before="d") == "cba"
    assert await shown(before="c", host="x.test") == "a"
    assert await shown(before="a") == await shown(before="no such id") == ""
    assert [
        job.is_signed for job in await store.jobs(limit=2, host="x.test", state="delivering")
    ] == [
        False,
        True,
    ]
    assert await store.receivers(one.account.id) == ["x.test", "y.test"]
    assert await store.receivers("no such id") == []


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
    clock.advance(1)
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
    clock.advance(days=1_000)
    await store.apply_retention(RETENTION)
    assert ids(await claimed(store, "deliver")) == ["1"]
    [claim] = await claimed(store)
    await abandon(store, claim)
    await store.apply_retention(RETENTION)
    await store.apply_retention(RETENTION)
    assert [job.id for job in await store.jobs(limit=10)] == ["2", "1"]


async def test_a_job_that_is_sent_again_is_kept(store: Store, clock: Clock):
    caller = await make_caller(store)
    await delivering(store, caller, order())
    [claim] = await claimed(store, "deliver")
    await finish(store, claim)
    clock.advance(days=50)
    await store.resend_job("1")
    clock.advance(days=50)
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
    clock.advance(days=100)
    await promise(store, caller, order("young"))
    await store.apply_retention(RETENTION)
    assert [job.id for job in await store.jobs(limit=1_000)] == ["young"]
