"""Extending a claim of a job, and reading jobs; the other transactions are each database's own."""

from datetime import timedelta
from itertools import pairwise

from mailprobe.storage.base.columns import JOB_COLUMNS, attempt_of, job_of, micros
from mailprobe.storage.commands import ExtendClaim, FindJob, ListAttempts, ListJobs, ListReceivers
from mailprobe.storage.contract import ID_PREFIX_MIN, LISTED_MAX, RECEIVERS_MAX
from mailprobe.storage.database import Database
from mailprobe.storage.records import Attempt, Job

# SQL for the host part of a job's partition.
HOST_OF = {"pending": "''", "delivering": "host"}
DIGITS = "0123456789abcdef"
ID = "00000000-0000-0000-0000-000000000000"
# The next digit of an id in each order that a database may have of texts.
AFTER = dict(pairwise(f"{DIGITS}g"))
FOUND = (
    "WITH found AS MATERIALIZED (SELECT number FROM jobs WHERE id >= :first AND id < :end"
    " ORDER BY id LIMIT :most) "
)
JOBS = f"SELECT {JOB_COLUMNS} FROM jobs JOIN accounts ON accounts.number = jobs.account"


def extend(db: Database, command: ExtendClaim) -> bool:
    """Let the claim end `lease_s` from now; False if it has ended."""
    now = db.now()
    extended = db.change(
        "UPDATE jobs SET lease_until = :until"
        " WHERE id = :id AND fence = :fence AND lease_until > :now",
        {
            "until": micros(now + timedelta(seconds=command.lease_s)),
            "id": command.claim.job.id,
            "fence": command.claim.fence,
            "now": micros(now),
        },
    )
    return bool(extended)


def find(db: Database, command: FindJob) -> Job | None:
    rows = db.all(f"{JOBS} WHERE jobs.id = :id", {"id": command.job_id})
    return job_of(rows[0]) if rows else None


def _ids_from(prefix: str) -> tuple[str, str] | None:
    """The ids that begin so: from the first on, and before the second; None if there are none."""
    wanted = prefix.lower()
    fits = all(
        each in (DIGITS if of_id == "0" else "-") for each, of_id in zip(wanted, ID, strict=False)
    )
    if not (fits and ID_PREFIX_MIN <= len(wanted) <= len(ID)):
        return None
    first = wanted.rstrip("-")
    return first, first[:-1] + AFTER[first[-1]]


def list_jobs(db: Database, command: ListJobs) -> list[Job]:
    """Return jobs newest first, at most LISTED_MAX; None stands for any."""
    first = end = None
    if command.prefix is not None:
        if (ids := _ids_from(command.prefix)) is None:
            return []
        first, end = ids
    # Jobs that are not done are few: they are found by their state, not among all of a host.
    host = "jobs.host" if command.state in (None, "done") else "jobs.host || ''"
    conditions = {
        "jobs.account = (SELECT number FROM accounts WHERE id = :account)": command.account_id,
        "jobs.state = :state": command.state,
        f"jobs.webhook IS NOT NULL AND {host} = :host": command.host,
        "jobs.number < (SELECT number FROM jobs WHERE id = :before)": command.before,
        # materialized, so that these few are found by their ids, not among all of the account
        "jobs.number IN (SELECT number FROM found)": command.prefix,
    }
    asked = [words for words, value in conditions.items() if value is not None]
    rows = db.all(
        f"{FOUND if first else ''}{JOBS} WHERE {' AND '.join(asked) or 'true'} ORDER BY jobs.number DESC LIMIT :limit",
        {
            "account": command.account_id,
            "state": command.state,
            "host": command.host,
            "before": command.before,
            "first": first,
            "end": end,
            "most": LISTED_MAX,
            "limit": command.limit,
        },
    )
    return [job_of(row) for row in rows]


def list_receivers(db: Database, command: ListReceivers) -> list[str]:
    """Return the account's hosts: each is found in the index behind the one before."""
    least = (
        "SELECT min(host) FROM jobs WHERE webhook IS NOT NULL"
        " AND account = (SELECT number FROM accounts WHERE id = :account)"
    )
    rows = db.all(
        f"WITH RECURSIVE found (host) AS ({least} UNION ALL"
        f" SELECT ({least} AND jobs.host > found.host) FROM found WHERE found.host IS NOT NULL)"
        " SELECT host FROM found WHERE host IS NOT NULL LIMIT :limit",
        {"account": command.account_id, "limit": RECEIVERS_MAX},
    )
    return [host for (host,) in rows]


def list_attempts(db: Database, command: ListAttempts) -> list[Attempt]:
    """Return the job's attempts in the order they were logged."""
    rows = db.all(
        "SELECT job_attempts.number, at, took_ms, status, error"
        " FROM jobs JOIN job_attempts ON job = jobs.number WHERE jobs.id = :id ORDER BY place",
        {"id": command.job_id},
    )
    return [attempt_of(row) for row in rows]
