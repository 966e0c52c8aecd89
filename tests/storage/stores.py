"""Which stores keep the contract here, and a new place for each.

PostgreSQL is among them where MAILPROBE_TEST_POSTGRES is the URL of a server, by a
user who may make databases.
"""

import atexit
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import psycopg
import trio
from psycopg import sql

from mailprobe.bench.load.private_postgres import drop_database, new_database
from mailprobe.storage import open_store
from mailprobe.storage.base.encryption import CHECK_NAME, Cipher
from mailprobe.storage.postgres.driver.schema import SCRIPTS, prepare
from mailprobe.storage.postgres.driver.server import SCHEMA, PostgresServer
from tests.storage.fixed_clock import SECRET
from tests.storage.long_timeouts import use_long_timeouts

SERVER = os.environ.get("MAILPROBE_TEST_POSTGRES", "")
STORES = ["memory", "sqlite", *(["postgres"] if SERVER else [])]
NUMBERS = count()
FREE: list[str] = []  # databases that a test has left, and that are as new
STEPS = 2 * (len(list(SCRIPTS.glob("*.sql"))),)  # as many, and the last one's number
EMPTYING = f"-c search_path={SCHEMA} -c lock_timeout=2s"
FEW = 200  # rows of a table
TABLES = (
    "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace"
    " AND relkind IN ('r', 'p') AND NOT relispartition"
    " AND relname NOT IN ('store_properties', 'migrations')"
)
UNBOUND = "SET session_replication_role = replica"
RESTART = (
    "SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false)"
    " FROM pg_sequences WHERE last_value IS NOT NULL"
)


if SERVER:
    use_long_timeouts()


@contextmanager
def place_for(kind: str, folder: Path) -> Iterator[str]:
    """What `open_store` takes: a store of this kind with its tables, and nothing in them."""
    match kind:
        case "memory":
            yield "memory:"
        case "sqlite":
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "mailprobe.db").write_bytes(_new_file())
            yield str(folder / "mailprobe.db")
        case "postgres":
            url = FREE.pop() if FREE else _another()
            yield url
            if _emptied(url):
                FREE.append(url)
        case _:
            raise ValueError(f"no store is called {kind}")


@cache
def _new_file() -> bytes:
    """A SQLite database with its tables. To make one takes 40 ms of processor time."""

    async def make(where: Path) -> None:
        async with open_store(str(where), secret_key=SECRET):
            pass

    with TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
        where = Path(folder) / "mailprobe.db"
        thread.submit(trio.run, make, where).result()
        return where.read_bytes()


def _another() -> str:
    """A database with its tables; it goes with this process."""
    name = f"mailprobe_kept_{os.getpid()}_{next(NUMBERS)}"
    url = new_database(SERVER, name)
    atexit.register(drop_database, SERVER, name)
    prepare(PostgresServer(url), Cipher(SECRET))
    return url


def _emptied(url: str) -> bool:
    """Is it as it was made? To make one takes a tenth of a second, and six tenths on a busy machine.

    Days that were made or dropped stay so: whoever logs makes what is missing.
    """
    try:
        with psycopg.connect(url, autocommit=True, options=EMPTYING) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            if db.execute("SELECT name FROM store_properties").fetchall() != [(CHECK_NAME,)]:
                return False
            if db.execute("SELECT count(*), max(number) FROM migrations").fetchone() != STEPS:
                return False
            _empty(db)
    except psycopg.Error:
        return False
    return True


def _empty(db: psycopg.Connection[Any]) -> None:
    """Delete all rows: to truncate 33 tables takes longer than most tests.

    It takes a superuser, for whom neither order nor triggers count. Of many rows too much would
    remain on the disk.
    """
    tables = [sql.Identifier(name) for (name,) in db.execute(TABLES, [SCHEMA])]
    rows = [
        sql.SQL("(SELECT {} FROM {} LIMIT {})").format(number, name, FEW)
        for number, name in enumerate(tables)
    ]
    filled = Counter(number for (number,) in db.execute(sql.SQL(" UNION ALL ").join(rows)))
    if FEW in filled.values():
        db.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(sql.SQL(", ").join(tables)))
    else:
        delete = [sql.SQL("DELETE FROM {}").format(tables[number]) for number in filled]
        db.execute(sql.SQL("; ").join([sql.SQL(UNBOUND), *delete, sql.SQL(RESTART)]))


@contextmanager
def new_place(server: str = SERVER) -> Iterator[str]:
    """The URL of a new and empty database; it goes at the end."""
    url = new_database(server, f"mailprobe_test_{os.getpid()}_{next(NUMBERS)}")
    try:
        yield url
    finally:
        drop_database(server, urlsplit(url).path[1:])
