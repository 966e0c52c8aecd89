"""A session of PostgreSQL as the shared statements use it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TypeVar

from psycopg import errors

from ..base.columns import day_of, instant
from ..database import JobMove, NotUnique, Row, RowInsert, Values
from .driver.partitions import (
    LINES,
    USAGE,
    check_partitions,
    first_instant_of,
    listed,
)
from .driver.server import NAMED, TransactionConnection, columns_of

C = TypeVar("C")
R = TypeVar("R")
FACTS_LOCK = 0x66616374  # "fact"
UPLOADS_LOCK = 0x6C697374  # "list": the first of two numbers of the lock
SPAN_DAYS = 30  # of usage, in a statement: it plans for each and locks each
UNDELIVERED = ("pending", "delivering")
BACKLOGS = RowInsert(  # counters of jobs, which save counting rows
    "job_backlogs",
    "account bigint, pending bigint, undelivered bigint",
    " ON CONFLICT (account) DO UPDATE SET pending = job_backlogs.pending + excluded.pending,"
    " undelivered = job_backlogs.undelivered + excluded.undelivered",
)
TEXTS_MAX = 2_000  # a statement that names a day is another text for each day


@lru_cache(TEXTS_MAX)
def _with_psycopg_names(statement: str) -> str:
    return NAMED.sub(r"%(\1)s", statement.replace("%", "%%"))


@contextmanager
def _unique() -> Iterator[None]:
    """Raise NotUnique for a value that is there already."""
    try:
        yield
    except errors.UniqueViolation as error:
        raise NotUnique from error


class PostgresDatabase:
    """A transaction."""

    FOR_UPDATE = " FOR UPDATE"
    SKIP_LOCKED = " FOR UPDATE SKIP LOCKED"

    def __init__(self, db: TransactionConnection) -> None:
        self._db = db

    def now(self) -> datetime:
        return self._db.now()

    def all(self, statement: str, values: Values) -> list[Row]:
        return self._db.all(_with_psycopg_names(statement), dict(values))

    def all_each(self, statement: str, values: Sequence[Values]) -> list[list[Row]]:
        if not values:
            return []
        with self._db.db.cursor() as cursor:
            cursor.executemany(
                _with_psycopg_names(statement), [dict(each) for each in values], returning=True
            )
            found = [cursor.fetchall()]
            while cursor.nextset():
                found.append(cursor.fetchall())
        return found

    def change(self, statement: str, values: Values) -> int:
        with _unique():
            return self._db.execute(_with_psycopg_names(statement), dict(values)).rowcount

    def change_each(self, statement: str, values: Sequence[Values]) -> None:
        if not values:
            return
        with self._db.db.cursor() as cursor, _unique():
            cursor.executemany(_with_psycopg_names(statement), [dict(each) for each in values])

    def insert(self, into: RowInsert, rows: Sequence[Row]) -> None:
        if rows:
            self._db.execute(into.of_arrays, columns_of(rows))

    def delete_some(self, table: str, which: str, values: Values, most: int) -> int:
        return self.change(
            f"DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table}"
            f" WHERE {which} LIMIT :most{self.SKIP_LOCKED}))",
            {**values, "most": most},
        )

    def records(self, name: str, columns: str) -> str:
        return f"(SELECT * FROM json_to_recordset(CAST(:{name} AS json)) AS one ({columns}))"

    def among(self, name: str, kind: str) -> str:
        texts = f"json_array_elements_text(CAST(:{name} AS json))"
        return f"= ANY(ARRAY(SELECT CAST(each AS {kind}) FROM {texts} AS each))"

    def first_chunks_of(self, lists: str, which: str, order: str, limit: str) -> str:
        return (
            f"{lists} CROSS JOIN LATERAL (SELECT list, place, due_at FROM list_chunks"
            f" WHERE list = {lists}.number AND {which} ORDER BY {order} LIMIT {limit}) AS chunks"
        )

    def need_list_day(self, day: int) -> None:
        check_partitions(self._db, {(LINES, day_of(instant(day)))})

    def usage_spans(self) -> Sequence[tuple[int, int]]:
        days = sorted(day for table, day in listed(self._db) if table == USAGE)
        firsts = [days[max(0, end - SPAN_DAYS)] for end in range(len(days), 0, -SPAN_DAYS)]
        lasts = [days[end - 1] for end in range(len(days), 0, -SPAN_DAYS)]
        return [
            (first_instant_of(first), first_instant_of(last + timedelta(days=1)))
            for first, last in zip(firsts, lasts, strict=True)
        ]

    def lock_facts(self) -> None:
        # Not a lock of the table: that would cancel its autovacuum, second by second.
        self._db.execute("SELECT pg_advisory_xact_lock(%s)", [FACTS_LOCK])

    def lock_uploads(self, account: int) -> None:
        self._db.execute("SELECT pg_advisory_xact_lock(%s, %s::int)", [UPLOADS_LOCK, account])

    def lock_accounts(self) -> None:
        self._db.execute("LOCK TABLE accounts IN SHARE ROW EXCLUSIVE MODE")

    def count_jobs(self, moves: Sequence[JobMove]) -> None:
        pending: Counter[int] = Counter()
        undelivered: Counter[int] = Counter()
        for account, _, before, after in moves:
            pending[account] += (after == "pending") - (before == "pending")
            undelivered[account] += (after in UNDELIVERED) - (before in UNDELIVERED)
        self.insert(
            BACKLOGS,
            [
                (account, pending[account], undelivered[account])
                for account in sorted(pending)
                if pending[account] or undelivered[account]
            ],
        )
