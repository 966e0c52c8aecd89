"""The transactions of jobs, as SQL; claims and outcomes have modules of their own."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from storage.postgres_server import Session
from storage.records import (
    Attempt,
    Claim,
    Job,
    JobState,
)
from storage.rows import JOB_COLUMNS, attempt_of, job_of, micros
from storage.store import LISTED_MAX, at_most


def kept_of(db: Session, ids: Sequence[str]) -> set[str]:
    """Which of these ids are taken."""
    return {id for (id,) in db.all("SELECT id FROM jobs WHERE id = ANY(%s)", [list(ids)])}


def keep(db: Session, rows: Sequence[tuple[Any, ...]]) -> None:
    """New ones, as their columns stand in the statement; their accounts are held."""
    db.execute(
        "INSERT INTO jobs (id, account, key, email, webhook, host, secret, state, created_at,"
        " due_at) SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::text[],"
        " %s::text[], %s::text[], %s::bytea[], %s::text[], %s::bigint[], %s::bigint[])",
        [list(column) for column in zip(*rows, strict=True)],
    )
    promise(db, Counter(account for _, account, *_ in rows))


def promise(db: Session, changes: dict[int, int]) -> None:
    """What an account has reserved by its pending jobs is known without counting them."""
    if not changes:
        return
    db.execute(
        "INSERT INTO promises (account, jobs) SELECT * FROM unnest(%s::bigint[], %s::bigint[])"
        " ON CONFLICT (account) DO UPDATE SET jobs = promises.jobs + excluded.jobs",
        [list(changes), list(changes.values())],
    )


def extend(db: Session, claim: Claim, lease_s: float) -> bool:
    now = db.now()
    extended = db.execute(
        "UPDATE jobs SET lease_until = %s WHERE id = %s AND fence = %s AND lease_until > %s",
        [micros(now + timedelta(seconds=lease_s)), claim.job.id, claim.fence, micros(now)],
    )
    return bool(extended.rowcount)


def resend(db: Session, job_id: str) -> Job | None:
    resent = db.execute(
        "UPDATE jobs SET state = 'delivering', due_at = %s, lease_until = NULL, tries = 0,"
        " fence = fence + 1, ended_at = NULL WHERE id = %s AND payload IS NOT NULL",
        [micros(db.now()), job_id],
    )
    return job(db, job_id) if resent.rowcount else None


# seen


def job(db: Session, job_id: str) -> Job | None:
    row = db.one(
        f"SELECT {JOB_COLUMNS} FROM jobs JOIN accounts ON accounts.number = jobs.account"
        " WHERE jobs.id = %s",
        [job_id],
    )
    return row and job_of(row)


def jobs(db: Session, account_id: str | None, state: JobState | None, limit: int) -> list[Job]:
    conditions = {
        "jobs.account = (SELECT number FROM accounts WHERE id = %s)": account_id,
        "jobs.state = %s": state,
    }
    asked = {words: value for words, value in conditions.items() if value is not None}
    rows = db.all(
        f"SELECT {JOB_COLUMNS} FROM jobs JOIN accounts ON accounts.number = jobs.account"
        f" WHERE {' AND '.join(asked) or 'true'} ORDER BY jobs.number DESC LIMIT %s",
        [*asked.values(), at_most(LISTED_MAX, limit)],
    )
    return [job_of(row) for row in rows]


def attempts(db: Session, job_id: str) -> list[Attempt]:
    rows = db.all(
        "SELECT attempts.number, at, took_ms, status, error"
        " FROM jobs JOIN attempts ON job = jobs.number WHERE jobs.id = %s ORDER BY place",
        [job_id],
    )
    return [attempt_of(row) for row in rows]
