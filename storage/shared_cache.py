"""The shared cache: facts about domains and mail hosts that processes exchange; none is about a mailbox or an account.

The table is bounded by the end of each fact and by the rows of each kind, 200,000 in all: about
100 MB. The oldest go first. Retention applies the bound, so there may be as many more as are
written in between.
"""

from collections.abc import Sequence
from datetime import timedelta

from msgspec import Struct

from .base.columns import micros
from .database import Database, StorePart, read, write

KEPT_S_MAX = 6 * 3600.0  # the longest that any engine believes a fact
KEY_MAX = 640  # characters; more is a fault of the writer
VALUE_MAX = 4096
WRITTEN_MAX = 1_000  # in one call: some milliseconds
READ_MAX = 5_000  # rows of one call

# Per kind, so that many of one kind do not displace the others.
ROWS_MAX = {
    "acceptance": 90_000,
    "route": 50_000,
    "backoff": 20_000,
    "strike": 10_000,
}


class NewFact(Struct, frozen=True):
    """A fact, for `left_s` of the store's clock. It replaces one of its kind and key that ends sooner."""

    kind: str
    key: str
    value: str
    left_s: float


class FactsRead(Struct, frozen=True):
    """Facts of other processes, the oldest first, and how far they were read."""

    facts: list[NewFact]
    last: int  # the number to continue behind
    more: bool


def is_sound(fact: NewFact) -> bool:
    """May this be stored?"""
    return (
        0 < fact.left_s <= KEPT_S_MAX
        and 0 < len(fact.key) <= KEY_MAX
        and len(fact.value) <= VALUE_MAX
        and len(fact.kind) <= KEY_MAX
        and "\0" not in fact.kind + fact.key + fact.value  # PostgreSQL's text has none
    )


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


def write_facts(db: Database, facts: Sequence[NewFact], *, by_process: str) -> None:
    """Store facts; each replaces the one of its kind and key that ends sooner, and is read anew by all.

    Raises ValueError for more than WRITTEN_MAX, or one that is too long or lasts too long.
    """
    if len(facts) > WRITTEN_MAX or not all(map(is_sound, facts)):
        raise ValueError("too many facts, or one that may not be stored")
    db.lock_facts()
    now = db.now()
    rows = {
        (fact.kind, fact.key): {
            "kind": fact.kind,
            "key": fact.key,
            "value": fact.value,
            "until": micros(now + timedelta(seconds=fact.left_s)),
            "by": by_process,
        }
        for fact in facts
    }
    # A row is deleted rather than changed: so in both databases the new one has the next number.
    ahead = micros(now + timedelta(seconds=KEPT_S_MAX))
    old = [
        {"kind": kind, "key": key, "until": row["until"], "ahead": ahead}
        for (kind, key), row in rows.items()
    ]
    db.change_each(REPLACE, old)
    db.change_each(WRITE, list(rows.values()))


def read_facts(
    db: Database, after: int, *, not_by: str, kind: str | None = None, limit: int = READ_MAX
) -> FactsRead:
    """Return the facts behind number `after` that have not ended and are not this process's.

    A caller that continues behind `last` misses none, whatever the order of the commits. A fact's
    `left_s` is by the store's clock, and at most KEPT_S_MAX.
    """
    most = min(limit, READ_MAX)
    of_kind = "" if kind is None else " AND kind = :kind"
    rows = db.all(
        f"SELECT seq, kind, key, value, until, by_process FROM {TABLE}"
        f" WHERE seq > :after{of_kind} ORDER BY seq LIMIT :limit",
        {"after": after, "kind": kind, "limit": most},
    )
    if not rows:
        return FactsRead([], after, more=False)
    now = micros(db.now())
    found = [
        NewFact(kind, key, value, min((until - now) / MICROS, KEPT_S_MAX))
        for _, kind, key, value, until, by_process in rows
        if until > now and by_process != not_by
    ]
    return FactsRead(found, rows[-1][0], more=len(rows) == most)


class SharedCacheStore(StorePart):
    """The part of the store that carries facts between processes."""

    write_facts = write(write_facts)
    read_facts = read(read_facts)
