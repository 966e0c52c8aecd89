"""Lists in a database, and the workers that verify them, for measurements of the lists alone.

Every address fails its syntax check: no name is looked up and no host is asked, so that the
time is what claiming, reserving, storing and counting take.
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from uuid import uuid4

import psycopg
from msgspec import Struct

from mailprobe.api.error_table import Links
from mailprobe.api.lists.worker import open_lists
from mailprobe.api.quota.background_writes import open_background_writes
from mailprobe.api.service import new_service
from mailprobe.engine import open_engine
from mailprobe.engine.settings import EngineSettings
from mailprobe.storage import open_store
from mailprobe.storage.database import NotUnique
from mailprobe.storage.list_records import ListBounds, ListChunk, ListOrder, LoadedList
from mailprobe.storage.postgres.driver.server import SCHEMA
from mailprobe.storage.records import Caller
from mailprobe.storage.store import Store

from .store_load import SECRET, retry

UNITS = 100  # addresses a chunk, as uploads have
BOUNDS = ListBounds(active_max=10_000, kept_max=10_000, per_minute_max=1_000_000)
OCTETS_MAX = 1 << 40
CHUNKS_STORED = 10  # in one transaction, as uploads do


def chunk_of(place: int, units: int = UNITS) -> ListChunk:
    rows = "".join(
        f'[{place},{number},"a b{number}@shop.test",["Ann {number}","a b{number}@shop.test"]]\n'
        for number in range(units)
    )
    return ListChunk(place, units, rows)


async def new_callers(store: Store, count: int) -> list[Caller]:
    """Accounts without limits, with a key each."""
    callers = []

    async def make(_: int) -> None:
        name = uuid4().hex
        account = await store.create_account(f"{name}@customer.test", "own")
        await store.create_key(
            account.id, "standard", None, sha256=name, prefix="sk_live_benc", keys_max=None
        )
        caller = await store.caller(name)
        assert caller
        callers.append(caller)

    for number in range(count):
        await retry(make, number)
    return callers


async def store_list(store: Store, caller: Caller, chunks: int) -> str:
    """Store a list of so many chunks; it is loading."""
    id = str(uuid4())
    await store.create_list(caller, ListOrder(id, "list.csv", None, ""), BOUNDS)

    async def add(first: int) -> None:
        places = range(first, min(first + CHUNKS_STORED, chunks))
        stored = [chunk_of(place) for place in places]
        with suppress(NotUnique):  # a try without an answer was committed
            await store.add_chunks(id, stored, octets_max=OCTETS_MAX)

    for first in range(0, chunks, CHUNKS_STORED):
        await retry(add, first)
    return id


def fill_lists(url: str, callers: Sequence[Caller], lists: int, chunks: int) -> None:
    """Store running lists of so many chunks each, the callers' in turn, with three statements."""
    template = chunk_of(0).rows.replace("[0,", "[@,")
    with psycopg.connect(url, options=f"-c search_path={SCHEMA}", autocommit=True) as db:
        db.execute(
            "INSERT INTO lists (id, account, key, name, state, columns, rows, addresses, answered,"
            " counts, created_at, host) SELECT gen_random_uuid(), keys.account, keys.number,"
            " 'list.csv', 'running', '[]', %(addresses)s, %(addresses)s, 0, '{}', 1, ''"
            " FROM generate_series(0, %(last)s) AS place"
            " JOIN keys ON keys.id = (CAST(%(keys)s AS text[]))[place %% %(callers)s + 1]",
            {
                "addresses": chunks * UNITS, "last": lists - 1, "callers": len(callers),
                "keys": [caller.key.id for caller in callers],
            },
        )  # fmt: skip
        db.execute(
            "INSERT INTO list_chunks (list, place, units, due_at, fence)"
            " SELECT number, place, CASE WHEN place >= 0 THEN %(units)s ELSE 0 END,"
            " CASE WHEN place >= 0 THEN 1 END, 0 FROM lists, generate_series(-1, %(last)s) AS place",
            {"units": UNITS, "last": chunks - 1},
        )
        db.execute(
            "INSERT INTO list_lines (day, list, place, part, rows, results)"
            " SELECT day, number, place, 0, replace(%(rows)s, '@', place::text), ''"
            " FROM lists, generate_series(0, %(last)s) AS place",
            {"rows": template, "last": chunks - 1},
        )
        db.execute("ANALYZE")


class AnsweredLists(Struct, frozen=True):
    """Of all lists of a database."""

    addresses: int
    begun: int  # lists with an answer
    done: int


def answered(url: str) -> AnsweredLists:
    with psycopg.connect(url, options=f"-c search_path={SCHEMA}", autocommit=True) as db:
        found = db.execute(
            "SELECT coalesce(sum(answered), 0)::bigint, count(*) FILTER (WHERE answered > 0),"
            " count(*) FILTER (WHERE state = 'done') FROM lists"
        ).fetchone()
        assert found
        return AnsweredLists(*found)


async def start_list(store: Store, id: str, chunks: int) -> None:
    loaded = LoadedList(["name", "email"], chunks * UNITS, chunks * UNITS)
    # It runs already if only the answer to a first try was lost.
    assert await store.change_list(id, "running", before=["loading", "running"], loaded=loaded)


@asynccontextmanager
async def list_service(url: str) -> AsyncIterator[Store]:
    """A process's worker of lists, with a store of its own."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(url, secret_key=SECRET))
        writes = await stack.enter_async_context(open_background_writes())
        engine = await stack.enter_async_context(
            open_engine(EngineSettings(doh_urls=("http://127.0.0.1:9/dns-query",)))
        )
        links = Links("http://bench.test", "", "")
        service = new_service(store=store, engine=engine, background_writes=writes, links=links)
        await stack.enter_async_context(
            open_lists(service.quota, rng=random.Random(1), wake_jobs=lambda: None)
        )
        yield store
