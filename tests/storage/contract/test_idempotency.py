"""Every store: idempotency records, and answers stored with their effects."""

from contextlib import suppress
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.storage.contract import (
    ANSWER_OCTETS_MAX,
    IdempotencyInProgress,
    IdempotencyKeyReused,
)
from mailprobe.storage.records import (
    Caller,
    FirstAnswer,
    IdempotencyRecord,
    JobOrder,
    Reservation,
)
from mailprobe.storage.store import Store
from tests.storage.contract.calls import ANSWER, begin
from tests.storage.fixed_clock import (
    NOON,
    RETENTION,
    Clock,
    granted,
    make_caller,
    row,
)
from tests.storage.other_process import other_process

# idempotency


async def test_the_first_answer_is_given_again_byte_for_byte(store: Store):
    caller = await make_caller(store)
    account_id = caller.account.id
    idempotency = await begin(store, account_id)
    assert isinstance(idempotency, IdempotencyRecord)
    await store.finish_idempotent(idempotency, ANSWER)
    assert await begin(store, account_id) == ANSWER
    assert await begin(store, account_id) == ANSWER


async def test_a_repeat_of_a_running_request_is_in_progress(store: Store):
    caller = await make_caller(store)
    await begin(store, caller.account.id)
    with pytest.raises(IdempotencyInProgress):
        await begin(store, caller.account.id)


async def test_a_request_whose_process_has_ended_is_repeated_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """Also with another body: nothing was done with the first. Its late end changes nothing."""
    caller = await make_caller(store)
    with other_process() as other:
        with monkeypatch.context() as patch:
            patch.setattr("mailprobe.storage.idempotency.own_holder", lambda: other.holder)
            first = await begin(store, caller.account.id)
        assert isinstance(first, IdempotencyRecord)
        with pytest.raises(IdempotencyInProgress):
            await begin(store, caller.account.id)
        other.kill()
        other.reap()
    second = await store.begin_idempotent(
        caller.account.id, "k", "another", keep_s=86_400, lease_s=60, mark=1
    )
    assert isinstance(second, IdempotencyRecord)
    await store.finish_idempotent(first, ANSWER)
    with pytest.raises(IdempotencyInProgress):
        await begin(store, caller.account.id, body="another")


async def test_another_body_is_key_reuse_whether_the_first_request_runs_or_not(store: Store):
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
    """Up to two seconds before it: the end's microseconds are the request's mark."""
    caller = await make_caller(store)
    await begin(store, caller.account.id)
    clock.advance(58.999_999)
    with pytest.raises(IdempotencyInProgress):
        await begin(store, caller.account.id)
    clock.advance(0.000_001)
    assert isinstance(await begin(store, caller.account.id, body="another"), IdempotencyRecord)
    with pytest.raises(IdempotencyInProgress):
        await begin(store, caller.account.id, body="another")


async def test_an_answer_is_forgotten_after_a_day(store: Store, clock: Clock):
    caller = await make_caller(store)
    await store.finish_idempotent(await begin(store, caller.account.id), ANSWER)
    clock.advance(86_399.999_999)
    await store.apply_retention(RETENTION)
    assert await begin(store, caller.account.id) == ANSWER
    clock.advance(0.000_001)
    assert isinstance(await begin(store, caller.account.id, body="another"), IdempotencyRecord)


async def test_a_key_that_was_let_go_can_be_used_again(store: Store):
    caller = await make_caller(store)
    await store.finish_idempotent(await begin(store, caller.account.id), None)
    assert isinstance(await begin(store, caller.account.id, body="another"), IdempotencyRecord)


async def test_a_request_that_may_have_begun_frees_its_key_by_its_mark(store: Store, clock: Clock):
    caller = await make_caller(store)
    account_id = caller.account.id
    mark, other = 271_828, IdempotencyRecord.marked(account_id, "k", 271_829)
    unknown = IdempotencyRecord.marked(account_id, "k", mark)
    await store.finish_idempotent(unknown, None)  # it had not begun
    clock.advance(0.4)
    begun = await store.begin_idempotent(account_id, "k", "b", keep_s=60, lease_s=60, mark=mark)
    assert isinstance(begun, IdempotencyRecord)
    await store.finish_idempotent(other, None)
    with pytest.raises(IdempotencyInProgress):
        await begin(store, account_id)
    await store.finish_idempotent(unknown, None)
    await store.finish_idempotent(await begin(store, account_id, body="another"), ANSWER)
    await store.finish_idempotent(unknown, None)  # an answer stays
    assert await begin(store, account_id, body="another") == ANSWER


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

    async def begin_once() -> None:
        nonlocal firsts
        with suppress(IdempotencyInProgress):
            firsts += isinstance(await begin(store, caller.account.id), IdempotencyRecord)

    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(begin_once)
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
async def test_a_request_whose_lease_ended_changes_nothing(store: Store, clock: Clock, do: Any):
    """Its lease has ended, and the repeat has begun: only one of the two may count."""
    caller = await make_caller(store)
    late = await begin(store, caller.account.id)
    clock.advance(61)
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


async def test_settling_a_first_answer_twice_counts_once(store: Store):
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
    clock.advance(61)
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
