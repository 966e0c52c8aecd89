"""Jobs as a queue: claimed first for verification, then for delivery."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from mailprobe.storage.base.claim_order import (
    FAILING_AFTER,
    HANGS_AFTER,
    ClaimBounds,
    Head,
    Partition,
    claim_in_turn,
)
from mailprobe.storage.commands import (
    AbandonJob,
    ClaimJobs,
    CreateJob,
    EncryptedClaim,
    JobAttempted,
    JobVerified,
    PostponeJob,
)
from mailprobe.storage.contract import LISTED_MAX, RECEIVERS_KEPT, at_most
from mailprobe.storage.records import (
    Attempt,
    Caller,
    Claim,
    Job,
    JobState,
    Reservation,
    Work,
    new_job,
    state_with_result,
)
from tests.storage.ledger.claim_queue import ClaimQueue
from tests.storage.ledger.usage import ModelUsage

R = TypeVar("R")

FOREVER = datetime.max.replace(tzinfo=UTC)  # the end of a lease without an end


class _Job(Struct, frozen=True):
    """A job, with what only its claims return."""

    job: Job
    secret: bytes | None
    reservation: Reservation
    attempts: tuple[Attempt, ...] = ()

    @property
    def work(self) -> Work:
        return "verify" if self.job.state == "pending" else "deliver"


class ModelJobs(ModelUsage):
    """The layer of jobs."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(now)
        self._jobs: ClaimQueue[_Job] = ClaimQueue()
        # Failures, and the last one's instant.
        self._receivers: dict[Partition, tuple[int, datetime]] = {}

    def create_job(self, command: CreateJob[R]) -> Job | R:
        if command.order.id in self._jobs.entries:
            raise ValueError("a job with this id is kept already")
        self._check_runs(command.first)
        now = self._now()
        self._reclaim(command.caller.key, now)
        refusal = command.check_limits(self._ledger(command.caller, now))
        if refusal is not None:
            return refusal
        job = new_job(command.order, command.caller, now)
        until = FOREVER if job.state == "pending" else now
        reservation = self._reserve(command.caller, 1, now, until)
        self._jobs.push(job.id, _Job(job, command.secret, reservation), job.due_at)
        self._answer(command.first)
        return job

    def claim_jobs(self, command: ClaimJobs) -> list[EncryptedClaim]:
        now = self._now()
        place = {account_id: number for number, account_id in enumerate(self._accounts)}
        heads: dict[int, list[Head]] = {}  # by the account's position: of equals the oldest first
        for due_at, name in self._jobs.waiting(now, lambda kept: kept.work == command.work):
            job = self._jobs.entries[name].thing.job
            partition = Partition(
                place[job.account_id], job.host if command.work == "deliver" else ""
            )
            heads.setdefault(place[job.account_id], []).append(Head(due_at, name, partition))
        held: Counter[Partition] = Counter()
        hanging: Counter[Partition] = Counter()
        for kept, at in self._jobs.held(now, lambda kept: kept.work == command.work):
            host = kept.job.host if command.work == "deliver" else ""
            held[Partition(place[kept.job.account_id], host)] += 1
            if host and at <= now - HANGS_AFTER:
                hanging[Partition(place[kept.job.account_id], host)] += 1

        def partition_max(partition: Partition) -> int:
            failures, _ = self._receivers.get(partition, (0, now))
            return min(1, command.each_max) if failures >= FAILING_AFTER else command.each_max

        taken = claim_in_turn(
            {account: of_account[0].due_at for account, of_account in heads.items()},
            lambda account: iter(heads[account]),
            held,
            hanging,
            ClaimBounds(command.limit, partition_max, command.account_max),
        )
        return [
            self._claim(*self._jobs.claim_next(head.number, now, command.lease_s)) for head in taken
        ]

    def _record_attempt(self, job: Job, *, failed: bool) -> None:
        partition = Partition(list(self._accounts).index(job.account_id), job.host)
        failures, _ = self._receivers.pop(partition, (0, None))
        if failed:
            self._receivers[partition] = failures + 1, self._now()

    def _undelivered(self, account_id: str) -> int:
        jobs = (entry.thing.job for entry in self._jobs.entries.values())
        return sum(job.account_id == account_id and not job.ended_at for job in jobs)

    def _claim(self, kept: _Job, fence: int) -> EncryptedClaim:
        key = self._keys[kept.reservation.caller.key.id]
        caller = Caller(self._accounts[kept.job.account_id], key)
        return Claim(kept.job, caller, None, fence), kept.secret

    def extend_claim(self, claim: Claim, *, lease_s: float) -> bool:
        return self._jobs.extend(claim.job.id, claim.fence, self._now(), lease_s)

    def job_verified(self, command: JobVerified) -> bool:
        kept = self._held(command.claim, "pending")
        if kept is None:
            return False
        self._settle(kept.reservation, [command.row], emit_meter_event=command.emit_meter_event)
        state, now = state_with_result(kept.job.webhook), self._now()
        due_at, ended_at = (None, now) if state == "done" else (now, None)
        job = replace(
            kept.job,
            state=state,
            due_at=due_at,
            tries=0,
            payload=command.payload,
            ended_at=ended_at,
        )
        self._keep(job, kept)
        return True

    def job_attempted(self, command: JobAttempted) -> bool:
        kept = self._held(command.claim, "delivering")
        if kept is None:
            return False
        ended_at = None if command.due_at else self._now()
        self._record_attempt(kept.job, failed=command.state != "done")
        tries = kept.job.tries + 1
        job = replace(
            kept.job, state=command.state, due_at=command.due_at, tries=tries, ended_at=ended_at
        )
        self._keep(job, replace(kept, attempts=(*kept.attempts, command.attempt)))
        return True

    def postpone_job(self, command: PostponeJob) -> bool:
        kept = self._held(command.claim, "pending")
        if kept is None:
            return False
        self._keep(replace(kept.job, due_at=command.due_at, tries=kept.job.tries + 1), kept)
        return True

    def abandon_job(self, command: AbandonJob) -> bool:
        kept = self._held(command.claim, "pending")
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

    def job(self, job_id: str) -> Job | None:
        entry = self._jobs.entries.get(job_id)
        return entry.thing.job if entry else None

    def jobs(
        self,
        *,
        account_id: str | None = None,
        state: JobState | None = None,
        host: str | None = None,
        before: str | None = None,
        prefix: str | None = None,
        limit: int,
    ) -> list[Job]:
        jobs = [entry.thing.job for entry in reversed(self._jobs.entries.values())]
        if before is not None:
            ids = [job.id for job in jobs]
            jobs = jobs[ids.index(before) + 1 :] if before in ids else []
        return [
            job
            for job in jobs
            if account_id in (None, job.account_id)
            and state in (None, job.state)
            and (host is None or (job.webhook and job.host == host))
        ][: at_most(LISTED_MAX, limit)]

    def attempts(self, job_id: str) -> list[Attempt]:
        entry = self._jobs.entries.get(job_id)
        return list(entry.thing.attempts[-LISTED_MAX:]) if entry else []

    def resend_job(self, job_id: str) -> Job | None:
        entry = self._jobs.entries.get(job_id)
        if entry is None or entry.thing.job.payload is None or entry.thing.job.webhook is None:
            return None
        job = replace(
            entry.thing.job, state="delivering", due_at=self._now(), tries=0, ended_at=None
        )
        self._keep(job, entry.thing)
        self._jobs.raise_fence(job_id)
        return job

    def _keys_in_use(self) -> set[str]:
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
