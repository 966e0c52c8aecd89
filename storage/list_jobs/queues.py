"""The length of each queue, for metrics.

Every statement reads a bounded number of rows, by an index.
"""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from ..base.columns import instant, micros
from ..database import Database, StorePart, read
from .list_claims import first_chunks

QueueName = Literal["lists", "jobs", "callbacks", "alert", "meter"]  # of lists, their chunks
COUNTED_MAX = 10_000  # rows that are read of a queue: some 10 ms; more are not counted


class QueueState(Struct, frozen=True):
    """What is due in a queue and not claimed; `oldest_s` is how long, of the first."""

    name: QueueName
    due: int
    oldest_s: float = 0.0
    last_sent_at: datetime | None = None  # of messages: the last that was sent


FREE = "(lease_until IS NULL OR lease_until <= :now)"
COUNT = "SELECT count(*), min(due_at) FROM"
# Of jobs the first rows of the state are read, of the others those that are due first.
JOBS = (
    f"{COUNT} (SELECT due_at, lease_until FROM jobs WHERE state = '%s' LIMIT :most) AS first"
    f" WHERE due_at <= :now AND {FREE}"
)
MESSAGES = (
    f"{COUNT} (SELECT due_at, lease_until FROM outbox WHERE kind = '%s' AND due_at <= :now"
    f" ORDER BY due_at LIMIT :most) AS due WHERE {FREE}"
)
DUE: dict[QueueName, str] = {
    "jobs": JOBS % "pending",
    "callbacks": JOBS % "delivering",
    "alert": MESSAGES % "alert",
    "meter": MESSAGES % "meter",
}
ENDED_READ = 100  # messages, of those made last; several that were given up may be among them
LAST_SENT = (
    "SELECT max(sent_at) FROM (SELECT sent_at FROM outbox WHERE kind = :kind AND due_at IS NULL"
    " ORDER BY made_at DESC LIMIT :most) AS ended"
)


def _due_chunks(db: Database) -> str:
    """SQL of the chunks of running lists that are due; the first of each list tells the oldest."""
    every, firsts = (first_chunks(db, "chunks.due_at", most) for most in (":most", "1"))
    return (
        "WITH running AS MATERIALIZED (SELECT number FROM lists WHERE state = 'running')"
        f" SELECT (SELECT count(*) FROM (SELECT * FROM ({every}) AS waiting LIMIT :most) AS due),"
        f" (SELECT min(due_at) FROM ({firsts}) AS firsts)"
    )


def read_queues(db: Database) -> list[QueueState]:
    """Return the state of every queue, at most COUNTED_MAX rows of each."""
    now = micros(db.now())
    states = []
    for name, statement in {"lists": _due_chunks(db), **DUE}.items():
        [(due, oldest_at)] = db.all(statement, {"now": now, "most": COUNTED_MAX})
        sent_at = None
        if name in ("alert", "meter"):
            [(sent_at,)] = db.all(LAST_SENT, {"kind": name, "most": ENDED_READ})
        states.append(
            QueueState(
                name,
                due,
                0.0 if oldest_at is None else max(0, now - oldest_at) / 1_000_000,
                None if sent_at is None else instant(sent_at),
            )
        )
    return states


class QueueStore(StorePart):
    """The part of the store that knows what waits."""

    queues = read(read_queues)
