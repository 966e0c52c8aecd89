"""Schema migrations of the PostgreSQL store, applied by one process at a time.

A database of a newer version is refused, and so is a secret key other than the one
with which the first machine encrypted a known value.
"""

from contextlib import closing
from functools import cache
from pathlib import Path

import psycopg

from mailprobe.release import version as program_version

from ...base.encryption import CHECK_NAME, Cipher, check_value, is_key_of
from ...contract import NEWEST, VERSIONS, SchemaState, StoreBroken
from .server import SCHEMA, PostgresServer, TransactionConnection

SCRIPTS = Path(__file__).parents[2] / "schema" / "postgres"
MIGRATING_LOCK = 0x6D61_696C_7072  # "mailpr"
MIGRATING_MS = 30_000  # a start waits this long for another that applies migrations
MOVING = "moving"  # the name in `store_properties` of a migration's progress (migrate.target)
SESSION_TRIES = 3  # other clients of a pooler may take a session between two questions
OLDEST = 130_000  # server_version_num; the oldest version with every feature used here

MIGRATIONS = (
    "CREATE TABLE migrations (number integer PRIMARY KEY, name text NOT NULL,"
    " applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
)


def prepare(server: PostgresServer, cipher: Cipher, *, moving: bool = False) -> None:
    """Create or migrate the tables to this version.

    Raises StoreBroken for a database that this program cannot use, also one with an
    unfinished `mailprobe migrate` unless `moving`; StoreUnavailable.
    """
    db = server.connect()
    db.prepare_threshold = None  # a script is many statements
    try:
        if db.info.server_version < OLDEST:
            raise StoreBroken(f"{server.name} is older than PostgreSQL {OLDEST // 10_000}")
        _check_sessions(server, db)
        _prepare(server, TransactionConnection(db, None), cipher, moving)
    except psycopg.Error as error:
        raise server.as_unavailable(error) from error
    finally:
        db.close()


def _check_sessions(server: PostgresServer, db: psycopg.Connection) -> None:
    """Raise StoreBroken behind a pooler that gives each transaction any session.

    Our settings and locks belong to a session. A pooler invents the process number that its client
    gets, so it is found; it shares sessions if another connection gets ours, or if we get another.
    """
    for _ in range(SESSION_TRIES):
        number = _session_of(db)
        if number == db.info.backend_pid:
            return
        with closing(server.connect()) as other:
            other.prepare_threshold = None
            other.execute("BEGIN")  # keeps the session that it gets
            if _session_of(other) == number or _session_of(db) != number:
                raise StoreBroken(
                    f"{server.name} is a pooler that shares sessions, such as PgBouncer with"
                    " pool_mode = transaction: give the address of PostgreSQL itself, or set"
                    " pool_mode = session"
                )


def _session_of(db: psycopg.Connection) -> int:
    row = db.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


def _prepare(
    server: PostgresServer, db: TransactionConnection, cipher: Cipher, moving: bool
) -> None:
    """Migrate in one transaction, so that a killed start can simply be repeated."""
    db.begin()
    db.execute(f"SET LOCAL lock_timeout = {MIGRATING_MS}")
    db.execute("SET LOCAL statement_timeout = 0")  # a table of a year takes what it takes
    db.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATING_LOCK])
    version = _version(server, db)
    for number, script in enumerate(scripts_of_schema()[version:], version + 1):
        db.execute(script.read_text("utf-8"))
        db.execute("INSERT INTO migrations (number, name) VALUES (%s, %s)", [number, script.stem])
    _keep_writer(db)
    _check_key(server, db, cipher)
    if not moving and db.one("SELECT 1 FROM store_properties WHERE name = %s", [MOVING]):
        raise StoreBroken(
            f"{server.name} has but a part of what an SQLite database holds:"
            " run `mailprobe migrate` to its end"
        )
    db.execute("COMMIT")


def _version(server: PostgresServer, db: TransactionConnection) -> int:
    """Return the number of applied migrations; creates their table if it is missing."""
    if not db.one("SELECT 1 FROM pg_namespace WHERE nspname = %s", [SCHEMA]):
        db.execute(f"CREATE SCHEMA {SCHEMA}")
    if not _has(db, "migrations"):
        if db.one("SELECT 1 FROM pg_tables WHERE schemaname = %s", [SCHEMA]):
            raise StoreBroken(f"{server.name}: the schema {SCHEMA} is another program's")
        db.execute(MIGRATIONS)
    state = _state(server, db)
    if state.is_newer:
        raise StoreBroken(str(state))
    return state.found


def _state(server: PostgresServer, db: TransactionConnection) -> SchemaState:
    """Read the schema's number and writer; 0 where there are no tables of ours."""
    (found,) = (
        db.one("SELECT coalesce(max(number), 0) FROM migrations")
        if _has(db, "migrations")
        else (0,)
    )
    newest = db.one(NEWEST) if _has(db, "schema_versions") else None
    written_by = newest[1] if newest and newest[0] == found else None
    return SchemaState(server.name, int(found), len(scripts_of_schema()), written_by)


def _has(db: TransactionConnection, table: str) -> bool:
    return db.one("SELECT to_regclass(%s)", [f"{SCHEMA}.{table}"])[0] is not None


def _keep_writer(db: TransactionConnection) -> None:
    """Record this program's version for the schema, unless an earlier one brought it."""
    db.execute(VERSIONS)
    db.execute(
        "INSERT INTO schema_versions VALUES (%s, %s) ON CONFLICT (schema) DO NOTHING",
        [len(scripts_of_schema()), program_version()],
    )


def schema_state(url: str) -> SchemaState:
    """Read the schema of the database, which is not changed. Raises StoreUnavailable."""
    server = PostgresServer(url)
    db = server.connect()
    try:
        session = TransactionConnection(db, None)
        session.begin()
        return _state(server, session)
    except psycopg.Error as error:
        raise server.as_unavailable(error) from error
    finally:
        db.close()


def _check_key(server: PostgresServer, db: TransactionConnection, cipher: Cipher) -> None:
    """Check that this machine has the key of the first; otherwise it could read only its own secrets."""
    kept = db.one("SELECT value FROM store_properties WHERE name = %s", [CHECK_NAME])
    if kept is None or not kept[0]:  # emptied: a key was lost for good, and another begins
        db.execute(
            "INSERT INTO store_properties VALUES (%s, %s)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            [CHECK_NAME, check_value(cipher)],
        )
    elif not is_key_of(cipher, kept[0]):
        raise StoreBroken(
            f"{server.name} was encrypted with another MAILPROBE_SECRET_KEY:"
            " give every machine that shares it the same"
        )


@cache
def scripts_of_schema() -> list[Path]:
    """Return the scripts as of this program's start; a later upgrade takes effect at the next start."""
    return sorted(SCRIPTS.glob("*.sql"))
