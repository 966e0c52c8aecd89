"""What only a file can do: be shared, killed, damaged, full, locked, and gone."""
# ruff: noqa: ASYNC240  (a test may wait for a file's name)

import os
import random
import shutil
import signal
import sqlite3
import stat
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mailprobe.storage import open_store
from mailprobe.storage.contract import SETTLED_KEPT, Store, StoreBroken, StoreUnavailable
from mailprobe.storage.records import Answered, Caller, Ledger, Reservation
from mailprobe.storage.sqlite import database_thread, key_lookup, retention
from mailprobe.storage.sqlite import file as sqlite_file
from tests.storage.child_processes import child, line_of, octets_in, said_by, tell
from tests.storage.fixed_clock import (
    NOON,
    RETENTION,
    SECRET,
    Clock,
    another_key,
    answer_idempotency,
    granted,
    make_caller,
    use,
)

PROMISED_S = 1.0
KILLS = 8
RAW_KEY = "sk_live_DoNotWriteThisAnywhere0123456789abcdefghijkl"
ANSWER = Answered(201, (("Location", RAW_KEY),), f'{{"key":"{RAW_KEY}"}}'.encode())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mailprobe.db"


@pytest.fixture
async def store(path: Path, clock: Clock) -> AsyncIterator[Store]:
    async with open_store(path, secret_key=SECRET, now=clock) as opened:
        yield opened


async def opened(path: Path) -> None:
    async with open_store(path, secret_key=SECRET):
        pass


# the file


async def test_the_first_start_makes_folder_and_file_for_their_owner_alone(tmp_path: Path):
    path = tmp_path / "one" / "two" / "mailprobe.db"
    before = os.umask(0)
    try:
        async with open_store(path, secret_key=None) as store:
            await store.create_account("ann@shop.test", "free")
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}
    assert {"mailprobe.db", "mailprobe.db-wal", "mailprobe.db.key"} <= modes.keys()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_what_was_kept_is_there_after_a_restart(path: Path, clock: Clock):
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        caller = await make_caller(store)
        await use(store, caller, NOON, 3)
        await answer_idempotency(store, caller.account.id, "k", ANSWER)
        ledger = await store.ledger(caller)
    async with open_store(str(path), secret_key=SECRET, now=clock) as store:
        assert await store.caller("hash") == caller
        assert await store.ledger(caller) == ledger
        again = await store.begin_idempotent(caller.account.id, "k", "b", keep_s=60, lease_s=60)
        assert again == ANSWER


@pytest.mark.parametrize("with_key", [False, True])
async def test_an_emptied_database_is_not_made_anew(path: Path, with_key: bool):
    """It was, in silence: every account and key was gone."""
    async with open_store(path, secret_key=None if with_key else SECRET) as store:
        await make_caller(store)
    path.write_bytes(b"")
    with pytest.raises(StoreBroken, match="is empty: put a backup in its place") as reported:
        await opened(path)
    assert "\n" not in str(reported.value)
    assert path.stat().st_size == 0
    path.unlink()
    if not with_key:
        return await opened(path)
    with pytest.raises(StoreBroken, match=r"is gone, but its key mailprobe.db.key is there: put"):
        await opened(path)
    assert not path.exists()
    path.with_name("mailprobe.db.key").unlink()
    await opened(path)


def drop_tables(path: Path) -> None:
    db = sqlite3.connect(path)
    names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name <> ?", [SEQ])
    for (name,) in names.fetchall():
        db.execute(f'DROP TABLE "{name}"')
    db.close()


def put_a_new_database(path: Path) -> None:
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.close()


SEQ = "sqlite_sequence"
EMPTYINGS = {
    "an octet": lambda path: path.write_bytes(b"\0"),
    "no tables": drop_tables,
    "a new database": put_a_new_database,
}


@pytest.mark.parametrize("empty", EMPTYINGS.values(), ids=EMPTYINGS)
async def test_a_database_without_tables_is_an_emptied_one(path: Path, empty: Any):
    await make_and_close(path)
    empty(path)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreBroken, match="is empty: put a backup in its place"):
            async with open_store(path, secret_key=None):
                pass
    assert path.read_bytes() == before


async def make_and_close(path: Path) -> None:
    async with open_store(path, secret_key=None) as store:
        await make_caller(store)


async def test_a_first_start_that_died_is_made_again(path: Path):
    path.with_name("mailprobe.db.new").write_bytes(b"half")
    await opened(path)
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    assert path.stat().st_size
    await opened(path)


async def test_several_that_start_together_all_start(path: Path):
    with child("check", path) as a, child("check", path) as b, child("check", path) as c:
        for process in (a, b, c):
            assert await line_of(process) == str(NOON)


def ours(path: Path) -> None:
    trio.run(opened, path)


def of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE recipes (name)")
    db.close()


def of_a_newer_version(path: Path) -> None:
    ours(path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 1000")
    db.close()


def of_no_kind(path: Path) -> None:
    path.write_bytes(b"Dear Ann, the cake was good." * 1000)


def with_a_damaged_page(path: Path) -> None:
    ours(path)
    octets = bytearray(path.read_bytes())
    octets[4096 * 3 : 4096 * 3 + 64] = b"\xa5" * 64
    path.write_bytes(octets)


def cut_short(path: Path) -> None:
    ours(path)
    path.write_bytes(path.read_bytes()[: 4096 * 4])


@pytest.mark.parametrize(
    "make",
    [of_another_program, of_a_newer_version, of_no_kind, with_a_damaged_page, cut_short],
)
def test_a_file_that_is_not_ours_is_refused_in_one_line_and_left_as_it_is(path: Path, make: Any):
    make(path)
    before = path.read_bytes()
    with pytest.raises(StoreBroken) as refusal:
        trio.run(opened, path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert path.read_bytes() == before


async def test_a_directory_is_refused(tmp_path: Path):
    with pytest.raises(StoreBroken, match="is a directory"):
        await opened(tmp_path)


async def test_a_lost_file_whose_log_is_there_is_not_made_anew(path: Path):
    path.with_name(f"{path.name}-wal").write_bytes(b"committed, and nowhere else")
    with pytest.raises(StoreBroken, match="its log"):
        await opened(path)
    assert not path.exists()


async def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable):
        await opened(tmp_path / "file" / "mailprobe.db")


async def test_what_may_not_be_written_is_unavailable(clock: Clock):
    """Root may write anything, so the child becomes somebody else."""
    folder = Path(tempfile.mkdtemp())
    path = folder / "mailprobe.db"
    try:
        await opened(path)
        folder.chmod(0o555)
        locked = f"StoreUnavailable {path} cannot be used just now: [Errno 13] Permission denied"
        assert await said_by("check as nobody", path) == f"{locked}: '{path}.lock'"
        folder.chmod(0o777)
        (folder / "mailprobe.db.lock").chmod(0o666)
        path.chmod(0o444)
        not_writable = f"StoreUnavailable {path} is not there or may not be written"
        assert await said_by("check as nobody", path) == not_writable
        path.chmod(0o666)
        assert await said_by("check as nobody", path) == str(NOON)
    finally:
        shutil.rmtree(folder)


async def test_an_older_file_is_brought_up_to_date_once(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await opened(path)
    schema = tmp_path / "schema"
    shutil.copytree(sqlite_file.SCHEMA, schema)
    (schema / "900_more.sql").write_text("CREATE TABLE more (a);\nCREATE INDEX i ON more (a);\n")
    monkeypatch.setattr(sqlite_file, "SCHEMA", schema)
    await opened(path)
    await opened(path)
    sqlite_file._scripts_in.cache_clear()
    (schema / "901_worse.sql").write_text("CREATE TABLE least (a);\nCREATE TABLE more (a);\n")
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        await opened(path)
    db = sqlite3.connect(path)
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    db.close()
    assert "more" in tables
    assert "least" not in tables


async def test_a_file_of_the_first_version_is_brought_up_to_date(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It has no record of its migrations but its number."""
    schema = tmp_path / "schema"
    shutil.copytree(sqlite_file.SCHEMA, schema)
    (schema / "900_more.sql").write_text("CREATE TABLE more (a);\nINSERT INTO more VALUES (8);\n")
    monkeypatch.setattr(sqlite_file, "SCHEMA", schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path)
    db.executescript((sqlite_file.SCHEMA / "001_initial.sql").read_text())
    db.execute("INSERT INTO settlements VALUES (1, 0, 5)")
    db.execute("INSERT INTO rate_windows VALUES (1, 6, 3, 5), (2, 5, 7, 7), (1, 4, 2, 2)")
    db.execute(f"PRAGMA application_id = {sqlite_file.APPLICATION_ID}")
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
    await opened(path)
    db = sqlite3.connect(path)
    assert db.execute("SELECT * FROM settlements").fetchall() == [(1, 0, 5)]
    windows = db.execute("SELECT key, at, units, total FROM rate_windows").fetchall()
    assert windows == [(1, 4, 2, 2), (1, 6, 3, 5), (2, 5, 7, 7)]
    assert db.execute("SELECT a FROM more").fetchall() == [(8,)]
    recorded = [name for (name,) in db.execute("SELECT name FROM _sqlite_migrations ORDER BY id")]
    db.close()
    assert recorded == [script.stem for script in sorted(sqlite_file.SCHEMA.glob("*.sql"))]


async def test_a_copy_that_is_restored_has_its_log_again(path: Path, tmp_path: Path):
    """VACUUM INTO leaves the journal mode behind."""
    await opened(path)
    copy = tmp_path / "copy.db"
    db = sqlite3.connect(path)
    db.execute("VACUUM INTO ?", (str(copy),))
    db.close()
    await opened(copy)
    db = sqlite3.connect(copy)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()


async def test_a_url_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="mysql"):
        async with open_store("mysql://localhost/mailprobe", secret_key=None):
            pass


async def test_what_is_committed_is_on_the_disk(store: Store):
    """https://sqlite.org/pragma.html#pragma_synchronous: NORMAL may lose the last commits in WAL mode."""
    await store.check()
    db = store._writer._db  # type: ignore[attr-defined]
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert db.execute("PRAGMA synchronous").fetchone() == (2,)


# secrets


@pytest.mark.parametrize("secret_key", [SECRET, None])
async def test_no_secret_is_in_any_file(path: Path, secret_key: bytes | None):
    async with open_store(path, secret_key=secret_key) as store:
        caller = await make_caller(store)
        for number in range(20):
            await answer_idempotency(store, caller.account.id, f"{number}", ANSWER)
        open_octets = octets_in(path.parent)
        assert (
            await store.begin_idempotent(caller.account.id, "7", "b", keep_s=60, lease_s=60)
        ) == ANSWER
    for octets in (open_octets, octets_in(path.parent)):
        assert b"sk_live_abcd" in octets  # the prefix is shown: so we look in the right place
        assert b"DoNotWriteThis" not in octets
        assert SECRET not in octets
        assert SECRET.hex().encode() not in octets


async def test_a_key_file_is_made_once_and_used_again(path: Path):
    async with open_store(path, secret_key=None) as store:
        caller = await make_caller(store)
        await answer_idempotency(store, caller.account.id, "k", ANSWER)
    async with open_store(path, secret_key=None) as store:
        assert (
            await store.begin_idempotent(caller.account.id, "k", "b", keep_s=60, lease_s=60)
            == ANSWER
        )
    async with open_store(path, secret_key=SECRET) as store:
        with pytest.raises(StoreBroken, match="another secret key"):
            await store.begin_idempotent(caller.account.id, "k", "b", keep_s=60, lease_s=60)


async def test_a_sealed_answer_opens_only_where_it_was_put(store: Store, path: Path):
    caller = await make_caller(store)
    await store.begin_idempotent(caller.account.id, "b", "b", keep_s=60, lease_s=60)
    await answer_idempotency(store, caller.account.id, "a", ANSWER)
    with sqlite3.connect(path) as db:
        db.execute(
            "UPDATE idempotency_records SET answer = (SELECT answer FROM idempotency_records WHERE key = 'a')"
        )
    db.close()
    with pytest.raises(StoreBroken):
        await store.begin_idempotent(caller.account.id, "b", "b", keep_s=60, lease_s=60)


async def test_a_key_of_a_wrong_length_is_refused(path: Path):
    with pytest.raises(ValueError, match="32"):
        async with open_store(path, secret_key=b"short"):
            pass
    path.with_name(f"{path.name}.key").write_bytes(b"short")
    with pytest.raises(StoreBroken, match="no secret key"):
        async with open_store(path, secret_key=None):
            pass


# processes


async def test_two_processes_at_the_edge_never_grant_one_too_many(store: Store, path: Path):
    caller = await make_caller(store)
    with child("edge", path, 77) as one, child("edge", path, 77) as two:
        for process in (one, two):
            assert await line_of(process) == "ready"
        for process in (one, two):
            tell(process)
        said = [[int(n) for n in (await line_of(process)).split()] for process in (one, two)]
    assert [sum(counts) for counts in zip(*said, strict=True)] == [77, 43, 0]
    assert (await store.ledger(caller)).reserved == 77


async def test_the_clock_is_read_after_the_lock_is_held(store: Store, path: Path, clock: Clock):
    caller = await make_caller(store)
    with child("hold", path) as process:
        assert await line_of(process) == "held"

        async def let_go() -> None:
            await trio.testing.wait_all_tasks_blocked()
            clock.pass_(5)
            tell(process)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_go)
            reservation = await store.reserve(caller, 1, granted, lease_s=60)
    assert reservation.reserved_at == NOON + timedelta(seconds=5)


async def test_a_key_revoked_by_another_process_fails_at_once(store: Store, path: Path):
    await make_caller(store)
    assert await store.caller("hash")
    assert await said_by("revoke", path) == "True"
    assert await store.caller("hash") is None


async def test_killed_at_any_moment_nothing_acknowledged_is_lost_or_counted_twice(
    path: Path, clock: Clock
):
    rng = random.Random(8)
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        caller = await make_caller(store)
    acknowledged = []
    for kill in range(KILLS):
        with child("load", path, kill * 1_000_000) as process:
            for _ in range(rng.randint(1, 150)):
                acknowledged.append(int(await line_of(process)))
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split("\n")[:-1]
            acknowledged += map(int, rest)
    db = sqlite3.connect(path)
    rows = dict(db.execute("SELECT latency_ms, count(*) FROM usage GROUP BY latency_ms"))
    db.close()
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        assert set(acknowledged) <= rows.keys()
        assert set(rows.values()) == {3}
        ledger = await store.ledger(caller)
        assert ledger.month_billable == ledger.period_billable == 3 * len(rows)
        assert ledger.month_units - ledger.reserved == 3 * len(rows)
        assert ledger.reserved <= KILLS * 12 * 5
        clock.pass_(60)
        assert (await store.ledger(caller)).reserved == 0


async def test_a_database_that_another_process_has_locked_is_unavailable_and_heals(
    store: Store, path: Path
):
    caller = await make_caller(store)
    refused = 0

    async def ask() -> None:
        nonlocal refused
        began = trio.current_time()
        with pytest.raises(StoreUnavailable):
            await store.reserve(caller, 1, granted, lease_s=60)
        assert trio.current_time() - began < PROMISED_S
        refused += 1

    with child("hold", path) as process:
        assert await line_of(process) == "held"
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
        assert refused == 20
        assert await store.caller("hash")  # who only reads waits for nobody
        tell(process)
        assert await line_of(process) == "let go"
    assert (await store.ledger(caller)).reserved == 0
    await use(store, caller, NOON)


async def test_a_full_disk_is_unavailable_loses_nothing_and_heals(store: Store, path: Path):
    await make_caller(store)
    with child("fill", path, path) as process:
        assert float(await line_of(process)) < PROMISED_S
        assert await line_of(process) == "(True, True, True, 6000)"


async def test_a_file_that_is_gone_is_unavailable_and_heals_when_it_is_back(
    store: Store, path: Path
):
    caller = await make_caller(store)
    await use(store, caller, NOON)
    away = path.with_name("away")
    path.rename(away)
    for _ in range(2):
        began = trio.current_time()
        with pytest.raises(StoreUnavailable):
            await store.reserve(caller, 1, granted, lease_s=60)
        with pytest.raises(StoreUnavailable):
            await store.caller("hash")
        assert trio.current_time() - began < PROMISED_S
    assert not path.exists()
    away.rename(path)
    await use(store, caller, NOON)
    assert (await store.ledger(caller)).month_units == 2


async def test_another_file_in_its_place_is_refused(store: Store, path: Path):
    caller = await make_caller(store)
    path.rename(path.with_name("away"))
    path.touch()
    with pytest.raises(StoreBroken):
        await store.reserve(caller, 1, granted, lease_s=60)
    assert path.stat().st_size == 0


async def test_damage_that_shows_itself_later_is_told_as_such(path: Path, clock: Clock):
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        caller = await make_caller(store)
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * (path.stat().st_size - 4096))
        with pytest.raises(StoreBroken, match="damaged"):
            await store.reserve(caller, 1, granted, lease_s=60)


# threads


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name in ("Writer", "Reader")]


async def test_leaving_answers_those_who_wait_and_leaves_no_thread(path: Path, clock: Clock):
    go_on = threading.Event()

    def stall(_: Ledger) -> str:
        go_on.wait()
        return "no"

    async with trio.open_nursery() as nursery:
        async with open_store(path, secret_key=SECRET, now=clock) as store:
            assert threads() == ["Writer", "Reader"]
            caller = await make_caller(store)
            nursery.start_soon(partial(store.reserve, caller, 1, stall, lease_s=60))
            for _ in range(50):
                nursery.start_soon(partial(store.reserve, caller, 1, granted, lease_s=60))
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()
        assert threads() == []
        with pytest.raises(StoreUnavailable):
            await store.check()
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        assert (await store.ledger(caller)).reserved == 50


async def test_a_block_that_is_cancelled_leaves_no_thread(path: Path):
    with trio.CancelScope() as scope:
        async with open_store(path, secret_key=SECRET):
            scope.cancel()
            await trio.sleep_forever()
    assert threads() == []


async def test_a_transaction_that_has_begun_is_waited_for(store: Store):
    """Its outcome would be unknown, and what was granted would be granted again."""
    caller = await make_caller(store)
    stalled, go_on = threading.Event(), threading.Event()

    def stall(_: Ledger) -> None:
        stalled.set()
        threading.Timer(database_thread.ANSWER_S + 0.2, go_on.set).start()
        go_on.wait()

    reservation = await store.reserve(caller, 1, stall, lease_s=60)
    assert isinstance(reservation, Reservation)
    assert (await store.ledger(caller)).reserved == 1


async def test_a_stalled_transaction_is_given_up_and_heals(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(database_thread.Writer, "stall_s", 0.1)
    caller = await make_caller(store)
    stalled, go_on = threading.Event(), threading.Event()

    def stall(_: Ledger) -> None:
        stalled.set()
        go_on.wait()

    began = trio.current_time()
    with pytest.raises(StoreUnavailable):
        await store.reserve(caller, 1, stall, lease_s=60)
    assert trio.current_time() - began < PROMISED_S
    assert stalled.is_set()
    go_on.set()
    await use(store, caller, NOON)
    assert (await store.ledger(caller)).month_units == 2  # it was granted after all; its lease ends


async def test_what_gave_up_before_its_turn_changes_nothing(store: Store):
    caller = await make_caller(store)
    stalled, go_on = threading.Event(), threading.Event()

    def stall(_: Ledger) -> str:
        stalled.set()
        go_on.wait()
        return "no"

    async def ask(weigh: Any) -> None:
        with pytest.raises(StoreUnavailable):
            await store.reserve(caller, 1, weigh, lease_s=60)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, stall)
        await trio.to_thread.run_sync(stalled.wait)
        for _ in range(9):
            nursery.start_soon(ask, granted)
    go_on.set()
    await store.check()
    assert (await store.ledger(caller)).reserved == 0


async def test_the_queue_has_a_bound(store: Store, monkeypatch: pytest.MonkeyPatch):
    caller = await make_caller(store)
    monkeypatch.setattr(database_thread, "WAITING_MAX", 5)
    outcomes: Counter[str] = Counter()

    async def ask() -> None:
        try:
            await store.reserve(caller, 1, granted, lease_s=60)
            outcomes["granted"] += 1
        except StoreUnavailable:
            outcomes["refused"] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(ask)
    assert outcomes["refused"] > 0
    assert (await store.ledger(caller)).reserved == outcomes["granted"]


async def test_many_ask_and_few_transactions_are_committed(store: Store, path: Path):
    caller = await make_caller(store)
    commits = 0

    def count(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    store._writer._db.set_trace_callback(count)  # type: ignore[attr-defined]
    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(use, store, caller, NOON)
    assert 2 <= commits < 100
    assert (await store.ledger(caller)).month_units == 200


async def test_one_that_fails_after_it_wrote_leaves_nothing_and_hurts_no_neighbour(store: Store):
    caller = await make_caller(store)
    reported: list[type[Exception]] = []

    def write_and_fail(db: sqlite3.Connection, _: object) -> None:
        db.execute("UPDATE accounts SET email = 'eve@shop.test'")
        raise LookupError("a bug")

    async def fail() -> None:
        with pytest.raises(LookupError):
            await store._writer.call(write_and_fail)  # type: ignore[attr-defined]
        reported.append(LookupError)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(use, store, caller, NOON)
            nursery.start_soon(fail)
    assert len(reported) == 20
    assert await store.account(caller.account.id) == caller.account
    ledger = await store.ledger(caller)
    assert (ledger.month_billable, ledger.window_units, ledger.reserved) == (20, 20, 0)


async def test_a_key_read_a_moment_ago_needs_no_other_thread(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
):
    caller = await make_caller(store)

    async def too_long(_: object) -> None:
        raise StoreUnavailable("the reader is busy")

    with monkeypatch.context() as patch:
        patch.setattr(store._reader, "call", too_long)  # type: ignore[attr-defined]
        assert await store.caller("hash") == caller
        with pytest.raises(StoreUnavailable):
            await store.caller("a key that nobody has asked for")
        patch.setattr(key_lookup, "WARM_S", 0.0)
        with pytest.raises(StoreUnavailable):
            await store.caller("hash")
    assert await store.caller("hash") == caller


async def test_those_who_ask_for_a_key_together_share_a_look_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    caller = await make_caller(store)
    assert await store.caller("hash") == caller
    looked = Counter[str]()

    def counted(db: sqlite3.Connection, sha256: str) -> Caller | None:
        looked[sha256] += 1
        return look_up(db, sha256)

    look_up = key_lookup.caller
    monkeypatch.setattr(key_lookup, "caller", counted)
    found = []

    async def ask(scope: trio.CancelScope) -> None:
        with scope:
            found.append(await store.caller("hash"))

    scopes = [trio.CancelScope() for _ in range(20)]
    async with trio.open_nursery() as nursery:
        for scope in scopes:
            nursery.start_soon(ask, scope)
        await trio.lowlevel.checkpoint()  # one of them is about to look
        for scope in scopes[::3]:
            scope.cancel()
    assert 12 < len(found) <= 20
    assert set(found) == {caller}
    assert looked == {"hash": 1}
    assert await store.caller("hash") == caller
    assert looked == {"hash": 2}


async def test_a_key_revoked_before_the_look_up_is_revoked_for_all_who_share_it(
    store: Store, path: Path
):
    """The look-up comes after the last of them has asked, and shows what is committed by then."""
    caller = await make_caller(store)
    assert await store.caller("hash") == caller
    found = []

    async def ask() -> None:
        found.append(await store.caller("hash"))

    with closing(sqlite3.connect(path)) as db:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
            db.execute("UPDATE keys SET revoked_at = 1")
            db.commit()
    assert found == 5 * [None]


async def test_a_look_up_leaves_no_snapshot_behind(store: Store, path: Path):
    """One that stayed open would show the key as it was, and keep the log from being written back."""
    caller = await make_caller(store)
    assert await store.caller("hash") == caller
    await store.change_account(caller.account.id, tier="scale")
    found = await store.caller("hash")
    assert found
    assert found.account.tier == "scale"
    db = sqlite3.connect(path)
    busy, frames, written_back = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    db.close()
    assert (busy, frames, written_back) == (0, 0, 0)


async def test_two_stores_on_one_file_take_turns(store: Store, path: Path, clock: Clock):
    """Neither starves: who lets the lock go queues behind who waits for it."""
    caller = await make_caller(store)
    async with open_store(path, secret_key=SECRET, now=clock) as other:
        second = await another_key(other, caller.account.id, "second")
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(use, store, caller, NOON)
                nursery.start_soon(use, other, second, NOON)
    assert (await store.ledger(caller)).month_units == 200


# a clock that was ahead


async def test_settlements_of_a_clock_that_was_ahead_keep_no_later_ones(
    store: Store, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    """Tidying ended at the first thousand of them, for as long as the clock had been ahead."""
    monkeypatch.setattr(retention, "TIDIED_MAX", 2)
    caller = await make_caller(store)
    clock.pass_(days=365)
    for _ in range(3):
        await use(store, caller, clock())
    clock.pass_(days=-365)
    for _ in range(3):
        await use(store, caller, clock())
    await store.apply_retention(RETENTION)
    clock.pass_(SETTLED_KEPT.total_seconds())
    await store.apply_retention(RETENTION)
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM settlements").fetchone() == (0,)
    db.close()
