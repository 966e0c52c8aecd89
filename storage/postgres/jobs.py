"""Transactions of jobs, in SQL; claims and outcomes have modules of their own."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from mailprobe.storage.columns import JOB_COLUMNS, attempt_of, job_of, micros
from mailprobe.storage.commands import ExtendClaim, FindJob, ListAttempts, ListJobs, ResendJob
from mailprobe.storage.postgres.driver.server import TransactionSession
from mailprobe.storage.records import Attempt, Job


def kept_of(db: TransactionSession, ids: Sequence[str]) -> set[str]:
    """Return those of the ids that are stored already."""
    return {id for (id,) in db.all("SELECT id FROM jobs WHERE id = ANY(%s)", [list(ids)])}


def keep(db: TransactionSession, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert jobs, with columns in the statement's order; the caller has locked the accounts."""
    db.execute(
        "INSERT INTO jobs (id, account, key, email, webhook, host, secret, state, created_at,"
        " due_at, payload, ended_at, recheck) SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[],"
        " %s::text[], %s::text[], %s::text[], %s::bytea[], %s::text[], %s::bigint[], %s::bigint[],"
        " %s::bytea[], %s::bigint[], %s::bigint[])",
        [list(column) for column in zip(*rows, strict=True)],
    )
    states = [(account, state) for _, account, _, _, _, _, _, state, *_ in rows]
    pending = Counter(account for account, state in states if state == "pending")
    undelivered = Counter(account for account, state in states if state != "done")
    count(db, pending, undelivered)


def count(
    db: TransactionSession, pending: Mapping[int, int], undelivered: Mapping[int, int]
) -> None:
    """Add to the accounts' counters of pending and undelivered jobs, which save counting rows."""
    accounts = sorted({*pending, *undelivered})
    if not accounts:
        return
    db.execute(
        "INSERT INTO job_backlogs (account, jobs, undelivered)"
        " SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[])"
        " ON CONFLICT (account) DO UPDATE SET jobs = job_backlogs.jobs + excluded.jobs,"
        " undelivered = job_backlogs.undelivered + excluded.undelivered",
        [
            accounts,
            [pending.get(account, 0) for account in accounts],
            [undelivered.get(account, 0) for account in accounts],
        ],
    )


def extend(db: TransactionSession, command: ExtendClaim) -> bool:
    now = db.now()
    extended = db.execute(
        "UPDATE jobs SET lease_until = %s WHERE id = %s AND fence = %s AND lease_until > %s",
        [
            micros(now + timedelta(seconds=command.lease_s)),
            command.claim.job.id,
            command.claim.fence,
            micros(now),
        ],
    )
    return bool(extended.rowcount)


def resend(db: TransactionSession, command: ResendJob) -> Job | None:
    before = db.one(
        "SELECT account, state FROM jobs WHERE id = %s AND payload IS NOT NULL"
        " AND webhook IS NOT NULL FOR UPDATE",
        [command.job_id],
    )
    if before is None:
        return None
    account, state = before
    db.execute(
        "UPDATE jobs SET state = 'delivering', due_at = %s, lease_until = NULL, tries = 0,"
        " fence = fence + 1, ended_at = NULL WHERE id = %s",
        [micros(db.now()), command.job_id],
    )
    if state != "delivering":
        count(db, {}, {account: 1})
    return find(db, FindJob(command.job_id))


# reads


def find(db: TransactionSession, command: FindJob) -> Job | None:
    row = db.one(
        f"SELECT {JOB_COLUMNS} FROM jobs JOIN accounts ON accounts.number = jobs.account"
        " WHERE jobs.id = %s",
        [command.job_id],
    )
    return row and job_of(row)


def list_jobs(db: TransactionSession, command: ListJobs) -> list[Job]:
    conditions = {
        "jobs.account = (SELECT number FROM accounts WHERE id = %s)": command.account_id,
        "jobs.state = %s": command.state,
    }
    asked = {words: value for words, value in conditions.items() if value is not None}
    rows = db.all(
        f"SELECT {JOB_COLUMNS} FROM jobs JOIN accounts ON accounts.number = jobs.account"
        f" WHERE {' AND '.join(asked) or 'true'} ORDER BY jobs.number DESC LIMIT %s",
        [*asked.values(), command.limit],
    )
    return [job_of(row) for row in rows]


def list_attempts(db: TransactionSession, command: ListAttempts) -> list[Attempt]:
    rows = db.all(
        "SELECT job_attempts.number, at, took_ms, status, error"
        " FROM jobs JOIN job_attempts ON job = jobs.number WHERE jobs.id = %s ORDER BY place",
        [command.job_id],
    )
    return [attempt_of(row) for row in rows]
