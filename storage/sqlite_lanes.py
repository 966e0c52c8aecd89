"""Who waits for what, as SQL: jobs stand in lanes, and a claim takes from the heads of them.

A lane is what a claim's bound holds for: the account whose jobs are pending, the
host to which they are delivered. `lanes` knows how many each has and when the
first is due that nobody has claimed. So a claim costs what it takes, however many
wait behind a lane that is full and however many are claimed; and what an account
has reserved by its jobs is known without counting them.
"""

import heapq
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from storage.records import JobState, Work
from storage.rows import micros

DB = sqlite3.Connection
STATE_OF: dict[Work, JobState] = {"verify": "pending", "deliver": "delivering"}
COLUMN_OF = {"pending": "account", "delivering": "host"}  # of a job, that names its lane
Name = int | str  # of a lane: the account's number, or the host


@dataclass(frozen=True, slots=True)
class Lane:
    state: JobState
    name: Name

    @property
    def waiting(self) -> str:
        """Its jobs that nobody has claimed; `:name` is its name.

        The state is spelled out: SQLite takes a partial index where it reads the condition.
        """
        column = COLUMN_OF[self.state]
        return f"jobs WHERE state = '{self.state}' AND {column} = :name AND lease_until IS NULL"


def renew(db: DB, lane: Lane, change: int = 0) -> None:
    """So many jobs have come (or gone), or one is claimed; their rows say so already."""
    place = {"state": lane.state, "name": lane.name, "change": change}
    db.execute(
        "INSERT INTO lanes (state, name, jobs, due_at)"
        f" VALUES (:state, :name, :change, (SELECT min(due_at) FROM {lane.waiting}))"
        " ON CONFLICT (state, name) DO UPDATE SET jobs = jobs + :change, due_at = excluded.due_at",
        place,
    )
    if change < 0:
        db.execute("DELETE FROM lanes WHERE state = :state AND name = :name AND jobs = 0", place)


def due(db: DB, now: datetime, work: Work, limit: int, each_max: int) -> list[tuple[int, Lane]]:
    """The numbers and lanes of the jobs that a claim would take, those due longest first."""
    state = STATE_OF[work]
    claimed = _claimed(db, now, state)
    lanes = _lanes(db, now, state)
    following = next(lanes, None)
    heads = _left_behind(db, now, state)  # instant, number and lane of those that are seen so far
    heapq.heapify(heads)
    found: list[tuple[int, Lane]] = []
    while len(found) < limit:
        while following and (not heads or following[0] <= heads[0][0]):
            _, name = following
            room = min(each_max - claimed.get(name, 0), limit - len(found))
            for at, number in _first(db, now, Lane(state, name), room):
                heapq.heappush(heads, (at, number, name))
            following = next(lanes, None)
        if not heads:
            break
        _, number, name = heapq.heappop(heads)
        if claimed.get(name, 0) < each_max:
            claimed[name] = claimed.get(name, 0) + 1
            found.append((number, Lane(state, name)))
    return found


def _claimed(db: DB, now: datetime, state: JobState) -> dict[Name, int]:
    """How many claims of each lane are in force, over all processes."""
    rows = db.execute(
        f"SELECT {COLUMN_OF[state]}, count(*) FROM jobs WHERE state = ? AND lease_until > ?"
        " GROUP BY 1",
        (state, micros(now)),
    )
    return dict(rows.fetchall())


def _left_behind(db: DB, now: datetime, state: JobState) -> list[tuple[int, int, Name]]:
    """Jobs whose claim has ended without an outcome: as many as a process had that was killed."""
    rows = db.execute(
        f"SELECT due_at, number, {COLUMN_OF[state]} FROM jobs WHERE state = ? AND lease_until <= ?",
        (state, micros(now)),
    )
    return rows.fetchall()


def _lanes(db: DB, now: datetime, state: JobState) -> Iterator[tuple[int, Name]]:
    """Lanes in which somebody is due, each with the instant of its first; those first first."""
    return db.execute(
        "SELECT due_at, name FROM lanes WHERE state = ? AND due_at <= ? ORDER BY due_at",
        (state, micros(now)),
    )


def _first(db: DB, now: datetime, lane: Lane, most: int) -> list[tuple[int, int]]:
    """Instant and number of the lane's first jobs that wait."""
    if most <= 0:
        return []
    rows = db.execute(
        f"SELECT due_at, number FROM {lane.waiting} AND due_at <= :now"
        " ORDER BY due_at, number LIMIT :most",
        {"name": lane.name, "now": micros(now), "most": most},
    )
    return rows.fetchall()
