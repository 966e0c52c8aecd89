"""Jobs whose result is fetched, and jobs whose result is known when they are stored."""

import pytest
from msgspec.structs import replace

from mailprobe.storage.records import Job
from mailprobe.storage.store import Store
from tests.storage.contract.job_calls import PAYLOAD, finish, verify
from tests.storage.fixed_clock import NOON, claimed, make_caller, order, promise

FETCHED = replace(order("1"), webhook=None, host="")
KNOWN = replace(order("1"), payload=PAYLOAD)
KNOWN_AND_FETCHED = replace(FETCHED, payload=PAYLOAD)


async def job_of(store: Store) -> Job:
    job = await store.job("1")
    assert job is not None
    return job


async def test_a_job_without_a_webhook_is_done_when_it_is_verified(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, FETCHED)
    before = await store.ledger(caller)
    assert (before.reserved, before.undelivered) == (1, 1)
    (claim,) = await claimed(store)
    assert claim.job.webhook is None
    assert await verify(store, claim)
    job = await job_of(store)
    assert (job.state, job.due_at, job.payload) == ("done", None, PAYLOAD)
    assert job.ended_at is not None
    after = await store.ledger(caller)
    assert (after.reserved, after.undelivered, after.month_units) == (0, 0, 1)
    assert not await verify(store, claim)
    assert await claimed(store) == await claimed(store, "deliver") == []


async def test_a_job_without_a_webhook_has_nothing_to_send_again(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, FETCHED)
    (claim,) = await claimed(store)
    await verify(store, claim)
    ended = await job_of(store)
    assert await store.resend_job("1") is None
    assert await job_of(store) == ended


@pytest.mark.parametrize("known", [KNOWN, KNOWN_AND_FETCHED])
async def test_a_known_result_counts_in_the_window_alone(store: Store, known):
    caller = await make_caller(store)
    (job,) = await promise(store, caller, known)
    ledger = await store.ledger(caller)
    assert (ledger.reserved, ledger.month_units, ledger.window_units) == (0, 0, 1)
    assert await store.usage(caller.account.id, limit=10) == []
    assert await claimed(store) == []
    assert job == await job_of(store)
    assert job.payload == PAYLOAD


async def test_a_known_result_is_delivered_at_once(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, KNOWN)
    assert (await store.ledger(caller)).undelivered == 1
    (claim,) = await claimed(store, "deliver")
    assert (claim.job.state, claim.job.payload, claim.job.created_at) == (
        "delivering",
        PAYLOAD,
        NOON,
    )
    assert await finish(store, claim)
    ledger = await store.ledger(caller)
    assert (ledger.undelivered, ledger.month_units) == (0, 0)
    assert await store.usage(caller.account.id, limit=10) == []


async def test_a_known_result_that_is_fetched_has_ended(store: Store):
    caller = await make_caller(store)
    (job,) = await promise(store, caller, KNOWN_AND_FETCHED)
    assert (job.state, job.due_at, job.ended_at) == ("done", None, NOON)
    assert (await store.ledger(caller)).undelivered == 0
    assert await claimed(store, "deliver") == []


async def test_known_jobs_are_due_for_delivery_and_pending_ones_for_verification(store: Store):
    caller = await make_caller(store)
    await promise(store, caller, order("2"), replace(KNOWN, id="3"), order("4"), FETCHED)
    ledger = await store.ledger(caller)
    assert (ledger.reserved, ledger.undelivered, ledger.window_units) == (3, 4, 4)
    assert sorted(claim.job.id for claim in await claimed(store)) == ["1", "2", "4"]
    assert [claim.job.id for claim in await claimed(store, "deliver")] == ["3"]
