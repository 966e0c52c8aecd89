"""Calls and limits that several contract tests share."""

from datetime import UTC, datetime
from typing import Any

from mailprobe.storage.records import (
    Answered,
    Ledger,
)
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import row

JANUARY_ENDS = datetime(2025, 2, 1, tzinfo=UTC)
ANSWER = Answered(201, (("Content-Type", "application/json"), ("X-Id", "é")), b'{"key":"\xff\n"}')


def at_most(limit: int, units: int) -> Any:
    """Weigh as a rate limit does: by the window alone."""

    def weigh(ledger: Ledger) -> str | None:
        return "too many" if ledger.window_units + units > limit else None

    return weigh


async def keep_key(store: Store, account_id: str, kind: Any = "standard", **other: Any) -> Any:
    sha256 = other.pop("sha256", f"{kind} {len(await store.keys(account_id))}")
    values: dict[str, Any] = {"label": None, "prefix": "sk_live_abcd", "keys_max": None} | other
    return await store.create_key(account_id, kind, sha256=sha256, **values)


async def begin(store: Store, account_id: str, key: str = "k", body: str = "b") -> Any:
    return await store.begin_idempotent(account_id, key, body, keep_s=86_400, lease_s=60)


def refusal(at: datetime, failed_check: str | None = "rate_limit_exceeded") -> Any:
    return row(at, status=None, failed_check=failed_check, units=0, billable=False)
