"""Jobs as a queue: claimed first for verification, then for delivery."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

import trio

from mailprobe.storage.checks import at_most, check_outcome
from mailprobe.storage.claim_order import FAILING_AFTER, ClaimBounds, Head, Partition, claim_in_turn
from mailprobe.storage.contract import LISTED_MAX, RECEIVERS_KEPT
from mailprobe.storage.memory.claim_queue import ClaimQueue
from mailprobe.storage.memory.usage import MemoryUsage
from mailprobe.storage.periods import FOREVER
from mailprobe.storage.records import (
    Attempt,
    Caller,
    Claim,
    FirstAnswer,
    Job,
    JobOrder,
    JobState,
    Ledger,
    Reservation,
    UsageRow,
    Work,
)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Job:
    """A job, with what only its claims return."""

    job: Job
    secret: str | None
    reservation: Reservation
    attempts: tuple[Attempt, ...] = ()

    @property
    def work(self) -> Work:
        return "verify" if self.job.state == "pending" else "deliver"


class MemoryJobs(MemoryUsage):
    """The layer of jobs."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(now)
        self._jobs: ClaimQueue[_Job] = ClaimQueue()
        self._receivers: dict[
            Partition, tuple[int, datetime]
        ] = {}  # failures, and the last one's instant

    async def create_job(
        self,
        caller: Caller,
        order: JobOrder,
        check_limits: Callable[[Ledger], R | None],
        *,
        first: FirstAnswer | None = None,
    ) -> Job | R:
        await trio.lowlevel.checkpoint()
        if order.id in self._jobs.entries:
            raise ValueError("a job with this id is kept already")
        self._check_runs(first)
        now = self._now()
        self._reclaim(caller.key, now)
        refusal = check_limits(self._ledger(caller, now))
        if refusal is not None:
            return refusal
        reservation = self._reserve(caller, 1, now, FOREVER)
        job = Job(
            order.id, caller.account.id, order.email, order.webhook, order.host, "pending", now, now
        )
        self._jobs.push(job.id, _Job(job, order.secret, reservation), now)
        self._answer(first)
        return job

    async def claim_jobs(
        self,
        work: Work,
        *,
        limit: int,
        each_max: int,
        lease_s: float,
        account_max: int | None = None,
    ) -> list[Claim]:
        await trio.lowlevel.checkpoint()
        now = self._now()
        place = {account_id: number for number, account_id in enumerate(self._accounts)}
        heads: dict[int, list[Head]] = {}  # by the account's position: of equals the oldest first
        for due_at, name in self._jobs.waiting(now, lambda kept: kept.work == work):
            job = self._jobs.entries[name].thing.job
            partition = Partition(place[job.account_id], job.host if work == "deliver" else "")
            heads.setdefault(place[job.account_id], []).append(Head(due_at, name, partition))
        held = Counter(
            Partition(place[kept.job.account_id], kept.job.host if work == "deliver" else "")
            for kept in self._jobs.held(now, lambda kept: kept.work == work)
        )

        def partition_max(partition: Partition) -> int:
            failures, _ = self._receivers.get(partition, (0, now))
            return min(1, each_max) if failures >= FAILING_AFTER else each_max

        taken = claim_in_turn(
            {account: of_account[0].due_at for account, of_account in heads.items()},
            lambda account: iter(heads[account]),
            held,
            ClaimBounds(limit, partition_max, account_max),
        )
        return [self._claim(*self._jobs.claim_next(head.number, now, lease_s)) for head in taken]

    def _record_attempt(self, job: Job, *, failed: bool) -> None:
        partition = Partition(list(self._accounts).index(job.account_id), job.host)
        failures, _ = self._receivers.pop(partition, (0, None))
        if failed:
            self._receivers[partition] = failures + 1, self._now()

    def _undelivered(self, account_id: str) -> int:
        jobs = (entry.thing.job for entry in self._jobs.entries.values())
        return sum(job.account_id == account_id and not job.ended_at for job in jobs)

    def _claim(self, kept: _Job, fence: int) -> Claim:
        key = self._keys[kept.reservation.caller.key.id]
        caller = Caller(self._accounts[kept.job.account_id], key)
        return Claim(kept.job, caller, kept.secret, fence)

    async def extend_claim(self, claim: Claim, *, lease_s: float) -> bool:
        await trio.lowlevel.checkpoint()
        return self._jobs.extend(claim.job.id, claim.fence, self._now(), lease_s)

    async def job_verified(
        self, claim: Claim, row: UsageRow, payload: bytes, *, metered: bool = False
    ) -> bool:
        await trio.lowlevel.checkpoint()
        kept = self._held(claim, "pending")
        if kept is None:
            return False
        self._settle(kept.reservation, [row], metered=metered)
        now = self._now()
        self._keep(replace(kept.job, state="delivering", due_at=now, payload=payload), kept)
        return True

    async def job_attempted(
        self, claim: Claim, attempt: Attempt, *, state: JobState, due_at: datetime | None
    ) -> bool:
        check_outcome(state, due_at)
        await trio.lowlevel.checkpoint()
        kept = self._held(claim, "delivering")
        if kept is None:
            return False
        ended_at = None if due_at else self._now()
        self._record_attempt(kept.job, failed=state != "done")
        tries = kept.job.tries + 1
        job = replace(kept.job, state=state, due_at=due_at, tries=tries, ended_at=ended_at)
        self._keep(job, replace(kept, attempts=(*kept.attempts, attempt)))
        return True

    async def abandon_job(self, claim: Claim) -> bool:
        await trio.lowlevel.checkpoint()
        kept = self._held(claim, "pending")
        if kept is None:
            return False
        self._settle(kept.reservation, [])
        self._keep(replace(kept.job, state="failed", due_at=None, ended_at=self._now()), kept)
        return True

    def _held(self, claim: Claim, state: JobState) -> _Job | None:
        """Return the job if this claim is its last and had no outcome yet, and it is in this state."""
        kept = self._jobs.of_claim(claim.job.id, claim.fence)
        return kept if kept and kept.job.state == state else None

    def _keep(self, job: Job, kept: _Job) -> None:
        self._jobs.push(job.id, replace(kept, job=job), job.due_at)

    async def job(self, job_id: str) -> Job | None:
        await trio.lowlevel.checkpoint()
        entry = self._jobs.entries.get(job_id)
        return entry.thing.job if entry else None

    async def jobs(
        self, *, account_id: str | None = None, state: JobState | None = None, limit: int
    ) -> list[Job]:
        await trio.lowlevel.checkpoint()
        jobs = [entry.thing.job for entry in reversed(self._jobs.entries.values())]
        return [
            job
            for job in jobs
            if account_id in (None, job.account_id) and state in (None, job.state)
        ][: at_most(LISTED_MAX, limit)]

    async def attempts(self, job_id: str) -> list[Attempt]:
        await trio.lowlevel.checkpoint()
        entry = self._jobs.entries.get(job_id)
        return list(entry.thing.attempts[-LISTED_MAX:]) if entry else []

    async def resend_job(self, job_id: str) -> Job | None:
        await trio.lowlevel.checkpoint()
        entry = self._jobs.entries.get(job_id)
        if entry is None or entry.thing.job.payload is None:
            return None
        job = replace(
            entry.thing.job, state="delivering", due_at=self._now(), tries=0, ended_at=None
        )
        self._keep(job, entry.thing)
        self._jobs.raise_fence(job_id)
        return job

    def _keys_of_jobs(self) -> set[str]:
        return {entry.thing.reservation.caller.key.id for entry in self._jobs.entries.values()}

    def _drop_receivers(self, now: datetime) -> None:
        kept_since = now - RECEIVERS_KEPT
        self._receivers = {
            partition: kept for partition, kept in self._receivers.items() if kept[1] > kept_since
        }

    def _drop_jobs(self, account_id: str, since: datetime) -> None:
        for job in [entry.thing.job for entry in self._jobs.entries.values()]:
            if job.account_id == account_id and job.ended_at and job.ended_at < since:
                del self._jobs.entries[job.id]
