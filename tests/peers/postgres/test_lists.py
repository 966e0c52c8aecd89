"""Lists in PostgreSQL while several processes work on them and their owners delete them."""

from contextlib import suppress

import psycopg
import trio

from mailprobe.storage import StoreSize, open_store
from mailprobe.storage.contract import ListRoomExceeded, StoreUnavailable
from mailprobe.storage.list_records import ListClaim
from mailprobe.storage.store import Store
from tests.peers.postgres.database import assert_no_deadlock, query
from tests.storage.contract.list_calls import (
    BOUNDS,
    OCTETS_MAX,
    answer,
    chunks,
    chunks_of,
    claimed,
    order,
    running,
)
from tests.storage.fixed_clock import SECRET, Clock, make_caller
from tests.storage.long_timeouts import PATIENCE_S

LISTS = 30
CHUNKS = 30  # more than a transaction deletes
WAITING = "SELECT count(*)::int FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


async def answer_if_possible(store: Store, claim: ListClaim) -> None:
    with suppress(StoreUnavailable):  # on a busy machine
        await answer(store, claim, "deliverable")


async def delete(store: Store, id: str) -> None:
    while await store.stored_list(id) is not None:
        with suppress(StoreUnavailable):  # on a busy machine
            await store.delete_list(id)


async def test_a_list_is_deleted_while_it_is_claimed_and_answered(
    store: Store, url: str, clock: Clock
) -> None:
    """No claim meets a chunk that is gone."""
    caller = await make_caller(store)

    async def work(store: Store) -> None:
        while not all_deleted.is_set():
            claims: list[ListClaim] = []
            with suppress(StoreUnavailable):  # on a busy machine
                claims = await claimed(store, limit=20, each_max=20)
            async with trio.open_nursery() as nursery:
                for claim in claims:
                    nursery.start_soon(answer_if_possible, store, claim)

    all_deleted = trio.Event()
    async with (
        open_store(url, secret_key=SECRET, now=clock) as other,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(work, store)
        nursery.start_soon(work, other)
        for number in range(LISTS):
            id = f"list-{number}"
            await running(store, caller, *[1] * CHUNKS, id=id)
            await other.change_list(id, "cancelled", before=["running"])
            await delete(other, id)
        all_deleted.set()
    assert query(url, "SELECT count(*)::int FROM list_chunks") == [(0,)]


async def test_services_that_claim_at_once_share_the_chunks(
    store: Store, url: str, clock: Clock
) -> None:
    """None waits for another: a chunk is claimed by one, and the next claim finds those behind it."""
    caller = await make_caller(store)
    for id in ("a", "b"):
        await running(store, caller, *[1] * CHUNKS, id=id)
    taken: list[tuple[str, int]] = []

    async def claim_all(store: Store) -> None:
        while len(taken) < 2 * CHUNKS:
            taken.extend(chunks_of(await claimed(store, limit=7, each_max=2 * CHUNKS)))

    async with (
        open_store(url, secret_key=SECRET, now=clock) as other,
        trio.open_nursery() as nursery,
    ):
        for each in (store, other, store, other):
            nursery.start_soon(claim_all, each)
    assert len(taken) == len(set(taken)) == 2 * CHUNKS
    assert_no_deadlock(url)


async def test_a_lease_is_extended_behind_a_lock(store: Store, url: str, clock: Clock) -> None:
    """One that a transaction holds for long is neither lost nor held longer; the others are."""
    caller = await make_caller(store)
    await running(store, caller, 1, 1, 1)
    claims = await claimed(store)
    outcomes: list[bool | None] = []

    async def extend(store: Store, lease_s: float) -> None:
        outcomes[:] = await store.extend_chunks(claims, lease_s=lease_s)

    size = StoreSize(answer_s=PATIENCE_S)  # it waits until the lock is free
    async with open_store(url, secret_key=SECRET, now=clock, size=size) as patient:
        with psycopg.connect(url, options="-c search_path=mailprobe") as db:
            for fence, is_held in enumerate((True, False)):
                db.execute("SELECT 1 FROM list_chunks WHERE place = 1 FOR UPDATE")
                await extend(store, 60 + fence)
                assert outcomes == [True, None, True]
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(extend, patient, 60 + fence)
                    while query(url, WAITING) == [(0,)]:
                        await trio.lowlevel.checkpoint()
                    db.execute("UPDATE list_chunks SET fence = fence + %s WHERE place = 1", [fence])
                    db.commit()
                assert outcomes == [True, is_held, True]


async def test_a_deletion_holds_no_chunk_while_it_waits_for_the_list(
    store: Store, url: str
) -> None:
    """Who stores an answer locks first the list, then the chunk."""
    caller = await make_caller(store)
    await running(store, caller, 1)
    with psycopg.connect(url, options="-c search_path=mailprobe -c lock_timeout=300") as db:
        db.execute("SELECT 1 FROM lists FOR UPDATE")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete, store, "list-1")
            while query(url, WAITING) == [(0,)]:
                await trio.lowlevel.checkpoint()
            db.execute("UPDATE list_chunks SET fence = fence + 1")
            db.commit()
    assert await store.stored_list("list-1") is None


async def test_a_key_is_revoked_while_results_of_its_lists_are_stored(
    store: Store, url: str
) -> None:
    """Who stores results of several lists locks them by their ids, whichever was made first."""
    caller = await make_caller(store)
    for id in ("list-b", "list-a"):
        await running(store, caller, 1, id=id)
    with psycopg.connect(url, options="-c search_path=mailprobe -c lock_timeout=300") as db:
        db.execute("SELECT 1 FROM lists WHERE id = 'list-a' FOR UPDATE")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.revoke_key, None, caller.key.id)
            while query(url, WAITING) == [(0,)]:
                await trio.lowlevel.checkpoint()
            db.execute("SELECT 1 FROM lists WHERE id = 'list-b' FOR UPDATE")
            db.commit()
    assert query(url, "SELECT DISTINCT state FROM lists") == [("paused",)]


async def test_an_upload_is_stored_while_its_account_is_locked(store: Store, url: str) -> None:
    """Requests lock accounts, all of a batch together: none waits until a megabyte is stored."""
    await store.create_list(await make_caller(store), order(), BOUNDS)
    with psycopg.connect(url, options="-c search_path=mailprobe") as db:
        db.execute("SELECT 1 FROM accounts FOR UPDATE")
        assert await store.add_chunks("list-1", chunks(1), octets_max=OCTETS_MAX)


async def test_uploads_of_an_account_at_once_have_its_room_together(store: Store, url: str) -> None:
    caller, stored = await make_caller(store), []
    octets = sum(len(each.rows) for each in chunks(1))

    async def add(id: str) -> None:
        with suppress(ListRoomExceeded):
            stored.append(await store.add_chunks(id, chunks(1), octets_max=octets))

    ids = [f"list-{number}" for number in range(4)]
    for id in ids:
        await store.create_list(caller, order(id), BOUNDS)
    async with trio.open_nursery() as nursery:
        for id in ids:
            nursery.start_soon(add, id)
    assert stored == [True]
    assert query(url, "SELECT sum(octets)::int FROM lists") == [(octets,)]


async def test_lists_that_have_ended_leave_no_claim_to_be_searched(store: Store, url: str) -> None:
    """Each search for claims of dead processes reads all holders."""
    caller = await make_caller(store)
    for id in ("done", "cancelled"):
        await running(store, caller, 1, 1, id=id)
    for claim in await claimed(store, holder="a"):
        if claim.list.id == "done":
            await answer(store, claim, "deliverable")
    assert [claim.is_last for claim in await claimed(store, holder="a")] == [True]
    for state in ("done", "cancelled"):
        await store.change_list(state, state, before=["running"])
    claims = "SELECT 1 FROM list_chunks WHERE holder IS NOT NULL OR lease_until IS NOT NULL"
    assert query(url, claims) == []
