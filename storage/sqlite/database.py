"""A connection to SQLite as the shared statements use it."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar

from msgspec import Struct

from ..base.claim_order import Partition
from ..database import JobMove, NotUnique, Row, RowInsert, Values
from ..records import JobState
from . import job_partitions

ALWAYS = 2**63 - 1  # after every instant
C = TypeVar("C")
R = TypeVar("R")

KEYS = {  # of the tables without a number
    "bounces": "account, address",
    "egress_days": "day, egress",
    "egress_replies": "egress, operator, reason",
    "connection_leases": "address, holder",
    "ended_sessions": "id",
    "known_facts": "seq",
    "host_tolerances": "egress, host",
    "rate_windows": "key, at",
    "receivers": "account, host",
    "sign_in_links": "sha256",
    "sign_ins": "id",
    "refusals": "account, minute, key, failed_check, place",
}


def _explained(error: sqlite3.IntegrityError) -> Exception:
    """NotUnique for a value that is there already; a context manager would cost each write 1 µs."""
    is_known = error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_UNIQUE
    return NotUnique() if is_known else error


class SqliteDatabase(Struct, eq=False):
    """A transaction. SQLite has one writer, so nothing is locked."""

    _db: sqlite3.Connection
    _now: datetime

    FOR_UPDATE = SKIP_LOCKED = ""

    def now(self) -> datetime:
        return self._now

    def all(self, statement: str, values: Values) -> list[Row]:
        return self._db.execute(statement, values).fetchall()

    def all_each(self, statement: str, values: Sequence[Values]) -> list[list[Row]]:
        return [self.all(statement, each) for each in values]

    def change(self, statement: str, values: Values) -> int:
        try:
            return self._db.execute(statement, values).rowcount
        except sqlite3.IntegrityError as error:
            raise _explained(error) from error

    def change_each(self, statement: str, values: Sequence[Values]) -> None:
        if values:
            try:
                self._db.executemany(statement, values)
            except sqlite3.IntegrityError as error:
                raise _explained(error) from error

    def insert(self, into: RowInsert, rows: Sequence[Row]) -> None:
        if rows:
            self._db.executemany(into.of_values, rows)

    def delete_some(self, table: str, which: str, values: Values, most: int) -> int:
        key = KEYS.get(table, "number")
        return self.change(
            f"DELETE FROM {table} WHERE ({key}) IN"
            f" (SELECT {key} FROM {table} WHERE {which} LIMIT :most)",
            {**values, "most": most},
        )

    def records(self, name: str, columns: str) -> str:
        names = (column.split()[0] for column in columns.split(", "))
        fields = ", ".join(f"json_extract(value, '$.{each}') AS {each}" for each in names)
        return f"(SELECT {fields} FROM json_each(:{name}))"

    def among(self, name: str, kind: str) -> str:
        return f"IN (SELECT value FROM json_each(:{name}))"

    def first_chunks_of(self, lists: str, which: str, order: str, limit: str) -> str:
        return (
            f"{lists} CROSS JOIN list_chunks AS chunks ON chunks.list = {lists}.number"
            f" AND chunks.place IN (SELECT place FROM list_chunks WHERE list = {lists}.number"
            f" AND {which} ORDER BY {order} LIMIT {limit})"
        )

    def need_list_day(self, day: int) -> None:
        """All days have one table."""

    def usage_spans(self) -> Sequence[tuple[int, int]]:
        return [(0, ALWAYS)]

    def lock_facts(self) -> None:
        """Nothing is locked."""

    def lock_uploads(self, account: int) -> None:
        """Nothing is locked."""

    def lock_accounts(self) -> None:
        """Nothing is locked."""

    def count_jobs(self, moves: Sequence[JobMove]) -> None:
        changes: Counter[tuple[JobState, Partition]] = Counter()
        for account, host, before, after in moves:
            for state, change in ((before, -1), (after, 1)):
                if state in job_partitions.WAITING:
                    partition = Partition(account, host if state == "delivering" else "")
                    changes[state, partition] += change
        for (state, partition), change in changes.items():
            job_partitions.renew(self._db, state, partition, change)
