"""The days of lists' lines in PostgreSQL: made ahead or on demand, and dropped whole."""

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from functools import partial
from itertools import takewhile

import pytest
import trio

from mailprobe.storage import open_store
from mailprobe.storage.list_jobs import list_lines, lists
from mailprobe.storage.postgres.database import PostgresDatabase
from mailprobe.storage.postgres.driver import schema
from mailprobe.storage.postgres.driver.partitions import LINES, LISTED
from mailprobe.storage.postgres.driver.server import PostgresServer, TransactionConnection
from mailprobe.storage.store import Store
from tests.peers.postgres.database import assert_no_deadlock, open_once, query
from tests.storage.contract.list_calls import answer, claimed, running
from tests.storage.fixed_clock import NOON, OLD_CALLER, RETENTION, SECRET, Clock, make_caller

DAY_S = 86_400
CHUNKS = 30


def days_of(url: str) -> set[str]:
    return {name for parent, name in query(url, LISTED) if parent == LINES}


def day_of_lists(clock: Clock, days: int = 0) -> str:
    return f"{LINES}_{clock() + timedelta(days=days):%Y%m%d}"


async def test_the_lines_of_a_day_are_dropped_once_no_list_of_it_is_kept(
    store: Store, url: str, clock: Clock
) -> None:
    """One that ran over midnight keeps its day longer; the lines of the others are deleted on time."""
    caller = await make_caller(store, "builder")
    made = day_of_lists(clock)
    for id in ("short", "long"):
        await running(store, caller, 1, 1, id=id)
        await store.change_list(id, "paused", before=["running"])
    await store.change_list("short", "cancelled", before=["paused"])
    clock.advance(DAY_S)
    await store.change_list("long", "running", before=["paused"])
    for claim in await claimed(store):
        await answer(store, claim, "deliverable")
    await store.change_list("long", "done", before=["running"])
    clock.advance(89 * DAY_S)
    await store.apply_retention(RETENTION)
    assert await store.stored_list("short") is None
    assert made in days_of(url)
    assert query(url, "SELECT count(*)::int, max(part)::int FROM list_lines") == [(4, 1)]
    [first, _] = await store.chunks("long", first=0, limit=9)
    assert (first.rows, first.results) == ('["rows 0"]\n', '["deliverable"]\n')
    clock.advance(DAY_S)
    await store.apply_retention(RETENTION)
    assert await store.stored_list("long") is None
    assert await store.chunks("long", first=0, limit=9) == []
    # Those made ahead, also yesterday.
    assert days_of(url) == {*(day_of_lists(clock, days) for days in range(-1, 4))}


async def test_a_day_that_another_service_dropped_or_makes_at_once_is_made_again(
    store: Store, url: str, clock: Clock
) -> None:
    """A service that was killed while it made a day has left nothing: that is a transaction."""
    caller = await make_caller(store)
    await running(store, caller, 1, id="before")
    query(url, f"DROP TABLE {day_of_lists(clock)}")
    async with open_store(url, secret_key=SECRET, now=clock) as other:
        async with trio.open_nursery() as nursery:
            for number, each in enumerate((store, other, store, other)):
                nursery.start_soon(partial(running, each, caller, 1, id=f"{number}"))
        assert {claim.chunk.rows for claim in await claimed(other)} == {"", '["rows 0"]\n'}
    assert_no_deadlock(url)


async def test_a_clock_that_was_a_day_off_drops_no_day_of_lists_that_are_kept(
    store: Store, url: str, clock: Clock
) -> None:
    caller = await make_caller(store)
    clock.advance(-DAY_S)
    await running(store, caller, 1, id="behind")
    clock.advance(2 * DAY_S)
    await running(store, caller, 1, id="ahead")
    clock.advance(-DAY_S)
    for _ in range(2):
        await store.apply_retention(RETENTION)
    assert {claim.chunk.rows for claim in await claimed(store)} == {'["rows 0"]\n'}
    assert {day_of_lists(clock, days) for days in (-1, 0, 1)} <= days_of(url)


async def test_claims_and_answers_go_on_while_a_day_is_dropped(
    store: Store, url: str, clock: Clock
) -> None:
    caller = await make_caller(store, "builder")
    await running(store, caller, 1, id="old")
    await store.change_list("old", "cancelled", before=["running"])
    clock.advance(100 * DAY_S)
    await running(store, caller, *[1] * CHUNKS)

    async def work() -> None:
        while claims := await claimed(store, limit=3):
            for claim in claims:
                if claim.is_last:
                    await store.change_list("list-1", "done", before=["running"])
                else:
                    await answer(store, claim, "deliverable")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(store.apply_retention, RETENTION)
    found = await store.stored_list("list-1")
    assert found is not None
    assert (found.answered, found.state) == (CHUNKS, "done")
    assert f"{LINES}_{NOON:%Y%m%d}" not in days_of(url)


async def test_reads_and_deletions_lock_one_day(store: Store, url: str, clock: Clock) -> None:
    """A statement that locks each of a year's days exhausts the server's lock table."""
    caller = await make_caller(store)
    await running(store, caller, 1, 1)
    clock.advance(DAY_S)
    await running(store, caller, 1, id="next")
    with closing(PostgresServer(url, answer_s=60.0).connect()) as connection:
        session = TransactionConnection(connection, clock)
        db = PostgresDatabase(session)
        partitions = set(await trio.to_thread.run_sync(days_of, url))
        locked = (
            "SELECT relname FROM pg_locks JOIN pg_class ON pg_class.oid = relation"
            " WHERE pid = pg_backend_pid()"
        )
        acts: dict[str, Callable[[], object]] = {
            "chunks": lambda: list_lines.read_chunks(db, "list-1", first=0, limit=9),
            "places": lambda: list_lines.read_places(db, "list-1", [0]),
            "results": lambda: list_lines.read_results(db, "list-1", [0]),
            "search": lambda: list_lines.find_places(db, "list-1", "%", first=0),
            "deletion": lambda: lists.delete_some(db, 1),
        }
        for name, act in acts.items():
            session.begin()
            act()
            found = {row[0] for row in session.all(locked)} & partitions
            assert found == {day_of_lists(clock, -1)}, name
            session.rollback()
    claims = await claimed(store)
    assert [claim.chunk.rows for claim in claims] == [f'["rows {place}"]\n' for place in (0, 1, 0)]


async def test_lists_of_an_earlier_schema_go_on_without_a_copy(
    url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their table becomes the partition of day 0, and goes when the last of them is past its time.

    No door makes a database of an earlier schema, so the list of scripts is cut.
    """
    before = list(
        takewhile(lambda each: not each.stem.endswith("list_lines"), schema.scripts_of_schema())
    )
    with monkeypatch.context() as patch:
        patch.setattr(schema, "scripts_of_schema", lambda: before)
        await open_once(url)
    for statement in OLD_CALLER:
        query(url, statement)
    columns = "id, account, key, name, state, columns, rows, addresses, answered, counts, created_at, host"
    query(
        url,
        f"INSERT INTO lists ({columns}) SELECT 'old', account, number, '', 'running', '[]', 3, 3, 1,"
        " '{\"deliverable\": 1}', 1, '' FROM keys",
    )
    query(
        url,
        "INSERT INTO list_chunks (list, place, units, rows, results, due_at, fence) VALUES"
        " (1, -1, 0, '', '', NULL, 0), (1, 0, 2, 'r0', '[1]', 1, 1), (1, 1, 1, 'r1', '', 1, 0)",
    )
    async with open_store(url, secret_key=SECRET, now=clock) as store:
        claims = await claimed(store)
        assert [(each.chunk.rows, each.chunk.results) for each in claims] == [
            ("r0", "[1]"),
            ("r1", ""),
        ]
        for claim in claims:
            await answer(store, claim, "deliverable")
        assert await store.list_results("old", [0]) == [(0, '[1]["deliverable"]\n')]
        [last] = await claimed(store)
        assert last.is_last
        await store.change_list("old", "done", before=["running"])
        await store.apply_retention(RETENTION)
        assert f"{LINES}_19700101" in days_of(url)
        clock.advance(100 * DAY_S)
        await store.apply_retention(RETENTION)
        assert await store.stored_list("old") is None
        assert f"{LINES}_19700101" not in days_of(url)
