"""Transactions of the facts that processes share."""

from datetime import timedelta

from mailprobe.storage.columns import micros
from mailprobe.storage.database import Database
from mailprobe.storage.facts.commands import ReadFacts, WriteFacts
from mailprobe.storage.facts.records import KEPT_S_MAX, FactsRead, NewFact

TABLE = "known_facts"
WRITE = (
    f"INSERT INTO {TABLE} (kind, key, value, until, by_process)"
    " VALUES (:kind, :key, :value, :until, :by) ON CONFLICT (kind, key) DO NOTHING"
)
# What ends later was found later, unless a clock was ahead: a process may write its facts late.
REPLACE = (
    f"DELETE FROM {TABLE} WHERE kind = :kind AND key = :key AND (until <= :until OR until > :ahead)"
)
MICROS = 1_000_000


def write(db: Database, command: WriteFacts) -> None:
    """See FactStore.write_facts."""
    db.lock_facts()
    now = db.now()
    rows = {
        (fact.kind, fact.key): {
            "kind": fact.kind,
            "key": fact.key,
            "value": fact.value,
            "until": micros(now + timedelta(seconds=fact.left_s)),
            "by": command.by_process,
        }
        for fact in command.facts
    }
    # A row is deleted rather than changed: so in both databases the new one has the next number.
    ahead = micros(now + timedelta(seconds=KEPT_S_MAX))
    old = [
        {"kind": kind, "key": key, "until": row["until"], "ahead": ahead}
        for (kind, key), row in rows.items()
    ]
    db.change_each(REPLACE, old)
    db.change_each(WRITE, list(rows.values()))


def read(db: Database, command: ReadFacts) -> FactsRead:
    """See FactStore.read_facts."""
    of_kind = "" if command.kind is None else " AND kind = :kind"
    rows = db.all(
        f"SELECT seq, kind, key, value, until, by_process FROM {TABLE}"
        f" WHERE seq > :after{of_kind} ORDER BY seq LIMIT :limit",
        {"after": command.after, "kind": command.kind, "limit": command.limit},
    )
    if not rows:
        return FactsRead([], command.after, more=False)
    now = micros(db.now())
    facts = [
        NewFact(kind, key, value, min((until - now) / MICROS, KEPT_S_MAX))
        for _, kind, key, value, until, by_process in rows
        if until > now and by_process != command.not_by
    ]
    return FactsRead(facts, rows[-1][0], more=len(rows) == command.limit)
