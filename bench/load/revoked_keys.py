"""Measures what one account's many revoked keys cost other accounts.

The owner creates keys, lists them and verifies without a pause; a neighbour verifies one
address after the other. The rounds alternate between two stores: in one of them the owner
has REVOKED revoked keys within their retention.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from uuid import uuid4

import psycopg
import trio

from mailprobe.api.operations.keys import KEYS_A_MINUTE
from mailprobe.api.quota.limits import check_limits
from mailprobe.api.quota.plans import PLANS
from mailprobe.storage.contract import KeyCreationTooFast, KeyLimitReached, StoreUnavailable
from mailprobe.storage.postgres.driver.server import SCHEMA
from mailprobe.storage.records import EPOCH, Ledger
from mailprobe.storage.sqlite.file import connect

from ..harness.figures import Figure
from .store_load import StoreLoad

REVOKED = 300_000
OWNERS = 4  # requests of the owner's at once
REQUESTS_EACH = 150  # by the neighbour, a round
ROUNDS = 5
PLAN = PLANS["scale"]


def fill_sqlite(path: str | Path) -> None:
    with closing(connect(Path(path))) as db:
        db.execute("BEGIN")
        db.execute(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < :count)"
            " INSERT INTO keys (id, account, kind, prefix, sha256, created_at, revoked_at)"
            " SELECT 'revoked ' || n, 1, 'standard', 'sk_live_benc', 'revoked ' || n, :at, :at"
            " FROM n",
            _owner_row(),
        )
        db.execute("COMMIT")


def fill_postgres(url: str) -> None:
    with psycopg.connect(url, options=f"-c search_path={SCHEMA}") as db:
        db.execute(
            "INSERT INTO keys (id, account, kind, prefix, sha256, created_at, revoked_at)"
            " SELECT 'revoked ' || n, 1, 'standard', 'sk_live_benc', 'revoked ' || n, %(at)s,"
            " %(at)s FROM generate_series(1, %(count)s) AS n",
            _owner_row(),
        )


def _owner_row() -> dict[str, int]:
    """Revoked two hours ago: out of every window, and kept for days."""
    at = datetime.now(UTC) - timedelta(hours=2)
    return {"count": REVOKED, "at": (at - EPOCH) // timedelta(microseconds=1)}


async def measure_revoked(name: str, before: StoreLoad, after: StoreLoad) -> list[Figure]:
    """Compare the neighbour's median; `after` is like `before`, with the revoked keys."""
    medians: dict[str, list[float]] = {"before": [], "after": []}
    for _ in range(1 + ROUNDS):
        medians["before"].append(await _neighbours_median_ms(before))
        medians["after"].append(await _neighbours_median_ms(after))
    one, other = medians["before"][1:], medians["after"][1:]  # the first for warmth
    what = f"{name}: beside {REVOKED:,} revoked keys"
    return [
        Figure(f"{name}: beside no revoked keys: a neighbour's median", median(one), "ms"),
        Figure(f"{what}: a neighbour's median", median(other), "ms"),
        Figure(
            f"{what}: a neighbour's median, of that beside none",
            median(b / a for a, b in zip(one, other, strict=True)), "×",
        ),
    ]  # fmt: skip


async def _neighbours_median_ms(customers: StoreLoad) -> float:
    took: list[float] = []
    async with trio.open_nursery() as nursery:
        for act in (_make_key, _make_key, _list_keys, _verify)[:OWNERS]:
            nursery.start_soon(_without_a_pause, act, customers)
        for _ in range(REQUESTS_EACH):
            began = time.perf_counter()
            await _retry(lambda: customers.use(1))
            took.append(time.perf_counter() - began)
        nursery.cancel_scope.cancel()
    return median(took) * 1000


async def _without_a_pause(
    act: Callable[[StoreLoad], Awaitable[None]], customers: StoreLoad
) -> None:
    while True:
        await _retry(lambda: act(customers))
        await trio.lowlevel.checkpoint()


async def _retry(act: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await act()
        except StoreUnavailable:
            continue
        return


async def _make_key(customers: StoreLoad) -> None:
    """Create and revoke a key; do nothing once the store refuses more keys."""
    account = customers.caller(0).account.id
    try:
        key = await customers.store.create_key(
            account, "standard", None, sha256=uuid4().hex, prefix="sk_live_benc",
            keys_max=PLAN.max_keys, keys_per_minute_max=KEYS_A_MINUTE,
        )  # fmt: skip
    except (KeyLimitReached, KeyCreationTooFast):
        return
    await customers.store.revoke_key(account, key.id)


async def _list_keys(customers: StoreLoad) -> None:
    await customers.store.keys(customers.caller(0).account.id)


async def _verify(customers: StoreLoad) -> None:
    def judge(ledger: Ledger) -> object:
        return check_limits(PLAN, ledger, 1)

    await customers.store.reserve(customers.caller(0), 1, judge, lease_s=20.0)
