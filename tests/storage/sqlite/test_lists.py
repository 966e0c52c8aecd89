"""Lists in a file of an earlier schema, which kept their lines with the queue of their chunks."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from mailprobe.storage import open_store
from mailprobe.storage.sqlite import file as sqlite_file
from tests.storage.contract.list_calls import answer, claimed
from tests.storage.fixed_clock import OLD_CALLER, SECRET, Clock

LATER = ("019_*.sql", "0[2-9]*.sql")
COLUMNS = (
    "id, account, key, name, state, columns, rows, addresses, answered, counts, created_at, host"
)


async def test_lists_of_an_earlier_schema_go_on(
    path: Path, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tmp_path / "schema"
    shutil.copytree(sqlite_file.SCHEMA, before, ignore=shutil.ignore_patterns(*LATER))
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_file, "SCHEMA", before)
        sqlite_file.prepare(path)
    db = sqlite3.connect(path)
    with db:
        for statement in OLD_CALLER:
            db.execute(statement)
        db.execute(
            f"INSERT INTO lists ({COLUMNS}) SELECT 'old', account, number, '', 'running', '[]', 3,"
            " 3, 1, '{\"deliverable\": 1}', 1, '' FROM keys"
        )
        db.execute(
            "INSERT INTO list_chunks (list, place, units, rows, results, due_at, fence) VALUES"
            " (1, -1, 0, '', '', NULL, 0), (1, 0, 2, 'r0', '[1]', 1, 1), (1, 1, 1, 'r1', '', 1, 0)"
        )
    db.close()
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        claims = await claimed(store)
        found = [(each.chunk.rows, each.chunk.results) for each in claims]
        assert found == [("r0", "[1]"), ("r1", "")]
        for claim in claims:
            await answer(store, claim, "deliverable")
        assert await store.list_results("old", [0]) == [(0, '[1]["deliverable"]\n')]
        [last] = await claimed(store)
        assert last.is_last
        await store.delete_list("old")
        assert await store.chunks("old", first=0, limit=9) == []
