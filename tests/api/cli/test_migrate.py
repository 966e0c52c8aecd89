"""`mailprobe migrate --check`: what a start of this version would do to the database."""

import sqlite3
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from mailprobe.api.cli import main
from mailprobe.storage import open_store, schema_state


def check(path: Path, *words: str) -> Result:
    env = {"MAILPROBE_DATABASE": str(path)}
    return CliRunner().invoke(main, ["migrate", *words], env=env)


async def opened(path: Path) -> None:
    async with open_store(path, secret_key=None):
        pass


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (0, 0, "nothing to do"),
        (-1, 1, "migrates it to"),
        (1, 1, "of a newer version of this program"),
    ],
)
def test_a_schema_is_compared_and_the_file_left_as_it_is(
    tmp_path: Path, change: int, code: int, words: str
) -> None:
    path = tmp_path / "mailprobe.db"
    trio.run(opened, path)
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {schema_state(str(path)).known + change}")
    db.close()
    before = path.read_bytes()
    said = check(path, "--check")
    assert (said.exit_code, said.output.count("\n")) == (code, 1)
    assert f"{path} has schema " in said.output
    assert words in said.output
    assert path.read_bytes() == before


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    said = check(tmp_path / "none.db", "--check")
    assert (said.exit_code, "no tables yet" in said.output) == (0, True)
    assert list(tmp_path.iterdir()) == []


def test_another_programs_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    path.write_bytes(b"Dear Ann, the cake was good." * 100)
    said = check(path, "--check")
    assert (said.exit_code, said.output.count("\n")) == (1, 1)


def test_a_backup_in_the_databases_place_is_taken(tmp_path: Path) -> None:
    """A start makes a database of it."""
    path = tmp_path / "mailprobe.db"
    trio.run(opened, path)
    backup = tmp_path / "backup.db"
    CliRunner().invoke(main, ["backup", str(backup)], env={"MAILPROBE_DATABASE": str(path)})
    said = check(backup, "--check")
    assert (said.exit_code, "nothing to do" in said.output) == (0, True)


def test_an_sqlite_file_that_a_start_refuses_is_refused(tmp_path: Path) -> None:
    """It was said to have no tables yet, and that a start would make them."""
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE cakes (name)")
    db.close()
    said = check(other, "--check")
    assert (said.exit_code, "another program's database" in said.output) == (1, True)
    (tmp_path / "none.db").write_bytes(b"")
    said = check(tmp_path / "none.db", "--check")
    assert (said.exit_code, "is empty or no database" in said.output) == (1, True)


@pytest.mark.parametrize("words", [(), ("--from", "a.db"), ("--check", "--from", "a.db")])
def test_a_half_of_a_move_is_wrong_usage(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert check(tmp_path / "none.db", *words).exit_code == 2
