"""Every store, opened on a clock that stands still until it is told."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mailprobe.storage import open_store
from mailprobe.storage.contract import STANDARD_SIZE
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import SECRET, Clock
from tests.storage.stores import STORES, place_for

PATIENT = replace(STANDARD_SIZE, answer_s=30.0)  # so long a busy machine may keep a call waiting


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORES)
async def store(request: Any, clock: Clock, tmp_path: Path) -> AsyncIterator[Store]:
    with place_for(request.param, tmp_path / "new") as where:
        async with open_store(where, secret_key=SECRET, now=clock, size=PATIENT) as opened:
            yield opened
