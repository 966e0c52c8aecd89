"""Transactions of jobs, in SQL. Each runs in the writer's or the reader's transaction."""

import sqlite3
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from .. import idempotency
from ..base.claim_order import Partition
from ..base.columns import (
    NEW_JOB_COLUMNS,
    micros,
    new_job_values,
)
from ..commands import (
    AbandonJob,
    ClaimJobs,
    CreateJob,
    JobAttempted,
    JobVerified,
    PostponeJob,
    ResendJob,
)
from ..contract import LISTED_MAX
from ..jobs import claims_of, find_job
from ..records import (
    Attempt,
    Claim,
    Job,
    JobState,
    new_job,
    state_with_result,
)
from . import job_partitions as partitions
from . import usage as metering
from .database import SqliteDatabase

DB = sqlite3.Connection
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _SqliteJob:
    """A job's row, with what its partition and its counters depend on."""

    number: int
    account: int
    host: str
    state: JobState
    tries: int
    fence: int

    @property
    def partition(self) -> Partition | None:
        """None if the job has ended."""
        if self.state == "pending":
            return Partition(self.account, "")
        return Partition(self.account, self.host) if self.state == "delivering" else None


def create(db: DB, now: datetime, command: CreateJob[R]) -> Job | R:
    """Reserve one unit, or count it in the window alone, and insert the job.

    Its secret is already encrypted.
    """
    if db.execute("SELECT 1 FROM jobs WHERE id = ?", (command.order.id,)).fetchone():
        raise ValueError("a job with this id is kept already")
    shared = SqliteDatabase(db, now)
    idempotency.check_runs(shared, command.first.idempotency if command.first else None)
    granted = metering.grant(db, now, command.caller, 1, command.check_limits)
    if not isinstance(granted, metering.Standing):
        return granted
    owner = granted.caller
    job = new_job(command.order, command.caller, now)
    idempotency.keep(shared, command.first)
    number = db.execute(
        f"INSERT INTO jobs ({NEW_JOB_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        new_job_values(job, owner.account_number, owner.key_number, command.secret),
    ).lastrowid
    assert number is not None
    kept = _SqliteJob(number, owner.account_number, job.host, job.state, 0, 0)
    if kept.partition:
        partitions.renew(db, kept.state, kept.partition, 1)
    return job


# claims


def is_due(db: DB, now: datetime, command: ClaimJobs) -> bool:
    """Return whether a claim would take any job."""
    return bool(partitions.due(db, now, command.work, 1, command.each_max, command.account_max))


def claim(db: DB, now: datetime, command: ClaimJobs) -> list[tuple[Claim, bytes | None]]:
    """Return claims without their secrets, each with its encrypted secret beside it."""
    heads = partitions.due(
        db, now, command.work, command.limit, command.each_max, command.account_max
    )
    until = micros(now + timedelta(seconds=command.lease_s))
    db.executemany(
        "UPDATE jobs SET lease_until = ?, claimed_at = ?, fence = fence + 1 WHERE number = ?",
        [(until, micros(now), head.number) for head in heads],
    )
    for partition in {head.partition for head in heads}:
        partitions.renew(db, partitions.STATE_OF[command.work], partition)
    return claims_of(SqliteDatabase(db, now), [head.number for head in heads])


# outcomes


def verified(db: DB, now: datetime, command: JobVerified) -> bool:
    """Count the verification and make the job's callback due; False if the claim does not count."""
    kept = _held(db, command.claim, "pending")
    if kept is None:
        return False
    metering.use(db, now, command.claim.caller, [command.row], command.emit_meter_event)
    state = state_with_result(command.claim.job.webhook)
    due_at, ended_at = (None, micros(now)) if state == "done" else (now, None)
    _change(db, kept, state, due_at, tries=0, payload=command.payload, ended_at=ended_at)
    return True


def postpone(db: DB, _: datetime, command: PostponeJob) -> bool:
    """Make a pending job due later; False if the claim does not count."""
    kept = _held(db, command.claim, "pending")
    if kept is None:
        return False
    _change(db, kept, "pending", command.due_at, tries=kept.tries + 1)
    return True


def attempted(db: DB, now: datetime, command: JobAttempted) -> bool:
    """Log an attempt and set the job's next state; False if the claim does not count."""
    kept = _held(db, command.claim, "delivering")
    if kept is None:
        return False
    _log(db, kept.number, command.attempt)
    partitions.record_attempt(
        db, now, Partition(kept.account, kept.host), failed=command.state != "done"
    )
    ended_at = None if command.due_at else micros(now)
    _change(db, kept, command.state, command.due_at, tries=kept.tries + 1, ended_at=ended_at)
    return True


def abandon(db: DB, now: datetime, command: AbandonJob) -> bool:
    """End a pending job as failed; False if the claim does not count."""
    kept = _held(db, command.claim, "pending")
    if kept is None:
        return False
    _change(db, kept, "failed", None, ended_at=micros(now))
    return True


def resend(db: DB, now: datetime, command: ResendJob) -> Job | None:
    """Make the callback due at once; None if there is no payload."""
    kept = _kept(db, "id = ? AND payload IS NOT NULL AND webhook IS NOT NULL", command.job_id)
    if kept is None:
        return None
    _change(db, kept, "delivering", now, tries=0, fence=kept.fence + 1, ended_at=None)
    return find_job(SqliteDatabase(db, now), command.job_id)


def _held(db: DB, claim: Claim, state: JobState) -> _SqliteJob | None:
    """Return the job if this claim is its last and had no outcome yet, and it is in this state."""
    which = "id = ? AND fence = ? AND lease_until IS NOT NULL AND state = ?"
    return _kept(db, which, claim.job.id, claim.fence, state)


def _kept(db: DB, which: str, *values: object) -> _SqliteJob | None:
    row = db.execute(
        f"SELECT number, account, host, state, tries, fence FROM jobs WHERE {which}", values
    ).fetchone()
    return row and _SqliteJob(*row)


def _change(
    db: DB, kept: _SqliteJob, state: JobState, due_at: datetime | None, **columns: object
) -> None:
    """Change a job's state or due time: its claim ends, and it moves between partitions."""
    values = {"state": state, "due_at": due_at and micros(due_at), "lease_until": None, **columns}
    sets = ", ".join(f"{name} = :{name}" for name in values)
    db.execute(f"UPDATE jobs SET {sets} WHERE number = :number", {**values, "number": kept.number})
    after = replace(kept, state=state)
    if kept.partition:
        partitions.renew(db, kept.state, kept.partition, -1)
    if after.partition:
        partitions.renew(db, after.state, after.partition, 1)


def _log(db: DB, number: int, attempt: Attempt) -> None:
    """Insert the attempt, and delete those beyond LISTED_MAX, which are never shown."""
    (last,) = db.execute(
        "SELECT coalesce(max(place), 0) FROM job_attempts WHERE job = ?", (number,)
    ).fetchone()
    tried = (attempt.number, micros(attempt.at), attempt.took_ms, attempt.status, attempt.error)
    db.execute(
        "INSERT INTO job_attempts (job, place, number, at, took_ms, status, error)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (number, last + 1, *tried),
    )
    db.execute(
        "DELETE FROM job_attempts WHERE job = ? AND place <= ?", (number, last + 1 - LISTED_MAX)
    )
