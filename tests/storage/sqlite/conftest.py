"""Every test here has an SQLite store on a clock that stands still."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailprobe.storage import open_store
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import SECRET, Clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mailprobe.db"


@pytest.fixture
async def store(path: Path, clock: Clock) -> AsyncIterator[Store]:
    async with open_store(path, secret_key=SECRET, now=clock) as opened:
        yield opened
