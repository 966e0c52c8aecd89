"""A session of PostgreSQL as the shared statements use it."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import TypeVar

from psycopg import errors

from mailprobe.storage.postgres import accounts
from mailprobe.storage.postgres.driver.server import TransactionSession
from mailprobe.storage.records import Caller
from mailprobe.storage.sql.database import Database, NotUnique, Row, Values

C = TypeVar("C")
R = TypeVar("R")


@cache
def _with_psycopg_names(statement: str) -> str:
    return re.sub(r"(?<!:):([a-z]\w*)", r"%(\1)s", statement)


class PostgresDatabase:
    """A transaction."""

    FOR_UPDATE = " FOR UPDATE"
    SKIP_LOCKED = " FOR UPDATE SKIP LOCKED"

    def __init__(self, db: TransactionSession) -> None:
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
        try:
            return self._db.execute(_with_psycopg_names(statement), dict(values)).rowcount
        except errors.UniqueViolation as error:
            raise NotUnique from error

    def change_each(self, statement: str, values: Sequence[Values]) -> None:
        if not values:
            return
        with self._db.db.cursor() as cursor:
            cursor.executemany(_with_psycopg_names(statement), [dict(each) for each in values])

    def delete_some(self, table: str, which: str, values: Values, most: int) -> int:
        return self.change(
            f"DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table}"
            f" WHERE {which} LIMIT :most{self.SKIP_LOCKED}))",
            {**values, "most": most},
        )

    def pairs(self, name: str) -> str:
        fields = f"json_each_text(CAST(:{name} AS json))"
        return f"(SELECT key, CAST(value AS bigint) AS value FROM {fields})"

    def first_chunks_of(self, lists: str, which: str, order: str, limit: str) -> str:
        return (
            f"{lists} CROSS JOIN LATERAL (SELECT list, place, due_at FROM list_chunks"
            f" WHERE list = {lists}.number AND {which} ORDER BY {order} LIMIT {limit}) AS chunks"
        )

    def lock_accounts(self) -> None:
        self._db.execute("LOCK TABLE accounts IN SHARE ROW EXCLUSIVE MODE")

    def count_out(self, account: int, jobs: Sequence[tuple[str, str]]) -> None:
        states = Counter(state for state, _ in jobs if state in ("pending", "delivering"))
        self.change(
            "UPDATE job_backlogs SET pending = pending - :pending,"
            " undelivered = undelivered - :undelivered WHERE account = :account",
            {
                "account": account,
                "pending": states["pending"],
                "undelivered": states.total(),
            },
        )

    def callers_of_keys(self, numbers: Sequence[int]) -> Mapping[int, Caller]:
        return accounts.callers_of_keys(self._db, numbers)


def run(function: Callable[[Database, C], R]) -> Callable[[TransactionSession, C], R]:
    """Return a shared transaction as one of this database."""
    return lambda db, command: function(PostgresDatabase(db), command)
