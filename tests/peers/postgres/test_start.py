"""Opening a store: migrations, the database's clock, and servers that cannot be used."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mailprobe.storage import StoreSize, open_store, schema_state
from mailprobe.storage.base.encryption import Cipher
from mailprobe.storage.contract import StoreBroken, StoreUnavailable
from mailprobe.storage.postgres.driver import schema
from mailprobe.storage.postgres.driver.server import PostgresServer
from tests.peers.postgres.database import open_once, query
from tests.peers.programs.pgbouncer import pgbouncer
from tests.storage.child_processes import child, line_of
from tests.storage.fixed_clock import NOON, SECRET, Clock, granted, make_caller, use


async def test_several_that_start_together_all_start(url: str):
    with child("check", url) as a, child("check", url) as b, child("check", url) as c:
        for process in (a, b, c):
            assert await line_of(process) == str(NOON)
    names = query(url, "SELECT name FROM migrations ORDER BY number")
    assert names[0] == ("001_initial",)


async def test_records_survive_a_restart(url: str, clock: Clock):
    async with open_store(url, secret_key=SECRET, now=clock) as store:
        caller = await make_caller(store)
        await use(store, caller, NOON, 3)
        ledger = await store.ledger(caller)
    async with open_store(url, secret_key=SECRET, now=clock) as store:
        assert await store.caller("hash") == caller
        assert await store.ledger(caller) == ledger


async def test_counters_of_an_earlier_schema_are_kept(url: str, monkeypatch: pytest.MonkeyPatch):
    """Their days and months were dates, and pending jobs had another name.

    No door makes a database of an earlier schema, so the list of scripts is cut.
    """
    scripts = schema.scripts_of_schema()
    with monkeypatch.context() as patch:
        patch.setattr(schema, "scripts_of_schema", lambda: scripts[:8])
        schema.prepare(PostgresServer(url), Cipher(SECRET))
    query(url, "INSERT INTO months VALUES (1, '2025-01-01', 3, 2)")
    query(url, "INSERT INTO days VALUES (1, '2025-01-31', 2)")
    query(url, "INSERT INTO job_backlogs (account, jobs, undelivered) VALUES (1, 4, 5)")
    await open_once(url)
    found = query(url, "SELECT month, day, pending FROM months, days, job_backlogs")
    assert found == [("2025-01-01", "2025-01-31", 4)]


async def test_the_clock_is_the_databases(url: str):
    """Machines whose clocks differ use the same one."""
    async with open_store(url, secret_key=SECRET) as store:
        before = query(url, "SELECT clock_timestamp()")[0][0]
        checked_at = await store.check()
        caller = await make_caller(store)
        await store.reserve(caller, 1, granted, lease_s=60)
        [(reserved_at, _)] = (await store.ledger(caller)).window
        after = query(url, "SELECT clock_timestamp()")[0][0]
    assert before <= checked_at <= reserved_at <= after


async def test_a_store_opens_as_many_connections_as_are_set(url: str):
    counted = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'"
    async with open_store(
        f"{url}?application_name=counted", secret_key=SECRET, size=StoreSize(3, 5)
    ) as store:
        await store.check()
        assert query(url, counted) == [(3 + 5 + 4,)]


def test_a_statement_may_take_almost_as_long_as_its_caller_waits(url: str) -> None:
    with closing(PostgresServer(url, answer_s=30).connect()) as db:
        for name, limit in (("statement_timeout", "29900ms"), ("lock_timeout", "29700ms")):
            assert db.execute(f"SHOW {name}").fetchone() == (limit,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: url.replace("secret@", "s3cret@"), "refuses the password"),
        (lambda url: url + "_none", "no such database"),
        (lambda url: "postgresql://mailprobe:s3cret@127.0.0.1:1/x", "refused"),
        (lambda url: "postgresql://mailprobe:s3cret@127.0.0.1:port/x", "port"),
        (lambda url: "postgresql://mailprobe:s3cret@[127.0.0.1/x", "URL"),
    ],
)
async def test_a_server_that_cannot_be_used_is_one_line_without_a_password(
    url: str, change: Any, words: str
):
    with pytest.raises(StoreUnavailable) as raised:
        await open_once(change(url))
    message = str(raised.value)
    assert words in message
    assert message.isprintable()
    assert "s3cret" not in repr(raised.value)
    assert ":secret" not in message


async def test_a_newer_schema_and_another_programs_are_refused(url: str):
    await open_once(url)
    query(url, "INSERT INTO migrations VALUES (1000, '1000_later')")
    query(url, "INSERT INTO schema_versions VALUES (1000, '2.5.0')")
    state = schema_state(url)
    assert (state.found, state.is_newer, state.written_by) == (1000, True, "2.5.0")
    with pytest.raises(StoreBroken, match=r"newer version.*use 2\.5\.0 or newer"):
        await open_once(url)
    query(url, "DROP TABLE migrations")
    with pytest.raises(StoreBroken, match="another program"):
        await open_once(url)


@pytest.mark.parametrize("size", [1, 20])
async def test_a_pooler_that_shares_sessions_is_refused_in_one_line(
    url: str, tmp_path: Path, size: int
):
    with pgbouncer(tmp_path, url, "transaction", size) as pooled:
        with pytest.raises(StoreBroken, match="shares sessions") as raised:
            await open_once(pooled)
        assert str(raised.value).isprintable()
    assert query(url, "SELECT 1 FROM pg_namespace WHERE nspname = 'mailprobe'") == []


async def test_a_pooler_that_leaves_each_client_its_session_is_taken(url: str, tmp_path: Path):
    with pgbouncer(tmp_path, url, "session", 20) as pooled:
        async with open_store(pooled, secret_key=SECRET) as store:
            await store.check()
