"""Lists: their chunks are claimed, answered and counted once, whatever dies meanwhile."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from mailprobe.storage.contract import (
    IdempotencyInProgress,
    ListLimitReached,
    ListRateExceeded,
    ListRoomExceeded,
)
from mailprobe.storage.list_jobs import list_claims, lists
from mailprobe.storage.list_jobs.list_lines import DELETED_MAX
from mailprobe.storage.list_jobs.lists import LOADING_MAX, PassStep
from mailprobe.storage.list_records import (
    KEY_REVOKED,
    LAST_PLACE,
    ChunkPart,
    ListChunk,
    ListShare,
    LoadedList,
    StoredList,
)
from mailprobe.storage.records import SERVICE, Answered, IdempotencyRecord
from mailprobe.storage.store import Store
from tests.storage.contract.calls import begin
from tests.storage.contract.list_calls import (
    BOUNDS,
    OCTETS_MAX,
    SECRET,
    answer,
    answer_passing,
    chunks,
    chunks_of,
    claimed,
    order,
    part_of,
    places,
    running,
)
from tests.storage.fixed_clock import LEASE_S, NOON, RETENTION, Clock, another_key, make_caller, row
from tests.storage.other_process import other_process


@pytest.mark.parametrize("is_followed", [True, False])
async def test_a_list_whose_upload_died_is_given_up_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_followed: bool
) -> None:
    """It counts as none of the account's lists, and is none of those that are shown."""
    caller, bounds = await make_caller(store), replace(BOUNDS, active_max=1)
    with other_process() as other:
        with monkeypatch.context() as patch:
            patch.setattr("mailprobe.storage.list_jobs.store.own_holder", lambda: other.holder)
            await store.create_list(caller, order("dead"), bounds)
        assert await store.add_chunks("dead", chunks(2, 1), octets_max=OCTETS_MAX)
        with pytest.raises(ListLimitReached):
            await store.create_list(caller, order("early"), bounds)
        other.kill()
        other.reap()
    if is_followed:
        await store.create_list(caller, order("next"), bounds)
        assert [each.id for each in await store.lists(caller.account.id, limit=9)] == ["next"]
        assert not await store.add_chunks("dead", chunks(0, 0, 1)[2:], octets_max=OCTETS_MAX)
    await store.apply_retention(RETENTION)
    assert await store.stored_list("dead") is None
    assert len(await store.lists(caller.account.id, limit=9)) == int(is_followed)


async def test_a_list_is_stored_with_its_rows_before_it_runs(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    made = await store.create_list(caller, order(), BOUNDS)
    assert made == StoredList(
        "list-1", caller.account.id, "list.csv", "loading", None, 0, 0, 0, {}, clock(), None,
        "https://hooks.test/", "a hooks.test",
    )  # fmt: skip
    assert await store.add_chunks("list-1", chunks(2, 1), octets_max=OCTETS_MAX)
    assert await claimed(store) == []
    loaded = LoadedList(["name", "email"], 5, 3)
    runs = await store.change_list("list-1", "running", before=["loading"], loaded=loaded)
    assert (
        runs
        == replace(made, state="running", rows=5, addresses=3, ran_at=clock())
        == await store.stored_list("list-1")
    )
    assert await store.list_columns("list-1") == ("name", "email")
    assert await store.list_columns("list-2") == ()
    assert not await store.add_chunks("list-1", chunks(1), octets_max=OCTETS_MAX)
    assert await store.change_list("list-1", "running", before=["loading"]) is None
    assert not await store.add_chunks("list-2", [], octets_max=OCTETS_MAX)
    assert await store.stored_list("list-2") is None
    assert await store.change_list("list-2", "paused", before=["running"]) is None


async def test_an_account_has_a_limited_number_of_lists_under_way(store: Store) -> None:
    caller, other = await make_caller(store), await make_caller(store, sha256="other")
    two = replace(BOUNDS, active_max=2, kept_max=3)
    for number in range(2):
        await store.create_list(caller, order(f"{number}"), two)
    with pytest.raises(ListLimitReached) as refused:
        await store.create_list(caller, order("2"), two)
    assert (refused.value.lists_max, refused.value.active) == (2, True)
    assert await store.create_list(other, order("other"), two)
    await store.change_list("0", "cancelled", before=["loading"])
    assert await store.create_list(caller, order("3"), two)
    assert [each.id for each in await store.lists(caller.account.id, limit=10)] == ["3", "1", "0"]
    assert [each.id for each in await store.lists(caller.account.id, limit=1)] == ["3"]
    await store.change_list("3", "cancelled", before=["loading"])
    with pytest.raises(ListLimitReached) as refused:
        await store.create_list(caller, order("4"), two)
    assert (refused.value.lists_max, refused.value.active) == (3, False)


async def test_lists_are_sent_at_a_rate_even_if_none_is_kept(store: Store, clock: Clock) -> None:
    caller, at_rate = await make_caller(store), replace(BOUNDS, per_minute_max=3)
    for number in range(3):
        await store.create_list(caller, order(f"{number}"), at_rate)
        await store.delete_list(f"{number}")
    for _ in range(2):  # a refused one does not count
        with pytest.raises(ListRateExceeded) as early:
            await store.create_list(caller, order("4"), at_rate)
        assert early.value.reset_at == clock() + timedelta(seconds=20)
    clock.advance(20)
    await store.create_list(caller, order("4"), at_rate)
    clock.advance(-1000)  # a clock that was ahead is forgotten
    await store.create_list(caller, order("5"), at_rate)


async def test_octets_of_all_lists_are_bounded(store: Store) -> None:
    caller = await make_caller(store)
    done = await running(store, caller, 1, id="done")
    [claim] = await claimed(store)
    await answer(store, claim, "deliverable")
    await store.change_list("done", "cancelled", before=["running"])
    kept = len('["rows 0"]\n["deliverable"]\n["name", "email"]')
    await store.create_list(caller, order(), BOUNDS)
    row = ListChunk(0, 1, '["é"]\n')
    with pytest.raises(ListRoomExceeded):
        await store.add_chunks("list-1", [row], octets_max=kept + 6)
    assert await store.chunks("list-1", first=0, limit=1) == []
    assert await store.add_chunks("list-1", [row], octets_max=kept + 7)
    await store.delete_list(done.id)
    more = [ListChunk(1, 0, "[]\n")]
    with pytest.raises(ListRoomExceeded):
        await store.add_chunks("list-1", more, octets_max=9)
    assert await store.add_chunks("list-1", more, octets_max=10)


async def test_a_list_and_the_answer_to_its_upload_are_one_transaction(
    store: Store, clock: Clock
) -> None:
    caller = await make_caller(store)
    record = await begin(store, caller.account.id, "k")
    await store.create_list(caller, order(), BOUNDS)
    loaded = LoadedList(["email"], 0, 0)

    async def end(idempotency: IdempotencyRecord) -> StoredList | None:
        return await store.change_list(
            "list-1", "running", before=["loading"], loaded=loaded, idempotency=idempotency,
            answer=lambda made: Answered(202, (), made.state.encode()),
        )  # fmt: skip

    with pytest.raises(IdempotencyInProgress):
        await end(replace(record, lease_until=clock()))
    found = await store.stored_list("list-1")
    assert found is not None
    assert found.state == "loading"
    assert await end(record)
    assert await begin(store, caller.account.id, "k") == Answered(202, (), b"running")


async def test_a_list_of_a_revoked_key_pauses_until_another_key_resumes_it(store: Store) -> None:
    caller = await make_caller(store)
    other = await another_key(store, caller.account.id, "other")
    await running(store, caller, 1)
    await running(store, other, 1, id="of the other key")
    await store.create_list(caller, order("loading"), BOUNDS)
    await store.revoke_key(None, caller.key.id)
    paused = await store.stored_list("list-1")
    assert paused is not None
    assert (paused.state, paused.cause) == ("paused", KEY_REVOKED)
    late = await store.change_list("loading", "running", before=["loading"])
    again = await store.change_list("list-1", "running", before=["paused"])
    assert late is not None
    assert again is not None
    assert late.state == again.state == "paused"
    assert [claim.list.id for claim in await claimed(store)] == ["of the other key"]
    resumed = await store.change_list("list-1", "running", before=["paused"], key_id=other.key.id)
    assert resumed is not None
    assert (resumed.state, resumed.cause) == ("running", None)
    [claim] = await claimed(store)
    assert claim.caller == other


async def test_lists_are_filtered_by_the_kind_of_their_key(store: Store) -> None:
    live = await make_caller(store)
    await store.create_key(live.account.id, "test", None, sha256="t", prefix="sk", keys_max=None)
    tester = await store.caller("t")
    assert tester is not None
    for name, caller in (("live", live), ("test", tester)):
        made = await store.create_list(caller, order(name), BOUNDS)
        assert made.is_test == caller.key.is_test
    for wanted, names in ((True, ["test"]), (False, ["live"]), (None, ["test", "live"])):
        found = await store.lists(live.account.id, limit=9, is_test=wanted)
        assert [each.id for each in found] == names


async def test_chunks_are_claimed_in_order_by_one_worker_each(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    await running(store, caller, 2, 1, 3, secret=SECRET)
    [first] = await claimed(store, limit=1)
    assert first.chunk == ListChunk(0, 2, '["rows 0"]\n')
    assert (first.secret, first.undecryptable) == (SECRET, False)
    assert first.caller == caller
    assert first.list == await store.stored_list("list-1")
    assert places(await claimed(store)) == [1, 2]
    assert await claimed(store) == []
    clock.advance(LEASE_S + 1)
    again = await claimed(store)
    assert places(again) == [0, 1, 2]
    assert [claim.fence for claim in again] == [2, 2, 2]


async def test_accounts_take_turns_and_have_limits(store: Store) -> None:
    one, two = await make_caller(store), await make_caller(store, sha256="other")
    await running(store, one, 1, 1, 1, id="a")
    await running(store, one, 1, 1, id="b")
    await running(store, two, 1, id="c")
    taken = await claimed(store, limit=3, each_max=4)
    assert chunks_of(taken) == [("a", 0), ("a", 1), ("c", 0)]
    shares = {one.account.id: ListShare(2, 4), two.account.id: ListShare(1, 4)}
    assert chunks_of(await claimed(store, shares=shares)) == [("a", 2), ("b", 0)]
    assert await claimed(store, shares={one.account.id: ListShare(4, 4)}) == []
    assert places(await claimed(store, each_max=4)) == [1]  # another process holds none


async def test_the_account_with_the_fewest_claims_comes_first(store: Store) -> None:
    callers = [await make_caller(store, sha256=f"{number}") for number in range(3)]
    owners = {}
    for number, caller in enumerate(callers):
        await running(store, caller, *[1] * 9, id=f"{number}")
        owners[caller.account.id] = f"{number}"
    first, second, third = sorted(owners)
    one_each = {owners[account] for account in (second, third)}
    found = {each.list.id for each in await claimed(store, limit=2, after=first)}
    assert found == one_each  # those after the account whose turn was last
    shares = {first: ListShare(5, 20), second: ListShare(3, 20), third: ListShare(9, 9)}
    taken = Counter(claim.list.id for claim in await claimed(store, limit=8, shares=shares))
    assert taken == {owners[first]: 3, owners[second]: 5}  # eight each, and the third is full


async def test_a_claim_finds_what_is_free_behind_what_others_hold(store: Store) -> None:
    """However many there are of the first, and of a list that waits for its next pass."""
    caller = await make_caller(store)
    await running(store, caller, *[1] * 30)
    assert len(await claimed(store, limit=29, each_max=99)) == 29
    assert places(await claimed(store, limit=1, each_max=99)) == [29]
    assert await claimed(store, limit=1, each_max=99) == []


async def test_results_of_many_chunks_are_stored_at_once(store: Store) -> None:
    caller = await make_caller(store)
    for id in ("a", "b"):
        await running(store, caller, *[2] * 3, id=id)
    claims = await claimed(store)
    async with trio.open_nursery() as nursery:  # a store may settle them in one transaction
        for claim in claims:
            nursery.start_soon(answer, store, claim, "deliverable", "unknown")
    for id in ("a", "b"):
        found = await store.stored_list(id)
        assert found is not None
        assert (found.answered, found.counts) == (6, {"deliverable": 3, "unknown": 3})
    assert places(await claimed(store)) == [LAST_PLACE, LAST_PLACE]
    assert (await store.ledger(caller)).month_units == 12


async def test_results_are_stored_with_what_they_cost_and_the_list_ends(
    store: Store, clock: Clock
) -> None:
    caller = await make_caller(store)
    await running(store, caller, 3, 1)
    one, two = await claimed(store)
    await answer(store, one, "deliverable", "unknown", ends=False)
    await answer(store, one, "deliverable")
    found = await store.stored_list("list-1")
    assert found is not None
    assert (found.answered, found.counts) == (3, {"deliverable": 2, "unknown": 1})
    assert await claimed(store) == []
    await answer(store, two, "invalid")
    assert (await store.ledger(caller)).month_units == 4
    assert await store.chunks("list-1", first=0, limit=9) == [
        ListChunk(0, 3, '["rows 0"]\n', '["deliverable"]\n["unknown"]\n["deliverable"]\n'),
        ListChunk(1, 1, '["rows 1"]\n', '["invalid"]\n'),
    ]
    assert [chunk.place for chunk in await store.chunks("list-1", first=1, limit=9)] == [1]
    kept = dict(await store.list_results("list-1", [1, 0, 7]))
    assert kept == {
        chunk.place: chunk.results for chunk in await store.chunks("list-1", first=0, limit=9)
    }
    assert await store.list_results("list-1", []) == []
    assert [chunk.place for chunk in await store.chunks("list-1", first=0, limit=1)] == [0]
    [last] = await claimed(store)
    assert (last.is_last, last.chunk.units, last.list.answered) == (True, 0, 4)
    done = await store.change_list("list-1", "done", before=["running"])
    assert done is not None
    assert done.ended_at == clock()
    clock.advance(LEASE_S + 1)
    assert await claimed(store) == []


async def test_a_list_without_addresses_ends_at_once(store: Store) -> None:
    caller = await make_caller(store)
    await running(store, caller, 0, 0)
    assert places(await claimed(store)) == [LAST_PLACE]
    assert [chunk.place for chunk in await store.chunks("list-1", first=-9, limit=9)] == [0, 1]


async def test_a_later_claim_takes_the_chunk_and_nothing_counts_twice(
    store: Store, clock: Clock
) -> None:
    caller = await make_caller(store)
    await running(store, caller, 2)
    [slow] = await claimed(store)
    await answer(store, slow, "deliverable", ends=False)
    clock.advance(LEASE_S + 1)
    assert await store.extend_chunks([slow], lease_s=LEASE_S) == [False]
    [next_one] = await claimed(store)
    assert next_one.chunk.results == '["deliverable"]\n'
    await answer(store, slow, "unknown")
    assert not await store.release_chunk(slow, clock())
    found = await store.stored_list("list-1")
    assert found is not None
    assert (found.answered, found.counts) == (1, {"deliverable": 1})
    assert (await store.ledger(caller)).month_units == 1
    assert (await store.ledger(caller)).reserved == 0
    await answer(store, next_one, "unknown")
    assert (await store.ledger(caller)).month_units == 2


async def test_the_claims_of_a_killed_process_end_at_once(store: Store) -> None:
    caller = await make_caller(store)
    await running(store, caller, 1, 1, 1)
    with other_process() as killed, other_process() as living:
        assert places(await claimed(store, limit=1, holder=living.holder)) == [0]
        assert places(await claimed(store, limit=2, holder=killed.holder)) == [1, 2]
        assert await claimed(store) == []
        killed.kill()
        killed.reap()
        claims = await claimed(store)
        assert places(claims) == [1, 2]
        for claim in claims:
            await answer(store, claim, "deliverable")
        assert await claimed(store, holder=living.holder) == []


async def test_a_claim_whose_lease_has_ended_counts_if_no_other_followed(
    store: Store, clock: Clock
) -> None:
    caller = await make_caller(store)
    await running(store, caller, 1)
    [claim] = await claimed(store)
    clock.advance(LEASE_S + 1)
    await answer(store, claim, "deliverable")
    assert (await store.ledger(caller)).month_units == 1
    assert places(await claimed(store)) == [LAST_PLACE]


async def test_a_part_that_is_settled_twice_counts_once(store: Store) -> None:
    caller = await make_caller(store)
    await running(store, caller, 2)
    [claim] = await claimed(store)
    reserved: Any = await store.reserve(caller, 2, lambda _: None, lease_s=30)
    for _ in range(2):
        part = part_of(claim, "deliverable", ends=False)
        await store.settle(reserved, [row(NOON)], part=0, ends=False, chunk=part)
    assert (await store.ledger(caller)).reserved == 1
    found = await store.stored_list("list-1")
    assert found is not None
    assert found.answered == 1


async def test_a_released_chunk_is_due_later(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    await running(store, caller, 2)
    [claim] = await claimed(store)
    assert await store.extend_chunks([claim], lease_s=2 * LEASE_S) == [True]
    assert await store.release_chunk(claim, clock() + timedelta(seconds=40))
    assert await store.extend_chunks([claim], lease_s=LEASE_S) == [False]
    clock.advance(39)
    assert await claimed(store) == []
    clock.advance(1)
    assert places(await claimed(store)) == [0]


async def test_leases_are_extended_together(store: Store, clock: Clock) -> None:
    """What has ended is named, whoever ended it; the others are held longer."""
    caller = await make_caller(store)
    await running(store, caller, 1, 1, 1)
    await running(store, caller, 1, id="paused")
    *claims, of_paused = await claimed(store)
    await answer(store, claims[1], "deliverable")
    await store.change_list("paused", "paused", before=["running"])
    held = await store.extend_chunks([*claims, of_paused], lease_s=2 * LEASE_S)
    assert held == [True, False, True, False]
    assert await store.extend_chunks([], lease_s=LEASE_S) == []
    clock.advance(LEASE_S + 1)
    assert await claimed(store) == []
    clock.advance(LEASE_S)
    assert places(await claimed(store)) == [0, 2]
    assert await store.extend_chunks(claims, lease_s=LEASE_S) == [False] * 3


async def test_a_paused_list_is_not_claimed_and_goes_on(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    await running(store, caller, 2, 1)
    [claim] = await claimed(store, limit=1)
    paused = await store.change_list("list-1", "paused", before=["running"], cause="quota_exceeded")
    assert paused is not None
    assert (paused.state, paused.cause) == ("paused", "quota_exceeded")
    assert await store.extend_chunks([claim], lease_s=LEASE_S) == [False]
    await answer(store, claim, "deliverable", ends=False)  # what was under way counts
    assert await claimed(store) == []
    resumed = await store.change_list("list-1", "running", before=["paused"])
    assert resumed is not None
    assert (resumed.cause, resumed.answered) == (None, 1)
    assert places(await claimed(store)) == [1]
    clock.advance(LEASE_S + 1)
    assert places(await claimed(store)) == [0, 1]


async def test_a_deleted_list_leaves_nothing(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    await running(store, caller, *[1] * 50)
    [claim] = await claimed(store, limit=1)
    await store.delete_list("list-1")
    await store.delete_list("list-1")
    assert await store.stored_list("list-1") is None
    assert await store.chunks("list-1", first=0, limit=9) == []
    await answer(store, claim, "deliverable")
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.reserved) == (0, 0)


@pytest.mark.parametrize(("age_days", "there"), [(89, True), (91, False)])
async def test_an_ended_list_is_kept_as_long_as_usage_is(
    store: Store, clock: Clock, age_days: int, there: bool
) -> None:
    caller = await make_caller(store, "builder")
    await running(store, caller, *[1] * 30)
    await running(store, caller, 1, id="goes on")
    await store.change_list("list-1", "cancelled", before=["running"])
    clock.advance(age_days * 86_400)
    await store.apply_retention(RETENTION)
    assert (await store.stored_list("list-1") is not None) == there
    assert await store.stored_list("goes on") is not None


async def test_an_upload_that_died_is_deleted(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    await store.create_list(caller, order(), replace(BOUNDS, active_max=1))
    await store.add_chunks("list-1", chunks(*[1] * 30), octets_max=OCTETS_MAX)
    clock.advance(LOADING_MAX.total_seconds() - 1)
    await store.apply_retention(RETENTION)
    assert await store.stored_list("list-1") is not None
    clock.advance(2)
    await store.apply_retention(RETENTION)
    assert await store.stored_list("list-1") is None
    assert await store.create_list(caller, order("2"), replace(BOUNDS, active_max=1))


async def test_a_clock_that_was_ahead_delays_no_chunk_for_ever(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_claims, "CHANGED_MAX", 2)  # in one transaction
    caller = await make_caller(store)
    clock.advance(400 * 86_400)
    await running(store, caller, *[1] * 6)
    await claimed(store, limit=1)
    clock.advance(-400 * 86_400)
    await store.apply_retention(RETENTION)
    clock.advance(31 * 3_600)
    assert places(await claimed(store)) == [0, 1, 2, 3, 4, 5]


async def test_results_of_a_chunk_that_is_partly_deleted_are_not_read(store: Store) -> None:
    """A step of a deletion may end within a chunk; it takes its rows first."""
    await running(store, await make_caller(store), DELETED_MAX + 2)
    [claim] = [each for each in await claimed(store) if not each.is_last]
    for _ in range(DELETED_MAX + 1):
        await answer(store, claim, "deliverable", ends=False)
    assert len(await store.list_results("list-1", [0])) == 1
    assert not await store.executor.write(lists.delete_step, "list-1", SERVICE)
    assert await store.list_results("list-1", [0]) == []


async def test_a_pass_asks_again_what_time_may_cure(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    made = await running(store, caller, 2, 1, rechecks=2, strict_clocks=True, asks_hosts=False)
    assert made.strict_clocks
    assert not made.asks_hosts
    first, second = await claimed(store)
    await answer_passing(store, first, 1, "deliverable", "unknown")
    await answer_passing(store, second, 0, "deliverable")
    [last] = await claimed(store)
    assert (last.is_last, last.list.rechecks, last.list.strict_clocks) == (True, 2, True)
    assert not last.list.asks_hosts
    due_at = clock() + timedelta(minutes=5)
    assert await store.begin_pass(last, due_at)
    assert await store.begin_pass(last, due_at) is None  # its answer was lost
    found = await store.stored_list("list-1")
    assert found is not None
    assert (found.rechecks, found.recheck_at) == (1, due_at)
    assert await claimed(store) == []
    clock.advance(301)
    [again] = await claimed(store)
    assert again.chunk.place == 0
    better = ChunkPart(
        "list-1", 0, again.fence, '["deliverable"]\n', {"deliverable": 1, "unknown": -1},
        ends=True, passing=-1,
    )  # fmt: skip
    assert not await store.record_part(replace(better, fence=first.fence))
    assert await store.record_part(better)
    found = await store.stored_list("list-1")
    assert found is not None
    assert (found.answered, dict(found.counts)) == (3, {"deliverable": 3})
    [last] = await claimed(store)
    assert last.is_last
    assert await store.begin_pass(last, due_at) is False  # nothing is left to cure
    [chunk, _] = await store.chunks("list-1", first=0, limit=9)
    assert chunk.results == '["deliverable"]\n["unknown"]\n["deliverable"]\n'


async def test_a_pass_ends_when_its_last_chunk_does(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    await running(store, caller, 1, 1, rechecks=1)
    for claim in await claimed(store):
        await answer_passing(store, claim, 1, "unknown")
    [last] = await claimed(store)
    assert await store.begin_pass(last, clock())
    one, two = await claimed(store)
    assert await store.record_part(ChunkPart("list-1", 0, one.fence, "", {}, ends=True))
    assert await claimed(store) == []
    assert await store.record_part(ChunkPart("list-1", 1, two.fence, "", {}, ends=True))
    [last] = await claimed(store)
    assert await store.begin_pass(last, clock()) is False  # no pass is left


async def test_a_list_without_rechecks_has_no_pass(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    await running(store, caller, 1)
    [claim] = await claimed(store)
    await answer_passing(store, claim, 1, "unknown")
    [last] = await claimed(store)
    assert await store.begin_pass(last, clock()) is False


async def test_a_pass_over_a_long_list_begins_once(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunks are made due in several transactions, also after a kill between two of them."""
    monkeypatch.setattr(lists, "PASS_PLACES", 2)
    caller = await make_caller(store)
    await running(store, caller, *[1] * 5, rechecks=2)
    for claim in await claimed(store):
        await answer_passing(store, claim, 1, "unknown")
    [killed] = await claimed(store)
    clock.advance(LEASE_S + 1)
    [last] = await claimed(store)
    assert await store.begin_pass(killed, clock()) is None
    due_at = clock() + timedelta(minutes=5)
    step = await store.executor.write(lists.begin_pass_from, last, due_at, 0)
    assert step == PassStep(True, 2)
    assert await store.begin_pass(last, due_at)
    assert await claimed(store) == []
    clock.advance(301)
    assert places(await claimed(store)) == [0, 1, 2, 3, 4]
    found = await store.stored_list("list-1")
    assert found is not None
    assert found.rechecks == 1
