"""Which jobs a claim takes, as SQL: those due longest, but of each lane no more than its bound.

A lane is what a bound holds for: the account whose jobs are pending, the host to
which they are delivered. Whoever claims holds a lock that all claims of the kind of
work take, so that the bounds hold over all processes; a job that somebody is just
changing is not waited for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from storage.postgres_accounts import callers_of_keys
from storage.postgres_server import Session
from storage.records import Claim, JobState, Work
from storage.rows import JOB_COLUMNS, job_of, micros

CLAIMING_LOCK = 0x6D70_6A62  # "mpjb": the first of two numbers of the lock
NUMBER_OF: dict[Work, int] = {"verify": 1, "deliver": 2}
STATE_OF: dict[Work, JobState] = {"verify": "pending", "deliver": "delivering"}
COLUMN_OF = {"pending": "account", "delivering": "host"}  # of a job, that names its lane
GROUP_MAX = 100  # who claim at once
LOOKED_AT = 500  # jobs due longest, before every lane's first are looked for

Head = tuple[int, int, int | str]  # when it is due, its number, its lane


def is_due(db: Session, work: Work) -> bool:
    """Whether a bound leaves room for it is seen by who claims."""
    due = "FROM jobs WHERE state = %(state)s AND due_at <= %(now)s AND lease_until"
    values = {"state": STATE_OF[work], "now": micros(db.now())}
    found = db.one(
        f"SELECT EXISTS (SELECT {due} IS NULL) OR EXISTS (SELECT {due} <= %(now)s)", values
    )
    return bool(found[0])


@dataclass(frozen=True, slots=True)
class Wanted:
    work: Work
    limit: int
    each_max: int
    lease_s: float


@dataclass(frozen=True, slots=True)
class Claims:
    """Work for a clerk: what all who claim together may have is taken at once, and dealt out."""

    group_max: int = GROUP_MAX
    repeatable: bool = False

    def __call__(self, db: Session, asked: Sequence[Wanted], marker: Any) -> list[Any]:
        db.begin()
        for number in sorted({NUMBER_OF[wanted.work] for wanted in asked}):
            db.execute("SELECT pg_advisory_xact_lock(%s, %s)", [CLAIMING_LOCK, number])
        now = db.now()
        alike: dict[tuple[Work, int, float], list[int]] = {}  # who wants the same, by place
        for place, wanted in enumerate(asked):
            alike.setdefault((wanted.work, wanted.each_max, wanted.lease_s), []).append(place)
        claimed: list[Any] = [[] for _ in asked]
        for (work, each_max, lease_s), places in alike.items():
            limit = sum(max(0, asked[place].limit) for place in places)
            left = _claim(db, now, work, limit, each_max, lease_s)
            for place in places:
                most = max(0, asked[place].limit)
                claimed[place], left = left[:most], left[most:]
        db.commit()
        return claimed


def _claim(
    db: Session, now: datetime, work: Work, limit: int, each_max: int, lease_s: float
) -> list[tuple[Claim, bytes | None]]:
    """Claims without their secrets, and these, sealed, beside them."""
    numbers = _due(db, now, work, limit, each_max)
    if not numbers:
        return []
    values = {
        "numbers": numbers,
        "state": STATE_OF[work],
        "now": micros(now),
        "until": micros(now + timedelta(seconds=lease_s)),
    }
    taken = db.all(
        "WITH free AS MATERIALIZED (SELECT number FROM jobs WHERE number = ANY(%(numbers)s)"
        " AND state = %(state)s AND due_at <= %(now)s"
        " AND (lease_until IS NULL OR lease_until <= %(now)s) FOR UPDATE SKIP LOCKED)"
        " UPDATE jobs SET lease_until = %(until)s, fence = fence + 1"
        " FROM free WHERE jobs.number = free.number RETURNING jobs.number",
        values,
    )
    rows = db.all(
        f"SELECT secret, fence, key, {JOB_COLUMNS} FROM jobs"
        " JOIN accounts ON accounts.number = jobs.account WHERE jobs.number = ANY(%s)"
        " ORDER BY due_at, jobs.number",
        [[number for (number,) in taken]],
    )
    callers = callers_of_keys(db, {row[2] for row in rows})
    return [
        (Claim(job_of(tuple(row)), callers[key], None, fence), secret)
        for secret, fence, key, *row in rows
    ]


def _due(db: Session, now: datetime, work: Work, limit: int, each_max: int) -> list[int]:
    """The numbers of the jobs that a claim would take, those due longest first."""
    state = STATE_OF[work]
    lane = COLUMN_OF[state]
    values = {"state": state, "now": micros(now), "most": LOOKED_AT}
    with db.db.pipeline():
        claimed = db.execute(
            f"SELECT {lane}, count(*) FROM jobs"
            " WHERE state = %(state)s AND lease_until > %(now)s GROUP BY 1",
            values,
        )
        left_behind = db.execute(  # as many as a process had that was killed
            f"SELECT due_at, number, {lane} FROM jobs"
            " WHERE state = %(state)s AND lease_until <= %(now)s AND due_at IS NOT NULL",
            values,
        )
        waiting = db.execute(
            f"SELECT due_at, number, {lane} FROM jobs WHERE state = %(state)s"
            " AND lease_until IS NULL AND due_at <= %(now)s ORDER BY due_at, number"
            " LIMIT %(most)s",
            values,
        )
    in_force: dict[Any, int] = dict(claimed.fetchall())
    left, first = left_behind.fetchall(), waiting.fetchall()
    if len(first) == LOOKED_AT:  # who is due after the last of them is not known
        seen = [head for head in left if head[:2] < first[-1][:2]]
        found = _take([*seen, *first], dict(in_force), limit, each_max)
        if len(found) == limit:
            return found
        first = _first_of_each_lane(db, now, state, min(limit, each_max))
    return _take([*left, *first], in_force, limit, each_max)


def _take(heads: Iterable[Head], claimed: dict[Any, int], limit: int, each_max: int) -> list[int]:
    found: list[int] = []
    for _, number, lane in sorted(heads, key=lambda head: head[:2]):
        if len(found) >= limit:
            break
        if claimed.get(lane, 0) < each_max:
            claimed[lane] = claimed.get(lane, 0) + 1
            found.append(number)
    return found


def _first_of_each_lane(db: Session, now: datetime, state: JobState, most: int) -> list[Head]:
    """However many wait in a lane, this costs a look at its first.

    https://wiki.postgresql.org/wiki/Loose_indexscan. The state is spelled out:
    PostgreSQL takes a partial index where it reads the condition.
    """
    lane = COLUMN_OF[state]
    waiting = f"jobs WHERE state = '{state}' AND lease_until IS NULL"
    return db.all(
        "WITH RECURSIVE lanes AS ("
        f" (SELECT {lane} AS lane FROM {waiting} ORDER BY {lane} LIMIT 1)"
        f" UNION ALL SELECT (SELECT {lane} FROM {waiting} AND {lane} > lane"
        f" ORDER BY {lane} LIMIT 1) FROM lanes WHERE lane IS NOT NULL)"
        " SELECT first.due_at, first.number, lane FROM lanes CROSS JOIN LATERAL"
        f" (SELECT due_at, number FROM {waiting} AND {lane} = lane AND due_at <= %s"
        " ORDER BY due_at, number LIMIT %s) AS first WHERE lane IS NOT NULL",
        [micros(now), max(0, most)],
    )
