"""What only a file can do: be shared, killed, damaged, full, locked, and gone."""
# ruff: noqa: ASYNC240  (a test may wait for a file's name)

import os
import shutil
import sqlite3
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from mailprobe.storage import open_store
from mailprobe.storage.contract import StoreBroken, StoreUnavailable
from mailprobe.storage.records import Answered
from mailprobe.storage.sqlite import backup, backup_trailer
from mailprobe.storage.sqlite import file as sqlite_file
from mailprobe.storage.store import Store
from tests.storage.child_processes import child, line_of, octets_in, output_of
from tests.storage.fixed_clock import (
    NOON,
    SECRET,
    Clock,
    answer_idempotency,
    make_caller,
    use,
)

RAW_KEY = "sk_live_DoNotWriteThisAnywhere0123456789abcdefghijkl"
ANSWER = Answered(201, (("Location", RAW_KEY),), f'{{"key":"{RAW_KEY}"}}'.encode())


async def opened(path: Path) -> None:
    async with open_store(path, secret_key=SECRET):
        pass


# the file


@pytest.mark.parametrize("path", ["typo/mailprobe.db", "data/more/mailprobe.db"])
async def test_a_missing_folder_of_a_named_database_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
):
    """An empty database beside the one that was meant would be served without a word."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreBroken, match="does not exist"):
        async with open_store(path, secret_key=None):
            raise AssertionError
    assert [*tmp_path.iterdir()] == []
    with (
        pytest.raises(StoreBroken, match="does not exist"),
        backup.replacing_database(tmp_path / path),
    ):
        raise AssertionError


async def test_the_first_start_makes_folder_and_file_for_their_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    path = Path("data/mailprobe.db")  # the default: another's folder is not made
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


async def test_records_survive_a_restart(path: Path, clock: Clock):
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
    with pytest.raises(
        StoreBroken, match="is empty or no database: put a backup in its place"
    ) as reported:
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
        with pytest.raises(StoreBroken, match="is empty or no database: put a backup in its place"):
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


async def test_a_newer_schema_is_refused_by_the_version_that_reads_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The newer version has left its name; an older one cannot know it otherwise."""
    monkeypatch.setattr(sqlite_file, "program_version", lambda: "0.1.0")
    await opened(path)
    number = sqlite_file.schema_state(path).known
    assert sqlite_file.schema_state(path).written_by == "0.1.0"
    monkeypatch.setattr(sqlite_file, "program_version", lambda: "0.1.1")
    await opened(path)  # the same schema: the older one reads it too
    assert sqlite_file.schema_state(path).written_by == "0.1.0"
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {number + 1}")
        db.execute("INSERT INTO schema_versions VALUES (?, '0.2.0')", [number + 1])
    db.close()
    with pytest.raises(StoreBroken, match=rf"reads up to {number}: use 0\.2\.0 or newer"):
        await opened(path)


async def test_a_directory_is_refused(tmp_path: Path):
    with pytest.raises(StoreBroken, match="is a directory"):
        await opened(tmp_path)


async def test_a_lost_file_whose_log_is_there_is_not_made_anew(path: Path):
    path.with_name(f"{path.name}-wal").write_bytes(b"committed, and nowhere else")
    with pytest.raises(StoreBroken, match="its log"):
        await opened(path)
    assert not path.exists()


async def test_a_folder_that_cannot_be_created_makes_the_store_unavailable(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable):
        await opened(tmp_path / "file" / "mailprobe.db")


def test_an_error_of_a_full_disk_says_that_it_is_full(tmp_path: Path):
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    full = Path("/proc/mailprobe.db")  # a file system without a free block
    assert str(sqlite_file.as_unavailable(error, full)).endswith("error, because the disk is full")
    assert str(sqlite_file.as_unavailable(error, tmp_path / "mailprobe.db")).endswith("I/O error")


async def test_a_store_without_permission_to_write_is_unavailable(clock: Clock):
    """Root may write anything, so the child becomes somebody else."""
    folder = Path(tempfile.mkdtemp())
    path = folder / "mailprobe.db"
    try:
        await opened(path)
        folder.chmod(0o555)
        locked = await output_of("check as nobody", path)
        assert locked == (
            f"StoreUnavailable {path} cannot be used: Permission denied: {path}.lock; see that this "
            "user may read and write it, its key and its folder"
        )
        folder.chmod(0o777)
        (folder / "mailprobe.db.lock").chmod(0o666)
        path.chmod(0o444)
        not_writable = f"StoreUnavailable {path} may not be written: let this user write to it"
        assert await output_of("check as nobody", path) == not_writable
        path.chmod(0o666)
        assert await output_of("check as nobody", path) == str(NOON)
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
    sqlite_file.scripts_in.cache_clear()
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
    db.execute(f"PRAGMA application_id = {backup_trailer.APPLICATION_ID}")
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


async def test_commits_are_synchronous(store: Store):
    """https://sqlite.org/pragma.html#pragma_synchronous: NORMAL may lose the last commits in WAL mode."""
    await store.check()
    db = store.executor.writer.db  # type: ignore[attr-defined]
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


@pytest.mark.parametrize("has_check", [True, False], ids=["check value", "secrets alone"])
async def test_a_start_with_another_key_is_refused_and_says_which(path: Path, has_check: bool):
    """A database of before the check value is known by its newest secrets."""
    key = path.with_name(f"{path.name}.key")
    async with open_store(path, secret_key=None) as store:
        caller = await make_caller(store)
        await answer_idempotency(store, caller.account.id, "k", ANSWER)
    own = key.read_bytes()
    if not has_check:
        with sqlite3.connect(path) as db:
            db.execute("DELETE FROM store_properties")
        db.close()
    for octets, given, name in [
        (own, SECRET, "MAILPROBE_SECRET_KEY is not"),
        (bytes([own[0] ^ 1, *own[1:]]), None, "mailprobe.db.key is not"),
    ]:
        key.write_bytes(octets)
        with pytest.raises(StoreBroken, match=name) as raised:
            async with open_store(path, secret_key=given):
                pass
        assert str(raised.value).isprintable()
    key.write_bytes(own)
    async with open_store(path, secret_key=None) as store:
        kept = await store.begin_idempotent(caller.account.id, "k", "b", keep_s=60, lease_s=60)
        assert kept == ANSWER


async def test_a_database_whose_check_value_is_emptied_begins_with_another_key(path: Path):
    async with open_store(path, secret_key=None) as store:
        caller = await make_caller(store)
        await answer_idempotency(store, caller.account.id, "k", ANSWER)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE store_properties SET value = x'' WHERE name = 'seal'")
    db.close()
    for _ in range(2):
        async with open_store(path, secret_key=SECRET) as store:
            with pytest.raises(StoreBroken, match="another secret key"):
                await store.begin_idempotent(caller.account.id, "k", "b", keep_s=60, lease_s=60)
    with pytest.raises(StoreBroken, match="is not the secret key"):
        async with open_store(path, secret_key=None):
            pass


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


async def test_a_used_database_without_its_key_is_refused_in_one_line(path: Path, clock: Clock):
    key = path.with_name(f"{path.name}.key")
    async with open_store(path, secret_key=None, now=clock) as store:
        key.unlink()
    async with open_store(path, secret_key=None, now=clock) as store:  # nothing is lost yet
        await make_caller(store)
    octets = key.read_bytes()
    key.unlink()
    with pytest.raises(StoreBroken, match=r"mailprobe\.db\.key.* put it back, or set") as raised:
        async with open_store(path, secret_key=None, now=clock):
            pass
    assert str(raised.value).isprintable()
    assert not key.exists()
    async with open_store(path, secret_key=octets, now=clock):
        pass
    key.write_bytes(octets)
    async with open_store(path, secret_key=None, now=clock):
        pass
