"""Outcomes and look-ups of jobs that several tests share."""

from collections.abc import Awaitable, Callable
from datetime import date, timedelta
from typing import Any

from mailprobe.storage.contract import LISTED_MAX
from mailprobe.storage.records import Caller, Claim
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import (
    LEASE_S,
    NOON,
    attempt,
    row,
)

Write = Callable[[Store, Claim], Awaitable[bool]]
PAYLOAD = b'{"job":"\xff"}'
SOON = NOON + timedelta(seconds=5)


async def verify(store: Store, claim: Claim) -> bool:
    return await store.job_verified(claim, row(NOON), PAYLOAD, emit_meter_event=True)


async def abandon(store: Store, claim: Claim) -> bool:
    return await store.abandon_job(claim)


async def postpone(store: Store, claim: Claim) -> bool:
    return await store.postpone_job(claim, SOON)


async def extend(store: Store, claim: Claim) -> bool:
    return await store.extend_claim(claim, lease_s=LEASE_S)


async def put_off(store: Store, claim: Claim) -> bool:
    return await store.job_attempted(claim, attempt(), state="delivering", due_at=SOON)


async def finish(store: Store, claim: Claim) -> bool:
    return await store.job_attempted(claim, attempt(status=200), state="done", due_at=None)


async def observe(store: Store, caller: Caller) -> list[Any]:
    """Everything that a job could have changed."""
    jobs = await store.jobs(limit=LISTED_MAX)
    return [
        jobs,
        [await store.attempts(job.id) for job in jobs],
        await store.ledger(caller),
        await store.days(caller.account.id, date.min, date.max),
        await store.usage(caller.account.id, limit=10_000),
        await store.messages("meter", limit=LISTED_MAX),
    ]


def ids(claims: list[Claim]) -> list[str]:
    return [claim.job.id for claim in claims]
