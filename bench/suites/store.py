"""Measures reservations and settlements per second, each durable before it is acknowledged.

Every available store is measured by the same steps.
The cost of an operation is the processor time of the whole process, with its threads and
its disk writes: nothing else runs in it. The database is within this checkout, where
`data/` would be, so that its flushes cost the same.

MAILPROBE_BENCH_ROWS sets how many usage rows the full database has, for a shorter run.
"""

import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import trio
from msgspec import Struct
from msgspec.structs import replace

from mailprobe.api.quota.limits import check_limits
from mailprobe.api.quota.plans import PLANS, PricingPlan
from mailprobe.storage import open_store
from mailprobe.storage.commands import Reserve, Settle
from mailprobe.storage.records import EPOCH, Caller, Ledger, Reservation
from mailprobe.storage.sqlite import usage
from mailprobe.storage.sqlite.file import connect, prepare
from mailprobe.storage.store import Store

from ..harness.figures import RESULTS, Figure
from ..load.private_postgres import (
    NoPostgres,
    drop_database,
    new_database,
    private_postgres,
)
from ..load.revoked_keys import fill_postgres, fill_sqlite, measure_revoked
from ..load.store_load import (
    KEYS,
    LEASE_S,
    SECRET,
    Operation,
    StoreLoad,
    no_limit,
    open_customers,
    retry,
    row,
    welcome,
)

ROWS = 10_000_000  # of usage in the full database
OCTETS_EACH = 250  # of disk for each row while the database is built, generously
CALLERS = (1, 16, 512)  # at once
OPERATIONS = {1: 200, 16: 2_000, 512: 4_000}
ROUNDS = 5
PARTS = (1, 10, 50)  # rows a part
PART_ROWS = 4_000
WINDOWS = (10, 600, 1_000, 10_000)  # units a minute, each granted at a different time
DECISIONS = 400
SINCE = datetime(2025, 1, 1, tzinfo=UTC)  # of the full database's rows: 80 days of them
DAY_MICROS = 86_400 * 1_000_000
DAYS = 80


class MissingServer(Exception):
    """Something that the suite needs is missing; the message says what."""


def run() -> list[Figure]:
    RESULTS.mkdir(parents=True, exist_ok=True)
    rows = int(os.environ.get("MAILPROBE_BENCH_ROWS", ROWS))
    with tempfile.TemporaryDirectory(prefix="store-", dir=RESULTS) as folder:
        free = shutil.disk_usage(folder).free
        if free < rows * OCTETS_EACH:
            raise MissingServer(f"{rows:,} rows need {rows * OCTETS_EACH / 1e9:.1f} GB of disk")
        return trio.run(_run, Path(folder), rows)


async def _run(folder: Path, rows: int) -> list[Figure]:
    figures = await measure("memory", "memory:")
    figures += await measure("SQLite", str(folder / "empty.db"))
    figures += await measure_postgres()
    figures += await beside_revoked_keys(
        "SQLite", str(folder / "none.db"), str(folder / "revoked.db"), fill_sqlite
    )
    figures += await against_a_hop_each(folder)
    figures += await trio.to_thread.run_sync(decisions, folder / "windows.db")
    figures += await measure_full(folder, rows)
    return figures


# -- the client ------------------------------------------------------------------------------


class StoreCost(Struct, frozen=True):
    """The wall time and the processor time of `count` operations."""

    count: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.count / self.wall_s

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.count * 1e6


async def cost_of(operation: Operation, count: int, callers: int) -> StoreCost:
    """Run `count` operations in `callers` concurrent tasks."""
    left = iter(range(count))

    async def go() -> None:
        for number in left:
            await retry(operation, number)

    cpu_s, began = time.process_time(), time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(callers):
            nursery.start_soon(go)
    return StoreCost(count, time.perf_counter() - began, time.process_time() - cpu_s)


# -- PostgreSQL ------------------------------------------------------------------------------


async def measure_postgres() -> list[Figure]:
    """Measure on the server of MAILPROBE_TEST_POSTGRES, else on a private one, else not at all."""
    with ExitStack() as stack:
        server = os.environ.get("MAILPROBE_TEST_POSTGRES")
        if not server:
            try:
                server = stack.enter_context(private_postgres()).url
            except NoPostgres as none:
                print(f"PostgreSQL was not measured: {none}", file=sys.stderr)
                return []
        urls = []
        for number in range(3):
            name = f"mailprobe_bench_{os.getpid()}_{number}"
            urls.append(new_database(server, name))
            stack.callback(drop_database, server, name)
        figures = await measure("PostgreSQL", urls[0])
        return figures + await beside_revoked_keys("PostgreSQL", urls[1], urls[2], fill_postgres)


# -- any store -------------------------------------------------------------------------------


async def measure(name: str, url: str) -> list[Figure]:
    """Return the figures that every store has."""
    figures: list[Figure] = []
    async with open_customers(url) as customers:
        for callers in CALLERS:
            count = OPERATIONS[callers]
            figures += await _operations(f"{name}, {callers} at once", customers, count, callers)
        for rows in PARTS:
            figures += await _part(name, customers, rows, PART_ROWS // rows)
    return figures


async def _operations(what: str, customers: StoreLoad, count: int, callers: int) -> list[Figure]:
    made: list[Reservation] = []

    async def reserve(number: int) -> None:
        made.append(await customers.reserve(number))

    async def settle(number: int) -> None:
        await customers.settle(made[number])

    steps: dict[str, Operation] = {
        "key look-ups": customers.look_up,
        "reservations": reserve,
        "settlements": settle,
        "reserved and settled": customers.use,
        "spent": customers.spend,
    }
    costs = {step: await cost_of(operation, count, callers) for step, operation in steps.items()}
    return [
        Figure(f"{what}: {step}", cost.rate, "a second", cpu_us=cost.cpu_us)
        for step, cost in costs.items()
    ] + [
        Figure(f"{what}: {step}, processor time", cost.cpu_us, "µs each")
        for step, cost in costs.items()
    ]


async def _part(name: str, customers: StoreLoad, rows: int, parts: int) -> list[Figure]:
    """Measure settling one part of a stream, with sixteen streams at once."""
    reservation = await customers.reserve(0, rows * parts)

    async def settle(number: int) -> None:
        await customers.store.settle(
            reservation, [row()] * rows, part=number, ends=False, emit_meter_event=True
        )

    cost = await cost_of(settle, parts, 16)
    what = f"{name}: a row in parts of {rows}"
    return [
        Figure(f"{name}: rows in parts of {rows}", cost.rate * rows, "a second"),
        Figure(f"{what}, processor time", cost.cpu_us / rows, "µs each"),
    ]


# -- beside an account with very many revoked keys -------------------------------------------


async def beside_revoked_keys(
    name: str, before: str, after: str, fill: Callable[[str], None]
) -> list[Figure]:
    """Measure on two new stores; `fill` adds revoked keys to the first account of one."""
    async with open_customers(before) as one, open_customers(after) as other:
        await trio.to_thread.run_sync(fill, after)
        return await measure_revoked(name, one, other)


# -- beside the simplest thing that works ----------------------------------------------------


async def against_a_hop_each(folder: Path) -> list[Figure]:
    """Compare with one thread hop and one commit per transaction, in alternating rounds."""
    path = folder / "hops.db"
    ratios, rates = [], []
    async with open_customers(str(path)) as customers:
        with closing(connect(path)) as db:
            one_at_a_time = trio.CapacityLimiter(1)

            async def hop(act: Callable[..., Any], *arguments: Any) -> Any:
                def transact() -> Any:
                    db.execute("BEGIN IMMEDIATE")
                    result = act(db, datetime.now(UTC), *arguments)
                    db.execute("COMMIT")
                    return result

                return await trio.to_thread.run_sync(transact, limiter=one_at_a_time)

            async def use(number: int) -> None:
                asked: Reserve[None] = Reserve(customers.caller(number), 1, no_limit, LEASE_S)
                made = await hop(usage.reserve, asked)
                await hop(usage.settle, Settle(made, [row()], 0, ends=True, emit_meter_event=True))

            for _ in range(ROUNDS):
                hops = await cost_of(use, 200, 16)
                ours = await cost_of(customers.use, 1_000, 16)
                ratios.append(ours.rate / hops.rate)
                rates.append(hops.rate)
    return [
        Figure("a hop each, 16 at once: reserved and settled", median(rates), "a second"),
        Figure("SQLite, 16 at once: times a hop each", median(ratios), "×"),
    ]


# -- the limiter -----------------------------------------------------------------------------


def decisions(path: Path) -> list[Figure]:
    """Measure a decision in its transaction: read the ledger, check limits, record the grant."""
    prepare(path)
    figures: list[Figure] = []
    plan = PLANS["scale"]
    with closing(connect(path)) as db:
        caller = trio.run(_first_caller, path)
        for units in WINDOWS:
            for what, limit in (("granted", units + 2 * DECISIONS), ("refused", units)):
                fill_window(db, caller, units)
                judge = partial(_check_limits, plan=_limited(plan, limit))
                each_us = _decide(db, caller, judge)
                figures.append(Figure(f"a decision at {units:,} a minute, {what}", each_us, "µs"))
    return figures


async def _first_caller(path: Path) -> Caller:
    async with open_store(path, secret_key=SECRET) as store:
        return (await welcome(store, 1)).callers[0]


def _limited(plan: PricingPlan, limit: int) -> PricingPlan:
    return replace(plan, rate_limit_per_min=limit)


def _check_limits(ledger: Ledger, *, plan: PricingPlan) -> object:
    return check_limits(plan, ledger, 1)


def fill_window(db: sqlite3.Connection, caller: Caller, units: int) -> None:
    """Insert `units` grants of one unit each, within the last minute."""
    db.execute("DELETE FROM rate_windows")
    now = datetime.now(UTC)
    db.execute("BEGIN IMMEDIATE")
    for number in range(units):
        at = now - timedelta(seconds=50 * (1 - number / units))
        usage.grant(db, at, caller, 1, no_limit)
    db.execute("COMMIT")


def _decide(db: sqlite3.Connection, caller: Caller, judge: Callable[[Ledger], Any]) -> float:
    now = datetime.now(UTC)
    took: list[float] = []
    db.execute("BEGIN IMMEDIATE")
    for number in range(DECISIONS):
        at = now + timedelta(microseconds=number + 1)
        began = time.perf_counter()
        usage.grant(db, at, caller, 1, judge)
        took.append(time.perf_counter() - began)
    db.execute("ROLLBACK")
    return median(took) * 1e6


# -- a full database -------------------------------------------------------------------------


async def measure_full(folder: Path, rows: int) -> list[Figure]:
    """Compare a full database with an empty one; then time the reports of its largest account."""
    full, empty = folder / "full.db", folder / "beside.db"
    began = time.perf_counter()
    await trio.to_thread.run_sync(fill, full, rows)
    built_s = time.perf_counter() - began
    async with (
        open_store(empty, secret_key=SECRET) as store,
        open_store(full, secret_key=SECRET) as filled,
    ):
        one, other = await welcome(store), await known(filled)
        figures = [
            Figure("full database: usage rows", rows / 1e6, "million"),
            Figure("full database: built in", built_s, "s"),
            Figure("full database: its size", full.stat().st_size / 1e9, "GB"),
        ]
        for callers in (1, 16):
            figures += await _side_by_side(one, other, callers)
        figures += await _reports(other)
    return figures


async def _side_by_side(empty: StoreLoad, full: StoreLoad, callers: int) -> list[Figure]:
    ratios, cpu_ratios = [], []
    count = OPERATIONS[callers]
    for operation in (empty.use, full.use):  # a warm-up round
        await cost_of(operation, count // 3, callers)
    for _ in range(ROUNDS):
        beside = await cost_of(empty.use, count, callers)
        cost = await cost_of(full.use, count, callers)
        ratios.append(cost.rate / beside.rate)
        cpu_ratios.append(cost.cpu_us / beside.cpu_us)
    what = f"full database, {callers} at once"
    return [
        Figure(f"{what}: rate, of an empty one's", median(ratios), "×"),
        Figure(f"{what}: processor time, of an empty one's", median(cpu_ratios), "×"),
    ]


async def _reports(customers: StoreLoad) -> list[Figure]:
    store, caller = customers.store, customers.callers[0]
    first = SINCE.date() + timedelta(days=DAYS - 30)
    reports: dict[str, Operation] = {
        "daily usage of 30 days": lambda _: store.days(
            caller.account.id, first, first + timedelta(days=29)
        ),
        "the summary": lambda _: store.ledger(caller),
        "the last 100 rows": lambda _: store.usage(caller.account.id, limit=100),
    }
    return [
        Figure(f"full database: {what}", 1000 / (await cost_of(report, 100, 1)).rate, "ms")
        for what, report in reports.items()
    ]


async def known(store: Store) -> StoreLoad:
    callers = [await store.caller(f"hash {number}") for number in range(KEYS)]
    return StoreLoad(store, [caller for caller in callers if caller])


def fill(path: Path, rows: int) -> None:
    """Write a database as it is after 80 days: half of the rows are the first account's.

    The rows are written without journal and flush, since a crash here loses nothing of
    value; opening the file as a store restores both.
    """
    trio.run(_open_and_leave, path)
    with closing(connect(path)) as db:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -400000"):
            db.execute(f"PRAGMA {pragma}")
        (index,) = db.execute(
            "SELECT sql FROM sqlite_master WHERE name = 'usage_of_account'"
        ).fetchone()
        db.execute("BEGIN")
        db.execute("DROP INDEX usage_of_account")
        db.execute(FILL, _span(rows))
        db.execute(index)  # built by one sort, unlike the index of rows that come one by one
        db.execute(SETTLED, _span(rows))
        for statement in COUNTED:
            db.execute(statement)
        db.execute("COMMIT")


async def _open_and_leave(path: Path) -> None:
    async with open_customers(str(path)):
        pass


def _span(rows: int) -> dict[str, int]:
    since = (SINCE - EPOCH) // timedelta(microseconds=1)
    return {"rows": rows, "since": since, "each": DAYS * DAY_MICROS // rows, "keys": KEYS}


FILL = (
    "WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n + 1 < :rows)"
    " INSERT INTO usage (account, key, at, operation, status, failed_check, units, billable,"
    " latency_ms) SELECT iif(n % 2, 1, 1 + n / 2 % :keys), iif(n % 2, 1, 1 + n / 2 % :keys),"
    " :since + n * :each, 'stream', iif(n % 5, 'deliverable', 'undeliverable'),"
    " iif(n % 5, NULL, 'smtp'), 1, 1, 100 + n % 900 FROM n"
)
SETTLED = (  # of a week, in parts of ten: retention has deleted what is older
    "WITH RECURSIVE n (n) AS"
    " (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n + 1 < :rows * 7 / 80 / 10)"
    " INSERT INTO settlements (reservation, part, at) SELECT n / 5, n % 5, :since + n FROM n"
)
DAY = "date(at / 1000000, 'unixepoch')"
COUNTED = (
    "INSERT INTO days (account, day, billable)"
    f" SELECT account, {DAY}, sum(billable) FROM usage GROUP BY 1, 2",
    "INSERT INTO months SELECT account, date(day, 'start of month'), sum(billable), sum(billable)"
    " FROM days GROUP BY 1, 2",
    "INSERT INTO sqlite_sequence (name, seq) SELECT 'reservations', max(reservation)"
    " FROM settlements",
)
