"""The SQLite store under several processes and threads, failures and clocks that were ahead."""
# ruff: noqa: ASYNC240  (a test may wait for a file's name)

import random
import signal
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mailprobe.storage import open_store, retention
from mailprobe.storage.base import call_queue
from mailprobe.storage.contract import SETTLED_KEPT, OutcomeUnknown, StoreBroken, StoreUnavailable
from mailprobe.storage.records import Caller, Ledger, Reservation
from mailprobe.storage.sqlite import database_thread, key_lookup
from mailprobe.storage.sqlite.file import WriterQueue
from mailprobe.storage.store import Store
from tests.storage.child_processes import child, line_of, output_of, report
from tests.storage.fixed_clock import (
    NOON,
    RETENTION,
    SECRET,
    Clock,
    another_key,
    granted,
    make_caller,
    use,
)
from tests.storage.within import assert_within

PROMISED_S = 1.0
KILLS = 8


# processes


async def test_two_processes_at_the_edge_never_grant_one_too_many(store: Store, path: Path):
    caller = await make_caller(store)
    with child("edge", path, 77) as one, child("edge", path, 77) as two:
        for process in (one, two):
            assert await line_of(process) == "ready"
        for process in (one, two):
            report(process)
        said = [[int(n) for n in (await line_of(process)).split()] for process in (one, two)]
    assert [sum(counts) for counts in zip(*said, strict=True)] == [77, 43, 0]
    assert (await store.ledger(caller)).reserved == 77


async def test_the_clock_is_read_after_the_lock_is_held(store: Store, path: Path, clock: Clock):
    caller = await make_caller(store)
    with child("hold", path) as process:
        assert await line_of(process) == "held"

        async def release() -> None:
            with closing(WriterQueue(path)) as queue:
                while queue.try_enter():  # until the store's writer waits for the lock
                    queue.release()
                    await trio.sleep(0.001)
            clock.advance(5)
            report(process)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(release)
            await store.reserve(caller, 1, granted, lease_s=60)
    assert tuple((await store.ledger(caller)).window) == ((NOON + timedelta(seconds=5), 1),)


async def test_a_key_revoked_by_another_process_fails_at_once(store: Store, path: Path):
    await make_caller(store)
    assert await store.caller("hash")
    assert await output_of("revoke", path) == "True"
    assert await store.caller("hash") is None


async def test_killed_at_any_moment_nothing_acknowledged_is_lost_or_counted_twice(
    path: Path, clock: Clock
):
    rng = random.Random(8)
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        caller = await make_caller(store)
    acknowledged = []
    for kill in range(KILLS):
        with child("load", path, kill * 1_000_000) as process:
            for _ in range(rng.randint(1, 150)):
                acknowledged.append(int(await line_of(process)))
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split("\n")[:-1]
            acknowledged += map(int, rest)
    db = sqlite3.connect(path)
    rows = dict(db.execute("SELECT latency_ms, count(*) FROM usage GROUP BY latency_ms"))
    db.close()
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        assert set(acknowledged) <= rows.keys()
        assert set(rows.values()) == {3}
        ledger = await store.ledger(caller)
        assert ledger.month_billable == ledger.period_billable == 3 * len(rows)
        assert ledger.month_units - ledger.reserved == 3 * len(rows)
        assert ledger.reserved <= KILLS * 12 * 5
        clock.advance(60)
        assert (await store.ledger(caller)).reserved == 0


async def test_a_database_that_another_process_has_locked_is_unavailable_and_heals(
    store: Store, path: Path
):
    caller = await make_caller(store)
    refused = 0

    async def reserve() -> None:
        nonlocal refused
        with pytest.raises(StoreUnavailable):
            await store.reserve(caller, 1, granted, lease_s=60)
        refused += 1

    async def reserve_many() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(reserve)

    with child("hold", path) as process:
        assert await line_of(process) == "held"
        await assert_within(PROMISED_S, reserve_many)
        assert refused == 20
        assert await store.caller("hash")  # who only reads waits for nobody
        report(process)
        assert await line_of(process) == "let go"
    assert (await store.ledger(caller)).reserved == 0
    await use(store, caller, NOON)


async def test_a_full_disk_is_unavailable_loses_nothing_and_heals(store: Store, path: Path):
    await make_caller(store)
    with child("fill", path, path) as process:
        assert float(await line_of(process)) < PROMISED_S
        assert await line_of(process) == "(True, True, True, 6000)"


async def test_a_file_that_is_gone_is_unavailable_and_heals_when_it_is_back(
    store: Store, path: Path
):
    caller = await make_caller(store)
    await use(store, caller, NOON)
    away = path.with_name("away")
    path.rename(away)

    async def fail() -> None:
        with pytest.raises(StoreUnavailable):
            await store.reserve(caller, 1, granted, lease_s=60)
        with pytest.raises(StoreUnavailable):
            await store.caller("hash")

    for _ in range(2):
        await assert_within(PROMISED_S, fail)
    assert not path.exists()
    away.rename(path)
    await use(store, caller, NOON)
    assert (await store.ledger(caller)).month_units == 2


async def test_another_file_in_its_place_is_refused(store: Store, path: Path):
    caller = await make_caller(store)
    path.rename(path.with_name("away"))
    path.touch()
    with pytest.raises(StoreBroken):
        await store.reserve(caller, 1, granted, lease_s=60)
    assert path.stat().st_size == 0


async def test_damage_found_while_the_store_is_open_is_store_broken(path: Path, clock: Clock):
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        caller = await make_caller(store)
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * (path.stat().st_size - 4096))
        with pytest.raises(StoreBroken, match="damaged"):
            await store.reserve(caller, 1, granted, lease_s=60)


# threads


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name in ("Writer", "Reader")]


async def test_leaving_answers_those_who_wait_and_leaves_no_thread(path: Path, clock: Clock):
    go_on = threading.Event()

    def stall(_: Ledger) -> str:
        go_on.wait()
        return "no"

    async with trio.open_nursery() as nursery:
        async with open_store(path, secret_key=SECRET, now=clock) as store:
            assert threads() == ["Writer", "Reader"]
            caller = await make_caller(store)
            nursery.start_soon(partial(store.reserve, caller, 1, stall, lease_s=60))
            for _ in range(50):
                nursery.start_soon(partial(store.reserve, caller, 1, granted, lease_s=60))
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()
        assert threads() == []
        with pytest.raises(StoreUnavailable):
            await store.check()
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        assert (await store.ledger(caller)).reserved == 50


async def test_a_block_that_is_cancelled_leaves_no_thread(path: Path):
    with trio.CancelScope() as scope:
        async with open_store(path, secret_key=SECRET):
            scope.cancel()
            await trio.sleep_forever()
    assert threads() == []


async def test_a_transaction_that_has_begun_is_waited_for(store: Store):
    """Its outcome would be unknown, and what was granted would be granted again."""
    caller = await make_caller(store)
    stalled, go_on = threading.Event(), threading.Event()

    def stall(_: Ledger) -> None:
        stalled.set()
        threading.Timer(call_queue.ANSWER_S + 0.2, go_on.set).start()
        go_on.wait()

    reservation = await store.reserve(caller, 1, stall, lease_s=60)
    assert isinstance(reservation, Reservation)
    assert (await store.ledger(caller)).reserved == 1


async def test_a_stalled_transaction_is_given_up_and_heals(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(database_thread.Writer, "begun_s", 0.1)
    caller = await make_caller(store)
    stalled, go_on = threading.Event(), threading.Event()

    def stall(_: Ledger) -> None:
        stalled.set()
        go_on.wait()

    async def fail() -> None:
        with pytest.raises(OutcomeUnknown):
            await store.reserve(caller, 1, stall, lease_s=60)

    await assert_within(PROMISED_S, fail)
    assert stalled.is_set()
    go_on.set()
    await use(store, caller, NOON)
    assert (await store.ledger(caller)).month_units == 2  # it was granted after all; its lease ends


async def test_a_command_abandoned_in_the_queue_changes_nothing(store: Store):
    caller = await make_caller(store)
    stalled, go_on = threading.Event(), threading.Event()

    def stall(_: Ledger) -> str:
        stalled.set()
        go_on.wait()
        return "no"

    async def reserve(weigh: Any) -> None:
        with pytest.raises(StoreUnavailable):
            await store.reserve(caller, 1, weigh, lease_s=60)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reserve, stall)
        await trio.to_thread.run_sync(stalled.wait)
        for _ in range(9):
            nursery.start_soon(reserve, granted)
    go_on.set()
    await store.check()
    assert (await store.ledger(caller)).reserved == 0


async def test_the_queue_has_a_bound(store: Store, monkeypatch: pytest.MonkeyPatch):
    caller = await make_caller(store)
    monkeypatch.setattr(call_queue, "WAITING_MAX", 5)
    outcomes: Counter[str] = Counter()

    async def reserve() -> None:
        try:
            await store.reserve(caller, 1, granted, lease_s=60)
            outcomes["granted"] += 1
        except StoreUnavailable:
            outcomes["refused"] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(reserve)
    assert outcomes["refused"] > 0
    assert (await store.ledger(caller)).reserved == outcomes["granted"]


async def test_many_ask_and_few_transactions_are_committed(store: Store, path: Path):
    caller = await make_caller(store)
    commits = 0

    def count(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    store.executor.writer.db.set_trace_callback(count)  # type: ignore[attr-defined]
    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(use, store, caller, NOON)
    assert 2 <= commits < 100
    assert (await store.ledger(caller)).month_units == 200


async def test_one_that_fails_after_it_wrote_leaves_nothing_and_hurts_no_neighbour(store: Store):
    caller = await make_caller(store)
    reported: list[type[Exception]] = []

    def write_and_fail(db: sqlite3.Connection, _: object) -> None:
        db.execute("UPDATE accounts SET email = 'eve@shop.test'")
        raise LookupError("a bug")

    async def fail() -> None:
        with pytest.raises(LookupError):
            await store.executor.writer.call(write_and_fail)  # type: ignore[attr-defined]
        reported.append(LookupError)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(use, store, caller, NOON)
            nursery.start_soon(fail)
    assert len(reported) == 20
    assert await store.account(caller.account.id) == caller.account
    ledger = await store.ledger(caller)
    assert (ledger.month_billable, ledger.window_units, ledger.reserved) == (20, 20, 0)


async def test_a_key_read_a_moment_ago_needs_no_other_thread(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
):
    caller = await make_caller(store)

    async def too_long(_: object) -> None:
        raise StoreUnavailable("the reader is busy")

    with monkeypatch.context() as patch:
        patch.setattr(store.executor.reader, "call", too_long)  # type: ignore[attr-defined]
        assert await store.caller("hash") == caller
        with pytest.raises(StoreUnavailable):
            await store.caller("a key that nobody has asked for")
        patch.setattr(key_lookup, "WARM_S", 0.0)
        with pytest.raises(StoreUnavailable):
            await store.caller("hash")
    assert await store.caller("hash") == caller


async def test_those_who_ask_for_a_key_together_share_a_look_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    caller = await make_caller(store)
    assert await store.caller("hash") == caller
    looked = Counter[str]()

    def counted(db: sqlite3.Connection, sha256: str) -> Caller | None:
        looked[sha256] += 1
        return look_up(db, sha256)

    look_up = key_lookup.caller
    monkeypatch.setattr(key_lookup, "caller", counted)
    found = []

    async def find_caller(scope: trio.CancelScope) -> None:
        with scope:
            found.append(await store.caller("hash"))

    scopes = [trio.CancelScope() for _ in range(20)]
    async with trio.open_nursery() as nursery:
        for scope in scopes:
            nursery.start_soon(find_caller, scope)
        await trio.lowlevel.checkpoint()  # one of them is about to look
        for scope in scopes[::3]:
            scope.cancel()
    assert 12 < len(found) <= 20
    assert set(found) == {caller}
    assert looked == {"hash": 1}
    assert await store.caller("hash") == caller
    assert looked == {"hash": 2}


async def test_a_key_revoked_before_the_look_up_is_revoked_for_all_who_share_it(
    store: Store, path: Path
):
    """The look-up comes after the last of them has asked, and shows what is committed by then."""
    caller = await make_caller(store)
    assert await store.caller("hash") == caller
    found = []

    async def find_caller() -> None:
        found.append(await store.caller("hash"))

    with closing(sqlite3.connect(path)) as db:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(find_caller)
            db.execute("UPDATE keys SET revoked_at = 1")
            db.commit()
    assert found == 5 * [None]


async def test_a_look_up_leaves_no_snapshot_behind(store: Store, path: Path):
    """One that stayed open would show the key as it was, and keep the log from being written back."""
    caller = await make_caller(store)
    assert await store.caller("hash") == caller
    await store.change_account(caller.account.id, tier="scale")
    found = await store.caller("hash")
    assert found
    assert found.account.tier == "scale"
    db = sqlite3.connect(path)
    busy, frames, written_back = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    db.close()
    assert (busy, frames, written_back) == (0, 0, 0)


async def test_two_stores_on_one_file_take_turns(store: Store, path: Path, clock: Clock):
    """Neither starves: who lets the lock go queues behind who waits for it."""
    caller = await make_caller(store)
    async with open_store(path, secret_key=SECRET, now=clock) as other:
        second = await another_key(other, caller.account.id, "second")
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(use, store, caller, NOON)
                nursery.start_soon(use, other, second, NOON)
    assert (await store.ledger(caller)).month_units == 200


# a clock that was ahead


async def test_settlements_of_a_clock_that_was_ahead_keep_no_later_ones(
    store: Store, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    """Tidying ended at the first thousand of them, for as long as the clock had been ahead."""
    monkeypatch.setattr(retention, "TIDIED_MAX", 2)
    caller = await make_caller(store)
    clock.advance(days=365)
    for _ in range(3):
        await use(store, caller, clock())
    clock.advance(days=-365)
    for _ in range(3):
        await use(store, caller, clock())
    await store.apply_retention(RETENTION)
    clock.advance(SETTLED_KEPT.total_seconds())
    await store.apply_retention(RETENTION)
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM settlements").fetchone() == (0,)
    db.close()
