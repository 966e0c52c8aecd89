"""Outcomes of claimed jobs, many at once, in SQL; the caller has locked the accounts.

The jobs' rows are locked in the order of their numbers, so that no claim and no other
outcome comes between. A claim ends with its outcome.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..base.columns import micros
from ..commands import AbandonJob, JobAttempted, JobVerified, Outcome, PostponeJob
from ..contract import LISTED_MAX
from ..records import Attempt, JobState, state_with_result
from .driver.server import TransactionConnection

HOLD = (
    "SELECT id, number, account, host, state, tries, fence FROM jobs"
    " WHERE id = ANY(%s) AND lease_until IS NOT NULL ORDER BY number FOR UPDATE"
)
CHANGE = (
    "UPDATE jobs SET state = changed.state, due_at = changed.due_at, tries = changed.tries,"
    " ended_at = changed.ended_at, payload = coalesce(changed.payload, jobs.payload),"
    " lease_until = NULL"
    " FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[])"
    " AS changed (number, state, due_at, tries, ended_at, payload)"
    " WHERE jobs.number = changed.number"
)
LAST = "SELECT job, max(place) FROM job_attempts WHERE job = ANY(%s) GROUP BY job"
LOG = (
    "INSERT INTO job_attempts (job, place, number, at, took_ms, status, error)"
    " SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],"
    " %s::bigint[], %s::text[])"
)
RELEASE_CLAIM = (
    "DELETE FROM job_attempts USING unnest(%s::bigint[], %s::bigint[]) AS logged (job, last)"
    " WHERE job_attempts.job = logged.job AND place <= last"
)


DELIVERED = "DELETE FROM receivers WHERE account = %(account)s AND host = %(host)s"
FAILED = (
    "INSERT INTO receivers (account, host, failures, tried_at)"
    " VALUES (%(account)s, %(host)s, 1, %(now)s) ON CONFLICT (account, host) DO UPDATE"
    " SET failures = receivers.failures + 1, tried_at = excluded.tried_at"
)


@dataclass(frozen=True, slots=True)
class _OutcomeJob:
    """A claimed job's row, locked."""

    number: int
    account: int
    host: str
    state: JobState
    tries: int
    fence: int


def held(
    db: TransactionConnection, outcomes: Sequence[Outcome]
) -> list[tuple[Outcome, _OutcomeJob] | None]:
    """Lock and return the job of each outcome; None if the claim is not current or the state is wrong."""
    rows = db.all(HOLD, [[outcome.claim.job.id for outcome in outcomes]])
    kept = {id: _OutcomeJob(*row) for id, *row in rows}
    found: list[tuple[Outcome, _OutcomeJob] | None] = []
    for outcome in outcomes:
        job = kept.get(outcome.claim.job.id)
        state = "delivering" if isinstance(outcome, JobAttempted) else "pending"
        if job is None or (job.fence, job.state) != (outcome.claim.fence, state):
            found.append(None)
            continue
        del kept[outcome.claim.job.id]
        found.append((outcome, job))
    return found


def ends(outcome: Outcome) -> bool:
    """Return whether the job has ended with this outcome."""
    match outcome:
        case JobVerified(claim=claim):
            return state_with_result(claim.job.webhook) == "done"
        case AbandonJob():
            return True
        case PostponeJob():
            return False
        case JobAttempted(due_at=due_at):
            return due_at is None


def write(
    db: TransactionConnection, now: datetime, those: Sequence[tuple[Outcome, _OutcomeJob]]
) -> None:
    """Write the jobs' new states and the attempts. The caller logs what was used."""
    if not those:
        return
    changed = [_change(now, outcome, kept) for outcome, kept in those]
    db.execute(CHANGE, [list(column) for column in zip(*changed, strict=True)])
    tried = [(kept.number, each.attempt) for each, kept in those if isinstance(each, JobAttempted)]
    if tried:
        _log(db, tried)
        _record_attempts(
            db, now, [(kept, each.state) for each, kept in those if isinstance(each, JobAttempted)]
        )


def _record_attempts(
    db: TransactionConnection, now: datetime, tried: Sequence[tuple[_OutcomeJob, JobState]]
) -> None:
    """Count each receiver's consecutive failed attempts, in the order of the batch."""
    for kept, state in tried:
        partition = {"account": kept.account, "host": kept.host, "now": micros(now)}
        db.execute(DELIVERED if state == "done" else FAILED, partition)


def _change(now: datetime, outcome: Outcome, kept: _OutcomeJob) -> tuple[object, ...]:
    at = micros(now)
    match outcome:
        case JobVerified(claim=claim, payload=payload):
            if state_with_result(claim.job.webhook) == "done":
                return kept.number, "done", None, 0, at, payload
            return kept.number, "delivering", at, 0, None, payload
        case PostponeJob(due_at=due_at):
            return kept.number, "pending", micros(due_at), kept.tries + 1, None, None
        case AbandonJob():
            return kept.number, "failed", None, kept.tries, at, None
        case JobAttempted(state=state, due_at=due_at):
            due = None if due_at is None else micros(due_at)
            return kept.number, state, due, kept.tries + 1, None if due_at else at, None


def _log(db: TransactionConnection, tried: Sequence[tuple[int, Attempt]]) -> None:
    """Insert attempts, and delete those beyond LISTED_MAX, which are never shown."""
    last: dict[int, int] = dict(db.all(LAST, [[number for number, _ in tried]]))
    rows = [
        (
            *(job, last.get(job, 0) + 1, attempt.number, micros(attempt.at), attempt.took_ms),
            *(attempt.status, attempt.error),
        )
        for job, attempt in tried
    ]
    db.execute(LOG, [list(column) for column in zip(*rows, strict=True)])
    jobs = [job for job, *_ in rows]
    db.execute(RELEASE_CLAIM, [jobs, [place - LISTED_MAX for _, place, *_ in rows]])
