"""Lists in PostgreSQL while several processes work on them and their owners delete them."""

from functools import partial

import psycopg
import trio

from mailprobe.storage import open_store
from mailprobe.storage.store import Store
from tests.peers.postgres.database import query
from tests.storage.contract.test_lists import answer, claimed, running
from tests.storage.fixed_clock import SECRET, Clock, make_caller

LISTS = 30
CHUNKS = 30  # more than a transaction deletes
WAITING = "SELECT count(*)::int FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


async def test_a_list_is_deleted_while_it_is_claimed_and_answered(
    store: Store, url: str, clock: Clock
) -> None:
    """The three lock the same rows; none may wait for another that waits for it."""
    caller = await make_caller(store)

    async def work(store: Store) -> None:
        while not all_deleted.is_set():
            async with trio.open_nursery() as nursery:
                for claim in await claimed(store, limit=20, each_max=20):
                    nursery.start_soon(answer, store, claim, "deliverable")

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
            await other.delete_list(id)
        all_deleted.set()
    assert query(url, "SELECT count(*)::int FROM list_chunks") == [(0,)]


async def test_an_answer_that_holds_the_list_does_not_wait_for_its_deletion(
    store: Store, url: str
) -> None:
    """As an answer is stored: first the list is locked, then the chunk."""
    caller = await make_caller(store)
    await running(store, caller, 1)
    with psycopg.connect(url, options="-c search_path=mailprobe -c lock_timeout=300") as db:
        db.execute("SELECT 1 FROM lists FOR UPDATE")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(store.delete_list, "list-1"))
            while query(url, WAITING) == [(0,)]:
                await trio.lowlevel.checkpoint()
            db.execute("UPDATE list_chunks SET results = 'x'")
            db.commit()
    assert await store.stored_list("list-1") is None
