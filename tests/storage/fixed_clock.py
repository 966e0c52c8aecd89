"""A clock that stands still until it is told, and rows to log."""

from datetime import UTC, datetime, timedelta
from typing import Any

from mailprobe.storage.records import (
    Answered,
    Attempt,
    Caller,
    Claim,
    IdempotencyRecord,
    Job,
    JobOrder,
    Ledger,
    UsageRow,
    Work,
)
from mailprobe.storage.store import Store

SECRET = bytes(range(32))
NOON = datetime(2025, 3, 14, 12, tzinfo=UTC)
INSTANT = timedelta(microseconds=1)
RETENTION: Any = {"free": 7, "builder": 90, "scale": 90, "own": 90}
LEASE_S = 25


class Clock:
    """now(), as the test says."""

    def __init__(self, at: datetime = NOON) -> None:
        self.at = at

    def __call__(self) -> datetime:
        return self.at

    def advance(self, seconds: float = 0, *, days: int = 0) -> datetime:
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


# An account with a key, of every schema; alerts are a boolean in one database.
OLD_CALLER = (
    "INSERT INTO accounts (id, email, tier, created_at, alerts)"
    " VALUES ('ann', 'ann@shop.test', 'builder', 1, false)",
    "INSERT INTO keys (id, account, kind, prefix, sha256, created_at)"
    " SELECT 'key', number, 'standard', 'sk_live_abcd', 'hash', 1 FROM accounts",
)


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


async def answer_idempotency(store: Store, account_id: str, key: str, answer: Answered) -> None:
    """A request with an idempotency key that was answered a moment ago."""
    idempotency = await store.begin_idempotent(account_id, key, "b", keep_s=60, lease_s=60)
    assert isinstance(idempotency, IdempotencyRecord)
    await store.finish_idempotent(idempotency, answer)


def order(id: str = "1", *, host: str = "hooks.test", secret: str | None = None) -> JobOrder:
    return JobOrder(id, f"ann+{id}@shop.test", f"https://{host}/called?job={id}", host, secret)


def attempt(number: int = 1, at: datetime = NOON, status: int | None = 500) -> Attempt:
    return Attempt(number, at, 7, status, None if status else "nobody answered")


async def promise(store: Store, caller: Caller, *orders: JobOrder) -> list[Job]:
    """Jobs, granted whatever the ledger says."""
    jobs = [await store.create_job(caller, one, granted) for one in orders]
    assert all(isinstance(job, Job) for job in jobs)
    return [job for job in jobs if isinstance(job, Job)]


async def claimed(
    store: Store, work: Work = "verify", *, limit: int = 100, each_max: int = 100
) -> list[Claim]:
    return await store.claim_jobs(work, limit=limit, each_max=each_max, lease_s=LEASE_S)


async def delivering(store: Store, caller: Caller, *orders: JobOrder) -> list[Job]:
    """Jobs that are verified, one after another, and due to be delivered."""
    jobs = []
    for one in orders:
        await promise(store, caller, one)
        for claim in await claimed(store):
            assert await store.job_verified(claim, row(claim.job.created_at), b"{}")
        job = await store.job(one.id)
        assert job
        jobs.append(job)
    return jobs
