"""Transactions of jobs, in SQL. Each runs in the writer's or the reader's transaction."""

import sqlite3
from datetime import datetime, timedelta
from typing import TypeVar

from .. import idempotency, jobs
from ..base.columns import micros
from ..commands import ClaimJobs, CreateJob, JobVerified, Outcome
from ..records import Claim, Job, new_job
from . import job_partitions as partitions
from . import usage as metering
from .database import SqliteDatabase

DB = sqlite3.Connection
R = TypeVar("R")


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
    who = granted.caller
    job = new_job(command.order, command.caller, now)
    idempotency.keep(shared, command.first)
    values = jobs.new_job_values(job, who.account_number, who.key_number, command.secret)
    jobs.insert_jobs(shared, [values])
    return job


def complete(db: DB, now: datetime, command: Outcome) -> bool:
    """Write the outcome of a claimed job; False if the claim does not count."""
    shared = SqliteDatabase(db, now)
    (job,) = jobs.held_jobs(shared, [command])
    if job is None:
        return False
    if isinstance(command, JobVerified):
        owner = metering.caller_row(db, command.caller)
        metering.use(db, now, owner, [command.row], command.emit_meter_event)
    jobs.write_outcomes(shared, now, [(command, job)])
    return True


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
        partitions.renew(db, jobs.STATE_OF[command.work], partition)
    return jobs.claims_of(SqliteDatabase(db, now), [head.number for head in heads])
