"""Which stores keep the contract here, and a new place for each.

PostgreSQL is among them where MAILPROBE_TEST_POSTGRES is the URL of a server, by a
user who may make databases.
"""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from bench.private_postgres import drop_database, new_database
from storage import postgres_desk, postgres_server
from storage.postgres_schema import prepare
from storage.postgres_server import Server
from storage.sealing import Seal
from tests.storage.moments import SECRET

SERVER = os.environ.get("MAILPROBE_TEST_POSTGRES", "")
STORES = ["memory", "sqlite", *(["postgres"] if SERVER else [])]
NUMBERS = count()
PATIENCE_S = 30.0


def be_patient() -> None:
    """On a busy machine an answer takes its time; what was promised of it tests/peers/ holds it to."""
    postgres_desk.ANSWER_S = PATIENCE_S
    text = f"statement_timeout = {postgres_server.STATEMENT_MS}"
    patient = f"statement_timeout = {1000 * PATIENCE_S:.0f}"
    postgres_server.SETTINGS = postgres_server.SETTINGS.replace(text, patient)


if SERVER:
    be_patient()


@contextmanager
def place_for(kind: str, folder: Path) -> Iterator[str]:
    """What `open_store` takes: a store of this kind that nobody has opened yet."""
    match kind:
        case "memory":
            yield "memory:"
        case "sqlite":
            yield str(folder / "mailprobe.db")
        case "postgres":
            with new_place(template=_template()) as url:
                yield url
        case _:
            raise ValueError(f"no store is called {kind}")


@cache
def _template() -> str:
    """A database with its tables, to be copied: they are made once in this process."""
    name = f"mailprobe_template_{os.getpid()}"
    url = new_database(SERVER, name)
    atexit.register(drop_database, SERVER, name)
    prepare(Server(url), Seal(SECRET))
    return name


@contextmanager
def new_place(server: str = SERVER, template: str = "template1") -> Iterator[str]:
    """The URL of a new database, an empty one where no other is copied; it goes at the end."""
    url = new_database(server, f"mailprobe_test_{os.getpid()}_{next(NUMBERS)}", template)
    try:
        yield url
    finally:
        drop_database(server, urlsplit(url).path[1:])
