"""The suite `store`: its full database is made by SQL of its own, so it must follow the schema."""

from datetime import date

import pytest

from mailprobe.bench.load.store_load import SECRET
from mailprobe.bench.suites.store import fill, known
from mailprobe.storage import open_store

ROWS = 1_600


@pytest.fixture
def full(tmp_path):
    fill(path := tmp_path / "full.db", ROWS)
    return str(path)


async def test_the_full_database_has_usage_of_its_accounts(full):
    async with open_store(full, secret_key=SECRET) as store:
        load = await known(store)
        first = load.callers[0].account.id
        rows = await store.usage(first, limit=10)
        days = await store.days(first, date(2000, 1, 1), date(2100, 1, 1))
    assert len(rows) == 10
    assert sum(day.calls for day in days) >= ROWS / 2
