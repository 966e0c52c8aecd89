"""What a page shows of a list: marks of its addresses, rows by place, until when it waits and for which hosts."""

from collections.abc import Sequence
from datetime import timedelta

from mailprobe.storage.list_records import NO_WAITS, ChunkPart, HostWait, ListClaim, ListWaits
from mailprobe.storage.store import Store
from tests.storage.contract.list_calls import claimed, places, running
from tests.storage.fixed_clock import LEASE_S, NOON, Clock, make_caller


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
    for pattern, first, found_at in (
        ("%rows 1%", 0, [1, 10, 11]),
        ("%rows 1%", 2, [10, 11]),
        ("%rows!%%", 0, []),
        ("%nothing%", -5, []),
    ):
        assert await store.find_places("list-1", pattern, first=first) == found_at


async def test_a_wait_is_kept_until_a_later_one(store: Store, clock: Clock) -> None:
    await running(store, await make_caller(store), 1)
    later = clock() + timedelta(seconds=50)
    for seconds in (50, 20):
        await store.note_wait("list-1", clock() + timedelta(seconds=seconds), f"limit of {seconds}")
    found = await store.stored_list("list-1")
    assert found is not None
    assert (found.waits_until, found.waits_for) == (later, "limit of 50")


def wait(host: str, addresses: int, minutes: int = 5, takes: int = 16) -> HostWait:
    return HostWait(host, "host_budget", takes, addresses, NOON + timedelta(minutes=minutes))


async def put_off(store: Store, claim: ListClaim, *waits: HostWait, minutes: float = 5) -> bool:
    return await store.release_chunk(claim, NOON + timedelta(minutes=minutes), waits=waits)


async def waits_of(store: Store, id: str = "list-1") -> ListWaits:
    return (await store.list_waits([id]))[id]


async def end(store: Store, claim: ListClaim, count: int, *, ends: bool = True) -> bool:
    part = ChunkPart(
        claim.list.id, claim.chunk.place, claim.fence, '["x"]\n' * count, {"unknown": count}, ends,
        has_waited=claim.chunk.waits_since is not None,
    )  # fmt: skip
    return await store.record_part(part)


def by_host(waits: ListWaits) -> Sequence[tuple[str, int]]:
    return [(each.host, each.addresses) for each in waits.hosts]


async def test_a_list_without_a_wait_has_none(store: Store) -> None:
    made = await running(store, await make_caller(store), 2, patience_s=900)
    assert made.patience_s == 900
    assert await store.list_waits(["list-1", "gone"]) == {"list-1": NO_WAITS, "gone": NO_WAITS}
    [claim] = await claimed(store)
    assert claim.chunk.waits_since is None
    assert await put_off(store, claim, minutes=0)
    assert await waits_of(store) == NO_WAITS


async def test_a_list_has_what_waits_by_host_with_most_first(store: Store, clock: Clock) -> None:
    await running(store, await make_caller(store), 9, 9, 9)
    first, second, _ = await claimed(store)
    assert await put_off(store, first, wait("a.test", 2, takes=4), wait("b.test", 1))
    assert await put_off(store, second, wait("b.test", 5, minutes=9, takes=32))
    waits = await waits_of(store)
    assert (waits.addresses, waits.hosts_count) == (8, 2)
    assert waits.first_until == NOON + timedelta(minutes=5)
    assert waits.hosts == (
        HostWait("b.test", "host_budget", 32, 6, NOON + timedelta(minutes=9)),
        HostWait("a.test", "host_budget", 4, 2, NOON + timedelta(minutes=5)),
    )
    [most] = (await store.list_waits(["list-1"], hosts_max=1))["list-1"].hosts
    assert most.host == "b.test"


async def test_a_later_wait_of_a_chunk_replaces_the_one_before(store: Store, clock: Clock) -> None:
    """The chunk's wait begins with the first, so that a patience ends."""
    await running(store, await make_caller(store), 9)
    [claim] = await claimed(store)
    assert await put_off(store, claim, wait("a.test", 6), wait("b.test", 3))
    assert await claimed(store) == []
    clock.advance(300)
    [claim] = await claimed(store)
    assert claim.chunk.waits_since == NOON
    assert claim.chunk.waits == (wait("a.test", 6), wait("b.test", 3))
    assert by_host(await waits_of(store)) == [("a.test", 6), ("b.test", 3)]  # while it is asked
    assert await end(store, claim, 5, ends=False)
    assert await put_off(store, claim, wait("b.test", 4, minutes=10), minutes=10)
    assert by_host(await waits_of(store)) == [("b.test", 4)]
    clock.advance(300)
    [claim] = await claimed(store)
    assert claim.chunk.waits_since == NOON
    assert await store.release_chunk(claim, clock())  # what waits of it is not known anew
    assert by_host(await waits_of(store)) == [("b.test", 4)]


async def test_nothing_waits_of_a_chunk_that_is_answered(store: Store, clock: Clock) -> None:
    await running(store, await make_caller(store), 2, 3)
    first, second = await claimed(store)
    assert await put_off(store, first, wait("a.test", 2))
    assert await put_off(store, second, wait("a.test", 3))
    clock.advance(300)
    first, second = await claimed(store)
    assert await end(store, first, 2)
    assert by_host(await waits_of(store)) == [("a.test", 3)]
    assert await put_off(store, second)  # it waits for something else
    assert await waits_of(store) == NO_WAITS


async def test_a_claim_that_another_followed_lets_nothing_wait(store: Store, clock: Clock) -> None:
    await running(store, await make_caller(store), 2)
    [late] = await claimed(store)
    clock.advance(LEASE_S + 1)
    [claim] = await claimed(store)
    assert not await put_off(store, late, wait("a.test", 2))
    assert await waits_of(store) == NO_WAITS
    assert await put_off(store, claim, wait("a.test", 1))
    assert not await put_off(store, claim, wait("a.test", 2))
    assert by_host(await waits_of(store)) == [("a.test", 1)]


async def test_chunks_that_wait_are_passed_over_until_they_are_due(
    store: Store, clock: Clock
) -> None:
    await running(store, await make_caller(store), *[1] * 4)
    for claim in (await claimed(store))[:3]:
        assert await put_off(store, claim, wait("a.test", 1), minutes=1 + claim.chunk.place)
    clock.advance(61)
    assert places(await claimed(store)) == [0, 3]  # the last one's lease has ended
    clock.advance(1)
    assert places(await claimed(store)) == []


async def test_an_operator_sees_what_waits_of_all_running_lists_by_host(
    store: Store, clock: Clock
) -> None:
    assert await store.waiting_hosts(hosts_max=5) == NO_WAITS
    caller = await make_caller(store)
    for id in ("list-1", "list-2", "list-3"):
        await running(store, caller, 9, id=id)
    for claim in await claimed(store):
        assert await put_off(store, claim, wait("a.test", 2, minutes=7), wait("b.test", 3))
    await store.change_list("list-3", "paused", before=["running"])
    assert await store.waiting_hosts(hosts_max=1) == ListWaits(
        10, 2, NOON + timedelta(minutes=5),
        (HostWait("b.test", "host_budget", 16, 6, NOON + timedelta(minutes=5)),),
    )  # fmt: skip


async def test_a_deletion_ends_the_waits_of_its_list(store: Store, clock: Clock) -> None:
    caller = await make_caller(store)
    for id in ("list-1", "list-2"):
        await running(store, caller, 2, id=id)
    for claim in await claimed(store):
        assert await put_off(store, claim, wait("a.test", 2))
    await store.delete_list("list-1")
    found = await store.list_waits(["list-1", "list-2"])
    assert (found["list-1"], found["list-2"].addresses) == (NO_WAITS, 2)


async def test_a_host_says_what_keeps_most_waiting_and_a_chunk_which_of_it(
    store: Store, clock: Clock
) -> None:
    await running(store, await make_caller(store), 9)
    [claim] = await claimed(store)
    changed = HostWait("a.test", "host_changed", 0, 2, NOON + timedelta(hours=1), (0, 7))
    taken = HostWait("a.test", "host_budget", 16, 3, NOON + timedelta(minutes=5), (1, 2, 3))
    assert await put_off(store, claim, changed, taken)
    [host] = (await waits_of(store)).hosts
    assert host == HostWait("a.test", "host_budget", 16, 5, taken.until)
    clock.advance(300)
    [claim] = await claimed(store)
    assert set(claim.chunk.waits) == {changed, taken}
