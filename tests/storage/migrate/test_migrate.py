"""What is refused before anything is moved, and which columns go where. The rest needs a server:
tests/peers/postgres/test_migrate.py."""

import base64
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio
from click.testing import CliRunner, Result

from mailprobe.api.cli import main
from mailprobe.storage import open_store
from mailprobe.storage.contract import DatabaseInUse, StoreBroken
from mailprobe.storage.migrate import source as migrate_source
from mailprobe.storage.migrate.source import open_source
from mailprobe.storage.migrate.tables import OF_POSTGRES, TABLES, TablePlan, planned, reservation_id
from mailprobe.storage.records import Answered
from tests.storage.child_processes import child, line_of, output_of
from tests.storage.fixed_clock import (
    NOON,
    SECRET,
    Clock,
    answer_idempotency,
    make_caller,
    order,
    promise,
    use,
)

NOWHERE = "postgresql://mailprobe@127.0.0.1:1/none"
ANSWER = Answered(200, (), b"{}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database that somebody used, with secrets in it, and the key beside it."""
    path = tmp_path / "mailprobe.db"
    trio.run(fill, path)
    return path


async def fill(path: Path) -> None:
    async with open_store(path, secret_key=None, now=Clock()) as store:
        caller = await make_caller(store)
        await use(store, caller, NOON, 30)
        await promise(store, caller, order("1", secret="s"), order("2"))
        await answer_idempotency(store, caller.account.id, "k", ANSWER)


def columns_of(path: Path) -> dict[str, list[str]]:
    with open_source(path) as source:
        return source.columns()


def types_in_postgres(path: Path) -> dict[str, dict[str, str]]:
    """The other side's columns, as if it had what is to be moved and nothing else."""
    ours = columns_of(path)
    return {
        table.name: {
            table.renamed.get(name, name): "bigint"
            for name in ours[table.name]
            if name not in table.left_out
        }
        for table in TABLES
    } | {name: {"name": "text"} for name in OF_POSTGRES}


def plan_of(path: Path, name: str) -> TablePlan:
    return next(
        plan
        for plan in planned(columns_of(path), types_in_postgres(path))
        if plan.table.name == name
    )


# which columns go where


def test_every_table_of_sqlite_has_its_place(path: Path):
    assert len(planned(columns_of(path), types_in_postgres(path))) == len(TABLES)


@pytest.mark.parametrize(
    "change",
    [
        lambda ours, theirs: ours["usage"].append("colour"),
        lambda ours, theirs: ours["usage"].remove("units"),
        lambda ours, theirs: ours.update(colours=["name"]),
        lambda ours, theirs: ours.pop("outbox"),
        lambda ours, theirs: theirs["usage"].update(colour="text"),
        lambda ours, theirs: theirs["usage"].pop("units"),
        lambda ours, theirs: theirs["usage"].update(units="interval"),
        lambda ours, theirs: theirs.update(colours={"name": "text"}),
        lambda ours, theirs: theirs.pop("outbox"),
    ],
)
def test_an_unknown_difference_of_the_schemas_stops_the_move(
    path: Path, change: Callable[..., Any]
):
    ours, theirs = columns_of(path), types_in_postgres(path)
    change(ours, theirs)
    with pytest.raises(StoreBroken, match=r"cannot move|not on both sides"):
        planned(ours, theirs)


def test_a_reservations_number_becomes_an_id_before_all_others():
    ids = [reservation_id(number) for number in (1, 2, 3_000_000_000)]
    assert ids == sorted(ids)
    assert all(one.version == 7 and UUID(str(one)) == one for one in ids)
    assert ids[-1].int >> 80 == 0


# reading


def test_rows_come_in_batches_each_once(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(migrate_source, "BATCH_ROWS", 7)
    plan = plan_of(path, "usage")
    with open_source(path) as source:
        sizes, after, numbers = [], list[Any](), []
        while True:
            rows, after = source.rows(plan, after)
            if not rows:
                break
            sizes.append(len(rows))
            numbers += [row[plan.columns.index("number")] for row in rows]
    assert sizes == [7, 7, 7, 7, 2]
    assert numbers == sorted(set(numbers))


def test_long_rows_make_short_batches(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(migrate_source, "BATCH_OCTETS", 1)
    plan = plan_of(path, "jobs")
    with open_source(path) as source:
        rows, after = source.rows(TablePlan(plan.table, plan.columns, plan.targets, ("bytea",)), [])
        assert (len(rows), after) == (1, [1])


def test_nothing_of_the_source_changes(path: Path):
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    with open_source(path) as source, pytest.raises(sqlite3.OperationalError, match="readonly"):
        source._db.execute("DELETE FROM usage")
    after = {file: file.read_bytes() for file in path.parent.iterdir()}
    assert after[path] == before[path]
    assert {file.name for file in after.keys() - before.keys()} <= {
        "mailprobe.db-shm",
        "mailprobe.db-wal",
    }
    assert after.get(path.with_name("mailprobe.db-wal"), b"") == b""


def test_the_mark_is_the_same_until_somebody_writes(path: Path):
    with open_source(path) as source:
        first = source.mark
    with open_source(path) as source:
        assert source.mark == first
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM usage")
    db.close()
    with open_source(path) as source:
        assert source.mark != first


# refusals


async def test_a_source_that_is_served_is_refused(path: Path):
    with child("claim for real", path, 1) as served:
        await line_of(served)
        with (
            pytest.raises(DatabaseInUse, match=f"process {served.pid}: stop it"),
            open_source(path),
        ):
            pass
    with open_source(path):
        pass


async def test_a_source_that_is_written_is_refused(path: Path):
    with child("hold", path) as process:
        assert await line_of(process) == "held"
        with pytest.raises(DatabaseInUse), open_source(path):
            pass


async def test_a_source_that_is_moved_is_moved_once_and_served_by_nobody(path: Path):
    with open_source(path):
        with pytest.raises(DatabaseInUse, match="in use"), open_source(path):
            pass
        assert "StoreUnavailable" in await output_of("check", path)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("PRAGMA user_version = 99", "newer version"),
        ("PRAGMA user_version = 0", "older version"),
        ("PRAGMA application_id = 7", "another program's"),
    ],
)
def test_a_source_of_another_kind_is_refused(path: Path, statement: str, words: str):
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()
    with pytest.raises(StoreBroken, match=words), open_source(path):
        pass


def test_a_source_that_is_none_is_refused(tmp_path: Path):
    with pytest.raises(StoreBroken, match="not there"), open_source(tmp_path / "none.db"):
        pass
    (tmp_path / "text.db").write_text("no database" * 1000)
    with pytest.raises(StoreBroken, match="not a database"), open_source(tmp_path / "text.db"):
        pass
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreBroken, match="empty"), open_source(tmp_path / "empty.db"):
        pass
    assert not (tmp_path / "none.db").exists()


# secrets


def test_the_key_is_that_of_the_file_or_the_one_that_is_given(path: Path):
    key = path.with_name("mailprobe.db.key").read_bytes()
    with open_source(path) as source:
        assert source.secret_key(None) == key
        assert source.secret_key(key) == key
        with pytest.raises(StoreBroken, match=r"MAILPROBE_SECRET_KEY is not .*: leave it unset"):
            source.secret_key(SECRET)


def test_a_key_file_that_is_another_databases_is_no_key(path: Path):
    path.with_name("mailprobe.db.key").write_bytes(SECRET)
    with (
        open_source(path) as source,
        pytest.raises(StoreBroken, match=r"\.key is not the secret key"),
    ):
        source.secret_key(None)


@pytest.mark.parametrize("table", ["jobs", "idempotency_records"])
def test_each_kind_of_secret_is_tried(path: Path, table: str):
    with sqlite3.connect(path) as db:
        db.execute(f"DELETE FROM {table}")
        db.execute("DELETE FROM store_properties")
    db.close()
    with open_source(path) as source, pytest.raises(StoreBroken, match="is not the secret key"):
        source.secret_key(SECRET)


def test_no_key_is_made(path: Path):
    path.with_name("mailprobe.db.key").unlink()
    with open_source(path) as source, pytest.raises(StoreBroken, match="is not there"):
        source.secret_key(None)
    assert not path.with_name("mailprobe.db.key").exists()


# the command


@pytest.fixture
def migrate(path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    for name in [name for name in os.environ if name.startswith("MAILPROBE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(path.parent)

    def run(*words: str, **env: str) -> Result:
        return CliRunner().invoke(main, ["migrate", *words], env=env)

    return run


def test_wrong_usage_is_2_and_says_what_is_right(path: Path, migrate: Callable[..., Result]):
    for words, said in [
        (("--from", str(path)), "--to"),
        (("--from", str(path), "--to", "other.db"), "--to takes a postgresql:// URL"),
        (("--from", NOWHERE, "--to", NOWHERE), "--from takes the path"),
        (("--from", "none.db", "--to", NOWHERE), "none.db is not there"),
    ]:
        result = migrate(*words)
        assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def test_a_wrong_key_is_2(path: Path, migrate: Callable[..., Result]):
    words = "--from", str(path), "--to", NOWHERE
    result = migrate(*words, MAILPROBE_SECRET_KEY=base64.b64encode(SECRET).decode())
    assert (result.exit_code, result.stdout) == (2, "")
    assert "MAILPROBE_SECRET_KEY is not the secret key" in result.stderr


def test_an_unreachable_server_is_exit_status_1_without_its_password(
    path: Path, migrate: Callable[..., Result]
):
    result = migrate("--from", str(path), "--to", "postgresql://me:s3cret@127.0.0.1:1/none")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "repeat the command to continue" in result.stderr
    assert "s3cret" not in result.output


def test_a_log_that_was_left_behind_is_read(path: Path, tmp_path: Path):
    """After kill -9 the last writes are in the log alone."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("DELETE FROM usage WHERE number > 3")
    db.commit()
    (tmp_path / "left").mkdir()
    for file in path.parent.glob("mailprobe.db*"):
        shutil.copy(file, tmp_path / "left")
    db.close()
    with open_source(tmp_path / "left" / path.name) as source:
        assert source.count(plan_of(path, "usage")) == 3
