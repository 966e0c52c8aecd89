"""What a page shows of a list: marks of its addresses, rows by place, and until when it waits."""

from datetime import timedelta

from mailprobe.storage.list_records import ChunkPart, ListClaim
from mailprobe.storage.store import Store
from tests.storage.contract.list_calls import claimed, running
from tests.storage.fixed_clock import Clock, make_caller


async def keep(
    store: Store, claim: ListClaim, marks: dict[int, str], *, ends: bool = True, fence: int = 0
) -> bool:
    """Store an answer for each mark."""
    lines = "".join(f'["{mark}"]\n' for mark in marks.values())
    place, fence = claim.chunk.place, fence or claim.fence
    counts = {"unknown": len(marks)}
    return await store.record_part(
        ChunkPart("list-1", place, fence, lines, counts, ends, marks=marks)
    )


async def test_marks_are_kept_with_the_results_and_replaced_by_later_ones(store: Store) -> None:
    await running(store, await make_caller(store), 3, 2)
    first, second = await claimed(store)
    assert await store.list_marks("list-1", first=0) == []
    assert await keep(store, first, {2: "ā"}, ends=False)
    assert await store.list_marks("list-1", first=0) == [(0, "..ā")]
    assert await keep(store, first, {0: "ă", 1: "ą"}, ends=False)
    assert not await keep(store, first, {0: "x"}, fence=first.fence + 1)
    assert await keep(store, second, {0: "ć"})
    assert await keep(store, first, {2: "ĉ"})
    assert await store.list_marks("list-1", first=0) == [(0, "ăąĉ"), (1, "ć")]
    assert await store.list_marks("list-1", first=1) == [(1, "ć")]
    await store.delete_list("list-1")
    assert await store.list_marks("list-1", first=0) == []


async def test_results_of_an_earlier_version_get_their_marks_later(store: Store) -> None:
    """A chunk that has results without marks gets none from its next results alone."""
    await running(store, await make_caller(store), 2)
    [claim] = await claimed(store)
    earlier = ChunkPart("list-1", 0, claim.fence, '["before"]\n', {"unknown": 1}, ends=False)
    assert await store.record_part(earlier)
    assert await keep(store, claim, {1: "ā"})
    assert await store.list_marks("list-1", first=0) == []
    for letter in "ăx":
        await store.keep_marks("list-1", {0: {0: letter, 1: "ā"}})
    assert await store.list_marks("list-1", first=0) == [(0, "ăā")]
    await store.keep_marks("gone", {0: {0: "x"}})


async def test_rows_are_found_by_place_and_by_text(store: Store) -> None:
    await running(store, await make_caller(store), *[1] * 12)
    found = await store.chunks_at("list-1", [11, 2, 99])
    assert [chunk.place for chunk in found] == [2, 11]
    assert await store.chunks_at("list-1", []) == []
    for pattern, first, places in (
        ("%rows 1%", 0, [1, 10, 11]),
        ("%rows 1%", 2, [10, 11]),
        ("%rows!%%", 0, []),
        ("%nothing%", -5, []),
    ):
        assert await store.find_places("list-1", pattern, first=first) == places


async def test_a_wait_is_kept_until_a_later_one(store: Store, clock: Clock) -> None:
    await running(store, await make_caller(store), 1)
    later = clock() + timedelta(seconds=50)
    for seconds in (50, 20):
        await store.note_wait("list-1", clock() + timedelta(seconds=seconds), f"limit of {seconds}")
    found = await store.stored_list("list-1")
    assert found is not None
    assert (found.waits_until, found.waits_for) == (later, "limit of 50")
