"""The store that the service tests run on: MAILPROBE_TEST_STORE, by default `memory`.

`sqlite` and `postgres` run in real time, in a thread of their own. A test that calls
them blocks meanwhile, and its virtual time stops. `postgres` takes its databases from
the server that MAILPROBE_TEST_POSTGRES names.
"""

import atexit
import base64
import inspect
import os
import queue
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import psycopg
import trio

from mailprobe.storage import open_store
from mailprobe.storage.contract import is_postgres
from mailprobe.storage.postgres.driver.server import SCHEMA
from mailprobe.storage.sqlite.memory import MemoryStore
from tests.storage.fixed_clock import SECRET
from tests.storage.stores import new_place, place_for

KIND = os.environ.get("MAILPROBE_TEST_STORE", "memory")


def store_settings() -> dict[str, str]:
    """Return the store settings of a service that runs in its own process."""
    if KIND != "postgres":
        return {}
    stack = ExitStack()
    atexit.register(stack.close)
    url = stack.enter_context(new_place())
    return {"database": url, "secret_key": base64.b64encode(SECRET).decode()}


def asked(database: str, *statements: str, values: tuple[Any, ...] = ()) -> list[list[Any]]:
    """Run each query with the same values, in one transaction; return the rows of each.

    The values replace `?`.
    """
    if not is_postgres(database):
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
            db.execute("BEGIN")
            return [db.execute(words, values).fetchall() for words in statements]
    options = f"-c search_path={SCHEMA} -c default_transaction_isolation=repeatable\\ read"
    with psycopg.connect(database, options=options) as server:
        texts = [cast(Any, words.replace("?", "%s")) for words in statements]
        return [server.execute(words, values).fetchall() for words in texts]


@asynccontextmanager
async def open_test_store(now: Callable[[], datetime], kind: str = KIND) -> AsyncIterator[Any]:
    if kind == "memory":
        yield MemoryStore(now)
        return
    with tempfile.TemporaryDirectory() as folder, place_for(kind, Path(folder)) as where:
        still = Still(where, now)
        try:
            yield still
        finally:
            still.close()


class Still:
    """A store in a thread, on the caller's clock. A call blocks the caller's event loop."""

    def __init__(self, where: str, now: Callable[[], datetime]) -> None:
        self._now = now
        self._at = now()
        self._opened: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=trio.run, args=(self._keep_open, where))
        self._thread.start()
        opened = self._opened.get()
        if isinstance(opened, BaseException):
            raise opened
        self._store, self._token, self._nursery, self._leave = opened

    def close(self) -> None:
        self._token.run_sync_soon(self._leave.set)
        self._thread.join()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*arguments: Any, **named: Any) -> Any:
            await trio.lowlevel.checkpoint()
            self._at = self._now()
            answers: queue.Queue[Any] = queue.Queue()
            go = partial(self._nursery.start_soon, _answer, method, arguments, named, answers)
            self._token.run_sync_soon(go)
            value, error = answers.get()
            if error is not None:
                raise error
            return value

        return call

    async def _keep_open(self, where: str) -> None:
        try:
            async with (
                open_store(where, secret_key=SECRET, now=lambda: self._at) as store,
                trio.open_nursery() as nursery,
            ):
                leave = trio.Event()
                token = trio.lowlevel.current_trio_token()
                self._opened.put((store, token, nursery, leave))
                await leave.wait()
        except BaseException as error:
            self._opened.put(error)


async def _answer(method: Any, arguments: Any, named: Any, answers: "queue.Queue[Any]") -> None:
    try:
        answers.put((await method(*arguments, **named), None))
    except Exception as error:
        answers.put((None, error))
