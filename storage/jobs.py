"""Asynchronous verifications and their callbacks: the contract, and the SQL that both databases share.

Claiming a job is each database's own.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TypeVar

from msgspec import Struct

from .base.columns import JOB_COLUMNS, attempt_of, column, job_of, micros
from .callers import callers_of_keys
from .commands import (
    AbandonJob,
    ClaimJobs,
    CreateJob,
    JobAttempted,
    JobVerified,
    Outcome,
    PostponeJob,
)
from .contract import ID_PREFIX_MIN, LISTED_MAX, RECEIVERS_MAX, at_most
from .database import Database, JobMove, Row, RowInsert, StorePart, Values, encoded, read, write
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
    state_with_result,
)

R = TypeVar("R")

STATE_OF: dict[Work, JobState] = {"verify": "pending", "deliver": "delivering"}
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
    return bool(
        db.change(
            "UPDATE jobs SET lease_until = :until"
            " WHERE id = :id AND fence = :fence AND lease_until > :now",
            {
                "until": micros(now + timedelta(seconds=lease_s)),
                "id": claim.job.id,
                "fence": claim.fence,
                "now": micros(now),
            },
        )
    )


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
    """Return the claims of these jobs without their secrets, each with it, encrypted."""
    found = db.all_each(
        f"SELECT secret, fence, key, {JOB_COLUMNS} FROM jobs"
        " JOIN accounts ON accounts.number = jobs.account WHERE jobs.number = :number",
        [{"number": number} for number in numbers],
    )
    callers = callers_of_keys(db, sorted({key for ((_, _, key, *_),) in found}))
    return [
        (Claim(job_of(tuple(row)), callers[key], None, fence), secret)
        for ((secret, fence, key, *row),) in found
    ]


# what a claim leads to


NEW_JOBS = RowInsert(
    "jobs",
    "id text, account bigint, key bigint, email text, webhook text, host text, secret bytea,"
    " state text, created_at bigint, due_at bigint, payload bytea, ended_at bigint, recheck bigint,"
    " asks_hosts bigint, trace text",
)
ATTEMPTS = RowInsert(
    "job_attempts",
    "job bigint, place bigint, number bigint, at bigint, took_ms bigint, status bigint, error text",
)
ROW = "number, account, host, state, tries, fence"


def new_job_values(job: Job, account: int, key: int, secret: bytes | None) -> Row:
    """The values of NEW_JOBS."""
    return (
        job.id, account, key, job.email, job.webhook, job.host, secret, job.state,
        micros(job.created_at), column(job.due_at), job.payload, column(job.ended_at),
        int(job.recheck), int(job.asks_hosts), job.trace,
    )  # fmt: skip


def insert_jobs(db: Database, rows: Sequence[Row]) -> None:
    """Insert jobs, each with the values of NEW_JOBS."""
    db.insert(NEW_JOBS, rows)
    db.count_jobs(
        [JobMove(account, host, None, state) for _, account, _, _, _, host, _, state, *_ in rows]
    )


class JobRow(Struct, frozen=True):
    """A job's row, which is locked."""

    number: int
    account: int
    host: str
    state: JobState
    tries: int
    fence: int


def held_jobs(db: Database, outcomes: Sequence[Outcome]) -> list[JobRow | None]:
    """Lock and return the job of each outcome; None if its claim does not count, or for another state.

    A claim counts if it is the job's last and had no outcome yet. The rows are locked in the order of
    their numbers, so that no claim and no other outcome comes between.
    """
    rows = db.all(
        f"SELECT id, {ROW} FROM jobs WHERE lease_until IS NOT NULL"
        f" AND id {db.among('ids', 'text')} ORDER BY number{db.FOR_UPDATE}",
        {"ids": encoded([outcome.claim.job.id for outcome in outcomes])},
    )
    jobs = {id: JobRow(*row) for id, *row in rows}
    found: list[JobRow | None] = []
    for outcome in outcomes:
        job = jobs.get(outcome.claim.job.id)
        state = "delivering" if isinstance(outcome, JobAttempted) else "pending"
        if job is None or (job.fence, job.state) != (outcome.claim.fence, state):
            found.append(None)
            continue
        del jobs[outcome.claim.job.id]
        found.append(job)
    return found


def write_outcomes(db: Database, now: datetime, those: Sequence[tuple[Outcome, JobRow]]) -> None:
    """Write the jobs' new states and the attempts. The caller logs what was used."""
    if not those:
        return
    _change(db, [(job, _changed(now, outcome, job)) for outcome, job in those])
    tried = [(job, each) for each, job in those if isinstance(each, JobAttempted)]
    if tried:
        _log_attempts(db, [(job.number, each.attempt) for job, each in tried])
    for job, each in tried:
        _count_failures(db, now, job, failed=each.state != "done")


def _changed(now: datetime, outcome: Outcome, job: JobRow) -> Values:
    """The columns that the outcome changes."""
    at = micros(now)
    match outcome:
        case JobVerified(claim=claim, payload=payload):
            state = state_with_result(claim.job.webhook)
            due_at, ended_at = (None, at) if state == "done" else (at, None)
            return _columns(state, due_at, 0, ended_at, payload)
        case PostponeJob(due_at=later):
            return _columns("pending", micros(later), job.tries + 1, None)
        case AbandonJob():
            return _columns("failed", None, job.tries, at)
        case JobAttempted(state=state, due_at=again):
            due_at, ended_at = (micros(again), None) if again else (None, at)
            return _columns(state, due_at, job.tries + 1, ended_at)


def _columns(
    state: JobState,
    due_at: int | None,
    tries: int,
    ended_at: int | None,
    payload: bytes | None = None,
) -> Values:
    return {
        "state": state, "due_at": due_at, "tries": tries, "ended_at": ended_at, "payload": payload,
    }  # fmt: skip


def _change(db: Database, changes: Sequence[tuple[JobRow, Values]]) -> None:
    """Change jobs; their claims end. A payload of None stays as it is."""
    db.change_each(
        "UPDATE jobs SET state = :state, due_at = :due_at, tries = :tries, ended_at = :ended_at,"
        " payload = coalesce(:payload, payload), lease_until = NULL WHERE number = :number",
        [{**columns, "number": job.number} for job, columns in changes],
    )
    db.count_jobs(
        [JobMove(job.account, job.host, job.state, columns["state"]) for job, columns in changes]
    )


def _log_attempts(db: Database, tried: Sequence[tuple[int, Attempt]]) -> None:
    """Insert attempts, and delete those beyond LISTED_MAX, which are never shown."""
    jobs = sorted({number for number, _ in tried})
    found = db.all_each(
        "SELECT coalesce(max(place), 0) FROM job_attempts WHERE job = :job",
        [{"job": number} for number in jobs],
    )
    last = {number: place for number, ((place,),) in zip(jobs, found, strict=True)}
    places = [(job, last[job] + 1, attempt) for job, attempt in tried]
    db.insert(
        ATTEMPTS,
        [
            (job, place, each.number, micros(each.at), each.took_ms, each.status, each.error)
            for job, place, each in places
        ],
    )
    db.change_each(
        "DELETE FROM job_attempts WHERE job = :job AND place <= :last",
        [
            {"job": job, "last": place - LISTED_MAX}
            for job, place, _ in places
            if place > LISTED_MAX
        ],
    )


def _count_failures(db: Database, now: datetime, job: JobRow, *, failed: bool) -> None:
    """Count a receiver's consecutive failed attempts; a success resets them."""
    receiver = {"account": job.account, "host": job.host}
    if not failed:
        db.change("DELETE FROM receivers WHERE account = :account AND host = :host", receiver)
        return
    db.change(
        "INSERT INTO receivers (account, host, failures, tried_at)"
        " VALUES (:account, :host, 1, :now) ON CONFLICT (account, host) DO UPDATE"
        " SET failures = receivers.failures + 1, tried_at = excluded.tried_at",
        {**receiver, "now": micros(now)},
    )


def resend_job(db: Database, job_id: str) -> Job | None:
    """Make the callback due at once, with all attempts; None without a payload or a webhook.

    An attempt that is in progress is not disturbed, and its outcome no longer counts.
    A job that has ended is delivering again.
    """
    rows = db.all(
        f"SELECT {ROW} FROM jobs WHERE id = :id AND payload IS NOT NULL AND webhook IS NOT NULL"
        + db.FOR_UPDATE,
        {"id": job_id},
    )
    if not rows:
        return None
    job = JobRow(*rows[0])
    db.change("UPDATE jobs SET fence = fence + 1 WHERE number = :number", {"number": job.number})
    _change(db, [(job, _columns("delivering", micros(db.now()), 0, None))])
    return find_job(db, job_id)


class JobStore(StorePart):
    """The part of the store that keeps jobs and their attempts."""

    job = read(find_job)
    jobs = read(list_jobs)
    receivers = read(list_receivers)
    attempts = read(list_attempts)
    extend_claim = write(extend_claim)
    resend_job = write(resend_job)

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
        answer = None if first is None else encrypted_first(self._cipher, first)
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
