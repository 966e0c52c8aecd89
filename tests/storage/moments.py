"""A clock that stands still until it is told, and rows to log."""

from datetime import UTC, datetime, timedelta
from typing import Any

from storage.records import Caller, Ledger, UsageRow
from storage.store import Store

SECRET = bytes(range(32))
NOON = datetime(2025, 3, 14, 12, tzinfo=UTC)


class Clock:
    """now(), as the test says."""

    def __init__(self, at: datetime = NOON) -> None:
        self.at = at

    def __call__(self) -> datetime:
        return self.at

    def pass_(self, seconds: float = 0, *, days: int = 0) -> datetime:
        self.at += timedelta(seconds=seconds, days=days)
        return self.at


def granted(_: Ledger) -> None:
    """Weigh nothing: whatever is asked for may be had."""


def row(at: datetime, **other: Any) -> UsageRow:
    values: dict[str, Any] = {
        "operation": "verify",
        "status": "deliverable",
        "failed_check": None,
        "units": 1,
        "billable": True,
        "latency_ms": 7,
    }
    return UsageRow(at=at, **(values | other))


async def make_caller(store: Store, tier: Any = "builder", sha256: str = "hash") -> Caller:
    account = await store.create_account("ann@shop.test", tier)
    return await another_key(store, account.id, sha256)


async def another_key(store: Store, account_id: str, sha256: str) -> Caller:
    await store.create_key(
        account_id, "standard", None, sha256=sha256, prefix="sk_live_abcd", keys_max=None
    )
    caller = await store.caller(sha256)
    assert caller
    return caller


async def use(store: Store, caller: Caller, at: datetime, count: int = 1, **other: Any) -> None:
    """Reserve and settle."""
    reservation = await store.reserve(caller, count, granted, lease_s=60)
    await store.settle(reservation, [row(at, **other)] * count)
