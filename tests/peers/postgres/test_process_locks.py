"""Leases end with the database session of their process, and never sooner than it stops using them."""

import os
import time
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
import trio

from mailprobe.api.quota.connection_leases import TICK_S
from mailprobe.bench.load.private_postgres import PrivatePostgres
from mailprobe.storage import open_store
from mailprobe.storage.leases import GONE_S
from mailprobe.storage.records import LeaseRequest
from mailprobe.storage.store import Store
from tests.peers.postgres.database import query
from tests.storage.child_processes import child, line_of
from tests.storage.fixed_clock import SECRET
from tests.storage.other_process import other_process

HOST = "192.0.2.1"
PROMISED_S = 2.0
WAIT_S_MAX = 30.0
SESSIONS = "SELECT holder, session FROM connection_leases WHERE connections > 0"
END_SESSIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
    " AND mode = 'ExclusiveLock'"
)


async def lease(store: Store, holder: str, held: int = 0, wanted: int = 1) -> int:
    asked = {HOST: LeaseRequest(held, wanted)}
    return (await store.lease_connections(holder, asked, limit=1, lease_s=60))[HOST]


async def lease_in_a_session(store: Store, url: str, holder: str) -> int:
    """Lease, and lease again as soon as the store has a session; returns the session's number."""
    assert await lease(store, holder) == 1
    with trio.fail_after(WAIT_S_MAX):
        while not (session := dict(query(url, SESSIONS))[holder]):
            await trio.sleep(0.01)
            assert await lease(store, holder, held=1) == 1
    return int(session)


async def seconds_until_granted(store: Store, holder: str) -> float:
    began = time.monotonic()
    with trio.fail_after(WAIT_S_MAX):
        while not await lease(store, holder):  # noqa: ASYNC110 - the other's lease ends
            await trio.sleep(0.05)
    return time.monotonic() - began


async def test_another_machines_lease_ends_soon_after_it_was_killed(url: str):
    """The holder's name tells nothing here, as if its process ran on another machine."""
    async with open_store(url, secret_key=SECRET) as store:
        with child("lease for real", url) as process:
            assert await line_of(process) == "leased"
            assert await lease(store, "b") == 0
            process.kill()
            process.wait()
            taken_s = await seconds_until_granted(store, "b")
        assert taken_s >= GONE_S
        assert GONE_S + 2 * TICK_S < PROMISED_S, "a process that waits looks that often"


async def test_a_lease_stands_while_its_session_lives(url: str):
    async with open_store(url, secret_key=SECRET) as one, open_store(url, secret_key=SECRET) as two:
        await lease_in_a_session(one, url, "a")
        end = time.monotonic() + 2 * GONE_S
        while time.monotonic() < end:
            assert await lease(two, "b") == 0
            await trio.sleep(0.05)


async def test_a_process_here_that_was_killed_holds_nothing_at_once(url: str):
    async with open_store(url, secret_key=SECRET) as store:
        with other_process() as other:
            assert await lease(store, other.holder) == 1
            assert await lease(store, "b") == 0
            other.kill()
            other.reap()
            assert await lease(store, "b") == 1


async def test_a_session_that_was_ended_is_reported_and_replaced_in_time(url: str):
    """The holder lives: it leases again in its new session before another one may take it for gone."""
    async with open_store(url, secret_key=SECRET) as one, open_store(url, secret_key=SECRET) as two:
        session = await lease_in_a_session(one, url, "a")
        before = one.lease_session()
        query(url, END_SESSIONS)
        assert await lease(two, "b") == 0
        while one.lease_session() == before:  # noqa: ASYNC110 - a thread's doing
            await trio.sleep(0.01)
        while dict(query(url, SESSIONS))["a"] in (session, None):
            assert await lease(one, "a", held=1) == 1
            await trio.sleep(0.01)
        end = time.monotonic() + 2 * GONE_S
        while time.monotonic() < end:
            assert await lease(two, "b") == 0
            await trio.sleep(0.05)


@pytest.mark.parametrize("gently", [True, False])
async def test_a_restart_of_the_server_ends_no_lease(
    server: PrivatePostgres, url: str, gently: bool
):
    """All sessions have ended then, which says nothing about their processes."""
    async with open_store(url, secret_key=SECRET) as one, open_store(url, secret_key=SECRET) as two:
        await lease_in_a_session(one, url, "a")
        before = one.lease_session()
        await trio.to_thread.run_sync(lambda: server.stop(gently=gently))
        await trio.to_thread.run_sync(server.start)
        assert one.lease_session() != before
        end = time.monotonic() + 2 * GONE_S
        while time.monotonic() < end:
            assert await lease(two, "b") == 0
            await trio.sleep(0.05)


async def test_a_server_that_stands_still_ends_no_session(server: PrivatePostgres, url: str):
    async with open_store(url, secret_key=SECRET) as store:
        await lease_in_a_session(store, url, "a")
        before = store.lease_session()
        with server.frozen():
            await trio.sleep(GONE_S)
        assert store.lease_session() == before


async def test_a_session_is_held_by_a_process_with_many_open_files(url: str):
    with ExitStack() as files:
        for _ in range(1_100):  # select(2) knows no more than 1,024
            files.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        async with open_store(url, secret_key=SECRET) as store:
            session = await lease_in_a_session(store, url, "a")
            query(url, END_SESSIONS)
            with trio.fail_after(WAIT_S_MAX):
                while dict(query(url, SESSIONS))["a"] in (session, None):
                    assert await lease(store, "a", held=1) == 1
                    await trio.sleep(0.01)


def test_the_settings_of_the_server_end_no_session(server: PrivatePostgres, url: str):
    """It may end idle sessions, and those whose machine answers no keepalive, before a lease ends."""
    name = url.rpartition("/")[2].partition("?")[0]
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"ALTER DATABASE {name} SET idle_session_timeout = '500ms'")
        db.execute(f"ALTER DATABASE {name} SET tcp_keepalives_idle = 1")

    async def hold() -> Any:
        async with open_store(url, secret_key=SECRET) as store:
            await lease_in_a_session(store, url, "a")
            before = store.lease_session()
            await trio.sleep(1.5)
            return store.lease_session() - before

    assert trio.run(hold) == 0
