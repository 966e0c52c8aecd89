"""The storage package: accounts, keys, usage, idempotency records, jobs, messages and leases.

`open_store()` is the entry point; `schema_state()` looks at a database without opening it. Each imports only the kind of store that is
opened: the others would add 10 to 100 ms to every start. Nothing here knows HTTP,
plans or mail.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from .contract import STANDARD_SIZE, SchemaState, StoreSize, is_postgres, shown
from .store import Store

__all__ = [
    "SchemaState",
    "StoreSize",
    "is_postgres",
    "newest_schema",
    "open_store",
    "schema_state",
    "shown",
]


def utc_now() -> datetime:
    """Return the current instant, aware, in UTC."""
    return datetime.now(UTC)


@asynccontextmanager
async def open_store(
    url_or_path: str | Path,
    *,
    secret_key: bytes | None,
    now: Callable[[], datetime] = utc_now,
    size: StoreSize = STANDARD_SIZE,
) -> AsyncIterator[Store]:
    """Open a store: `memory:`, the path of an SQLite file, or the URL of a PostgreSQL database.

    `secret_key`, 32 octets, encrypts what must be read again. None takes the one in the
    file beside an SQLite database; PostgreSQL requires it. PostgreSQL reads the
    database's clock unless `now` is given. Raises StoreBroken for a database that is not
    ours, StoreUnavailable for one that cannot be used just now, ValueError for an unknown
    kind of URL.
    """
    name = str(url_or_path)
    if name == "memory:":
        from .sqlite.memory import MemoryStore

        yield MemoryStore(now)
    elif is_postgres(name):
        from .postgres.store import open_postgres

        clock = None if now is utc_now else now
        async with open_postgres(name, secret_key=secret_key, now=clock, size=size) as store:
            yield store
    elif "://" in name:
        scheme, _, _ = name.partition("://")
        raise ValueError(f"no store is known for {scheme}:// URLs; give a path, or postgresql://…")
    else:
        from .sqlite.store import open_sqlite

        async with open_sqlite(Path(name), secret_key=secret_key, now=now, size=size) as file:
            yield file


def newest_schema(url_or_path: str) -> int:
    """Return the schema that an open store of this program has."""
    kind = "postgres" if is_postgres(url_or_path) else "sqlite"
    return len([*Path(__file__).with_name("schema").joinpath(kind).glob("*.sql")])


def schema_state(url_or_path: str) -> SchemaState:
    """Read which schema a database has, without a change to it. Raises as `open_store()` does."""
    if is_postgres(url_or_path):
        from .postgres.driver.schema import schema_state as of_postgres

        return of_postgres(url_or_path)
    from .sqlite.file import schema_state as of_file

    return of_file(Path(url_or_path))
