"""Asynchronous verifications and their callbacks: the contract, and the SQL that both databases share.

Creating, claiming and ending a job is each database's own.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TypeVar

from .base.columns import JOB_COLUMNS, attempt_of, job_of, micros
from .callers import callers_of_keys
from .commands import (
    AbandonJob,
    ClaimJobs,
    CreateJob,
    JobAttempted,
    JobVerified,
    PostponeJob,
    ResendJob,
)
from .contract import ID_PREFIX_MIN, LISTED_MAX, RECEIVERS_MAX, at_most
from .database import Database, StorePart, encoded, read, write
from .idempotency import encrypted_first
from .records import (
    Attempt,
    Caller,
    Claim,
    FirstAnswer,
    Job,
    JobOrder,
    JobState,
    Ledger,
    UsageRow,
    Work,
)

R = TypeVar("R")

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


def extend_claim(db: Database, claim: Claim, *, lease_s: float) -> bool:
    """Let the claim end `lease_s` from now; False if it has ended or another claim has the job."""
    now = db.now()
    extended = db.change(
        "UPDATE jobs SET lease_until = :until"
        " WHERE id = :id AND fence = :fence AND lease_until > :now",
        {
            "until": micros(now + timedelta(seconds=lease_s)),
            "id": claim.job.id,
            "fence": claim.fence,
            "now": micros(now),
        },
    )
    return bool(extended)


def find_job(db: Database, job_id: str) -> Job | None:
    """Return the job, or None if there is none with this id."""
    rows = db.all(f"{JOBS} WHERE jobs.id = :id", {"id": job_id})
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


def list_jobs(
    db: Database,
    *,
    account_id: str | None = None,
    state: JobState | None = None,
    host: str | None = None,
    before: str | None = None,
    prefix: str | None = None,
    limit: int,
) -> list[Job]:
    """Return jobs newest first, at most LISTED_MAX; None stands for any.

    `host` is that of a JobOrder with a webhook. With `before`, only jobs that were created
    before the one with this id. With `prefix`, only those whose ids, which are UUIDs, begin
    so: none for fewer than ID_PREFIX_MIN characters.
    """
    first = end = None
    if prefix is not None:
        if (ids := _ids_from(prefix)) is None:
            return []
        first, end = ids
    # Jobs that are not done are few: they are found by their state, not among all of a host.
    host_column = "jobs.host" if state in (None, "done") else "jobs.host || ''"
    conditions = {
        "jobs.account = (SELECT number FROM accounts WHERE id = :account)": account_id,
        "jobs.state = :state": state,
        f"jobs.webhook IS NOT NULL AND {host_column} = :host": host,
        "jobs.number < (SELECT number FROM jobs WHERE id = :before)": before,
        # materialized, so that these few are found by their ids, not among all of the account
        "jobs.number IN (SELECT number FROM found)": prefix,
    }
    asked = [words for words, value in conditions.items() if value is not None]
    rows = db.all(
        f"{FOUND if first else ''}{JOBS} WHERE {' AND '.join(asked) or 'true'} ORDER BY jobs.number DESC LIMIT :limit",
        {
            "account": account_id,
            "state": state,
            "host": host,
            "before": before,
            "first": first,
            "end": end,
            "most": LISTED_MAX,
            "limit": at_most(LISTED_MAX, limit),
        },
    )
    return [job_of(row) for row in rows]


def list_receivers(db: Database, account_id: str) -> list[str]:
    """Return the hosts of the account's jobs with a webhook in order, at most RECEIVERS_MAX."""
    # Each is found in the index behind the one before.
    least = (
        "SELECT min(host) FROM jobs WHERE webhook IS NOT NULL"
        " AND account = (SELECT number FROM accounts WHERE id = :account)"
    )
    rows = db.all(
        f"WITH RECURSIVE found (host) AS ({least} UNION ALL"
        f" SELECT ({least} AND jobs.host > found.host) FROM found WHERE found.host IS NOT NULL)"
        " SELECT host FROM found WHERE host IS NOT NULL LIMIT :limit",
        {"account": account_id, "limit": RECEIVERS_MAX},
    )
    return [host for (host,) in rows]


def list_attempts(db: Database, job_id: str) -> list[Attempt]:
    """Return the job's attempts in the order they were logged, at most the last LISTED_MAX."""
    rows = db.all(
        "SELECT job_attempts.number, at, took_ms, status, error"
        " FROM jobs JOIN job_attempts ON job = jobs.number WHERE jobs.id = :id ORDER BY place",
        {"id": job_id},
    )
    return [attempt_of(row) for row in rows]


def _check_outcome(state: JobState, due_at: datetime | None) -> None:
    """Raise ValueError if the state after an attempt does not fit `due_at`.

    Only a `delivering` job has a `due_at`, and an attempted job is never `pending`.
    """
    if state == "pending" or (state == "delivering") != (due_at is not None):
        raise ValueError(f"a job that was tried cannot be {state} and due at {due_at}")


def job_context(job_id: str) -> str:
    """The context of a job's secret: it cannot be moved to another job."""
    return f"job {job_id}"


def claims_of(db: Database, numbers: Sequence[int]) -> list[tuple[Claim, bytes | None]]:
    """Return the claims of these jobs, in order, without their secrets: each with it, encrypted."""
    found = db.all(
        f"SELECT jobs.number, secret, fence, key, {JOB_COLUMNS} FROM jobs"
        " JOIN accounts ON accounts.number = jobs.account WHERE jobs.number IN"
        f" (SELECT number FROM {db.records('numbers', 'number bigint')} AS claimed)",
        {"numbers": encoded([{"number": number} for number in numbers])},
    )
    callers = callers_of_keys(db, sorted({key for _, _, _, key, *_ in found}))
    claims = {
        number: (Claim(job_of(tuple(row)), callers[key], None, fence), secret)
        for number, secret, fence, key, *row in found
    }
    return [claims[number] for number in numbers]


class JobStore(StorePart):
    """The part of the store that keeps jobs and their attempts."""

    job = read(find_job)
    jobs = read(list_jobs)
    receivers = read(list_receivers)
    attempts = read(list_attempts)
    extend_claim = write(extend_claim)

    async def create_job(
        self,
        caller: Caller,
        order: JobOrder,
        check_limits: Callable[[Ledger], R | None],
        *,
        first: FirstAnswer | None = None,
    ) -> Job | R:
        """Reserve one unit and store the job, in one transaction; like `reserve`, without a lease.

        The reservation lasts while the job is pending; one with `order.payload` counts in the
        window alone. `first` as in `spend`. Raises ValueError for an id that is stored already.
        """
        secret = None
        if order.secret is not None:
            secret = self._cipher.close(order.secret.encode(), job_context(order.id))
        answer = encrypted_first(self._cipher, first)
        return await self._execute(CreateJob(caller, order, secret, check_limits, answer))

    async def claim_jobs(
        self,
        work: Work,
        *,
        limit: int,
        each_max: int,
        lease_s: float,
        account_max: int | None = None,
    ) -> list[Claim]:
        """Claim due jobs for `lease_s`: pending ones to verify, delivering ones to deliver.

        Accounts take turns, the one with the fewest active claims first. Within an account
        the jobs due longest come first, then the oldest; at most `limit` in all
        (mailprobe.storage.base.claim_order). Over all processes at most `each_max` claims of one
        account (verify) or of one account's host (deliver), and `account_max` of one
        account, are active at a time; one of a host whose last FAILING_AFTER attempts
        failed. Calls of a host that have taken longer than HANGS_AFTER do not count towards the
        account's limit; such a host has HANGING_EACH_MAX, after the account's others.
        An account or a host at its limit does not delay the others. If nothing is
        due, nothing is written. A claim ends with its outcome: a second outcome for it
        changes nothing.
        """
        claimed = await self._execute(
            ClaimJobs(work, max(0, limit), each_max, lease_s, account_max)
        )
        return [
            self._with_secret(claim, secret, job_context(claim.job.id)) for claim, secret in claimed
        ]

    async def job_verified(
        self, claim: Claim, row: UsageRow, payload: bytes, *, emit_meter_event: bool = False
    ) -> bool:
        """Count the verification, end the reservation and make the callback due, all or nothing.

        `payload` is the callback's body; without a webhook the job is done. False, and nothing is
        changed, if a later claim has the job, this one has had its outcome, or the job is not
        pending. A claim whose lease has ended still counts if no other claim followed it.
        """
        return await self._execute(JobVerified(claim, row, payload, emit_meter_event))

    async def job_attempted(
        self, claim: Claim, attempt: Attempt, *, state: JobState, due_at: datetime | None
    ) -> bool:
        """Log the callback attempt; the job is due again at `due_at`, or it ends (None).

        False as with `job_verified`, for a job that is not delivering. Raises
        ValueError for `pending`, for `delivering` without `due_at`, for an end with it.
        """
        _check_outcome(state, due_at)
        return await self._execute(JobAttempted(claim, attempt, state, due_at))

    async def postpone_job(self, claim: Claim, due_at: datetime) -> bool:
        """Verify a pending job again at `due_at`: nothing is counted, its unit stays reserved.

        False as with `job_verified`. The job's `tries` counts its verifications.
        """
        return await self._execute(PostponeJob(claim, due_at))

    async def abandon_job(self, claim: Claim) -> bool:
        """End a pending job as failed: not counted, its unit given back, no callback.

        False as with `job_verified`.
        """
        return await self._execute(AbandonJob(claim))

    async def resend_job(self, job_id: str) -> Job | None:
        """Make the callback due at once, with all attempts; None without a payload or a webhook.

        An attempt that is in progress is not disturbed, and its outcome no longer counts.
        A job that has ended is delivering again.
        """
        return await self._execute(ResendJob(job_id))
