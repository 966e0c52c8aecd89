"""Transactions of jobs, in SQL; claims and outcomes have modules of their own."""

from collections import Counter
from collections.abc import Mapping, Sequence

from ..base.columns import NEW_JOB_COLUMNS, micros
from ..commands import ResendJob
from ..database import Row
from ..jobs import find_job
from ..records import Job
from .database import PostgresDatabase
from .driver.server import TransactionConnection


def kept_of(db: TransactionConnection, ids: Sequence[str]) -> set[str]:
    """Return those of the ids that are stored already."""
    return {id for (id,) in db.all("SELECT id FROM jobs WHERE id = ANY(%s)", [list(ids)])}


def keep(db: TransactionConnection, rows: Sequence[Row]) -> None:
    """Insert jobs, with columns in the statement's order; the caller has locked the accounts."""
    db.execute(
        f"INSERT INTO jobs ({NEW_JOB_COLUMNS}) SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[],"
        " %s::text[], %s::text[], %s::text[], %s::bytea[], %s::text[], %s::bigint[], %s::bigint[],"
        " %s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[], %s::text[])",
        [list(column) for column in zip(*rows, strict=True)],
    )
    states = [(account, state) for _, account, _, _, _, _, _, state, *_ in rows]
    pending = Counter(account for account, state in states if state == "pending")
    undelivered = Counter(account for account, state in states if state != "done")
    count(db, pending, undelivered)


def count(
    db: TransactionConnection, pending: Mapping[int, int], undelivered: Mapping[int, int]
) -> None:
    """Add to the accounts' counters of pending and undelivered jobs, which save counting rows."""
    accounts = sorted({*pending, *undelivered})
    if not accounts:
        return
    db.execute(
        "INSERT INTO job_backlogs (account, pending, undelivered)"
        " SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[])"
        " ON CONFLICT (account) DO UPDATE SET pending = job_backlogs.pending + excluded.pending,"
        " undelivered = job_backlogs.undelivered + excluded.undelivered",
        [
            accounts,
            [pending.get(account, 0) for account in accounts],
            [undelivered.get(account, 0) for account in accounts],
        ],
    )


def resend(db: TransactionConnection, command: ResendJob) -> Job | None:
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
    return find_job(PostgresDatabase(db), command.job_id)
