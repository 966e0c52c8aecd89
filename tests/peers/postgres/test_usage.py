"""The tables of usage: a partition for each day, and the window of the last minute."""

from datetime import timedelta
from typing import Any

import psycopg

from mailprobe.storage.postgres.driver.server import SCHEMA
from mailprobe.storage.records import Ledger
from mailprobe.storage.store import Store
from tests.peers.postgres.database import query
from tests.storage.fixed_clock import (
    NOON,
    RETENTION,
    Clock,
    claimed,
    granted,
    make_caller,
    order,
    promise,
    use,
)


async def test_a_day_past_retention_is_dropped_whole_and_made_again_on_demand(
    store: Store, url: str, clock: Clock
):
    caller = await make_caller(store)
    await use(store, caller, NOON, 3)
    clock.advance(days=91)
    await store.apply_retention({"free": 7, "builder": 90, "scale": 90, "own": 90})
    tables = query(url, f"SELECT tablename FROM pg_tables WHERE schemaname = '{SCHEMA}'")
    assert ("usage_20250314",) not in tables
    assert (f"usage_{clock() + timedelta(days=1):%Y%m%d}",) in tables
    await use(store, caller, NOON, 2)  # settled late
    assert (await store.days(caller.account.id, NOON.date(), NOON.date()))[0].calls == 5


async def test_rows_of_a_tier_that_keeps_fewer_days_are_searched_once_a_day(
    store: Store, clock: Clock
):
    """The search reads all rows of each of up to ninety days; other rows come by a change of tier."""
    caller = await make_caller(store, "free")
    await use(store, caller, NOON)
    clock.advance(days=10)
    counts = []
    for wait_days in (0, 0, 1):
        clock.advance(days=wait_days)
        await store.apply_retention(RETENTION)
        counts.append(len(await store.usage(caller.account.id, limit=10)))
        await use(store, caller, NOON)
    assert counts == [0, 1, 0]


async def test_a_partition_that_another_process_dropped_is_made_again(
    store: Store, url: str, clock: Clock
):
    caller = await make_caller(store)
    await use(store, caller, NOON)
    query(url, "DROP TABLE usage_20250314")
    await use(store, caller, NOON, 2)
    assert len(await store.usage(caller.account.id, limit=10)) == 2


async def test_a_backup_keeps_the_days_that_it_reads_and_delays_no_request(
    store: Store, url: str, clock: Clock
):
    """Requests wait behind a drop that waits for the backup. The rest of retention goes on."""
    caller = await make_caller(store)
    await store.apply_retention(RETENTION)  # makes the days
    await use(store, caller, NOON)
    await promise(store, caller, order())
    [claim] = await claimed(store)
    assert await store.abandon_job(claim)
    clock.advance(days=91)
    days = f"SELECT count(*)::int FROM pg_tables WHERE tablename LIKE '%\\_{NOON:%Y%m%d}'"
    with psycopg.connect(url, options=f"-c search_path={SCHEMA}") as backup:
        backup.execute("LOCK TABLE usage, list_lines IN ACCESS SHARE MODE")
        await store.apply_retention(RETENTION)
        assert query(url, days) == [(2,)]
        assert await store.job("1") is None
        await use(store, caller, clock())
    await store.apply_retention(RETENTION)
    assert query(url, days) == [(0,)]
    assert len(await store.usage(caller.account.id, limit=10)) == 1


async def test_usage_is_read_over_spans_of_days_newest_first(store: Store, clock: Clock):
    """A statement locks each day that it may read: it reads a month of them at most."""
    caller = await make_caller(store)
    days = (70, 31, 30, 29, 1, 0)
    for day in days:
        await use(store, caller, NOON + timedelta(days=day))
    found = [row.at for row in await store.usage(caller.account.id, limit=4)]
    assert found == [NOON + timedelta(days=day) for day in (70, 31, 30, 29)]
    assert len(await store.usage(caller.account.id, limit=10)) == len(days)


async def test_a_long_window_is_read_as_far_as_the_check_looks(store: Store, clock: Clock):
    caller = await make_caller(store)
    for _ in range(3):
        await store.reserve(caller, 2, granted, lease_s=60)
    instants = []
    for _ in range(250):
        clock.advance(0.1)
        await store.reserve(caller, 1, granted, lease_s=60)
        instants.append(clock())
    windows: list[Any] = []

    def observe(ledger: Ledger) -> str:
        windows.append((ledger.window_units, list(ledger.window)))
        return "no"

    assert await store.reserve(caller, 1, observe, lease_s=60) == "no"
    assert windows == [(256, [(NOON, 6), *((at, 1) for at in instants)])]
    clock.advance(47)
    assert await store.reserve(caller, 1, observe, lease_s=60) == "no"
    later = [(at, 1) for at in instants if at > clock() - timedelta(seconds=60)]
    assert windows[1] == (len(later), later)
    assert 0 < len(later) < 250
