"""Measures lists in PostgreSQL that is 1 ms away: many of them, one of an account alone, a large one.

No host is asked (`bench/load/running_lists.py`), and one process works. BENCH_LIST_ROWS
sets how many rows the large list has: with 20,000,000 it takes 11 minutes and 10 GB of disk.
"""

import os
import time
from collections.abc import Awaitable, Callable

import trio

from mailprobe.storage import open_store
from mailprobe.storage.list_records import ListState
from mailprobe.storage.store import Store

from ...harness.figures import Figure
from ...load.delay_relay import delayed
from ...load.running_lists import (
    UNITS,
    AnsweredLists,
    answered,
    fill_lists,
    list_service,
    new_callers,
    start_list,
    store_list,
)
from ...load.store_load import SECRET, retry

DELAY_MS = 1.0
MEASURED_S = 10.0
ACCOUNTS = 300
MANY = ((300, 5), (1_000, 3))  # lists, chunks of each: more than MEASURED_S answers
ALONE_ROWS = 1_000_000
LARGE_ROWS = 100_000


def run(new_database: Callable[[], str]) -> list[Figure]:
    figures = []
    for lists, chunks in MANY:
        found = trio.run(_measure, new_database(), ACCOUNTS, lists, chunks)
        name = f"{lists:,} running lists, PostgreSQL {DELAY_MS:g} ms away"
        figures += [
            Figure(f"{name}: addresses", found.addresses / MEASURED_S, "a second"),
            Figure(f"{name}: begun in {MEASURED_S:g} s", 100 * found.begun / lists, "%"),
        ]
    found = trio.run(_measure, new_database(), 1, 1, ALONE_ROWS // UNITS)
    alone = found.addresses / MEASURED_S
    figures.append(Figure(f"one account with {ALONE_ROWS:,} rows: addresses", alone, "a second"))
    rows = int(os.environ.get("BENCH_LIST_ROWS", LARGE_ROWS))
    return figures + trio.run(_large, new_database(), rows)


async def _measure(url: str, accounts: int, lists: int, chunks: int) -> AnsweredLists:
    """Return what one process has answered of so many lists after MEASURED_S."""
    async with open_store(url, secret_key=SECRET) as store:
        callers = await new_callers(store, accounts)
    fill_lists(url, callers, lists, chunks)
    with delayed(url, DELAY_MS) as far:
        async with list_service(far):
            await trio.sleep(MEASURED_S)
            return await trio.to_thread.run_sync(answered, url)


async def _large(url: str, rows: int) -> list[Figure]:
    """Store a list as an upload does, change its state, and delete it."""
    chunks, name = rows // UNITS, f"a list of {rows:,} rows"
    with delayed(url, DELAY_MS) as far:
        async with open_store(far, secret_key=SECRET) as store:
            [caller] = await new_callers(store, 1)
            began = time.perf_counter()
            id = await store_list(store, caller, chunks)
            stored_s = time.perf_counter() - began
            figures = [Figure(f"{name}: stored, rows", rows / stored_s, "a second")]
            for event, act in (
                ("started", lambda: start_list(store, id, chunks)),
                ("paused", lambda: _change(store, id, "running", "paused")),
                ("resumed", lambda: _change(store, id, "paused", "running")),
                ("ended", lambda: _change(store, id, "running", "cancelled")),
            ):
                figures.append(Figure(f"{name}: {event}", await _took_ms(act), "ms"))
            deleted_ms = await _took_ms(lambda: store.delete_list(id))
    return [*figures, Figure(f"{name}: deleted, rows", 1000 * rows / deleted_ms, "a second")]


async def _change(store: Store, id: str, before: ListState, after: ListState) -> None:
    assert await store.change_list(id, after, before=[before])


async def _took_ms(act: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await retry(lambda _: act(), 0)
    return 1000 * (time.perf_counter() - began)
