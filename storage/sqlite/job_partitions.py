"""Job partitions, in SQL: waiting jobs by what a claim's limit applies to.

A partition is an account's pending jobs, or those to be delivered to one of its
receivers. `job_partitions` holds each partition's number of jobs and the due time of its
first unclaimed one; `job_backlogs` holds the same per account. So a claim costs in
proportion to what it takes, however many jobs wait behind a full partition or account
and however many are claimed; and the units that an account's jobs have reserved are
known without counting.
"""

import heapq
import sqlite3
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache

from ..base.claim_order import (
    FAILING_AFTER,
    HANGS_AFTER,
    ClaimBounds,
    Head,
    Partition,
    claim_in_turn,
)
from ..base.columns import micros
from ..jobs import HOST_OF, STATE_OF
from ..records import JobState, Work
from ..retention import latest

DB = sqlite3.Connection
# The state is a literal: SQLite uses a partial index only if it can read the condition.
WAITING: dict[JobState, str] = {
    "pending": "jobs WHERE state = 'pending' AND account = :account AND lease_until IS NULL",
    "delivering": "jobs WHERE state = 'delivering' AND account = :account AND host = :host"
    " AND lease_until IS NULL",
}


def renew(db: DB, state: JobState, partition: Partition, change: int = 0) -> None:
    """Update a partition after `change` jobs were added (or removed), or one was claimed.

    The rows of jobs must be written already.
    """
    place = {"state": state, "account": partition.account, "host": partition.host, "change": change}
    db.execute(
        "INSERT INTO job_partitions (state, account, host, jobs, due_at) VALUES"
        f" (:state, :account, :host, :change, (SELECT min(due_at) FROM {WAITING[state]}))"
        " ON CONFLICT (state, account, host) DO UPDATE"
        " SET jobs = jobs + :change, due_at = excluded.due_at",
        place,
    )
    if change < 0:
        db.execute(
            "DELETE FROM job_partitions WHERE state = :state AND account = :account AND host = :host"
            " AND jobs = 0",
            place,
        )
    db.execute(
        f"INSERT INTO job_backlogs (account, pending, undelivered, {state}_due_at) VALUES (:account,"
        " :pending, :change, (SELECT min(due_at) FROM job_partitions WHERE state = :state"
        " AND account = :account AND due_at IS NOT NULL)) ON CONFLICT (account) DO UPDATE"
        " SET pending = pending + excluded.pending,"
        " undelivered = undelivered + excluded.undelivered,"
        f" {state}_due_at = excluded.{state}_due_at",
        {**place, "pending": change if state == "pending" else 0},
    )


def due(
    db: DB, now: datetime, work: Work, limit: int, each_max: int, account_max: int | None
) -> list[Head]:
    """Return the jobs that a claim would take, accounts in turn."""
    state = STATE_OF[work]
    held, hanging = _claimed(db, now, state)
    left = _left_behind(db, now, state)

    @cache
    def partition_max(partition: Partition) -> int:
        return min(1, each_max) if partition.host and _fails(db, partition) else each_max

    def heads_of(account: int) -> Iterator[Head]:
        heads = sorted(left.get(account, ()))
        return _heads(
            db,
            now,
            state,
            account,
            heads,
            lambda partition: partition_max(partition) - held.get(partition, 0),
        )

    first_due = _first_due(db, now, state)
    for account, heads in left.items():
        first = min(heads).due_at
        first_due[account] = min(first_due.get(account, first), first)
    return claim_in_turn(
        first_due, heads_of, held, hanging, ClaimBounds(limit, partition_max, account_max)
    )


def _heads(
    db: DB,
    now: datetime,
    state: JobState,
    account: int,
    heads: list[Head],
    free_in: Callable[[Partition], int],
) -> Iterator[Head]:
    """Yield an account's jobs, those due longest first; a partition is read only when needed."""
    partitions = db.execute(
        "SELECT due_at, host FROM job_partitions WHERE state = ? AND account = ? AND due_at <= ?"
        " ORDER BY due_at",
        (state, account, micros(now)),
    )
    following = next(partitions, None)
    while True:
        while following and (not heads or following[0] <= heads[0].due_at):
            partition = Partition(account, following[1])
            for head in _first(db, now, state, partition, free_in(partition)):
                heapq.heappush(heads, head)
            following = next(partitions, None)
        if not heads:
            return
        yield heapq.heappop(heads)


def _first_due(db: DB, now: datetime, state: JobState) -> dict[int, int]:
    """Return the accounts with due jobs, each with the due time of its first."""
    column = f"{state}_due_at"
    rows = db.execute(
        f"SELECT account, {column} FROM job_backlogs WHERE {column} <= ?", (micros(now),)
    )
    return dict(rows.fetchall())


def _claimed(
    db: DB, now: datetime, state: JobState
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Return the active claims per partition, over all processes, and those of calls that hang."""
    rows = db.execute(
        f"SELECT account, {HOST_OF[state]}, count(*), coalesce(sum(claimed_at <= ?), 0) FROM jobs"
        " WHERE state = ? AND lease_until > ? GROUP BY 1, 2",
        (micros(now - HANGS_AFTER), state, micros(now)),
    ).fetchall()
    held = {Partition(account, host): count for account, host, count, _ in rows}
    hanging = {Partition(account, host): hang for account, host, _, hang in rows if host and hang}
    return held, hanging


def _left_behind(db: DB, now: datetime, state: JobState) -> dict[int, list[Head]]:
    """Return jobs whose claim ended without an outcome: those of processes that were killed."""
    rows = db.execute(
        f"SELECT due_at, number, account, {HOST_OF[state]} FROM jobs"
        " WHERE state = ? AND lease_until <= ?",
        (state, micros(now)),
    )
    left: dict[int, list[Head]] = {}
    for due_at, number, account, host in rows:
        left.setdefault(account, []).append(Head(due_at, number, Partition(account, host)))
    return left


def _first(db: DB, now: datetime, state: JobState, partition: Partition, most: int) -> list[Head]:
    """Return the partition's first waiting jobs."""
    if most <= 0:
        return []
    rows = db.execute(
        f"SELECT due_at, number FROM {WAITING[state]} AND due_at <= :now"
        " ORDER BY due_at, number LIMIT :most",
        {"account": partition.account, "host": partition.host, "now": micros(now), "most": most},
    )
    return [Head(due_at, number, partition) for due_at, number in rows.fetchall()]


# receivers


def _fails(db: DB, partition: Partition) -> bool:
    """Return whether the receiver's last FAILING_AFTER attempts failed."""
    row = db.execute(
        "SELECT failures FROM receivers WHERE account = ? AND host = ?",
        (partition.account, partition.host),
    ).fetchone()
    return row is not None and row[0] >= FAILING_AFTER


# a clock that was ahead


AHEAD_MAX = 1000  # jobs corrected in one transaction
LATEST = "iif(tries = 0, :now, :wait)"  # due time that a job may have


def ahead(db: DB, now: datetime) -> list[tuple[int, JobState, Partition]]:
    """Return jobs due later, or claimed for longer, than the program ever sets. Runs in the reader."""
    found: list[tuple[int, JobState, Partition]] = []
    for state in STATE_OF.values():
        rows = db.execute(
            f"SELECT number, account, {HOST_OF[state]} FROM jobs WHERE state = :state"
            f" AND (due_at > {LATEST} OR lease_until > :lease) LIMIT :most",
            {**latest(now), "state": state, "most": AHEAD_MAX},
        )
        found += [(number, state, Partition(account, host)) for number, account, host in rows]
    return found


def reclaim(db: DB, now: datetime, found: list[tuple[int, JobState, Partition]]) -> None:
    """Limit the leases and due times of these jobs, and update their partitions."""
    for number, state, _ in found:
        db.execute(
            f"UPDATE jobs SET due_at = min(due_at, {LATEST}),"
            " lease_until = min(lease_until, :lease) WHERE number = :number AND state = :state",
            {**latest(now), "number": number, "state": state},
        )
    for state, partition in {(state, partition) for _, state, partition in found}:
        renew(db, state, partition)
