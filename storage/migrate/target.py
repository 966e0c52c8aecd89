"""The PostgreSQL database that is moved into: writes rows by COPY, and the move's progress.

Each batch and its progress record are one transaction, so that a move continues after
the last row written, even if it was killed. While the record exists, no service opens
the database (postgres/driver/schema.py).
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
from msgspec import Struct
from msgspec.structs import asdict
from psycopg import sql

from ..base.columns import day_of, instant
from ..base.encryption import Cipher
from ..contract import DatabaseInUse, StoreBroken
from ..postgres.driver.partitions import LINES, USAGE, Partitions
from ..postgres.driver.schema import MOVING, prepare
from ..postgres.driver.server import (
    SCHEMA,
    PostgresServer,
    TransactionConnection,
    is_server_failure,
)
from .tables import TABLES, TablePlan

MOVED = "moved"  # the record's name in `store_properties` once the migration is done
MOVING_LOCK = 0x6D70_6D6F_7665  # "mpmove"
STATEMENT_MS = 3_600_000  # summing a thousand million rows takes some minutes
DAY_MICROS = 86_400_000_000
PARTITIONED_BY = {USAGE: "at", LINES: "day"}  # the tables with a partition for each day
WAITING_MS = 5_000  # the server may need this long to notice that a killed move is gone
SETTINGS = (
    "SET application_name = 'mailprobe migrate'",
    f"SET statement_timeout = {STATEMENT_MS}",
    f"SET lock_timeout = {WAITING_MS}",
    "SET idle_in_transaction_session_timeout = 60000",
)
COLUMNS = (
    "SELECT relname, attname, format_type(atttypid, atttypmod) FROM pg_class"
    " JOIN pg_attribute ON attrelid = pg_class.oid"
    " WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition"
    " AND attnum > 0 AND NOT attisdropped ORDER BY relname, attnum"
)
OTHERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name = 'mailprobe' AND pid <> pg_backend_pid()"
)
# The sequences that number new rows, with their columns: identity columns and defaults.
SEQUENCES = (
    "SELECT of.relname, attname, numbers.oid::regclass::text FROM pg_class AS of"
    " JOIN pg_attribute ON attrelid = of.oid"
    " JOIN pg_attrdef ON adrelid = of.oid AND adnum = attnum"
    " JOIN pg_depend ON classid = 'pg_attrdef'::regclass AND objid = pg_attrdef.oid"
    " AND refclassid = 'pg_class'::regclass"
    " JOIN pg_class AS numbers ON numbers.oid = refobjid AND numbers.relkind = 'S'"
    " WHERE of.relnamespace = %(schema)s::regnamespace AND NOT of.relispartition"
    " UNION SELECT of.relname, attname,"
    " pg_get_serial_sequence(%(schema)s || '.' || of.relname, attname)"
    " FROM pg_class AS of JOIN pg_attribute ON attrelid = of.oid"
    " WHERE of.relnamespace = %(schema)s::regnamespace AND attidentity <> ''"
)


class MigrationProgress(Struct):
    """The move's progress: for each table the key of its last row and the number of rows."""

    path: str
    mark: list[int]
    after: dict[str, list[object]]
    rows: dict[str, int]
    ended_at: str | None = None

    def packed(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpacked(cls, octets: bytes) -> "MigrationProgress":
        """Read it, also as earlier versions wrote it: the values alone, in an array."""
        found = json.loads(octets)
        if isinstance(found, list):
            found = dict(zip(("path", "mark", "after", "rows", "ended_at"), found, strict=True))
        return cls(**found)


@contextmanager
def open_target(url: str, secret_key: bytes) -> Iterator["MigrationTarget"]:
    """Open the target, create missing tables, and lock it against other moves.

    Raises StoreBroken (DatabaseInUse if it is in use), StoreUnavailable.
    """
    server = PostgresServer(url)
    prepare(server, Cipher(secret_key), moving=True)
    db = server.connect()
    try:
        with explain_error(server):
            for setting in SETTINGS:
                db.execute(setting)
            try:
                db.execute("SELECT pg_advisory_lock(%s)", [MOVING_LOCK])
            except psycopg.errors.LockNotAvailable:
                raise DatabaseInUse(f"{server.name}: another move into it is under way") from None
        target = MigrationTarget(server, db)
        target.check_alone()
        yield target
    finally:
        db.close()


@contextmanager
def explain_error(server: PostgresServer) -> Iterator[None]:
    """Turn the server's failures into StoreUnavailable, without the password; bugs pass unchanged."""
    try:
        yield
    except psycopg.Error as error:
        if not is_server_failure(error):
            raise
        raise server.as_unavailable(error) from None


class MigrationTarget:
    def __init__(self, server: PostgresServer, db: "psycopg.Connection") -> None:
        self.name = server.name
        self._server = server
        self._db = db
        self._partitions = Partitions()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with explain_error(self._server), self._db.transaction():
            yield

    def check_alone(self) -> None:
        """Raise DatabaseInUse if a service has connections to the database."""
        with explain_error(self._server):
            others = self._db.execute(OTHERS).fetchone()
        if others != (0,):
            raise DatabaseInUse(f"{self.name} is being served: stop every service that uses it")

    def columns(self) -> dict[str, dict[str, str]]:
        """Return the columns with their PostgreSQL types, by table."""
        tables: dict[str, dict[str, str]] = {}
        with explain_error(self._server):
            for table, column, type in self._db.execute(COLUMNS, [SCHEMA]):
                tables.setdefault(table, {})[column] = type
        return tables

    def record(self) -> MigrationProgress | None:
        """Return the progress of a move that is in progress or done; None if there is none."""
        with explain_error(self._server):
            kept = self._db.execute(
                "SELECT value FROM store_properties WHERE name = ANY(%s)", [[MOVING, MOVED]]
            ).fetchone()
        return MigrationProgress.unpacked(bytes(kept[0])) if kept else None

    def check_empty(self) -> None:
        """Raise StoreBroken if any table has rows."""
        for table in TABLES:
            with explain_error(self._server):
                found = self._db.execute(f"SELECT 1 FROM {table.name} LIMIT 1").fetchone()
            if found:
                raise StoreBroken(
                    f"{self.name} holds other data already ({table.name}): name an empty database"
                )

    def keep(self, record: MigrationProgress) -> None:
        with self._transaction():
            self._keep(record)

    def _keep(self, record: MigrationProgress) -> None:
        self._db.execute(
            "INSERT INTO store_properties (name, value) VALUES (%s, %s)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            [MOVING, record.packed()],
        )

    def empty(self) -> None:
        """Delete what an unfinished move has written, and its progress record."""
        with self._transaction():
            names = sql.SQL(", ").join(sql.Identifier(table.name) for table in TABLES)
            # With what is not moved and refers to them, as conversations do to lists.
            self._db.execute(sql.SQL("TRUNCATE {} CASCADE").format(names))
            self._db.execute("DELETE FROM store_properties WHERE name = %s", [MOVING])

    def write(
        self, plan: TablePlan, rows: Sequence[Sequence[Any]], record: MigrationProgress
    ) -> None:
        """Write rows and the progress record in one transaction. Raises DatabaseInUse too."""
        self.check_alone()  # a service may have started just before the first record was written
        if column := PARTITIONED_BY.get(plan.table.name):
            at = plan.targets.index(column)
            days = {
                (plan.table.name, day_of(instant(n * DAY_MICROS)))
                for n in {row[at] // DAY_MICROS for row in rows}
            }
            with explain_error(self._server):
                self._partitions.make(TransactionConnection(self._db, None), days)
        with self._transaction():
            statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
                sql.Identifier(plan.table.name),
                sql.SQL(", ").join(map(sql.Identifier, plan.targets)),
            )
            with self._db.cursor() as cursor, cursor.copy(statement) as copy:
                for row in plan.converted(rows):
                    copy.write_row(row)
            self._keep(record)

    def totals(self, plan: TablePlan) -> tuple[object, ...]:
        with explain_error(self._server):
            row = self._db.execute(plan.totals(of_source=False)).fetchone()
        assert row
        return tuple(row)

    def end(self, record: MigrationProgress) -> None:
        """Number new rows after the moved ones, and let services open the database."""
        self.check_alone()
        with self._transaction():
            for table, column, sequence in self._db.execute(
                SEQUENCES, {"schema": SCHEMA}
            ).fetchall():
                self._db.execute(
                    sql.SQL("SELECT setval(%s, max({})) FROM {} HAVING max({}) > 0").format(
                        sql.Identifier(column), sql.Identifier(table), sql.Identifier(column)
                    ),
                    [sequence],
                )
            record.ended_at = datetime.now(UTC).isoformat(timespec="seconds")
            self._db.execute(
                "UPDATE store_properties SET name = %s, value = %s WHERE name = %s",
                [MOVED, record.packed(), MOVING],
            )
        with explain_error(self._server):
            for table in TABLES:  # the planner has no statistics of the new rows
                self._db.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(table.name)))
