"""Transactions of jobs, in SQL. Each runs in the writer's or the reader's transaction."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, TypeVar

from mailprobe.storage.checks import at_most
from mailprobe.storage.claim_order import Partition
from mailprobe.storage.columns import JOB_COLUMNS, attempt_of, job_of, micros
from mailprobe.storage.contract import LISTED_MAX
from mailprobe.storage.encrypted_columns import EncryptedFirst
from mailprobe.storage.records import (
    Attempt,
    Caller,
    Claim,
    Job,
    JobOrder,
    JobState,
    Ledger,
    UsageRow,
    Work,
)
from mailprobe.storage.sqlite import accounts
from mailprobe.storage.sqlite import idempotency as idempotency_records
from mailprobe.storage.sqlite import job_partitions as partitions
from mailprobe.storage.sqlite import usage as metering

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


def create(
    db: DB,
    now: datetime,
    caller: Caller,
    order: JobOrder,
    secret: bytes | None,
    check_limits: Callable[[Ledger], R | None],
    first: EncryptedFirst | None,
) -> Job | R:
    """Reserve one unit and insert the job; its secret is already encrypted."""
    if db.execute("SELECT 1 FROM jobs WHERE id = ?", (order.id,)).fetchone():
        raise ValueError("a job with this id is kept already")
    idempotency_records.check_runs(db, first.idempotency if first else None)
    granted = metering.grant(db, now, caller, 1, check_limits)
    if not isinstance(granted, metering.Standing):
        return granted
    owner = granted.caller
    at = micros(now)
    idempotency_records.keep(db, first)
    db.execute(
        "INSERT INTO jobs (id, account, key, email, webhook, host, secret, state, created_at,"
        " due_at) VALUES (?, ?, ?, ?, ?, ?, ?, 'pending', ?, ?)",
        (
            order.id,
            owner.account_number,
            owner.key_number,
            order.email,
            order.webhook,
            order.host,
            secret,
            at,
            at,
        ),
    )
    partitions.renew(db, "pending", Partition(owner.account_number, ""), 1)
    return Job(
        order.id, caller.account.id, order.email, order.webhook, order.host, "pending", now, now
    )


# claims


def claim(
    db: DB,
    now: datetime,
    work: Work,
    limit: int,
    each_max: int,
    account_max: int | None,
    lease_s: float,
) -> list[tuple[Claim, bytes | None]]:
    """Return claims without their secrets, each with its encrypted secret beside it."""
    heads = partitions.due(db, now, work, limit, each_max, account_max)
    until = micros(now + timedelta(seconds=lease_s))
    db.executemany(
        "UPDATE jobs SET lease_until = ?, fence = fence + 1 WHERE number = ?",
        [(until, head.number) for head in heads],
    )
    for partition in {head.partition for head in heads}:
        partitions.renew(db, partitions.STATE_OF[work], partition)
    caller_of_key = cache(partial(accounts.caller_of_key, db))  # many jobs have the same caller
    return [_claim(db, head.number, caller_of_key) for head in heads]


def _claim(
    db: DB, number: int, caller_of_key: Callable[[int], Caller]
) -> tuple[Claim, bytes | None]:
    secret, fence, key, *row = db.execute(
        f"SELECT secret, fence, key, {JOB_COLUMNS}"
        " FROM jobs JOIN accounts ON accounts.number = jobs.account WHERE jobs.number = ?",
        (number,),
    ).fetchone()
    return Claim(job_of(tuple(row)), caller_of_key(key), None, fence), secret


def extend(db: DB, now: datetime, claim: Claim, lease_s: float) -> bool:
    """Let the claim end `lease_s` from now; False if it has ended."""
    extended = db.execute(
        "UPDATE jobs SET lease_until = ? WHERE id = ? AND fence = ? AND lease_until > ?",
        (micros(now + timedelta(seconds=lease_s)), claim.job.id, claim.fence, micros(now)),
    )
    return bool(extended.rowcount)


# outcomes


def verified(
    db: DB, now: datetime, claim: Claim, row: UsageRow, payload: bytes, metered: bool
) -> bool:
    """Count the verification and make the job's callback due; False if the claim does not count."""
    kept = _held(db, claim, "pending")
    if kept is None:
        return False
    metering.use(db, now, claim.caller, [row], metered)
    _change(db, kept, "delivering", now, payload=payload)
    return True


def tried(
    db: DB, now: datetime, claim: Claim, attempt: Attempt, state: JobState, due_at: datetime | None
) -> bool:
    """Log an attempt and set the job's next state; False if the claim does not count."""
    kept = _held(db, claim, "delivering")
    if kept is None:
        return False
    _log(db, kept.number, attempt)
    partitions.record_attempt(db, now, Partition(kept.account, kept.host), failed=state != "done")
    ended_at = None if due_at else micros(now)
    _change(db, kept, state, due_at, tries=kept.tries + 1, ended_at=ended_at)
    return True


def abandon(db: DB, now: datetime, claim: Claim) -> bool:
    """End a pending job as failed; False if the claim does not count."""
    kept = _held(db, claim, "pending")
    if kept is None:
        return False
    _change(db, kept, "failed", None, ended_at=micros(now))
    return True


def resend(db: DB, now: datetime, job_id: str) -> Job | None:
    """Make the callback due at once; None if there is no payload."""
    kept = _kept(db, "id = ? AND payload IS NOT NULL", job_id)
    if kept is None:
        return None
    _change(db, kept, "delivering", now, tries=0, fence=kept.fence + 1, ended_at=None)
    return job(db, job_id)


def _held(db: DB, claim: Claim, state: JobState) -> _SqliteJob | None:
    """Return the job if this claim is its last and had no outcome yet, and it is in this state."""
    which = "id = ? AND fence = ? AND lease_until IS NOT NULL AND state = ?"
    return _kept(db, which, claim.job.id, claim.fence, state)


def _kept(db: DB, which: str, *values: Any) -> _SqliteJob | None:
    row = db.execute(
        f"SELECT number, account, host, state, tries, fence FROM jobs WHERE {which}", values
    ).fetchone()
    return row and _SqliteJob(*row)


def _change(
    db: DB, kept: _SqliteJob, state: JobState, due_at: datetime | None, **columns: Any
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


# reads


def job(db: DB, job_id: str) -> Job | None:
    """Return the job, or None."""
    row = db.execute(
        f"SELECT {JOB_COLUMNS} FROM jobs JOIN accounts ON accounts.number = jobs.account"
        " WHERE jobs.id = ?",
        (job_id,),
    ).fetchone()
    return row and job_of(row)


def jobs(db: DB, account_id: str | None, state: JobState | None, limit: int) -> list[Job]:
    """Return jobs newest first, at most LISTED_MAX; None stands for any account or state."""
    conditions = {
        "jobs.account = (SELECT number FROM accounts WHERE id = ?)": account_id,
        "jobs.state = ?": state,
    }
    asked = {words: value for words, value in conditions.items() if value is not None}
    rows = db.execute(
        f"SELECT {JOB_COLUMNS} FROM jobs JOIN accounts ON accounts.number = jobs.account"
        f" WHERE {' AND '.join(asked) or '1'} ORDER BY jobs.number DESC LIMIT ?",
        (*asked.values(), at_most(LISTED_MAX, limit)),
    )
    return [job_of(row) for row in rows]


def attempts(db: DB, job_id: str) -> list[Attempt]:
    """Return the job's attempts in the order they were logged."""
    rows = db.execute(
        "SELECT job_attempts.number, at, took_ms, status, error"
        " FROM jobs JOIN job_attempts ON job = jobs.number WHERE jobs.id = ? ORDER BY place",
        (job_id,),
    )
    return [attempt_of(row) for row in rows]
