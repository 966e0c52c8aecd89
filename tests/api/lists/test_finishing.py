"""A list is finished by the claim that holds its end, and by no other."""

from datetime import timedelta
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from mailprobe.api.lists.worker import ListQueue
from mailprobe.storage import open_store
from tests.storage.contract.list_calls import answer_passing, claimed, places, running
from tests.storage.fixed_clock import LEASE_S, SECRET, Clock, make_caller


@pytest.mark.parametrize("passes", [2, 1])
async def test_a_claim_that_has_ended_finishes_no_list(tmp_path: Path, passes: int) -> None:
    """Its process stood still while another one began a pass, or lost the answer to that."""
    clock = Clock()
    async with open_store(tmp_path / "db", secret_key=SECRET, now=clock) as store:
        caller = await make_caller(store)
        await running(store, caller, 1, rechecks=passes)
        quota: Any = SimpleNamespace(store=store, now=clock)  # of a list without a callback
        queue = ListQueue(quota, rng=Random(0), wake_jobs=lambda: None, chunks_at_once=1)
        [claim] = await claimed(store)
        await answer_passing(store, claim, 1, "unknown")
        [slow] = await claimed(store)
        clock.advance(LEASE_S + 1)
        [last] = await claimed(store)
        for each, left in ((slow, passes), *((late, passes - 1) for late in (last, last, slow))):
            await queue.finish(each)
            found = await store.stored_list("list-1")
            assert found is not None
            assert (found.state, found.rechecks) == ("running", left)
        clock.advance(timedelta(days=1).total_seconds())
        assert places(await claimed(store)) == [0]
