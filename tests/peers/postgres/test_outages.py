"""A server that is away, stands still or holds a lock: the store is unavailable, and heals."""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial

import psycopg
import pytest
import trio

from mailprobe.bench.load.private_postgres import PrivatePostgres
from mailprobe.storage.base import call_queue
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.postgres.driver.server import SCHEMA, PostgresServer
from mailprobe.storage.records import Caller, Reservation
from mailprobe.storage.store import Store
from tests.peers.postgres.database import query
from tests.storage.fixed_clock import NOON, Clock, granted, make_caller, row, use
from tests.storage.within import assert_within

UNAVAILABLE_S = 1.0  # promised, until a call fails
ANSWER_S = call_queue.ANSWER_S  # not the long one of these tests
WAIT_S_MAX = 30.0  # for what must happen, on a busy machine


async def assert_unavailable(store: Store, caller: Caller) -> None:
    """Every call fails in time, without a secret in its message."""
    for call in (
        lambda: store.reserve(caller, 1, granted, lease_s=60),
        lambda: store.caller("hash"),
        lambda: store.ledger(caller),
        lambda: store.check(),
    ):

        async def fail(call: Callable[[], Awaitable[object]] = call) -> None:
            with pytest.raises(StoreUnavailable) as raised:
                await call()
            assert "secret" not in str(raised.value)

        with pytest.MonkeyPatch.context() as promised:
            promised.setattr(call_queue, "ANSWER_S", ANSWER_S)
            await assert_within(UNAVAILABLE_S, fail)


@pytest.mark.parametrize("gently", [True, False])
async def test_a_server_that_is_away_is_unavailable_and_heals(
    server: PrivatePostgres, store: Store, gently: bool
):
    caller = await make_caller(store)
    await use(store, caller, NOON)
    await trio.to_thread.run_sync(lambda: server.stop(gently=gently))
    try:
        await assert_unavailable(store, caller)
        await assert_unavailable(store, caller)
    finally:
        await trio.to_thread.run_sync(server.start)
    await use(store, caller, NOON)  # at once: a call that finds its connection dead opens another
    assert await store.caller("hash") == caller
    assert (await store.ledger(caller)).month_units == 2


async def test_a_lock_that_is_held_too_long_is_unavailable_and_heals(store: Store, url: str):
    """Statements sent behind the one that failed were never prepared; the driver must know that."""
    caller = await make_caller(store)
    with psycopg.connect(url, options=f"-c search_path={SCHEMA}") as db:
        db.execute("SELECT 1 FROM accounts FOR UPDATE")
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await use(store, caller, NOON)
    for _ in range(3):
        await use(store, caller, NOON)
        assert await store.reserve(caller, 1, lambda ledger: "no", lease_s=60) == "no"
    assert (await store.ledger(caller)).month_units == 3


@pytest.mark.parametrize("within_pipeline", [True, False])
async def test_a_process_that_stands_still_within_a_transaction_blocks_nobody_for_ever(
    store: Store, url: str, within_pipeline: bool
):
    """PostgreSQL's own timeout does not end its session, neither within a pipeline nor after it."""
    caller = await make_caller(store)
    with suppress(psycopg.Error), PostgresServer(url).connect() as stalled, ExitStack() as pipeline:
        pipeline.enter_context(stalled.pipeline())
        stalled.execute("BEGIN")
        locked = stalled.execute("SELECT number FROM accounts FOR UPDATE")
        if not within_pipeline:
            pipeline.close()
        locked.fetchall()
        with trio.fail_after(WAIT_S_MAX):
            while not (await store.ledger(caller)).month_units:
                with suppress(StoreUnavailable):
                    await use(store, caller, NOON)
    assert (await store.ledger(caller)).month_units == 1


async def test_a_server_that_stands_still_is_unavailable_and_heals(
    server: PrivatePostgres, store: Store
):
    caller = await make_caller(store)
    await use(store, caller, NOON)
    with server.frozen():
        await assert_unavailable(store, caller)
    with trio.fail_after(WAIT_S_MAX):
        while True:
            try:
                await use(store, caller, NOON)
                break
            except StoreUnavailable:
                await trio.lowlevel.checkpoint()
    assert (await store.ledger(caller)).month_billable == 2


async def test_stopped_and_started_under_load_nothing_is_lost_or_counted_twice(
    server: PrivatePostgres, store: Store, url: str, clock: Clock
):
    """A settlement is repeated until it is acknowledged, as the service does."""
    callers = [await make_caller(store, sha256=f"{n}") for n in range(4)]
    settled: Counter[int] = Counter()
    number = 0
    running = True

    async def settle(reservation: Reservation, latency_ms: int) -> None:
        while True:
            try:
                await store.settle(reservation, [row(NOON, latency_ms=latency_ms)] * 3)
                return
            except StoreUnavailable:
                await trio.sleep(0.02)

    async def work(index: int) -> None:
        nonlocal number
        while running:
            number += 1
            latency_ms = number
            try:
                reservation = await store.reserve(callers[index], 5, granted, lease_s=60)
            except StoreUnavailable:
                await trio.sleep(0.02)
                continue
            assert isinstance(reservation, Reservation)
            await settle(reservation, latency_ms)
            settled[index] += 3

    async def reach(count: int) -> None:
        while sum(settled.values()) < count:  # noqa: ASYNC110 - several tasks count
            await trio.sleep(0.01)

    with trio.fail_after(10 * WAIT_S_MAX):
        async with trio.open_nursery() as nursery:
            for index in range(4):
                for _ in range(8):
                    nursery.start_soon(work, index)
            for stop in range(4):
                await reach(sum(settled.values()) + 200)
                await trio.to_thread.run_sync(partial(server.stop, gently=stop % 2 == 1))
                await trio.to_thread.run_sync(server.start)
            await reach(sum(settled.values()) + 200)
            running = False
    rows = dict(query(url, "SELECT latency_ms, count(*) FROM usage GROUP BY latency_ms"))
    assert set(rows.values()) == {3}
    assert 3 * len(rows) == sum(settled.values())
    for index, caller in enumerate(callers):
        ledger = await store.ledger(caller)
        assert ledger.month_billable == settled[index]
    clock.advance(60)
    for index, caller in enumerate(callers):
        ledger = await store.ledger(caller)
        assert (ledger.month_units, ledger.reserved) == (settled[index], 0)


async def test_a_server_without_a_free_connection_fails_the_check_and_heals(
    server: PrivatePostgres, store: Store
):
    """A pool that lacks one of its connections would fail some requests and serve others."""
    await store.check()
    await trio.to_thread.run_sync(server.stop)
    await trio.to_thread.run_sync(server.start)
    held = []
    with suppress(psycopg.OperationalError):
        while True:
            held.append(psycopg.connect(server.url, autocommit=True))
    for _ in range(2):  # room for a part of the pool
        held.pop().close()
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="too many clients"):
            await store.check()
    for each in held:
        each.close()
    with trio.fail_after(WAIT_S_MAX):
        while True:
            try:
                await store.check()
                break
            except StoreUnavailable:
                await trio.sleep(0.1)
