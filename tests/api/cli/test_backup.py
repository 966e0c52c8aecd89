"""`mailprobe backup` and `restore`: one file while the service writes, and the old state or the new."""

import json
import os
import random
import resource
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from mailprobe.api.cli import main
from mailprobe.storage import newest_schema, open_store
from mailprobe.storage.contract import StoreBroken
from mailprobe.storage.records import Answered, IdempotencyRecord
from mailprobe.storage.sqlite import backup as backups
from mailprobe.storage.sqlite.backup_trailer import TRAILER_OCTETS, append_trailer, remove_mark
from tests.storage.child_processes import child

ANSWER = Answered(201, (), b'{"key":"sk_live_1"}')
KILLED, PASSED = 9, 8


@pytest.fixture
def run_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MAILPROBE_")]:
        monkeypatch.delenv(name)
    return lambda *words: CliRunner().invoke(main, words)


def made(email: str) -> None:
    """A database at the usual place, with an account and with an answer that is encrypted."""

    async def make() -> None:
        async with open_store("data/mailprobe.db", secret_key=None) as store:
            account = await store.create_account(email, "free")
            await store.create_key(
                account.id, "standard", None, sha256="hash", prefix="sk_live_", keys_max=None
            )
            first = await store.begin_idempotent(account.id, "k", "b", keep_s=9e9, lease_s=9)
            assert isinstance(first, IdempotencyRecord)
            await store.finish_idempotent(first, ANSWER)

    trio.run(make)


async def whose() -> str:
    """Whose database it is, if its key belongs to it."""
    async with open_store("data/mailprobe.db", secret_key=None) as store:
        (account,) = await store.accounts()
        kept = await store.begin_idempotent(account.id, "k", "b", keep_s=9e9, lease_s=9)
        assert kept == ANSWER
        return account.email


def one_line(result: Result, code: int) -> str:
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1), (
        result.output
    )
    return result.stderr


def names() -> set[str]:
    """The files besides those that SQLite keeps beside a database, and the lock's."""
    found = {str(path) for path in Path().rglob("*") if path.is_file()}
    return {name for name in found if not name.endswith(("-wal", "-shm", ".lock"))}


DATABASE = {"data/mailprobe.db", "data/mailprobe.db.key"}


def test_a_backup_is_made_while_another_process_writes(
    run_cli: Callable[..., Result], tmp_path: Path
) -> None:
    made("ann@shop.test")
    with child("load", tmp_path / "data" / "mailprobe.db", 0) as process:
        assert process.stdout.readline()
        assert "with its secret key" in one_line(run_cli("backup", "kept.db"), 0)
        assert process.stdout.readline()
        again = one_line(run_cli("restore", "--force", "kept.db"), 1)
    assert f"served by process {process.pid}" in again
    assert stat.S_IMODE(Path("kept.db").stat().st_mode) == 0o600
    assert names() == DATABASE | {"kept.db"}
    assert backups.check_backup(Path("kept.db")).octets == Path("kept.db").stat().st_size


def test_a_restored_backup_is_the_database_with_its_key(run_cli: Callable[..., Result]) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    key = Path("data/mailprobe.db.key").read_bytes()
    for path in Path("data").iterdir():
        path.unlink()
    one_line(run_cli("restore", "kept.db"), 0)
    assert trio.run(whose) == "ann@shop.test"
    assert names() == DATABASE | {"kept.db"}
    assert key not in Path("data/mailprobe.db").read_bytes()
    assert [stat.S_IMODE(Path(name).stat().st_mode) for name in DATABASE] == [0o600] * 2


def test_a_start_makes_a_database_of_a_backup_that_was_copied(
    run_cli: Callable[..., Result],
) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    for path in Path("data").iterdir():
        path.unlink()
    Path("kept.db").rename("data/mailprobe.db")
    assert trio.run(whose) == "ann@shop.test"


def test_a_place_that_holds_no_file_is_refused(
    run_cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    assert "FILE is -" in one_line(run_cli("backup", "-"), 2)
    assert not Path("-").exists()
    assert "data is not a file" in one_line(run_cli("restore", "data"), 2)
    assert "missing.db is not there" in one_line(run_cli("restore", "missing.db"), 2)
    monkeypatch.setenv("MAILPROBE_DATABASE", "data")
    assert "data is a directory" in one_line(run_cli("restore", "--force", "kept.db"), 1)


def test_nothing_is_replaced_without_force(run_cli: Callable[..., Result]) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    before = Path("kept.db").read_bytes()
    assert "--force" in one_line(run_cli("backup", "kept.db"), 2)
    assert "--force" in one_line(run_cli("restore", "kept.db"), 2)
    assert Path("kept.db").read_bytes() == before
    for own in ("mailprobe.db", "mailprobe.db.key", "mailprobe.db-wal"):
        assert "belongs to" in one_line(run_cli("backup", "--force", f"data/{own}"), 2)
    one_line(run_cli("backup", "--force", "kept.db"), 0)
    assert Path("kept.db").read_bytes() != before


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with sqlite3.connect(path) as db:
        yield db
    db.close()


def newer(path: Path) -> None:
    os.truncate(path, path.stat().st_size - TRAILER_OCTETS)
    with opened(path) as db:
        db.execute(f"PRAGMA user_version = {newest_schema(str(path)) + 1}")
    append_trailer(path)


# What the scripts after the one of the key's check value have added.
LATER_TABLES = (
    *("store_properties", "host_tolerances", "list_waits"),
    *("sign_ins", "sign_in_links", "people", "shared_reports", "conversations"),
)
LATER_COLUMNS = (
    *(("lists", "reading"), ("lists", "patience_s")),
    *(("list_chunks", "waits_since"), ("list_chunks", "waits")),
    *(("audit_entries", "actor_person"), ("lists", "mails")),
)


def of_an_earlier_version(path: Path) -> None:
    """Make of a backup what earlier versions wrote: no trailer, no mark, no check value of the key."""
    remove_mark(path)
    with opened(path) as db:
        for table in LATER_TABLES:
            db.execute(f"DROP TABLE {table}")
        for table, column in LATER_COLUMNS:
            db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        db.execute("DELETE FROM _sqlite_migrations WHERE name >= '024'")
        ((left,),) = db.execute("SELECT count(*) FROM _sqlite_migrations").fetchall()
        db.execute(f"PRAGMA user_version = {left}")


def with_another_key(path: Path) -> None:
    """Change one bit of the secret key in a backup of an earlier version."""
    of_an_earlier_version(path)
    with opened(path) as db:
        ((key,),) = db.execute("SELECT secret_key FROM backup").fetchall()
        db.execute("UPDATE backup SET secret_key = ?", [bytes([key[0] ^ 1, *key[1:]])])


def overwritten(path: Path) -> None:
    octets = bytearray(path.read_bytes())
    octets[3 * 4096 : 5 * 4096] = bytes(2 * 4096)
    path.write_bytes(octets)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (newer, "newer version"),
        (overwritten, "damaged"),
        (lambda path: os.truncate(path, path.stat().st_size // 2), "damaged"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "damaged"),
        (lambda path: os.truncate(path, path.stat().st_size - TRAILER_OCTETS), "damaged"),
        (lambda path: os.truncate(path, path.stat().st_size - TRAILER_OCTETS - 40), "damaged"),
        (lambda path: path.write_bytes(path.read_bytes() + b" "), "damaged"),
        (with_another_key, "the secret key in it is not its database's"),
        (lambda path: path.write_bytes(b""), "not a database of this program"),
        (lambda path: path.write_bytes(b"Dear Ann" * 999), "not a database"),
        (lambda path: Path("data/mailprobe.db").rename(path), "not a backup"),
    ],
)
def test_a_backup_that_is_none_changes_nothing(
    run_cli: Callable[..., Result], harm: Callable[[Path], object], words: str
) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    there = {name: Path(name).read_bytes() for name in DATABASE}
    harm(Path("kept.db"))
    assert words in one_line(run_cli("restore", "--force", "kept.db"), 1)
    if Path("data/mailprobe.db").exists():
        assert {name: Path(name).read_bytes() for name in DATABASE} == there
        assert trio.run(whose) == "ann@shop.test"


def test_no_part_of_a_backup_is_taken_for_the_whole(run_cli: Callable[..., Result]) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    octets = Path("kept.db").read_bytes()
    lengths = {*range(len(octets) - 5000, len(octets), 7), *range(0, len(octets), 9973)}
    for length in sorted(lengths | {*range(len(octets) - 200, len(octets))}):
        Path("part.db").write_bytes(octets[:length])
        with pytest.raises(StoreBroken):
            backups.check_backup(Path("part.db"))


def test_no_changed_bit_of_a_backup_passes(run_cli: Callable[..., Result]) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    octets = bytearray(Path("kept.db").read_bytes())
    chance = random.Random(3)
    places = [*range(100), *range(len(octets) - TRAILER_OCTETS, len(octets))]
    for place in places + [chance.randrange(len(octets)) for _ in range(300)]:
        bit = 1 << chance.randrange(8)
        octets[place] ^= bit
        Path("kept.db").write_bytes(octets)
        with pytest.raises(StoreBroken):
            backups.check_backup(Path("kept.db"))
        octets[place] ^= bit


def test_an_earlier_versions_backup_is_restored_with_a_word_of_it(
    run_cli: Callable[..., Result],
) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    of_an_earlier_version(Path("kept.db"))
    for path in Path("data").iterdir():
        path.unlink()
    assert "cannot be checked whole" in one_line(run_cli("restore", "kept.db"), 0)
    assert trio.run(whose) == "ann@shop.test"


OTHER = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


@pytest.mark.parametrize("words", [("backup", "more.db"), ("restore", "--force", "kept.db")])
def test_a_key_of_another_database_is_refused_with_its_name(
    run_cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    before = {name: Path(name).read_bytes() for name in DATABASE}
    monkeypatch.setenv("MAILPROBE_SECRET_KEY", OTHER)
    assert "MAILPROBE_SECRET_KEY is not the secret key" in one_line(run_cli(*words), 1)
    assert {name: Path(name).read_bytes() for name in DATABASE} == before


@pytest.mark.parametrize("harm", ["another", "missing", "short"])
def test_no_backup_is_made_without_the_key_of_its_secrets(
    run_cli: Callable[..., Result], harm: str
) -> None:
    made("ann@shop.test")
    key = Path("data/mailprobe.db.key")
    if harm == "missing":
        key.unlink()
    else:
        key.write_bytes(bytes(32 if harm == "another" else 31))
    assert "mailprobe.db.key" in one_line(run_cli("backup", "kept.db"), 1)
    assert not Path("kept.db").exists()


def test_a_backup_without_its_key_is_not_put_beside_another_key(
    run_cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAILPROBE_SECRET_KEY", OTHER)
    run_cli("account", "create", "--email", "ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    for path in Path("data").iterdir():
        path.unlink()
    monkeypatch.delenv("MAILPROBE_SECRET_KEY")
    made("bob@shop.test")
    before = {name: Path(name).read_bytes() for name in DATABASE}
    said = one_line(run_cli("restore", "--force", "kept.db"), 1)
    assert "mailprobe.db.key is not the secret key" in said
    assert {name: Path(name).read_bytes() for name in DATABASE} == before


def test_another_databases_log_is_not_taken_for_that_of_a_copied_backup(
    run_cli: Callable[..., Result],
) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    Path("data/mailprobe.db-wal").write_bytes(b"log")
    Path("kept.db").replace("data/mailprobe.db")
    assert "another database's log" in one_line(run_cli("account", "list"), 1)


@pytest.mark.parametrize(
    "harm", [lambda path: os.truncate(path, path.stat().st_size - 40), lambda path: flip(path)]
)
def test_a_start_takes_no_damaged_backup(
    run_cli: Callable[..., Result], harm: Callable[[Path], object]
) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    harm(Path("kept.db"))
    Path("kept.db").replace("data/mailprobe.db")
    key = Path("data/mailprobe.db.key").read_bytes()
    assert "damaged" in one_line(run_cli("account", "list"), 1)
    assert Path("data/mailprobe.db.key").read_bytes() == key


def flip(path: Path) -> None:
    octets = bytearray(path.read_bytes())
    octets[len(octets) // 2] ^= 4
    path.write_bytes(octets)


def test_the_log_of_the_database_before_is_not_taken_for_the_backups(
    run_cli: Callable[..., Result], tmp_path: Path
) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    with child("load", tmp_path / "data" / "mailprobe.db", 0) as process:
        assert process.stdout.readline()
        process.kill()
        process.wait()
    assert Path("data/mailprobe.db-wal").read_bytes()
    one_line(run_cli("restore", "--force", "kept.db"), 0)
    assert trio.run(whose) == "ann@shop.test"


def test_a_damaged_database_is_replaced(run_cli: Callable[..., Result]) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    Path("data/mailprobe.db").write_bytes(b"Dear Ann" * 999)
    one_line(run_cli("restore", "--force", "kept.db"), 0)
    assert trio.run(whose) == "ann@shop.test"


def in_a_child(work: Callable[[], object]) -> int:
    """Run in a process that dies where `work` says; returns its exit code."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        work()
        os._exit(PASSED)
    finally:
        os._exit(1)


@pytest.mark.parametrize(
    ("where", "whose_after"),
    [
        ("storage.sqlite.backup.shutil.copyfileobj", "old"),
        ("storage.sqlite.backup.backup_trailer.remove_mark", "old"),
        ("storage.sqlite.backup.finish_log", "old"),
        ("storage.sqlite.file.prepare", "new"),
        ("storage.base.encryption.replace_key_beside", "new"),
    ],
)
def test_a_killed_restore_leaves_the_one_or_the_other(
    run_cli: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    whose_after: str,
) -> None:
    """A database never has the other one's key."""
    made("new@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    for path in Path("data").iterdir():
        path.unlink()
    made("old@shop.test")

    def killed() -> None:
        monkeypatch.setattr(f"mailprobe.{where}", lambda *_, **__: os._exit(KILLED))
        run_cli("restore", "--force", "kept.db")

    assert in_a_child(killed) == KILLED
    assert trio.run(whose) == ("old@shop.test" if whose_after == "old" else "new@shop.test")
    one_line(run_cli("restore", "--force", "kept.db"), 0)
    assert trio.run(whose) == "new@shop.test"
    assert names() == DATABASE | {"kept.db"}


@pytest.mark.parametrize("where", ["_without_journal", "check_backup"])
def test_a_killed_backup_leaves_the_one_before(
    run_cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    before = Path("kept.db").read_bytes()

    def killed() -> None:
        monkeypatch.setattr(backups, where, lambda *_: os._exit(KILLED))
        run_cli("backup", "--force", "kept.db")

    assert in_a_child(killed) == KILLED
    assert Path("kept.db").read_bytes() == before
    one_line(run_cli("backup", "--force", "kept.db"), 0)
    assert names() == DATABASE | {"kept.db"}  # what was left of the killed one is gone


@pytest.mark.parametrize("words", [("backup", "more.db"), ("restore", "--force", "kept.db")])
def test_a_full_disk_leaves_what_was_there(
    run_cli: Callable[..., Result], words: tuple[str, ...]
) -> None:
    made("ann@shop.test")
    one_line(run_cli("backup", "kept.db"), 0)
    before = Path("data/mailprobe.db").read_bytes(), Path("kept.db").read_bytes()

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        one_line(run_cli(*words), 1)

    assert in_a_child(full) == PASSED
    assert (Path("data/mailprobe.db").read_bytes(), Path("kept.db").read_bytes()) == before
    assert names() == DATABASE | {"kept.db"}


def test_a_postgresql_store_is_left_to_its_own_tools(
    run_cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAILPROBE_DATABASE", "postgresql://a:b@db/c")
    for words in (("backup", "kept.db"), ("restore", "kept.db")):
        said = one_line(run_cli(*words), 2)
        assert "pg_dump" in said
        assert "MAILPROBE_SECRET_KEY" in said


def test_a_key_that_is_not_in_a_file_is_named(
    run_cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAILPROBE_SECRET_KEY", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
    created = run_cli("account", "create", "--email", "ann@shop.test")
    for words in (("backup", "kept.db"), ("restore", "--force", "kept.db")):
        assert "MAILPROBE_SECRET_KEY" in one_line(run_cli(*words), 0)
    shown = json.loads(run_cli("account", "list").stdout)
    assert shown["account_id"] == json.loads(created.stdout)["account_id"]
