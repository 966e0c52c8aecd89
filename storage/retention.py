"""Retention: what both databases delete, a bounded number of rows in each transaction.

Rows that another transaction is changing are left for the next run, so that no request waits.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from . import tolerances
from .audit import AUDIT_KEPT
from .base.columns import day_of, kept_since, micros
from .bounces import BOUNCES_KEPT
from .contract import (
    IDEMPOTENCY_KEPT_MAX,
    LEASES_MAX,
    MESSAGES_KEPT_MAX,
    RECEIVERS_KEPT,
    SETTLED_KEPT,
    WAITS_MAX,
    WINDOW,
)
from .database import Database, Executor, Values
from .egresses import EGRESS_KEPT
from .list_jobs import conversations, list_claims, lists
from .records import Tier
from .shared_cache import KEPT_S_MAX as FACTS_KEPT_S_MAX
from .shared_cache import ROWS_MAX as FACT_ROWS_MAX
from .usage import reclaim_window

TIDIED_MAX = 1000  # rows in one transaction: some milliseconds, so that no request waits long
JOBS_TIDIED_MAX = 100  # each has a payload and some attempts; as many windows are corrected
Drop = Callable[[Database], bool]  # whether there may be more
Part = tuple[Any, int]  # of a reservation's settlement

OF_TIER = "account IN (SELECT number FROM accounts WHERE tier = :tier)"
ENDED = (
    ("reservations", "lease_until <= :at"),
    ("idempotency_records", "keep_until <= :at"),
    ("idempotency_records", "answer IS NULL AND lease_until <= :at"),
    ("ended_sessions", "until <= :at"),
    ("sign_ins", "until <= :at"),
    ("sign_in_links", "until <= :at"),
    ("shared_reports", "until <= :at"),
    ("connection_leases", "until <= :at"),
    ("known_facts", "until <= :at"),
)
KEPT = (  # for a term
    ("rate_windows", "at <= :at", WINDOW),
    ("receivers", "tried_at <= :at", RECEIVERS_KEPT),
    ("egress_replies", "last_at <= :at", EGRESS_KEPT),
    ("bounces", "at <= :at", BOUNCES_KEPT),
    ("audit_entries", "at <= :at", AUDIT_KEPT),
    (conversations.TABLE, "at <= :at", conversations.CONVERSATIONS_KEPT),
)
KEYS = (  # SQLite would reuse the highest number: that key stays
    f"{OF_TIER} AND revoked_at < :at"
    " AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.key = keys.number)"
    " AND NOT EXISTS (SELECT 1 FROM lists WHERE lists.key = keys.number)"
    " AND NOT EXISTS (SELECT 1 FROM people WHERE people.key = keys.number)"
    " AND number < (SELECT max(number) FROM keys)"
)
SURPLUS = (  # of a kind of facts, the oldest
    "kind = :kind AND seq <= (SELECT seq FROM known_facts WHERE kind = :kind"
    " ORDER BY seq DESC LIMIT 1 OFFSET :rows)"
)
# Instants that a clock wrote that was ahead are corrected.
RECLAIMED = (
    "UPDATE reservations SET lease_until = :lease WHERE lease_until > :lease",
    "UPDATE connection_leases SET until = :lease WHERE until > :lease",
    "DELETE FROM known_facts WHERE until > :facts",
    "UPDATE list_chunks SET lease_until = :lease WHERE lease_until > :lease",
    "UPDATE list_chunks SET due_at = :wait WHERE due_at > :wait AND lease_until IS NOT NULL",
    "UPDATE idempotency_records SET keep_until = :keep WHERE keep_until > :keep",
    "UPDATE bounces SET at = :now WHERE at > :soon",
    "UPDATE audit_entries SET at = :now WHERE at > :soon",
    "UPDATE host_tolerances SET used_at = :now WHERE used_at > :soon",
    "UPDATE egress_replies SET last_at = :now WHERE last_at > :soon",
    "UPDATE keys SET revoked_at = :now WHERE revoked_at > :soon",
    *(
        f"UPDATE outbox SET {change} WHERE kind = '{kind}' AND {which}"
        for kind in MESSAGES_KEPT_MAX
        for change, which in (
            ("lease_until = :lease", "due_at IS NOT NULL AND lease_until > :lease"),
            ("due_at = :wait", "due_at > :wait"),
        )
    ),
)


def latest(now: datetime) -> dict[str, int]:
    """Return the values of RECLAIMED: the latest instants that a right clock writes."""
    return {
        "now": micros(now),
        "soon": micros(now + WINDOW),
        "lease": micros(now + LEASES_MAX),
        "wait": micros(now + WAITS_MAX),
        "keep": micros(now + IDEMPOTENCY_KEPT_MAX),
        "facts": micros(now + timedelta(seconds=FACTS_KEPT_S_MAX) + WINDOW),
    }


def reclaim_windows(db: Database, *, latest: Mapping[str, int]) -> bool:
    """Correct some windows with an instant far in the future; return whether there may be more.

    Some keys are never used again. The requests of these keys wait meanwhile.
    """
    ahead = db.all(
        "SELECT DISTINCT key FROM rate_windows WHERE at > :soon LIMIT :most",
        {**latest, "most": JOBS_TIDIED_MAX},
    )
    for (key,) in sorted(ahead):
        reclaim_window(db, key, latest["now"])
    return len(ahead) == JOBS_TIDIED_MAX


def drops(now: datetime, retention_days: Mapping[Tier, int]) -> list[Drop]:
    """Return the deletions; each removes at most TIDIED_MAX rows. Two correct windows and chunks."""
    values = latest(now)
    acts: list[Drop] = [
        partial(reclaim_windows, latest=values),
        *(partial(drop, table=table, which=which, at=values["now"]) for table, which in ENDED),
        *(
            partial(drop, table=table, which=which, at=micros(now - term))
            for table, which, term in KEPT
        ),
        partial(
            drop, table="egress_days", which="day <= :day",
            day=day_of(now - EGRESS_KEPT).isoformat(),
        ),
        partial(
            drop, table=conversations.TABLE, which=conversations.SURPLUS,
            rows=conversations.ROWS_MAX,
        ),
        *(
            partial(drop, table="known_facts", which=SURPLUS, kind=kind, rows=rows)
            for kind, rows in FACT_ROWS_MAX.items()
        ),
        partial(list_claims.bring_back, wait=values["wait"]),
        lists.drop_unloaded,
        partial(tolerances.drop_unused, now=now, most=TIDIED_MAX),
        partial(tolerances.drop_refusals, now=now, most=TIDIED_MAX),
    ]  # fmt: skip
    for tier, days in retention_days.items():
        since = micros(kept_since(now, days))
        which = f"{OF_TIER} AND minute < :at"
        acts += [
            partial(drop, table="refusals", which=which, at=since, tier=tier),
            partial(_drop_jobs, tier=tier, since=since),
            partial(lists.drop_ended, tier=tier, since=since),
            partial(drop, table="keys", which=KEYS, at=since, tier=tier),
        ]
    for kind, kept in MESSAGES_KEPT_MAX.items():
        which = "kind = :kind AND due_at IS NULL AND made_at <= :at"
        acts.append(partial(drop, table="outbox", which=which, at=micros(now - kept), kind=kind))
    return acts


async def correct(executor: Executor, now: datetime, statements: Sequence[str]) -> None:
    """Correct what a clock wrote that was ahead, by one statement in each transaction."""
    values = latest(now)
    for statement in statements:
        await executor.write(_change, statement, values)


def _change(db: Database, statement: str, values: Values) -> None:
    db.change(statement, values)


async def delete(executor: Executor, now: datetime, drops: Sequence[Drop], after: Part) -> None:
    """Delete in small transactions; settlements are those behind `after`."""
    for each in drops:
        while await executor.write(each):
            pass
    part: Part | None = after
    while part is not None:
        part = await executor.write(drop_settled, after=part, now=now)


def drop(db: Database, *, table: str, which: str, **values: object) -> bool:
    """Delete some rows; return whether there may be more."""
    return db.delete_some(table, which, values, TIDIED_MAX) == TIDIED_MAX


def _drop_jobs(db: Database, *, tier: Tier, since: int) -> bool:
    """Delete some ended jobs with their attempts."""
    rows = db.all(
        f"SELECT number FROM jobs WHERE {OF_TIER} AND ended_at < :since LIMIT :most{db.SKIP_LOCKED}",
        {"tier": tier, "since": since, "most": JOBS_TIDIED_MAX},
    )
    jobs = [{"job": number} for (number,) in rows]
    db.change_each("DELETE FROM job_attempts WHERE job = :job", jobs)
    db.change_each("DELETE FROM jobs WHERE number = :job", jobs)
    return len(jobs) == JOBS_TIDIED_MAX


def drop_settled(db: Database, *, after: Part, now: datetime) -> Part | None:
    """Delete some settlements that are older than SETTLED_KEPT, beginning behind `after`.

    Return the part to continue behind; None if there was nothing to change.
    """
    rows = db.all(
        "SELECT reservation, part, at FROM settlements"
        " WHERE (reservation, part) > (:reservation, :part) ORDER BY reservation, part LIMIT :most",
        {"reservation": after[0], "part": after[1], "most": TIDIED_MAX},
    )
    until, latest = micros(now - SETTLED_KEPT), micros(now)
    one = " WHERE reservation = :reservation AND part = :part"
    old = [{"reservation": id, "part": part} for id, part, at in rows if at <= until]
    ahead = [
        {"reservation": id, "part": part, "now": latest} for id, part, at in rows if at > latest
    ]
    db.change_each(f"DELETE FROM settlements{one}", old)
    db.change_each(f"UPDATE settlements SET at = :now{one}", ahead)
    return rows[-1][:2] if old or ahead else None
