"""Every list ends, and what has ended or is being deleted never goes on."""

import pytest

from mailprobe.storage.list_jobs import list_lines, lists
from mailprobe.storage.list_jobs.lists import PassStep
from mailprobe.storage.list_records import ChunkPart, ListState, LoadedList
from mailprobe.storage.records import SERVICE
from mailprobe.storage.store import Store
from tests.storage.contract.list_calls import (
    BOUNDS,
    OCTETS_MAX,
    answer,
    answer_passing,
    chunks,
    claimed,
    order,
    places,
    running,
)
from tests.storage.fixed_clock import LEASE_S, RETENTION, Clock, make_caller

MORE = list_lines.DELETED_MAX + 1  # chunks than one step of a deletion takes
LOADED = LoadedList(["email"], MORE, MORE)


@pytest.mark.parametrize("state", ["done", "cancelled"])
async def test_an_answer_to_a_list_that_has_ended_is_neither_stored_nor_counted(
    store: Store, clock: Clock, state: ListState
) -> None:
    caller = await make_caller(store)
    await running(store, caller, 1, 1)
    claims = await claimed(store)
    await answer(store, claims[0], "deliverable")
    ended = await store.change_list("list-1", state, before=["running"])
    await answer(store, claims[1], "deliverable")
    assert not await store.release_chunk(claims[1], clock())
    assert await store.stored_list("list-1") == ended
    ledger = await store.ledger(caller)
    assert (ledger.month_units, ledger.reserved) == (1, 0)


async def test_an_upload_that_is_being_deleted_never_runs_without_the_rows_that_are_gone(
    store: Store,
) -> None:
    await store.create_list(await make_caller(store), order(), BOUNDS)
    assert await store.add_chunks("list-1", chunks(*[1] * MORE), octets_max=OCTETS_MAX)
    assert await store.executor.write(lists.drop_upload_step, "list-1")
    assert not await store.add_chunks("list-1", [], octets_max=OCTETS_MAX)
    late = await store.change_list("list-1", "running", before=["loading"], loaded=LOADED)
    assert late is None
    await store.apply_retention(RETENTION)  # whoever deleted it was killed
    assert await store.stored_list("list-1") is None


async def test_a_list_that_is_being_deleted_never_goes_on(store: Store) -> None:
    await running(store, await make_caller(store), *[1] * MORE)
    await store.change_list("list-1", "paused", before=["running"])
    assert not await store.executor.write(lists.delete_step, "list-1", SERVICE)
    assert await store.change_list("list-1", "running", before=["paused"]) is None
    assert await claimed(store) == []


async def test_a_list_that_was_stored_is_no_upload_that_failed(store: Store) -> None:
    await running(store, await make_caller(store), 1)
    await store.drop_upload("list-1")
    assert places(await claimed(store)) == [0]


async def test_a_pass_that_is_answered_before_all_of_it_is_due_ends_the_list(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that begins it may stand still between two steps for longer than the pass waits."""
    monkeypatch.setattr(lists, "PASS_PLACES", 2)
    await running(store, await make_caller(store), *[1] * 5, rechecks=2)
    for claim in await claimed(store):
        await answer_passing(store, claim, int(claim.chunk.place < 2), "unknown")
    [last] = await claimed(store)
    assert await store.executor.write(lists.begin_pass_from, last, clock(), 0) == PassStep(True, 2)
    clock.advance(LEASE_S / 2)
    for claim in await claimed(store):
        part = ChunkPart("list-1", claim.chunk.place, claim.fence, "", {}, ends=True, passing=-1)
        assert await store.record_part(part)
    assert await store.executor.write(lists.begin_pass_from, last, clock(), 2) == PassStep(True, 4)
    assert await store.executor.write(lists.begin_pass_from, last, clock(), 4) == PassStep(
        False, None
    )
