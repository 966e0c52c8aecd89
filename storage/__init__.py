"""What is remembered: accounts and keys, what was used, what was answered.

`open_store()` is the only way in. Nothing here knows HTTP, plans or mail.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from storage.memory import MemoryStore
from storage.sqlite import open_sqlite
from storage.store import Store

__all__ = ["open_store"]


def utc_now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def open_store(
    url_or_path: str | Path,
    *,
    secret_key: bytes | None,
    now: Callable[[], datetime] = utc_now,
) -> AsyncIterator[Store]:
    """A store: `memory:`, or the path of an SQLite file.

    `secret_key`, of 32 octets, seals what must be read again; None takes the one
    in the file beside the database. Raises StoreBroken for what is no store of
    ours, StoreUnavailable for one that cannot be used just now, ValueError for a
    URL of a kind that is not known.
    """
    name = str(url_or_path)
    if name == "memory:":
        yield MemoryStore(now)
    elif "://" in name:
        scheme, _, _ = name.partition("://")
        raise ValueError(f"no store is known for {scheme}:// URLs; give the path of a file")
    else:
        async with open_sqlite(Path(name), secret_key=secret_key, now=now) as store:
            yield store
