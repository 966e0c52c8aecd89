"""Claims of jobs, in SQL: accounts take turns, and within one the longest due come first.

The order is mailprobe.storage.base.claim_order's. A claim holds an advisory lock per kind
of work, so that the limits hold over all processes. A job that another transaction is
changing is skipped, not awaited.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from ..base.claim_order import (
    FAILING_AFTER,
    HANGING_EACH_MAX,
    HANGS_AFTER,
    ClaimBounds,
    Head,
    Partition,
    claim_in_turn,
)
from ..base.columns import micros
from ..commands import ClaimJobs
from ..database import Row
from ..jobs import HOST_OF, STATE_OF, claims_of
from ..records import Claim, JobState, Work
from .database import PostgresDatabase
from .driver.database_thread import BatchWork
from .driver.server import TransactionConnection

CLAIMING_LOCK = 0x6D70_6A62  # "mpjb": the first of two numbers of the lock
NUMBER_OF: dict[Work, int] = {"verify": 1, "deliver": 2}
GROUP_MAX = 100  # callers in one transaction
ACCOUNTS_SCANNED = 500  # the jobs due longest; if more are due, each account's first jobs are read
ROUNDS_MAX = 5  # searches past full partitions


def is_due(db: TransactionConnection, work: Work) -> bool:
    """Return whether a job is due; the limits are checked by the claim."""
    due = "FROM jobs WHERE state = %(state)s AND due_at <= %(now)s AND lease_until"
    values = {"state": STATE_OF[work], "now": micros(db.now())}
    found = db.one(
        f"SELECT EXISTS (SELECT {due} IS NULL) OR EXISTS (SELECT {due} <= %(now)s)", values
    )
    return bool(found[0])


def _claim_all(
    db: TransactionConnection, asked: Sequence[ClaimJobs], marker: object
) -> list[object]:
    """Claim jobs for all callers at once, then distribute them."""
    db.begin()
    for number in sorted({NUMBER_OF[wanted.work] for wanted in asked}):
        db.execute("SELECT pg_advisory_xact_lock(%s, %s)", [CLAIMING_LOCK, number])
    now = db.now()
    alike: dict[ClaimJobs, list[int]] = {}  # places of equal requests
    for place, wanted in enumerate(asked):
        alike.setdefault(replace(wanted, limit=0), []).append(place)
    claimed: list[object] = [[] for _ in asked]
    for wanted, places in alike.items():
        limit = sum(max(0, asked[place].limit) for place in places)
        left = _claim(db, now, wanted, limit)
        for place in places:
            most = max(0, asked[place].limit)
            claimed[place], left = left[:most], left[most:]
    db.commit()
    return claimed


CLAIMS = BatchWork(_claim_all, GROUP_MAX, repeatable=False)  # for the database threads


def _claim(
    db: TransactionConnection, now: datetime, wanted: ClaimJobs, limit: int
) -> list[tuple[Claim, bytes | None]]:
    """Return claims without their secrets, each with its encrypted secret beside it."""
    numbers = _due(db, now, wanted, limit)
    if not numbers:
        return []
    values = {
        "numbers": numbers,
        "state": STATE_OF[wanted.work],
        "now": micros(now),
        "until": micros(now + timedelta(seconds=wanted.lease_s)),
    }
    taken = db.all(
        "WITH free AS MATERIALIZED (SELECT number FROM jobs WHERE number = ANY(%(numbers)s)"
        " AND state = %(state)s AND due_at <= %(now)s"
        " AND (lease_until IS NULL OR lease_until <= %(now)s) FOR UPDATE SKIP LOCKED)"
        " UPDATE jobs SET lease_until = %(until)s, claimed_at = %(now)s, fence = fence + 1"
        " FROM free WHERE jobs.number = free.number RETURNING jobs.number",
        values,
    )
    is_taken = {number for (number,) in taken}
    return claims_of(PostgresDatabase(db), [each for each in numbers if each in is_taken])


def _due(db: TransactionConnection, now: datetime, wanted: ClaimJobs, limit: int) -> list[int]:
    """Return the numbers of the jobs to claim, with accounts in turn."""
    state = STATE_OF[wanted.work]
    host = HOST_OF[state]
    values = {
        "state": state, "now": micros(now), "most": ACCOUNTS_SCANNED,
        "hung": micros(now - HANGS_AFTER),
    }  # fmt: skip
    with db.db.pipeline():
        claimed = db.execute(
            f"SELECT account, {host}, count(*), count(*) FILTER (WHERE claimed_at <= %(hung)s)"
            " FROM jobs"
            " WHERE state = %(state)s AND lease_until > %(now)s GROUP BY 1, 2",
            values,
        )
        left_behind = db.execute(  # the expired claims of a killed process
            f"SELECT due_at, number, account, {host} FROM jobs"
            " WHERE state = %(state)s AND lease_until <= %(now)s AND due_at IS NOT NULL",
            values,
        )
        waiting = db.execute(
            f"SELECT due_at, number, account, {host} FROM jobs WHERE state = %(state)s"
            " AND lease_until IS NULL AND due_at <= %(now)s ORDER BY due_at, number"
            " LIMIT %(most)s",
            values,
        )
    rows = claimed.fetchall()
    held = {Partition(account, host): count for account, host, count, _ in rows}
    hanging = {Partition(account, host): hang for account, host, _, hang in rows if host and hang}
    claims = _Active(held, hanging)
    left, first = _heads(left_behind.fetchall()), _heads(waiting.fetchall())
    if len(first) < ACCOUNTS_SCANNED:
        return [head.number for head in _claim_rows(db, [*left, *first], claims, wanted, limit)]
    return _due_of_each(db, now, wanted, limit, claims, left)


class _Active(Struct, frozen=True):
    """Active claims per partition, over all processes, and those of calls that hang."""

    held: dict[Partition, int]
    hanging: Mapping[Partition, int]

    def most_of(self, partition: Partition, each_max: int) -> int:
        return min(each_max, HANGING_EACH_MAX) if partition in self.hanging else each_max


def _due_of_each(
    db: TransactionConnection,
    now: datetime,
    wanted: ClaimJobs,
    limit: int,
    claims: "_Active",
    left: list[Head],
) -> list[int]:
    """Read each account's first jobs, without its full partitions, when many jobs wait.

    If an account's first jobs are all of one partition, that partition becomes full, and
    the next round reads past it.
    """
    found: list[int] = []
    for _ in range(ROUNDS_MAX):
        full = [
            partition.host
            for partition, count in claims.held.items()
            if partition.host and count >= claims.most_of(partition, wanted.each_max)
        ]
        first = _first_of_each(db, now, STATE_OF[wanted.work], limit, full, found)
        taken = _claim_rows(db, [*left, *first], claims, wanted, limit - len(found))
        found += [head.number for head in taken]
        for head in taken:
            claims.held[head.partition] = claims.held.get(head.partition, 0) + 1
        left = [head for head in left if head not in taken]
        if not taken or len(found) >= limit:
            break
    return found


def _heads(rows: Iterable[Row]) -> list[Head]:
    return [
        Head(due_at, number, Partition(account, host)) for due_at, number, account, host in rows
    ]


def _claim_rows(
    db: TransactionConnection,
    heads: Iterable[Head],
    claims: "_Active",
    wanted: ClaimJobs,
    limit: int,
) -> list[Head]:
    of_account: dict[object, list[Head]] = {}
    for head in sorted(heads):
        of_account.setdefault(head.partition.account, []).append(head)
    failing = _failing(db, {head.partition for those in of_account.values() for head in those})

    def partition_max(partition: Partition) -> int:
        return min(1, wanted.each_max) if partition in failing else wanted.each_max

    return claim_in_turn(
        {account: those[0].due_at for account, those in of_account.items()},
        lambda account: iter(of_account[account]),
        claims.held,
        claims.hanging,
        ClaimBounds(limit, partition_max, wanted.account_max),
    )


def _failing(db: TransactionConnection, partitions: Iterable[Partition]) -> set[Partition]:
    """Return the partitions whose last FAILING_AFTER attempts failed."""
    asked = [partition for partition in partitions if partition.host]
    if not asked:
        return set()
    rows = db.all(
        "SELECT receivers.account, receivers.host FROM receivers"
        " JOIN unnest(%s::bigint[], %s::text[]) AS asked (account, host)"
        " ON receivers.account = asked.account AND receivers.host = asked.host"
        " WHERE failures >= %s",
        [
            [partition.account for partition in asked],
            [partition.host for partition in asked],
            FAILING_AFTER,
        ],
    )
    return {Partition(account, host) for account, host in rows}


def _first_of_each(
    db: TransactionConnection,
    now: datetime,
    state: JobState,
    most: int,
    full: list[str],
    taken: list[int],
) -> list[Head]:
    """Return each account's first jobs, at a cost that does not grow with the jobs waiting.

    https://wiki.postgresql.org/wiki/Loose_indexscan. The state is a literal:
    PostgreSQL uses a partial index only if it can read the condition.
    """
    waiting = f"jobs WHERE state = '{state}' AND lease_until IS NULL AND due_at IS NOT NULL"
    rows = db.all(
        "WITH RECURSIVE owners AS ("
        f" (SELECT account FROM {waiting} ORDER BY account LIMIT 1)"
        f" UNION ALL SELECT (SELECT account FROM {waiting} AND account > owners.account"
        " ORDER BY account LIMIT 1) FROM owners WHERE account IS NOT NULL)"
        f" SELECT first.due_at, first.number, owners.account, {HOST_OF[state]} FROM owners"
        " CROSS JOIN LATERAL"
        f" (SELECT due_at, number, host FROM {waiting} AND account = owners.account"
        " AND due_at <= %s AND host <> ALL(%s::text[]) AND number <> ALL(%s::bigint[])"
        " ORDER BY due_at, number LIMIT %s) AS first WHERE owners.account IS NOT NULL",
        [micros(now), full, taken, max(0, most)],
    )
    return _heads(rows)
